//! The figures of `segue reproduce rcs` as text and as JSON.
//!
//! Owns: the shapes and their words. Never: rounds a figure in JSON.
//! Invariant: a key of a row means the same in every part of the JSON.

use crate::out::Table;
use segue_models::rcs::{Cell, Figures, Larger, Row};
use segue_models::summary::{Mean, mean, mean_ratio};
use serde_json::{Map, Value, json};

/// A row and its runs, one per seed.
pub struct RowResult {
    pub row: Row,
    pub good: Vec<Figures>,
    pub bad: Vec<Figures>,
}

/// A cell of the larger machines and its runs.
pub struct LargerResult {
    pub cell: Larger,
    pub good: Vec<Figures>,
    pub bad: Vec<Figures>,
}

/// Everything that was run.
pub struct Results {
    pub rows: Vec<RowResult>,
    pub larger: Vec<LargerResult>,
    pub seed: u64,
    pub seeds: u64,
    pub measure_ns: u64,
}

fn kiops(figures: &[Figures]) -> Vec<f64> {
    figures.iter().map(|f| f.kiops).collect()
}

fn response_ms(figures: &[Figures]) -> Vec<f64> {
    figures.iter().map(|f| f.response_ms).collect()
}

/// A figure of every run.
pub type Pick = fn(&[Figures]) -> Vec<f64>;
/// The same figure of a cell of the paper.
pub type PickPaper = fn(&Cell) -> f64;

/// The two figures of the paper's table.
pub const FIGURES: [(&str, Pick, PickPaper); 2] =
    [("kiops", kiops, |c| c.kiops), ("response_ms", response_ms, |c| c.response_ms)];

impl RowResult {
    /// The row's paths: name, runs, the paper's cell.
    pub fn paths(&self) -> [(&'static str, &[Figures], Option<&Cell>); 2] {
        [
            ("good", self.good.as_slice(), self.row.paper_good.as_ref()),
            ("bad", self.bad.as_slice(), self.row.paper_bad.as_ref()),
        ]
    }
}

impl LargerResult {
    /// Bad path over good path.
    pub fn kept(&self) -> Mean {
        mean_ratio(&kiops(&self.bad), &kiops(&self.good))
    }
}

impl Results {
    fn row(&self, key: &str) -> &RowResult {
        self.rows.iter().find(|r| r.row.key == key).expect("the table has this row")
    }

    /// The ratios that the experiment is about: name, ours, the paper's.
    pub fn ratios(&self) -> Vec<(&'static str, Mean, Option<f64>)> {
        let good = |key| kiops(&self.row(key).good);
        let bad = |key| kiops(&self.row(key).bad);
        let ms = |key| response_ms(&self.row(key).bad);
        let (dynamic, performance) = ("dynamic", "performance");
        vec![
            ("dynamic_over_performance_good", mean_ratio(&good(dynamic), &good(performance)), Some(105.0 / 107.0)),
            ("dynamic_over_performance_bad", mean_ratio(&bad(dynamic), &bad(performance)), Some(105.0 / 87.8)),
            ("dynamic_over_performance_bad_response", mean_ratio(&ms(dynamic), &ms(performance)), Some(13.5 / 16.6)),
            ("dynamic_bad_over_good", mean_ratio(&bad(dynamic), &good(dynamic)), Some(1.0)),
            ("performance_bad_over_good", mean_ratio(&bad(performance), &good(performance)), Some(87.8 / 107.0)),
            ("partial_dynamic_over_dynamic_good", self.over_dynamic("partial_dynamic", false), Some(69.9 / 105.0)),
            ("partial_dynamic_over_dynamic_bad", self.over_dynamic("partial_dynamic", true), Some(69.9 / 105.0)),
            ("static_over_dynamic_good", self.over_dynamic("static", false), Some(44.6 / 105.0)),
            ("static_over_dynamic_bad", self.over_dynamic("static", true), Some(40.4 / 105.0)),
            ("static_bad_over_good", mean_ratio(&bad("static"), &good("static")), Some(40.4 / 44.6)),
            ("groups_4_over_16_good", mean_ratio(&good("dynamic_4"), &good(dynamic)), Some(106.0 / 105.0)),
            ("groups_1_over_16_good", mean_ratio(&good("dynamic_1"), &good(dynamic)), None),
            ("dynamic_256_bad_over_good", mean_ratio(&bad("dynamic_256"), &good("dynamic_256")), None),
        ]
    }

    fn over_dynamic(&self, key: &str, faults: bool) -> Mean {
        let of = |key| if faults { kiops(&self.row(key).bad) } else { kiops(&self.row(key).good) };
        mean_ratio(&of(key), &of("dynamic"))
    }

    /// One object: `kiops` and `response_ms` are `{ROW: {good, bad}}`; `intervals`, `paper` and `over_paper` have the same
    /// shape below these two keys.
    pub fn json(&self) -> Value {
        let mut all = Map::new();
        let (mut intervals, mut paper, mut over) = (Map::new(), Map::new(), Map::new());
        for (name, pick, pick_paper) in FIGURES {
            let mut maps = [Map::new(), Map::new(), Map::new(), Map::new()];
            for result in &self.rows {
                let mut cells = [Map::new(), Map::new(), Map::new(), Map::new()];
                for (path, figures, paper) in result.paths() {
                    let ours = mean(&pick(figures));
                    cells[0].insert(path.into(), json!(ours.mean));
                    cells[1].insert(path.into(), json!([ours.low, ours.high]));
                    if let Some(theirs) = paper.map(pick_paper) {
                        cells[2].insert(path.into(), json!(theirs));
                        cells[3].insert(path.into(), json!(ours.mean / theirs));
                    }
                }
                for (map, cell) in maps.iter_mut().zip(cells).filter(|(_, cell)| !cell.is_empty()) {
                    map.insert(result.row.key.into(), Value::Object(cell));
                }
            }
            let [ours, low_high, theirs, ratio] = maps.map(Value::Object);
            all.insert(name.into(), ours);
            intervals.insert(name.into(), low_high);
            paper.insert(name.into(), theirs);
            over.insert(name.into(), ratio);
        }
        let ratios: Map<String, Value> = self
            .ratios()
            .into_iter()
            .map(|(name, ours, paper)| (name.into(), json!({"ours": ours, "paper": paper})))
            .collect();
        all.insert("intervals".into(), Value::Object(intervals));
        all.insert("paper".into(), Value::Object(paper));
        all.insert("over_paper".into(), Value::Object(over));
        all.insert("ratios".into(), Value::Object(ratios));
        all.insert("mechanism".into(), self.mechanism());
        all.insert("larger".into(), self.larger.iter().map(larger_json).collect());
        all.insert("seed".into(), json!(self.seed));
        all.insert("seeds".into(), json!(self.seeds));
        all.insert("simulated_s".into(), json!(self.measure_ns as f64 / 1e9));
        Value::Object(all)
    }

    /// Why the figures are what they are, per row and path.
    fn mechanism(&self) -> Value {
        let of = |figures: &[Figures]| {
            let avg = |pick: fn(&Figures) -> f64| mean(&figures.iter().map(pick).collect::<Vec<_>>()).mean;
            json!({
                "busy": avg(|f| f.busy),
                "dispatches_per_minute": avg(|f| f.dispatches_per_minute),
                "group_4_per_minute": avg(|f| f.heavy_per_minute[0]),
                "group_5_per_minute": avg(|f| f.heavy_per_minute[1]),
                "faults_per_minute": avg(|f| f.faults_per_minute),
                "cleaned_per_fault": avg(|f| f.cleaned_per_fault),
            })
        };
        let rows = self.rows.iter().map(|r| {
            let paths: Map<String, Value> =
                r.paths().map(|(path, runs, _)| (path.into(), of(runs))).into_iter().collect();
            (r.row.key.into(), Value::Object(paths))
        });
        Value::Object(rows.collect())
    }

    /// The tables for people.
    pub fn text(&self) -> String {
        let mut table = Table::new(&["ROW", "PATH", "KIOPS>", "95 %>", "PAPER>", "RATIO>", "MS>", "PAPER>", "RATIO>"]);
        for result in &self.rows {
            for (path, figures, paper) in result.paths() {
                let (rate, ms) = (mean(&kiops(figures)), mean(&response_ms(figures)));
                let beside = |ours: f64, theirs: Option<f64>| match theirs {
                    Some(theirs) => [format!("{theirs:.1}"), format!("{:.3}", ours / theirs)],
                    None => ["".into(), "".into()],
                };
                let [paper_rate, rate_ratio] = beside(rate.mean, paper.map(|c| c.kiops));
                let [paper_ms, ms_ratio] = beside(ms.mean, paper.map(|c| c.response_ms));
                table.row(vec![
                    result.row.title.into(),
                    path.into(),
                    format!("{:.1}", rate.mean),
                    format!("{:.1}..{:.1}", rate.low, rate.high),
                    paper_rate,
                    rate_ratio,
                    format!("{:.1}", ms.mean),
                    paper_ms,
                    ms_ratio,
                ]);
            }
        }
        let mut ratios = Table::new(&["RATIO OF KIOPS", "OURS>", "95 %>", "PAPER>"]);
        for (name, ours, paper) in self.ratios() {
            let paper = paper.map(|p| format!("{p:.3}")).unwrap_or_default();
            let low_high = format!("{:.3}..{:.3}", ours.low, ours.high);
            ratios.row(vec![name.replace('_', " "), format!("{:.3}", ours.mean), low_high, paper]);
        }
        format!("{}\n{}\n{}", table.render(), ratios.render(), self.larger_text())
    }

    fn larger_text(&self) -> String {
        let heads = ["CORES>", "RECOVERY MS>", "POLICY", "GOOD KIOPS>", "BAD KIOPS>", "BAD/GOOD>", "CLEANED/FAULT>"];
        let mut table = Table::new(&heads);
        for result in &self.larger {
            let cleaned = mean(&result.bad.iter().map(|f| f.cleaned_per_fault).collect::<Vec<_>>()).mean;
            table.row(vec![
                result.cell.setup.cores().to_string(),
                result.cell.recovery_ms.to_string(),
                result.cell.policy.replace('_', " "),
                format!("{:.1}", mean(&kiops(&result.good)).mean),
                format!("{:.1}", mean(&kiops(&result.bad)).mean),
                format!("{:.3}", result.kept().mean),
                format!("{cleaned:.1}"),
            ]);
        }
        table.render()
    }
}

fn larger_json(result: &LargerResult) -> Value {
    json!({
        "cores": result.cell.setup.cores(),
        "recovery_ms": result.cell.recovery_ms,
        "policy": result.cell.policy,
        "kiops": {"good": mean(&kiops(&result.good)).mean, "bad": mean(&kiops(&result.bad)).mean},
        "response_ms": {"good": mean(&response_ms(&result.good)).mean, "bad": mean(&response_ms(&result.bad)).mean},
        "bad_over_good": result.kept(),
    })
}
