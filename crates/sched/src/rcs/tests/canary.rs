//! Planted faults: the observer must notice each of them.
//!
//! Owns: schedulers that are wrong in one way each. Never: ships.
//! Invariant: a fault that no seed catches fails the test, because then the rules prove nothing.

use super::history::{history, options};
use super::watch::{Subject, Watch, run};
use crate::rcs::*;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    IgnoresBounds,
    IgnoresRecovery,
    IgnoresHome,
    LosesATaskAtASwitch,
    RunsATaskTwice,
    IdlesBesideWork,
    NeverWakes,
    ForgetsOneRunning,
    SwapsPriority,
    RefusesEarly,
}

const FAULTS: [Fault; 10] = [
    Fault::IgnoresBounds,
    Fault::IgnoresRecovery,
    Fault::IgnoresHome,
    Fault::LosesATaskAtASwitch,
    Fault::RunsATaskTwice,
    Fault::IdlesBesideWork,
    Fault::NeverWakes,
    Fault::ForgetsOneRunning,
    Fault::SwapsPriority,
    Fault::RefusesEarly,
];

struct Faulty {
    rcs: Rcs,
    fault: Fault,
    calls: u32,
}

impl Faulty {
    /// True every seventh time.
    fn now_and_then(&mut self) -> bool {
        self.calls += 1;
        self.calls.is_multiple_of(7)
    }
}

impl Subject for Faulty {
    fn rcs(&mut self) -> &mut Rcs {
        &mut self.rcs
    }

    fn submit(&mut self, group: Group, priority: Priority, task: Task) -> Result<(), SubmitError> {
        if self.fault == Fault::RefusesEarly && self.now_and_then() {
            return Err(SubmitError::Full { tasks: 0 });
        }
        let wrong = self.fault == Fault::SwapsPriority && priority == Priority::High;
        self.rcs.submit(group, if wrong { Priority::Low } else { priority }, task)
    }

    fn dispatch(&mut self, pool: Pool) -> Option<Dispatch> {
        let fault = self.fault;
        match fault {
            Fault::IgnoresBounds => {
                let proactive = self.rcs.proactive;
                self.rcs.set_proactive(false);
                let d = self.rcs.dispatch(pool);
                self.rcs.set_proactive(proactive);
                d
            }
            Fault::IgnoresRecovery => {
                let reactive = self.rcs.reactive;
                self.rcs.set_reactive(false);
                let d = self.rcs.dispatch(pool);
                self.rcs.set_reactive(reactive);
                d
            }
            Fault::IgnoresHome if self.rcs.policy() == Policy::Static => {
                self.rcs.set_policy(Policy::Dynamic);
                let d = self.rcs.dispatch(pool);
                self.rcs.set_policy(Policy::Static);
                d
            }
            Fault::IdlesBesideWork if self.now_and_then() => None,
            Fault::RunsATaskTwice if self.now_and_then() => {
                let d = self.rcs.dispatch(pool)?;
                let _ = self.rcs.submit(d.group, d.priority, d.task);
                Some(d)
            }
            _ => self.rcs.dispatch(pool),
        }
    }

    fn wake(&mut self) -> Option<Pool> {
        if self.fault == Fault::NeverWakes { None } else { self.rcs.wake() }
    }

    fn recovery_begins(&mut self, group: Group) -> u16 {
        let running = self.rcs.recovery_begins(group);
        if self.fault == Fault::ForgetsOneRunning { running.saturating_sub(1) } else { running }
    }

    fn set_policy(&mut self, policy: Policy) {
        if self.fault == Fault::LosesATaskAtASwitch {
            let _ = self.rcs.withdraw(Group(0));
        }
        self.rcs.set_policy(policy);
    }
}

#[test]
fn canary_planted_faults_are_caught() {
    for fault in FAULTS {
        let caught = (0..200).find(|seed| {
            let options = options(*seed);
            let history = history(*seed, options.groups, options.pools, 400);
            let faulty = Faulty { rcs: Rcs::new(options.clone()).unwrap(), fault, calls: 0 };
            run(&mut Watch::new(faulty, options), &history).is_err()
        });
        assert!(caught.is_some(), "{fault:?} goes unnoticed in 200 seeds");
    }
}
