//! A block trace and the map of objects that were populated before it began.
//!
//! Owns: the two text formats and what copy-on-write at 64 KiB would copy. Never: does the I/O.
//! Invariant: a trace in memory is in time order, in range, and aligned: writes to 4 KiB, reads to sectors.

use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};

/// Bytes of an object of the map: the granularity of the copy-on-write baseline.
pub const OBJECT_BYTES: u64 = 64 << 10;

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Microseconds since the trace began.
    pub at_us: u64,
    /// True for a write, false for a read.
    pub write: bool,
    /// Byte offset.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// A trace with its map.
pub struct Trace {
    /// In time order.
    pub requests: Vec<Request>,
    /// Per 64 KiB object: whether it holds data when the trace begins.
    pub populated: Vec<bool>,
}

/// What a trace asks for, and what copy-on-write at 64 KiB would add to it.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
pub struct TraceFacts {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Duration from the first to the last request, microseconds.
    pub duration_us: u64,
    /// Populated objects.
    pub populated_objects: u64,
    /// Objects whose first touch is a write of a part of them while they are populated: each is copied whole.
    pub cow_copies: u64,
    /// Bytes so copied.
    pub cow_bytes: u64,
}

impl Trace {
    /// Reads `NAME.q.csv` (columns ts_us,op,offset,len,proc) and the map beside it, `NAME.omap` (a `1` or `0` per object).
    ///
    /// # Errors
    /// Names the file, and the line that is wrong.
    pub fn read(csv: &Path, omap: &Path) -> Result<Trace> {
        let text = std::fs::read_to_string(csv).with_context(|| format!("read the trace {}", csv.display()))?;
        let map = std::fs::read(omap)
            .with_context(|| format!("read the map {} (name another with --omap)", omap.display()))?;
        Trace::parse(&text, &map).with_context(|| format!("trace {}", csv.display()))
    }

    fn parse(csv: &str, omap: &[u8]) -> Result<Trace> {
        let mut lines = csv.lines().enumerate();
        let head = lines.next().map(|(_, head)| head).unwrap_or_default();
        ensure!(head.starts_with("ts_us,op,offset,len"), "the first line is not ts_us,op,offset,len,proc");
        let populated: Vec<bool> = omap.iter().filter(|b| matches!(b, b'0' | b'1')).map(|b| *b == b'1').collect();
        let size = populated.len() as u64 * OBJECT_BYTES;
        let mut requests = Vec::new();
        for (i, line) in lines.filter(|(_, line)| !line.is_empty()) {
            let request = parse_line(line).with_context(|| format!("line {}: `{line}`", i + 1))?;
            let unit = if request.write { 4096 } else { 512 };
            let aligned = request.offset.is_multiple_of(u64::from(unit)) && request.len.is_multiple_of(unit);
            ensure!(aligned && request.len > 0, "line {}: not a multiple of {unit}", i + 1);
            ensure!(request.offset + u64::from(request.len) <= size, "line {}: beyond the map's {size} bytes", i + 1);
            requests.push(request);
        }
        ensure!(!requests.is_empty(), "no requests");
        requests.sort_by_key(|r| r.at_us);
        Ok(Trace { requests, populated })
    }

    /// Counts what the trace asks for.
    pub fn facts(&self) -> TraceFacts {
        let sum = |write: bool| {
            let chosen = self.requests.iter().filter(|r| r.write == write);
            chosen.fold((0, 0), |(n, bytes), r| (n + 1, bytes + u64::from(r.len)))
        };
        let ((reads, read_bytes), (writes, write_bytes)) = (sum(false), sum(true));
        let mut touched = vec![false; self.populated.len()];
        let mut cow_copies = 0;
        for request in self.requests.iter().filter(|r| r.write) {
            for part in object_parts(request.offset, request.len) {
                let first = !std::mem::replace(&mut touched[part.object], true);
                cow_copies += u64::from(first && self.populated[part.object] && !part.is_whole());
            }
        }
        TraceFacts {
            reads,
            read_bytes,
            writes,
            write_bytes,
            duration_us: self.requests.last().map_or(0, |r| r.at_us) - self.requests[0].at_us,
            populated_objects: self.populated.iter().filter(|p| **p).count() as u64,
            cow_copies,
            cow_bytes: cow_copies * OBJECT_BYTES,
        }
    }
}

/// The map that stands beside a trace: `X.q.csv` goes with `X.omap`.
pub fn omap_beside(csv: &Path) -> PathBuf {
    let name = csv.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(".q.csv").or_else(|| name.strip_suffix(".csv")).unwrap_or(&name);
    csv.with_file_name(format!("{stem}.omap"))
}

fn parse_line(line: &str) -> Result<Request> {
    let mut fields = line.split(',');
    let mut next = |what: &'static str| fields.next().context(what);
    let at_us = next("no ts_us")?.parse().context("ts_us")?;
    let write = match next("no op")? {
        "W" => true,
        "R" => false,
        other => bail!("op is `{other}`, not R or W"),
    };
    let offset = next("no offset")?.parse().context("offset")?;
    let len = next("no len")?.parse().context("len")?;
    Ok(Request { at_us, write, offset, len })
}

/// The part of a request that lies in one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectPart {
    /// Index of the object.
    pub object: usize,
    /// Byte offset on the volume.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// Byte offset within the request.
    pub skip: u32,
}

impl ObjectPart {
    /// True when it covers the object.
    pub fn is_whole(self) -> bool {
        u64::from(self.len) == OBJECT_BYTES
    }
}

/// Cuts a request at object boundaries.
pub fn object_parts(offset: u64, len: u32) -> impl Iterator<Item = ObjectPart> {
    let end = offset + u64::from(len);
    let mut at = offset;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let object = at / OBJECT_BYTES;
            let stop = end.min((object + 1) * OBJECT_BYTES);
            let part =
                ObjectPart { object: object as usize, offset: at, len: (stop - at) as u32, skip: (at - offset) as u32 };
            at = stop;
            part
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "ts_us,op,offset,len,proc\n";

    #[test]
    fn traces_are_checked_and_counted() {
        let csv = format!("{HEAD}0,R,0,4096,a\n5,W,4096,8192,a\n9,W,0,65536,b\n9,W,61440,135168,c\n");
        let trace = Trace::parse(&csv, b"1101").unwrap();
        let facts = trace.facts();
        assert_eq!((facts.reads, facts.writes, facts.populated_objects, facts.duration_us), (1, 3, 3, 9));
        // Object 0 by its first partial write; object 1 and 2 are first written whole; object 3 in part.
        assert_eq!((facts.cow_copies, facts.cow_bytes), (1, OBJECT_BYTES));
        for bad in ["0,X,0,4096,a", "0,W,512,4096,a", "0,R,1,512,a", "0,W,262144,4096,a", "0,W,0", ""] {
            assert!(Trace::parse(&format!("{HEAD}{bad}\n"), b"1101").is_err(), "{bad}");
        }
    }

    #[test]
    fn parts_tile_the_request() {
        let parts: Vec<ObjectPart> = object_parts(61440, 8192 + 65536).collect();
        assert_eq!(
            parts.iter().map(|p| (p.object, p.len, p.skip)).collect::<Vec<_>>(),
            [(0, 4096, 0), (1, 65536, 4096), (2, 4096, 69632)]
        );
        assert!(parts[1].is_whole());
    }

    #[test]
    fn the_map_stands_beside_the_trace() {
        assert_eq!(omap_beside(Path::new("a/pg.q.csv")), Path::new("a/pg.omap"));
    }
}
