//! The files of `segue reproduce choosy --out`: JSON, CSV and SVG.
//!
//! Owns: their names and columns. Never: a figure that stdout does not show, but for the series chunk by chunk.
//! Invariant: a file is whole or an error says which one is not.

use super::results::{Phase, Results, messages_per_chunk, per_run};
use super::{shapes, stress};
use crate::reproduce::plot::{Bars, Series};
use anyhow::{Context, Result};
use segue_models::choosy::judge::{self, Point, moving_average};
use std::fmt::Write;
use std::path::Path;

/// Chunks of the moving average of Figures 3 and 4.
const WINDOW: usize = 25;

/// Writes every file into `dir`.
///
/// # Errors
/// Names the file that could not be written.
pub fn write(dir: &Path, results: &Results) -> Result<()> {
    let mut json = shapes::json(results);
    json["schema"] = "segue.reproduce.choosy.v1".into();
    let put = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    put("choosy.json", &format!("{}\n", serde_json::to_string_pretty(&json)?))?;
    put("choosy.csv", &figures_csv(results))?;
    put("choosy_gains.csv", &gains_csv(results))?;
    put("choosy_start.csv", &starts_csv(results))?;
    put("choosy_spikes.csv", &spikes_csv(results))?;
    put("choosy_series.csv", &series_csv(results))?;
    let titles = [
        ("plain", "figure3.svg", "Figure 3: without renegotiation"),
        ("published", "figure4.svg", "Figure 4: with renegotiation, as published"),
        ("best", "figure4_best.svg", "Figure 4: the initiator that nodes run"),
    ];
    let highest = results.series.iter().flat_map(|(_, points)| points).map(|p| p.latency_ns).max().unwrap_or(0);
    for ((name, points), (of, file, title)) in results.series.iter().zip(titles) {
        assert_eq!(*name, of, "the series stand in the order of the figures");
        put(file, &series_svg(title, points, highest as f64 / 1e6)?)?;
    }
    put("figure5.svg", &gains_svg(results, 400, "Figure 5: gain of the mean, drives of 400 MiB/s")?)?;
    put("figure6.svg", &gains_svg(results, 1_000, "Figure 6: gain of the mean, drives of 1000 MiB/s")?)?;
    if results.stress.is_empty() {
        return Ok(());
    }
    put("choosy_stress.csv", &stress::csv(&results.stress, &results.entrants))
}

fn figures_csv(results: &Results) -> String {
    let mut csv = String::from(
        "chunk,drive_mbps,phase,rules,seeds,chunks,pending,mean_us,p50_us,p90_us,p99_us,p999_us,max_us,share_over_7ms,\
         gb_per_s,renegotiations_per_run,control_messages_per_chunk\n",
    );
    for c in &results.configurations {
        for phase in Phase::ALL {
            for (n, entrant) in results.entrants.iter().enumerate() {
                let (f, runs) = (c.pooled(n, phase).figures(), c.runs(n, phase).0);
                let (chunk, drive) = (c.configuration.chunk_bytes, c.configuration.drive_mbps);
                let (again, messages) = (per_run(runs, |r| r.renegotiations), messages_per_chunk(runs));
                let _ = writeln!(
                    csv,
                    "{chunk},{drive},{},{},{},{},{},{},{},{},{},{},{},{},{},{again},{messages}",
                    phase.name(),
                    entrant.name,
                    runs.len(),
                    f.chunks,
                    f.pending,
                    f.mean_us,
                    f.p50_us,
                    f.p90_us,
                    f.p99_us,
                    f.p999_us,
                    f.max_us,
                    f.share_over_7ms,
                    f.gb_per_s,
                );
            }
        }
    }
    csv
}

fn gains_csv(results: &Results) -> String {
    let mut csv = String::from("chunk,drive_mbps,phase,rules,figure,gain,lo,hi,seeds,surge\n");
    let published = results.entrant(judge::PUBLISHED.name);
    for c in &results.configurations {
        let (chunk, drive) = (c.configuration.chunk_bytes, c.configuration.drive_mbps);
        for phase in Phase::ALL {
            for (n, entrant) in results.entrants.iter().enumerate().skip(1) {
                let versus = c.versus(n, phase);
                for (figure, gain) in [("mean", versus.mean), ("p99", versus.p99), ("max", versus.max)] {
                    let surge = match (phase, figure) {
                        (Phase::Cold, "mean") if n == published => c.configuration.surge.cold_gain.to_string(),
                        (Phase::Steady, "mean") if n == published => c.configuration.surge.steady_gain.to_string(),
                        _ => String::new(),
                    };
                    let (phase, rules) = (phase.name(), entrant.name);
                    let (of, lo, hi, seeds) = (gain.gain, gain.lo, gain.hi, gain.seeds);
                    let _ = writeln!(csv, "{chunk},{drive},{phase},{rules},{figure},{of},{lo},{hi},{seeds},{surge}");
                }
            }
        }
    }
    csv
}

fn starts_csv(results: &Results) -> String {
    let mut csv = String::from("chunk,drive_mbps,from_ms,until_ms,rules,gain,lo,hi,seeds,surge\n");
    for c in &results.configurations {
        let (chunk, drive) = (c.configuration.chunk_bytes, c.configuration.drive_mbps);
        for (from, until, surge, gains) in c.by_start() {
            for (entrant, g) in results.entrants[1..].iter().zip(gains) {
                let surge = if entrant.name == judge::PUBLISHED.name { surge.to_string() } else { String::new() };
                let (name, gain, lo, hi, seeds) = (entrant.name, g.gain, g.lo, g.hi, g.seeds);
                let _ = writeln!(csv, "{chunk},{drive},{from},{until},{name},{gain},{lo},{hi},{seeds},{surge}");
            }
        }
    }
    csv
}

fn spikes_csv(results: &Results) -> String {
    let mut csv = String::from("at_least_ms,surge_off_percent,surge_on_percent");
    for entrant in &results.entrants {
        let _ = write!(csv, ",{}_percent", entrant.name);
    }
    csv.push('\n');
    for (ms, off, on, ours) in results.over_ms() {
        let _ = write!(csv, "{ms},{off},{on}");
        for share in ours {
            let _ = write!(csv, ",{share}");
        }
        csv.push('\n');
    }
    csv
}

fn series_csv(results: &Results) -> String {
    let mut csv = String::from("rules,chunk_number,initiator,created_ns,latency_ns,moving_average_ns\n");
    for (name, points) in &results.series {
        let averages = moving_average(points, WINDOW);
        for (n, (p, average)) in points.iter().zip(averages).enumerate() {
            let _ = writeln!(csv, "{name},{n},{},{},{},{average:.0}", p.initiator, p.created_ns, p.latency_ns);
        }
    }
    csv
}

/// Each chunk and the moving average; all figures have the same axis.
fn series_svg(title: &str, points: &[Point], highest_ms: f64) -> Result<String> {
    let mut plot = Series::new(title, "chunk, in order of creation", "latency, ms", highest_ms);
    let of = |values: &mut dyn Iterator<Item = f64>| values.enumerate().map(|(n, v)| (n as f64, v / 1e6)).collect();
    plot.thin("each chunk", of(&mut points.iter().map(|p| p.latency_ns as f64)));
    let name = format!("moving average of {WINDOW}");
    plot.thick(&name, of(&mut moving_average(points, WINDOW).into_iter()));
    plot.mark("7 ms", judge::OVER_NS as f64 / 1e6);
    plot.svg()
}

/// Gains of the mean for one kind of drive, SURGE's beside ours.
fn gains_svg(results: &Results, drive_mbps: u64, title: &str) -> Result<String> {
    let names = ["SURGE, cold", "published, cold", "SURGE, steady", "published, steady", "best, cold", "best, steady"];
    let mut bars = Bars::new(title, "%", names);
    let (published, best) = (results.entrant(judge::PUBLISHED.name), results.entrant(judge::BEST.name));
    for c in results.configurations.iter().filter(|c| c.configuration.drive_mbps == drive_mbps) {
        let gain = |entrant, phase| c.versus(entrant, phase).mean.gain;
        let values = vec![
            c.configuration.surge.cold_gain,
            gain(published, Phase::Cold),
            c.configuration.surge.steady_gain,
            gain(published, Phase::Steady),
            gain(best, Phase::Cold),
            gain(best, Phase::Steady),
        ];
        bars.group(&format!("{} KiB chunks", c.configuration.chunk_bytes >> 10), values);
    }
    bars.svg()
}
