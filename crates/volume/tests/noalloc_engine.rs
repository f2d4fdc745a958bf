//! Counts allocations of engine steps while requests flow: reads, writes and flushes must make none.
//!
//! Owns: the counting allocator. Never: counts the warm-up, admin operations, or the driver.
//! Invariant: only what happens inside `Engine::step` is counted.

#[path = "../../types/testing/calls.rs"]
mod calls;

use calls::calls;
use segue_types::{IoStatus, LeaseId};
use segue_volume::device::{BlockDev, DriveError};
use segue_volume::engine::{Engine, EngineOptions, FormatOptions};
use segue_volume::mem::Mem;
use segue_volume::op::{
    AdminOp, AdminReply, AttachId, AttachMode, Event, IoKind, ObservationRule, Op, Out, Tag, aligned_span,
};
use segue_volume::{NewEncryption, Secret};

struct Ram(Vec<u8>);

impl BlockDev for Ram {
    fn capacity_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        buf.copy_from_slice(&self.0[offset as usize..offset as usize + buf.len()]);
        Ok(())
    }

    fn write(&mut self, offset: u64, buf: &[u8]) -> Result<(), DriveError> {
        self.0[offset as usize..offset as usize + buf.len()].copy_from_slice(buf);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DriveError> {
        Ok(())
    }
}

/// A driver whose drive completes everything at once.
struct Bench {
    ram: Ram,
    mem: Mem,
    engine: Engine,
    out: Out,
    now: u64,
    counted: u64,
}

impl Bench {
    fn step(&mut self, event: Event) {
        self.now += 10_000;
        let before = calls();
        self.engine.step(self.now, event, &mut self.mem, &mut self.out);
        self.counted += calls() - before;
    }

    /// Steps until the drive is idle; returns the last reply's status.
    fn settle(&mut self) -> Option<IoStatus> {
        let mut status = None;
        while let Some(io) = self.out.ios.pop() {
            match io.kind {
                IoKind::Read { offset, buf } => {
                    let at = offset as usize;
                    let bytes = &self.ram.0[at..at + buf.len()];
                    self.mem.get_mut(buf).copy_from_slice(bytes);
                }
                IoKind::Write { offset, buf } => {
                    let at = offset as usize;
                    self.ram.0[at..at + buf.len()].copy_from_slice(self.mem.get(buf));
                }
                IoKind::Flush | IoKind::Discard { .. } => {}
            }
            self.step(Event::IoDone { ticket: io.ticket, errno: 0 });
        }
        for reply in self.out.replies.drain(..) {
            status = Some(reply.status);
        }
        status
    }

    fn request(&mut self, attach: AttachId, op: Op) {
        self.step(Event::Request { tag: Tag(1), attach, op });
        let mut status = self.settle();
        for _ in 0..1000 {
            if status.is_some() {
                break;
            }
            self.step(Event::Tick);
            status = self.settle();
        }
        assert_eq!(status, Some(IoStatus::Ok), "{op:?}");
    }

    fn admin(&mut self, op: AdminOp) -> AdminReply {
        self.step(Event::Admin { tag: Tag(2), op });
        self.settle();
        let (_, result) = self.out.admin.pop().expect("answered at once on this drive");
        result.expect("it is possible")
    }
}

fn bench(encryption: Option<NewEncryption>) -> (Bench, AttachId) {
    let mut ram = Ram(vec![0; 64 << 20]);
    let mut mem = Mem::new(32 << 20);
    Engine::format(&mut ram, &FormatOptions { uuid: [1; 16], force: false }).expect("format");
    let engine = Engine::open(&mut ram, &mut mem, &EngineOptions::default()).expect("open");
    let out = Out::with_capacity(1024);
    let mut bench = Bench { ram, mem, engine, out, now: 0, counted: 0 };
    let rule = ObservationRule::Flush;
    bench.admin(AdminOp::Create { name: "a".into(), size_bytes: 1 << 30, rule, token_sha256: None, encryption });
    let lease = LeaseId(1);
    bench.admin(AdminOp::Acquire { name: "a".into(), lease, holder: "h".into(), now_unix_ms: 0 });
    let mode = AttachMode::Lease(lease);
    match bench.admin(AdminOp::Attach { name: "a".into(), mode, token_sha256: None }) {
        AdminReply::Attached(state) => (bench, state.attach),
        other => panic!("{other:?}"),
    }
}

/// A mix over 4 MiB of one volume: aligned and ragged writes, reads, flushes, discards.
fn mix(bench: &mut Bench, attach: AttachId, rounds: u64) {
    for n in 0..rounds {
        let offset = (n * 7919 % 1000) * 4096;
        let (offset, len) = match n % 5 {
            0 => (offset + 512, 3072),
            1 => (offset, 65536),
            _ => (offset, 4096),
        };
        let buf = bench.mem.alloc(aligned_span(offset, len)).expect("memory");
        let op = match n % 3 {
            0 => Op::Read { offset, len, buf },
            1 => Op::Write { offset, len, buf, fua: false },
            _ => Op::Write { offset, len, buf, fua: n % 2 == 0 },
        };
        bench.request(attach, op);
        bench.mem.free(buf);
        if n % 7 == 0 {
            bench.request(attach, Op::Flush);
        }
        if n % 31 == 0 {
            bench.request(attach, Op::WriteZeroes { offset: offset + 512, len: 8192, no_hole: true, fua: false });
            bench.request(attach, Op::Discard { offset: offset & !4095, len: 8192, fua: false });
        }
    }
}

#[test]
fn noalloc_requests_in_steady_state() {
    steady(None);
}

#[test]
fn noalloc_requests_of_an_encrypted_volume() {
    let secret = Secret::new(vec![1; 32]).expect("long enough");
    steady(Some(NewEncryption { secret, salt: [2; 16] }));
}

fn steady(encryption: Option<NewEncryption>) {
    let (mut bench, attach) = bench(encryption);
    mix(&mut bench, attach, 30_000);
    bench.counted = 0;
    mix(&mut bench, attach, 10_000);
    assert_eq!(bench.counted, 0, "allocator calls in 10,000 requests");
}
