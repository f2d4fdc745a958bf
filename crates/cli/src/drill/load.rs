//! The load: clients that never rest, and write down what they were promised.
//!
//! Owns: the clients and the thread that drives them. Never: decides what a failure means for the database.
//! Invariant: an id is used for one transaction only, whatever becomes of it.

use super::bank::{self, Draw};
use super::db::{DbError, Session, Target};
use super::ledger::Ledger;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Longest wait for an answer before a client gives a transaction up as unknown. Longer than any recovery that a
/// drill waits for: a stalled server that comes back must find its clients still there.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);
/// Longest wait for a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Pause of a client that was refused or cut off. Short: it bounds how exactly an outage is measured.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// What the load is.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Where the clients connect.
    pub target: Target,
    /// How many clients.
    pub clients: u64,
    /// Size of the bank.
    pub branches: u64,
    /// Seed of the clients' choices.
    pub seed: u64,
    /// Most transactions per second over all clients; 0 for no limit.
    pub rate_max: u64,
}

/// What became of the load beside its commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Connections made.
    pub connects: u64,
    /// Transactions that failed before their COMMIT was sent: surely not committed.
    pub failed: u64,
}

#[derive(Default)]
struct Counters {
    connects: AtomicU64,
    failed: AtomicU64,
}

impl Counters {
    fn snapshot(&self) -> Counts {
        Counts { connects: self.connects.load(Relaxed), failed: self.failed.load(Relaxed) }
    }
}

/// A running load. Dropping it ends it abruptly; [`Load::stop`] lets every client finish.
pub struct Load {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    options: LoadOptions,
    ledger: Arc<Ledger>,
    stop: AtomicBool,
    abort: tokio::sync::Notify,
    counts: Counters,
}

impl Load {
    /// Starts the clients on a thread of their own.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn start(options: LoadOptions, ledger: Arc<Ledger>) -> std::io::Result<Load> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, abort) = (AtomicBool::new(false), tokio::sync::Notify::new());
        let shared = Arc::new(Shared { options, ledger, stop, abort, counts: Counters::default() });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("drill-load".into()).spawn(move || {
            runtime.block_on(async {
                let clients: Vec<_> =
                    (0..own.options.clients).map(|number| tokio::spawn(client(Arc::clone(&own), number))).collect();
                let all = async {
                    for client in clients {
                        drop(client.await);
                    }
                };
                tokio::select! { () = all => {}, () = own.abort.notified() => {} }
            });
            runtime.shutdown_timeout(Duration::from_millis(100));
        })?;
        Ok(Load { shared, thread: Some(thread) })
    }

    /// Asks every client to end after its transaction, waits for it, and gives the counts.
    pub fn stop(mut self) -> Counts {
        self.shared.stop.store(true, Relaxed);
        self.join();
        self.shared.counts.snapshot()
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic of the load's thread is a bug of its own and was already printed.
            drop(thread.join());
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.shared.abort.notify_one();
        self.join();
    }
}

async fn client(shared: Arc<Shared>, number: u64) {
    let options = &shared.options;
    let mut draw = Draw(options.seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
    let mut session: Option<Session> = None;
    let mut sequence = 0u64;
    let pace =
        (options.rate_max > 0).then(|| Duration::from_secs_f64(options.clients as f64 / options.rate_max as f64));
    let mut next = tokio::time::Instant::now();
    while !shared.stop.load(Relaxed) {
        let Some(open) = session.as_mut() else {
            session = connect(&shared).await;
            continue;
        };
        if let Some(pace) = pace {
            tokio::time::sleep_until(next).await;
            // After an outage the load goes on at its rate; it does not make up for what was missed.
            next = (next + pace).max(tokio::time::Instant::now());
        }
        let id = number << 40 | sequence;
        sequence += 1;
        if !transact(&shared, open, &mut draw, id).await {
            session = None;
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

async fn connect(shared: &Shared) -> Option<Session> {
    if let Ok(session) = Session::connect(&shared.options.target, CONNECT_LIMIT).await {
        shared.counts.connects.fetch_add(1, Relaxed);
        return Some(session);
    }
    tokio::time::sleep(RETRY_PAUSE).await;
    None
}

/// One transaction. False when the connection is of no more use.
async fn transact(shared: &Shared, session: &mut Session, draw: &mut Draw, id: u64) -> bool {
    let ledger = &shared.ledger;
    let sql = bank::transaction(draw, shared.options.branches, ledger.run(), id);
    if let Err(error) = session.batch(&sql, ANSWER_LIMIT).await {
        shared.counts.failed.fetch_add(1, Relaxed);
        return matches!(error, DbError::Refused { .. }) && session.batch("ROLLBACK", ANSWER_LIMIT).await.is_ok();
    }
    // From here on the transaction's fate is the server's to tell. Whatever is not a clear yes is unknown.
    match session.batch("COMMIT", ANSWER_LIMIT).await {
        Ok(()) => {
            ledger.ack(id);
            true
        }
        Err(_) => {
            ledger.unknown(id);
            false
        }
    }
}
