//! Things a person must look at: a bounded memory of alarms.
//!
//! Owns: the ring of events and their words. Never: grows; the oldest go first.
//! Invariant: each alarm of an engine is kept once (the runtime logs it, once).

use segue_runtime::{PoolAlarm, PoolRecovery};
use segue_types::RecoveryLevel;
use segue_types::api::IntegrityEvent;
use segue_volume::op::AlarmKind;
use std::collections::VecDeque;
use std::sync::Mutex;

/// Events kept.
pub const KEPT_MAX: usize = 1024;

/// The ring. Alarms are rare, so a lock is fine.
#[derive(Default)]
pub struct Events {
    ring: Mutex<VecDeque<IntegrityEvent>>,
}

impl Events {
    /// Keeps an alarm of the pool on `drive`.
    pub fn keep(&self, drive: &str, raised: &PoolAlarm) {
        let alarm = &raised.alarm;
        let (what, owner) = describe(&alarm.kind);
        let event = IntegrityEvent {
            unix_ms: raised.at_unix_ms,
            drive: drive.to_owned(),
            what,
            offset_bytes: alarm.offset,
            owner: format!("pool {} {owner}", raised.pool),
            expected_crc32c: alarm.expected_crc32c,
            found_crc32c: alarm.found_crc32c,
            generation: alarm.generation,
        };
        self.push(event);
    }

    /// Keeps what was recovered from since the last time somebody looked.
    pub fn keep_recovery(&self, drive: &str, recovery: &PoolRecovery) {
        let PoolRecovery { pool, task, level, count, took_ns_max, said, at_unix_ms } = recovery;
        let ms = *took_ns_max as f64 / 1e6;
        let owner = if pool.is_empty() { "a connection".to_owned() } else { format!("pool {pool}") };
        let what = match level {
            RecoveryLevel::Pool => format!(
                "the pool is out of service after a panic in a {task} task; restart the node to open it again: {said}"
            ),
            _ => format!(
                "recovered {count} times from panics in {task} tasks (level {}, at most {ms:.3} ms); the first: {said}",
                level.name()
            ),
        };
        self.push(IntegrityEvent {
            unix_ms: *at_unix_ms,
            drive: drive.to_owned(),
            what,
            offset_bytes: 0,
            owner,
            expected_crc32c: 0,
            found_crc32c: 0,
            generation: 0,
        });
    }

    fn push(&self, event: IntegrityEvent) {
        let mut ring = self.ring.lock().expect("the ring is only pushed to and copied");
        if ring.len() == KEPT_MAX {
            ring.pop_front();
        }
        ring.push_back(event);
    }

    /// All that is kept, oldest first.
    pub fn all(&self) -> Vec<IntegrityEvent> {
        self.ring.lock().expect("the ring is only pushed to and copied").iter().cloned().collect()
    }
}

fn describe(kind: &AlarmKind) -> (String, String) {
    match kind {
        AlarmKind::Data { layer, block } => {
            ("a block of data does not match its checksum".into(), format!("layer {layer} block {block}"))
        }
        AlarmKind::Map { layer, level, index } => {
            ("a page of a map does not match its checksum".into(), format!("layer {layer} level {level} page {index}"))
        }
        AlarmKind::Drive { errno } => (format!("a drive I/O failed with errno {errno}"), "drive".into()),
        AlarmKind::Poisoned { errno } => (
            format!("the pool refuses changes after a drive error (errno {errno}); fix the drive and restart the node"),
            "as a whole".into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use segue_types::LayerId;
    use segue_volume::op::Alarm;

    #[test]
    fn the_ring_keeps_the_newest() {
        let events = Events::default();
        for block in 0..KEPT_MAX as u64 + 3 {
            let kind = AlarmKind::Data { layer: LayerId(7), block };
            let alarm = Alarm { kind, offset: block, expected_crc32c: 1, found_crc32c: 2, generation: 3 };
            events.keep("d", &PoolAlarm { pool: "p".into(), at_unix_ms: 5, alarm });
        }
        let all = events.all();
        assert_eq!((all.len(), all[0].offset_bytes), (KEPT_MAX, 3));
        assert_eq!(all[0].owner, "pool p layer l7 block 3");
    }
}
