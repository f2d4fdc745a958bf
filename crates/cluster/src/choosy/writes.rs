//! The writes of one initiator that are under way.
//!
//! Owns: their copies, in bounded memory. Never: negotiates.
//! Invariant: a target holds at most one copy of a write, and one that failed it is not used for it again.

use super::initiator::WriteError;
use super::messages::{NodeId, WriteId};
use super::policy::{CANDIDATES_MAX, COPIES_MAX};
use segue_types::Nanos;

#[derive(Clone, Copy)]
struct Place {
    target: NodeId,
    due_ns: Nanos,
    /// Of its booking.
    round: u32,
    stored: bool,
}

/// A write.
pub struct Write {
    pub id: WriteId,
    pub bytes: u64,
    pub salt: u64,
    candidates: [NodeId; CANDIDATES_MAX],
    candidates_n: usize,
    /// Candidates that hold a copy or failed, by their place in the list.
    used: u64,
    places: [Place; COPIES_MAX],
    places_n: usize,
    /// Its driver knows that it is done; copies over the quorum may follow.
    pub told: bool,
    /// Rounds in a row that placed nothing.
    pub fruitless: u32,
    /// No round of it begins before this, nanoseconds.
    retry_ns: Nanos,
}

impl Write {
    pub fn new(id: WriteId, bytes: u64, candidates: &[NodeId], salt: u64, copies: usize) -> Result<Write, WriteError> {
        let repeated = |(n, c): (usize, &NodeId)| candidates[..n].contains(c);
        if candidates.len() < copies || candidates.len() > CANDIDATES_MAX || candidates.iter().enumerate().any(repeated)
        {
            return Err(WriteError::Candidates);
        }
        let mut all = [0; CANDIDATES_MAX];
        all[..candidates.len()].copy_from_slice(candidates);
        let none = Place { target: 0, due_ns: 0, round: 0, stored: false };
        let candidates_n = candidates.len();
        let places = [none; COPIES_MAX];
        Ok(Write {
            id,
            bytes,
            salt,
            candidates: all,
            candidates_n,
            used: 0,
            places,
            places_n: 0,
            told: false,
            fruitless: 0,
            retry_ns: 0,
        })
    }

    /// Copies that are sent or stored.
    pub const fn placed(&self) -> usize {
        self.places_n
    }

    /// Candidates without a copy that have not failed.
    pub fn usable(&self, keep: impl Fn(NodeId) -> bool) -> impl Iterator<Item = NodeId> {
        let all = self.candidates[..self.candidates_n].iter().enumerate();
        all.filter(move |(n, c)| self.used >> n & 1 == 0 && keep(**c)).map(|(_, c)| *c)
    }

    fn place_of(&self, target: NodeId) -> Option<usize> {
        self.places[..self.places_n].iter().position(|p| p.target == target)
    }
}

/// The writes under way, oldest first.
pub struct Writes {
    slots: Vec<Option<Write>>,
    /// Slots in order of arrival.
    order: Vec<u16>,
}

impl Writes {
    pub fn new(max: usize) -> Writes {
        let mut slots = Vec::with_capacity(max);
        slots.resize_with(max, || None);
        Writes { slots, order: Vec::with_capacity(max) }
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn add(&mut self, write: Write) -> Result<(), WriteError> {
        let slot = self.slots.iter().position(Option::is_none).ok_or(WriteError::Busy)?;
        self.slots[slot] = Some(write);
        self.order.push(slot as u16);
        Ok(())
    }

    pub fn remove(&mut self, slot: usize) {
        self.slots[slot] = None;
        self.order.retain(|s| usize::from(*s) != slot);
    }

    pub fn get(&self, slot: usize) -> &Write {
        self.slots[slot].as_ref().expect("a slot in use")
    }

    fn get_mut(&mut self, slot: usize) -> &mut Write {
        self.slots[slot].as_mut().expect("a slot in use")
    }

    fn find(&self, id: WriteId) -> Option<usize> {
        let is = |slot: &&u16| self.get(usize::from(**slot)).id == id;
        self.order.iter().find(is).map(|slot| usize::from(*slot))
    }

    fn open(&self, copies: usize) -> impl Iterator<Item = (usize, Nanos)> {
        let all = self.order.iter().map(|slot| (usize::from(*slot), self.get(usize::from(*slot))));
        all.filter(move |(_, w)| w.places_n < copies).map(|(slot, w)| (slot, w.retry_ns))
    }

    /// The oldest write that lacks copies and need not wait.
    pub fn next_open(&self, now: Nanos, copies: usize) -> Option<usize> {
        self.open(copies).find(|(_, retry_ns)| *retry_ns <= now).map(|(slot, _)| slot)
    }

    /// When the first of the writes that lack copies may be tried again, nanoseconds.
    pub fn first_retry_ns(&self, copies: usize) -> Option<Nanos> {
        self.open(copies).map(|(_, retry_ns)| retry_ns).min()
    }

    /// Whether a copy that was booked in this round is on its way to a target.
    pub fn is_sent(&self, target: NodeId, round: u32) -> bool {
        let mut writes = self.order.iter().map(|slot| self.get(usize::from(*slot)));
        let this = |p: &Place| p.target == target && p.round == round && !p.stored;
        writes.any(|w| w.places[..w.places_n].iter().any(this))
    }

    /// A copy is on its way; gives the write's name and size.
    pub fn place(&mut self, slot: usize, target: NodeId, round: u32, due_ns: Nanos) -> (WriteId, u64) {
        let write = self.get_mut(slot);
        let at = write.candidates[..write.candidates_n].iter().position(|c| *c == target);
        write.used |= 1 << at.expect("only candidates are asked");
        write.places[write.places_n] = Place { target, due_ns, round, stored: false };
        write.places_n += 1;
        (write.id, write.bytes)
    }

    /// A round of a write ended. One that placed nothing is followed by another not before `retry_ns`.
    pub fn end_round(&mut self, slot: usize, placed: bool, retry_ns: Nanos) {
        let write = self.get_mut(slot);
        (write.fruitless, write.retry_ns) = if placed { (0, 0) } else { (write.fruitless + 1, retry_ns) };
    }

    /// A copy did not make it: its place is open again, its target is not used for this write any more.
    pub fn unplace(&mut self, id: WriteId, target: NodeId) -> Option<usize> {
        let slot = self.find(id)?;
        let write = self.get_mut(slot);
        let at = write.place_of(target).filter(|at| !write.places[*at].stored)?;
        write.places_n -= 1;
        write.places[at] = write.places[write.places_n];
        Some(slot)
    }

    /// A copy is stored; `true` when the write is done by it.
    pub fn stored(&mut self, id: WriteId, target: NodeId, quorum: usize, copies: usize) -> bool {
        let Some(slot) = self.find(id) else { return false };
        let write = self.get_mut(slot);
        let Some(at) = write.place_of(target) else { return false };
        write.places[at].stored = true;
        let stored = write.places[..write.places_n].iter().filter(|p| p.stored).count();
        let done = stored >= quorum && !write.told;
        write.told |= done;
        if stored == copies {
            self.remove(slot);
        }
        done
    }

    fn waiting(&self) -> impl Iterator<Item = (Nanos, WriteId, NodeId)> {
        let writes = self.order.iter().map(|slot| self.get(usize::from(*slot)));
        writes.flat_map(|w| w.places[..w.places_n].iter().filter(|p| !p.stored).map(|p| (p.due_ns, w.id, p.target)))
    }

    /// A copy that should have been stored long ago.
    pub fn overdue(&self, now: Nanos) -> Option<(WriteId, NodeId)> {
        self.waiting().find(|(due_ns, _, _)| *due_ns <= now).map(|(_, id, target)| (id, target))
    }

    /// When the next copy is overdue, nanoseconds.
    pub fn first_due_ns(&self) -> Option<Nanos> {
        self.waiting().map(|(due_ns, _, _)| due_ns).min()
    }
}
