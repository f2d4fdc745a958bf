//! Two laws that the engine must obey: waits in a queue, and the tail of a request to many servers.
//!
//! Owns: the table of cases, their intervals and verdicts. Never: calls a case good because it is near.
//! Invariant: a case is `inside` only if the formula lies in the stated interval.
//!
//! *Waits*: [`crate::queues`] at three loads, the mean of independent replications with Student's t.
//! *Clustered tail* (Dean and Barroso 2013, "The tail at scale", CACM 56(2)): a request waits for the last of N
//! servers, each slow with probability p; it is slow with probability `1 - (1 - p)^N`. Requests are independent, so the
//! interval is Wilson's (1927), which holds near 0 and 1 as well.
//!
//! Intervals are 99.9 %, so that all 23 cases are inside for about 98 of 100 seeds; a smaller confidence would fail
//! honest engines more often, and one case in a thousand fails even so. They are narrow: see
//! [`crate::queues::Case::customers`].

use crate::queues::{Case, Service};
use segue_des::stats::{Confidence, mean_at};
use segue_des::{Chance, Queue};
use segue_types::Nanos;
use serde::Serialize;

/// What to run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Setup {
    /// Independent runs of each case, at least 2.
    pub replications: u64,
    /// Thousandths of the default lengths: intervals widen with the square root. At least 1.
    pub length_permille: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Setup { replications: 40, length_permille: 1_000 }
    }
}

/// How sure every interval of the table is.
pub const CONFIDENCE: Confidence = Confidence::P999;
/// Loads of the queues, thousandths.
pub const UTILISATIONS_PERMILLE: [u64; 3] = [500, 800, 950];
/// Servers per request.
pub const SERVERS: [u32; 4] = [1, 10, 100, 1_000];
/// How many of a million replies are slow.
pub const SLOW_PPM: [u64; 2] = [10_000, 1_000];
/// Replies simulated per case of the clustered tail, over all replications.
const REPLIES: u64 = 4_000_000;

/// One line of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Row {
    /// A queue's mean wait.
    Wait(Case),
    /// A request to many servers.
    Tail(Fanout),
}

/// Requests that wait for all of their servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fanout {
    /// Servers per request.
    pub servers: u32,
    /// How many of a million replies are slow.
    pub slow_ppm: u64,
}

/// What one replication of one row showed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Sample {
    /// Mean wait, nanoseconds.
    Wait {
        /// Over the run's customers.
        mean_ns: f64,
        /// How many.
        customers: u64,
        /// Events handled.
        events: u64,
    },
    /// Slow requests.
    Tail {
        /// Of these.
        requests: u64,
        /// So many.
        slow: u64,
        /// Events handled.
        events: u64,
    },
}

/// A queue's verdict.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct WaitRow {
    /// Load of the server, 0..1.
    pub utilisation: f64,
    /// Distribution of the service.
    pub service: &'static str,
    /// Mean wait before service, nanoseconds.
    pub simulated_mean_wait_ns: f64,
    /// Lower end of the interval, nanoseconds.
    pub low: f64,
    /// Upper end, nanoseconds.
    pub high: f64,
    /// The formula's mean wait, nanoseconds.
    pub formula_ns: f64,
    /// The formula lies in the interval.
    pub inside: bool,
    /// Half the interval over the formula.
    pub half_width: f64,
    /// Customers measured.
    pub customers: u64,
}

/// A clustered tail's verdict.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct TailRow {
    /// Servers per request.
    pub servers: u32,
    /// Probability that a reply is slow.
    pub p: f64,
    /// Share of requests that were slow.
    pub simulated: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// `1 - (1 - p)^N`.
    pub formula: f64,
    /// The formula lies in the interval.
    pub inside: bool,
    /// Requests simulated.
    pub requests: u64,
}

/// The table.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Tables {
    /// Queues.
    pub rows: Vec<WaitRow>,
    /// Clustered tails.
    pub tail: Vec<TailRow>,
    /// How sure each interval is.
    pub confidence: Confidence,
    /// Every case is inside.
    pub inside: bool,
    /// Events handled.
    pub events: u64,
}

/// The table's cases, longest first, so that parallel runs end together.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for utilisation_permille in UTILISATIONS_PERMILLE.into_iter().rev() {
        rows.extend(Service::ALL.map(|service| Row::Wait(Case { service, utilisation_permille })));
    }
    for slow_ppm in SLOW_PPM {
        rows.extend(SERVERS.map(|servers| Row::Tail(Fanout { servers, slow_ppm })));
    }
    rows
}

impl Row {
    /// Runs one replication, 0 and up; which one and the seed decide its chance. Independent of every other.
    ///
    /// # Panics
    /// When the setup is out of its range.
    pub fn run(&self, setup: &Setup, seed: u64, replication: u64) -> Sample {
        assert!(setup.replications >= 2 && setup.length_permille >= 1, "{setup:?}");
        let share = |all: u64| (all * setup.length_permille / 1_000 / setup.replications).max(1);
        match self {
            Row::Wait(case) => {
                let load = Chance::new(seed).stream_of(case.service.name(), case.utilisation_permille);
                let run = case.run(share(case.customers()), &load.stream_of("replication", replication));
                Sample::Wait { mean_ns: run.mean_wait_ns, customers: run.customers, events: run.events }
            }
            Row::Tail(fanout) => {
                let kind = Chance::new(seed).stream_of("fanout", fanout.slow_ppm << 32 | u64::from(fanout.servers));
                fanout.run(share(REPLIES / u64::from(fanout.servers)), &kind.stream_of("replication", replication))
            }
        }
    }

    /// The row's verdict on its replications, added to the tables.
    ///
    /// # Panics
    /// When the samples are of another kind of row, or there are none.
    pub fn judge(&self, samples: &[Sample], tables: &mut Tables) {
        match self {
            Row::Wait(case) => {
                let wait = |sample: &Sample| match sample {
                    Sample::Wait { mean_ns, customers, events } => (*mean_ns, *customers, *events),
                    Sample::Tail { .. } => panic!("a sample of another row"),
                };
                let waits: Vec<_> = samples.iter().map(wait).collect();
                tables.events += waits.iter().map(|w| w.2).sum::<u64>();
                let customers = waits.iter().map(|w| w.1).sum();
                let means: Vec<f64> = waits.iter().map(|w| w.0).collect();
                tables.rows.push(wait_row(case, &means, customers, case.formula_ns()));
            }
            Row::Tail(fanout) => {
                let count = |sample: &Sample| match sample {
                    Sample::Tail { requests, slow, events } => (*requests, *slow, *events),
                    Sample::Wait { .. } => panic!("a sample of another row"),
                };
                let counts: Vec<_> = samples.iter().map(count).collect();
                tables.events += counts.iter().map(|c| c.2).sum::<u64>();
                let (requests, slow) = (counts.iter().map(|c| c.0).sum(), counts.iter().map(|c| c.1).sum());
                tables.tail.push(tail_row(fanout, requests, slow, fanout.formula()));
            }
        }
    }
}

/// All replications of all rows, one after another; to run them in parallel, give [`Row::run`] to many threads and
/// [`tables`] their samples.
pub fn run(setup: &Setup, seed: u64) -> Tables {
    let all = |row: &Row| (0..setup.replications).map(|r| row.run(setup, seed, r)).collect();
    tables(&rows().iter().map(all).collect::<Vec<Vec<Sample>>>())
}

/// The tables from the samples of each of [`rows`], in that order.
///
/// # Panics
/// When there are not as many.
pub fn tables(samples: &[Vec<Sample>]) -> Tables {
    let rows = rows();
    assert_eq!(rows.len(), samples.len(), "samples of every row");
    let mut tables = Tables { confidence: CONFIDENCE, ..Tables::default() };
    for (row, samples) in rows.iter().zip(samples) {
        row.judge(samples, &mut tables);
    }
    // Readers want the least load first.
    tables.rows.sort_by(|a, b| a.utilisation.total_cmp(&b.utilisation));
    tables.inside = tables.rows.iter().all(|row| row.inside) && tables.tail.iter().all(|row| row.inside);
    tables
}

fn wait_row(case: &Case, means_ns: &[f64], customers: u64, formula_ns: f64) -> WaitRow {
    let mean = mean_at(CONFIDENCE, means_ns);
    WaitRow {
        utilisation: case.utilisation_permille as f64 / 1e3,
        service: case.service.name(),
        simulated_mean_wait_ns: mean.mean,
        low: mean.low,
        high: mean.high,
        formula_ns,
        inside: mean.contains(formula_ns),
        half_width: mean.half_width() / formula_ns,
        customers,
    }
}

fn tail_row(fanout: &Fanout, requests: u64, slow: u64, formula: f64) -> TailRow {
    let (low, high) = wilson(slow, requests);
    let (p, simulated) = (fanout.slow_ppm as f64 / 1e6, slow as f64 / requests as f64);
    let inside = low <= formula && formula <= high;
    TailRow { servers: fanout.servers, p, simulated, low, high, formula, inside, requests }
}

/// Wilson's interval of a share, at [`CONFIDENCE`].
fn wilson(hits: u64, of: u64) -> (f64, f64) {
    // Student's t with that many degrees of freedom is the normal's.
    let z = CONFIDENCE.t(1 << 30);
    let (n, share, z2) = (of as f64, hits as f64 / of as f64, z * z);
    let middle = (share + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = z / (1.0 + z2 / n) * (share * (1.0 - share) / n + z2 / (4.0 * n * n)).sqrt();
    // At the ends, middle and half differ by rounding only.
    let low = if hits == 0 { 0.0 } else { middle - half };
    let high = if hits == of { 1.0 } else { middle + half };
    (low, high)
}

impl Fanout {
    /// `1 - (1 - p)^N`.
    pub fn formula(&self) -> f64 {
        let fast = 1.0 - self.slow_ppm as f64 / 1e6;
        1.0 - (0..self.servers).fold(1.0, |all, _| all * fast)
    }

    /// Requests one after another; every reply is an event, the last one ends its request.
    fn run(&self, requests: u64, chance: &Chance) -> Sample {
        let mut draws = chance.stream("replies");
        let mut queue: Queue<u32> = Queue::new();
        let (mut slow, mut events) = (0, 0);
        for _ in 0..requests {
            let began = queue.now();
            for server in 0..self.servers {
                queue.at_tie(began + reply_ns(self.slow_ppm, &mut draws), u64::from(server), server);
            }
            while queue.pop().is_some() {
                events += 1;
            }
            slow += u64::from(queue.now() - began >= SLOW_NS);
        }
        Sample::Tail { requests, slow, events }
    }
}

/// A reply or request is slow from here on.
const SLOW_NS: Nanos = 10_000_000;

/// Fast replies take 1 to 5 ms, slow ones 10 to 50.
fn reply_ns(slow_ppm: u64, chance: &mut Chance) -> Nanos {
    let from = if chance.odds(slow_ppm, 1_000_000) { SLOW_NS } else { SLOW_NS / 10 };
    from + chance.below(4 * from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A twenty-fifth of the default lengths.
    const SHORT: Setup = Setup { replications: 20, length_permille: 40 };

    #[test]
    fn sim_every_case_is_inside() {
        let tables = run(&SHORT, 1);
        assert_eq!((tables.rows.len(), tables.tail.len()), (15, 8));
        for row in &tables.rows {
            assert!(row.inside && row.half_width < 0.3, "{row:?}");
        }
        for row in &tables.tail {
            assert!(row.inside, "{row:?}");
        }
        assert!(tables.inside && tables.events > 1_000_000);
    }

    #[test]
    fn canary_a_wrong_formula_is_rejected() {
        let waits = |case: Case| -> Vec<f64> {
            let mean = |r| match Row::Wait(case).run(&SHORT, 1, r) {
                Sample::Wait { mean_ns, .. } => mean_ns,
                Sample::Tail { .. } => unreachable!("a queue was run"),
            };
            (0..SHORT.replications).map(mean).collect()
        };
        for utilisation_permille in UTILISATIONS_PERMILLE {
            let of = |service| Case { service, utilisation_permille };
            // The wait of M/M/1 for M/D/1, and the other way round.
            for (service, other) in
                [(Service::Constant, Service::Exponential), (Service::Exponential, Service::Constant)]
            {
                let waits = waits(of(service));
                assert!(wait_row(&of(service), &waits, 1, of(service).formula_ns()).inside);
                let wrong = wait_row(&of(service), &waits, 1, of(other).formula_ns());
                assert!(!wrong.inside, "{wrong:?}");
            }
        }
        // N p for 1 - (1 - p)^N.
        let fanout = Fanout { servers: 10, slow_ppm: 10_000 };
        let mut tables = Tables::default();
        Row::Tail(fanout).judge(&[Row::Tail(fanout).run(&SHORT, 1, 0)], &mut tables);
        let requests = 200_000;
        let slow = (tables.tail[0].simulated * requests as f64) as u64;
        assert!(!tail_row(&fanout, requests, slow, 0.1).inside);
    }

    #[test]
    fn intervals_of_shares_hold_at_the_ends() {
        let (low, high) = wilson(0, 1_000);
        assert!(low == 0.0 && (0.005..0.02).contains(&high), "{low} {high}");
        let (low, high) = wilson(1_000, 1_000);
        assert!((0.98..0.995).contains(&low) && high == 1.0, "{low} {high}");
        // Wilson's known value for 10 of 100: at 99.9 %, z = 3.2905.
        let (low, high) = wilson(10, 100);
        assert!((low - 0.03749).abs() < 1e-5 && (high - 0.24067).abs() < 1e-5, "{low} {high}");
    }

    #[test]
    fn the_law_as_published() {
        // Dean and Barroso: one in a hundred slow, a hundred servers: 63 %.
        assert!((Fanout { servers: 100, slow_ppm: 10_000 }.formula() - 0.634).abs() < 1e-3);
        assert!((Fanout { servers: 2_000, slow_ppm: 100 }.formula() - 0.181).abs() < 1e-3);
    }

    #[test]
    fn replications_do_not_depend_on_their_order() {
        let rows = rows();
        let alone = rows[7].run(&SHORT, 3, 5);
        rows[7].run(&SHORT, 3, 4);
        assert_eq!(alone, rows[7].run(&SHORT, 3, 5));
        assert_ne!(alone, rows[7].run(&SHORT, 4, 5));
        assert_ne!(alone, rows[7].run(&SHORT, 3, 6));
    }
}
