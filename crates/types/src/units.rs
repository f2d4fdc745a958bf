//! Sizes and times with their text forms.
//!
//! Owns: the block and sector sizes, sizes and durations as text. Never: rounds silently.
//! Invariant: what `format_size` prints for a whole number of units, `parse_size` reads back as the same number.

/// Bytes of a block: the unit of atomicity, checksums and allocation.
pub const BLOCK_BYTES: u64 = 4096;
/// log2 of [`BLOCK_BYTES`].
pub const BLOCK_SHIFT: u32 = 12;
/// Bytes of a sector: the smallest unit a client may address.
pub const SECTOR_BYTES: u64 = 512;

/// Nanoseconds on a monotonic clock that the driver chose; only differences mean anything.
pub type Nanos = u64;

/// A size that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseSizeError {
    /// Not a number followed by a unit.
    #[error("a size is a whole number and a unit (B, KiB, MiB, GiB, TiB), for example 64MiB")]
    Malformed,
    /// More than 2^64-1 bytes.
    #[error("the size is larger than 2^64-1 bytes")]
    TooLarge,
}

/// Reads "4096", "64KiB", "10G", "1TiB" (K, M, G, T mean powers of 1024).
///
/// # Errors
/// [`ParseSizeError`] says what a size looks like.
pub fn parse_size(text: &str) -> Result<u64, ParseSizeError> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = match text[..digits].parse() {
        Ok(number) => number,
        Err(_) if digits > 0 => return Err(ParseSizeError::TooLarge),
        Err(_) => return Err(ParseSizeError::Malformed),
    };
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "p" | "pib" => 50,
        _ => return Err(ParseSizeError::Malformed),
    };
    number.checked_mul(1u64 << shift).ok_or(ParseSizeError::TooLarge)
}

/// Writes a size in the largest unit that divides it, for example "64MiB".
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 0;
    let mut number = bytes;
    while number != 0 && number.is_multiple_of(1024) && unit + 1 < UNITS.len() {
        number /= 1024;
        unit += 1;
    }
    format!("{number}{}", UNITS[unit])
}

/// Reads "250ms", "5s", "2min" as nanoseconds.
///
/// # Errors
/// [`ParseSizeError::Malformed`] without a known unit, [`ParseSizeError::TooLarge`] past 2^64-1 ns.
pub fn parse_duration_ns(text: &str) -> Result<Nanos, ParseSizeError> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..split].parse().map_err(|_| ParseSizeError::Malformed)?;
    let unit_ns = match text[split..].trim() {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "min" => 60e9,
        "h" => 3600e9,
        _ => return Err(ParseSizeError::Malformed),
    };
    let ns = number * unit_ns;
    if ns < u64::MAX as f64 { Ok(ns as u64) } else { Err(ParseSizeError::TooLarge) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_trip() {
        for n in [0, 1, 512, 4096, 65536, 3 << 20, 7 << 40, 1 << 50] {
            assert_eq!(parse_size(&format_size(n)), Ok(n));
        }
        assert_eq!(parse_size("10G"), Ok(10 << 30));
        assert_eq!(parse_size("G"), Err(ParseSizeError::Malformed));
        assert_eq!(parse_size("1.5G"), Err(ParseSizeError::Malformed));
        assert_eq!(parse_size("99999999999999999999"), Err(ParseSizeError::TooLarge));
        assert_eq!(parse_size("99999999T"), Err(ParseSizeError::TooLarge));
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration_ns("250ms"), Ok(250_000_000));
        assert_eq!(parse_duration_ns("1.5s"), Ok(1_500_000_000));
        assert_eq!(parse_duration_ns("5"), Err(ParseSizeError::Malformed));
    }
}
