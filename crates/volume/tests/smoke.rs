//! A pool on a plain vector: write, read, super, collapse, reopen.
//!
//! Owns: the shortest walk through the engine. Never: injects faults (see the crash and fault tests).
//! Invariant: what was written reads back, before and after a reopen.

use segue_types::{IoStatus, LeaseId};
use segue_volume::device::{BlockDev, DriveError};
use segue_volume::engine::{Engine, EngineOptions, FormatOptions};
use segue_volume::mem::Mem;
use segue_volume::op::*;

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

struct Rig {
    dev: Ram,
    mem: Mem,
    engine: Option<Engine>,
    out: Out,
    tag: u64,
}

impl Rig {
    fn new(bytes: usize) -> Rig {
        let mut dev = Ram(vec![0; bytes]);
        Engine::format(&mut dev, &FormatOptions { uuid: [1; 16], force: false }).unwrap();
        let mut mem = Mem::new(64 << 20);
        let engine = Engine::open(&mut dev, &mut mem, &EngineOptions::default()).unwrap();
        Rig { dev, mem, engine: Some(engine), out: Out::with_capacity(64), tag: 0 }
    }

    fn spin(&mut self, event: Event) {
        let engine = self.engine.as_mut().unwrap();
        engine.step(0, event, &mut self.mem, &mut self.out);
        loop {
            if let Some(io) = self.out.ios.pop() {
                match io.kind {
                    IoKind::Read { offset, buf } => self.dev.read(offset, self.mem.get_mut(buf)).unwrap(),
                    IoKind::Write { offset, buf } => self.dev.write(offset, self.mem.get(buf)).unwrap(),
                    _ => {}
                }
                engine.step(0, Event::IoDone { ticket: io.ticket, errno: 0 }, &mut self.mem, &mut self.out);
            } else if self.out.wake_at == Some(0) {
                engine.step(0, Event::Tick, &mut self.mem, &mut self.out);
            } else {
                break;
            }
        }
    }

    fn admin(&mut self, op: AdminOp) -> Result<AdminReply, AdminError> {
        self.tag += 1;
        self.spin(Event::Admin { tag: Tag(self.tag), op });
        let (tag, reply) = self.out.admin.pop().expect("an answer");
        assert_eq!(tag, Tag(self.tag));
        reply
    }

    fn request(&mut self, attach: AttachId, op: Op) -> IoStatus {
        self.tag += 1;
        self.spin(Event::Request { tag: Tag(self.tag), attach, op });
        let reply = self.out.replies.pop().expect("an answer");
        assert_eq!(reply.tag, Tag(self.tag));
        reply.status
    }

    fn attach(&mut self, name: &str, mode: AttachMode) -> AttachId {
        let op = AdminOp::Attach { name: name.into(), mode, token_sha256: None };
        match self.admin(op) {
            Ok(AdminReply::Attached(a)) => a.attach,
            other => panic!("{other:?}"),
        }
    }

    fn write(&mut self, attach: AttachId, offset: u64, bytes: &[u8]) -> IoStatus {
        let buf = self.mem.alloc(aligned_span(offset, bytes.len() as u32)).unwrap();
        let at = (offset % 4096) as usize;
        self.mem.get_mut(buf)[at..at + bytes.len()].copy_from_slice(bytes);
        let status = self.request(attach, Op::Write { offset, len: bytes.len() as u32, buf, fua: false });
        self.mem.free(buf);
        status
    }

    fn read(&mut self, attach: AttachId, offset: u64, len: u32) -> Result<Vec<u8>, IoStatus> {
        let buf = self.mem.alloc(aligned_span(offset, len)).unwrap();
        let status = self.request(attach, Op::Read { offset, len, buf });
        let at = (offset % 4096) as usize;
        let bytes = self.mem.get(buf)[at..at + len as usize].to_vec();
        self.mem.free(buf);
        if status.is_ok() { Ok(bytes) } else { Err(status) }
    }

    fn reopen(&mut self) {
        let engine = self.engine.take().unwrap();
        engine.release(&mut self.mem);
        assert_eq!(self.mem.used_bytes(), 0, "the engine gives all memory back");
        self.engine = Some(Engine::open(&mut self.dev, &mut self.mem, &EngineOptions::default()).unwrap());
        let report = segue_volume::check(&mut self.dev).unwrap();
        assert!(report.is_clean() && report.leaked_blocks == 0, "{report:?}");
    }
}

fn create(rig: &mut Rig, name: &str, size_bytes: u64) {
    let rule = ObservationRule::Flush;
    rig.admin(AdminOp::Create { name: name.into(), size_bytes, rule, token_sha256: None, encryption: None }).unwrap();
}

fn implicit() -> AttachMode {
    AttachMode::Implicit { lease: LeaseId(1), holder: "me".into(), now_unix_ms: 1 }
}

#[test]
fn writes_read_back_after_a_reopen() {
    let mut rig = Rig::new(32 << 20);
    create(&mut rig, "a", 16 << 20);
    let a = rig.attach("a", implicit());
    assert_eq!(rig.write(a, 0, &[7; 8192]), IoStatus::Ok);
    assert_eq!(rig.write(a, 512, &[8; 512]), IoStatus::Ok);
    assert_eq!(rig.write(a, (16 << 20) - 512, &[9; 512]), IoStatus::Ok);
    let mut expected = vec![7; 8192];
    expected[512..1024].fill(8);
    assert_eq!(rig.read(a, 0, 8192).unwrap(), expected);
    assert_eq!(rig.request(a, Op::Flush), IoStatus::Ok);
    rig.reopen();
    let a = rig.attach("a", implicit());
    assert_eq!(rig.read(a, 0, 8192).unwrap(), expected);
    assert_eq!(rig.read(a, (16 << 20) - 1024, 1024).unwrap()[512..], [9; 512]);
    assert_eq!(rig.request(a, Op::WriteZeroes { offset: 1024, len: 4096, no_hole: false, fua: false }), IoStatus::Ok);
    expected[1024..5120].fill(0);
    assert_eq!(rig.read(a, 0, 8192).unwrap(), expected);
    assert_eq!(rig.request(a, Op::Discard { offset: 0, len: 8192, fua: true }), IoStatus::Ok);
    assert_eq!(rig.read(a, 0, 8192).unwrap(), [0; 8192]);
    rig.reopen();
}

#[test]
fn a_promoted_child_is_the_volume_and_the_old_primary_is_fenced() {
    let mut rig = Rig::new(64 << 20);
    create(&mut rig, "db", 32 << 20);
    for round in 1..=3u8 {
        let lease = LeaseId(1000 + u128::from(round));
        let holder = if round == 1 { implicit() } else { AttachMode::Lease(LeaseId(999 + u128::from(round))) };
        let primary = rig.attach("db", holder);
        for i in 0..300u64 {
            assert_eq!(rig.write(primary, i * 40960, &[round; 4096]), IoStatus::Ok);
        }
        let grant = rig.admin(AdminOp::Super {
            names: vec!["db".into()],
            child_leases: vec![lease],
            holder: "monitor".into(),
            now_unix_ms: 5,
        });
        let Ok(AdminReply::Super { super_id, .. }) = grant else { panic!("{grant:?}") };
        let child = rig.attach("db", AttachMode::Lease(lease));
        assert_eq!(rig.write(primary, 0, &[100; 4096]), IoStatus::Ok);
        assert_eq!(rig.write(child, 4096, &[200; 4096]), IoStatus::Ok);
        assert_eq!(rig.read(child, 0, 4096).unwrap(), [round; 4096]);
        let collapsed = rig.admin(AdminOp::Collapse { name: "db".into(), super_id });
        assert_eq!(collapsed, Ok(AdminReply::Collapsed { promoted: true }));
        assert_eq!(rig.write(primary, 0, &[101; 4096]), IoStatus::Fenced);
        assert_eq!(rig.request(primary, Op::Flush), IoStatus::Fenced);
        assert_eq!(rig.read(child, 0, 8192).unwrap()[4095..4097], [round, 200]);
        rig.reopen();
    }
    let state = rig.admin(AdminOp::Show { name: "db".into() });
    let Ok(AdminReply::Volume(state)) = state else { panic!("{state:?}") };
    assert_eq!((state.depth, state.phase), (1, SuperPhase::None));
}
