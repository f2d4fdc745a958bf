//! One connection: its socket, its session, what it receives into and what it is to send.
//!
//! Owns: the state of a connection and its small transitions. Never: talks to an engine.
//! Invariant: a connection is dropped only when the kernel has none of its memory and no request of it is in flight.

use super::pools::NO_POOL;
use super::tls::TlsStream;
use super::tx::{Message, Tx};
use crate::listen;
use segue_sched::qos::Slot;
use segue_types::{ExportName, Nanos};
use segue_volume::mem::{Buf, Mem};
use segue_volume::op::AttachId;
use segue_wire::nbd::server::{Session, Step};
use segue_wire::nbd::{Replies, Request};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Bytes of the receive buffer: many small requests, or the heads of many writes, per turn.
pub(super) const RX_BYTES: usize = 64 << 10;
/// What no number stands for.
pub(super) const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Negotiating.
    Handshake,
    /// The node was asked something; the client is not read.
    Waiting,
    /// Requests flow.
    Open,
    /// The last thing: the engine closes the attachment.
    Detaching,
}

/// A read or write that is on its way to the engine, piece by piece.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) request: Request,
    /// What was not handed over yet.
    pub(super) at: u64,
    pub(super) left: u64,
    /// Its sum, when it has more than one piece.
    pub(super) parent: u32,
    /// Write: the piece being received.
    pub(super) buf: Buf,
    pub(super) piece: u32,
    pub(super) filled: u32,
}

/// A lookup that the node has been asked for.
pub(super) struct Lookup {
    pub(super) export: ExportName,
    pub(super) enter: bool,
    pub(super) asked: usize,
    /// Times that it was asked again, because the volume moved between the answer and the attach.
    pub(super) again: u8,
    pub(super) names: Vec<String>,
    pub(super) found: Option<super::attach::Found>,
}

pub(super) struct Conn {
    pub(super) fd: OwnedFd,
    /// Distinguishes connections that had the same number.
    pub(super) generation: u32,
    pub(super) phase: Phase,
    pub(super) session: Session,
    pub(super) replies: Replies,
    pub(super) rx: Box<[u8]>,
    pub(super) rx_start: usize,
    pub(super) rx_end: usize,
    pub(super) message: Box<Message>,
    pub(super) recv_busy: bool,
    pub(super) job: Option<Job>,
    pub(super) tx: Tx,
    pub(super) tls: Option<Box<TlsStream>>,
    pub(super) tls_config: Option<Arc<rustls::ServerConfig>>,
    /// STARTTLS was agreed; begins when all in the clear was sent.
    pub(super) tls_next: bool,
    /// The TLS machine is with a helper: nothing is read or sent until it is back.
    pub(super) shaking: bool,
    pub(super) pool: usize,
    pub(super) attach: Option<AttachId>,
    /// Its volume's place among those that share the drive.
    pub(super) slot: Option<Slot>,
    pub(super) volume: String,
    pub(super) holder: String,
    /// It showed a signed token, so a revocation ends it.
    pub(super) by_token: bool,
    pub(super) lookup: Option<Box<Lookup>>,
    /// What it asked for, once attached.
    pub(super) export: Option<Box<ExportName>>,
    /// The core and pool it is to go to.
    pub(super) travel: Option<(usize, String)>,
    /// Pieces that the engine has.
    pub(super) requests: usize,
    /// Bytes of buffers that the engine has.
    pub(super) engine_bytes: usize,
    /// Waits for room of its own, or for memory: to be pumped again when something of it ends.
    pub(super) blocked: bool,
    pub(super) hungry: bool,
    /// In the list of connections to look at before the turn ends.
    pub(super) dirty: bool,
    /// What was parsed last and is not begun yet.
    pub(super) stash: Option<Step>,
    /// Panics in a row of its work.
    pub(super) panics: u8,
    /// Nothing more is taken from the client.
    pub(super) input_over: bool,
    /// Nothing more can be sent to the client.
    pub(super) dead: bool,
    /// When the present handshake, stall or close has lasted too long; 0 for never.
    pub(super) deadline: Nanos,
    /// Since when the kernel has bytes that the client does not take, or the client owes bytes.
    pub(super) stalled_since: Nanos,
}

impl Conn {
    pub(super) fn new(fd: OwnedFd, generation: u32, session: Session, holder: String) -> Conn {
        Conn {
            fd,
            generation,
            phase: Phase::Handshake,
            replies: session.replies(),
            session,
            // Zeroed memory of this size costs nothing until bytes come.
            rx: vec![0; RX_BYTES].into_boxed_slice(),
            rx_start: 0,
            rx_end: 0,
            message: Message::new(),
            recv_busy: false,
            job: None,
            tx: Tx::new(),
            tls: None,
            tls_config: None,
            tls_next: false,
            shaking: false,
            pool: NO_POOL,
            attach: None,
            slot: None,
            volume: String::new(),
            holder,
            by_token: false,
            lookup: None,
            export: None,
            travel: None,
            requests: 0,
            engine_bytes: 0,
            blocked: false,
            hungry: false,
            dirty: false,
            stash: None,
            panics: 0,
            input_over: false,
            dead: false,
            deadline: 0,
            stalled_since: 0,
        }
    }

    pub(super) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Nothing more is sent or taken; what waits on the socket ends.
    pub(super) fn cut(&mut self) {
        self.dead = true;
        self.input_over = true;
        listen::shut(self.raw());
    }

    /// True when the end of a send is what lets it go on.
    pub(super) fn waits_for_sends(&self) -> bool {
        self.blocked || self.input_over || self.tls_next || self.travel.is_some()
    }

    /// Bytes of I/O memory that this connection's requests and replies hold.
    pub(super) fn held_bytes(&self) -> usize {
        self.engine_bytes + self.tx.held_bytes
    }

    /// Moves bytes of the session's handshake to what is sent.
    pub(super) fn collect_output(&mut self) {
        let output = self.session.take_output();
        if !output.is_empty() {
            self.tx.append(|heads| heads.extend_from_slice(&output));
        }
    }

    /// Where the next bytes of the stream go: the rest of a write's piece, then the receive buffer.
    pub(super) fn receive_into(&mut self, mem: &Mem) -> *mut libc::msghdr {
        self.message.clear();
        if let Some(tls) = &mut self.tls {
            let room = tls.room();
            self.message.push(room.as_mut_ptr(), room.len());
            return self.message.prepare();
        }
        if let Some(rest) = self.payload_rest() {
            self.message.push(mem.addr(rest), rest.len());
        }
        if self.rx_start == self.rx_end {
            (self.rx_start, self.rx_end) = (0, 0);
        }
        let room = &mut self.rx[self.rx_end..];
        self.message.push(room.as_mut_ptr(), room.len());
        self.message.prepare()
    }

    /// What is missing of the piece of a write that is being received.
    pub(super) fn payload_rest(&self) -> Option<Buf> {
        let job = self.job.as_ref()?;
        if job.buf.is_empty() || job.filled == job.piece {
            return None;
        }
        let skip = (job.at & 4095) as usize;
        Some(job.buf.part(skip + job.filled as usize, (job.piece - job.filled) as usize))
    }

    /// Moves a short rest to the front when there is no room behind it.
    pub(super) fn compact(&mut self) {
        if self.rx_start == self.rx_end {
            (self.rx_start, self.rx_end) = (0, 0);
        } else if self.rx_start > 0 {
            self.rx.copy_within(self.rx_start..self.rx_end, 0);
            (self.rx_start, self.rx_end) = (0, self.rx_end - self.rx_start);
        }
    }
}
