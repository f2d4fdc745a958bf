//! Values over time, in buckets of equal length.
//!
//! Owns: count, sum and maximum of each bucket. Never: keeps a value.
//! Invariant: every value is in exactly one bucket; a bucket without values says so.

use super::csv::{Cell, Table};
use segue_types::Nanos;
use serde::{Serialize, Serializer};

/// What was seen in one bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Bucket {
    /// Values.
    pub count: u64,
    /// Their sum.
    pub sum: u128,
    /// The largest; 0 of none.
    pub max: u64,
}

impl Bucket {
    /// The mean; `None` of none.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }
}

/// A series of buckets from time 0 on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Series {
    width_ns: Nanos,
    buckets: Vec<Bucket>,
}

impl Series {
    /// An empty series of buckets of `width_ns`.
    ///
    /// # Panics
    /// When that is 0.
    pub fn new(width_ns: Nanos) -> Series {
        assert!(width_ns > 0, "buckets have a length");
        Series { width_ns, buckets: Vec::new() }
    }

    /// Adds a value seen at `time`.
    pub fn add(&mut self, time: Nanos, value: u64) {
        let at = (time / self.width_ns) as usize;
        if at >= self.buckets.len() {
            self.buckets.resize(at + 1, Bucket::default());
        }
        let bucket = &mut self.buckets[at];
        bucket.count += 1;
        bucket.sum += u128::from(value);
        bucket.max = bucket.max.max(value);
    }

    /// The buckets from time 0 to the last that has a value.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Length of a bucket, nanoseconds.
    pub const fn width_ns(&self) -> Nanos {
        self.width_ns
    }

    /// The means of the buckets that have values, in order: what [`super::mser5`] and [`super::batch_means`] take.
    pub fn means(&self) -> Vec<f64> {
        self.buckets.iter().filter_map(Bucket::mean).collect()
    }

    /// For each bucket the mean of all values in it and in the `before` buckets before it; `None` where there are none.
    pub fn moving_average(&self, before: usize) -> Vec<Option<f64>> {
        let mut window = Bucket::default();
        let average = |(i, bucket): (usize, &Bucket)| {
            window.count += bucket.count;
            window.sum += bucket.sum;
            if let Some(left) = i.checked_sub(before + 1) {
                window.count -= self.buckets[left].count;
                window.sum -= self.buckets[left].sum;
            }
            window.mean()
        };
        self.buckets.iter().enumerate().map(average).collect()
    }

    /// A table with a row per bucket: begin of the bucket, count, mean, maximum, moving average over `before` more buckets.
    pub fn table(&self, before: usize) -> Table {
        let mut table = Table::new(&["from_ns", "count", "mean", "max", "moving_average"]);
        for (i, (bucket, average)) in self.buckets.iter().zip(self.moving_average(before)).enumerate() {
            let from = i as u64 * self.width_ns;
            let max = if bucket.count > 0 { Cell::Whole(bucket.max) } else { Cell::Empty };
            let row = vec![from.into(), bucket.count.into(), bucket.mean().into(), max, average.into()];
            table.row(row);
        }
        table
    }
}

impl Serialize for Series {
    /// As its table without moving average.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.table(0).serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Chance;

    #[test]
    fn values_fall_into_their_buckets() {
        let mut series = Series::new(10);
        for (time, value) in [(0, 4), (9, 6), (30, 8), (31, 2), (12, 0)] {
            series.add(time, value);
        }
        let means: Vec<Option<f64>> = series.buckets().iter().map(Bucket::mean).collect();
        assert_eq!(means, [Some(5.0), Some(0.0), None, Some(5.0)]);
        assert_eq!(series.means(), [5.0, 0.0, 5.0]);
        assert_eq!(series.moving_average(1), [Some(5.0), Some(10.0 / 3.0), Some(0.0), Some(5.0)]);
        let csv = series.table(0).csv();
        assert_eq!(csv.lines().nth(3), Some("20,0,,,"));
        assert_eq!(csv.lines().nth(4), Some("30,2,5,8,5"));
    }

    #[test]
    fn model_the_moving_average_is_that_of_the_values_in_the_window() {
        let mut chance = Chance::new(8);
        let (mut series, mut values) = (Series::new(100), Vec::new());
        for _ in 0..500 {
            let (time, value) = (chance.below(10_000), chance.below(1_000));
            series.add(time, value);
            values.push((time / 100, value));
        }
        for before in [0, 1, 7, 200] {
            for (i, average) in series.moving_average(before).into_iter().enumerate() {
                let inside = |(b, _): &&(u64, u64)| *b as usize <= i && *b as usize + before >= i;
                let in_window: Vec<u64> = values.iter().filter(inside).map(|(_, v)| *v).collect();
                let naive =
                    (!in_window.is_empty()).then(|| in_window.iter().sum::<u64>() as f64 / in_window.len() as f64);
                assert_eq!(average, naive);
            }
        }
    }
}
