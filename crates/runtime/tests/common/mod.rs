//! What the tests share: a tiny engine, a raw NBD client, and a running runtime.
//!
//! Owns: test helpers only. Never: stands in for the volume engine where that is what is tested.
//! Invariant: a helper that waits polls a condition with a bound, and says what it waited for.
#![allow(dead_code)]

pub mod client;

use segue_runtime::{DriveSpec, IoChoice, ListenAddr, Machine, Options, PoolSpec, Runtime, Tls};
use segue_types::api::{ObservationRule, SuperPhase, VolumeKind};
use segue_types::{IoStatus, Nanos, VolumeId};
use segue_volume::mem::{Buf, Mem};
use segue_volume::op::*;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Bytes of the one volume of a [`TinyEngine`].
pub const VOLUME_BYTES: u64 = 64 << 20;
/// Its name.
pub const VOLUME: &str = "vol";

pub struct Pending {
    tag: Tag,
    op: Op,
    /// Read-modify-write: the old bytes of the span, once they are being read.
    old: Buf,
    reading: bool,
}

/// One volume, straight on the drive. No checksums, no journal, no leases.
#[derive(Default)]
pub struct TinyEngine {
    pub pending: BTreeMap<u32, Pending>,
    pub next: u32,
    pub attached: u32,
    /// Requests touching this byte fail with an I/O error.
    pub bad_offset: Option<u64>,
}

impl TinyEngine {
    fn io(&mut self, pending: Pending, kind: IoKind, out: &mut Out) {
        self.next = self.next.wrapping_add(1);
        out.ios.push(Io { ticket: Ticket(self.next), kind });
        self.pending.insert(self.next, pending);
    }

    fn request(&mut self, tag: Tag, op: Op, mem: &mut Mem, out: &mut Out) {
        let pending = Pending { tag, op, old: Buf::EMPTY, reading: false };
        let reply = |status, extents| Reply { tag, status, extents };
        match op {
            Op::Read { offset, len, .. } | Op::Write { offset, len, .. }
                if self.bad_offset.is_some_and(|bad| (offset..offset + len as u64).contains(&bad)) =>
            {
                out.replies.push(reply(IoStatus::Io, 0));
            }
            Op::Read { offset, len, buf } => {
                assert_eq!(buf.len(), aligned_span(offset, len));
                self.io(pending, IoKind::Read { offset: offset & !4095, buf }, out);
            }
            Op::Write { offset, len, buf, .. } if (offset | len as u64) & 4095 == 0 => {
                self.io(pending, IoKind::Write { offset, buf }, out);
            }
            Op::Write { offset, len, .. } => {
                let old = mem.alloc(aligned_span(offset, len)).expect("memory for a read-modify-write");
                self.io(
                    Pending { old, reading: true, ..pending },
                    IoKind::Read { offset: offset & !4095, buf: old },
                    out,
                );
            }
            Op::Flush => self.io(pending, IoKind::Flush, out),
            Op::Discard { offset, len, .. } | Op::WriteZeroes { offset, len, .. } => {
                self.io(pending, IoKind::Discard { offset, len }, out);
            }
            Op::BlockStatus { len, .. } => {
                out.extents.push(Extent { len, hole: false });
                out.replies.push(reply(IoStatus::Ok, 1));
            }
            Op::Cache { .. } => out.replies.push(reply(IoStatus::Ok, 0)),
        }
    }

    fn io_done(&mut self, ticket: Ticket, errno: i32, mem: &mut Mem, out: &mut Out) {
        let pending = self.pending.remove(&ticket.0).expect("a ticket comes back once");
        if let (Op::Write { offset, len, buf, .. }, true) = (pending.op, pending.reading) {
            let skip = (offset & 4095) as usize;
            mem.copy(buf.part(skip, len as usize), pending.old.part(skip, len as usize));
            let write = IoKind::Write { offset: offset & !4095, buf: pending.old };
            return self.io(Pending { reading: false, ..pending }, write, out);
        }
        mem.free(pending.old);
        let failed = errno != 0 && !matches!(pending.op, Op::Discard { .. } | Op::WriteZeroes { .. });
        let status = if failed { IoStatus::Io } else { IoStatus::Ok };
        out.replies.push(Reply { tag: pending.tag, status, extents: 0 });
    }

    fn volume(&self) -> AdminReply {
        AdminReply::Volume(Box::new(VolumeState {
            id: VolumeId(1),
            name: VOLUME.to_owned(),
            kind: VolumeKind::Volume,
            size_bytes: VOLUME_BYTES,
            own_bytes: 0,
            depth: 1,
            epoch: 1,
            rule: ObservationRule::Flush,
            token_sha256: None,
            lease: None,
            phase: SuperPhase::None,
            super_id: None,
            note: String::new(),
            cleaning: false,
            access: None,
            encrypted: false,
            locked: false,
            share: None,
        }))
    }

    fn admin(&mut self, op: AdminOp) -> Result<AdminReply, AdminError> {
        match op {
            AdminOp::Show { name } | AdminOp::Attach { name, .. } if name != VOLUME => Err(AdminError::NotFound),
            AdminOp::Show { .. } => Ok(self.volume()),
            AdminOp::List => match self.volume() {
                AdminReply::Volume(volume) => Ok(AdminReply::Volumes(vec![*volume])),
                other => Ok(other),
            },
            AdminOp::Attach { mode, .. } => {
                self.attached += 1;
                let read_only = mode == AttachMode::ReadOnly;
                let (attach, size_bytes) = (AttachId(self.attached), VOLUME_BYTES);
                Ok(AdminReply::Attached(AttachState { attach, size_bytes, read_only, epoch: 1 }))
            }
            AdminOp::Detach { .. } => {
                self.attached -= 1;
                Ok(AdminReply::Done)
            }
            AdminOp::PoolStatus => {
                Ok(AdminReply::Pool(PoolState { volumes: self.attached as u64, ..PoolState::default() }))
            }
            _ => Ok(AdminReply::Done),
        }
    }
}

impl Machine for TinyEngine {
    fn step(&mut self, _now: Nanos, event: Event, mem: &mut Mem, out: &mut Out) {
        match event {
            Event::Request { tag, op, .. } => self.request(tag, op, mem, out),
            Event::Admin { tag, op } => {
                let result = self.admin(op);
                out.admin.push((tag, result));
            }
            Event::IoDone { ticket, errno } => self.io_done(ticket, errno, mem, out),
            Event::Lend { .. } | Event::Shrink | Event::Tick => {}
        }
    }

    fn release(self: Box<Self>, _mem: &mut Mem) {
        assert!(self.pending.is_empty(), "I/O is in flight");
    }
}

/// The four worlds in which everything must behave the same.
#[derive(Clone, Copy, Debug)]
pub struct World {
    pub io: IoChoice,
    pub file: bool,
}

/// All of them.
pub const WORLDS: [World; 4] = [
    World { io: IoChoice::Auto, file: false },
    World { io: IoChoice::Auto, file: true },
    World { io: IoChoice::Poll, file: false },
    World { io: IoChoice::Poll, file: true },
];

/// A runtime with one pool and a unix listener.
pub struct Served {
    pub runtime: Runtime,
    pub socket: PathBuf,
    pub dir: tempfile::TempDir,
}

impl Served {
    /// With these options, a tiny engine on the world's drive.
    pub fn new(world: World, options: Options) -> Served {
        Served::with_engine(world, options, TinyEngine::default())
    }

    pub fn with_engine(world: World, options: Options, engine: TinyEngine) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let drive = if world.file {
            let path = dir.path().join("drive");
            segue_runtime::drive::create_sparse(&path, VOLUME_BYTES).unwrap();
            DriveSpec::File { path }
        } else {
            DriveSpec::Memory { bytes: VOLUME_BYTES }
        };
        let runtime = Runtime::start(Options { io: world.io, ..options }).unwrap();
        let open = Box::new(move |_: &mut dyn segue_volume::device::BlockDev, _: &mut Mem| {
            Ok(Box::new(engine) as Box<dyn Machine>)
        });
        runtime.add_pool(PoolSpec { name: "p".into(), drive, open }).unwrap();
        let socket = dir.path().join("nbd.sock");
        runtime.listen(&ListenAddr::Unix(socket.clone()), Tls::Off).unwrap();
        Served { runtime, socket, dir }
    }

    /// I/O memory in use, the engine's own apart (a tiny engine has none).
    pub fn mem_used(&self) -> u64 {
        self.runtime.counters().iter().map(|core| core.mem_used_bytes).sum()
    }

    pub fn connections(&self) -> u64 {
        self.runtime.counters().iter().map(|core| core.connections).sum()
    }

    /// Waits until no connection is left, and checks that nothing of them is.
    pub fn settle(&self) {
        wait_for("all connections to end", || {
            // An admin operation makes the core take a turn and publish what it counts.
            let _ = self.runtime.admin_wait("p", AdminOp::PoolStatus);
            self.connections() == 0
        });
        wait_for("all memory to come back", || {
            let attached = match self.runtime.admin_wait("p", AdminOp::PoolStatus) {
                Ok(AdminReply::Pool(state)) => state.volumes,
                other => panic!("{other:?}"),
            };
            self.mem_used() == 0 && attached == 0
        });
    }

    /// Stops in order and checks that nothing is left.
    pub fn stop(self) {
        self.runtime.stop(Duration::from_secs(20)).unwrap();
        assert_eq!(self.mem_used(), 0);
        assert!(!self.socket.exists());
    }
}

/// Polls a condition for at most 20 seconds.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// A tiny engine whose volume has another name.
pub struct Renamed {
    name: &'static str,
    engine: TinyEngine,
}

impl Renamed {
    pub fn new(name: &'static str) -> Renamed {
        Renamed { name, engine: TinyEngine::default() }
    }
}

impl Machine for Renamed {
    fn step(&mut self, now: Nanos, event: Event, mem: &mut Mem, out: &mut Out) {
        let swap = |name: String| if name == self.name { VOLUME.to_owned() } else { String::new() };
        let event = match event {
            Event::Admin { tag, op: AdminOp::Show { name } } => {
                Event::Admin { tag, op: AdminOp::Show { name: swap(name) } }
            }
            Event::Admin { tag, op: AdminOp::Attach { name, mode, token_sha256 } } => {
                Event::Admin { tag, op: AdminOp::Attach { name: swap(name), mode, token_sha256 } }
            }
            event => event,
        };
        self.engine.step(now, event, mem, out);
    }

    fn release(self: Box<Self>, mem: &mut Mem) {
        Box::new(self.engine).release(mem);
    }
}
