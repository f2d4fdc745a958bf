//! Catching panics: the smallest unit of work runs guarded, and a panic in it is told to whoever recovers.
//!
//! Owns: the process's panic hook while a unit is guarded, and what a caught panic said. Never: decides what follows.
//! Invariant: a guarded panic prints nothing by itself; an unguarded one is printed as ever.

use segue_types::TaskKind;
use segue_volume::fault::InjectedFault;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A panic that was caught.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caught {
    /// The fault that was injected, if it was one that says so.
    pub(crate) injected: Option<TaskKind>,
    /// What it said, and where.
    pub(crate) message: String,
}

/// Puts the hook in place, once per process.
pub(crate) fn install() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !GUARDED.get() {
                return before(info);
            }
            let payload = info.payload();
            let text = if let Some(fault) = payload.downcast_ref::<InjectedFault>() {
                format!("an injected fault: {} {}", fault.task, fault.place)
            } else if let Some(text) = payload.downcast_ref::<&str>() {
                (*text).to_owned()
            } else if let Some(text) = payload.downcast_ref::<String>() {
                text.clone()
            } else {
                "a panic without words".to_owned()
            };
            let place = info.location().map(|at| format!(" ({}:{})", at.file(), at.line())).unwrap_or_default();
            SAID.set(text + &place);
        }));
    });
}

/// Runs a unit of work.
///
/// # Errors
/// The panic, if it panicked. What the unit was changing may be half changed.
#[inline]
pub(crate) fn guard<T>(run: impl FnOnce() -> T) -> Result<T, Caught> {
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    GUARDED.set(outer);
    result.map_err(|panic| {
        let injected = panic.downcast_ref::<InjectedFault>().map(|fault| fault.task);
        Caught { injected, message: SAID.take() }
    })
}
