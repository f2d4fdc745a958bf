//! Lists of seeds: `1..20`, `5`, `1,3,7`.
//!
//! Owns: what such a list means. Never: draws a seed itself.
//! Invariant: a list is not empty and holds no seed twice; a range includes both its ends.

use std::str::FromStr;

/// Most seeds of one command.
const SEEDS_MAX: usize = 100_000;

/// Seeds, in the order they were given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seeds(Vec<u64>);

impl Seeds {
    /// `1..N`.
    #[cfg(test)]
    pub fn first(n: u64) -> Seeds {
        Seeds((1..=n).collect())
    }

    /// All of them.
    pub fn all(&self) -> &[u64] {
        &self.0
    }
}

/// Why a list cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SeedsError {
    /// Not a number and not a range.
    #[error("seeds are numbers and ranges, both ends included: 5, or 1..20, or 1,3,7, or 1..4,9")]
    Shape,
    /// The first number of a range is above the second.
    #[error("a range of seeds goes up: 1..20")]
    Down,
    /// Given twice.
    #[error("seed {0} is given twice; a repeated seed adds no information")]
    Twice(u64),
    /// Too many.
    #[error("more than 100,000 seeds")]
    Many,
}

impl FromStr for Seeds {
    type Err = SeedsError;

    fn from_str(text: &str) -> Result<Seeds, SeedsError> {
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| SeedsError::Shape);
        let mut seeds = Vec::new();
        for part in text.split(',') {
            let (from, to) = match part.split_once("..") {
                Some((from, to)) => (number(from)?, number(to.trim_start_matches('='))?),
                None => (number(part)?, number(part)?),
            };
            if from > to {
                return Err(SeedsError::Down);
            }
            if (to - from) as usize >= SEEDS_MAX - seeds.len().min(SEEDS_MAX) {
                return Err(SeedsError::Many);
            }
            seeds.extend(from..=to);
        }
        let mut sorted = seeds.clone();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(SeedsError::Twice(pair[0])),
            None => Ok(Seeds(seeds)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_seeds() {
        let of = |text: &str| text.parse::<Seeds>().map(|s| s.0);
        assert_eq!(of("1..20"), Ok((1..=20).collect()));
        assert_eq!(of("5"), Ok(vec![5]));
        assert_eq!(of("7,1..3, 9"), Ok(vec![7, 1, 2, 3, 9]));
        assert_eq!(of("1..=2"), Ok(vec![1, 2]));
        assert_eq!(of("20..1"), Err(SeedsError::Down));
        assert_eq!(of("1..3,2"), Err(SeedsError::Twice(2)));
        assert_eq!(of("0..18446744073709551615"), Err(SeedsError::Many));
        for shape in ["", "x", "1..", "..3", "1,,2", "-1"] {
            assert_eq!(of(shape), Err(SeedsError::Shape), "{shape:?}");
        }
    }
}
