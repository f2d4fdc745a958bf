//! What the monitor keeps in the volume's record, so that another monitor can go on where it stopped.
//!
//! Owns: the note's text form, at most 1 KiB. Never: decides anything.
//! Invariant: a note prints to text that parses to the same note; unknown text is refused, never guessed at.

use segue_types::{LeaseId, SuperId};
use std::fmt;
use std::str::FromStr;

/// Most volumes of one application: their leases must fit the note.
pub const VOLUMES_MAX: usize = 8;
/// Longest note, bytes.
pub const NOTE_BYTES_MAX: usize = 1024;

/// One of the two places an instance can run in: its own mounts, port and log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Slot {
    /// The first.
    A,
    /// The second.
    B,
}

impl Slot {
    /// The other one.
    pub const fn other(self) -> Slot {
        match self {
            Slot::A => Slot::B,
            Slot::B => Slot::A,
        }
    }

    /// 0 or 1.
    pub const fn index(self) -> usize {
        match self {
            Slot::A => 0,
            Slot::B => 1,
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Slot::A { "a" } else { "b" })
    }
}

/// A place and the leases to attach with there, one per volume in the application's order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seat {
    /// Where.
    pub slot: Slot,
    /// With which rights.
    pub leases: Vec<LeaseId>,
}

/// How far things were.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Stage {
    /// Nothing was ever started.
    #[default]
    New,
    /// The seat serves, or is being started to serve; nobody else has the right to.
    Serving(Seat),
    /// The seat has the right to serve, and a child recovers in the other slot.
    Racing { seat: Seat, super_id: SuperId, child: Vec<LeaseId> },
    /// Every lease is being broken; whoever serves next does so in `slot`.
    Fencing { slot: Slot },
}

/// What speculation has cost since the note was begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Costs {
    /// Backups started.
    pub backups_started: u64,
    /// Milliseconds of CPU that backups used which then did not serve.
    pub wasted_cpu_ms: u64,
    /// Times a child was promoted.
    pub promotions: u64,
    /// Times a child was dropped.
    pub drops: u64,
    /// Times the primary was fenced first.
    pub fences: u64,
}

/// The whole note.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Note {
    /// How far things were.
    pub stage: Stage,
    /// What it cost.
    pub costs: Costs,
}

/// The text is not a note of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the volume's note is not one of this monitor; if nothing else uses it, clear it with an empty note")]
pub struct ParseNoteError;

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failover1 ")?;
        match &self.stage {
            Stage::New => f.write_str("new")?,
            Stage::Serving(seat) => write!(f, "serving {} {}", seat.slot, Leases(&seat.leases))?,
            Stage::Racing { seat, super_id, child } => {
                write!(f, "racing {} {} {} {}", seat.slot, Leases(&seat.leases), super_id.0, Leases(child))?;
            }
            Stage::Fencing { slot } => write!(f, "fencing {slot}")?,
        }
        let c = &self.costs;
        write!(f, " ; {} {} {} {} {}", c.backups_started, c.wasted_cpu_ms, c.promotions, c.drops, c.fences)
    }
}

struct Leases<'a>(&'a [LeaseId]);

impl fmt::Display for Leases<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, lease) in self.0.iter().enumerate() {
            write!(f, "{}{lease}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl FromStr for Note {
    type Err = ParseNoteError;

    /// Reads a note; empty text is a new one.
    fn from_str(text: &str) -> Result<Note, ParseNoteError> {
        if text.is_empty() {
            return Ok(Note::default());
        }
        let rest = text.strip_prefix("failover1 ").ok_or(ParseNoteError)?;
        let (stage, costs) = rest.split_once(" ; ").ok_or(ParseNoteError)?;
        Ok(Note { stage: parse_stage(stage)?, costs: parse_costs(costs)? })
    }
}

fn parse_stage(text: &str) -> Result<Stage, ParseNoteError> {
    let words: Vec<&str> = text.split(' ').collect();
    match words[..] {
        ["new"] => Ok(Stage::New),
        ["serving", slot, leases] => Ok(Stage::Serving(parse_seat(slot, leases)?)),
        ["racing", slot, leases, super_id, child] => Ok(Stage::Racing {
            seat: parse_seat(slot, leases)?,
            super_id: SuperId(super_id.parse().map_err(|_| ParseNoteError)?),
            child: parse_leases(child)?,
        }),
        ["fencing", slot] => Ok(Stage::Fencing { slot: parse_slot(slot)? }),
        _ => Err(ParseNoteError),
    }
}

fn parse_costs(text: &str) -> Result<Costs, ParseNoteError> {
    let numbers: Result<Vec<u64>, _> = text.split(' ').map(str::parse).collect();
    match numbers.map_err(|_| ParseNoteError)?[..] {
        [backups_started, wasted_cpu_ms, promotions, drops, fences] => {
            Ok(Costs { backups_started, wasted_cpu_ms, promotions, drops, fences })
        }
        _ => Err(ParseNoteError),
    }
}

fn parse_seat(slot: &str, leases: &str) -> Result<Seat, ParseNoteError> {
    Ok(Seat { slot: parse_slot(slot)?, leases: parse_leases(leases)? })
}

fn parse_slot(text: &str) -> Result<Slot, ParseNoteError> {
    match text {
        "a" => Ok(Slot::A),
        "b" => Ok(Slot::B),
        _ => Err(ParseNoteError),
    }
}

fn parse_leases(text: &str) -> Result<Vec<LeaseId>, ParseNoteError> {
    let leases: Result<Vec<LeaseId>, _> = text.split(',').map(str::parse).collect();
    let leases = leases.map_err(|_| ParseNoteError)?;
    if leases.len() > VOLUMES_MAX { Err(ParseNoteError) } else { Ok(leases) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn leases() -> impl Strategy<Value = Vec<LeaseId>> {
        proptest::collection::vec(any::<u128>().prop_map(LeaseId), 1..=VOLUMES_MAX)
    }

    fn slot() -> impl Strategy<Value = Slot> {
        prop_oneof![Just(Slot::A), Just(Slot::B)]
    }

    fn seat() -> impl Strategy<Value = Seat> {
        (slot(), leases()).prop_map(|(slot, leases)| Seat { slot, leases })
    }

    fn stage() -> impl Strategy<Value = Stage> {
        prop_oneof![
            Just(Stage::New),
            seat().prop_map(Stage::Serving),
            (seat(), any::<u64>(), leases()).prop_map(|(seat, id, child)| Stage::Racing {
                seat,
                super_id: SuperId(id),
                child
            }),
            slot().prop_map(|slot| Stage::Fencing { slot }),
        ]
    }

    proptest! {
        #[test]
        fn model_note_round_trips_within_its_bound(stage in stage(), n in any::<[u64; 5]>()) {
            let costs = Costs { backups_started: n[0], wasted_cpu_ms: n[1], promotions: n[2], drops: n[3], fences: n[4] };
            let note = Note { stage, costs };
            let text = note.to_string();
            prop_assert!(text.len() <= NOTE_BYTES_MAX, "{} bytes", text.len());
            prop_assert_eq!(text.parse::<Note>(), Ok(note));
        }

        #[test]
        fn fuzz_any_text_is_refused_or_read(text in "(failover1 )?[a-z0-9 ,;]{0,80}") {
            if let Ok(note) = text.parse::<Note>() {
                prop_assert!(note.to_string().parse::<Note>() == Ok(note));
            }
        }
    }

    #[test]
    fn golden_note_of_version_1() {
        let seat = Seat { slot: Slot::B, leases: vec![LeaseId(1)] };
        let note = Note { stage: Stage::Serving(seat), costs: Costs { backups_started: 3, ..Costs::default() } };
        assert_eq!(note.to_string(), "failover1 serving b 00000000000000000000000000000001 ; 3 0 0 0 0");
        assert_eq!("".parse::<Note>(), Ok(Note::default()));
        assert_eq!("hello".parse::<Note>(), Err(ParseNoteError));
    }
}
