//! `segue bench isolation`: a victim alone and beside aggressors, under each policy, and shares by weight.
//!
//! Owns: the method, the rounds and the output. Never: compares with numbers of another run.
//! Invariant: alone and beside alternate within each round, and ratios are made within a round.
//!
//! The node runs in this process: the shipped runtime with one core, and by default a drive in memory that takes its
//! time (`DriveTiming`), because isolation at a drive can only be judged against a drive whose own times are known and
//! steady. The victim's thread and the core's run in real time where the system allows it (else aggressors at the lowest
//! priority), so that what an aggressor takes from the victim it takes through the server, not by using its processor.

mod client;
mod load;
mod world;

use super::stats::{Median, median, median_ratio, quantile};
use crate::Global;
use crate::exit::ExitCode;
use crate::out::Table;
use anyhow::Result;
use load::{Aggressor, Running, VOLUME_BYTES, Victim};
use segue_runtime::drive::DriveTiming;
use segue_sched::qos::PolicyKind;
use segue_types::Share;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use world::World;

/// Tenants and weights of the comparison of shares.
const TENANTS: [(&str, u32); 4] = [("t1", 100), ("t2", 200), ("t3", 300), ("t4", 400)];
/// How long a load runs before it is measured.
const WARM_UP: Duration = Duration::from_millis(150);

/// Arguments of `segue bench isolation`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Policies to compare.
    #[arg(long, value_delimiter = ',', value_parser = parse_policy, default_value = "mclock,drr,slo,strict,fifo")]
    policies: Vec<PolicyKind>,
    /// Aggressors; all when not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    aggressors: Vec<Aggressor>,
    /// Victims; all when not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    victims: Vec<Victim>,
    /// Length of each measurement, seconds.
    #[arg(long, default_value_t = 0.4)]
    seconds: f64,
    /// Rounds; ratios are made within a round, and reported as medians over rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// A look in a minute: three rounds of 0.4 s, one victim, mclock and fifo.
    #[arg(long)]
    quick: bool,
    /// Serve from a new file in this folder with direct I/O, in place of the modelled drive.
    #[arg(long, value_name = "DIR")]
    file_in: Option<PathBuf>,
    /// Seed of the offsets.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn parse_policy(word: &str) -> Result<PolicyKind, String> {
    PolicyKind::parse(word).ok_or_else(|| "a policy is fifo, strict, drr, slo or mclock".to_owned())
}

/// Latencies of a victim, medians over rounds, microseconds.
#[derive(Clone, Serialize)]
struct Latency {
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    iops: f64,
}

#[derive(Serialize)]
struct VictimReport {
    victim: &'static str,
    alone: Latency,
    beside: Latency,
    p50_over_alone: Median,
    p99_over_alone: Median,
    p999_over_alone: Median,
}

#[derive(Serialize)]
struct AggressorReport {
    aggressor: &'static str,
    /// The median of the worst of the victims.
    victim_p99_over_alone: f64,
    /// What the aggressor did per second, median over the measurements.
    aggressor_per_s: f64,
    victims: Vec<VictimReport>,
}

#[derive(Serialize)]
struct ShareReport {
    tenant: &'static str,
    weight: u32,
    /// Its part of the cost served, over its part of the weights.
    share_over_weight: Median,
}

#[derive(Serialize)]
struct PolicyReport {
    aggressors: Vec<AggressorReport>,
    /// The largest distance of a tenant's median share from its weight, as a part of the weight.
    share_error_max: f64,
    /// Jain's index of the tenants' shares by weight: 1 when all get what they should.
    jain_index: f64,
    /// Part of what the drive does under fifo with an open window that it does not do under this policy.
    utilisation_lost: Median,
    shares: Vec<ShareReport>,
}

#[derive(Serialize)]
struct Report {
    method: String,
    drive: String,
    rounds: usize,
    seconds: f64,
    seed: u64,
    real_time_threads: bool,
    policies: BTreeMap<&'static str, PolicyReport>,
}

/// One measurement.
struct Sample {
    p50: f64,
    p99: f64,
    p999: f64,
    iops: f64,
}

impl Sample {
    fn of(latencies: &[f64], seconds: f64) -> Sample {
        let at = |p| quantile(latencies, p) / 1000.0;
        Sample { p50: at(0.5), p99: at(0.99), p999: at(0.999), iops: latencies.len() as f64 / seconds }
    }
}

/// Runs the bench.
///
/// # Errors
/// When the node cannot start, or a request fails.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let mut plan = Plan::new(args);
    let world = World::start(args.file_in.as_deref(), plan.timing, &["victim", "aggressor", "t1", "t2", "t3", "t4"])?;
    let mut policies = BTreeMap::new();
    for policy in plan.policies.clone() {
        world.use_policy(policy)?;
        let mut aggressors = Vec::new();
        for aggressor in plan.aggressors.clone() {
            eprintln!("{}: beside {}", policy.label(), aggressor.label());
            aggressors.push(plan.beside(&world, aggressor)?);
        }
        eprintln!("{}: shares by weight", policy.label());
        policies.insert(policy.label(), plan.shares(&world, policy, aggressors)?);
    }
    let report = Report {
        method:
            "one core of the shipped runtime in this process; victim alone and beside the aggressor alternate within \
                 each round; ratios within a round, medians over rounds; victim and core in real time where allowed, aggressors after them"
                .to_owned(),
        drive: match &args.file_in {
            None => format!("modelled: {:?}", plan.timing),
            Some(path) => format!("a file in {}, direct I/O, not calibrated", path.display()),
        },
        rounds: plan.rounds,
        seconds: plan.seconds,
        seed: args.seed,
        real_time_threads: world.preferred,
        policies,
    };
    world.stop()?;
    global.print("bench.isolation", &report, || text(&report));
    Ok(ExitCode::Yes)
}

struct Plan {
    policies: Vec<PolicyKind>,
    aggressors: Vec<Aggressor>,
    victims: Vec<Victim>,
    rounds: usize,
    seconds: f64,
    seed: u64,
    timing: DriveTiming,
}

impl Plan {
    fn new(args: &Args) -> Plan {
        use clap::ValueEnum;
        let or_all =
            |given: &[Aggressor]| if given.is_empty() { Aggressor::value_variants().to_vec() } else { given.to_vec() };
        let victims = match (args.victims.is_empty(), args.quick) {
            (false, _) => args.victims.clone(),
            (true, true) => vec![Victim::ReadQd1],
            (true, false) => Victim::value_variants().to_vec(),
        };
        let quick_policies = || vec![PolicyKind::Mclock, PolicyKind::Fifo];
        Plan {
            policies: if args.quick { quick_policies() } else { args.policies.clone() },
            aggressors: or_all(&args.aggressors),
            victims,
            rounds: if args.quick { 3 } else { args.rounds.max(1) },
            seconds: if args.quick { 0.4 } else { args.seconds.max(0.05) },
            seed: args.seed,
            timing: DriveTiming::default(),
        }
    }

    fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Every victim alone and beside an aggressor.
    fn beside(&mut self, world: &World, aggressor: Aggressor) -> Result<AggressorReport> {
        let (mut victims, mut done) = (Vec::new(), Vec::new());
        for victim in self.victims.clone() {
            let (mut alone, mut beside) = (Vec::new(), Vec::new());
            let mut client = world.client("victim")?;
            for _ in 0..self.rounds {
                alone.push(self.measure(victim, &mut client)?);
                let running = Running::start(aggressor, &world.door, "aggressor", self.seed);
                victim.run(&mut client, self.seed, WARM_UP)?;
                let begun = std::time::Instant::now();
                let sample = self.measure(victim, &mut client);
                let took = begun.elapsed() + WARM_UP;
                done.push(running.stop()? as f64 / took.as_secs_f64());
                beside.push(sample?);
            }
            victims.push(victim_report(victim, &alone, &beside));
        }
        let worst = victims.iter().map(|v: &VictimReport| v.p99_over_alone.median).fold(0.0, f64::max);
        let aggressor_per_s = median(&done).median;
        Ok(AggressorReport { aggressor: aggressor.label(), victim_p99_over_alone: worst, aggressor_per_s, victims })
    }

    fn measure(&mut self, victim: Victim, client: &mut client::Client) -> Result<Sample> {
        self.seed = self.seed.wrapping_add(1);
        Ok(Sample::of(&victim.run(client, self.seed, self.time())?, self.seconds))
    }

    /// Tenants of different weights, all busy: what each gets, and what the drive does in all.
    fn shares(&mut self, world: &World, policy: PolicyKind, aggressors: Vec<AggressorReport>) -> Result<PolicyReport> {
        for (tenant, weight) in TENANTS {
            world.set(tenant, Share { weight, ..Share::default() })?;
        }
        let (mut parts, mut totals, mut open) = (vec![Vec::new(); TENANTS.len()], Vec::new(), Vec::new());
        let weights: u32 = TENANTS.iter().map(|tenant| tenant.1).sum();
        for _ in 0..self.rounds {
            world.use_policy(PolicyKind::Fifo)?;
            open.push(self.crowd(world)?.iter().sum::<u64>() as f64);
            world.use_policy(policy)?;
            let costs = self.crowd(world)?;
            let total = costs.iter().sum::<u64>() as f64;
            for (at, cost) in costs.iter().enumerate() {
                parts[at].push(*cost as f64 / total * weights as f64 / TENANTS[at].1 as f64);
            }
            totals.push(total);
        }
        let lost: Vec<f64> = totals.iter().zip(&open).map(|(policy, open)| 1.0 - policy / open).collect();
        let shares: Vec<ShareReport> = TENANTS
            .iter()
            .zip(&parts)
            .map(|((tenant, weight), parts)| ShareReport { tenant, weight: *weight, share_over_weight: median(parts) })
            .collect();
        let got: Vec<f64> = shares.iter().map(|share| share.share_over_weight.median).collect();
        Ok(PolicyReport {
            aggressors,
            share_error_max: got.iter().map(|share| (share - 1.0).abs()).fold(0.0, f64::max),
            jain_index: got.iter().sum::<f64>().powi(2) / (got.len() as f64 * got.iter().map(|g| g * g).sum::<f64>()),
            utilisation_lost: median(&lost),
            shares,
        })
    }

    /// What each tenant was served while all were busy, cost units.
    fn crowd(&mut self, world: &World) -> Result<Vec<u64>> {
        let stop = std::sync::atomic::AtomicBool::new(false);
        let stopped = || stop.load(std::sync::atomic::Ordering::Relaxed);
        std::thread::scope(|scope| {
            let tenants: Vec<_> = TENANTS
                .iter()
                .map(|(tenant, weight)| {
                    let (client, seed) = (world.client(tenant), self.seed + *weight as u64);
                    scope.spawn(move || -> Result<()> {
                        // All tenants alike, so that a share is lost at the drive alone.
                        load::real_time(0, 1);
                        let mut dice = client::Dice::new(seed);
                        let next = || {
                            let offset = dice.below(VOLUME_BYTES / 4096) * 4096;
                            (!stopped()).then_some(client::Ask::Read { offset, len: 4096 })
                        };
                        client?.run(256, next, |_, _| {})
                    })
                })
                .collect();
            std::thread::sleep(WARM_UP);
            let before = world.state();
            std::thread::sleep(self.time());
            let after = world.state();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            for tenant in tenants {
                tenant.join().expect("a tenant does not panic")?;
            }
            let (before, after) = (before?, after?);
            let cost = |state: &segue_runtime::SharingState, name: &str| {
                state.volumes.iter().find(|volume| volume.name == name).map_or(0, |volume| volume.stats.cost)
            };
            Ok(TENANTS.iter().map(|(name, _)| cost(&after, name) - cost(&before, name)).collect())
        })
    }
}

fn victim_report(victim: Victim, alone: &[Sample], beside: &[Sample]) -> VictimReport {
    let column = |samples: &[Sample], field: fn(&Sample) -> f64| samples.iter().map(field).collect::<Vec<f64>>();
    let latency = |samples: &[Sample]| Latency {
        p50_us: median(&column(samples, |s| s.p50)).median,
        p99_us: median(&column(samples, |s| s.p99)).median,
        p999_us: median(&column(samples, |s| s.p999)).median,
        iops: median(&column(samples, |s| s.iops)).median,
    };
    let ratio = |field: fn(&Sample) -> f64| median_ratio(&column(beside, field), &column(alone, field));
    VictimReport {
        victim: victim.label(),
        alone: latency(alone),
        beside: latency(beside),
        p50_over_alone: ratio(|s| s.p50),
        p99_over_alone: ratio(|s| s.p99),
        p999_over_alone: ratio(|s| s.p999),
    }
}

fn text(report: &Report) -> String {
    let mut table =
        Table::new(&["POLICY", "AGGRESSOR", "VICTIM", "ALONE p99>", "BESIDE p99>", "p99 x>", "INTERVAL>", "p99.9 x>"]);
    let mut shares = Table::new(&["POLICY", "SHARE ERROR>", "JAIN>", "UTILISATION LOST>"]);
    for (policy, p) in &report.policies {
        for aggressor in &p.aggressors {
            for v in &aggressor.victims {
                table.row(vec![
                    (*policy).to_owned(),
                    aggressor.aggressor.to_owned(),
                    v.victim.to_owned(),
                    format!("{:.0} us", v.alone.p99_us),
                    format!("{:.0} us", v.beside.p99_us),
                    format!("{:.2}", v.p99_over_alone.median),
                    format!("{:.2}-{:.2}", v.p99_over_alone.low, v.p99_over_alone.high),
                    format!("{:.2}", v.p999_over_alone.median),
                ]);
            }
        }
        shares.row(vec![
            (*policy).to_owned(),
            format!("{:.1} %", p.share_error_max * 100.0),
            format!("{:.4}", p.jain_index),
            format!("{:.1} %", p.utilisation_lost.median * 100.0),
        ]);
    }
    format!("{}\ndrive: {}\n\n{}\n{}", report.method, report.drive, table.render(), shares.render())
}
