//! `segue bench space`: how cores get space on one drive: static partitions, one shared allocator, or leases from a home.
//!
//! Owns: the three ways side by side, and what each costs and strands. Never: touches a drive.
//! Invariant: all three allocate the same blocks in the same pattern; the leases use the home that ships.

use super::stats::{Median, median};
use crate::Global;
use crate::exit::ExitCode;
use crate::out::Table;
use anyhow::Result;
use segue_volume::home::Home;
use serde::Serialize;
use std::sync::{Barrier, Mutex};
use std::time::Instant;

/// Blocks of an extent, and extents a slice keeps at most and asks for at once: those of a drive of 16 GiB.
const EXTENT_BLOCKS: u64 = 4096;
const BATCH: u32 = 16;
/// Blocks held at a time by each core while the cost is measured.
const HELD: usize = 64;

/// Arguments of `segue bench space`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Cores that allocate.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    cores: u16,
    /// Extents of 16 MiB on the drive.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(64..=65536))]
    extents: u32,
    /// Blocks allocated and freed by each core in a round.
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    blocks: u64,
    /// Rounds; in each every way runs once.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

/// One core's way to blocks.
trait Source: Send {
    /// A block, or `None` when this core can have no more.
    fn take(&mut self) -> Option<u64>;
    /// Gives one back.
    fn give(&mut self, block: u64);
}

/// A fixed part of the drive.
struct Part(Vec<u64>);

impl Source for Part {
    fn take(&mut self) -> Option<u64> {
        self.0.pop()
    }

    fn give(&mut self, block: u64) {
        self.0.push(block);
    }
}

/// The whole drive behind one lock.
struct Shared<'a>(&'a Mutex<Vec<u64>>);

impl Source for Shared<'_> {
    fn take(&mut self) -> Option<u64> {
        self.0.lock().expect("nobody panics").pop()
    }

    fn give(&mut self, block: u64) {
        self.0.lock().expect("nobody panics").push(block);
    }
}

/// Extents leased from the home, blocks taken from them.
struct Leased<'a> {
    home: &'a Mutex<Home>,
    slice: u16,
    blocks: Vec<u64>,
}

impl Source for Leased<'_> {
    fn take(&mut self) -> Option<u64> {
        if self.blocks.is_empty() {
            let extents = self.home.lock().expect("nobody panics").lend(self.slice, BATCH);
            let range = |extent: &u32| (u64::from(*extent) * EXTENT_BLOCKS)..((u64::from(*extent) + 1) * EXTENT_BLOCKS);
            self.blocks.extend(extents.iter().flat_map(range));
        }
        self.blocks.pop()
    }

    fn give(&mut self, block: u64) {
        self.blocks.push(block);
    }
}

#[derive(Serialize)]
struct Report {
    cores: u16,
    extents: u32,
    rounds: u32,
    ways: Vec<Way>,
}

#[derive(Serialize)]
struct Way {
    way: &'static str,
    /// Time of one allocation with its freeing, all cores at it, ns.
    ns_per_block: Median,
    /// Part of the drive that is still free when one core, which alone wants space, is refused.
    stranded: f64,
}

const WAYS: [&str; 3] = ["static partitions", "one shared allocator", "leases from a home"];

/// Runs it.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let mut samples = [const { Vec::new() }; 3];
    for round in 0..args.rounds as usize {
        for turn in 0..3 {
            let way = (round + turn) % 3;
            samples[way].push(with_sources(way, args, |sources| cost_ns(sources, args.blocks)));
        }
    }
    let all = f64::from(args.extents) * EXTENT_BLOCKS as f64;
    let stranded = |way: usize| with_sources(way, args, |mut sources| 1.0 - drain(&mut sources) as f64 / all);
    let ways = (0..3)
        .map(|way| Way { way: WAYS[way], ns_per_block: median(&samples[way]), stranded: stranded(way) })
        .collect();
    let report = Report { cores: args.cores, extents: args.extents, rounds: args.rounds, ways };
    global.print("bench.space", &report, || table(&report));
    Ok(ExitCode::Yes)
}

/// Makes one source for each core and gives them to `run`.
fn with_sources<T>(way: usize, args: &Args, run: impl FnOnce(Vec<Box<dyn Source + '_>>) -> T) -> T {
    let cores = u64::from(args.cores);
    let all = u64::from(args.extents) * EXTENT_BLOCKS;
    match way {
        0 => run((0..cores).map(|core| part(core * all / cores..(core + 1) * all / cores)).collect()),
        1 => {
            let blocks = Mutex::new((0..all).collect());
            run((0..cores).map(|_| Box::new(Shared(&blocks)) as Box<dyn Source>).collect())
        }
        _ => {
            let mut home = Home::new(args.extents, args.cores);
            (0..args.cores).for_each(|slice| home.claim(slice, &[]).expect("nobody has anything"));
            let home = Mutex::new(home);
            let leased = |slice| Box::new(Leased { home: &home, slice, blocks: Vec::new() }) as Box<dyn Source>;
            run((0..args.cores).map(leased).collect())
        }
    }
}

fn part(range: std::ops::Range<u64>) -> Box<dyn Source + 'static> {
    Box::new(Part(range.collect()))
}

/// All cores allocate and free at once.
fn cost_ns(sources: Vec<Box<dyn Source + '_>>, blocks: u64) -> f64 {
    let barrier = Barrier::new(sources.len());
    let times: Vec<f64> = std::thread::scope(|scope| {
        let work = |mut source: Box<dyn Source + '_>, barrier: &Barrier| {
            let mut held = Vec::with_capacity(HELD);
            barrier.wait();
            let start = Instant::now();
            for _ in 0..blocks / HELD as u64 {
                held.extend((0..HELD).map_while(|_| source.take()));
                held.drain(..).for_each(|block| source.give(block));
            }
            start.elapsed().as_nanos() as f64 / (blocks / HELD as u64 * HELD as u64) as f64
        };
        let threads: Vec<_> = sources
            .into_iter()
            .map(|source| {
                let barrier = &barrier;
                scope.spawn(move || work(source, barrier))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    times.iter().sum::<f64>() / times.len() as f64
}

/// Every core has taken one block; then the first takes all it can get. Blocks taken in all.
fn drain(sources: &mut [Box<dyn Source + '_>]) -> u64 {
    let mut taken = sources.iter_mut().filter_map(|source| source.take()).count() as u64;
    while sources[0].take().is_some() {
        taken += 1;
    }
    taken
}

fn table(report: &Report) -> String {
    let mut table = Table::new(&["SPACE BY", "NS PER BLOCK>", "INTERVAL>", "STRANDED>"]);
    for way in &report.ways {
        table.row(vec![
            way.way.into(),
            format!("{:.1}", way.ns_per_block.median),
            format!("{:.1}..{:.1}", way.ns_per_block.low, way.ns_per_block.high),
            format!("{:.1} %", 100.0 * way.stranded),
        ]);
    }
    table.render()
}
