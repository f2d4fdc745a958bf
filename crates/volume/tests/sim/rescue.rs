//! What a driver does when the engine panics: carry the step on, or restart the engine and give it everything again.
//!
//! Owns: the rescue in virtual time. Never: rescues from a panic that nobody injected.
//! Invariant: after a rescue every request is in the engine or answered.

use super::torture::Panics;
use super::{DriveDev, Ev, Sim};
use segue_types::{FaultKind, IoStatus, Nanos, TaskKind};
use segue_volume::engine::Engine;
use segue_volume::fault::{Faults, InjectedFault};
use segue_volume::op::{Event, Reply, Tag};
use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Once;

/// What was rescued.
#[derive(Clone, Default, Debug)]
pub struct Rescues {
    pub tasks: u64,
    pub engines: u64,
    /// Blocks of the journal's tail that were verified.
    pub verified: u64,
    pub places: Vec<&'static str>,
    pub forget_tail: bool,
}

/// Which panics of this thread need no message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quiet {
    None,
    Injected,
    All,
}

thread_local! {
    static QUIET: Cell<Quiet> = const { Cell::new(Quiet::None) };
}

/// Keeps wanted panics of this thread off the screen; all others are printed as ever.
fn caught<T>(quiet: Quiet, run: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let wanted = match QUIET.get() {
                Quiet::None => false,
                Quiet::Injected => info.payload().is::<InjectedFault>(),
                Quiet::All => true,
            };
            if !wanted {
                before(info);
            }
        }));
    });
    let outer = QUIET.get();
    QUIET.set(if outer == Quiet::All { outer } else { quiet });
    let result = catch_unwind(AssertUnwindSafe(run));
    QUIET.set(outer);
    result
}

fn quietly<T>(run: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    caught(Quiet::Injected, run)
}

/// True when `run` panics, which is not printed: for canaries.
pub fn fails(run: impl FnOnce()) -> bool {
    caught(Quiet::All, run).is_err()
}

impl Sim {
    /// Makes the engine panic as the plan says.
    pub fn endanger(&mut self, seed: u64, panics: &Panics) {
        self.rescues.forget_tail = panics.forget_tail;
        if panics.at_point > 0 {
            self.engine.set_faults(Faults::at_point(panics.at_point, FaultKind::Panic));
        } else if panics.one_in > 0 {
            let mut faults = Faults::seeded(seed, FaultKind::Panic);
            TaskKind::ALL
                .into_iter()
                .filter(|kind| *kind != TaskKind::Restart)
                .for_each(|k| faults.set(k, panics.one_in));
            self.engine.set_faults(faults);
        }
    }

    pub(super) fn step_in_danger(&mut self, now: Nanos, event: Event) {
        let Sim { engine, mem, out, .. } = self;
        let mut ended = quietly(|| {
            engine.step(now, event, mem, out);
            true
        });
        loop {
            match ended {
                Ok(true) => return,
                Ok(false) => return self.restart(),
                Err(panic) => {
                    match panic.downcast_ref::<InjectedFault>() {
                        Some(fault) => self.rescues.places.push(fault.place),
                        None => resume_unwind(panic),
                    }
                    let Sim { engine, mem, out, .. } = self;
                    ended = quietly(|| engine.recover(mem, out));
                    self.rescues.tasks += u64::from(matches!(ended, Ok(true)));
                }
            }
        }
    }

    fn restart(&mut self) {
        self.rescues.engines += 1;
        self.engine.take_back(&mut self.out);
        let mut salvage = self.engine.salvage();
        self.drain();
        if self.rescues.forget_tail {
            salvage.forget_tail();
        }
        while !self.io.is_empty() {
            match self.queue.pop().expect("what is in flight ends").1 {
                Ev::Tick => self.ticking = false,
                Ev::IoDone(ticket) => {
                    let errno = self.complete(ticket);
                    salvage.io_ended(ticket, errno);
                }
            }
        }
        let restarted = match Engine::restart(&mut DriveDev(&mut self.drive), &mut self.mem, salvage) {
            Ok(restarted) => restarted,
            Err(_) if !self.drive.is_powered() => return,
            Err(error) => panic!("the engine does not start again: {error}"),
        };
        self.engine = restarted.engine;
        if let Some(neighbour) = &mut self.neighbour {
            neighbour.reclaim(&self.engine);
        }
        self.rescues.verified += restarted.verified;
        self.alarms.extend(restarted.alarms);
        for tag in restarted.done {
            self.out.replies.push(Reply { tag, status: IoStatus::Ok, extents: 0 });
        }
        self.out.admin.extend(restarted.admin.into_iter().map(|(tag, reply)| (tag, Ok(reply))));
        self.drain();
        // What an earlier restart had not given yet comes first; the rest in the order it came.
        let mut again: VecDeque<Event> = std::mem::take(&mut self.again);
        again.retain(|event| matches!(event, Event::Admin { .. }));
        let admin = restarted.admin_again.into_iter().map(|(tag, op)| Event::Admin { tag, op });
        self.again = admin.chain(again).collect();
        let requests = self.waiting.iter().map(|(tag, (attach, op))| (Tag(*tag), *attach, *op));
        self.again.extend(requests.map(|(tag, attach, op)| Event::Request { tag, attach, op }));
        self.again.push_back(Event::Tick);
    }
}
