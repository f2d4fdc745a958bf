//! The stress matrix as text, JSON and CSV.
//!
//! Owns: its shapes. Never: leaves out an entrant that lost.
//! Invariant: every row shows every entrant.

use super::results::{StressResult, messages_per_chunk, per_run};
use super::text::{name_of, with_interval};
use crate::out::Table;
use segue_models::choosy::judge::Entrant;
use serde_json::{Value, json};
use std::fmt::Write;

/// One row.
pub fn json(row: &StressResult, entrants: &[Entrant]) -> Value {
    let mut object = json!({
        "kind": row.row.kind,
        "about": row.row.about,
        "chunk": row.row.chunk_bytes,
        "drive_mbps": row.row.drive_mbps,
        "offered_gb_per_s": row.row.offered_gb_per_s(),
    });
    for (n, entrant) in entrants.iter().enumerate() {
        let mut one = json!({
            "figures": row.figures(n),
            "control_messages_per_chunk": messages_per_chunk(&row.runs[n]),
            "overlaps": per_run(&row.runs[n], |r| r.overlaps),
        });
        if n > 0 {
            let versus = row.versus(n);
            one["gain"] = json!(versus.mean);
            one["p99_cut"] = json!(versus.p99);
            one["max_latency_cut"] = json!(versus.max);
        }
        object[entrant.name.replace('-', "_")] = one;
    }
    object
}

/// All rows: means, then gains of the mean and of the 99th percentile.
pub fn text(rows: &[StressResult], entrants: &[Entrant]) -> String {
    let heads = [
        "CHUNK @ MIB/S",
        "STRESS",
        "RULES",
        "MEAN US>",
        "P99 US>",
        "MAX US>",
        "GB/S>",
        "OFFERED>",
        "PENDING>",
        "OVERLAPS>",
        "GAIN %>",
        "P99 CUT %>",
    ];
    let mut table = Table::new(&heads);
    for row in rows {
        for (n, entrant) in entrants.iter().enumerate() {
            let f = row.figures(n);
            let versus = (n > 0).then(|| row.versus(n));
            let offered = row.row.offered_gb_per_s().map(|rate| format!("{rate:.2}"));
            table.row(vec![
                name_of(row.row.chunk_bytes, row.row.drive_mbps),
                row.row.about.clone(),
                entrant.name.into(),
                format!("{:.1}", f.mean_us),
                format!("{:.1}", f.p99_us),
                format!("{:.1}", f.max_us),
                format!("{:.2}", f.gb_per_s),
                offered.unwrap_or_default(),
                f.pending.to_string(),
                format!("{:.0}", per_run(&row.runs[n], |r| r.overlaps)),
                versus.as_ref().map(|v| with_interval(v.mean)).unwrap_or_default(),
                versus.as_ref().map(|v| with_interval(v.p99)).unwrap_or_default(),
            ]);
        }
    }
    format!(
        "Stress; a chunk that is not written when the run ends counts with its age (PENDING, of all seeds). OVERLAPS: a run's \
         windows that overlap another one on the initiator's own link, which no real link can serve\n{}",
        table.render()
    )
}

/// All rows.
pub fn csv(rows: &[StressResult], entrants: &[Entrant]) -> String {
    let mut csv = String::from(
        "chunk,drive_mbps,kind,about,rules,chunks,pending,mean_us,p50_us,p90_us,p99_us,p999_us,max_us,gb_per_s,overlaps,\
         gain,gain_lo,gain_hi,p99_cut,p99_lo,p99_hi\n",
    );
    for row in rows {
        for (n, entrant) in entrants.iter().enumerate() {
            let (f, v, r) = (row.figures(n), row.versus(n), &row.row);
            let _ = writeln!(
                csv,
                "{},{},{},\"{}\",{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
                r.chunk_bytes,
                r.drive_mbps,
                r.kind,
                r.about,
                entrant.name,
                f.chunks,
                f.pending,
                f.mean_us,
                f.p50_us,
                f.p90_us,
                f.p99_us,
                f.p999_us,
                f.max_us,
                f.gb_per_s,
                per_run(&row.runs[n], |r| r.overlaps),
                v.mean.gain,
                v.mean.lo,
                v.mean.hi,
                v.p99.gain,
                v.p99.lo,
                v.p99.hi,
            );
        }
    }
    csv
}
