//! What a request costs: one number in place of size, direction, flush, discard, processor time and network bytes.
//!
//! Owns: the model and its defaults. Never: measures; `segue drive calibrate` and the driver do.
//! Invariant: a cost is at least 1, grows with the size of the request, and never overflows.
//!
//! The unit is a hundredth of a 4 KiB read, as in ReFlex (ASPLOS 2017), whose tokens this follows.

/// Cost units of a 4 KiB read under every calibrated model.
pub const READ_4K: u64 = 100;

/// What a request does to the drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Reads data.
    Read,
    /// Writes data.
    Write,
    /// Makes writes durable.
    Flush,
    /// Discards, or writes zeroes: its bytes do not travel.
    Trim,
    /// Asks about the map: processor time alone.
    Other,
}

/// A request as it is charged. Pieces of a large one are charged apart; the first alone counts as a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Charge {
    /// What it does.
    pub kind: Kind,
    /// Requests of the tenant that it stands for: 1, or 0 for a later piece.
    pub ops: u32,
    /// Bytes that it moves, as the tenant asked (before alignment).
    pub bytes: u32,
    /// Cost, units.
    pub cost: u64,
    /// Estimated processor time, ns: what it takes of a turn of the core.
    pub cpu_ns: u64,
    /// What it takes of the drive's window, units. Set by the machine when it passes.
    pub held: u64,
    /// It is at the drive beyond the window, as its volume had nothing there. Set by the machine when it passes.
    pub guest: bool,
}

/// How costs are computed. All but the last three are cost units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CostModel {
    /// A read, before its size.
    pub read_base: u32,
    /// Each 4 KiB of a read.
    pub read_block: u32,
    /// A write, before its size.
    pub write_base: u32,
    /// Each 4 KiB of a write.
    pub write_block: u32,
    /// A flush, until its time is known.
    pub flush: u32,
    /// A discard or write-zeroes, before its size.
    pub trim_base: u32,
    /// Each MiB of a discard or write-zeroes.
    pub trim_mib: u32,
    /// Processor time of any request, ns.
    pub cpu_base_ns: u32,
    /// Processor and network time of each 4 KiB that travels, ns.
    pub cpu_block_ns: u32,
    /// Cost units of a microsecond of processor and network time.
    pub cpu_us: u32,
}

impl CostModel {
    /// A drive of its own before it was calibrated: a write as two reads, a flush as ten.
    pub const DRIVE: CostModel = CostModel {
        read_base: 59,
        read_block: 38,
        write_base: 120,
        write_block: 76,
        flush: 1000,
        trim_base: 200,
        trim_mib: 50,
        cpu_base_ns: 3000,
        cpu_block_ns: 500,
        cpu_us: 1,
    };

    /// A drive in memory: the core's processor is all there is to share, so nothing else is charged.
    pub const MEMORY: CostModel = CostModel {
        read_base: 10,
        read_block: 6,
        write_base: 10,
        write_block: 10,
        flush: 100,
        trim_base: 50,
        trim_mib: 400,
        cpu_base_ns: 2500,
        cpu_block_ns: 500,
        cpu_us: 28,
    };

    /// The charge of a request, or of a piece of one (`first` for its first piece).
    pub fn charge(&self, kind: Kind, bytes: u64, first: bool) -> Charge {
        let blocks = bytes.div_ceil(4096);
        let mib = bytes.div_ceil(1 << 20);
        let each = |base: u32, unit: u32, count: u64| base as u64 + unit as u64 * count.min(1 << 28);
        let (device, travels) = match kind {
            Kind::Read => (each(self.read_base, self.read_block, blocks), blocks),
            Kind::Write => (each(self.write_base, self.write_block, blocks), blocks),
            Kind::Flush => (self.flush as u64, 0),
            Kind::Trim => (each(self.trim_base, self.trim_mib, mib), 0),
            Kind::Other => (0, 0),
        };
        let cpu_ns = each(self.cpu_base_ns, self.cpu_block_ns, travels);
        let cost = (device + cpu_ns * self.cpu_us as u64 / 1000).max(1);
        let bytes = if travels > 0 { bytes.min(u32::MAX as u64) as u32 } else { 0 };
        Charge { kind, ops: first as u32, bytes, cost, cpu_ns, held: 0, guest: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_read_costs_a_hundred_and_large_ones_more() {
        for model in [CostModel::DRIVE, CostModel::MEMORY] {
            let of = |kind, bytes| model.charge(kind, bytes, true).cost;
            assert_eq!(of(Kind::Read, 4096), READ_4K, "{model:?}");
            assert!(of(Kind::Read, 256 << 10) > 10 * READ_4K);
            assert!(of(Kind::Write, 4096) >= READ_4K);
            assert!(of(Kind::Trim, u64::MAX) > of(Kind::Trim, 1 << 20));
            assert!(of(Kind::Flush, 0) >= READ_4K);
        }
        assert_eq!(CostModel::DRIVE.charge(Kind::Trim, 1 << 30, true).bytes, 0, "a discard moves no bytes");
        assert_eq!(CostModel::DRIVE.charge(Kind::Read, 8192, false).ops, 0);
    }
}
