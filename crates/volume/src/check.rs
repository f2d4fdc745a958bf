//! Offline check of a pool: every pointer, every map page, every bit of the bitmap.
//!
//! Owns: the findings. Never: writes to the drive or repairs.
//! Invariant: a pool without findings serves every mapped block from exactly one place that is marked taken.

use crate::cache::{PageKey, TOP_LEVEL};
use crate::device::BlockDev;
use crate::engine::{Engine, EngineOptions, OpenError};
use crate::entry::{Entry, FANOUT};
use crate::mem::Mem;
use crate::op::Out;
use segue_types::{LayerId, VolumeId};
use std::collections::BTreeMap;

/// Something wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// A block is used in two places.
    UsedTwice {
        /// Block number on the drive.
        at: u64,
        /// Layer of the second use.
        layer: LayerId,
    },
    /// A block in use is marked free: the next write would destroy it.
    UsedButFree {
        /// Block number on the drive.
        at: u64,
        /// Layer of the use.
        layer: LayerId,
    },
    /// A pointer leads outside the data region.
    OutOfRange {
        /// Block number it names.
        at: u64,
        /// Layer of the use.
        layer: LayerId,
    },
    /// A map page does not match its checksum or cannot be read; what is below it was not checked.
    DamagedPage {
        /// Its layer.
        layer: LayerId,
        /// Its level, 0 is a leaf.
        level: u8,
        /// Its index within the level.
        index: u64,
    },
    /// A layer's count of blocks is wrong.
    WrongCount {
        /// The layer.
        layer: LayerId,
        /// As recorded.
        recorded: u64,
        /// As found.
        found: u64,
    },
    /// A block in use is not of an extent that this slice has leased: another slice may write over it.
    NotLeased {
        /// Block number on the drive.
        at: u64,
        /// Layer of the use.
        layer: LayerId,
    },
    /// Two slices have leased the same extent.
    LeasedTwice {
        /// The extent.
        extent: u32,
        /// The second slice.
        slice: u64,
    },
    /// A volume maps blocks past its end.
    PastEnd {
        /// The volume.
        volume: VolumeId,
        /// First such block.
        block: u64,
    },
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// What is wrong, at most 1,000 of them.
    pub findings: Vec<Finding>,
    /// Findings in all.
    pub findings_total: u64,
    /// Blocks marked taken that nothing uses. Harmless: lost space.
    pub leaked_blocks: u64,
    /// Data blocks and map pages in use.
    pub data_blocks: u64,
    /// Map pages on the drive.
    pub map_pages: u64,
    /// Volumes and snapshots.
    pub volumes: u64,
    /// Layers.
    pub layers: u64,
    /// Journal records that would be replayed at the next open (1 stands for any number).
    pub journal_pending: bool,
}

impl CheckReport {
    /// True when nothing is wrong (leaked blocks are not wrong).
    pub fn is_clean(&self) -> bool {
        self.findings_total == 0
    }

    /// Adds what was found in another slice.
    fn add(&mut self, other: CheckReport) {
        self.findings_total += other.findings_total;
        let room = 1000usize.saturating_sub(self.findings.len());
        self.findings.extend(other.findings.into_iter().take(room));
        self.leaked_blocks += other.leaked_blocks;
        self.data_blocks += other.data_blocks;
        self.map_pages += other.map_pages;
        self.volumes += other.volumes;
        self.layers += other.layers;
        self.journal_pending |= other.journal_pending;
    }

    fn found(&mut self, finding: Finding) {
        self.findings_total += 1;
        if self.findings.len() < 1000 {
            self.findings.push(finding);
        }
    }
}

struct Walk<'a> {
    dev: &'a mut dyn BlockDev,
    engine: Engine,
    mem: &'a mut Mem,
    out: Out,
    used: Vec<u64>,
    report: CheckReport,
}

/// Checks the metadata of a pool that no node has open. Data blocks are not read (see scrub).
///
/// # Errors
/// [`OpenError`] when the pool is too damaged to be walked at all.
pub fn check(dev: &mut dyn BlockDev) -> Result<CheckReport, OpenError> {
    let mut whole = CheckReport::default();
    let mut owners = BTreeMap::new();
    for slice in 0..Engine::slices(dev)? {
        let (report, leased) = check_slice(dev, slice)?;
        for extent in leased {
            if owners.insert(extent, slice).is_some() {
                whole.found(Finding::LeasedTwice { extent, slice });
            }
        }
        whole.add(report);
    }
    Ok(whole)
}

/// One slice, and the extents it has leased.
fn check_slice(dev: &mut dyn BlockDev, slice: u64) -> Result<(CheckReport, Vec<u32>), OpenError> {
    let options = EngineOptions::default();
    let mut mem = Mem::new(4 * Engine::mem_bytes(&options) as usize);
    let (engine, journal_pending) = Engine::load(dev, &mut mem, &options, slice, None)?;
    let words = engine.bitmap_words();
    let mut walk = Walk {
        dev,
        engine,
        mem: &mut mem,
        out: Out::default(),
        used: vec![0; words],
        report: CheckReport { journal_pending, ..CheckReport::default() },
    };
    walk.layers()?;
    let leased = walk.engine.leased_extents().unwrap_or_default();
    Ok((walk.report, leased))
}

impl Walk<'_> {
    fn layers(&mut self) -> Result<(), OpenError> {
        for (id, recorded) in self.engine.layer_counts() {
            let before = self.report.data_blocks;
            self.page(PageKey { layer: id, level: TOP_LEVEL, index: 0 })?;
            let found = self.report.data_blocks - before;
            if found != recorded {
                self.report.found(Finding::WrongCount { layer: id, recorded, found });
            }
            self.report.layers += 1;
        }
        for (volume, head, size_blocks) in self.engine.volume_heads() {
            self.report.volumes += 1;
            let from = size_blocks.div_ceil(FANOUT);
            let next =
                self.engine.insist(self.dev, self.mem, &mut self.out, |e, mem, out| e.next_leaf(head, from, mem, out));
            if let Ok(Some(leaf)) = next {
                self.report.found(Finding::PastEnd { volume, block: leaf * FANOUT });
            }
        }
        let pending = self.engine.limbo_blocks();
        for block in pending {
            self.used[(block / 64) as usize] |= 1 << (block % 64);
        }
        for block in self.engine.data_range() {
            let used = self.used[(block / 64) as usize] >> (block % 64) & 1 == 1;
            if self.engine.is_taken(block) && self.engine.is_leased(block) && !used {
                self.report.leaked_blocks += 1;
            }
        }
        Ok(())
    }

    fn page(&mut self, key: PageKey) -> Result<(), OpenError> {
        let copy = self.engine.insist(self.dev, self.mem, &mut self.out, |e, mem, out| e.page_copy(key, mem, out));
        let page = match copy {
            Ok(Some((at, page))) => {
                if at.is_pointer() {
                    self.report.map_pages += 1;
                    self.place(key.layer, at);
                }
                page
            }
            Ok(None) => return Ok(()),
            Err(OpenError::Map) => {
                let PageKey { layer, level, index } = key;
                self.report.found(Finding::DamagedPage { layer, level, index });
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        for index in 0..FANOUT {
            let entry = Entry::get(&page, index);
            if key.level > 0 {
                let below = PageKey { layer: key.layer, level: key.level - 1, index: key.index << 8 | index };
                if entry.is_pointer() || self.engine.is_cached(below) {
                    self.page(below)?;
                }
            } else if entry.is_pointer() {
                self.report.data_blocks += 1;
                self.place(key.layer, entry);
            }
        }
        Ok(())
    }

    fn place(&mut self, layer: LayerId, entry: Entry) {
        let at = entry.block();
        if !self.engine.data_range().contains(&at) {
            self.report.found(Finding::OutOfRange { at, layer });
            return;
        }
        if !self.engine.is_leased(at) {
            self.report.found(Finding::NotLeased { at, layer });
        }
        let (word, bit) = ((at / 64) as usize, 1 << (at % 64));
        if self.used[word] & bit != 0 {
            self.report.found(Finding::UsedTwice { at, layer });
        }
        self.used[word] |= bit;
        if !self.engine.is_taken(at) {
            self.report.found(Finding::UsedButFree { at, layer });
        }
    }
}
