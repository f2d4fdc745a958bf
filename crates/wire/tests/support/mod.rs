//! A server end over a naive disk, and a seeded source of chance, for tests that join two machines.
//!
//! Owns: the disk and the queue of replies not yet given. Never: knows what the client expects.
//! Invariant: a request takes effect when it has arrived whole; its reply may leave at any later time.
#![allow(dead_code, reason = "every test binary uses its own part")]

use segue_wire::nbd::reply::{self, ReplyForm};
use segue_wire::nbd::server::{ExportInfo, Refusal, RefusalCode, Session, SessionError, Step, TlsPolicy};
use segue_wire::nbd::{Command, Errno, Request, pieces};

pub const SECTOR: usize = 512;

/// A small seeded generator (xorshift64*).
pub struct Rng(pub u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n.max(1)
    }
}

/// A disk in memory with a map of allocated sectors and one sector that cannot be read.
#[derive(Clone)]
pub struct Disk {
    pub data: Vec<u8>,
    pub allocated: Vec<bool>,
    pub bad_sector: usize,
}

impl Disk {
    pub fn new(sectors: usize, bad_sector: usize) -> Disk {
        Disk { data: vec![0; sectors * SECTOR], allocated: vec![false; sectors], bad_sector }
    }

    pub fn range(offset: u64, len: u64) -> std::ops::Range<usize> {
        offset as usize..(offset + len) as usize
    }

    pub fn is_bad(&self, offset: u64, len: u64) -> bool {
        Disk::range(offset, len).contains(&(self.bad_sector * SECTOR))
    }

    pub fn set(&mut self, offset: u64, data: &[u8], allocated: bool) {
        let range = Disk::range(offset, data.len() as u64);
        self.allocated[range.start / SECTOR..range.end / SECTOR].fill(allocated);
        self.data[range].copy_from_slice(data);
    }

    /// `(len, hole)` from offset on, not merged.
    pub fn extents(&self, offset: u64, len: u64) -> Vec<(u64, bool)> {
        let range = Disk::range(offset, len);
        self.allocated[range.start / SECTOR..range.end / SECTOR].iter().map(|a| (SECTOR as u64, !a)).collect()
    }
}

/// A request that took effect and waits for its reply.
struct Job {
    request: Request,
    errno: Errno,
    data: Vec<u8>,
    pieces: Vec<(u64, u32)>,
}

/// The server: a session, its disk, and bytes in both directions. After STARTTLS "encryption" is an exclusive or.
pub struct ServerEnd {
    pub session: Session,
    pub rx: Vec<u8>,
    pub tx: Vec<u8>,
    pub disk: Disk,
    pub key: u8,
    pub read_only: bool,
    pub gone: bool,
    jobs: Vec<Job>,
    payload: Option<(Request, Vec<u8>)>,
}

impl ServerEnd {
    pub fn new(tls: TlsPolicy, disk: Disk, read_only: bool) -> ServerEnd {
        let mut end = ServerEnd {
            session: Session::new(tls),
            rx: Vec::new(),
            tx: Vec::new(),
            disk,
            key: 0,
            read_only,
            gone: false,
            jobs: Vec::new(),
            payload: None,
        };
        end.tx = end.session.take_output();
        end
    }

    pub fn idle(&self) -> bool {
        self.jobs.is_empty()
    }

    fn send(&mut self, bytes: &[u8]) {
        self.tx.extend(bytes.iter().map(|b| b ^ self.key));
    }

    /// Takes bytes off the wire and does all that can be done with them.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        self.rx.extend(bytes.iter().map(|b| b ^ self.key));
        while !self.gone {
            if let Some((request, mut data)) = self.payload.take() {
                let want = request.len as usize - data.len();
                data.extend(self.rx.drain(..want.min(self.rx.len())));
                if data.len() < request.len as usize {
                    self.payload = Some((request, data));
                    return Ok(());
                }
                self.disk.set(request.offset, &data, true);
                self.queue(request, Errno::OK);
            }
            let (used, step) = self.session.step(&self.rx)?;
            self.rx.drain(..used);
            let output = self.session.take_output();
            self.send(&output);
            match step {
                Step::NeedBytes => return Ok(()),
                Step::StartTls => {
                    self.session.tls_started();
                    self.key = 0x5a;
                }
                Step::Lookup { .. } => self.lookup(),
                Step::List => {
                    self.session.list_ready([("disk", "naive"), ("other", "")]);
                    let output = self.session.take_output();
                    self.send(&output);
                }
                Step::Request(request) => self.request(request),
                Step::Write(request) => self.payload = Some((request, Vec::new())),
                Step::Reject { request, errno } => self.queue(request, errno),
                Step::Disconnect => self.gone = true,
            }
        }
        Ok(())
    }

    fn lookup(&mut self) {
        let answer = match self.session.export_name() {
            "disk" => Ok(ExportInfo { read_only: self.read_only, ..ExportInfo::new(self.disk.data.len() as u64) }),
            _ => Err(Refusal::new(RefusalCode::Unknown, "no volume of this name")),
        };
        self.session.export_ready(answer);
        let output = self.session.take_output();
        self.send(&output);
    }

    fn request(&mut self, request: Request) {
        let zeroes = |len: u64| vec![0; len as usize];
        match request.command {
            Command::Read if self.disk.is_bad(request.offset, request.len) => return self.queue(request, Errno::IO),
            Command::Trim => self.disk.set(request.offset, &zeroes(request.len), false),
            Command::WriteZeroes => self.disk.set(request.offset, &zeroes(request.len), request.no_hole()),
            _ => {}
        }
        self.queue(request, Errno::OK);
    }

    fn queue(&mut self, request: Request, errno: Errno) {
        let mut job = Job { request, errno, data: Vec::new(), pieces: Vec::new() };
        // A bad sector shows only once some pieces may be out; anything else is refused before.
        if request.command == Command::Read && matches!(errno, Errno::OK | Errno::IO) {
            job.data = self.disk.data[Disk::range(request.offset, request.len)].to_vec();
            job.pieces = pieces(request.offset, request.len, 8192).collect();
        }
        self.jobs.push(job);
    }

    /// Sends one reply, or one piece of one, of a request that chance picks.
    pub fn reply_one(&mut self, rng: &mut Rng) {
        if self.jobs.is_empty() {
            return;
        }
        let pick = rng.below(self.jobs.len());
        let replies = self.session.replies();
        let mut head = [0; reply::ERROR_BYTES_MAX];
        let job = &mut self.jobs[pick];
        let request = job.request;
        let mut out = Vec::new();
        let mut last = true;
        if request.command == Command::Read && replies.fragments(&request) && !job.pieces.is_empty() {
            // An error may come after some good pieces; the last piece of a bad read is never good.
            if job.errno != Errno::OK && (job.pieces.len() == 1 || rng.below(3) == 0) {
                let n = replies.error(&request, job.errno, &mut head);
                out.extend_from_slice(&head[..n]);
            } else {
                let (offset, len) = job.pieces.swap_remove(rng.below(job.pieces.len()));
                last = job.pieces.is_empty();
                let start = (offset - request.offset) as usize;
                let data = &job.data[start..start + len as usize];
                if data.iter().all(|b| *b == 0) {
                    let n = replies.hole(&request, offset, len, last, &mut head);
                    out.extend_from_slice(&head[..n]);
                } else {
                    let n = replies.data(&request, offset, len, last, &mut head);
                    out.extend_from_slice(&head[..n]);
                    out.extend_from_slice(data);
                }
            }
        } else if job.errno != Errno::OK {
            let n = replies.error(&request, job.errno, &mut head);
            out.extend_from_slice(&head[..n]);
        } else if request.command == Command::Read {
            let n = replies.data(&request, request.offset, request.len as u32, true, &mut head);
            out.extend_from_slice(&head[..n]);
            out.extend_from_slice(&job.data);
        } else if request.command == Command::BlockStatus {
            let extents = self.disk.extents(request.offset, request.len);
            replies.block_status(&request, extents.into_iter(), &mut out);
        } else {
            let n = replies.ok(&request, &mut head);
            out.extend_from_slice(&head[..n]);
        }
        if last {
            self.jobs.swap_remove(pick);
        }
        self.send(&out);
    }
}

/// All forms of replies.
pub const FORMS: [ReplyForm; 3] = [ReplyForm::Simple, ReplyForm::Structured, ReplyForm::Extended];
