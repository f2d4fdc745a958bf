//! Things a person must look at: a bounded memory of alarms.
//!
//! Owns: the ring of events and their log lines. Never: grows; the oldest go first.
//! Invariant: each alarm of an engine is logged once and kept once.

use segue_types::api::IntegrityEvent;
use segue_volume::op::{Alarm, AlarmKind};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

/// Events kept.
pub const KEPT_MAX: usize = 1024;

/// The ring. Shared by all cores; alarms are rare, so a lock is fine.
#[derive(Default)]
pub struct Events {
    ring: Mutex<VecDeque<IntegrityEvent>>,
}

/// Milliseconds of Unix time.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

impl Events {
    /// Logs and keeps an alarm of the pool on `drive`.
    pub fn alarm(&self, drive: &str, alarm: &Alarm) {
        let (what, owner) = describe(&alarm.kind);
        tracing::error!(
            drive, owner, offset_bytes = alarm.offset, generation = alarm.generation,
            expected_crc32c = %format_args!("{:08x}", alarm.expected_crc32c),
            found_crc32c = %format_args!("{:08x}", alarm.found_crc32c),
            "{what}",
        );
        let event = IntegrityEvent {
            unix_ms: unix_ms(),
            drive: drive.to_owned(),
            what,
            offset_bytes: alarm.offset,
            owner,
            expected_crc32c: alarm.expected_crc32c,
            found_crc32c: alarm.found_crc32c,
            generation: alarm.generation,
        };
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
            ("a block of data does not match its checksum".into(), format!("{layer} block {block}"))
        }
        AlarmKind::Map { layer, level, index } => {
            ("a page of a map does not match its checksum".into(), format!("{layer} level {level} page {index}"))
        }
        AlarmKind::Drive { errno } => (format!("a drive I/O failed with errno {errno}"), "drive".into()),
        AlarmKind::Poisoned { errno } => (
            format!("the pool refuses changes after a drive error (errno {errno}); fix the drive and restart the node"),
            "pool".into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use segue_types::LayerId;

    #[test]
    fn the_ring_keeps_the_newest() {
        let events = Events::default();
        for block in 0..KEPT_MAX as u64 + 3 {
            let kind = AlarmKind::Data { layer: LayerId(7), block };
            events.alarm("d", &Alarm { kind, offset: block, expected_crc32c: 1, found_crc32c: 2, generation: 3 });
        }
        let all = events.all();
        assert_eq!((all.len(), all[0].offset_bytes), (KEPT_MAX, 3));
        assert_eq!(all[0].owner, "l7 block 3");
    }
}
