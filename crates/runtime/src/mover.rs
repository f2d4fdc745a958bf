//! A move of a volume on real pools: one thread that carries out what the move's machine asks.
//!
//! Owns: the thread, the clock, the measured pause. Never: decides the order (see `segue_volume::migrate`).
//! Invariant: when the thread ends, the two pools' records say how far the move is, so another one can go on.

use crate::options::CallError;
use crate::runtime::Runtime;
use segue_types::Nanos;
use segue_volume::migrate::{Ask, Ending, Event, Mover, Out, Plan, Progress};
use segue_volume::op::{AdminError, AdminOp, AdminReply, MoveOp, MoveReply, MoveStage, MoveState};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long clients may take to end what they have in flight before another round is copied instead.
const HOLD_LIMIT: Duration = Duration::from_secs(2);

/// A move could not begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// A pool did not answer: check the name, and that the node is not stopping.
    #[error("pool {pool:?} does not answer")]
    Pool {
        /// The pool.
        pool: String,
        /// Why.
        #[source]
        source: CallError,
    },
    /// The volume is in that pool already.
    #[error("the volume is in this pool already")]
    SamePool,
}

/// What comes to the thread.
enum Input {
    Event(Event),
    Released(usize),
    /// A pool's core has ended: nobody will answer.
    Gone,
}

/// Sends one answer, and says so when it is dropped instead.
struct Promise(Option<Sender<Input>>);

impl Promise {
    fn keep(mut self, input: Input) {
        if let Some(tx) = self.0.take() {
            // Nobody may listen any more.
            let _ = tx.send(input);
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(tx) = self.0.take() {
            let _ = tx.send(Input::Gone);
        }
    }
}

/// How a move is doing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MoveStatus {
    /// Which volume and how fast.
    pub plan: Plan,
    /// The pool that has it, or had it.
    pub from: String,
    /// The pool that gets it.
    pub to: String,
    /// How far it is.
    pub progress: Progress,
    /// Bytes per second lately.
    pub bytes_per_s: u64,
    /// How long the clients waited at the end, ns.
    pub stall_ns: Option<Nanos>,
    /// Connections that went along.
    pub connections: usize,
    /// How it ended.
    pub ended: Option<Ending>,
}

struct Board {
    status: Mutex<MoveStatus>,
    over: Condvar,
}

impl Board {
    fn with<T>(&self, f: impl FnOnce(&mut MoveStatus) -> T) -> T {
        f(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A running move, for whoever watches it. Cheap to clone.
#[derive(Clone)]
pub struct MoveHandle {
    board: Arc<Board>,
    tx: Sender<Input>,
}

impl MoveHandle {
    /// How it is doing.
    pub fn status(&self) -> MoveStatus {
        self.board.with(|status| status.clone())
    }

    /// Caps it, bytes per second; 0: no cap. At once.
    pub fn set_rate(&self, bytes_per_s: u64) {
        // A move that is over has no rate.
        let _ = self.tx.send(Input::Event(Event::Rate(bytes_per_s)));
    }

    /// Gives it up, unless the destination has committed.
    pub fn cancel(&self) {
        let _ = self.tx.send(Input::Event(Event::Cancel));
    }

    /// Waits until it is over. Not from async code.
    pub fn wait(&self) -> Ending {
        let mut status = self.board.status.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(ending) = &status.ended {
                return ending.clone();
            }
            status = self.board.over.wait(status).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A move that is ready to run.
pub struct MoveRun {
    runtime: Runtime,
    mover: Mover,
    board: Arc<Board>,
    tx: Sender<Input>,
    rx: Receiver<Input>,
    /// The volume's name for the cores: that of the passport once it is sealed.
    name: String,
    started: Instant,
    held_at: Option<Instant>,
    measured: (Instant, u64),
    wake_at: Option<Nanos>,
}

impl MoveRun {
    /// A move of the plan's volume between two pools of the runtime.
    pub fn new(runtime: &Runtime, from: &str, to: &str, plan: Plan) -> MoveRun {
        MoveRun::with(runtime, from, to, plan.clone(), Mover::new(plan))
    }

    fn with(runtime: &Runtime, from: &str, to: &str, plan: Plan, mover: Mover) -> MoveRun {
        let (tx, rx) = channel();
        let name = plan.name.clone();
        let status = MoveStatus {
            plan,
            from: from.to_owned(),
            to: to.to_owned(),
            progress: mover.progress(),
            bytes_per_s: 0,
            stall_ns: None,
            connections: 0,
            ended: None,
        };
        let board = Arc::new(Board { status: Mutex::new(status), over: Condvar::new() });
        let now = Instant::now();
        let (runtime, measured) = (runtime.clone(), (now, 0));
        MoveRun { runtime, mover, board, tx, rx, name, started: now, held_at: None, measured, wake_at: Some(0) }
    }

    /// The handle to watch and steer it by.
    pub fn handle(&self) -> MoveHandle {
        MoveHandle { board: self.board.clone(), tx: self.tx.clone() }
    }

    /// Runs until it is certain which pool has the volume. For the start of a node, before it listens.
    pub fn settle_doubt(&mut self) {
        while self.mover.in_doubt() && self.turn() {}
    }

    /// Runs to the end on a thread of its own.
    ///
    /// # Panics
    /// When the system gives no thread.
    pub fn spawn(mut self) -> MoveHandle {
        let handle = self.handle();
        let thread = std::thread::Builder::new().name("segue-move".into());
        thread.spawn(move || while self.turn() {}).expect("the system gives a thread");
        handle
    }

    /// Takes what comes next. `false`: it is over.
    fn turn(&mut self) -> bool {
        if self.board.with(|status| status.ended.is_some()) {
            return false;
        }
        let event = match self.next() {
            Input::Event(event) => event,
            Input::Released(connections) => {
                let stall_ns = self.held_at.take().map(|at| at.elapsed().as_nanos() as Nanos);
                self.board.with(|status| (status.stall_ns, status.connections) = (stall_ns, connections));
                Event::Released
            }
            Input::Gone => {
                self.end(Ending::Stopped(AdminError::Conflict(
                    "the node is stopping; the move goes on at its next start",
                )));
                return false;
            }
        };
        if let Event::Source(Ok(AdminReply::Move(MoveReply::Sealed { passport, .. }))) = &event {
            passport.name().clone_into(&mut self.name);
        }
        let mut out = Out::default();
        let now = self.started.elapsed().as_nanos() as Nanos;
        self.mover.step(now, event, &mut out);
        self.wake_at = out.wake_at;
        for ask in out.asks {
            self.carry(ask);
        }
        self.report();
        if let Some(ending) = out.ended {
            self.end(ending);
            return false;
        }
        true
    }

    fn next(&mut self) -> Input {
        let Some(at) = self.wake_at.take() else { return self.rx.recv().unwrap_or(Input::Gone) };
        let now = self.started.elapsed().as_nanos() as Nanos;
        match self.rx.recv_timeout(Duration::from_nanos(at.saturating_sub(now))) {
            Ok(input) => input,
            Err(RecvTimeoutError::Timeout) => Input::Event(Event::Tick),
            Err(RecvTimeoutError::Disconnected) => Input::Gone,
        }
    }

    fn report(&mut self) {
        let progress = self.mover.progress();
        let (at, bytes) = self.measured;
        let took = at.elapsed();
        let fresh = (took >= Duration::from_millis(500)).then(|| {
            self.measured = (Instant::now(), progress.copied_bytes);
            (progress.copied_bytes - bytes) * 1_000_000_000 / took.as_nanos().max(1) as u64
        });
        self.board.with(|status| {
            status.progress = progress;
            status.bytes_per_s = fresh.unwrap_or(status.bytes_per_s);
        });
    }

    fn end(&mut self, ending: Ending) {
        tracing::info!(volume = self.name, ?ending, "the move is over");
        let progress = self.mover.progress();
        self.board.with(|status| (status.progress, status.ended) = (progress, Some(ending)));
        self.board.over.notify_all();
    }

    fn carry(&mut self, ask: Ask) {
        let (from, to) = self.board.with(|status| (status.from.clone(), status.to.clone()));
        let promise = || Promise(Some(self.tx.clone()));
        let answer = |event: fn(Result<AdminReply, AdminError>) -> Event| {
            let promise = promise();
            move |result: Result<AdminReply, CallError>| match result {
                Ok(reply) => promise.keep(Input::Event(event(Ok(reply)))),
                Err(CallError::Refused(error)) => promise.keep(Input::Event(event(Err(error)))),
                Err(_) => promise.keep(Input::Gone),
            }
        };
        // A pool that is not there any more drops its promise, and that is an answer too.
        let _ = match ask {
            Ask::Source(op) => self.runtime.admin(&from, AdminOp::Move(op), answer(Event::Source)),
            Ask::Dest(op) => self.runtime.admin(&to, AdminOp::Move(op), answer(Event::Dest)),
            Ask::Hold => {
                let promise = promise();
                self.held_at = Some(Instant::now());
                self.find_name(&from);
                let told = move |held| promise.keep(Input::Event(Event::Held(held)));
                self.runtime.hold(&from, &self.name, HOLD_LIMIT, told)
            }
            Ask::Release { moved } => {
                let promise = promise();
                let told = move |connections| promise.keep(Input::Released(connections));
                self.runtime.release(&from, &self.name, moved.then_some(to.as_str()), told)
            }
        };
    }

    /// The volume may have been renamed since the move began.
    fn find_name(&mut self, pool: &str) {
        let id = self.board.with(|status| status.plan.id);
        if let Ok((_, moves)) = list(&self.runtime, pool)
            && let Some(state) = moves.into_iter().find(|m| m.id == id)
        {
            self.name = state.name;
            let name = self.name.clone();
            self.board.with(|status| status.plan.name = name);
        }
    }
}

/// Identity of a pool, and its part in moves.
pub(crate) fn list(runtime: &Runtime, pool: &str) -> Result<([u8; 16], Vec<MoveState>), MoveError> {
    match runtime.admin_wait(pool, AdminOp::Move(MoveOp::List)) {
        Ok(AdminReply::Move(MoveReply::Moves { pool, moves })) => Ok((pool, moves)),
        Ok(other) => unreachable!("a list of moves is not {other:?}"),
        Err(source) => Err(MoveError::Pool { pool: pool.to_owned(), source }),
    }
}

impl Runtime {
    /// A move of a volume from one pool to another, ready to run.
    ///
    /// # Errors
    /// [`MoveError`]: a pool is not there, or both are the same.
    pub fn plan_move(
        &self,
        volume: &str,
        from: &str,
        to: &str,
        id: segue_types::MoveId,
        rate_bytes_per_s: u64,
    ) -> Result<MoveRun, MoveError> {
        let ((source, _), (dest, _)) = (list(self, from)?, list(self, to)?);
        if source == dest {
            return Err(MoveError::SamePool);
        }
        let plan = Plan { id, name: volume.to_owned(), source, dest, rate_bytes_per_s };
        Ok(MoveRun::new(self, from, to, plan))
    }
}

/// A move that the records of the open pools tell of.
pub enum FoundMove {
    /// It can go on.
    Ready(Box<MoveRun>),
    /// It cannot: a pool of it is not open, or the records contradict each other. The volume named stays as it is: closed
    /// if it may be the other pool's, else in use.
    Stuck {
        /// The move.
        id: segue_types::MoveId,
        /// The volume.
        volume: String,
        /// The open pool that tells of it.
        pool: String,
        /// True when the volume is closed for that.
        closed: bool,
    },
}

/// Finds the moves that a crash or a stop interrupted, in the records of all pools.
///
/// # Errors
/// [`MoveError::Pool`]: a pool does not answer.
pub fn find_moves(runtime: &Runtime, rate_bytes_per_s: u64) -> Result<Vec<FoundMove>, MoveError> {
    let mut pools = Vec::new();
    for place in runtime.pools().iter() {
        let (uuid, moves) = list(runtime, &place.name)?;
        pools.push((place.name.clone(), uuid, moves));
    }
    let leaves = |m: &MoveState| matches!(m.stage, MoveStage::Leaving { .. } | MoveStage::Sealed);
    let mut found = Vec::new();
    for (name, uuid, moves) in &pools {
        for state in moves {
            let peer = pools.iter().find(|p| p.1 == state.peer);
            let theirs = peer.and_then(|p| p.2.iter().find(|m| m.id == state.id));
            if !leaves(state) && theirs.is_some_and(leaves) {
                // Found from its source.
                continue;
            }
            let closed = state.stage == MoveStage::Sealed;
            let stuck = FoundMove::Stuck { id: state.id, volume: state.name.clone(), pool: name.clone(), closed };
            let Some((peer_name, peer_uuid, _)) = peer else {
                found.push(stuck);
                continue;
            };
            let ours = (name.as_str(), *uuid, Some(state));
            let other = (peer_name.as_str(), *peer_uuid, theirs);
            let (source, dest) = if leaves(state) { (ours, other) } else { (other, ours) };
            let (id, name) = (state.id, state.name.clone());
            let plan = Plan { id, name, source: source.1, dest: dest.1, rate_bytes_per_s };
            found.push(match Mover::resume(plan.clone(), source.2, dest.2) {
                Ok(mover) => FoundMove::Ready(Box::new(MoveRun::with(runtime, source.0, dest.0, plan, mover))),
                Err(_) => stuck,
            });
        }
    }
    Ok(found)
}
