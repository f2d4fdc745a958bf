//! One seed is one run of Replicast-H: on repeats, in other builds, on other machines and in other threads.
//!
//! Owns: the trace hashes that must not change. Never: figures; those are experiments.
//! Invariant: a hash that changes is a change of results, to be explained where it is changed.

use segue_models::choosy::{Variant, run};
use segue_models::storage::{Arrivals, Scenario, Sizes};

const VARIANTS: [Variant; 4] = [Variant::Plain, Variant::Published, Variant::CorrectedPlain, Variant::Corrected];

fn scenario() -> Scenario {
    Scenario {
        initiators: 40,
        targets: 45,
        sizes: Sizes::Powers(16 << 10, 1 << 20),
        arrivals: Arrivals::Open { load_permille: 700 },
        run_ns: 8_000_000,
        ..Scenario::default()
    }
}

fn trace(variant: Variant, seed: u64) -> u64 {
    run(variant, &scenario(), seed, &mut |_| {}).expect("no rule is broken").trace
}

#[test]
fn golden_trace_hashes_never_change() {
    let cold = run(Variant::Published, &Scenario::default(), 1, &mut |_| {}).expect("no rule is broken");
    let found = (VARIANTS.map(|variant| trace(variant, 7)), cold.events, cold.done.len(), cold.trace);
    let traces = [9984098376257004977, 9927694914264878386, 8518185581883632253, 16630724947290985264];
    assert_eq!(found, (traces, 78_484, 780, 16_468_406_515_727_889_396));
}

#[test]
fn sim_repeats_are_equal_and_seeds_are_not() {
    for variant in VARIANTS {
        let first = run(variant, &scenario(), 3, &mut |_| {}).expect("no rule is broken");
        assert_eq!(first, run(variant, &scenario(), 3, &mut |_| {}).expect("no rule is broken"));
        assert_ne!(first.trace, trace(variant, 4));
    }
}

#[test]
fn sim_two_threads_give_what_one_gives() {
    let alone: Vec<u64> = (0..4).map(|seed| trace(Variant::Corrected, seed)).collect();
    let pairs = std::thread::scope(|threads| {
        let of = |from| {
            threads.spawn(move || (from..from + 2).map(|seed| trace(Variant::Corrected, seed)).collect::<Vec<_>>())
        };
        [of(0), of(2)].map(|thread| thread.join().expect("no thread fails"))
    });
    assert_eq!(pairs.concat(), alone);
}
