//! A few threads that do blocking drive I/O for a core whose kernel interface cannot.
//!
//! Owns: the threads, their queue, and the list of what ended. Never: touches a socket.
//! Invariant: every job handed in comes back once, also when threads end.

use super::{Bell, Done, DriveFd, DriveOp, last_errno};
use crate::drive::discard_range;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

type Job = (u64, DriveFd, DriveOp);

struct Shared {
    jobs: Mutex<(VecDeque<Job>, bool)>,
    more: Condvar,
    ended: Mutex<Vec<Done>>,
    bell: Bell,
}

/// The threads. Dropping it lets them finish what is queued.
pub(super) struct Offload {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Offload {
    pub(super) fn new(count: usize, bell: Bell) -> Offload {
        let jobs = Mutex::new((VecDeque::with_capacity(1024), false));
        let ended = Mutex::new(Vec::with_capacity(1024));
        let shared = Arc::new(Shared { jobs, more: Condvar::new(), ended, bell });
        let spawn = |n: usize| {
            let shared = shared.clone();
            let name = format!("segue-drive-{n}");
            std::thread::Builder::new().name(name).spawn(move || work(&shared)).expect("a thread can be started")
        };
        let threads = (0..count).map(spawn).collect();
        Offload { shared, threads }
    }

    pub(super) fn push(&self, token: u64, drive: DriveFd, op: DriveOp) {
        let mut jobs = self.shared.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.0.push_back((token, drive, op));
        drop(jobs);
        self.shared.more.notify_one();
    }

    /// Moves what ended into `done`.
    pub(super) fn drain(&self, done: &mut Vec<Done>) {
        let mut ended = self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner);
        done.append(&mut ended);
    }
}

impl Drop for Offload {
    fn drop(&mut self) {
        self.shared.jobs.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.shared.more.notify_all();
        for thread in self.threads.drain(..) {
            // A panic in a worker has been printed already; there is nothing to add here.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared) {
    loop {
        let mut jobs = shared.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let (token, drive, op) = loop {
            if let Some(job) = jobs.0.pop_front() {
                break job;
            }
            if jobs.1 {
                return;
            }
            jobs = shared.more.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        };
        drop(jobs);
        let result = -run(drive, op);
        shared.ended.lock().unwrap_or_else(PoisonError::into_inner).push(Done { token, result });
        shared.bell.ring();
    }
}

/// Does one operation, all of it. Returns an errno, 0 on success.
fn run(drive: DriveFd, op: DriveOp) -> i32 {
    match op {
        DriveOp::Read { offset, at, len } => {
            whole(offset, len, |skip, offset, len| unsafe { libc::pread(drive.fd, at.add(skip).cast(), len, offset) })
        }
        DriveOp::Write { offset, at, len } => {
            whole(offset, len, |skip, offset, len| unsafe { libc::pwrite(drive.fd, at.add(skip).cast(), len, offset) })
        }
        DriveOp::Flush => match unsafe { libc::fdatasync(drive.fd) } {
            0 => 0,
            _ => last_errno(),
        },
        DriveOp::Discard { offset, len } => discard_range(drive.fd, drive.block_device, offset, len),
    }
}

fn whole(offset: u64, len: u32, mut call: impl FnMut(usize, i64, usize) -> isize) -> i32 {
    let mut at = 0usize;
    while at < len as usize {
        match call(at, offset as i64 + at as i64, len as usize - at) {
            0 => return libc::EIO,
            n if n > 0 => at += n as usize,
            _ => match last_errno() {
                libc::EINTR => {}
                errno => return errno,
            },
        }
    }
    0
}
