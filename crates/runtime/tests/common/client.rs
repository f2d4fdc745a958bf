//! A raw NBD client that can also misbehave.
//!
//! Owns: one socket and the bytes put on it. Never: checks the server for what the tests check.
//! Invariant: every method blocks until it has what it promises, or panics after 20 seconds.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const ZEROES: u16 = 6;
pub const STATUS: u16 = 7;

pub struct Client {
    pub socket: UnixStream,
    pub structured: bool,
    pub size_bytes: u64,
}

/// One reply: cookie, error, data with its offset in the reply's order.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub cookie: u64,
    pub errno: u32,
    pub data: Vec<(u64, Vec<u8>)>,
}

pub fn request(command: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}

pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

impl Client {
    /// Connects and reads the greeting.
    pub fn raw(path: &Path) -> Client {
        let socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut client = Client { socket, structured: false, size_bytes: 0 };
        assert_eq!(&client.take(18)[..16], b"NBDMAGICIHAVEOPT");
        client.put(&3u32.to_be_bytes());
        client
    }

    /// Connects and enters the transmission phase.
    pub fn open(path: &Path, name: &str, structured: bool) -> Client {
        let mut client = Client::raw(path);
        if structured {
            client.put(&option(8, &[]));
            assert_eq!(client.option_reply().0, 1);
            client.structured = true;
        }
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend_from_slice(name.as_bytes());
        data.extend_from_slice(&0u16.to_be_bytes());
        client.put(&option(7, &data));
        loop {
            let (kind, data) = client.option_reply();
            match kind {
                1 => return client,
                3 if data[..2] == [0, 0] => client.size_bytes = u64::from_be_bytes(data[2..10].try_into().unwrap()),
                3 => {}
                _ => panic!("refused: {kind:#x} {}", String::from_utf8_lossy(&data)),
            }
        }
    }

    pub fn put(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    pub fn take(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.socket.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Reads until the server closes. True when it closed in order or by a reset.
    pub fn closed(&mut self) -> bool {
        let mut rest = vec![0; 1 << 16];
        loop {
            match self.socket.read(&mut rest) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }

    pub fn option_reply(&mut self) -> (u32, Vec<u8>) {
        let head = self.take(20);
        assert_eq!(&head[..8], &0x0003_e889_0455_65a9u64.to_be_bytes());
        let kind = u32::from_be_bytes(head[12..16].try_into().unwrap());
        let len = u32::from_be_bytes(head[16..20].try_into().unwrap());
        (kind, self.take(len as usize))
    }

    /// One whole reply; `len` is what a read of this cookie asked for (simple replies do not say).
    pub fn answer(&mut self, len_of: impl Fn(u64) -> usize) -> Answer {
        let mut answer = Answer { cookie: 0, errno: 0, data: Vec::new() };
        if !self.structured {
            let head = self.take(16);
            assert_eq!(head[..4], 0x6744_6698u32.to_be_bytes());
            answer.errno = u32::from_be_bytes(head[4..8].try_into().unwrap());
            answer.cookie = u64::from_be_bytes(head[8..16].try_into().unwrap());
            let len = len_of(answer.cookie);
            if answer.errno == 0 && len > 0 {
                answer.data.push((0, self.take(len)));
            }
            return answer;
        }
        loop {
            let head = self.take(20);
            assert_eq!(head[..4], 0x668e_33efu32.to_be_bytes());
            let (last, kind) = (head[5] & 1 != 0, u16::from_be_bytes(head[6..8].try_into().unwrap()));
            answer.cookie = u64::from_be_bytes(head[8..16].try_into().unwrap());
            let len = u32::from_be_bytes(head[16..20].try_into().unwrap()) as usize;
            let mut body = self.take(len);
            match kind {
                0 => {}
                1 => {
                    let data = body.split_off(8);
                    answer.data.push((u64::from_be_bytes(body.try_into().unwrap()), data));
                }
                5 => answer.data.push((0, body)),
                0x8001 => answer.errno = u32::from_be_bytes(body[..4].try_into().unwrap()),
                _ => panic!("chunk of type {kind:#x}"),
            }
            if last {
                return answer;
            }
        }
    }

    pub fn call(&mut self, command: u16, flags: u16, offset: u64, len: u32, payload: &[u8]) -> Answer {
        self.put(&request(command, flags, 0xc0ffee, offset, len));
        self.put(payload);
        let data = if command == READ { len as usize } else { 0 };
        let answer = self.answer(|_| data);
        assert_eq!(answer.cookie, 0xc0ffee);
        answer
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        assert_eq!(self.call(WRITE, 0, offset, bytes.len() as u32, bytes).errno, 0);
    }

    /// Reads and puts the pieces in order.
    pub fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        let answer = self.call(READ, 0, offset, len, &[]);
        assert_eq!(answer.errno, 0);
        let base = if self.structured { offset } else { 0 };
        let mut bytes = vec![0; len as usize];
        let mut sum = 0;
        for (at, data) in answer.data {
            bytes[(at - base) as usize..][..data.len()].copy_from_slice(&data);
            sum += data.len();
        }
        assert_eq!(sum, len as usize);
        bytes
    }

    pub fn disconnect(mut self) {
        self.put(&request(DISC, 0, 0, 0, 0));
        assert!(self.closed());
    }

    pub fn half_close(&mut self) {
        self.socket.shutdown(Shutdown::Write).unwrap();
    }
}
