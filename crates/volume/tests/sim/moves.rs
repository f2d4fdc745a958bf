//! Two pools, a client, and a move between them, with power cuts and failing drives.
//!
//! Owns: the driver of the move's machine, the client's load, and what its blocks may hold. Never: looks inside an engine.
//! Invariant: after any crash exactly one pool serves the volume, and each block reads as the client may expect.

use super::content::{SECTOR, SECTORS, fill, recognise};
use super::{Setup, Sim, formatted_as};
use segue_des::{Chance, Cut, Faults, Image, Timing};
use segue_types::{BLOCK_BYTES, IoStatus, LeaseId, MoveId};
use segue_volume::engine::EngineOptions;
use segue_volume::migrate::{Ask, Ending, Event, Mover, Out, Plan};
use segue_volume::op::{
    AdminOp, AdminReply, AttachId, AttachMode, MoveOp, MoveReply, MoveStage, MoveState, ObservationRule, Op, Tag,
};
use segue_volume::{NewEncryption, Secret};
use std::collections::BTreeMap;

const B: u64 = BLOCK_BYTES;
const LEASE: LeaseId = LeaseId(77);
const NAME: &str = "vol";
/// Where the client writes: near, and far apart.
const NEAR_BLOCKS: u64 = 600;
const FAR_BLOCKS: u64 = 1 << 14;
const SIZE_BYTES: u64 = 2 * FAR_BLOCKS * B;

/// What a world is to go through.
#[derive(Clone, Default)]
pub struct Fate {
    /// The power goes off with this operation of the source's or destination's drive, counted over the whole life; 0: never.
    pub off_at: [u64; 2],
    /// Operations of the drives that fail: first and count.
    pub fail: [(u64, u64); 2],
    /// Blocks written before the move.
    pub prefill: u64,
    /// The driver tells the source to forget the volume before the destination has committed: the canary.
    pub finish_first: bool,
    /// Snapshots, clones and growth of the volume while it moves.
    pub busy: bool,
    /// The volume is encrypted.
    pub encrypted: bool,
    /// Bytes per second; 0: no limit.
    pub rate_bytes_per_s: u64,
}

/// What a block may hold: now, and after a crash.
#[derive(Clone, Default)]
struct Cell {
    live: Vec<u32>,
    durable: Vec<u32>,
}

/// A client's operation in flight.
struct Flying {
    tag: Tag,
    blocks: Vec<u64>,
    value: u32,
    flush: bool,
}

/// Two pools and what is known of the volume.
pub struct World {
    setup: Setup,
    fate: Fate,
    chance: Chance,
    pub pools: [Sim; 2],
    cells: BTreeMap<u64, Cell>,
    next_value: u32,
    /// Which pool the client is attached to, and the attachment.
    at: usize,
    attach: Option<AttachId>,
    flying: Option<Flying>,
    held: bool,
    mover: Option<Mover>,
    asked: [Option<Tag>; 2],
    hold_wanted: bool,
    pub ended: Option<Ending>,
    /// Client operations that went through while the move ran.
    pub served: u64,
    wake_at: Option<u64>,
    boots: u64,
    next_copy: u32,
}

fn secret() -> Secret {
    Secret::new(vec![3; 64]).expect("long enough")
}

fn uuid(pool: usize) -> [u8; 16] {
    [0xa0 + pool as u8; 16]
}

fn plan(fate: &Fate) -> Plan {
    let (source, dest) = (uuid(0), uuid(1));
    Plan { id: MoveId(42), name: NAME.into(), source, dest, rate_bytes_per_s: fate.rate_bytes_per_s }
}

impl World {
    pub fn new(seed: u64, fate: &Fate) -> World {
        let setup = Setup {
            slices: 1,
            seed,
            drive_bytes: 24 << 20,
            mem_bytes: 24 << 20,
            options: EngineOptions { cache_bytes: 0 },
            timing: Timing::default(),
        };
        let image = |pool: usize| formatted_as(&setup, uuid(pool));
        let boot = |pool: usize| {
            Sim::boot(&setup, image(pool), Faults::default(), &format!("pool {pool}")).expect("a fresh pool opens")
        };
        let mut world = World {
            pools: [boot(0), boot(1)],
            fate: fate.clone(),
            chance: Chance::new(seed).stream("world"),
            cells: BTreeMap::new(),
            next_value: 0,
            at: 0,
            attach: None,
            flying: None,
            held: false,
            mover: Some(Mover::new(plan(fate))),
            asked: [None, None],
            hold_wanted: false,
            ended: None,
            served: 0,
            wake_at: Some(0),
            boots: 0,
            next_copy: 0,
            setup,
        };
        let encryption = fate.encrypted.then(|| NewEncryption { secret: secret(), salt: [7; 16] });
        let (name, rule) = (NAME.to_owned(), ObservationRule::Flush);
        let op = AdminOp::Create { name, size_bytes: SIZE_BYTES, rule, token_sha256: None, encryption };
        world.pools[0].admin(op).expect("a volume can be created");
        world.pools[0].acquire(NAME, LEASE);
        world.pools[0].admin(AdminOp::SetNote { name: NAME.into(), note: "kept".into() }).expect("a note");
        world.attach = Some(world.pools[0].attach_lease(NAME, LEASE));
        for _ in 0..fate.prefill {
            world.client_op();
            while world.flying.is_some() {
                world.pools[0].turn();
                world.collect();
            }
        }
        let ops = [0, 1].map(|p| world.pools[p].drive.stats().ops);
        for (pool, ops) in ops.into_iter().enumerate() {
            let (first, count) = fate.fail[pool];
            let later = |k: u64| if k == 0 { 0 } else { ops + k };
            let faults = Faults {
                power_off_at: later(fate.off_at[pool]),
                fail_first: later(first),
                fail_count: count,
                errno: 5,
                ..Faults::default()
            };
            world.pools[pool].drive.set_faults(faults);
        }
        world
    }

    /// Operations of each drive so far.
    pub fn ops(&self) -> [u64; 2] {
        [0, 1].map(|p| self.pools[p].drive.stats().ops)
    }

    /// Lets the move run, with the client's load, until it ends or the power is off; at most `turns`.
    pub fn run(&mut self, turns: u64) {
        for _ in 0..turns {
            if self.ended.is_some() || self.pools.iter().any(|p| !p.drive.is_powered()) {
                return;
            }
            self.turn();
        }
    }

    /// The same to the end.
    pub fn run_out(&mut self) {
        self.run(3_000_000);
        let off = self.pools.iter().any(|p| !p.drive.is_powered());
        assert!(self.ended.is_some() || off, "the move does not end: {:?}", self.mover.as_ref().map(Mover::progress));
    }

    fn turn(&mut self) {
        if self.flying.is_none() && !self.held && !self.hold_wanted && self.chance.below(4) == 0 {
            self.client_op();
            if self.fate.busy && self.chance.below(200) == 0 {
                self.copy_or_grow();
            }
        }
        if self.hold_wanted && self.flying.is_none() {
            (self.hold_wanted, self.held) = (false, true);
            self.tell(Event::Held(true));
        }
        let pool = self.chance.below(2) as usize;
        self.pools[pool].turn();
        self.pools[1 - pool].turn();
        if self.wake_at.is_some_and(|at| at <= self.now()) {
            self.wake_at = None;
            self.tell(Event::Tick);
        }
        self.collect();
    }

    fn now(&self) -> u64 {
        self.pools[0].now().max(self.pools[1].now())
    }

    /// A snapshot, a clone, or a larger volume; whatever the engine says.
    fn copy_or_grow(&mut self) {
        self.next_copy += 1;
        let (name, to) = (NAME.to_owned(), format!("copy{}", self.next_copy));
        let op = match self.chance.below(3) {
            0 => AdminOp::Snapshot { name, to },
            1 => AdminOp::Delete { name: format!("copy{}", self.next_copy.saturating_sub(3)) },
            _ => AdminOp::Resize { name, size_bytes: SIZE_BYTES + u64::from(self.next_copy) * B },
        };
        self.pools[self.at].submit_admin(op);
    }

    fn client_op(&mut self) {
        let Some(attach) = self.attach else { return };
        let base = if self.chance.below(8) == 0 {
            self.chance.below(2 * FAR_BLOCKS - 8)
        } else {
            self.chance.below(NEAR_BLOCKS)
        };
        let count = 1 + self.chance.below(6);
        let blocks: Vec<u64> = (base..base + count).collect();
        let pool = &mut self.pools[self.at];
        let (offset, len) = (base * B, count * B);
        self.next_value += 1;
        let (mut value, mut flush) = (self.next_value, false);
        let tag = match self.chance.below(10) {
            0 => {
                flush = true;
                pool.submit(attach, Op::Flush)
            }
            1 => {
                value = 0;
                pool.submit(attach, Op::Discard { offset, len, fua: false })
            }
            _ => {
                let data: Vec<u8> = blocks.iter().flat_map(|b| block_of(value, *b)).collect();
                pool.submit_write(attach, offset, &data, false).expect("buffer memory")
            }
        };
        let blocks = if flush { Vec::new() } else { blocks };
        for block in &blocks {
            self.cell(*block).durable.push(value);
        }
        self.flying = Some(Flying { tag, blocks, value, flush });
    }

    fn cell(&mut self, block: u64) -> &mut Cell {
        self.cells.entry(block).or_insert_with(|| Cell { live: vec![0], durable: vec![0] })
    }

    fn collect(&mut self) {
        if let Some(flying) = &self.flying
            && let Some(at) = self.pools[self.at].done.iter().position(|d| d.tag == flying.tag)
        {
            let done = self.pools[self.at].done.swap_remove(at);
            let flying = self.flying.take().expect("just seen");
            self.client_done(&flying, done.status);
        }
        for pool in 0..2 {
            let Some(tag) = self.asked[pool] else { continue };
            let done = &mut self.pools[pool].admin_done;
            let Some(at) = done.iter().position(|d| d.0 == tag) else { continue };
            let answer = done.swap_remove(at).1;
            self.asked[pool] = None;
            self.tell(if pool == 0 { Event::Source(answer) } else { Event::Dest(answer) });
        }
    }

    fn client_done(&mut self, flying: &Flying, status: IoStatus) {
        if status.is_ok() {
            self.served += u64::from(self.mover.is_some());
            if flying.flush {
                self.all_durable();
            }
        }
        for block in &flying.blocks {
            let cell = self.cell(*block);
            match status.is_ok() {
                true => cell.live = vec![flying.value],
                false => cell.live.push(flying.value),
            }
        }
        let faulty = self.fate.fail.iter().any(|f| f.1 > 0) || !self.pools[self.at].drive.is_powered();
        assert!(status.is_ok() || faulty, "a request ended with {status:?}");
    }

    fn all_durable(&mut self) {
        for cell in self.cells.values_mut() {
            cell.durable = cell.live.clone();
        }
    }

    fn tell(&mut self, event: Event) {
        let now = self.now();
        let Some(mover) = &mut self.mover else { return };
        let mut out = Out::default();
        mover.step(now, event, &mut out);
        self.wake_at = out.wake_at;
        for ask in out.asks {
            self.carry(ask);
        }
        if out.ended.is_some() {
            self.ended = out.ended;
            self.mover = None;
        }
    }

    fn carry(&mut self, ask: Ask) {
        match ask {
            Ask::Source(op) => self.asked[0] = Some(self.pools[0].submit_admin(AdminOp::Move(op))),
            Ask::Dest(op) => {
                if self.fate.finish_first
                    && let MoveOp::Commit { id, .. } = &op
                {
                    let finish = self.pools[0].admin(AdminOp::Move(MoveOp::Finish { id: *id }));
                    assert!(finish.is_ok() || !self.pools[0].drive.is_powered());
                }
                self.asked[1] = Some(self.pools[1].submit_admin(AdminOp::Move(op)));
            }
            Ask::Hold => self.hold_wanted = true,
            Ask::Release { moved } => {
                self.held = false;
                if moved {
                    self.at = 1;
                    self.attach = self.pools[1].attach(NAME, AttachMode::Lease(LEASE)).ok().map(|a| a.attach);
                    assert!(self.attach.is_some(), "the lease came along");
                    // The destination's commit made all of it durable.
                    self.all_durable();
                }
                self.tell(Event::Released);
            }
        }
    }

    /// Everything stops, drives lose what was not flushed, and the pools are opened again. Panics unless exactly one
    /// pool then serves the volume with what the client may expect. The move goes on from its records.
    pub fn crash(mut self) -> World {
        self.boots += 1;
        let images: Vec<Image> = self.pools.into_iter().map(|p| p.cut(Cut::Chance)).collect();
        let mut images = images.into_iter();
        let mut boot = |pool: usize| {
            let name = format!("pool {pool} boot {}", self.boots);
            let image = images.next().expect("one for each");
            Sim::boot(&self.setup, image, Faults::default(), &name).unwrap_or_else(|(e, _)| panic!("pool {pool}: {e}"))
        };
        self.pools = [boot(0), boot(1)];
        self.fate.fail = [(0, 0); 2];
        (self.flying, self.held, self.hold_wanted, self.attach) = (None, false, false, None);
        (self.asked, self.ended, self.wake_at) = ([None, None], None, Some(0));
        for cell in self.cells.values_mut() {
            cell.live = cell.durable.clone();
        }
        let resumed = Mover::resume(plan(&self.fate), self.part(0).as_ref(), self.part(1).as_ref());
        match resumed {
            Ok(mover) => self.mover = Some(mover),
            Err(ending) => {
                assert_eq!(ending, Ending::Cancelled, "the records contradict each other");
                (self.mover, self.ended) = (None, Some(ending));
            }
        }
        self.settle_doubt();
        if self.fate.encrypted {
            for pool in &mut self.pools {
                // Whichever has it: keys do not outlive the process.
                drop(pool.admin(AdminOp::Unlock { name: NAME.into(), secret: secret() }));
            }
        }
        self.look(true);
        self
    }

    /// The part of a pool in the move.
    fn part(&mut self, pool: usize) -> Option<MoveState> {
        match self.pools[pool].admin(AdminOp::Move(MoveOp::List)) {
            Ok(AdminReply::Move(MoveReply::Moves { moves, .. })) => moves.into_iter().find(|m| m.id == MoveId(42)),
            other => panic!("list of moves answered {other:?}"),
        }
    }

    /// What a node does before it serves: the move's machine until nothing is in doubt.
    fn settle_doubt(&mut self) {
        for _ in 0..100_000 {
            if !self.mover.as_ref().is_some_and(Mover::in_doubt) {
                return;
            }
            self.turn();
        }
        panic!("the doubt does not end");
    }

    /// Exactly one pool serves the volume, and every block holds what it may.
    pub fn judge(&mut self) {
        self.look(false);
    }

    fn look(&mut self, after_crash: bool) {
        self.finish_flying();

        let serves: Vec<usize> =
            (0..2).filter(|p| self.pools[*p].attach(NAME, AttachMode::Lease(LEASE)).is_ok()).collect();
        assert_eq!(serves.len(), 1, "pools that serve the volume: {serves:?}; {:?}, {:?}", self.part(0), self.part(1));
        self.at = serves[0];
        let attach = self.pools[self.at].attach_lease(NAME, LEASE);
        self.attach = Some(attach);
        let state = self.pools[self.at].show(NAME);
        assert_eq!(state.note, "kept");
        let blocks: Vec<u64> = self.cells.keys().copied().collect();
        for block in blocks {
            let read = self.pools[self.at].read(attach, block * B, B as u32);
            let data = read.unwrap_or_else(|s| panic!("block {block} of pool {} cannot be read: {s:?}", self.at));
            let value = value_of(block, &data);
            let at = self.at;
            let cell = self.cell(block);
            let allowed = &cell.live;
            assert!(
                value.is_some_and(|v| allowed.contains(&v)),
                "block {block} holds {value:?}, not one of {allowed:?} (pool {at})"
            );
            cell.live = vec![value.expect("just checked")];
            if after_crash {
                // What a drive holds after a cut is durable: it may not change again by itself.
                cell.durable = cell.live.clone();
            }
        }
    }

    fn finish_flying(&mut self) {
        while self.flying.is_some() && self.pools[self.at].drive.is_powered() {
            let at = self.at;
            self.pools[at].turn();
            self.collect();
        }
    }

    /// The volume is in the destination alone, and the source has its space back.
    pub fn judge_moved(&mut self) {
        assert_eq!(self.ended, Some(Ending::Moved));
        assert_eq!((self.part(0), self.part(1)), (None, None));
        self.judge();
        assert_eq!(self.at, 1, "the source serves the volume after its move");
    }

    /// Gives the move up at once.
    pub fn cancel(&mut self) {
        self.tell(Event::Cancel);
    }

    /// The stage of the source's part.
    pub fn source_stage(&mut self) -> Option<MoveStage> {
        self.part(0).map(|p| p.stage)
    }

    /// Stops the client, waits for all clean-up, and gives back what the drives hold.
    pub fn close(mut self) -> [Image; 2] {
        self.finish_flying();
        for pool in &mut self.pools {
            assert!(pool.settle(200_000), "the clean-up does not end");
            pool.admin(AdminOp::Checkpoint).expect("a checkpoint");
            pool.settle(200_000);
        }
        self.pools.map(|pool| pool.cut(Cut::KeepsAll))
    }
}

fn block_of(value: u32, block: u64) -> Vec<u8> {
    let mut data = vec![0; B as usize];
    for sector in 0..SECTORS {
        fill(value, block, sector, &mut data[sector * SECTOR..(sector + 1) * SECTOR]);
    }
    data
}

/// Who wrote a block as a whole; `None`: torn or foreign.
fn value_of(block: u64, data: &[u8]) -> Option<u32> {
    let mut marks = (0..SECTORS).map(|s| recognise(block, s, &data[s * SECTOR..(s + 1) * SECTOR]));
    let first = marks.next().expect("a block has sectors")?;
    marks.all(|m| m == Some(first)).then_some(first)
}
