//! Which volume should move where: one simple policy over facts.
//!
//! Owns: the choice of at most one move at a time. Never: moves anything, or looks twice at the same facts.
//! Invariant: the same facts give the same answer, and a move that was made is never undone by the next look at facts
//! that it left steady.
//!
//! Two reasons count, in this order: a drive that runs full, and a drive that works much more than another. Each has a
//! dead zone that a move must cross and stay out of on the other side, so that nothing oscillates. What a volume will do
//! on another drive is taken to be what it does now.

/// Parts per thousand: fill and load are compared in these.
const WHOLE: u64 = 1000;

/// What is known of a drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DriveFacts {
    /// Bytes of the drive.
    pub capacity_bytes: u64,
    /// Bytes that may still be written.
    pub free_bytes: u64,
    /// Work it does now, cost units per second.
    pub load: u64,
    /// Work it can do, cost units per second; 0 when nobody measured it.
    pub load_max: u64,
    /// It takes no volumes: it failed, or an operator empties it.
    pub closed: bool,
}

/// What is known of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VolumeFacts {
    /// Index of its drive.
    pub drive: usize,
    /// Bytes that a move would copy.
    pub data_bytes: u64,
    /// Work it causes now, cost units per second.
    pub load: u64,
    /// It may not move now: a snapshot, in a superposition, moving.
    pub pinned: bool,
}

/// When a move is worth its cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BalanceOptions {
    /// A drive fuller than this (parts per thousand) is relieved.
    pub full_at: u64,
    /// A drive is filled by moves at most up to this (parts per thousand). Below `full_at` by the dead zone.
    pub fill_to: u64,
    /// Two drives' loads (parts per thousand of what they can do) must differ by so much.
    pub load_gap: u64,
    /// No volume larger than this is moved for load, bytes: copying costs too.
    pub copy_bytes_max: u64,
}

impl Default for BalanceOptions {
    fn default() -> BalanceOptions {
        BalanceOptions { full_at: 850, fill_to: 700, load_gap: 300, copy_bytes_max: 1 << 40 }
    }
}

/// Why a move is proposed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Its drive runs full.
    Space,
    /// Its drive works much more than the other.
    Load,
}

/// A proposed move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// Index of the volume.
    pub volume: usize,
    /// Index of the drive it should go to.
    pub to: usize,
    /// Why.
    pub reason: Reason,
}

fn fill(drive: &DriveFacts, more_bytes: u64) -> u64 {
    let used = drive.capacity_bytes.saturating_sub(drive.free_bytes).saturating_add(more_bytes);
    (u128::from(used) * u128::from(WHOLE)).checked_div(u128::from(drive.capacity_bytes)).unwrap_or(u128::MAX) as u64
}

/// Load of a drive if this much were added, parts per thousand of what it can do.
fn share(drives: &[DriveFacts], at: usize, load: u64) -> u64 {
    // A drive that nobody measured is taken to be as good as the best one here; where none was, shares are of all that is
    // done now. Neither changes with a move.
    let known = drives.iter().map(|d| d.load_max).max().unwrap_or(0);
    let most = match (drives[at].load_max, known) {
        (0, 0) => drives.iter().map(|d| d.load).sum(),
        (0, known) => known,
        (most, _) => most,
    };
    (u128::from(load) * u128::from(WHOLE)).checked_div(u128::from(most)).unwrap_or(0) as u64
}

/// The move that helps most, if one is worth its cost. Looks at all pairs once: volumes times drives.
pub fn propose(drives: &[DriveFacts], volumes: &[VolumeFacts], options: &BalanceOptions) -> Option<Proposal> {
    assert!(options.fill_to < options.full_at, "without a dead zone a volume would go to and fro");
    assert!(volumes.iter().all(|v| v.drive < drives.len()), "every volume has a drive");
    for_space(drives, volumes, options).or_else(|| for_load(drives, volumes, options))
}

/// Volumes that could go to a drive, as pairs.
fn pairs<'a>(
    drives: &'a [DriveFacts],
    volumes: &'a [VolumeFacts],
    options: &'a BalanceOptions,
) -> impl Iterator<Item = (usize, usize)> + 'a {
    let fits = move |v: &VolumeFacts, to: usize| {
        let drive = &drives[to];
        to != v.drive
            && !drive.closed
            && v.data_bytes <= drive.free_bytes
            && fill(drive, v.data_bytes) <= options.fill_to
    };
    let movable = volumes.iter().enumerate().filter(|(_, v)| !v.pinned);
    movable.flat_map(move |(at, v)| (0..drives.len()).filter(move |to| fits(v, *to)).map(move |to| (at, to)))
}

/// The fullest drive gives the smallest volume that relieves it, or its largest, to the emptiest.
fn for_space(drives: &[DriveFacts], volumes: &[VolumeFacts], options: &BalanceOptions) -> Option<Proposal> {
    let full = (0..drives.len()).filter(|d| fill(&drives[*d], 0) > options.full_at);
    let from = full.max_by_key(|d| (fill(&drives[*d], 0), std::cmp::Reverse(*d)))?;
    let drive = &drives[from];
    let used = drive.capacity_bytes - drive.free_bytes.min(drive.capacity_bytes);
    let wanted = used.saturating_sub((u128::from(drive.capacity_bytes) * u128::from(options.full_at) / 1000) as u64);
    let gain = |(volume, to): &(usize, usize)| {
        let bytes = volumes[*volume].data_bytes;
        let relieves = bytes >= wanted;
        let size = if relieves { u64::MAX - bytes } else { bytes };
        (relieves, size, std::cmp::Reverse(fill(&drives[*to], 0)), std::cmp::Reverse((*volume, *to)))
    };
    let of_drive = |(volume, _): &(usize, usize)| volumes[*volume].drive == from && volumes[*volume].data_bytes > 0;
    let best = pairs(drives, volumes, options).filter(of_drive).max_by_key(gain);
    best.map(|(volume, to)| Proposal { volume, to, reason: Reason::Space })
}

/// The move that brings the two drives' loads closest, if they are far apart and it makes that much better.
fn for_load(drives: &[DriveFacts], volumes: &[VolumeFacts], options: &BalanceOptions) -> Option<Proposal> {
    let better = |(volume, to): (usize, usize)| {
        let v = &volumes[volume];
        if v.load == 0 || v.data_bytes > options.copy_bytes_max {
            return None;
        }
        let now = share(drives, v.drive, drives[v.drive].load).checked_sub(share(drives, to, drives[to].load))?;
        if now <= options.load_gap {
            return None;
        }
        let (left, there) = (drives[v.drive].load.saturating_sub(v.load), drives[to].load.saturating_add(v.load));
        let then = share(drives, v.drive, left).abs_diff(share(drives, to, there));
        // It must end inside the dead zone or halve the gap, and never turn the sign by as much as would call it back.
        let worth = then <= options.load_gap && then < now || then <= now / 2;
        let stays = share(drives, to, there) <= share(drives, v.drive, left).saturating_add(options.load_gap);
        (worth && stays).then(|| (volume, to, now - then))
    };
    let key =
        |p: &(usize, usize, u64)| (p.2, std::cmp::Reverse(volumes[p.0].data_bytes), std::cmp::Reverse((p.0, p.1)));
    let best = pairs(drives, volumes, options).filter_map(better).max_by_key(key);
    best.map(|(volume, to, _)| Proposal { volume, to, reason: Reason::Load })
}

/// Carries a move out on paper: what the facts are afterwards if nothing else changes.
pub fn settle(drives: &mut [DriveFacts], volumes: &mut [VolumeFacts], made: &Proposal) {
    let volume = &mut volumes[made.volume];
    let from = &mut drives[volume.drive];
    from.free_bytes = (from.free_bytes + volume.data_bytes).min(from.capacity_bytes);
    from.load = from.load.saturating_sub(volume.load);
    let to = &mut drives[made.to];
    to.free_bytes = to.free_bytes.saturating_sub(volume.data_bytes);
    to.load = to.load.saturating_add(volume.load);
    volume.drive = made.to;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drive(used: u64, load: u64) -> DriveFacts {
        DriveFacts { capacity_bytes: 1000, free_bytes: 1000 - used, load, load_max: 1000, closed: false }
    }

    fn volume(drive: usize, data_bytes: u64, load: u64) -> VolumeFacts {
        VolumeFacts { drive, data_bytes, load, pinned: false }
    }

    #[test]
    fn a_full_drive_gives_the_smallest_volume_that_relieves_it() {
        let drives = [drive(950, 0), drive(100, 0)];
        let volumes = [volume(0, 50, 0), volume(0, 200, 0), volume(0, 120, 0)];
        let made = propose(&drives, &volumes, &BalanceOptions::default());
        assert_eq!(made, Some(Proposal { volume: 2, to: 1, reason: Reason::Space }));
    }

    #[test]
    fn a_busy_drive_gives_what_evens_them_out() {
        let drives = [drive(500, 900), drive(500, 100)];
        let volumes = [volume(0, 10, 400), volume(0, 10, 500), volume(1, 10, 100)];
        let made = propose(&drives, &volumes, &BalanceOptions::default());
        assert_eq!(made, Some(Proposal { volume: 0, to: 1, reason: Reason::Load }));
    }

    #[test]
    fn nothing_moves_where_nothing_helps() {
        let options = BalanceOptions::default();
        // One volume is all the load: it would be as bad elsewhere.
        assert_eq!(propose(&[drive(500, 900), drive(500, 0)], &[volume(0, 10, 900)], &options), None);
        // Close enough.
        assert_eq!(propose(&[drive(500, 500), drive(500, 300)], &[volume(0, 10, 100)], &options), None);
        // Pinned, or no drive is open.
        let pinned = VolumeFacts { pinned: true, ..volume(0, 400, 0) };
        assert_eq!(propose(&[drive(950, 0), drive(0, 0)], &[pinned], &options), None);
        let closed = DriveFacts { closed: true, ..drive(0, 0) };
        assert_eq!(propose(&[drive(950, 0), closed], &[volume(0, 400, 0)], &options), None);
        assert_eq!(propose(&[], &[], &options), None);
    }

    prop_compose! {
        fn facts()(drives in prop::collection::vec((0u64..=1000, prop::bool::weighted(0.1), prop::bool::weighted(0.2)), 1..6),
                   volumes in prop::collection::vec((any::<prop::sample::Index>(), 0u64..400, 0u64..500, prop::bool::weighted(0.1)), 0..12))
            -> (Vec<DriveFacts>, Vec<VolumeFacts>) {
            let volumes: Vec<VolumeFacts> = volumes
                .into_iter()
                .map(|(at, data_bytes, load, pinned)| VolumeFacts { drive: at.index(drives.len()), data_bytes, load, pinned })
                .collect();
            let drives = drives.into_iter().enumerate().map(|(at, (spare, closed, unmeasured))| {
                let of = volumes.iter().filter(|v| v.drive == at);
                let (used, load) = of.fold((0, 0), |(bytes, load), v| (bytes + v.data_bytes, load + v.load));
                let capacity_bytes = used + spare + 1;
                let load_max = if unmeasured { 0 } else { 1000 };
                DriveFacts { capacity_bytes, free_bytes: spare + 1, load, load_max, closed }
            });
            (drives.collect(), volumes)
        }
    }

    proptest! {
        /// On steady facts moves come to an end, and no volume comes back to where it was.
        #[test]
        fn model_steady_facts_come_to_rest((mut drives, mut volumes) in facts()) {
            let options = BalanceOptions::default();
            let mut homes: Vec<Vec<usize>> = volumes.iter().map(|v| vec![v.drive]).collect();
            for turn in 0.. {
                let Some(made) = propose(&drives, &volumes, &options) else { break };
                prop_assert_eq!(propose(&drives, &volumes, &options), Some(made), "the same facts, another answer");
                prop_assert!(turn < 100, "it does not come to rest");
                settle(&mut drives, &mut volumes, &made);
                // What was just moved is not what the next look moves back.
                let next = propose(&drives, &volumes, &options);
                let back = next.is_some_and(|n| n.volume == made.volume && Some(&n.to) == homes[made.volume].last());
                prop_assert!(!back, "volume {} goes to and fro", made.volume);
                homes[made.volume].push(made.to);
            }
        }

        /// A proposal obeys every limit.
        #[test]
        fn model_a_proposal_keeps_the_limits((drives, volumes) in facts()) {
            let options = BalanceOptions::default();
            if let Some(Proposal { volume, to, .. }) = propose(&drives, &volumes, &options) {
                let (v, d) = (&volumes[volume], &drives[to]);
                prop_assert!(!v.pinned && !d.closed && v.drive != to && v.data_bytes <= d.free_bytes);
                prop_assert!(fill(d, v.data_bytes) <= options.fill_to);
            }
        }
    }
}
