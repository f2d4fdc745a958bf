//! Tests of the controller's model: its calibration, its laws, and the order of its rows.
//!
//! Owns: short runs with fixed seeds. Never: ships.
//! Invariant: figures of a seed never depend on the machine that runs the test.

use super::{CACHE_STANDARD, Figures, Setup, rows, run};
use segue_sched::rcs::Policy;

const SHORT: Setup = Setup {
    policy: Policy::Performance,
    proactive: true,
    reactive: true,
    overflow: segue_sched::rcs::Overflow::Never,
    self_set: false,
    copies: 1,
    groups: super::GROUPS,
    work: CACHE_STANDARD,
    faults: false,
    recovery_ns: super::RECOVERY_NS,
    dispatches_per_fault: super::DISPATCHES_PER_FAULT,
    warm_up_ns: 200_000_000,
    measure_ns: 1_000_000_000,
};

fn both(setup: Setup) -> (Figures, Figures) {
    (run(&setup, 1), run(&Setup { faults: true, ..setup }, 1))
}

#[test]
fn model_is_calibrated_to_what_the_paper_gives() {
    let (good, bad) = both(SHORT);
    assert!((good.kiops / 107.0 - 1.0).abs() < 0.01, "{good:?}");
    assert!((good.response_ms / 13.3 - 1.0).abs() < 0.02, "{good:?}");
    assert!(good.dispatches_per_minute > 20e6, "{good:?}");
    assert!((good.heavy_per_minute[0] / 6.5e6 - 1.0).abs() < 0.03, "{good:?}");
    assert!((good.heavy_per_minute[1] / 5.0e6 - 1.0).abs() < 0.03, "{good:?}");
    assert!(good.busy > 0.97 && good.busy < 1.0, "CPU-bound: {good:?}");
    assert_eq!(good.faults_per_minute, 0.0);
    let expect = bad.heavy_per_minute[1] / 10_000.0;
    assert!((bad.faults_per_minute - expect).abs() <= 61.0, "one fault per 10,000 dispatches: {bad:?}");
}

#[test]
fn model_rows_are_in_the_papers_order() {
    let kiops = |policy| {
        let (good, bad) = both(Setup { policy, ..SHORT });
        (good.kiops, bad.kiops)
    };
    let (performance, performance_bad) = kiops(Policy::Performance);
    let (dynamic, dynamic_bad) = kiops(Policy::Dynamic);
    let (partial, partial_bad) = kiops(Policy::PartialDynamic);
    let (fixed, fixed_bad) = kiops(Policy::Static);
    assert!(dynamic >= 0.98 * performance && dynamic_bad >= 1.12 * performance_bad);
    assert!(dynamic_bad >= 0.97 * dynamic && partial_bad >= 0.98 * partial);
    assert!(partial < 0.75 * dynamic && fixed < 0.75 * partial && fixed_bad < 0.98 * fixed);
}

#[test]
fn bounds_limit_what_a_fault_touches() {
    let faulty = |setup: Setup| run(&Setup { faults: true, ..setup }, 3).cleaned_per_fault;
    let dynamic = Setup { policy: Policy::Dynamic, ..SHORT };
    assert_eq!(faulty(dynamic), 1.0, "bound 1 and suspended: the faulty task alone");
    let proactive = faulty(Setup { reactive: false, ..dynamic });
    assert!(proactive > 1.0 && proactive < 3.0, "one at a time, again and again: {proactive}");
    assert!(faulty(SHORT) > 7.0, "the baseline loses every processor");
}

#[test]
fn bounds_that_set_themselves_do_as_well() {
    let dynamic = Setup { policy: Policy::Dynamic, ..SHORT };
    let (_, by_hand) = both(dynamic);
    let (good, bad) = both(Setup { self_set: true, ..dynamic });
    assert!(good.kiops > 0.98 * 107.0 && bad.kiops > 0.97 * by_hand.kiops, "{good:?} {bad:?} {by_hand:?}");
    assert!(bad.cleaned_per_fault < 2.5, "{bad:?}");
}

#[test]
fn littles_law_holds() {
    for policy in Policy::ALL {
        let figures = run(&Setup { policy, faults: true, ..SHORT }, 5);
        let outstanding = figures.kiops * (figures.response_ms + CACHE_STANDARD.think_ns as f64 / 1e6);
        assert!((outstanding / f64::from(CACHE_STANDARD.hosts) - 1.0).abs() < 0.05, "{policy}: {outstanding}");
    }
}

#[test]
fn same_seed_same_figures_and_another_seed_others() {
    for row in rows(50_000_000).into_iter().filter(|r| r.setup.copies == 1) {
        let setup = Setup { warm_up_ns: 20_000_000, faults: true, ..row.setup };
        assert_eq!(run(&setup, 42), run(&setup, 42), "{}", row.key);
        assert_ne!(run(&setup, 42), run(&setup, 43), "{}", row.key);
    }
}

#[test]
fn coarser_tasks_carry_the_same_load() {
    let coarse = Setup { work: CACHE_STANDARD.coarser(10), ..SHORT };
    let (fine, coarse) = (run(&SHORT, 1), run(&coarse, 1));
    assert!((coarse.kiops * 10.0 / fine.kiops - 1.0).abs() < 0.02, "{fine:?} {coarse:?}");
    assert!((coarse.busy / fine.busy - 1.0).abs() < 0.02, "{fine:?} {coarse:?}");
}

#[test]
fn larger_machines_keep_what_the_baseline_loses() {
    let kiops = |policy: &str, faults: bool| {
        let cell = super::larger(&[64], &[200], 0).into_iter().find(|c| c.policy == policy).unwrap();
        run(&Setup { faults, measure_ns: 800_000_000, ..cell.setup }, 1).kiops
    };
    let good = kiops("dynamic", false);
    assert!(kiops("dynamic", true) > 0.96 * good);
    assert!(kiops("performance", true) < 0.6 * good, "a recovery of one group reaches every core");
}
