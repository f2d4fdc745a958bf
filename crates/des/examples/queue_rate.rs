//! How many events a second the queue carries on one core: `cargo run --release -p segue-des --example queue_rate`.
//!
//! Owns: the hold model (each popped event schedules one more). Never: asserts a time; it prints.
//! Invariant: every line pops the same number of events, and equal seeds give equal sums.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros, reason = "a bench reads the clock and prints")]

use segue_des::{Chance, Queue};
use std::time::Instant;

/// What a model of 10,000 nodes puts into the queue: plain data of 16 bytes.
#[derive(Clone, Copy)]
enum Event {
    Arrive { node: u32, chunk: u32 },
    Timer { node: u32 },
}

const POPS: u64 = 4_000_000;

/// Delays of a reservation protocol: mostly control messages, some transfers, few long waits.
fn mixed(chance: &mut Chance) -> u64 {
    match chance.below(8) {
        0..=4 => 3_400 + chance.below(100),
        5 | 6 => chance.below(200_000),
        _ => chance.below(4_000_000),
    }
}

fn exponential(chance: &mut Chance) -> u64 {
    chance.exponential(1_000_000)
}

fn near(chance: &mut Chance) -> u64 {
    chance.below(4)
}

type Delay = fn(&mut Chance) -> u64;

fn hold(pending: u32, delay: Delay, cancels: bool) -> (f64, u64) {
    let mut chance = Chance::new(7);
    // Drawn beforehand: the queue is measured, not the generator.
    let delays: Vec<u64> = (0..1 << 16).map(|_| delay(&mut chance)).collect();
    let mut queue = Queue::new();
    for node in 0..pending {
        queue.at_tie(delays[node as usize & 0xffff], u64::from(node), Event::Timer { node });
    }
    let (mut sum, mut n) = (0u64, 0usize);
    let begin = Instant::now();
    for _ in 0..POPS {
        let (now, event) = queue.pop().expect("each event schedules another");
        let node = match event {
            Event::Arrive { node, chunk } => {
                sum = sum.wrapping_add(u64::from(chunk));
                node
            }
            Event::Timer { node } => node,
        };
        sum = sum.wrapping_mul(31).wrapping_add(now ^ u64::from(node));
        n += 1;
        queue.at_tie(now + delays[n & 0xffff], u64::from(node), Event::Arrive { node, chunk: n as u32 });
        if cancels {
            let id = queue.at_tie(now + delays[(n * 7) & 0xffff], u64::from(node), Event::Timer { node });
            assert!(queue.cancel(id).is_some());
        }
    }
    (POPS as f64 / begin.elapsed().as_secs_f64() / 1e6, sum)
}

/// Adding the time and the node of each event to a trace.
fn trace() -> (f64, u64) {
    let mut trace = segue_des::TraceHash::new();
    let begin = Instant::now();
    for n in 0..20 * POPS {
        trace.number(n).number(n >> 7);
    }
    (20.0 * POPS as f64 / begin.elapsed().as_secs_f64() / 1e6, trace.value())
}

fn main() {
    let kinds: [(&str, Delay, bool); 4] = [
        ("protocol", mixed, false),
        ("exponential", exponential, false),
        ("near ties", near, false),
        ("protocol, and one cancelled", mixed, true),
    ];
    let (rate, value) = trace();
    println!("trace hash, two numbers each: {rate:.0} M events/s ({value:x})");
    println!("{:28} {:>9} {:>20} {:>18}", "delays", "pending", "M pop+push/s", "sum");
    for (name, delay, cancels) in kinds {
        for pending in [100, 1_000, 20_000, 200_000] {
            let (rate, sum) = hold(pending, delay, cancels);
            println!("{name:28} {pending:9} {rate:20.2} {sum:18x}");
        }
    }
}
