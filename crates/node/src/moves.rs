//! The moves of volumes that this node knows of: those that run, those that are over, those that wait for a pool.
//!
//! Owns: their list. Never: copies anything; each runs on a thread of its own (`segue_runtime::MoveRun`).
//! Invariant: at most one move runs at a time, so that a node never spends two drives on housekeeping.

use segue_runtime::{FoundMove, MoveHandle, MoveRun, MoveStatus};
use segue_types::api::{MoveInfo, MoveOutcome, MovePhase};
use segue_types::{BLOCK_BYTES, MoveId};
use segue_volume::migrate::{Ending, Phase};
use std::sync::{Mutex, PoisonError};

/// Bytes per second of a move that nobody gave a rate: 100 MiB/s.
pub const MOVE_RATE_BYTES_PER_S: u64 = 100 << 20;
/// Moves that are over and still told of.
const KEPT_MAX: usize = 64;

/// A move that waits for a pool that is not open here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stuck {
    /// The move.
    pub id: MoveId,
    /// The volume.
    pub volume: String,
    /// The open pool that tells of it.
    pub pool: String,
    /// The volume is closed for that.
    pub closed: bool,
}

/// What is known of a volume's move.
#[derive(Clone)]
pub enum Known {
    /// It runs, or is over.
    Run(MoveHandle),
    /// It waits.
    Stuck(Stuck),
}

/// All moves, the latest last.
#[derive(Default)]
pub struct Moves {
    all: Mutex<Vec<Known>>,
}

impl Moves {
    /// Goes on with what was interrupted.
    pub fn resume(found: Vec<FoundMove>) -> Moves {
        let known = found.into_iter().map(|found| match found {
            FoundMove::Ready(run) => Known::Run(run.spawn()),
            FoundMove::Stuck { id, volume, pool, closed } => Known::Stuck(Stuck { id, volume, pool, closed }),
        });
        Moves { all: Mutex::new(known.collect()) }
    }

    /// Starts a move, unless another one runs: then its volume's name.
    ///
    /// # Errors
    /// The name of the volume that moves: wait for it, or abort it.
    pub fn begin(&self, run: MoveRun) -> Result<MoveHandle, String> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        for known in all.iter() {
            if let Known::Run(handle) = known
                && handle.status().ended.is_none()
            {
                return Err(handle.status().plan.name);
            }
        }
        let over = all.iter().filter(|known| matches!(known, Known::Run(_))).count();
        if over >= KEPT_MAX
            && let Some(oldest) = all.iter().position(|known| matches!(known, Known::Run(_)))
        {
            all.remove(oldest);
        }
        let handle = run.spawn();
        all.push(Known::Run(handle.clone()));
        Ok(handle)
    }

    /// The latest move of a volume.
    pub fn of(&self, volume: &str) -> Option<Known> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let is = |known: &&Known| match known {
            Known::Run(handle) => handle.status().plan.name == volume,
            Known::Stuck(stuck) => stuck.volume == volume,
        };
        all.iter().rev().find(is).cloned()
    }

    /// A stuck move was given up.
    pub fn forget(&self, id: MoveId) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| !matches!(known, Known::Stuck(stuck) if stuck.id == id));
    }

    /// All of them.
    pub fn all(&self) -> Vec<MoveInfo> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).iter().map(Known::info).collect()
    }
}

impl Known {
    /// As the API tells it.
    pub fn info(&self) -> MoveInfo {
        match self {
            Known::Run(handle) => info(&handle.status()),
            Known::Stuck(stuck) => MoveInfo {
                id: stuck.id.to_string(),
                volume: stuck.volume.clone(),
                from: stuck.pool.clone(),
                to: String::new(),
                phase: MovePhase::Stuck,
                round: 0,
                round_bytes_done: 0,
                round_bytes: 0,
                copied_bytes: 0,
                rate_bytes_per_s: 0,
                bytes_per_s: 0,
                eta_ms: None,
                stall_ns: None,
                connections: 0,
                outcome: None,
                reason: Some("the other pool of the move is not open on this node".to_owned()),
            },
        }
    }
}

fn info(status: &MoveStatus) -> MoveInfo {
    let p = status.progress;
    let left = p.round_blocks.saturating_sub(p.round_blocks_done) * BLOCK_BYTES;
    let copies = status.ended.is_none() && p.phase == Phase::Copying;
    let (outcome, reason) = match &status.ended {
        None => (None, None),
        Some(Ending::Moved) => (Some(MoveOutcome::Moved), None),
        Some(Ending::Cancelled) => (Some(MoveOutcome::Cancelled), None),
        Some(Ending::Failed(error)) => (Some(MoveOutcome::Failed), Some(error.to_string())),
        Some(Ending::Stopped(error)) => (Some(MoveOutcome::Stopped), Some(error.to_string())),
        Some(Ending::InDoubt) => {
            let reason = "the records of the two pools contradict each other; look at both drives".to_owned();
            (Some(MoveOutcome::Stopped), Some(reason))
        }
    };
    MoveInfo {
        id: status.plan.id.to_string(),
        volume: status.plan.name.clone(),
        from: status.from.clone(),
        to: status.to.clone(),
        phase: phase(p.phase, status.ended.is_some()),
        round: p.round,
        round_bytes_done: p.round_blocks_done * BLOCK_BYTES,
        round_bytes: p.round_blocks * BLOCK_BYTES,
        copied_bytes: p.copied_bytes,
        rate_bytes_per_s: p.rate_bytes_per_s,
        bytes_per_s: status.bytes_per_s,
        eta_ms: (left * 1000).checked_div(status.bytes_per_s).filter(|_| copies),
        stall_ns: status.stall_ns,
        connections: status.connections as u64,
        outcome,
        reason,
    }
}

fn phase(phase: Phase, over: bool) -> MovePhase {
    match phase {
        _ if over => MovePhase::Over,
        Phase::Preparing => MovePhase::Preparing,
        Phase::Copying => MovePhase::Copying,
        Phase::HandingOver => MovePhase::HandingOver,
        Phase::Settling => MovePhase::Settling,
        Phase::GivingUp => MovePhase::GivingUp,
        Phase::Over => MovePhase::Over,
    }
}
