//! TLS on a connection: cipher bytes of the socket on one side, bytes of the session on the other.
//!
//! Owns: the machine of rustls and the two buffers of cipher bytes. Never: touches a socket.
//! Invariant: plain bytes are handed out in order, and none before the handshake is over.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;

const CIPHER_IN_BYTES: usize = 32 << 10;

/// What pulling plain bytes gave.
pub(super) enum Pulled {
    /// So many bytes.
    Bytes(usize),
    /// Nothing until more is received.
    NeedBytes,
    /// The peer has finished, orderly or not.
    Over,
}

pub(super) struct TlsStream {
    machine: rustls::ServerConnection,
    cipher_in: Vec<u8>,
    start: usize,
    end: usize,
    cipher_out: Vec<u8>,
    /// The peer broke the protocol.
    broken: bool,
}

impl TlsStream {
    pub(super) fn new(config: Arc<rustls::ServerConfig>) -> Result<TlsStream, rustls::Error> {
        let mut machine = rustls::ServerConnection::new(config)?;
        machine.set_buffer_limit(None);
        let cipher_in = vec![0; CIPHER_IN_BYTES];
        Ok(TlsStream { machine, cipher_in, start: 0, end: 0, cipher_out: Vec::new(), broken: false })
    }

    /// Where received bytes go. Only when all earlier ones were pulled.
    pub(super) fn room(&mut self) -> &mut [u8] {
        assert!(self.start == self.end, "cipher bytes wait to be read");
        (self.start, self.end) = (0, 0);
        &mut self.cipher_in
    }

    /// `n` bytes were received into the room.
    pub(super) fn received(&mut self, n: usize) {
        self.end = n;
    }

    /// True when bytes wait whose handling is the costly part of a handshake.
    pub(super) fn shakes(&self) -> bool {
        self.machine.is_handshaking() && self.start != self.end && !self.broken
    }

    /// Handles the bytes of the handshake that wait.
    pub(super) fn shake(&mut self) {
        while self.shakes() {
            self.digest();
        }
    }

    /// Gives cipher bytes that wait to the machine.
    fn digest(&mut self) {
        let mut input = &self.cipher_in[self.start..self.end];
        let took = self.machine.read_tls(&mut input);
        self.start = self.end - input.len();
        self.broken = self.machine.process_new_packets().is_err() || took.unwrap_or(0) == 0;
    }

    /// Decrypts into `to`.
    pub(super) fn pull(&mut self, to: &mut [u8]) -> Pulled {
        loop {
            if self.broken {
                return Pulled::Over;
            }
            match self.machine.reader().read(to) {
                Ok(0) => return Pulled::Over,
                Ok(n) => return Pulled::Bytes(n),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Pulled::Over,
            }
            if self.start == self.end {
                return Pulled::NeedBytes;
            }
            self.digest();
        }
    }

    /// Encrypts bytes to be sent.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.machine.writer().write_all(bytes).expect("the buffer has no limit");
    }

    /// Cipher bytes to send now, if any; they stay in place until [`TlsStream::sent`].
    pub(super) fn output(&mut self) -> &mut [u8] {
        while self.machine.wants_write() {
            self.machine.write_tls(&mut self.cipher_out).expect("a vector takes all");
        }
        &mut self.cipher_out
    }

    /// All of the output was sent.
    pub(super) fn sent(&mut self) {
        self.cipher_out.clear();
    }
}
