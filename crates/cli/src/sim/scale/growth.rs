//! Whether the cost of an event grows at most like a logarithm.
//!
//! Owns: the fit and the answer. Never: drops a row.
//! Invariant: the answer is given with all the numbers that lead to it.

use serde::Serialize;

/// What noise of the machine may add to a row before it counts as growth.
const NOISE: f64 = 1.15;

/// A row's size and cost.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Point {
    /// Nodes.
    pub nodes: u32,
    /// Processor time of one event in the fastest repeat, nanoseconds.
    pub ns_per_event: f64,
    /// That over log2(nodes): does not grow when the cost grows at most like the logarithm.
    pub over_log2: f64,
}

/// How the cost of an event grows with the number of nodes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Growth {
    pub rows: Vec<Point>,
    /// Least squares: ns per event = `intercept_ns` + `ns_per_doubling` * log2(nodes).
    pub intercept_ns: f64,
    pub ns_per_doubling: f64,
    /// Share of the variance that the line explains, 0 to 1.
    pub r2: f64,
    /// Cost of the largest row over that of the smallest.
    pub cost_ratio: f64,
    /// log2 of the largest over log2 of the smallest.
    pub log2_ratio: f64,
    /// Nodes of the largest row over those of the smallest.
    pub nodes_ratio: f64,
    /// How much a row's `over_log2` may exceed the smallest row's before the answer is no.
    pub allowed_noise: f64,
    /// Cost per event grows at most logarithmically: no row's `over_log2` exceeds the smallest row's by more than the noise.
    pub at_most_logarithmic: bool,
}

impl Growth {
    /// From (nodes, ns per event), at least two different sizes; `None` for fewer.
    pub fn of(rows: &[(u32, f64)]) -> Option<Growth> {
        let mut rows: Vec<Point> =
            rows.iter().filter(|(nodes, _)| *nodes > 1).map(|(n, cost)| point(*n, *cost)).collect();
        rows.sort_by_key(|p| p.nodes);
        let (first, last) = (*rows.first()?, *rows.last()?);
        if first.nodes == last.nodes {
            return None;
        }
        let (intercept_ns, ns_per_doubling, r2) = line(&rows);
        let log2 = |p: Point| f64::from(p.nodes).log2();
        Some(Growth {
            intercept_ns,
            ns_per_doubling,
            r2,
            cost_ratio: last.ns_per_event / first.ns_per_event,
            log2_ratio: log2(last) / log2(first),
            nodes_ratio: f64::from(last.nodes) / f64::from(first.nodes),
            allowed_noise: NOISE,
            at_most_logarithmic: rows.iter().all(|p| p.over_log2 <= first.over_log2 * NOISE),
            rows,
        })
    }
}

fn point(nodes: u32, ns_per_event: f64) -> Point {
    Point { nodes, ns_per_event, over_log2: ns_per_event / f64::from(nodes).log2() }
}

fn line(rows: &[Point]) -> (f64, f64, f64) {
    let n = rows.len() as f64;
    let x = |p: &Point| f64::from(p.nodes).log2();
    let (mean_x, mean_y) = (rows.iter().map(x).sum::<f64>() / n, rows.iter().map(|p| p.ns_per_event).sum::<f64>() / n);
    let sum = |of: &dyn Fn(&Point) -> f64| rows.iter().map(of).sum::<f64>();
    let xx = sum(&|p| (x(p) - mean_x) * (x(p) - mean_x));
    let xy = sum(&|p| (x(p) - mean_x) * (p.ns_per_event - mean_y));
    let yy = sum(&|p| (p.ns_per_event - mean_y) * (p.ns_per_event - mean_y));
    let slope = xy / xx;
    (mean_y - slope * mean_x, slope, if yy == 0.0 { 1.0 } else { xy * xy / (xx * yy) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [u32; 5] = [180, 360, 1_000, 3_000, 10_000];

    fn of(cost: impl Fn(f64) -> f64) -> Growth {
        Growth::of(&SIZES.map(|n| (n, cost(f64::from(n))))).unwrap()
    }

    #[test]
    fn the_fit_finds_the_line() {
        let growth = of(|n| 30.0 + 7.0 * n.log2());
        assert!((growth.intercept_ns - 30.0).abs() < 1e-9 && (growth.ns_per_doubling - 7.0).abs() < 1e-9);
        assert!((growth.r2 - 1.0).abs() < 1e-12 && growth.at_most_logarithmic);
        assert!(of(|_| 100.0).at_most_logarithmic);
        assert!(Growth::of(&[(180, 1.0)]).is_none());
    }

    #[test]
    fn canary_faster_growth_is_refused() {
        assert!(!of(|n| n.sqrt()).at_most_logarithmic);
        assert!(!of(|n| n.powf(0.25)).at_most_logarithmic);
        assert!(!of(|n| n.log2() * n.log2()).at_most_logarithmic);
    }
}
