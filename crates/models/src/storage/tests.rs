//! The loop and the accounts with a protocol so simple that its result is known.
//!
//! Owns: the canaries of the accounts. Never: a real protocol.
//! Invariant: each rule of the audit has a protocol that breaks it and is caught.

use super::registry::MODELS;
use super::*;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    None,
    Overlap,
    DoubleGrant,
    SettleTwice,
    LostBytes,
    FewCopies,
    IdleDrive,
    VanishedOnTheWay,
    VanishedInDrive,
}

#[derive(Clone, Copy)]
enum Happens {
    Came(ChunkId),
    Stored(ChunkId),
    Acked(ChunkId),
}

/// Writes copies to the first targets of the group, one after the other, without asking anybody. One initiator.
struct Simple {
    fault: Fault,
    acked: u32,
}

impl Protocol for Simple {
    type Event = Happens;

    fn arrive(&mut self, sim: &mut Sim<'_, Happens>, initiator: u32, chunk: ChunkId) -> Result<(), Violation> {
        self.acked = 0;
        let facts = *sim.chunk(chunk);
        let takes = sim.timing().framed_ns(facts.bytes);
        let now = sim.now();
        for copy in 0..sim.scenario().copies {
            let target = facts.group * sim.scenario().group_targets + copy;
            let start = now + u64::from(copy) * takes;
            sim.audit.bid(now, target, chunk, 0)?;
            sim.audit.settle(now, target, chunk, 0)?;
            if self.fault == Fault::SettleTwice {
                sim.audit.settle(now, target, chunk, 0)?;
            }
            let from = if self.fault == Fault::Overlap && copy > 0 { start - 1 } else { start };
            sim.audit.initiators.add(now, initiator, from, start + takes)?;
            sim.audit.targets.add(now, target, start, start + takes)?;
            if self.fault == Fault::DoubleGrant {
                sim.audit.targets.add(now, target, start, start + takes)?;
            }
            sim.audit.sent(if self.fault == Fault::LostBytes { 0 } else { facts.bytes });
            if self.fault != Fault::VanishedOnTheWay || chunk != ChunkId(3) {
                sim.post(start + takes, target, Happens::Came(chunk));
            }
        }
        Ok(())
    }

    fn event(&mut self, sim: &mut Sim<'_, Happens>, node: u32, event: Happens) -> Result<(), Violation> {
        let now = sim.now();
        match event {
            Happens::Came(chunk) => {
                let bytes = sim.chunk(chunk).bytes;
                let takes = sim.scenario().drive_ns(node, bytes);
                let idle = if self.fault == Fault::IdleDrive { 5 } else { 0 };
                sim.audit.received(now, node, bytes, now + takes + idle, takes)?;
                if self.fault != Fault::VanishedInDrive || chunk != ChunkId(3) {
                    sim.post(now + takes, node, Happens::Stored(chunk));
                }
            }
            Happens::Stored(chunk) => {
                let bytes = sim.chunk(chunk).bytes;
                sim.audit.stored(now, node, chunk, bytes)?;
                let initiator = sim.initiator_node(0);
                sim.post(now, initiator, Happens::Acked(chunk));
            }
            Happens::Acked(chunk) => {
                self.acked += 1;
                let wanted = sim.scenario().copies - u32::from(self.fault == Fault::FewCopies);
                if self.acked == wanted {
                    sim.finish(chunk)?;
                }
            }
        }
        Ok(())
    }

    const COUNTED: bool = true;

    fn carries(&self, sim: &Sim<'_, Happens>, event: &Happens) -> Carried {
        match *event {
            Happens::Came(chunk) => Carried::on_the_way(sim.chunk(chunk).bytes),
            Happens::Stored(chunk) => Carried::in_a_drive(sim.chunk(chunk).bytes),
            Happens::Acked(_) => Carried::default(),
        }
    }

    fn fingerprint(event: &Happens) -> u64 {
        match event {
            Happens::Came(chunk) => u64::from(chunk.0) * 3,
            Happens::Stored(chunk) => u64::from(chunk.0) * 3 + 1,
            Happens::Acked(chunk) => u64::from(chunk.0) * 3 + 2,
        }
    }

    fn counters(&self, _: &Sim<'_, Happens>) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

fn simple(fault: Fault, seed: u64) -> Result<Outcome, Violation> {
    let scenario = Scenario { initiators: 1, ..Scenario::default() };
    run(&mut Simple { fault, acked: 0 }, &scenario, seed, &mut |_| {})
}

#[test]
fn a_run_is_what_arithmetic_says() {
    let outcome = simple(Fault::None, 1).expect("no rule is broken");
    // Three transfers of 117,673 ns and a drive of 312,500 ns, one after the other.
    assert!(outcome.done.iter().all(|d| d.latency_ns == 3 * 117_673 + 312_500));
    assert_eq!(outcome.done.len() as u64, 10_000_000 / (3 * 117_673 + 312_500));
    assert_eq!(outcome.pending.len(), 1, "the one in flight is accounted for");
    assert_eq!(simple(Fault::None, 1).unwrap().trace, outcome.trace);
    assert_ne!(simple(Fault::None, 2).unwrap().trace, outcome.trace);
}

#[test]
fn canary_every_broken_rule_is_caught() {
    for (fault, caught) in [
        (Fault::Overlap, "overlaps"),
        (Fault::DoubleGrant, "overlaps"),
        (Fault::SettleTwice, "not open"),
        (Fault::LostBytes, "not conserved"),
        (Fault::FewCopies, "copies of"),
        (Fault::IdleDrive, "idle with work"),
        (Fault::VanishedOnTheWay, "vanished"),
        (Fault::VanishedInDrive, "vanished"),
    ] {
        let error = simple(fault, 1).expect_err("a rule is broken").to_string();
        assert!(error.contains(caught), "{fault:?}: {error}");
    }
}

#[test]
fn settings_are_checked() {
    let with = |pairs: &[(&str, &str)]| {
        let mut options = Options::new();
        for (key, value) in pairs {
            options.set(key, value);
        }
        let scenario = Scenario::default().with(&mut options).map_err(|e| e.to_string())?;
        options.finish().map_err(|e| e.to_string())?;
        Ok::<_, String>(scenario)
    };
    assert_eq!(with(&[("chunk", "1MiB"), ("drive_mbps", "1000")]).unwrap().drive_bytes_per_s, 1000 << 20);
    assert!(with(&[("chunk", "x")]).unwrap_err().contains("chunk takes a size"));
    assert!(with(&[("copies", "10")]).unwrap_err().contains("copies must be"));
    // Numbers that only fit after their high bits are cut off are not what was asked for.
    assert!(with(&[("group", "4294967305")]).unwrap_err().contains("group must be"));
    assert!(with(&[("copies", "4294967299")]).unwrap_err().contains("copies must be"));
    assert!(with(&[("hot_groups", "4294967297")]).unwrap_err().contains("hot_groups must be"));
    assert!(with(&[("drive_mbps", "17592186044816")]).unwrap_err().contains("drive_mbps must be"));
    assert!(with(&[("slow_targets", "91")]).unwrap_err().contains("slow_targets must be"));
    assert!(with(&[("load_permille", "18446744073709551615")]).unwrap_err().contains("load_permille must be"));
    assert!(with(&[("chonk", "1MiB")]).unwrap_err().contains("unknown setting \"chonk\""));
    assert_eq!(with(&[("chunk", "4KiB"), ("chunk_max", "16MiB")]).unwrap().sizes, Sizes::Powers(4096, 16 << 20));
}

/// Scenarios at the limits of what [`Scenario::check`] accepts, short enough for a test.
fn extremes() -> Vec<Scenario> {
    let base = Scenario { initiators: 6, targets: 18, run_ns: 2_000_000, ..Scenario::default() };
    let slow = vec![Slow { target: 0, permille: 1 }, Slow { target: 9, permille: 1 }];
    let large = Scenario { sizes: Sizes::Fixed(1 << 30), run_ns: 20_000_000_000, ..base.clone() };
    let open = |load_permille| Arrivals::Open { load_permille };
    let slowest = Fabric { link_bits_per_s: 1_000_000_000, trip_ns: 1_000_000_000, ..Fabric::default() };
    let fastest = Fabric { link_bits_per_s: 1_000_000_000_000, trip_ns: 0, ..Fabric::default() };
    vec![
        Scenario { initiators: 1, ..base.clone() },
        Scenario { group_targets: 3, targets: 6, copies: 3, ..base.clone() },
        Scenario { group_targets: 1, targets: 2, copies: 1, ..base.clone() },
        Scenario { group_targets: 8, targets: 16, copies: 8, ..base.clone() },
        Scenario { group_targets: 40, targets: 80, ..base.clone() },
        Scenario { group_targets: 64, targets: 128, ..base.clone() },
        Scenario { sizes: Sizes::Fixed(512), run_ns: 200_000, ..base.clone() },
        Scenario { sizes: Sizes::Powers(512, 1 << 30), run_ns: 1_000_000_000, initiators: 2, ..base.clone() },
        Scenario { drive_bytes_per_s: 1 << 20, ..large.clone() },
        Scenario { drive_bytes_per_s: 1 << 20, slow: slow.clone(), ..large.clone() },
        Scenario { slow: slow.clone(), ..base.clone() },
        Scenario { arrivals: open(10), run_ns: 20_000_000, ..base.clone() },
        Scenario { arrivals: open(1), slow, ..large.clone() },
        Scenario { arrivals: open(5_000), ..base.clone() },
        Scenario { arrivals: open(5_000), acknowledge: Acknowledge::WriteBack, ..base.clone() },
        Scenario { arrivals: open(100_000), run_ns: 200_000, ..base.clone() },
        Scenario { arrivals: open(1), initiators: 100_000, drive_bytes_per_s: 1 << 20, run_ns: 1_000, ..large },
        Scenario { fabric: slowest, run_ns: 20_000_000_000, ..base.clone() },
        Scenario { fabric: fastest, drive_bytes_per_s: 1 << 44, run_ns: 20_000, ..base },
    ]
}

#[test]
fn sim_every_model_runs_every_scenario_at_the_limits() {
    for model in MODELS {
        for (n, scenario) in extremes().iter().enumerate() {
            scenario.check().expect("within the limits");
            let outcome = (model.run)(scenario, Options::new(), 1, &mut |_| {});
            outcome.unwrap_or_else(|e| panic!("{} in scenario {n}: {e:?}", model.name));
        }
    }
}
