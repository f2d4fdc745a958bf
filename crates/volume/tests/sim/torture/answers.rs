//! The judgement of answered requests.
//!
//! Owns: which statuses and bytes are allowed. Never: submits anything.
//! Invariant: whatever is not allowed by the model ends the run.

use super::{Att, Fence, Flying, Torture};
use crate::sim::Done;
use crate::sim::content::{SECTOR, SECTORS};
use crate::sim::model::Low;
use segue_types::{BLOCK_BYTES, IoStatus};
use segue_volume::op::{Alarm, AlarmKind, Op};

impl Torture {
    // Answers.

    /// Judges everything that was answered.
    pub(super) fn collect(&mut self) {
        for done in std::mem::take(&mut self.sim.done) {
            self.answered(&done);
        }
        for (tag, result) in std::mem::take(&mut self.sim.admin_done) {
            let (asked, intent) = self.intent.take().expect("an admin operation was in flight");
            assert_eq!(asked, tag);
            self.admin_answered(intent, result);
        }
        let failing = self.plan.fail.1 > 0;
        let of_drive = |a: &Alarm| matches!(a.kind, AlarmKind::Drive { .. } | AlarmKind::Poisoned { .. });
        let wrong = self.sim.alarms.iter().find(|a| !(failing && of_drive(a)));
        assert!(wrong.is_none(), "alarms that nothing explains: {:?}", self.sim.alarms);
    }

    pub(super) fn answered(&mut self, done: &Done) {
        let fly = self.flying.remove(&done.tag.0).expect("it was in flight");
        let att = self.atts[fly.att].clone();
        self.atts[fly.att].flying -= 1;
        let changes = matches!(fly.what, Flying::Change { .. });
        let expected = match done.status {
            IoStatus::Ok => !(fly.after_fence || changes && att.read_only),
            IoStatus::Fenced => att.fence != Fence::No,
            IoStatus::ReadOnly => changes && att.read_only,
            IoStatus::NoSpace => changes && self.plan.tight,
            IoStatus::Io => self.plan.fail.1 > 0,
            IoStatus::Invalid | IoStatus::NotSupported => false,
        };
        let name = &self.vols[att.volume].name;
        assert!(
            expected,
            "{name}: {:?} was answered {:?} on {att:?} (after fence: {})",
            done.op, done.status, fly.after_fence
        );
        let ok = done.status.is_ok();
        if ok && let Some(race) = fly.observes {
            assert!(self.races[race].may, "an observing request in a race that ended: {:?}", done.op);
            self.races[race].must = true;
        }
        match fly.what {
            Flying::Change { cells, fua, promises } => {
                let kind = match done.op {
                    Op::Write { .. } => "write",
                    Op::Discard { .. } => "discard",
                    _ => "zeroes",
                };
                self.count(if ok { kind } else { "change refused" });
                if done.status == IoStatus::NoSpace {
                    self.count("no space");
                }
                for (block, state) in cells {
                    match ok && promises {
                        true => self.branches[att.branch].acknowledge(block, state, fua),
                        false => self.branches[att.branch].give_up(block),
                    }
                }
            }
            Flying::Flush { list } if ok => {
                self.count("flush");
                if !att.read_only {
                    self.branches[att.branch].flushed(&list);
                }
            }
            Flying::Read { first_sector, lows } if ok => self.saw(&att, first_sector, &lows, &done.data),
            Flying::Status { offset, len, lows } if ok => self.saw_status(&att, offset, len, &lows, done),
            Flying::Flush { .. } | Flying::Read { .. } | Flying::Status { .. } => self.count("look refused"),
        }
    }

    pub(super) fn saw(&mut self, att: &Att, first_sector: u64, lows: &[Low], data: &[u8]) {
        self.count("read");
        let (mut at, mut rest) = (first_sector, data);
        for low in lows {
            let (block, sector) = (at / SECTORS as u64, (at % SECTORS as u64) as usize);
            let n = (SECTORS - sector).min(rest.len() / SECTOR);
            let (head, tail) = rest.split_at(n * SECTOR);
            if let Err(why) = self.branches[att.branch].saw(block, sector, head, *low) {
                panic!("{} ({att:?}, boot {}): {why}", self.vols[att.volume].name, self.boots);
            }
            rest = tail;
            at += n as u64;
        }
    }

    pub(super) fn saw_status(&mut self, att: &Att, offset: u64, len: u64, lows: &[(u64, Low)], done: &Done) {
        self.count("block status");
        assert!(!done.extents.is_empty(), "a block status of {len} bytes tells nothing");
        let mut at = offset;
        for extent in &done.extents {
            assert!(extent.len > 0 && extent.len.is_multiple_of(SECTOR as u64), "{extent:?}");
            let range = at / BLOCK_BYTES..(at + extent.len).div_ceil(BLOCK_BYTES);
            for (block, low) in lows.iter().filter(|(b, _)| extent.hole && range.contains(b)) {
                let zero = self.branches[att.branch].may_be_zero(*block, *low);
                assert!(zero, "block {block} of {} is told to be a hole and holds data", self.vols[att.volume].name);
            }
            at += extent.len;
        }
        assert!(at <= offset + len, "a block status past its range");
    }
}
