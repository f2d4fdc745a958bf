//! Access tokens that whoever holds one can narrow without asking anybody, and that are revoked all at once.
//!
//! Owns: their text, signing, narrowing and verification. Never: reads a clock, draws chance, or knows sessions.
//! Invariant: a token made by narrowing allows nothing that the token it was made from refuses.
//!
//! A token is `v1.VOLUME~RIGHTS~GENERATION~CAVEAT~...~MAC`. The first MAC is HMAC-SHA-256 of the base under the volume's
//! secret; each caveat replaces it by HMAC-SHA-256 of the caveat under the MAC before (macaroons: Birgisson et al., NDSS
//! 2014, section 3). So caveats can be added without the secret, and none can be taken away.

use crate::api::TokenLimits;
use crate::{check_volume_name, hex_decode, hex_encode};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::fmt;
use std::net::IpAddr;

/// What every token begins with.
pub const TOKEN_PREFIX: &str = "v1.";
/// Longest token, bytes: it must fit into an export's name.
pub const TOKEN_BYTES_MAX: usize = 1024;
/// Most caveats of a token.
pub const CAVEATS_MAX: usize = 16;

/// Why a token was refused. Each names the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not a token, or of a kind this program does not know. Get a new one.
    #[error("the token is malformed, too long, or of a newer kind")]
    Malformed,
    /// A token for another volume.
    #[error("the token is for another volume")]
    OtherVolume,
    /// Not signed by this volume's secret: tampered with, or of a volume that had the name before.
    #[error("the token's signature is wrong")]
    Signature,
    /// Revoked: get a new one.
    #[error("the token was revoked")]
    Revoked,
    /// Its time is over: get a new one.
    #[error("the token has expired")]
    Expired,
    /// The client's address is not among those the token is for.
    #[error("the token is not for this client's address")]
    Source,
    /// As many sessions as the token allows are open: close one.
    #[error("the token's sessions are all in use")]
    Sessions,
    /// A read-only token with a lease to write.
    #[error("the token is read-only; attach without the lease, read-only")]
    ReadOnly,
    /// The volume has no secret to check a token with: leave the token out.
    #[error("the volume takes no tokens; leave it out")]
    NotTaken,
}

/// A range of addresses: those whose first `bits` bits are those of `base`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cidr {
    base: IpAddr,
    bits: u8,
}

impl Cidr {
    /// Reads `10.0.0.0/8` or `fd00::/8`; an address alone means only that one.
    ///
    /// # Errors
    /// [`TokenError::Malformed`].
    pub fn parse(text: &str) -> Result<Cidr, TokenError> {
        Cidr::read(text, '/')
    }

    fn read(text: &str, separator: char) -> Result<Cidr, TokenError> {
        let (base, bits) = match text.rsplit_once(separator) {
            None => (text, None),
            Some((base, bits)) => (base, Some(number(bits)?)),
        };
        let base: IpAddr = base.parse().map_err(|_| TokenError::Malformed)?;
        let all = if base.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(all);
        if bits > all {
            return Err(TokenError::Malformed);
        }
        Ok(Cidr { base, bits: bits as u8 })
    }

    /// True when the address is in the range.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let (a, b, all) = match (self.base, ip.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(u32::from(a)), u128::from(u32::from(b)), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a), u128::from(b), 128),
            _ => return false,
        };
        let shift = all - u32::from(self.bits);
        a.checked_shr(shift).unwrap_or(0) == b.checked_shr(shift).unwrap_or(0)
    }
}

/// `10.0.0.0/8`.
impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}

/// One restriction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caveat {
    /// No changes.
    ReadOnly,
    /// Not at or after this time, seconds of Unix time.
    Expires(u64),
    /// Only these bytes of the volume: from, and one past the last.
    Range(u64, u64),
    /// Only clients of these addresses; never one on a unix socket.
    Source(Cidr),
    /// So many sessions at once of this token and all that were narrowed from it.
    Sessions(u32),
}

/// The caveat as it stands in a token: characters that a URI leaves as they are.
impl fmt::Display for Caveat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caveat::ReadOnly => f.write_str("ro"),
            Caveat::Expires(at) => write!(f, "exp={at}"),
            Caveat::Range(from, to) => write!(f, "range={from}-{to}"),
            Caveat::Source(c) => write!(f, "src={}-{}", c.base, c.bits),
            Caveat::Sessions(n) => write!(f, "max={n}"),
        }
    }
}

impl Caveat {
    fn parse(text: &str) -> Result<Caveat, TokenError> {
        let caveat = match text.split_once('=') {
            None if text == "ro" => Caveat::ReadOnly,
            Some(("exp", at)) => Caveat::Expires(number(at)?),
            Some(("range", range)) => {
                let (from, to) = range.split_once('-').ok_or(TokenError::Malformed)?;
                Caveat::Range(number(from)?, number(to)?)
            }
            Some(("src", cidr)) => Caveat::Source(Cidr::read(cidr, '-')?),
            Some(("max", n)) => Caveat::Sessions(u32::try_from(number(n)?).map_err(|_| TokenError::Malformed)?),
            // A restriction that is not understood cannot be kept.
            _ => return Err(TokenError::Malformed),
        };
        Ok(caveat)
    }
}

/// The caveats that limits stand for.
///
/// # Errors
/// [`TokenError::Malformed`] when a source is not a range of addresses.
pub fn caveats_of(limits: &TokenLimits) -> Result<Vec<Caveat>, TokenError> {
    let mut caveats = Vec::new();
    caveats.extend(limits.read_only.then_some(Caveat::ReadOnly));
    caveats.extend(limits.expires_unix_s.map(Caveat::Expires));
    caveats.extend(limits.range.map(|(from, to)| Caveat::Range(from, to)));
    for source in &limits.sources {
        caveats.push(Caveat::Source(Cidr::parse(source)?));
    }
    caveats.extend(limits.sessions_max.map(Caveat::Sessions));
    Ok(caveats)
}

/// Digits only: one number has one text.
fn number(text: &str) -> Result<u64, TokenError> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().map_err(|_| TokenError::Malformed) } else { Err(TokenError::Malformed) }
}

fn mac(key: &[u8], text: &str) -> [u8; 32] {
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().into()
}

/// A token taken apart. Nothing in it is to be believed before [`Token::verify`].
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The volume it is for.
    pub volume: String,
    /// The generation it was made in.
    pub generation: u64,
    /// Its restrictions, in the order they were added.
    pub caveats: Vec<Caveat>,
    mac: [u8; 32],
}

/// Hides the signature: this form goes to logs.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({} {} {:?})", self.volume, self.generation, self.caveats)
    }
}

impl Token {
    /// Makes a token that may do everything with a volume.
    pub fn mint(secret: &[u8; 32], volume: &str, generation: u64) -> Token {
        let mut token = Token { volume: volume.to_owned(), generation, caveats: Vec::new(), mac: [0; 32] };
        token.mac = mac(secret, &token.base());
        token
    }

    fn base(&self) -> String {
        format!("{TOKEN_PREFIX}{}~rw~{}", self.volume, self.generation)
    }

    /// Adds a restriction; needs no secret.
    ///
    /// # Errors
    /// [`TokenError::Malformed`] when the token would have more than [`CAVEATS_MAX`] or become too long.
    pub fn narrow(mut self, caveat: Caveat) -> Result<Token, TokenError> {
        self.mac = mac(&self.mac, &caveat.to_string());
        self.caveats.push(caveat);
        if self.caveats.len() > CAVEATS_MAX || self.to_string().len() > TOKEN_BYTES_MAX {
            return Err(TokenError::Malformed);
        }
        Ok(self)
    }

    /// Takes a token's text apart.
    ///
    /// # Errors
    /// [`TokenError::Malformed`].
    pub fn parse(text: &str) -> Result<Token, TokenError> {
        let bad = TokenError::Malformed;
        let rest = text.strip_prefix(TOKEN_PREFIX).filter(|_| text.len() <= TOKEN_BYTES_MAX).ok_or(bad)?;
        let parts: Vec<&str> = rest.split('~').collect();
        let [volume, "rw", generation, caveats @ .., end] = &parts[..] else { return Err(bad) };
        check_volume_name(volume).map_err(|_| bad)?;
        if caveats.len() > CAVEATS_MAX {
            return Err(bad);
        }
        let caveats = caveats.iter().map(|c| Caveat::parse(c)).collect::<Result<Vec<_>, _>>()?;
        let mac = hex_decode(end).and_then(|bytes| bytes.try_into().ok()).ok_or(bad)?;
        let token = Token { volume: (*volume).to_owned(), generation: number(generation)?, caveats, mac };
        // One token has one text, or a changed one could pass.
        if token.to_string() == text { Ok(token) } else { Err(bad) }
    }

    /// Checks the signature under a volume's secret, and gives what the token allows. The comparison takes the same
    /// time wherever the first difference is.
    ///
    /// # Errors
    /// [`TokenError::OtherVolume`], [`TokenError::Signature`], [`TokenError::Revoked`].
    pub fn verify(&self, secret: &[u8; 32], volume: &str, generation: u64) -> Result<Grant, TokenError> {
        let mut grant = Grant::default();
        let mut key = mac(secret, &self.base());
        for caveat in &self.caveats {
            key = mac(&key, &caveat.to_string());
            grant.add(*caveat, &key);
        }
        if key.iter().zip(&self.mac).fold(0, |acc, (a, b)| acc | (a ^ b)) != 0 {
            // A good token of another volume also fails here; tell what its holder can see anyway.
            let other = self.volume != volume;
            return Err(if other { TokenError::OtherVolume } else { TokenError::Signature });
        }
        if self.volume != volume {
            return Err(TokenError::OtherVolume);
        }
        if self.generation != generation {
            return Err(TokenError::Revoked);
        }
        Ok(grant)
    }

    /// What the token claims to allow, unverified: to show it to a person.
    pub fn claims(&self) -> Grant {
        let mut grant = Grant::default();
        self.caveats.iter().for_each(|caveat| grant.add(*caveat, &[0; 32]));
        grant
    }
}

/// The token's text.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base())?;
        self.caveats.iter().try_for_each(|caveat| write!(f, "~{caveat}"))?;
        write!(f, "~{}", hex_encode(&self.mac))
    }
}

/// What a verified token allows: all its caveats together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// No changes.
    pub read_only: bool,
    /// Over at this time, seconds of Unix time.
    pub expires_unix_s: Option<u64>,
    /// Bytes it may touch: from, and one past the last. Empty when `from >= to`.
    pub range: (u64, u64),
    /// Each must contain the client's address.
    pub sources: Vec<Cidr>,
    /// Sessions at once: what they are counted under, and how many.
    pub sessions: Vec<(u64, u32)>,
}

impl Default for Grant {
    /// Everything.
    fn default() -> Grant {
        Grant {
            read_only: false,
            expires_unix_s: None,
            range: (0, u64::MAX),
            sources: Vec::new(),
            sessions: Vec::new(),
        }
    }
}

impl Grant {
    fn add(&mut self, caveat: Caveat, key: &[u8; 32]) {
        match caveat {
            Caveat::ReadOnly => self.read_only = true,
            Caveat::Expires(at) => self.expires_unix_s = Some(self.expires_unix_s.map_or(at, |now| now.min(at))),
            Caveat::Range(from, to) => self.range = (self.range.0.max(from), self.range.1.min(to)),
            Caveat::Source(cidr) => self.sources.push(cidr),
            Caveat::Sessions(n) => {
                // Equal for all tokens narrowed from here, and for no other.
                self.sessions.push((u64::from_le_bytes(key[..8].try_into().expect("eight bytes")), n));
            }
        }
    }

    /// Whether a client may begin a session now. Sessions are counted by whoever has them.
    ///
    /// # Errors
    /// [`TokenError::Expired`], [`TokenError::Source`].
    pub fn admit(&self, now_unix_s: u64, source: Option<IpAddr>) -> Result<(), TokenError> {
        if self.expires_unix_s.is_some_and(|at| now_unix_s >= at) {
            return Err(TokenError::Expired);
        }
        let inside = |cidr: &Cidr| source.is_some_and(|ip| cidr.contains(ip));
        if self.sources.iter().all(inside) { Ok(()) } else { Err(TokenError::Source) }
    }

    /// Whether a request on these bytes is inside the range.
    pub fn covers(&self, offset: u64, len: u64) -> bool {
        offset >= self.range.0 && offset.checked_add(len).is_some_and(|end| end <= self.range.1)
    }
}

#[cfg(test)]
mod tests;
