//! The clients of the bench: NBD on a unix socket, so many requests in flight, each answer timed.
//!
//! Owns: the socket and the bytes on it. Never: retries; an error ends the bench.
//! Invariant: at most `depth` requests are in flight, and all of them are answered before a run ends.

use anyhow::{Context, Result, bail, ensure};
use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

/// What one request is.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    Read { offset: u64, len: u32 },
    Write { offset: u64, len: u32 },
    Flush,
    Discard { offset: u64, len: u32 },
}

/// A stream of numbers that looks random: xorshift64*, so that a seed replays it.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

/// Reads the greeting and answers it.
pub fn greet(mut socket: impl Read + Write) -> Result<()> {
    let mut hello = [0; 18];
    socket.read_exact(&mut hello).context("read the server's greeting")?;
    ensure!(&hello[..16] == b"NBDMAGICIHAVEOPT", "this is no NBD server");
    socket.write_all(&3u32.to_be_bytes()).context("answer the greeting")
}

/// An option of the handshake, as bytes.
pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// Reads one reply to an option: its kind, and its text.
pub fn option_reply(mut socket: impl Read) -> Result<(u32, Vec<u8>)> {
    let mut head = [0; 20];
    socket.read_exact(&mut head).context("read a reply of the handshake")?;
    let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let mut data = vec![0; number(16) as usize];
    socket.read_exact(&mut data).context("read a reply of the handshake")?;
    Ok((number(12), data))
}

/// A client in the transmission phase.
pub struct Client {
    socket: UnixStream,
    reader: BufReader<UnixStream>,
    data: Vec<u8>,
    out: Vec<u8>,
    /// Requests in flight: what each is, and since when.
    slots: Vec<Option<(Ask, Instant)>>,
}

impl Client {
    /// Attaches to a volume.
    pub fn open(path: &Path, export: &str) -> Result<Client> {
        let socket = UnixStream::connect(path).with_context(|| format!("connect to {}", path.display()))?;
        greet(&socket)?;
        let mut data = (export.len() as u32).to_be_bytes().to_vec();
        data.extend(export.as_bytes());
        data.extend(0u16.to_be_bytes());
        (&socket).write_all(&option(7, &data)).context("ask for the export")?;
        loop {
            match option_reply(&socket)? {
                (1, _) => break,
                (3, _) => {}
                (kind, text) => bail!("{export} is refused ({kind:#x}): {}", String::from_utf8_lossy(&text)),
            }
        }
        let reader = BufReader::with_capacity(128 << 10, socket.try_clone().context("share the socket")?);
        Ok(Client { socket, reader, data: vec![0x5a; 2 << 20], out: Vec::new(), slots: Vec::new() })
    }

    /// Keeps `depth` requests in flight until `next` gives none, and waits for those. `ended` hears of each one.
    pub fn run(
        &mut self,
        depth: usize,
        mut next: impl FnMut() -> Option<Ask>,
        mut ended: impl FnMut(Ask, u64),
    ) -> Result<()> {
        self.slots.clear();
        self.slots.resize(depth, None);
        let (mut in_flight, mut over) = (0, false);
        for slot in 0..depth {
            in_flight += usize::from(self.ask(slot, &mut next, &mut over));
        }
        self.send()?;
        while in_flight > 0 {
            let slot = self.answer()?;
            let (ask, since) = self.slots[slot].take().context("an answer to nothing")?;
            ended(ask, since.elapsed().as_nanos() as u64);
            in_flight -= 1;
            in_flight += usize::from(self.ask(slot, &mut next, &mut over));
            if self.reader.buffer().len() < 16 {
                self.send()?;
            }
        }
        Ok(())
    }

    fn ask(&mut self, slot: usize, next: &mut impl FnMut() -> Option<Ask>, over: &mut bool) -> bool {
        let Some(ask) = (if *over { None } else { next() }) else {
            *over = true;
            return false;
        };
        let (command, offset, len) = match ask {
            Ask::Read { offset, len } => (0u16, offset, len),
            Ask::Write { offset, len } => (1, offset, len),
            Ask::Flush => (3, 0, 0),
            Ask::Discard { offset, len } => (4, offset, len),
        };
        self.out.extend(0x2560_9513u32.to_be_bytes());
        self.out.extend(0u16.to_be_bytes());
        self.out.extend(command.to_be_bytes());
        self.out.extend((slot as u64).to_be_bytes());
        self.out.extend(offset.to_be_bytes());
        self.out.extend(len.to_be_bytes());
        if command == 1 {
            self.out.extend_from_slice(&self.data[..len as usize]);
        }
        self.slots[slot] = Some((ask, Instant::now()));
        true
    }

    fn send(&mut self) -> Result<()> {
        if !self.out.is_empty() {
            (&self.socket).write_all(&self.out).context("send requests")?;
            self.out.clear();
        }
        Ok(())
    }

    fn answer(&mut self) -> Result<usize> {
        let mut head = [0; 16];
        self.reader.read_exact(&mut head).context("read an answer")?;
        let errno = u32::from_be_bytes(head[4..8].try_into().expect("four bytes"));
        let slot = u64::from_be_bytes(head[8..16].try_into().expect("eight bytes")) as usize;
        ensure!(errno == 0, "a request failed with error {errno}");
        if let Some(Some((Ask::Read { len, .. }, _))) = self.slots.get(slot) {
            let len = *len as usize;
            self.reader.read_exact(&mut self.data[..len]).context("read an answer's data")?;
        }
        Ok(slot)
    }
}
