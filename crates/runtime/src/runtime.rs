//! The handle by which the rest of the process reaches the cores.
//!
//! Owns: the cores' threads, their inboxes, and the list of pools. Never: touches the data path.
//! Invariant: a pool's name leads to one core for as long as the runtime lives.

use crate::chance;
use crate::core::{Core, Helpers, Msg, ReplyFn, Shake, helpers};
use crate::counters::{Counters, Snapshot};
use crate::crew::{Crew, CrewError};
use crate::drive::SharedDrive;
use crate::guard;
use crate::io::Bell;
use crate::listen;
use crate::options::{
    AddPoolError, CallError, CoreStatus, ListenAddr, ListenError, MovePoolError, MoveReport, Options, PoolAlarm,
    PoolPlace, PoolRecovery, PoolSpec, Sharing, SharingState, StartError, StopError, Tls,
};
use crate::pool::Recovery;
use segue_types::RecoveryLevel;
use segue_types::api::RecoveryScope;
use segue_volume::engine::EngineOptions;
use segue_volume::fault::Faults;
use segue_volume::op::{AdminOp, AdminReply, Alarm};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where the end of a hand-over is told; called on a core's thread.
pub(crate) type MoveReply = Box<dyn FnOnce(Result<MoveReport, MovePoolError>) + Send>;

/// Alarms kept until somebody takes them; older ones give way.
const ALARMS_MAX: usize = 4096;

/// What other threads see of a core.
pub(crate) struct CoreShared {
    inbox: Mutex<Vec<Msg>>,
    bell: Bell,
    pub(crate) counters: Arc<Counters>,
    /// The thread has ended, in whatever way.
    gone: AtomicBool,
    /// It ended in order.
    pub(crate) clean: AtomicBool,
}

impl CoreShared {
    pub(crate) fn send(&self, message: Msg) {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).push(message);
        self.bell.ring();
        if self.gone.load(Ordering::Acquire) {
            // Nobody will read it any more; dropping it tells whoever waits.
            self.empty();
        }
    }

    /// Drops what came, outside the lock: to drop a question is to answer it, perhaps into this very inbox.
    fn empty(&self) {
        let left = std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        drop(left);
    }

    /// Moves what came into `into`, which is empty.
    pub(crate) fn take(&self, into: &mut Vec<Msg>) {
        std::mem::swap(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner), into);
    }
}

/// What all cores and handles share.
pub(crate) struct Shared {
    pub(crate) cores: Vec<Arc<CoreShared>>,
    /// Where all cores' clocks begin, so that a pool may go from one to another.
    pub(crate) started: Instant,
    /// Pools between two cores now.
    travelling: AtomicUsize,
    /// The stop has begun: no pool departs any more.
    stopping: AtomicBool,
    places: Mutex<Arc<Vec<PoolPlace>>>,
    alarms: Mutex<VecDeque<PoolAlarm>>,
    /// Do handshakes for the cores, if there are any.
    pub(crate) helpers: OnceLock<Helpers>,
    recoveries: Mutex<Vec<PoolRecovery>>,
}

impl Shared {
    pub(crate) fn places(&self) -> Arc<Vec<PoolPlace>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The core of a pool, as of the last hand-over.
    pub(crate) fn core_of(&self, pool: &str) -> Option<usize> {
        self.places().iter().find(|place| place.name == pool).map(|place| place.core)
    }

    pub(crate) fn set_core(&self, pool: &str, core: usize) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list = Vec::clone(&places);
        for place in list.iter_mut().filter(|place| place.name == pool) {
            place.core = core;
        }
        *places = Arc::new(list);
    }

    /// Counts a pool as travelling, unless the cores stop: then its destination may have ended.
    pub(crate) fn pool_departs(&self) -> bool {
        // Either this sees the stop, or a core that wants to end sees the traveller: both orders are sequential.
        self.travelling.fetch_add(1, Ordering::SeqCst);
        let may = !self.stopping.load(Ordering::SeqCst);
        if !may {
            self.pool_arrived();
        }
        may
    }

    /// A pool has arrived; cores that wait for it with their end are called.
    pub(crate) fn pool_arrived(&self) {
        self.travelling.fetch_sub(1, Ordering::SeqCst);
        for core in &self.cores {
            core.bell.ring();
        }
    }

    pub(crate) fn pools_travel(&self) -> bool {
        self.travelling.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn raise(&self, pool: &str, alarm: Alarm) {
        tracing::error!(pool, ?alarm, "the pool raised an alarm");
        let mut alarms = self.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        if alarms.len() == ALARMS_MAX {
            alarms.pop_front();
        }
        alarms.push_back(PoolAlarm { pool: pool.to_owned(), at_unix_ms: chance::unix_ms(), alarm });
    }

    /// Adds a recovery to those of its kind that nobody has taken yet; the first of a kind is logged.
    pub(crate) fn tell_recovery(&self, pool: &str, recovery: Recovery) {
        let Recovery { task, level, took_ns, said } = recovery;
        let mut told = self.recoveries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = told.iter_mut().find(|k| k.pool == pool && k.task == task && k.level == level) {
            known.count += 1;
            known.took_ns_max = known.took_ns_max.max(took_ns);
            return;
        }
        match level {
            RecoveryLevel::Pool => tracing::error!(pool, %task, said, "a pool is out of service after a panic"),
            _ => tracing::warn!(pool, %task, level = level.name(), took_ns, said, "recovered from a panic"),
        }
        let (pool, at_unix_ms) = (pool.to_owned(), chance::unix_ms());
        told.push(PoolRecovery { pool, task, level, count: 1, took_ns_max: took_ns, said, at_unix_ms });
    }

    pub(crate) fn admin(&self, pool: &str, op: AdminOp, reply: ReplyFn) -> Result<(), CallError> {
        let core = self.core_of(pool).ok_or(CallError::NoPool)?;
        self.cores[core].send(Msg::Admin { pool: pool.to_owned(), op, reply });
        Ok(())
    }
}

/// Tells whether a volume is quiet.
pub(crate) type HoldReply = Box<dyn FnOnce(bool) + Send>;
/// Tells how many connections went to another pool.
pub(crate) type ReleaseReply = Box<dyn FnOnce(usize) + Send>;

/// The running cores. Cheap to clone; usable from any thread.
///
/// Dropping the last handle does not stop the cores: call [`Runtime::stop`].
#[derive(Clone)]
pub struct Runtime {
    shared: Arc<Shared>,
    status: Arc<Vec<CoreStatus>>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
    next_core: Arc<AtomicUsize>,
    helpers: Arc<Mutex<Option<Crew<Shake>>>>,
}

impl Runtime {
    /// Starts the cores. Nothing is served until a pool and a listener are added.
    ///
    /// # Errors
    /// [`StartError`] when a thread or its kernel interface cannot be had.
    pub fn start(options: Options) -> Result<Runtime, StartError> {
        guard::install();
        let count = options.cores.clamp(1, 64);
        let make = |_| -> Result<Arc<CoreShared>, StartError> {
            Ok(Arc::new(CoreShared {
                inbox: Mutex::new(Vec::with_capacity(64)),
                bell: Bell::new().map_err(StartError::Backend)?,
                counters: Arc::default(),
                gone: AtomicBool::new(false),
                clean: AtomicBool::new(false),
            }))
        };
        let cores = (0..count).map(make).collect::<Result<_, _>>()?;
        let shared = Arc::new(Shared {
            cores,
            started: Instant::now(),
            travelling: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            places: Mutex::default(),
            alarms: Mutex::default(),
            helpers: OnceLock::new(),
            recoveries: Mutex::default(),
        });
        let crew = start_helpers(&shared, options.helpers.min(64))?;
        let (mut threads, mut status) = (Vec::new(), Vec::new());
        for number in 0..count {
            let (thread, said) = start_core(number, &shared, &options)?;
            threads.push(thread);
            status.push(said);
        }
        Ok(Runtime {
            shared,
            status: Arc::new(status),
            threads: Arc::new(Mutex::new(threads)),
            next_core: Arc::default(),
            helpers: Arc::new(Mutex::new(crew)),
        })
    }

    /// What each core said at its start: the kernel interface it uses, and why.
    pub fn status(&self) -> &[CoreStatus] {
        &self.status
    }

    /// Opens a pool on the next core in turn and waits until it is served. The drive is locked meanwhile.
    ///
    /// # Errors
    /// [`AddPoolError`] names the cause; nothing is left open then.
    pub fn add_pool(&self, spec: PoolSpec) -> Result<PoolPlace, AddPoolError> {
        if self.pools().iter().any(|place| place.name == spec.name) {
            return Err(AddPoolError::Exists(spec.name));
        }
        let core = self.next_core.fetch_add(1, Ordering::Relaxed) % self.shared.cores.len();
        let (tell, told) = mpsc::sync_channel(1);
        let reply = Box::new(move |added| drop(tell.send(added)));
        self.shared.cores[core].send(Msg::AddPool { spec, reply });
        let place = told.recv().map_err(|_| AddPoolError::Stopped)??;
        let mut places = self.shared.places.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list = Vec::clone(&places);
        list.push(place.clone());
        *places = Arc::new(list);
        Ok(place)
    }

    /// Opens a slice of a shared drive as a pool of this name. Nothing is lent to it before all slices are open.
    ///
    /// # Errors
    /// [`AddPoolError`] names the cause; nothing is left open then.
    pub fn add_slice(
        &self,
        name: &str,
        drive: &Arc<SharedDrive>,
        slice: u16,
        options: EngineOptions,
    ) -> Result<PoolPlace, AddPoolError> {
        let place = self.add_pool(PoolSpec::slice(name, drive, slice, options))?;
        let (shared, pool) = (Arc::downgrade(&self.shared), name.to_owned());
        drive.on_pressure(
            slice,
            Box::new(move || {
                let Some(shared) = shared.upgrade() else { return };
                if let Some(core) = shared.core_of(&pool) {
                    shared.cores[core].send(Msg::Shrink { pool: pool.clone() });
                }
            }),
        );
        Ok(place)
    }

    /// Hands a pool over to another core, with everything in flight; clients notice nothing but a pause. `reply` is
    /// called once, on a core's thread.
    ///
    /// # Errors
    /// [`MovePoolError`]: the pool stays where it was.
    pub fn move_pool(
        &self,
        pool: &str,
        to: usize,
        reply: impl FnOnce(Result<MoveReport, MovePoolError>) + Send + 'static,
    ) -> Result<(), MovePoolError> {
        let last = self.shared.cores.len() - 1;
        if to > last {
            return Err(MovePoolError::NoCore { to, last });
        }
        let core = self.shared.core_of(pool).ok_or(MovePoolError::NoPool)?;
        self.shared.cores[core].send(Msg::MovePool { pool: pool.to_owned(), to, reply: Box::new(reply) });
        Ok(())
    }

    /// As [`Runtime::move_pool`], and waits until the new core serves. Not from async code.
    ///
    /// # Errors
    /// [`MovePoolError`].
    pub fn move_pool_wait(&self, pool: &str, to: usize) -> Result<MoveReport, MovePoolError> {
        let (tell, told) = mpsc::sync_channel(1);
        self.move_pool(pool, to, move |result| {
            // Nobody may wait any more.
            let _ = tell.send(result);
        })?;
        told.recv().map_err(|_| MovePoolError::Stopped)?
    }

    /// Lets a volume's clients wait and its requests in flight end. `reply` is called once on the core's thread: with
    /// `true` when all is quiet, with `false` when that took longer than `limit` (then nobody is held); dropped when
    /// the runtime stops first. End it with [`Runtime::release`].
    ///
    /// # Errors
    /// [`CallError::NoPool`].
    pub fn hold(
        &self,
        pool: &str,
        volume: &str,
        limit: Duration,
        reply: impl FnOnce(bool) + Send + 'static,
    ) -> Result<(), CallError> {
        let core = self.shared.core_of(pool).ok_or(CallError::NoPool)?;
        let (pool, volume, limit_ns) = (pool.to_owned(), volume.to_owned(), limit.as_nanos() as u64);
        self.shared.cores[core].send(Msg::Hold { pool, volume, limit_ns, reply: Box::new(reply) });
        Ok(())
    }

    /// Lets a held volume's clients go on: where they are, or, without their noticing, at the pool `to`, which is the
    /// volume now. `reply` is called once with how many connections went there, or dropped when the runtime stops.
    ///
    /// # Errors
    /// [`CallError::NoPool`].
    pub fn release(
        &self,
        pool: &str,
        volume: &str,
        to: Option<&str>,
        reply: impl FnOnce(usize) + Send + 'static,
    ) -> Result<(), CallError> {
        let core = self.shared.core_of(pool).ok_or(CallError::NoPool)?;
        let (pool, volume, to) = (pool.to_owned(), volume.to_owned(), to.map(str::to_owned));
        self.shared.cores[core].send(Msg::Release { pool, volume, to, reply: Box::new(reply) });
        Ok(())
    }

    /// The pools, in the order they were added.
    pub fn pools(&self) -> Arc<Vec<PoolPlace>> {
        self.shared.places()
    }

    /// Gives an operation to a pool's engine. `reply` is called once on the core's thread, so it must be short and
    /// must not block; it is dropped uncalled when the runtime stops first.
    ///
    /// # Errors
    /// [`CallError::NoPool`].
    pub fn admin(
        &self,
        pool: &str,
        op: AdminOp,
        reply: impl FnOnce(Result<AdminReply, CallError>) + Send + 'static,
    ) -> Result<(), CallError> {
        self.shared.admin(pool, op, Box::new(reply))
    }

    /// As [`Runtime::admin`], and waits for the answer. Not from async code.
    ///
    /// # Errors
    /// [`CallError`]: no such pool, stopped, or refused by the engine.
    pub fn admin_wait(&self, pool: &str, op: AdminOp) -> Result<AdminReply, CallError> {
        let (tell, told) = mpsc::sync_channel(1);
        self.admin(pool, op, move |result| drop(tell.send(result)))?;
        told.recv().map_err(|_| CallError::Stopped)?
    }

    /// How a pool's drive is shared; with `set`, it is shared like that from now on. `reply` is called once on the
    /// core's thread, or dropped when the runtime stops first.
    ///
    /// # Errors
    /// [`CallError::NoPool`].
    pub fn sharing(
        &self,
        pool: &str,
        set: Option<Sharing>,
        reply: impl FnOnce(Result<SharingState, CallError>) + Send + 'static,
    ) -> Result<(), CallError> {
        let core = self.shared.core_of(pool).ok_or(CallError::NoPool)?;
        self.shared.cores[core].send(Msg::Sharing { pool: pool.to_owned(), set, reply: Box::new(reply) });
        Ok(())
    }

    /// As [`Runtime::sharing`], and waits for the answer. Not from async code.
    ///
    /// # Errors
    /// [`CallError`]: no such pool, or stopped.
    pub fn sharing_wait(&self, pool: &str, set: Option<Sharing>) -> Result<SharingState, CallError> {
        let (tell, told) = mpsc::sync_channel(1);
        self.sharing(pool, set, move |result| drop(tell.send(result)))?;
        told.recv().map_err(|_| CallError::Stopped)?
    }

    /// Listens, and returns the address with its real port. Connections go to the core of their volume's pool.
    ///
    /// # Errors
    /// [`ListenError::Bind`] when the address is taken or not allowed.
    pub fn listen(&self, addr: &ListenAddr, tls: Tls) -> Result<ListenAddr, ListenError> {
        let (fd, addr) = listen::bind(addr)?;
        if self.shared.cores[0].gone.load(Ordering::Acquire) {
            return Err(ListenError::Stopped);
        }
        self.shared.cores[0].send(Msg::Listen { fd, addr: addr.clone(), tls });
        Ok(addr)
    }

    /// Stops listening on an address that [`Runtime::listen`] returned; connections stay.
    pub fn unlisten(&self, addr: ListenAddr) {
        self.shared.cores[0].send(Msg::Unlisten { addr });
    }

    /// The counters of every core, at about this moment. Takes no lock of a core.
    pub fn counters(&self) -> Vec<Snapshot> {
        self.shared.cores.iter().map(|core| core.counters.snapshot()).collect()
    }

    /// Takes the alarms raised since the last call (the newest 4096).
    pub fn take_alarms(&self) -> Vec<PoolAlarm> {
        self.shared.alarms.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }

    /// Takes the recoveries from panics since the last call, one entry for each pool, kind of task and level.
    pub fn take_recoveries(&self) -> Vec<PoolRecovery> {
        std::mem::take(&mut *self.shared.recoveries.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks each core what recovers together in it. `reply` is called once for each core, on its thread.
    pub fn scopes(&self, reply: impl Fn(Vec<RecoveryScope>) + Clone + Send + 'static) {
        for core in &self.shared.cores {
            core.send(Msg::Scopes(Box::new(reply.clone())));
        }
    }

    /// Makes tasks of all cores and open pools panic on purpose from now on; [`Faults::OFF`] ends it. For tests of
    /// what a node survives.
    pub fn inject(&self, faults: &Faults) {
        for core in &self.shared.cores {
            core.send(Msg::Inject(faults.clone()));
        }
    }

    /// Stops in order: no new connections or requests, what is in flight is finished and answered, engines write
    /// their checkpoints, drives are closed. Waits up to `timeout`.
    ///
    /// # Errors
    /// [`StopError`]: the pools are intact all the same, and replay their journals at the next open.
    pub fn stop(&self, timeout: Duration) -> Result<(), StopError> {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for core in &self.shared.cores {
            core.send(Msg::Stop);
        }
        let until = Instant::now() + timeout;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(thread) = threads.last() {
            if !thread.is_finished() {
                if Instant::now() >= until {
                    return Err(StopError::TimedOut);
                }
                std::thread::park_timeout(Duration::from_millis(1));
                continue;
            }
            // A panic's message has been printed; `clean` tells that it happened.
            let _ = threads.pop().expect("it was seen").join();
        }
        // After the cores: what helpers still have is for nobody.
        drop(self.helpers.lock().unwrap_or_else(PoisonError::into_inner).take());
        let clean = |core: &Arc<CoreShared>| core.clean.load(Ordering::Acquire);
        if self.shared.cores.iter().all(clean) { Ok(()) } else { Err(StopError::Died) }
    }
}

/// Tells that a core's thread has ended, also when it panics.
struct Farewell(Arc<CoreShared>);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.gone.store(true, Ordering::Release);
        self.0.empty();
    }
}

fn start_helpers(shared: &Arc<Shared>, count: usize) -> Result<Option<Crew<Shake>>, StartError> {
    if count == 0 {
        return Ok(None);
    }
    let crew = helpers(count as u16, shared.cores.len() as u16).map_err(|error| match error {
        CrewError::Thread(error) => StartError::Thread(error),
        CrewError::Options(error) => unreachable!("one helper and one core at least: {error}"),
    })?;
    assert!(shared.helpers.set(crew.handle().clone()).is_ok(), "helpers are started once");
    Ok(Some(crew))
}

/// Keeps the calling thread on the processor that its core's number stands for. Where the system refuses, it stays free.
fn pin(number: usize) {
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::cpu_set_t>();
    if unsafe { libc::sched_getaffinity(0, size, &raw mut allowed) } != 0 {
        return;
    }
    let all: Vec<usize> =
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &allowed) }).collect();
    let Some(cpu) = all.get(number % all.len().max(1)) else { return };
    let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    unsafe { libc::CPU_SET(*cpu, &mut one) };
    if unsafe { libc::sched_setaffinity(0, size, &raw const one) } != 0 {
        tracing::warn!(core = number, cpu, "the system does not let the core stay on its processor");
    }
}

fn start_core(
    number: usize,
    shared: &Arc<Shared>,
    options: &Options,
) -> Result<(JoinHandle<()>, CoreStatus), StartError> {
    let (shared, options) = (shared.clone(), options.clone());
    let (tell, told) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name(format!("segue-core-{number}")).spawn(move || {
        // Limits and time slices end to the microsecond; the kernel's usual slack is fifty.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000) };
        if options.pin {
            pin(number);
        }
        let mine = shared.cores[number].clone();
        let _farewell = Farewell(mine.clone());
        match Core::new(number, shared, options, &mine.bell) {
            Ok((core, status)) => {
                drop(tell.send(Ok(status)));
                core.run();
            }
            Err(error) => drop(tell.send(Err(error))),
        }
    });
    let thread = thread.map_err(StartError::Thread)?;
    match told.recv() {
        Ok(Ok(status)) => Ok((thread, status)),
        Ok(Err(error)) => Err(StartError::Backend(error)),
        Err(_) => Err(StartError::Backend(std::io::ErrorKind::Interrupted.into())),
    }
}
