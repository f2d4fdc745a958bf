//! Bytes as hexadecimal text.
//!
//! Owns: both directions. Never: accepts an odd number of digits.
//! Invariant: decoding what was encoded gives the same bytes.

/// Lower-case hexadecimal digits, two a byte.
pub fn hex_encode(bytes: &[u8]) -> String {
    let digit = |n: u8| char::from(b"0123456789abcdef"[usize::from(n)]);
    bytes.iter().flat_map(|b| [digit(b >> 4), digit(b & 15)]).collect()
}

/// The bytes of a text of hexadecimal digits, or `None` when it is not one.
pub fn hex_decode(text: &str) -> Option<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let pairs = text.as_bytes().chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(hex_decode(&hex_encode(&all)), Some(all));
        assert_eq!(hex_encode(&[0, 0xaf]), "00af");
        assert_eq!((hex_decode("0"), hex_decode("0g"), hex_decode("")), (None, None, Some(vec![])));
    }
}
