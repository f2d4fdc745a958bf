//! Queues whose mean wait is known: the engine's measuring stick.
//!
//! Owns: the stations, their formulas and the lengths of runs. Never: starts in the state that a formula predicts.
//! Invariant: every measured customer is counted, however long it waits; a run ends when all have begun their last service.
//!
//! Poisson arrivals at one first-come-first-served server, or at two in a row. A run starts empty and deletes its
//! warm-up: ten relaxation times, so that e^-10 of the initial bias is left. (Drawing the first state from the
//! stationary distribution would need the formula that is to be tested.)
//!
//! Formulas: Pollaczek (1930) and Khinchine (1932), `W = rho S (1 + c^2) / (2 (1 - rho))` with mean service `S` of
//! squared coefficient of variation `c^2`; Jackson (1957) for the tandem: each station as if it were alone.

use segue_des::{Chance, Dist, Queue};
use segue_types::Nanos;
use serde::Serialize;
use std::collections::VecDeque;

/// How long services last. All have a mean of [`SERVICE_NS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// Always the same: M/D/1.
    Constant,
    /// Uniform from 0 to twice the mean.
    Uniform,
    /// Exponential: M/M/1.
    Exponential,
    /// Four of five exponential with mean 0.6, one with 2.6 times [`SERVICE_NS`]: c^2 = 2.28.
    Hyperexponential,
    /// Two exponential servers in a row: the sum of both waits.
    Tandem,
}

/// Mean service, nanoseconds.
pub const SERVICE_NS: Nanos = 1_000_000;

impl Service {
    /// All.
    pub const ALL: [Service; 5] =
        [Service::Constant, Service::Uniform, Service::Exponential, Service::Hyperexponential, Service::Tandem];

    /// Its name in figures.
    pub const fn name(self) -> &'static str {
        match self {
            Service::Constant => "constant",
            Service::Uniform => "uniform",
            Service::Exponential => "exponential",
            Service::Hyperexponential => "hyperexponential",
            Service::Tandem => "tandem",
        }
    }

    /// The distribution of one service.
    pub const fn dist(self) -> Dist {
        match self {
            Service::Constant => Dist::Constant(SERVICE_NS),
            Service::Uniform => Dist::Uniform { low: 0, high: 2 * SERVICE_NS },
            Service::Exponential | Service::Tandem => Dist::Exponential { mean: SERVICE_NS },
            Service::Hyperexponential => Dist::Hyperexponential {
                short_mean: SERVICE_NS * 6 / 10,
                long_mean: SERVICE_NS * 26 / 10,
                long_permille: 200,
            },
        }
    }

    /// Its squared coefficient of variation.
    pub const fn variation(self) -> f64 {
        match self {
            Service::Constant => 0.0,
            Service::Uniform => 1.0 / 3.0,
            Service::Exponential | Service::Tandem => 1.0,
            // 2 (0.8 * 0.36 + 0.2 * 6.76) - 1
            Service::Hyperexponential => 2.28,
        }
    }

    const fn stations(self) -> usize {
        if matches!(self, Service::Tandem) { 2 } else { 1 }
    }
}

/// A queue at a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    /// The service.
    pub service: Service,
    /// Load of each server, thousandths, 1..=990.
    pub utilisation_permille: u64,
}

/// What a run showed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Run {
    /// Mean wait before service (both services of a tandem), nanoseconds.
    pub mean_wait_ns: f64,
    /// Customers that were measured.
    pub customers: u64,
    /// Events handled.
    pub events: u64,
}

impl Case {
    /// Load of each server, 0..1, of the whole nanoseconds that the run uses.
    pub fn utilisation(&self) -> f64 {
        SERVICE_NS as f64 / self.interarrival_ns() as f64
    }

    /// Mean time between arrivals, nanoseconds.
    ///
    /// # Panics
    /// When the load is out of its range.
    pub fn interarrival_ns(&self) -> Nanos {
        assert!((1..=990).contains(&self.utilisation_permille), "load {} of 1000", self.utilisation_permille);
        SERVICE_NS * 1_000 / self.utilisation_permille
    }

    /// The mean wait by the formula, nanoseconds.
    pub fn formula_ns(&self) -> f64 {
        let rho = self.utilisation();
        let one = rho * SERVICE_NS as f64 * (1.0 + self.service.variation()) / (2.0 * (1.0 - rho));
        one * self.service.stations() as f64
    }

    /// About the customers after which a queue has forgotten its past: `2 (1 + c^2) / (1 - rho)^2`.
    pub fn relaxation_customers(&self) -> u64 {
        let idle = 1.0 - self.utilisation();
        (2.0 * (1.0 + self.service.variation()) / (idle * idle)) as u64 + 1
    }

    /// Customers deleted at the begin of a run.
    pub fn warm_up_customers(&self) -> u64 {
        10 * self.relaxation_customers()
    }

    /// Customers to measure, over all replications, for intervals (99.9 %) within 3 % at loads to 0.8 and 6 % at 0.95:
    /// 71,600 relaxations at load 0.5, 8,600 at 0.95.
    pub fn customers(&self) -> u64 {
        let idle_permille = 1_000 - self.utilisation_permille;
        self.relaxation_customers() * (1_600 + 140 * idle_permille)
    }

    /// Simulates the warm-up and `customers` more.
    pub fn run(&self, customers: u64, chance: &Chance) -> Run {
        let mut system = System::new(self, customers, chance);
        let mut events = 0;
        while system.left > 0 {
            system.step();
            events += 1;
        }
        Run { mean_wait_ns: system.wait_ns as f64 / customers as f64, customers, events }
    }
}

#[derive(Clone, Copy)]
enum Event {
    Arrive,
    /// The customer at this station is served.
    Leave(u32),
}

#[derive(Clone, Copy)]
struct Customer {
    number: u64,
    /// When it came to the station where it is.
    came_at: Nanos,
}

struct Station {
    /// The first is being served.
    line: VecDeque<Customer>,
    draws: Chance,
}

struct System {
    queue: Queue<Event>,
    stations: Vec<Station>,
    service: Dist,
    arrivals: Chance,
    interarrival_ns: Nanos,
    arrived: u64,
    /// The first and one past the last customer that is measured.
    measured: (u64, u64),
    /// Measured customers that have not begun their last service.
    left: u64,
    wait_ns: u128,
}

impl System {
    fn new(case: &Case, customers: u64, chance: &Chance) -> System {
        let stations = case.service.stations() as u64;
        let station = |n| Station { line: VecDeque::new(), draws: chance.stream_of("service", n) };
        let warm_up = case.warm_up_customers();
        let mut system = System {
            queue: Queue::new(),
            stations: (0..stations).map(station).collect(),
            service: case.service.dist(),
            arrivals: chance.stream("arrivals"),
            interarrival_ns: case.interarrival_ns(),
            arrived: 0,
            measured: (warm_up, warm_up + customers),
            left: customers,
            wait_ns: 0,
        };
        system.queue.at(0, Event::Arrive);
        system
    }

    fn step(&mut self) {
        let (now, event) = self.queue.pop().expect("an arrival is always scheduled");
        match event {
            Event::Arrive => {
                let number = self.arrived;
                self.arrived += 1;
                self.come(0, now, number);
                self.queue.at(now + self.arrivals.exponential(self.interarrival_ns), Event::Arrive);
            }
            Event::Leave(station) => {
                let at = station as usize;
                let gone = self.stations[at].line.pop_front().expect("somebody was served");
                if !self.stations[at].line.is_empty() {
                    self.serve(at, now);
                }
                if at + 1 < self.stations.len() {
                    self.come(at + 1, now, gone.number);
                }
            }
        }
    }

    fn come(&mut self, station: usize, now: Nanos, number: u64) {
        let line = &mut self.stations[station].line;
        line.push_back(Customer { number, came_at: now });
        if line.len() == 1 {
            self.serve(station, now);
        }
    }

    /// The first in line begins its service.
    fn serve(&mut self, at: usize, now: Nanos) {
        let station = &mut self.stations[at];
        let first = station.line[0];
        if self.measured.0 <= first.number && first.number < self.measured.1 {
            self.wait_ns += u128::from(now - first.came_at);
            self.left -= u64::from(at + 1 == self.stations.len());
        }
        let station = &mut self.stations[at];
        self.queue.at(now + self.service.draw(&mut station.draws), Event::Leave(at as u32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn case(service: Service, utilisation_permille: u64) -> Case {
        Case { service, utilisation_permille }
    }

    #[test]
    fn formulas_are_the_known_ones() {
        let near = |case: Case, expected: f64| (case.formula_ns() / SERVICE_NS as f64 - expected).abs() < 1e-3;
        // rho / (1 - rho), half of it, and twice it.
        assert!(near(case(Service::Exponential, 500), 1.0) && near(case(Service::Exponential, 800), 4.0));
        assert!(near(case(Service::Constant, 800), 2.0) && near(case(Service::Tandem, 800), 8.0));
        assert!(near(case(Service::Uniform, 500), 2.0 / 3.0) && near(case(Service::Hyperexponential, 500), 1.64));
    }

    #[test]
    fn services_have_the_moments_that_the_formula_takes() {
        let mut chance = Chance::new(1);
        for service in Service::ALL {
            let draws = (0..200_000).map(|_| service.dist().draw(&mut chance) as f64 / SERVICE_NS as f64);
            let moments: segue_des::stats::Moments = draws.collect();
            assert!((moments.mean() - 1.0).abs() < 0.015, "{service:?}: mean {}", moments.mean());
            assert!((moments.variance() - service.variation()).abs() < 0.1, "{service:?}: {}", moments.variance());
        }
    }

    /// Lindley's recursion: no events, no queue.
    fn lindley(case: Case, customers: u64, chance: &Chance) -> f64 {
        let (mut arrivals, mut services) = (chance.stream("arrivals"), chance.stream_of("service", 0));
        let (mut free_at, mut now, mut wait) = (0u64, 0u64, 0u128);
        let warm_up = case.warm_up_customers();
        for number in 0..warm_up + customers {
            let begin = now.max(free_at);
            if number >= warm_up {
                wait += u128::from(begin - now);
            }
            free_at = begin + case.service.dist().draw(&mut services);
            now += arrivals.exponential(case.interarrival_ns());
        }
        wait as f64 / customers as f64
    }

    #[test]
    fn model_events_give_exactly_what_the_recursion_gives() {
        for service in [Service::Constant, Service::Uniform, Service::Exponential, Service::Hyperexponential] {
            for (seed, load) in [500, 800, 950].into_iter().enumerate() {
                let (case, chance) = (case(service, load), Chance::new(seed as u64));
                let run = case.run(5_000, &chance);
                assert_eq!(run.mean_wait_ns, lindley(case, 5_000, &chance), "{case:?}");
                assert!(run.events >= 10_000 && run == case.run(5_000, &chance));
            }
        }
    }

    #[test]
    fn the_warm_up_is_longer_than_mser_asks_for() {
        let case = case(Service::Exponential, 800);
        let mut series = segue_des::stats::Series::new(10);
        let mut system = System::new(&case, 20_000, &Chance::new(3));
        system.measured = (0, 20_000);
        while system.left > 0 {
            let (left, wait_ns) = (system.left, system.wait_ns);
            system.step();
            // At most one service begins in a step.
            if system.left < left {
                series.add(20_000 - left, (system.wait_ns - wait_ns) as u64);
            }
        }
        let cut = segue_des::stats::mser5(&series.means()).expect("20,000 customers are enough at load 0.8");
        assert!(cut.values as u64 * 10 <= 4 * case.warm_up_customers(), "{cut:?} of {}", case.warm_up_customers());
    }
}
