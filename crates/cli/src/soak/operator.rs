//! The operator of a soak: snapshots that come and go, checkpoints, scrubs, questions, all the time.
//!
//! Owns: which operation comes next. Never: repeats one that failed; that is what is judged.
//! Invariant: every operation's answer is counted.

use super::stage::Stage;
use segue_node::client::{AdminClient, ClientError};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Pause between operations.
const PAUSE: Duration = Duration::from_millis(20);

/// What all operations came to.
#[derive(Default, Serialize)]
pub struct Tally {
    pub operations: u64,
    pub failed: u64,
    /// What the first failures said.
    pub said: Vec<String>,
}

/// Operates the node until told that it is over.
pub fn run(stage: &Stage, over: &AtomicBool) -> Tally {
    // A client of its own: it lives on this thread.
    let client = AdminClient::new(stage.path("admin.sock"));
    let mut tally = Tally::default();
    let mut round = 0u64;
    while !over.load(Ordering::Relaxed) {
        let volume = format!("v{}", round % u64::from(stage.volumes()));
        let (copy, pool) = (format!("{volume}-s{round}"), ["p0", "p1"][round as usize % 2]);
        match round % 5 {
            0 | 3 => {
                note(&mut tally, "snapshot", client.snapshot(&volume, &copy));
                std::thread::sleep(PAUSE);
                note(&mut tally, "delete", client.delete_volume(&copy));
            }
            1 => note(&mut tally, "checkpoint", client.checkpoint(pool)),
            2 => note(&mut tally, "scrub", client.scrub_start(pool)),
            _ => note(&mut tally, "show", client.volume(&volume)),
        }
        round += 1;
        std::thread::sleep(PAUSE);
    }
    tally
}

fn note<T>(tally: &mut Tally, what: &str, answer: Result<T, ClientError>) {
    tally.operations += 1;
    if let Err(error) = answer {
        tally.failed += 1;
        if tally.said.len() < 10 {
            tally.said.push(format!("{what}: {error}"));
        }
    }
}
