//! The event loop of an attachment: kernel on one side, node on the other, the ledger between.
//!
//! Owns: the FUSE channel, the sockets and their buffers, one thread. Never: blocks but in `epoll_wait`, or decides what
//! may be sent (the ledger does).
//! Invariant: no new connection is used before the old ones were seen closed by the node.
//!
//! Hot path, per block request: one read from FUSE, one send, one receive, one write to FUSE. A write's payload is copied
//! once (into the ledger, which must keep it anyway); a read's goes from the receive buffer to the kernel as it is.

use super::fuse::{self, FileShape, Request};
use super::ledger::{Ask, Cookie, End, Ledger, Limits, Out, Unique};
use super::link::{self, Connection, ExportInfo, LinkError, Target};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{MsgFlags, Shutdown, recv, sendmsg, shutdown};
use segue_wire::nbd::client::{Client, Step};
use segue_wire::nbd::proto::{REPLY_SIMPLE_BYTES, REQUEST_EXT_BYTES};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Marks the flush that detaching waits for; the kernel's own marks are even and small.
const OWN_FLUSH: Unique = Unique::MAX;
/// Receive buffer: the largest reply and another one's beginning.
const RECEIVE_BYTES: usize = 2 * fuse::MAX_IO_BYTES as usize;
/// Parts of one send.
const SEND_PARTS: usize = 64;
/// How often waiting requests are looked at.
const TICK: Duration = Duration::from_millis(50);
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_LAST: Duration = Duration::from_secs(1);

const TOKEN_FUSE: u64 = 0;
const TOKEN_WAKE: u64 = 1;
const TOKEN_FIRST_CONN: u64 = 2;

/// What the rest of the daemon asks of the pump.
pub enum Command {
    /// How are you?
    Status(Sender<PumpStatus>),
    /// Fail everything, send nothing more, ever. Answered when that holds.
    Cut(Sender<()>),
    /// Stop talking to the node.
    Partition(Sender<()>),
    /// Talk again.
    Heal(Sender<()>),
    /// Make everything durable; the answer is an errno.
    Flush(Sender<i32>),
    /// The connector has connections.
    Connected(Vec<Connection>),
    /// The connector was refused, or could not connect yet.
    NotConnected(LinkError),
}

/// How the attachment fares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PumpStatus {
    /// `up`, `connecting`, `lost` (longer than the timeout: requests fail at once), `partitioned`, `fenced`, `cut` or `broken`.
    pub link: String,
    /// Requests that wait for the node.
    pub in_flight: u64,
    /// Bytes of acknowledged writes that no flush covers yet.
    pub unflushed_bytes: u64,
    /// Connections made again after one was lost.
    pub reconnects: u64,
    /// Writes sent again after a reconnect.
    pub replayed_writes: u64,
    /// What went wrong last, empty when nothing did.
    pub trouble: String,
}

/// Sends commands to a running pump.
#[derive(Clone)]
pub struct PumpHandle {
    commands: Sender<Command>,
    wake: Arc<EventFd>,
}

impl PumpHandle {
    /// Sends a command; a pump that has ended ignores it.
    pub fn send(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            let _ = self.wake.write(1);
        }
    }

    /// Sends a command that is answered and waits for the answer. None: the pump has ended.
    pub fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Option<T> {
        let (sender, receiver) = channel();
        self.send(command(sender));
        receiver.recv().ok()
    }
}

struct Outgoing {
    cookie: Cookie,
    head: [u8; REQUEST_EXT_BYTES],
    head_bytes: usize,
    has_data: bool,
    sent: usize,
}

struct Conn {
    socket: OwnedFd,
    client: Client,
    /// The ledger's cookie of each request in flight, by the client's slot.
    cookies: Vec<Cookie>,
    /// Data of a read that is to come, and where in the buffer data that has come lies.
    data_bytes: Option<usize>,
    data: Range<usize>,
    received: Vec<u8>,
    start: usize,
    end: usize,
    outgoing: VecDeque<Outgoing>,
    /// True: nothing more is sent or believed; it is only watched until the node closes it.
    draining: bool,
    wants_write: bool,
}

/// See the top of the file.
pub struct Pump {
    epoll: Epoll,
    wake: Arc<EventFd>,
    commands: Receiver<Command>,
    handle: PumpHandle,
    fuse: OwnedFd,
    shape: FileShape,
    ledger: Ledger,
    out: Out,
    conns: Vec<Option<Conn>>,
    turn: usize,
    target: Target,
    connections: u32,
    reconnects_allowed: bool,
    connecting: bool,
    partitioned: bool,
    stopping: Arc<AtomicBool>,
    silent: Arc<AtomicBool>,
    fuse_watched: bool,
    scratch: Vec<u8>,
    flush_waiters: Vec<Sender<i32>>,
    began: Instant,
    last_tick: Instant,
    reconnects: u64,
    trouble: String,
}

/// What a pump is made of.
pub struct Parts {
    /// The channel to the kernel.
    pub fuse: OwnedFd,
    /// The file.
    pub shape: FileShape,
    /// Limits of the ledger.
    pub limits: Limits,
    /// Where the node is.
    pub target: Target,
    /// Connections to keep.
    pub connections: u32,
    /// False: a lost connection ends the attachment, because the right to write went with it.
    pub reconnects_allowed: bool,
    /// The first connections.
    pub links: Vec<Connection>,
}

impl Pump {
    /// Puts a pump together; [`Pump::run`] starts it.
    ///
    /// # Errors
    /// The system's: out of descriptors.
    pub fn new(parts: Parts) -> std::io::Result<(Pump, PumpHandle)> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        epoll.add(&wake, EpollEvent::new(EpollFlags::EPOLLIN, TOKEN_WAKE))?;
        epoll.add(&parts.fuse, EpollEvent::new(EpollFlags::EPOLLIN, TOKEN_FUSE))?;
        let (sender, commands) = channel();
        let handle = PumpHandle { commands: sender, wake: wake.clone() };
        let now = Instant::now();
        let mut pump = Pump {
            epoll,
            wake,
            commands,
            handle: handle.clone(),
            fuse: parts.fuse,
            shape: parts.shape,
            ledger: Ledger::new(0, parts.limits),
            out: Out::default(),
            conns: Vec::new(),
            turn: 0,
            target: parts.target,
            connections: parts.connections,
            reconnects_allowed: parts.reconnects_allowed,
            connecting: false,
            partitioned: false,
            stopping: Arc::new(AtomicBool::new(false)),
            silent: Arc::new(AtomicBool::new(false)),
            fuse_watched: true,
            scratch: vec![0; fuse::REQUEST_BYTES_MAX],
            flush_waiters: Vec::new(),
            began: now,
            last_tick: now,
            reconnects: 0,
            trouble: String::new(),
        };
        pump.adopt(parts.links)?;
        pump.ledger.link_up(0, &mut pump.out);
        Ok((pump, handle))
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn adopt(&mut self, links: Vec<Connection>) -> nix::Result<()> {
        self.conns.clear();
        for (token, link) in (TOKEN_FIRST_CONN..).zip(links) {
            self.epoll.add(&link.socket, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
            self.conns.push(Some(Conn {
                socket: link.socket,
                client: link.client,
                cookies: Vec::new(),
                data_bytes: None,
                data: 0..0,
                received: vec![0; RECEIVE_BYTES],
                start: 0,
                end: 0,
                outgoing: VecDeque::new(),
                draining: false,
                wants_write: false,
            }));
        }
        Ok(())
    }

    /// Serves until the kernel has let go of the file. Always answers what it holds before it ends.
    pub fn run(mut self) {
        let mut events = [EpollEvent::empty(); 16];
        let mut alive = true;
        while alive {
            self.settle();
            let wait = if self.ledger.needs_tick() { TICK } else { Duration::from_secs(3600) };
            let timeout = EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::NONE);
            let count = match self.epoll.wait(&mut events, timeout) {
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "the event queue failed");
                    break;
                }
            };
            for event in &events[..count] {
                match event.data() {
                    TOKEN_FUSE => alive &= self.take_requests(),
                    TOKEN_WAKE => self.take_commands(),
                    token => self.conn_ready((token - TOKEN_FIRST_CONN) as usize, event.events()),
                }
            }
            if self.ledger.needs_tick() && self.last_tick.elapsed() >= TICK {
                self.last_tick = Instant::now();
                let now = self.now();
                self.ledger.tick(now, &mut self.out);
            }
        }
        self.leave();
    }

    fn leave(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        if self.ledger.end().is_none() && !self.partitioned {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            for conn in self.conns.iter_mut().flatten().filter(|conn| !conn.draining && conn.outgoing.is_empty()) {
                let mut head = [0; REQUEST_EXT_BYTES];
                let bytes = conn.client.disconnect(&mut head);
                let _ = nix::sys::socket::send(conn.socket.as_raw_fd(), &head[..bytes], flags);
            }
        }
        self.ledger.finish(End::Cut, &mut self.out);
        self.answer_dones();
        self.conns.clear();
    }

    /// Carries out what the ledger decided.
    fn settle(&mut self) {
        loop {
            self.answer_dones();
            if std::mem::take(&mut self.out.drop_link) {
                self.drop_link();
                continue;
            }
            if self.out.sends.is_empty() {
                break;
            }
            let all = self.queue_sends();
            let now = self.now();
            for index in 0..self.conns.len() {
                if let Err(error) = self.transmit(index) {
                    self.conn_lost(index, now, &format!("sending failed: {error}"));
                }
            }
            if !all {
                break;
            }
        }
        self.watch_fuse();
    }

    fn answer_dones(&mut self) {
        for (unique, errno) in std::mem::take(&mut self.out.dones) {
            self.respond(unique, None, errno, &[]);
        }
    }

    fn respond(&mut self, unique: Unique, ask: Option<Ask>, errno: i32, payload: &[u8]) {
        if unique == OWN_FLUSH {
            for waiter in self.flush_waiters.drain(..) {
                let _ = waiter.send(errno);
            }
            return;
        }
        match ask {
            Some(Ask::Write { len, .. }) if errno == 0 => {
                fuse::respond(self.fuse.as_fd(), &[&fuse::answer_write(unique, len)]);
            }
            Some(Ask::Read { .. }) if errno == 0 => {
                fuse::respond(self.fuse.as_fd(), &[&fuse::answer_head(unique, 0, payload.len()), payload]);
            }
            _ => fuse::respond(self.fuse.as_fd(), &[&fuse::answer_head(unique, errno, 0)]),
        }
    }

    /// Hands requests to the connections in turn. False: one has too many in flight; the rest waits in the list.
    fn queue_sends(&mut self) -> bool {
        let mut sends = std::mem::take(&mut self.out.sends).into_iter();
        while let Some(send) = sends.next() {
            self.turn = (self.turn + 1) % self.conns.len().max(1);
            // Without a live connection it is sent again after the next one is made.
            let Some(Some(conn)) = self.conns.get_mut(self.turn) else { continue };
            if conn.draining {
                continue;
            }
            let mut head = [0; REQUEST_EXT_BYTES];
            let Some((mark, head_bytes)) = link::encode(&mut conn.client, send.ask, &mut head) else {
                self.out.sends = std::iter::once(send).chain(sends).collect();
                return false;
            };
            let (slot, cookie) = (Client::slot_of(mark), send.cookie);
            if conn.cookies.len() <= slot {
                conn.cookies.resize(slot + 1, 0);
            }
            conn.cookies[slot] = cookie;
            let has_data = matches!(send.ask, Ask::Write { .. });
            conn.outgoing.push_back(Outgoing { cookie, head, head_bytes, has_data, sent: 0 });
        }
        true
    }

    /// Sends as much as the socket takes.
    fn transmit(&mut self, index: usize) -> nix::Result<()> {
        let Some(conn) = self.conns[index].as_mut() else { return Ok(()) };
        if conn.draining || self.partitioned {
            return Ok(());
        }
        while !conn.outgoing.is_empty() {
            let sent = {
                let mut parts: Vec<IoSlice<'_>> = Vec::with_capacity(SEND_PARTS);
                for item in conn.outgoing.iter().take(SEND_PARTS / 2) {
                    let head_sent = item.sent.min(item.head_bytes);
                    parts.push(IoSlice::new(&item.head[head_sent..item.head_bytes]));
                    if item.has_data {
                        parts.push(IoSlice::new(&self.ledger.data(item.cookie)[item.sent - head_sent..]));
                    }
                }
                let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                match sendmsg::<()>(conn.socket.as_raw_fd(), &parts, &[], flags, None) {
                    Ok(sent) => sent,
                    Err(Errno::EAGAIN) => break,
                    Err(Errno::EINTR) => continue,
                    Err(error) => return Err(error),
                }
            };
            let mut left = sent;
            while let Some(item) = conn.outgoing.front_mut() {
                let data = if item.has_data { self.ledger.data(item.cookie).len() } else { 0 };
                let rest = item.head_bytes + data - item.sent;
                if left < rest {
                    item.sent += left;
                    break;
                }
                left -= rest;
                conn.outgoing.pop_front();
            }
        }
        let wants_write = !conn.outgoing.is_empty();
        if wants_write != conn.wants_write {
            conn.wants_write = wants_write;
            self.rewatch(index)?;
        }
        Ok(())
    }

    fn rewatch(&mut self, index: usize) -> nix::Result<()> {
        let Some(conn) = self.conns[index].as_ref() else { return Ok(()) };
        let mut flags = EpollFlags::empty();
        if !self.partitioned {
            flags |= EpollFlags::EPOLLIN;
            flags.set(EpollFlags::EPOLLOUT, conn.wants_write && !conn.draining);
        }
        self.epoll.modify(&conn.socket, &mut EpollEvent::new(flags, TOKEN_FIRST_CONN + index as u64))
    }

    fn conn_ready(&mut self, index: usize, flags: EpollFlags) {
        // A partition hides even the end of a connection: it is noticed after healing.
        if self.partitioned || self.conns.get(index).is_none_or(Option::is_none) {
            return;
        }
        let now = self.now();
        if flags.contains(EpollFlags::EPOLLOUT)
            && let Err(error) = self.transmit(index)
        {
            return self.conn_lost(index, now, &format!("sending failed: {error}"));
        }
        if flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
            match self.receive(index, now) {
                Ok(()) => {}
                Err(Lost::Closed) => self.conn_lost(index, now, "the node closed the connection"),
                Err(Lost::System(error)) => self.conn_lost(index, now, &format!("receiving failed: {error}")),
                Err(Lost::Nonsense(what)) => {
                    tracing::error!(%what, "the node broke the protocol; the connection is dropped");
                    self.trouble = format!("the node broke the protocol: {what}");
                    self.out.drop_link = true;
                }
            }
        }
    }

    fn receive(&mut self, index: usize, now: u64) -> Result<(), Lost> {
        loop {
            let Some(conn) = self.conns[index].as_mut() else { return Ok(()) };
            let flags = MsgFlags::MSG_DONTWAIT;
            let room = conn.received.len() - conn.end;
            let bytes = match recv(conn.socket.as_raw_fd(), &mut conn.received[conn.end..], flags) {
                Ok(0) => return Err(Lost::Closed),
                Ok(bytes) => bytes,
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(Lost::System(error)),
            };
            if conn.draining {
                continue;
            }
            conn.end += bytes;
            self.take_replies(index, now)?;
            if bytes < room {
                return Ok(());
            }
        }
    }

    fn take_replies(&mut self, index: usize, now: u64) -> Result<(), Lost> {
        // Taken out so that replies can be answered from the buffer while the rest of the pump is at hand.
        let Some(mut conn) = self.conns[index].take() else { return Ok(()) };
        let mut outcome = Ok(());
        loop {
            match conn.next_reply() {
                Ok(Some((cookie, errno))) => {
                    if conn.outgoing.iter().any(|item| item.cookie == cookie) {
                        outcome = Err(Lost::Nonsense("a reply to a request it has not seen whole".to_owned()));
                        break;
                    }
                    if let Some((unique, ask)) = self.ledger.answered(now, cookie, errno, &mut self.out) {
                        self.respond(unique, Some(ask), errno, &conn.received[conn.data.clone()]);
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    outcome = Err(Lost::Nonsense(error.to_string()));
                    break;
                }
            }
            if self.ledger.end() == Some(End::Fenced) {
                self.trouble = "fenced: the node refused a request, because another holds the volume now".to_owned();
                tracing::error!("{}; every request fails from here on", self.trouble);
                break;
            }
        }
        conn.compact();
        self.conns[index] = Some(conn);
        outcome
    }

    /// The node closed a connection, or it failed: what was sent on it is no longer executed.
    fn conn_lost(&mut self, index: usize, now: u64, why: &str) {
        if let Some(conn) = self.conns[index].take()
            && !conn.draining
        {
            self.trouble = why.to_owned();
            tracing::warn!(why, "connection to the node lost");
        }
        self.drop_link();
        if self.conns.iter().all(Option::is_none) {
            self.all_closed(now);
        }
    }

    /// Takes leave of all connections: they are drained until the node closes them, or closed at once when it is all over.
    fn drop_link(&mut self) {
        if self.ledger.end().is_some() {
            for conn in self.conns.drain(..).flatten() {
                // What the socket still holds unsent must not leave any more.
                let reset = libc::linger { l_onoff: 1, l_linger: 0 };
                let _ = nix::sys::socket::setsockopt(&conn.socket, nix::sys::socket::sockopt::Linger, &reset);
                let _ = shutdown(conn.socket.as_raw_fd(), Shutdown::Both);
            }
            return;
        }
        for index in 0..self.conns.len() {
            if let Some(conn) = self.conns[index].as_mut()
                && !conn.draining
            {
                conn.draining = true;
                conn.outgoing.clear();
                (conn.start, conn.end) = (0, 0);
                let _ = shutdown(conn.socket.as_raw_fd(), Shutdown::Write);
                let _ = self.rewatch(index);
            }
        }
    }

    fn all_closed(&mut self, now: u64) {
        self.conns.clear();
        self.out.sends.clear();
        self.ledger.link_down(now);
        if self.ledger.end().is_some() {
            return;
        }
        if self.reconnects_allowed {
            self.connect();
        } else {
            self.trouble = "the connection was lost and the right to write went with it: attach again".to_owned();
            tracing::error!("{}", self.trouble);
            self.ledger.finish(End::Broken, &mut self.out);
        }
    }

    /// Starts a thread that connects, with back-off, and reports.
    fn connect(&mut self) {
        if std::mem::replace(&mut self.connecting, true) {
            return;
        }
        let (target, handle, count) = (self.target.clone(), self.handle.clone(), self.connections);
        let (stopping, silent) = (self.stopping.clone(), self.silent.clone());
        let work = move || {
            let mut pause = RETRY_FIRST;
            while !stopping.load(Ordering::Relaxed) {
                if silent.load(Ordering::Relaxed) {
                    std::thread::sleep(RETRY_FIRST);
                    continue;
                }
                match connect_all(&target, count) {
                    Ok(links) => return handle.send(Command::Connected(links)),
                    Err(error @ LinkError::Refused { .. }) => return handle.send(Command::NotConnected(error)),
                    Err(error) => handle.send(Command::NotConnected(error)),
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(RETRY_LAST);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("connector".into()).spawn(work) {
            tracing::error!(%error, "cannot start a thread to connect with");
            self.ledger.finish(End::Broken, &mut self.out);
        }
    }

    fn connected(&mut self, links: Vec<Connection>) {
        self.connecting = false;
        if self.ledger.end().is_some() {
            return;
        }
        let info: ExportInfo = links[0].info;
        if info.size_bytes < self.shape.size_bytes || (info.read_only && !self.shape.read_only) {
            self.trouble = "after the reconnect the volume is smaller or read-only".to_owned();
            tracing::error!("{}", self.trouble);
            return self.ledger.finish(End::Broken, &mut self.out);
        }
        self.reconnects += 1;
        self.trouble.clear();
        tracing::info!(reconnects = self.reconnects, "connected to the node again");
        let now = self.now();
        match self.adopt(links) {
            Ok(()) => self.ledger.link_up(now, &mut self.out),
            Err(error) => {
                tracing::error!(%error, "cannot watch the new connection");
                self.ledger.finish(End::Broken, &mut self.out);
            }
        }
    }

    fn not_connected(&mut self, error: LinkError) {
        let text = chain(&error);
        if matches!(error, LinkError::Refused { .. }) {
            self.connecting = false;
            tracing::error!(reason = %text, "fenced: another holds the volume now; every request fails from here on");
            self.ledger.finish(End::Fenced, &mut self.out);
        } else if self.trouble != text {
            tracing::warn!(reason = %text, "not connected; trying again");
        }
        self.trouble = text;
    }

    /// Takes requests from the kernel. False: it has let go of the file.
    fn take_requests(&mut self) -> bool {
        let now = self.now();
        let mut budget = 64;
        while budget > 0 && self.ledger.accepts() {
            let bytes = match fuse::receive(self.fuse.as_fd(), &mut self.scratch) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return true,
                Err(error) => {
                    let gone = error.raw_os_error() == Some(libc::ENODEV);
                    if !gone {
                        tracing::error!(%error, "the channel to the kernel failed");
                    }
                    return false;
                }
            };
            match self.shape.read_request(&self.scratch[..bytes]) {
                Request::Ignore => {}
                Request::Answer(answer) => fuse::respond(self.fuse.as_fd(), &[&answer]),
                Request::Block(unique, ask) => {
                    let data = self.payload(&ask, bytes);
                    self.ledger.admit(now, unique, ask, data, &mut self.out);
                }
            }
            // A lone request is the common case: do not ask for a second that is not there.
            let (in_flight, ..) = self.ledger.counts();
            budget = if in_flight <= 1 { 0 } else { budget - 1 };
        }
        true
    }

    fn payload(&mut self, ask: &Ask, bytes: usize) -> Vec<u8> {
        match ask {
            Ask::Write { .. } => self.scratch[fuse::WRITE_HEAD_BYTES..bytes].to_vec(),
            _ => Vec::new(),
        }
    }

    fn watch_fuse(&mut self) {
        let wanted = self.ledger.accepts();
        if wanted != self.fuse_watched {
            self.fuse_watched = wanted;
            let flags = if wanted { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
            let _ = self.epoll.modify(&self.fuse, &mut EpollEvent::new(flags, TOKEN_FUSE));
        }
    }

    fn take_commands(&mut self) {
        let _ = self.wake.read();
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Status(reply) => drop(reply.send(self.status())),
                Command::Cut(reply) => {
                    tracing::warn!("cut: from now on nothing reaches the node");
                    self.stopping.store(true, Ordering::Relaxed);
                    self.ledger.finish(End::Cut, &mut self.out);
                    self.settle();
                    let _ = reply.send(());
                }
                Command::Partition(reply) => {
                    self.set_partitioned(true);
                    let _ = reply.send(());
                }
                Command::Heal(reply) => {
                    self.set_partitioned(false);
                    let _ = reply.send(());
                }
                Command::Flush(reply) => {
                    let now = self.now();
                    self.flush_waiters.push(reply);
                    self.ledger.admit(now, OWN_FLUSH, Ask::Flush, Vec::new(), &mut self.out);
                }
                Command::Connected(links) => self.connected(links),
                Command::NotConnected(error) => self.not_connected(error),
            }
        }
    }

    fn set_partitioned(&mut self, on: bool) {
        if self.partitioned == on {
            return;
        }
        tracing::warn!(on, "partition from the node");
        self.partitioned = on;
        self.silent.store(on, Ordering::Relaxed);
        for index in 0..self.conns.len() {
            let _ = self.rewatch(index);
        }
        if on {
            return self.ledger.pause();
        }
        let now = self.now();
        self.ledger.resume(now, &mut self.out);
        for index in 0..self.conns.len() {
            if let Err(error) = self.transmit(index) {
                self.conn_lost(index, now, &format!("sending failed: {error}"));
            }
        }
    }

    fn status(&self) -> PumpStatus {
        let (in_flight, unflushed_bytes, replayed_writes) = self.ledger.counts();
        let link = match self.ledger.end() {
            Some(End::Cut) => "cut",
            Some(End::Fenced) => "fenced",
            Some(End::Broken) => "broken",
            None if self.partitioned => "partitioned",
            None if self.ledger.is_lost() => "lost",
            None if self.ledger.is_up() => "up",
            None => "connecting",
        };
        PumpStatus {
            link: link.to_owned(),
            in_flight: in_flight as u64,
            unflushed_bytes,
            reconnects: self.reconnects,
            replayed_writes,
            trouble: self.trouble.clone(),
        }
    }
}

enum Lost {
    Closed,
    System(Errno),
    Nonsense(String),
}

impl Conn {
    /// The next request that is done, with an errno; its data, if it was a read, lies at `data` in the buffer.
    fn next_reply(&mut self) -> Result<Option<(Cookie, i32)>, segue_wire::nbd::client::ClientError> {
        loop {
            if let Some(bytes) = self.data_bytes {
                if self.end - self.start < bytes {
                    return Ok(None);
                }
                self.data = self.start..self.start + bytes;
                self.start += bytes;
                self.data_bytes = None;
            }
            let (used, step) = self.client.step(&self.received[self.start..self.end])?;
            self.start += used;
            match step {
                Step::Data { len, .. } => self.data_bytes = Some(len as usize),
                Step::Done { cookie, errno } => {
                    return Ok(Some((self.cookies[Client::slot_of(cookie)], errno.0 as i32)));
                }
                // Simple replies have no other steps.
                _ => return Ok(None),
            }
        }
    }

    /// Makes room for the largest reply behind what has come.
    fn compact(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.received.len() - self.start < REPLY_SIMPLE_BYTES + fuse::MAX_IO_BYTES as usize {
            self.received.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}

/// An error with its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    text
}

/// Opens the wanted number of connections, or one where the server does not share.
///
/// # Errors
/// [`LinkError`].
pub fn connect_all(target: &Target, count: u32) -> Result<Vec<Connection>, LinkError> {
    let mut links = vec![target.connect()?];
    while links[0].info.multi_conn && (links.len() as u32) < count {
        links.push(target.connect()?);
    }
    Ok(links)
}
