//! A volume's settings: optional, tagged fields at the end of its record.
//!
//! Owns: which settings there are and their bytes. Never: carries one out.
//! Invariant: a setting this program does not know is refused, never dropped: it may be what protects the data.

use crate::codec::{Malformed, Reader, Writer};
use crate::moving::Moving;
use segue_types::Share;

const ENCRYPTION: u8 = 1;
const ACCESS: u8 = 2;
const SHARE: u8 = 3;
const MOVING: u8 = 4;

/// How the volume's blocks are encrypted: AES-256-XTS with a key that is never on the drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Encryption {
    /// Makes the key of this volume another than that of every other volume with the same secret.
    pub(crate) salt: [u8; 16],
    /// What the right secret gives: tells a wrong one.
    pub(crate) check: [u8; 32],
}

/// Who may attach: bearers of a token that this secret signed, of this generation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) secret: [u8; 32],
    /// Grows when every token given out so far is revoked.
    pub(crate) generation: u64,
}

// A secret does not belong in a log.
impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Access {{ generation: {} }}", self.generation)
    }
}

/// Everything optional in a volume's record.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    pub(crate) encryption: Option<Encryption>,
    pub(crate) access: Option<Access>,
    pub(crate) share: Option<Share>,
    /// The volume's part in a move to another pool.
    pub(crate) moving: Option<Moving>,
}

impl Settings {
    /// True when the record needs no field for them.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Settings::default()
    }

    /// Appends how many fields there are, then each: tag (1), length (2), bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let count_at = out.len();
        out.put_u8(0);
        let mut put = |tag: u8, bytes: &dyn Fn(&mut Vec<u8>)| {
            out[count_at] += 1;
            out.put_u8(tag);
            let length_at = out.len();
            out.put_u16(0);
            bytes(out);
            let length = (out.len() - length_at - 2) as u16;
            out[length_at..length_at + 2].copy_from_slice(&length.to_le_bytes());
        };
        if let Some(e) = &self.encryption {
            put(ENCRYPTION, &|out| {
                out.extend_from_slice(&e.salt);
                out.extend_from_slice(&e.check);
            });
        }
        if let Some(a) = &self.access {
            put(ACCESS, &|out| {
                out.put_u64(a.generation);
                out.extend_from_slice(&a.secret);
            });
        }
        if let Some(s) = &self.share {
            put(SHARE, &|out| {
                out.put_u64(s.reserve_iops);
                out.put_u32(s.weight);
                out.put_u64(s.limit_iops);
                out.put_u64(s.limit_bytes_per_s);
                out.put_u32(s.burst_ms);
                out.put_u32(s.latency_target_us);
            });
        }
        if let Some(m) = &self.moving {
            put(MOVING, &|out| m.encode(out));
        }
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// [`Malformed::TooNew`] for a field this program does not know.
    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Settings, Malformed> {
        let mut settings = Settings::default();
        let mut last = 0;
        for _ in 0..r.u8()? {
            let tag = r.u8()?;
            let length = r.u16()? as usize;
            let mut field = Reader::new(r.bytes(length)?);
            // In rising order, each once: one value has one encoding.
            if tag <= last {
                return Err(Malformed::Bytes);
            }
            last = tag;
            match tag {
                ENCRYPTION => {
                    let (salt, check) = (field.array()?, field.array()?);
                    settings.encryption = Some(Encryption { salt, check });
                }
                ACCESS => settings.access = Some(Access { generation: field.u64()?, secret: field.array()? }),
                MOVING => settings.moving = Some(Moving::decode(&mut field)?),
                SHARE => settings.share = Some(decode_share(&mut field)?),
                unknown => return Err(Malformed::TooNew(unknown)),
            }
            if !field.is_empty() {
                return Err(Malformed::Bytes);
            }
        }
        Ok(settings)
    }
}

fn decode_share(r: &mut Reader<'_>) -> Result<Share, Malformed> {
    let share = Share {
        reserve_iops: r.u64()?,
        weight: r.u32()?,
        limit_iops: r.u64()?,
        limit_bytes_per_s: r.u64()?,
        burst_ms: r.u32()?,
        latency_target_us: r.u32()?,
    };
    share.check().map_err(|_| Malformed::Bytes)?;
    Ok(share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moving::Stage;
    use segue_types::MoveId;

    fn full() -> Settings {
        Settings {
            encryption: Some(Encryption { salt: [1; 16], check: [2; 32] }),
            access: Some(Access { secret: [3; 32], generation: 4 }),
            share: Some(Share { reserve_iops: 5, limit_iops: 6, ..Share::default() }),
            moving: Some(Moving { id: MoveId(7), peer: [8; 16], round: 9, stage: Stage::Arrived }),
        }
    }

    #[test]
    fn settings_round_trip_and_no_cut_is_taken_for_whole() {
        let all = full();
        for settings in [
            all,
            Settings { encryption: None, ..all },
            Settings { access: None, ..all },
            Settings { share: None, ..all },
            Settings { moving: None, ..all },
            Settings::default(),
        ] {
            let mut bytes = Vec::new();
            settings.encode(&mut bytes);
            assert_eq!(Settings::decode(&mut Reader::new(&bytes)), Ok(settings));
            for cut in 0..bytes.len() {
                assert_eq!(Settings::decode(&mut Reader::new(&bytes[..cut])), Err(Malformed::Bytes), "cut at {cut}");
            }
        }
    }

    #[test]
    fn unknown_settings_are_too_new_and_doubled_ones_malformed() {
        let mut bytes = vec![1, 200, 2, 0, 9, 9];
        assert_eq!(Settings::decode(&mut Reader::new(&bytes)), Err(Malformed::TooNew(200)));
        bytes.clear();
        Settings { share: full().share, ..Settings::default() }.encode(&mut bytes);
        let field = bytes[1..].to_vec();
        bytes.extend(field);
        bytes[0] = 2;
        assert_eq!(Settings::decode(&mut Reader::new(&bytes)), Err(Malformed::Bytes));
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert!(!format!("{:?}", full()).contains("3, 3"));
    }
}
