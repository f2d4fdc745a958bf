//! What threads share data with: the standard library's, in one place.
//!
//! Owns: the names. Never: adds behaviour.
//! Invariant: code that uses only these names runs under shuttle too, where a test gives a module of the same name.

pub use std::sync::atomic::{AtomicU32, Ordering};
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard};
pub use std::thread::JoinHandle;

/// Starts a thread with a name.
///
/// # Errors
/// What the system says: no memory, or too many threads.
pub fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name).spawn(work)
}
