//! The real engine in virtual time: one pool on one simulated drive, stepped by an event queue.
//!
//! Owns: carrying commands to the drive and completions back, tags, and buffers. Never: judges what it carries, except promises of the interface.
//! Invariant: every request is answered once, every buffer of an I/O is untouched while the I/O is in flight.

#![allow(dead_code)] // each test binary uses its own part

pub mod content;
pub mod model;
pub mod moves;
pub mod neighbour;
pub mod rescue;
pub mod scene;
pub mod torture;

use neighbour::Neighbour;
use segue_des::{Chance, Cut, Drive, DriveOp, Faults, Image, Queue, Timing, TraceHash};
use segue_types::{IoStatus, LeaseId, Nanos};
use segue_volume::device::{BlockDev, DriveError};
use segue_volume::engine::{Engine, EngineOptions, FormatOptions, OpenError};
use segue_volume::mem::{Buf, Mem};
use segue_volume::op::{
    AdminError, AdminOp, AdminReply, Alarm, AttachId, AttachMode, AttachState, Event, Extent, Io, IoKind,
    ObservationRule, Op, Out, PoolState, Tag, Ticket, VolumeState, aligned_span,
};
use segue_volume::{NewEncryption, Secret};
use std::collections::{BTreeMap, VecDeque};

/// Steps after which a request that was not answered never will be.
const TURNS_MAX: u64 = 2_000_000;

/// The drive as the engine's formatting and opening see it.
pub struct DriveDev<'a>(pub &'a mut Drive);

impl BlockDev for DriveDev<'_> {
    fn capacity_bytes(&self) -> u64 {
        self.0.capacity_bytes()
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        let ended = self.0.run(DriveOp::Read { offset, len: buf.len() as u64 });
        if ended.errno != 0 {
            return Err(DriveError { errno: ended.errno });
        }
        buf.copy_from_slice(&ended.data);
        Ok(())
    }

    fn write(&mut self, offset: u64, buf: &[u8]) -> Result<(), DriveError> {
        error_of(self.0.run(DriveOp::Write { offset, data: buf.to_vec() }).errno)
    }

    fn flush(&mut self) -> Result<(), DriveError> {
        error_of(self.0.run(DriveOp::Flush).errno)
    }
}

fn error_of(errno: i32) -> Result<(), DriveError> {
    if errno == 0 { Ok(()) } else { Err(DriveError { errno }) }
}

/// An answered request.
#[derive(Clone, Debug)]
pub struct Done {
    pub tag: Tag,
    pub op: Op,
    pub status: IoStatus,
    /// What a successful read read.
    pub data: Vec<u8>,
    pub extents: Vec<Extent>,
}

enum Ev {
    IoDone(Ticket),
    Tick,
}

struct Flying {
    kind: IoKind,
    /// Of the buffer of a write, to see that nobody touches it.
    hash: u64,
}

/// A pool, its drive, and virtual time.
pub struct Sim {
    pub drive: Drive,
    pub mem: Mem,
    pub engine: Engine,
    pub alarms: Vec<Alarm>,
    pub done: Vec<Done>,
    pub admin_done: Vec<(Tag, Result<AdminReply, AdminError>)>,
    pub trace: TraceHash,
    /// Steps of the engine so far.
    pub steps: u64,
    out: Out,
    queue: Queue<Ev>,
    chance: Chance,
    ticking: bool,
    io: BTreeMap<u32, Flying>,
    waiting: BTreeMap<u64, (AttachId, Op)>,
    /// What is to be given to the engine again after a restart.
    again: VecDeque<Event>,
    pub rescues: rescue::Rescues,
    admin_waiting: BTreeMap<u64, String>,
    next_tag: u64,
    /// The other slices of a shared drive.
    pub neighbour: Option<Neighbour>,
}

/// How a simulated pool is made.
#[derive(Clone)]
pub struct Setup {
    pub seed: u64,
    pub drive_bytes: u64,
    pub mem_bytes: usize,
    pub options: EngineOptions,
    pub timing: Timing,
    /// Slices of the drive. The last is the one that lives; the others are played by a [`Neighbour`].
    pub slices: u64,
}

/// An image with a fresh, empty pool.
pub fn formatted(setup: &Setup) -> Image {
    formatted_as(setup, [0x5e; 16])
}

/// The same, of this identity.
pub fn formatted_as(setup: &Setup, uuid: [u8; 16]) -> Image {
    let mut drive = Drive::new(Image::new(setup.drive_bytes), setup.timing, Chance::new(setup.seed));
    let options = FormatOptions { uuid, force: false };
    Engine::format_sliced(&mut DriveDev(&mut drive), &options, setup.slices)
        .expect("an empty drive of this size can be formatted");
    drive.cut(Cut::KeepsNone)
}

impl Sim {
    /// A fresh pool.
    pub fn fresh(setup: &Setup) -> Sim {
        Sim::boot(setup, formatted(setup), Faults::default(), "boot 0").expect("a fresh pool opens")
    }

    /// Opens the pool of an image. `round` names the boot, so that each has its own luck.
    ///
    /// # Errors
    /// What `Engine::open` says, with what the drive then holds.
    pub fn boot(setup: &Setup, image: Image, faults: Faults, round: &str) -> Result<Sim, (OpenError, Box<Drive>)> {
        let chance = Chance::new(setup.seed).stream(round);
        let mut drive = Drive::new(image, setup.timing, chance.stream("drive"));
        drive.set_faults(faults);
        let mut mem = Mem::new(setup.mem_bytes);
        let engine = match Engine::open_slice(&mut DriveDev(&mut drive), &mut mem, &setup.options, setup.slices - 1) {
            Ok(engine) => engine,
            Err(error) => return Err((error, Box::new(drive))),
        };
        let neighbour = (setup.slices > 1).then(|| Neighbour::new(&engine, chance.stream("neighbour")));
        Ok(Sim {
            neighbour,
            drive,
            mem,
            engine,
            alarms: Vec::new(),
            done: Vec::new(),
            admin_done: Vec::new(),
            trace: TraceHash::new(),
            steps: 0,
            out: Out::with_capacity(256),
            queue: Queue::new(),
            chance: chance.stream("driver"),
            ticking: false,
            io: BTreeMap::new(),
            waiting: BTreeMap::new(),
            again: VecDeque::new(),
            rescues: rescue::Rescues::default(),
            admin_waiting: BTreeMap::new(),
            next_tag: 0,
        })
    }

    /// Virtual time, nanoseconds.
    pub fn now(&self) -> Nanos {
        self.queue.now()
    }

    /// Requests of clients without an answer yet.
    pub fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    /// True while an admin operation waits for its answer.
    pub fn admin_in_flight(&self) -> bool {
        !self.admin_waiting.is_empty()
    }

    /// Submits a request without a buffer.
    pub fn submit(&mut self, attach: AttachId, op: Op) -> Tag {
        let tag = self.tag();
        self.waiting.insert(tag.0, (attach, op));
        self.step(Event::Request { tag, attach, op });
        tag
    }

    /// Submits a write; any multiple of 512. `None` when there is no buffer memory now.
    pub fn submit_write(&mut self, attach: AttachId, offset: u64, data: &[u8], fua: bool) -> Option<Tag> {
        let len = data.len() as u32;
        let buf = self.mem.alloc(aligned_span(offset, len))?;
        // What lies around the client's bytes is garbage; the engine must not let it through.
        self.mem.get_mut(buf).fill(0xcc);
        let at = (offset % 4096) as usize;
        self.mem.get_mut(buf)[at..at + data.len()].copy_from_slice(data);
        Some(self.submit(attach, Op::Write { offset, len, buf, fua }))
    }

    /// Submits a read; any multiple of 512. `None` when there is no buffer memory now.
    pub fn submit_read(&mut self, attach: AttachId, offset: u64, len: u32) -> Option<Tag> {
        let buf = self.mem.alloc(aligned_span(offset, len))?;
        self.mem.get_mut(buf).fill(0xdd);
        Some(self.submit(attach, Op::Read { offset, len, buf }))
    }

    /// Submits an admin operation.
    pub fn submit_admin(&mut self, op: AdminOp) -> Tag {
        let tag = self.tag();
        self.admin_waiting.insert(tag.0, format!("{op:?}"));
        self.step(Event::Admin { tag, op });
        tag
    }

    /// Lets the next thing happen. `false` when nothing is left to happen.
    pub fn turn(&mut self) -> bool {
        let Some((now, event)) = self.queue.pop() else { return false };
        match event {
            Ev::Tick => {
                self.ticking = false;
                self.step(Event::Tick);
            }
            Ev::IoDone(ticket) => {
                let errno = self.complete(ticket);
                self.trace.number(now).number(u64::from(ticket.0));
                self.step(Event::IoDone { ticket, errno });
            }
        }
        true
    }

    /// Turns until the request is answered.
    pub fn wait(&mut self, tag: Tag) -> Done {
        for _ in 0..TURNS_MAX {
            if let Some(at) = self.done.iter().position(|d| d.tag == tag) {
                return self.done.swap_remove(at);
            }
            assert!(self.turn(), "nothing happens any more and {:?} is not answered", self.waiting.get(&tag.0));
        }
        panic!("{:?} is not answered", self.waiting.get(&tag.0));
    }

    /// Turns until nothing but ticks would happen and background work is over, at most `turns`.
    pub fn settle(&mut self, turns: u64) -> bool {
        for _ in 0..turns {
            if !self.turn() {
                return true;
            }
        }
        false
    }

    /// An admin operation, to its answer.
    ///
    /// # Errors
    /// The engine's.
    pub fn admin(&mut self, op: AdminOp) -> Result<AdminReply, AdminError> {
        let tag = self.submit_admin(op);
        for _ in 0..TURNS_MAX {
            if let Some(at) = self.admin_done.iter().position(|d| d.0 == tag) {
                return self.admin_done.swap_remove(at).1;
            }
            if !self.drive.is_powered() {
                return Err(AdminError::Poisoned);
            }
            assert!(self.turn(), "nothing happens any more and {:?} is not answered", self.admin_waiting.get(&tag.0));
        }
        panic!("{:?} is not answered", self.admin_waiting.get(&tag.0));
    }

    /// The power goes off.
    pub fn cut(mut self, how: Cut) -> Image {
        self.drive.cut(how)
    }

    fn tag(&mut self) -> Tag {
        self.next_tag += 1;
        Tag(self.next_tag)
    }

    fn step(&mut self, event: Event) {
        self.step_once(event);
        while let Some(event) = self.again.pop_front() {
            self.step_once(event);
        }
    }

    fn step_once(&mut self, event: Event) {
        self.steps += 1;
        let now = self.queue.now();
        if self.engine.faults().is_on() {
            self.step_in_danger(now, event);
        } else {
            self.engine.step(now, event, &mut self.mem, &mut self.out);
        }
        if let Some(neighbour) = &mut self.neighbour {
            self.again.extend(neighbour.answer(&self.engine, &mut self.drive, &mut self.out));
        }
        self.drain();
    }

    fn drain(&mut self) {
        let mut ios = std::mem::take(&mut self.out.ios);
        for io in ios.drain(..) {
            self.send(io);
        }
        self.out.ios = ios;
        let mut extents = std::mem::take(&mut self.out.extents);
        let mut extent = extents.drain(..);
        for reply in self.out.replies.drain(..) {
            let (_, op) = self.waiting.remove(&reply.tag.0).expect("answers belong to a question, and once only");
            let mut data = Vec::new();
            match op {
                Op::Read { offset, len, buf } => {
                    let at = (offset % 4096) as usize;
                    if reply.status.is_ok() {
                        data.extend_from_slice(&self.mem.get(buf)[at..at + len as usize]);
                    }
                    self.mem.free(buf);
                }
                Op::Write { buf, .. } => self.mem.free(buf),
                _ => {}
            }
            self.trace.number(reply.tag.0).number(u64::from(reply.status.errno())).bytes(&data);
            let extents = extent.by_ref().take(reply.extents as usize).collect();
            self.done.push(Done { tag: reply.tag, op, status: reply.status, data, extents });
        }
        assert!(extent.next().is_none(), "extents that belong to no reply");
        drop(extent);
        self.out.extents = extents;
        for (tag, result) in self.out.admin.drain(..) {
            let asked = self.admin_waiting.remove(&tag.0);
            assert!(asked.is_some(), "an answer to an admin operation that nobody asked, or twice: {result:?}");
            self.trace.number(tag.0).number(u64::from(result.is_ok()));
            self.admin_done.push((tag, result));
        }
        self.alarms.append(&mut self.out.alarms);
        if let Some(wake_at) = self.out.wake_at
            && !self.ticking
        {
            self.ticking = true;
            let soon = self.queue.now() + self.chance.between(1_000, 200_000);
            self.queue.at(wake_at.max(soon), Ev::Tick);
        }
    }

    fn send(&mut self, io: Io) {
        let mut hash = 0;
        let op = match io.kind {
            IoKind::Read { offset, buf } => DriveOp::Read { offset, len: buf.len() as u64 },
            IoKind::Write { offset, buf } => {
                hash = self.hash(buf);
                DriveOp::Write { offset, data: self.mem.get(buf).to_vec() }
            }
            IoKind::Flush => DriveOp::Flush,
            IoKind::Discard { offset, len } => DriveOp::Discard { offset, len },
        };
        let before = self.io.insert(io.ticket.0, Flying { kind: io.kind, hash });
        assert!(before.is_none(), "ticket {:?} is in flight already", io.ticket);
        let at = self.drive.submit(self.queue.now(), u64::from(io.ticket.0), op);
        self.trace.number(at).number(hash);
        self.queue.at(at, Ev::IoDone(io.ticket));
    }

    fn complete(&mut self, ticket: Ticket) -> i32 {
        let flying = self.io.remove(&ticket.0).expect("what completes was in flight");
        let ended = self.drive.complete(u64::from(ticket.0));
        match flying.kind {
            IoKind::Read { buf, .. } if ended.errno == 0 => self.mem.get_mut(buf).copy_from_slice(&ended.data),
            // A failed read leaves anything in the buffer.
            IoKind::Read { buf, .. } => self.mem.get_mut(buf).fill(0xee),
            IoKind::Write { buf, offset } => {
                assert_eq!(self.hash(buf), flying.hash, "the buffer of a write at {offset} changed in flight");
            }
            IoKind::Flush | IoKind::Discard { .. } => {}
        }
        ended.errno
    }

    fn hash(&self, buf: Buf) -> u64 {
        TraceHash::new().bytes(self.mem.get(buf)).value()
    }
}

/// Short forms for scripted tests.
impl Sim {
    pub fn create(&mut self, name: &str, size_bytes: u64, rule: ObservationRule) -> VolumeState {
        let op = AdminOp::Create { name: name.into(), size_bytes, rule, token_sha256: None, encryption: None };
        volume(self.admin(op).expect("a volume can be created"))
    }

    pub fn show(&mut self, name: &str) -> VolumeState {
        volume(self.admin(AdminOp::Show { name: name.into() }).expect("the volume exists"))
    }

    pub fn acquire(&mut self, name: &str, lease: LeaseId) {
        let op = AdminOp::Acquire { name: name.into(), lease, holder: "test".into(), now_unix_ms: 1 };
        self.admin(op).expect("the volume is free");
    }

    /// Attaches; an encrypted volume that is locked (after a power cut) is unlocked first.
    pub fn attach(&mut self, name: &str, mode: AttachMode) -> Result<AttachState, AdminError> {
        let op = AdminOp::Attach { name: name.into(), mode, token_sha256: None };
        let answer = match self.admin(op.clone()) {
            Err(AdminError::Locked) => {
                self.admin(AdminOp::Unlock { name: name.into(), secret: secret() }).expect("it is the right key");
                self.admin(op)
            }
            answer => answer,
        };
        match answer? {
            AdminReply::Attached(state) => Ok(state),
            other => panic!("attach answered {other:?}"),
        }
    }

    pub fn create_encrypted(&mut self, name: &str, size_bytes: u64, salt: u8) -> VolumeState {
        let encryption = Some(encryption(salt));
        let (name, rule) = (name.to_owned(), ObservationRule::Flush);
        let op = AdminOp::Create { name, size_bytes, rule, token_sha256: None, encryption };
        volume(self.admin(op).expect("a volume can be created"))
    }

    pub fn attach_lease(&mut self, name: &str, lease: LeaseId) -> AttachId {
        self.attach(name, AttachMode::Lease(lease)).expect("the lease is good").attach
    }

    pub fn pool(&mut self) -> PoolState {
        match self.admin(AdminOp::PoolStatus) {
            Ok(AdminReply::Pool(state)) => state,
            other => panic!("pool status answered {other:?}"),
        }
    }

    pub fn write(&mut self, attach: AttachId, offset: u64, data: &[u8], fua: bool) -> IoStatus {
        let tag = self.submit_write(attach, offset, data, fua).expect("buffer memory");
        self.wait(tag).status
    }

    pub fn read(&mut self, attach: AttachId, offset: u64, len: u32) -> Result<Vec<u8>, IoStatus> {
        let tag = self.submit_read(attach, offset, len).expect("buffer memory");
        let done = self.wait(tag);
        if done.status.is_ok() { Ok(done.data) } else { Err(done.status) }
    }

    pub fn op(&mut self, attach: AttachId, op: Op) -> IoStatus {
        let tag = self.submit(attach, op);
        self.wait(tag).status
    }
}

pub fn volume(reply: AdminReply) -> VolumeState {
    match reply {
        AdminReply::Volume(state) => *state,
        other => panic!("expected a volume, got {other:?}"),
    }
}

/// Runs a property for every seed; a failure prints the one line that replays it.
///
/// `SEGUE_SEED=N` runs that seed alone; `SEGUE_PERCENT=N` runs N per cent of the usual seeds (1000: ten times as many).
pub fn for_seeds(test: &str, binary: &str, seeds: u64, run: impl Fn(u64)) {
    let number = |name: &str| {
        let text = std::env::var_os(name)?;
        Some(text.to_str().and_then(|t| t.parse::<u64>().ok()).unwrap_or_else(|| panic!("{name} is not a number")))
    };
    let range = match number("SEGUE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..(seeds * number("SEGUE_PERCENT").unwrap_or(100)).div_ceil(100),
    };
    for seed in range {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        if let Err(panic) = result {
            let line = format!("replay: SEGUE_SEED={seed} cargo test -p segue-volume --test {binary} {test}");
            std::io::Write::write_all(&mut std::io::stderr(), format!("{line}\n").as_bytes()).ok();
            std::panic::resume_unwind(panic);
        }
    }
}

/// The secret of every encrypted volume of the tests.
pub fn secret() -> Secret {
    Secret::new(vec![0x5e; 32]).expect("long enough")
}

pub fn encryption(salt: u8) -> NewEncryption {
    NewEncryption { secret: secret(), salt: [salt; 16] }
}
