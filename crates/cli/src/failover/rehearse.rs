//! A rehearsal: recover on a child, verify, measure, abort. The primary is never disturbed.
//!
//! Owns: one superposition for its duration and the rehearsal's slot. Never: collapses.
//! Invariant: whatever happens, the child is dropped and the slot is empty before the rehearsal returns.

use super::app::App;
use super::clock::now_ns;
use super::monitor;
use super::node::Node;
use super::place::{Down, Place};
use super::timeline::{Entry, Timeline};
use crate::exit::{ExitCode, fail};
use nix::fcntl::{Flock, FlockArg};
use segue_failover::note::{Note, Stage};
use segue_types::api::SuperPhase;
use segue_types::{LeaseId, SuperId};
use serde::Serialize;
use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a rehearsal found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The application.
    pub app: String,
    /// The instance became ready on the child.
    pub recovered: bool,
    /// Why not, if not.
    pub error: Option<String>,
    /// `super`, ms.
    pub super_ms: f64,
    /// From the answer of `super` until the instance served queries (attach, mount, start, recover), ms.
    pub recovery_ms: f64,
    /// What `instance.verify` said; missing without one.
    pub verified: Option<bool>,
    /// How long it took, ms.
    pub verify_ms: f64,
    /// The primary wrote meanwhile, so a real race would have kept it: it was alive and busy.
    pub primary_observed: bool,
    /// CPU time of the rehearsed instance, ms.
    pub cpu_ms: u64,
    /// Output of the instance and of `instance.verify`.
    pub log: std::path::PathBuf,
    /// The steps.
    pub timeline: Vec<Entry>,
}

impl Report {
    /// True when the application would come back, and whole.
    pub fn good(&self) -> bool {
        self.recovered && self.verified != Some(false)
    }
}

/// Rehearses a failover of the application; `verify` runs `instance.verify` too.
///
/// # Errors
/// Another rehearsal runs (exit code 5), a race is under way (7), the node does not answer (11). An instance that does not
/// recover is no error: the report says so.
pub fn rehearse(app: App, verify: bool, timeline: Timeline) -> anyhow::Result<Report> {
    rehearse_until(app, verify, timeline, &AtomicBool::new(false))
}

/// As [`rehearse`], but gives up soon once `over` is true.
///
/// # Errors
/// As [`rehearse`].
pub fn rehearse_until(app: App, verify: bool, timeline: Timeline, over: &AtomicBool) -> anyhow::Result<Report> {
    let app = Arc::new(app);
    DirBuilder::new().recursive(true).mode(0o711).create(&app.run_dir)?;
    let path = app.run_dir.join("rehearse.lock");
    let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    let _lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
        .map_err(|_| fail(ExitCode::Busy, format!("another rehearsal of {} runs", app.name)))?;
    let node = Node::new(&app).with_holder(format!("rehearsal of {}", app.name));
    abort_remains(&app, &node)?;
    let place = Place::new(&app, 2, &timeline)?;
    place.stop(Down::Cut);
    let began = now_ns();
    let (super_id, leases) = node.superpose()?;
    let mut report = Report { app: app.name.clone(), super_ms: ms_since(began), ..Report::default() };
    report.log = place.instance().log;
    timeline.add("super", format!("{super_id}"));
    let cleanup = Cleanup { place: &place, node: &node, super_id, timeline: &timeline };
    let command = verify.then_some(app.instance.verify.as_deref()).flatten();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                if over.load(Ordering::SeqCst) {
                    return place.revoke();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        recover(&place, &leases, command, &mut report, &timeline);
        done.store(true, Ordering::SeqCst);
    });
    report.primary_observed = node.look()?.phase == SuperPhase::Observed;
    report.cpu_ms = cleanup.finish();
    report.timeline = timeline.entries();
    Ok(report)
}

/// A rehearsal that was killed leaves a superposition; one of a monitor, or that a monitor may be about to use, stays.
fn abort_remains(app: &App, node: &Node) -> anyhow::Result<()> {
    let look = node.look()?;
    let Some(super_id) = look.super_id.filter(|_| look.phase != SuperPhase::None) else { return Ok(()) };
    let note: Option<Note> = look.note.parse().ok();
    let racing = note.is_none_or(|note| matches!(note.stage, Stage::Racing { .. }));
    if racing || monitor::lock_holder(&app.run_dir.join("monitor.lock")).is_some() {
        return Err(fail(ExitCode::Conflict, "a race is under way on these volumes; try again when it is over"));
    }
    Ok(node.abort(super_id)?)
}

fn recover(place: &Place, leases: &[LeaseId], verify: Option<&str>, report: &mut Report, timeline: &Timeline) {
    let began = now_ns();
    if let Err(error) = place.start(leases, true, place.ticket()) {
        report.error = Some(format!("{error:#}"));
        return;
    }
    report.recovered = true;
    report.recovery_ms = ms_since(began);
    timeline.add("recovery_done", format!("{:.0} ms", report.recovery_ms));
    if let Some(command) = verify {
        let began = now_ns();
        let good = place.run(command);
        report.verify_ms = ms_since(began);
        report.verified = Some(matches!(good, Ok(true)));
        timeline.add("verified", format!("{good:?}"));
    }
}

fn ms_since(began: u64) -> f64 {
    (now_ns() - began) as f64 / 1e6
}

/// Drops the child whatever happens in between.
struct Cleanup<'a> {
    place: &'a Place,
    node: &'a Node,
    super_id: SuperId,
    timeline: &'a Timeline,
}

impl Cleanup<'_> {
    fn finish(self) -> u64 {
        let cpu_ms = self.place.stop(Down::Cut);
        drop(self);
        cpu_ms
    }
}

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        self.place.stop(Down::Cut);
        match self.node.abort(self.super_id) {
            Ok(()) => self.timeline.add("backup_dropped", ""),
            Err(error) => self.timeline.add("error", crate::out::chain(&error)),
        }
    }
}
