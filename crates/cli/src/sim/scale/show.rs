//! The report of `segue sim scale` for people.
//!
//! Owns: its words. Never: a figure that the JSON does not have.
//! Invariant: a claim that does not hold says so.

use super::{Line, Report};
use crate::out::Table;

/// The tables.
pub fn text(report: &Report) -> String {
    let mut text = lines(&report.rows);
    if let Some(growth) = &report.growth {
        let answer = if growth.at_most_logarithmic { "at most logarithmically" } else { "faster than logarithmically" };
        text.push_str(&format!(
            "\ncost per event grows {answer}: {:.2} times for {:.1} times the nodes (log2 grows {:.2} times); \
             {:.1} ns + {:.1} ns x log2(nodes), R2 {:.2}\n",
            growth.cost_ratio,
            growth.nodes_ratio,
            growth.log2_ratio,
            growth.intercept_ns,
            growth.ns_per_doubling,
            growth.r2
        ));
    }
    if let Some(ratio) = report.cost_of_load {
        text.push_str(&format!("an event at the highest load costs {ratio:.2} times one at the lowest\n"));
    }
    if !report.claims.is_empty() {
        let mut table = Table::new(&["CLAIM", "BOUND>", "MEASURED>", "HOLDS"]);
        for claim in &report.claims {
            let holds = if claim.holds { "yes" } else { "NO" };
            table.row(vec![claim.claim.clone(), short(claim.bound), short(claim.measured), holds.into()]);
        }
        text.push('\n');
        text.push_str(&table.render());
    }
    text
}

fn short(value: f64) -> String {
    if value >= 1e6 { format!("{:.2} M", value / 1e6) } else { format!("{value:.4}") }
}

fn lines(lines: &[Line]) -> String {
    let heads = [
        "ROW",
        "NODES>",
        "LOAD>",
        "RUN ms>",
        "CHUNKS>",
        "EVENTS>",
        "WALL s>",
        "M EVENTS/s>",
        "PER CPU s>",
        "ns/EVENT>",
        "QUEUE ALONE>",
        "OF IT>",
        "RSS GiB>",
    ];
    let mut table = Table::new(&heads);
    for line in lines {
        table.row(vec![
            line.kind.name().into(),
            line.nodes.to_string(),
            line.load.map_or("closed".into(), |l| format!("{l:.2}")),
            format!("{}", line.run_ns as f64 / 1e6),
            line.chunks_done.to_string(),
            line.events.to_string(),
            format!("{:.4}", line.wall_s),
            format!("{:.2}", line.events_per_s / 1e6),
            format!("{:.2}", line.events_per_cpu_s / 1e6),
            format!("{:.0}", line.ns_per_event),
            format!("{:.2}", line.limit_events_per_s / 1e6),
            format!("{:.2}", line.measured_over_limit),
            format!("{:.3}", line.rss_gib),
        ]);
    }
    table.render()
}
