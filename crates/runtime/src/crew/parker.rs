//! Where an idle worker sleeps.
//!
//! Owns: one wake-up token. Never: counts tokens; two wake-ups before a sleep are one.
//! Invariant: a wake-up given before the sleep begins ends it at once.

use crate::sync::{Condvar, Mutex};

/// One worker's.
#[derive(Default)]
pub struct Parker {
    woken: Mutex<bool>,
    bell: Condvar,
}

impl Parker {
    /// Sleeps until woken.
    pub fn park(&self) {
        let mut woken = self.woken.lock().expect("nobody panics with a parker's lock");
        while !*woken {
            woken = self.bell.wait(woken).expect("nobody panics with a parker's lock");
        }
        *woken = false;
    }

    /// Ends the sleep that is, or the next.
    pub fn unpark(&self) {
        *self.woken.lock().expect("nobody panics with a parker's lock") = true;
        self.bell.notify_one();
    }
}
