//! Everything that `segue reproduce choosy` ran, and what follows from it.
//!
//! Owns: which runs are compared with which. Never: words or shapes of the output.
//! Invariant: the first entrant is the plain one; all gains are over it.

use segue_models::choosy::judge::{
    self, Configuration, Entrant, Figure, Figures, Gain, Point, Run, Sample, Stress, Trial, average, cut, pool,
};

/// All runs.
pub struct Results {
    pub seed: u64,
    pub seeds: usize,
    pub quick: bool,
    pub entrants: Vec<Entrant>,
    pub configurations: Vec<ConfigurationResult>,
    /// Chunk by chunk, for Figures 3 and 4: entrant and points.
    pub series: Vec<(&'static str, Vec<Point>)>,
    pub stress: Vec<StressResult>,
}

/// The runs of a configuration, by entrant and seed.
pub struct ConfigurationResult {
    pub configuration: Configuration,
    pub steady_trial: Trial,
    pub cold: Vec<Vec<Run>>,
    pub steady: Vec<Vec<Run>>,
}

/// The runs of a row of the stress matrix, by entrant and seed.
pub struct StressResult {
    pub row: Stress,
    pub runs: Vec<Vec<Run>>,
}

/// What chunks are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// As published: from rest, chunks written by the end of the published run.
    Cold,
    /// The same time, every chunk waited for.
    ColdUncensored,
    /// After the warm-up, every chunk waited for.
    Steady,
    /// After the warm-up, chunks written by the end.
    SteadyCensored,
}

impl Phase {
    pub const ALL: [Phase; 4] = [Phase::Cold, Phase::ColdUncensored, Phase::Steady, Phase::SteadyCensored];

    pub const fn name(self) -> &'static str {
        match self {
            Phase::Cold => "cold",
            Phase::ColdUncensored => "cold_uncensored",
            Phase::Steady => "steady",
            Phase::SteadyCensored => "steady_censored",
        }
    }
}

/// How an entrant compares with the plain rules.
pub struct Versus {
    pub mean: Gain,
    pub p99: Gain,
    pub max: Gain,
}

impl ConfigurationResult {
    /// The runs of an entrant in a phase, and the place of the phase's span in them.
    pub fn runs(&self, entrant: usize, phase: Phase) -> (&[Run], usize) {
        match phase {
            Phase::Cold => (&self.cold[entrant], 0),
            _ => (&self.steady[entrant], self.steady_trial.span(phase.name())),
        }
    }

    /// An entrant over the plain one.
    pub fn versus(&self, entrant: usize, phase: Phase) -> Versus {
        let (base, span) = self.runs(0, phase);
        let of = self.runs(entrant, phase).0;
        let cut = |figure| cut(figure, base, of, span);
        Versus { mean: cut(Figure::Mean), p99: cut(Figure::P99), max: cut(Figure::Max) }
    }

    /// All seeds' chunks of an entrant in a phase.
    pub fn pooled(&self, entrant: usize, phase: Phase) -> Sample {
        let (runs, span) = self.runs(entrant, phase);
        pool(runs.iter().map(|run| &run.samples[span]))
    }

    /// Gains of the mean by SURGE's start times: from and until in ms, SURGE's gain, one of ours for each entrant but the plain one.
    pub fn by_start(&self) -> Vec<(u64, u64, f64, Vec<Gain>)> {
        let starts = self.configuration.surge.by_start.iter();
        let known = starts.filter_map(|s| Some((s, self.steady_trial.spans.iter().position(|p| p.name == s.name())?)));
        let gains = |span| self.steady[1..].iter().map(|of| judge::gain(&self.steady[0], of, span)).collect();
        known.map(|(s, span)| (s.from_ms, s.until_ms, s.gain, gains(span))).collect()
    }
}

impl StressResult {
    /// An entrant over the plain one.
    pub fn versus(&self, entrant: usize) -> Versus {
        let cut = |figure| cut(figure, &self.runs[0], &self.runs[entrant], 0);
        Versus { mean: cut(Figure::Mean), p99: cut(Figure::P99), max: cut(Figure::Max) }
    }

    /// All seeds' chunks of an entrant.
    pub fn figures(&self, entrant: usize) -> Figures {
        pool(self.runs[entrant].iter().map(|run| &run.samples[0])).figures()
    }
}

impl Results {
    /// The place of an entrant.
    pub fn entrant(&self, name: &str) -> usize {
        self.entrants.iter().position(|e| e.name == name).expect("the entrant ran")
    }

    /// The mean over the four configurations of an entrant's cut of a figure in a phase.
    pub fn average(&self, entrant: usize, phase: Phase, figure: Figure) -> Gain {
        let trials: Vec<(&[Run], &[Run], usize)> = self
            .configurations
            .iter()
            .map(|c| {
                let (base, span) = c.runs(0, phase);
                (base, c.runs(entrant, phase).0, span)
            })
            .collect();
        average(figure, &trials)
    }

    /// Share of chunks, percent, at or over so many milliseconds, cold start of Figures 3 and 4: SURGE's off and on, then ours.
    pub fn over_ms(&self) -> Vec<(u64, f64, f64, Vec<f64>)> {
        let tail = &self.configurations[judge::TAIL_CONFIGURATION];
        let samples: Vec<Sample> = (0..self.entrants.len()).map(|e| tail.pooled(e, Phase::Cold)).collect();
        let ours = |ms: u64| samples.iter().map(|s| 100.0 * s.latencies_ns.share_from(ms * 1_000_000)).collect();
        judge::SURGE_OVER_MS.iter().map(|(ms, off, on)| (*ms, *off, *on, ours(*ms))).collect()
    }
}

/// The mean of a count over runs.
pub fn per_run(runs: &[Run], count: fn(&Run) -> u64) -> f64 {
    runs.iter().map(count).sum::<u64>() as f64 / runs.len().max(1) as f64
}

/// Control messages for each chunk written.
pub fn messages_per_chunk(runs: &[Run]) -> f64 {
    per_run(runs, |r| r.control_messages) / per_run(runs, |r| r.chunks).max(1.0)
}
