//! The machine of one drive: limits first, then the policy, then the drive's window.
//!
//! Owns: who waits, who may pass, and what the drive has. Never: allocates after its construction, but in `grow`.
//! Invariant: while somebody may pass and the window has room, `next` hands out a request.

use super::bucket::Bucket;
use super::cost::{Charge, CostModel, Kind, READ_4K};
use super::drr::Drr;
use super::governor::{Governor, GovernorParams};
use super::mclock::Mclock;
use super::params::{PolicyKind, Reason, ShareError};
use super::policy::{Fifo, Pick, Policy};
use super::queue::{Item, Queues};
use super::slo::Slo;
use super::stats::{DriveStats, VolumeStats};
use super::strict::Strict;
use super::tree::Tree;
use segue_types::{Nanos, Share};

/// After two volumes used the drive within this time, requests queue for their turn instead of passing at once, ns.
const CONTENDED_NS: Nanos = 5_000_000;
/// Part of the calibrated rate that may be reserved: the rest is for what nobody foresees.
const RESERVABLE_PERCENT: u64 = 90;
/// Rate by which the time of a flush is charged on a drive that was not calibrated, cost units per second.
const RATE_DEFAULT: u64 = 50_000 * READ_4K;

/// A volume's place at a drive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Slot(pub u32);

/// How the machine of a drive is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShareOptions {
    /// Most volumes at once.
    pub volumes: usize,
    /// Requests that may wait before the driver has to call [`DriveShare::grow`].
    pub requests: usize,
    /// How volumes share.
    pub policy: PolicyKind,
    /// What requests cost.
    pub model: CostModel,
    /// How much the drive may have outstanding.
    pub governor: GovernorParams,
    /// What the drive can do, cost units per second; 0 when nobody calibrated it.
    pub capacity: u64,
}

struct Volume {
    open: bool,
    share: Share,
    ops: Bucket,
    bytes: Bucket,
    /// It has a limit, so that its requests never pass unseen.
    limited: bool,
    /// Its next is late because its flushes took the drive's time.
    flush_debt: bool,
    /// Passes of all volumes, and of reservations, when its head became the head.
    passes_at: u64,
    reserved_at: u64,
    /// Requests that the drive has of it.
    in_flight: u32,
    stats: VolumeStats,
}

/// The machine of one drive. See the module's documentation.
pub struct DriveShare {
    volumes: Vec<Volume>,
    queues: Queues,
    /// Volumes that wait for their limit, by when it lets them go on.
    parked: Tree,
    /// Volumes that are ready and have nothing at the drive, in order of arrival.
    fresh: Tree,
    policies: [Box<dyn Policy>; 5],
    policy: PolicyKind,
    governor: Governor,
    model: CostModel,
    capacity: u64,
    outstanding: u64,
    /// Cost of what is at the drive beyond the window.
    guests: u64,
    flushes: u64,
    sequence: u64,
    passes: u64,
    reserved_passes: u64,
    cost: u64,
    last: u32,
    contended_until: Nanos,
    /// When to ask again though nothing happens; `u64::MAX` for never.
    wake_at: Nanos,
    window_closed: bool,
    lifted: bool,
}

impl DriveShare {
    /// A drive without volumes. All memory is taken now.
    pub fn new(options: &ShareOptions) -> DriveShare {
        let slots = options.volumes;
        let mut policies: [Box<dyn Policy>; 5] = [
            Box::new(Fifo::new(slots)),
            Box::new(Strict::new(slots)),
            Box::new(Drr::new(slots)),
            Box::new(Slo::new(slots)),
            Box::new(Mclock::new(slots)),
        ];
        policies.iter_mut().for_each(|policy| policy.set_capacity(options.capacity));
        let volume = || Volume {
            open: false,
            share: Share::default(),
            ops: Bucket::default(),
            bytes: Bucket::default(),
            limited: false,
            flush_debt: false,
            passes_at: 0,
            reserved_at: 0,
            in_flight: 0,
            stats: VolumeStats::default(),
        };
        DriveShare {
            volumes: (0..slots).map(|_| volume()).collect(),
            queues: Queues::new(slots, options.requests),
            parked: Tree::new(slots),
            fresh: Tree::new(slots),
            policies,
            policy: options.policy,
            governor: Governor::new(options.governor),
            model: options.model,
            capacity: options.capacity,
            outstanding: 0,
            guests: 0,
            flushes: 0,
            sequence: 0,
            passes: 0,
            reserved_passes: 0,
            cost: 0,
            last: u32::MAX,
            contended_until: 0,
            wake_at: u64::MAX,
            window_closed: false,
            lifted: false,
        }
    }

    fn policy(&mut self) -> &mut dyn Policy {
        &mut *self.policies[self.policy as usize]
    }

    /// What a request costs here.
    pub fn charge(&self, kind: Kind, bytes: u64, first: bool) -> Charge {
        self.model.charge(kind, bytes, first)
    }

    /// Gives a volume its place. `None` when there are as many as the machine was made for.
    pub fn open(&mut self, share: &Share, now: Nanos) -> Option<Slot> {
        let slot = self.volumes.iter().position(|volume| !volume.open)?;
        let volume = &mut self.volumes[slot];
        (volume.open, volume.flush_debt) = (true, false);
        (volume.ops, volume.bytes, volume.stats) = (Bucket::default(), Bucket::default(), VolumeStats::default());
        self.apply(slot, share, now);
        Some(Slot(slot as u32))
    }

    /// Takes a volume's place back.
    ///
    /// # Panics
    /// When requests of it wait or are at the drive.
    pub fn close(&mut self, slot: Slot, now: Nanos) {
        let at = slot.0 as usize;
        let idle = self.queues.len(at) == 0 && self.volumes[at].in_flight == 0;
        assert!(self.volumes[at].open && idle, "a place is given back when nothing of it is left");
        self.volumes[at].open = false;
        self.volumes[at].share = Share::default();
        self.policies.iter_mut().for_each(|policy| policy.close(at, now));
        self.ask_governor();
    }

    /// Changes a volume's settings from now on. The same settings again change nothing.
    ///
    /// # Errors
    /// [`ShareError`] says what to ask for instead; nothing was changed.
    pub fn set(&mut self, slot: Slot, share: &Share, now: Nanos) -> Result<(), ShareError> {
        self.admit(Some(slot), share)?;
        self.apply(slot.0 as usize, share, now);
        Ok(())
    }

    /// Whether the drive could keep what these settings promise, besides what it promised other volumes.
    ///
    /// # Errors
    /// [`ShareError`] says what to ask for instead.
    pub fn admit(&self, slot: Option<Slot>, share: &Share) -> Result<(), ShareError> {
        share.check().map_err(ShareError::Invalid)?;
        let others = self.volumes.iter().enumerate().filter(|(at, v)| v.open && slot != Some(Slot(*at as u32)));
        self.admit_beside(others.map(|(_, volume)| volume.share.reserve_iops).sum(), share)
    }

    /// As [`DriveShare::admit`], for a driver that knows what volumes without a place here have reserved.
    ///
    /// # Errors
    /// [`ShareError`] says what to ask for instead.
    pub fn admit_beside(&self, reserved_iops: u64, share: &Share) -> Result<(), ShareError> {
        share.check().map_err(ShareError::Invalid)?;
        if share.reserve_iops == 0 {
            return Ok(());
        }
        if self.capacity == 0 {
            return if self.policy == PolicyKind::Slo { Err(ShareError::Uncalibrated) } else { Ok(()) };
        }
        let capacity_iops = self.capacity * RESERVABLE_PERCENT / 100 / READ_4K;
        if reserved_iops.saturating_add(share.reserve_iops) > capacity_iops {
            return Err(ShareError::Admission { asked_iops: share.reserve_iops, reserved_iops, capacity_iops });
        }
        Ok(())
    }

    /// Changes a volume's settings that were admitted before, whatever the drive promised since.
    pub fn restore(&mut self, slot: Slot, share: &Share, now: Nanos) {
        self.apply(slot.0 as usize, share, now);
    }

    /// Settings that were admitted before, or are in force for want of a better answer.
    fn apply(&mut self, at: usize, share: &Share, now: Nanos) {
        let volume = &mut self.volumes[at];
        volume.share = *share;
        let burst_ns = share.burst_ms as Nanos * 1_000_000;
        volume.ops.set(share.limit_iops, burst_ns, now);
        volume.bytes.set(share.limit_bytes_per_s, burst_ns, now);
        volume.limited = share.limit_iops > 0 || share.limit_bytes_per_s > 0;
        self.policies.iter_mut().for_each(|policy| policy.set(at, share, now));
        self.ask_governor();
        if self.queues.len(at) > 0 {
            // Its head may be free now, or not any more.
            self.parked.remove(at);
            self.policy().gone(at);
            self.settle_head(at, now);
        }
    }

    fn ask_governor(&mut self) {
        let open = self.volumes.iter().filter(|volume| volume.open && volume.share.latency_target_us > 0);
        let target_us = open.map(|volume| volume.share.latency_target_us).min().unwrap_or(0);
        self.governor.ask(target_us as Nanos * 1000);
    }

    /// Shares by another policy from now on. What waits goes on waiting under the new one.
    pub fn set_policy(&mut self, kind: PolicyKind, now: Nanos) {
        if kind == self.policy {
            return;
        }
        for at in 0..self.volumes.len() {
            if self.queues.len(at) > 0 && !self.parked.has(at) {
                self.policies[self.policy as usize].gone(at);
                let head = self.queues.head(at).expect("it has a head");
                self.policies[kind as usize].ready(at, head, now);
            }
        }
        self.policy = kind;
    }

    /// What calibration found: costs, window and capacity.
    pub fn set_drive(&mut self, model: CostModel, governor: GovernorParams, capacity: u64) {
        self.model = model;
        self.capacity = capacity;
        self.governor.set(governor);
        self.policies.iter_mut().for_each(|policy| policy.set_capacity(capacity));
    }

    /// Makes room for more waiting requests. Allocates; for when [`DriveShare::enqueue`] found none.
    pub fn grow(&mut self, requests: usize) {
        self.queues.grow(requests);
    }

    /// Lets a request pass at once if nobody has to be asked: nobody waits or contends, no limit, room in the window.
    /// False: enqueue it.
    #[inline]
    pub fn direct(&mut self, slot: Slot, charge: &mut Charge, now: Nanos) -> bool {
        if self.last != slot.0 {
            self.contended_until = if self.last == u32::MAX { 0 } else { now + CONTENDED_NS };
            self.last = slot.0;
        }
        let volume = &self.volumes[slot.0 as usize];
        let room = self.outstanding == 0 || self.outstanding + charge.cost <= self.governor.window();
        if now < self.contended_until || volume.limited || self.queues.waiting() > 0 || !room {
            return false;
        }
        if !self.policy().direct(slot.0 as usize, charge, now) {
            return false;
        }
        self.count(slot.0 as usize, charge);
        true
    }

    /// Puts a request in its volume's queue. False when the table is full: grow it and try again.
    pub fn enqueue(&mut self, slot: Slot, key: u32, charge: Charge, now: Nanos) -> bool {
        let at = slot.0 as usize;
        let item = Item { key, charge, arrived: now, sequence: self.sequence };
        if !self.queues.push(at, item) {
            return false;
        }
        self.sequence += 1;
        if self.queues.len(at) == 1 {
            self.settle_head(at, now);
        }
        true
    }

    /// The head of a queue is new: it is ready, or parked until its limit lets it pass.
    fn settle_head(&mut self, at: usize, now: Nanos) {
        if self.must_park(at, now) {
            return;
        }
        let head = *self.queues.head(at).expect("it has a head");
        self.mark_head(at);
        self.policy().ready(at, &head, now);
        self.refresh(at);
    }

    fn mark_head(&mut self, at: usize) {
        let volume = &mut self.volumes[at];
        (volume.passes_at, volume.reserved_at) = (self.passes, self.reserved_passes);
    }

    fn must_park(&mut self, at: usize, now: Nanos) -> bool {
        let volume = &self.volumes[at];
        if !volume.limited || self.lifted {
            return false;
        }
        let ready_at = volume.ops.ready_at().max(volume.bytes.ready_at());
        if ready_at <= now {
            return false;
        }
        self.parked.set(at, ready_at);
        self.fresh.remove(at);
        true
    }

    /// The next request for the drive, if any may pass. `cpu_ns` is what is left of the core's turn; nothing passes
    /// when it is 0.
    pub fn next(&mut self, now: Nanos, cpu_ns: u64) -> Option<(Slot, Item)> {
        self.wake_at = u64::MAX;
        self.window_closed = false;
        if self.queues.waiting() == 0 || cpu_ns == 0 {
            return None;
        }
        while let Some((at, ready_at)) = self.parked.first() {
            if ready_at > now {
                self.wake_at = ready_at;
                break;
            }
            self.parked.remove(at);
            self.settle_head(at, now);
        }
        let at = match self.policy().pick(now) {
            Pick::Slot(at) => at,
            Pick::At(time) => {
                self.wake_at = self.wake_at.min(time);
                return None;
            }
            Pick::Nobody => return None,
        };
        if self.has_room(at) {
            return Some((Slot(at as u32), self.pass(at, false, now)));
        }
        self.window_closed = true;
        self.governor.held_back();
        let at = self.guest(at)?;
        Some((Slot(at as u32), self.pass(at, true, now)))
    }

    /// Whether the head of a queue fits into the window.
    fn has_room(&self, at: usize) -> bool {
        let Charge { kind, cost, .. } = self.queues.head(at).expect("a ready volume has a head").charge;
        let joins = kind == Kind::Flush && self.flushes > 0;
        joins || self.outstanding == 0 || self.outstanding + cost <= self.governor.window()
    }

    /// The window is full: who has nothing at the drive need not wait for those that keep it full. Guests together take
    /// a window more at most.
    fn guest(&mut self, picked: usize) -> Option<usize> {
        let at = if self.fresh.has(picked) { picked } else { self.fresh.first()?.0 };
        let cost = self.queues.head(at).expect("a ready volume has a head").charge.cost;
        let room = self.guests == 0 || self.guests + cost <= self.governor.window();
        (room && self.policy().pick_instead(at)).then_some(at)
    }

    /// Keeps the list of those who may be guests: ready, with nothing at the drive.
    fn refresh(&mut self, at: usize) {
        match self.queues.head(at) {
            Some(head) if self.volumes[at].in_flight == 0 && !self.parked.has(at) => {
                self.fresh.set(at, head.sequence);
            }
            _ => self.fresh.remove(at),
        }
    }

    fn pass(&mut self, at: usize, guest: bool, now: Nanos) -> Item {
        let reason = self.reason_of(at);
        let mut item = self.queues.pop(at).expect("it has a head");
        item.charge.guest = guest;
        self.passes += 1;
        let reserved = self.policy().was_reserved();
        self.reserved_passes += reserved as u64;
        let volume = &mut self.volumes[at];
        if now > item.arrived {
            volume.stats.waited += 1;
            volume.stats.waited_ns[reason as usize] += now - item.arrived;
        }
        volume.flush_debt = false;
        volume.ops.take(item.charge.ops as u64, now);
        volume.bytes.take(item.charge.bytes as u64, now);
        self.count(at, &mut item.charge);
        let more = self.queues.len(at) > 0;
        if more && !self.must_park(at, now) {
            self.mark_head(at);
            let head = *self.queues.head(at).expect("there are more");
            self.policy().passed(at, &item.charge, Some(&head), now);
        } else {
            self.policy().passed(at, &item.charge, None, now);
        }
        self.refresh(at);
        item
    }

    fn count(&mut self, at: usize, charge: &mut Charge) {
        // Flushes that run together are one to the drive.
        charge.held = if charge.kind == Kind::Flush && self.flushes > 0 { 0 } else { charge.cost };
        *if charge.guest { &mut self.guests } else { &mut self.outstanding } += charge.held;
        self.cost += charge.cost;
        self.flushes += (charge.kind == Kind::Flush) as u64;
        self.volumes[at].in_flight += 1;
        let stats = &mut self.volumes[at].stats;
        stats.ops += charge.ops as u64;
        stats.bytes += charge.bytes as u64;
        stats.cost += charge.cost;
    }

    /// A request that had passed ended, `latency_ns` after it was handed to the drive. `charge` is that of the item.
    ///
    /// # Panics
    /// When more ends than had passed.
    pub fn complete(&mut self, slot: Slot, charge: &Charge, latency_ns: Nanos, now: Nanos) {
        let held = if charge.guest { &mut self.guests } else { &mut self.outstanding };
        assert!(*held >= charge.held, "more ended than had passed");
        *held -= charge.held;
        self.volumes[slot.0 as usize].in_flight -= 1;
        if self.volumes[slot.0 as usize].in_flight == 0 && self.queues.waiting() > 0 {
            self.refresh(slot.0 as usize);
        }
        match charge.kind {
            Kind::Read | Kind::Write => {
                // A dearer request may take longer in proportion.
                let worth = latency_ns.saturating_mul(READ_4K) / charge.cost.max(READ_4K);
                self.governor.completed(worth, now);
            }
            Kind::Flush => self.charge_flush(slot.0 as usize, charge, latency_ns),
            Kind::Trim | Kind::Other => {}
        }
    }

    /// Flushes that ran together took the drive's time together.
    fn charge_flush(&mut self, at: usize, charge: &Charge, latency_ns: Nanos) {
        let together = self.flushes.max(1);
        self.flushes -= 1;
        let rate = if self.capacity == 0 { RATE_DEFAULT } else { self.capacity };
        let took = (latency_ns as u128 * rate as u128 / 1_000_000_000 / together as u128) as u64;
        let extra = took.saturating_sub(charge.cost);
        if extra > 0 && self.volumes[at].open {
            self.volumes[at].stats.cost += extra;
            self.volumes[at].flush_debt = true;
            self.cost += extra;
            self.policy().extra(at, extra);
        }
    }

    /// Takes what waits of a volume and is not to be kept out of its queue, and hands it back.
    pub fn cancel(&mut self, slot: Slot, mut keep: impl FnMut(u32) -> bool, now: Nanos, mut gone: impl FnMut(Item)) {
        let at = slot.0 as usize;
        let count = self.queues.len(at);
        if count == 0 {
            return;
        }
        self.parked.remove(at);
        self.fresh.remove(at);
        self.policy().gone(at);
        for _ in 0..count {
            let item = self.queues.pop(at).expect("so many wait");
            if keep(item.key) {
                assert!(self.queues.push(at, item), "there was room for it");
            } else {
                gone(item);
            }
        }
        if self.queues.len(at) > 0 {
            self.settle_head(at, now);
        }
    }

    /// From now on no limit holds: the drive is being closed and what waits is to be finished.
    pub fn lift_limits(&mut self) {
        self.lifted = true;
        for at in 0..self.volumes.len() {
            if self.parked.has(at) {
                self.parked.set(at, 0);
            }
        }
    }

    /// When to call `next` again though nothing ended or came. `None`: no need.
    pub fn wake_at(&self) -> Option<Nanos> {
        (self.wake_at != u64::MAX && self.queues.waiting() > 0).then_some(self.wake_at)
    }

    /// Requests that wait, of all volumes.
    pub fn waiting(&self) -> usize {
        self.queues.waiting()
    }

    /// Why the next request of a volume waits.
    pub fn reason(&self, slot: Slot) -> Reason {
        self.reason_of(slot.0 as usize)
    }

    fn reason_of(&self, at: usize) -> Reason {
        if self.queues.len(at) == 0 {
            return Reason::None;
        }
        let volume = &self.volumes[at];
        if self.parked.has(at) {
            let by_ops = volume.ops.limits() && volume.ops.ready_at() >= volume.bytes.ready_at();
            return if by_ops { Reason::LimitIops } else { Reason::LimitBytes };
        }
        let passes = self.passes - volume.passes_at;
        let reserved = self.reserved_passes - volume.reserved_at;
        match passes {
            _ if self.policy == PolicyKind::Strict => Reason::Slice,
            0 if self.window_closed => Reason::Governor,
            0 => Reason::Core,
            _ if volume.flush_debt => Reason::FlushCharge,
            _ if reserved * 2 > passes => Reason::Reservation,
            _ => Reason::Share,
        }
    }

    /// A volume's settings in force.
    pub fn settings(&self, slot: Slot) -> Share {
        self.volumes[slot.0 as usize].share
    }

    /// A volume's counters.
    pub fn volume_stats(&self, slot: Slot) -> VolumeStats {
        let at = slot.0 as usize;
        VolumeStats { queued: self.queues.len(at), reason: self.reason_of(at), ..self.volumes[at].stats }
    }

    /// The drive's state.
    pub fn stats(&self) -> DriveStats {
        let open = self.volumes.iter().filter(|volume| volume.open);
        DriveStats {
            policy: self.policy,
            outstanding: self.outstanding + self.guests,
            window: self.governor.window(),
            target_ns: self.governor.target_ns(),
            p95_ns: self.governor.last_p95_ns(),
            capacity: self.capacity,
            reserved: open.map(|volume| volume.share.reserve_iops.saturating_mul(READ_4K)).sum(),
            queued: self.queues.waiting() as u64,
            cost: self.cost,
        }
    }

    /// How many volumes have a place.
    pub fn volumes(&self) -> usize {
        self.volumes.iter().filter(|volume| volume.open).count()
    }

    /// True when two volumes used the drive a moment ago.
    pub fn contended(&self, now: Nanos) -> bool {
        now < self.contended_until
    }

    /// True when the last `next` found the window full.
    pub fn window_closed(&self) -> bool {
        self.window_closed
    }

    /// How requests are charged.
    pub fn model(&self) -> CostModel {
        self.model
    }

    /// How the drive is governed.
    pub fn governor(&self) -> GovernorParams {
        self.governor.params()
    }
}
