//! The name a client gives to reach a volume: `NAME[@LEASE|@ro][?token=TOKEN]`.
//!
//! Owns: the grammar of export and volume names. Never: checks that a volume or token exists.
//! Invariant: a parsed name prints back to text that parses to the same value.

use crate::LeaseId;
use std::fmt;

/// Longest volume name, in bytes.
pub const MAX_NAME_BYTES: usize = 64;

/// How a client wants to use the export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExportAccess {
    /// Write; take a lease for as long as the connection lives, or share that of the same peer.
    Implicit,
    /// Write, under a lease that was granted before; survives reconnects, restarts and promotion.
    Lease(LeaseId),
    /// Read only; needs no lease.
    ReadOnly,
}

/// A parsed export name.
#[derive(Clone, PartialEq, Eq)]
pub struct ExportName {
    /// The volume's name.
    pub volume: String,
    /// How it is to be used.
    pub access: ExportAccess,
    /// The volume's access token, if one was given.
    pub token: Option<String>,
}

/// Why a name was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExportNameError {
    /// The volume's name has a character or length that is not allowed.
    #[error("a volume name is 1 to 64 of a-z A-Z 0-9 . _ - and does not begin with . or -")]
    BadName,
    /// After `@` stands neither `ro` nor a lease id.
    #[error("after @ an export name has `ro` or a lease id of 32 hexadecimal digits")]
    BadAccess,
    /// After `?` stands something other than `token=`.
    #[error("after ? an export name has token=TOKEN")]
    BadQuery,
}

/// Checks a volume's name.
///
/// # Errors
/// [`ExportNameError::BadName`]: choose another name.
pub fn check_volume_name(name: &str) -> Result<(), ExportNameError> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let bad_start = name.starts_with(['.', '-']);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || bad_start || !name.bytes().all(allowed) {
        return Err(ExportNameError::BadName);
    }
    Ok(())
}

impl ExportName {
    /// Reads an export name.
    ///
    /// # Errors
    /// [`ExportNameError`] names the part that is wrong.
    pub fn parse(text: &str) -> Result<Self, ExportNameError> {
        let (rest, token) = match text.split_once('?') {
            None => (text, None),
            Some((rest, query)) => {
                let token = query.strip_prefix("token=").ok_or(ExportNameError::BadQuery)?;
                (rest, Some(token.to_owned()))
            }
        };
        let (name, access) = match rest.split_once('@') {
            None => (rest, ExportAccess::Implicit),
            Some((name, "ro")) => (name, ExportAccess::ReadOnly),
            Some((name, lease)) => {
                let lease = lease.parse().map_err(|_| ExportNameError::BadAccess)?;
                (name, ExportAccess::Lease(lease))
            }
        };
        check_volume_name(name)?;
        Ok(ExportName { volume: name.to_owned(), access, token })
    }
}

impl fmt::Display for ExportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.volume)?;
        match self.access {
            ExportAccess::Implicit => {}
            ExportAccess::ReadOnly => f.write_str("@ro")?,
            ExportAccess::Lease(lease) => write!(f, "@{lease}")?,
        }
        match &self.token {
            Some(token) => write!(f, "?token={token}"),
            None => Ok(()),
        }
    }
}

/// Hides the lease and the token: this form goes to logs.
impl fmt::Debug for ExportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExportName({} {:?} token={})", self.volume, self.access, self.token.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let lease = LeaseId(7);
        for text in ["a", "pg.data_1-x", "a@ro", &format!("a@{lease}"), &format!("a@{lease}?token=s3cret"), "a?token="]
        {
            assert_eq!(ExportName::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn bad_names_are_named() {
        assert_eq!(ExportName::parse(""), Err(ExportNameError::BadName));
        assert_eq!(ExportName::parse("a/b"), Err(ExportNameError::BadName));
        assert_eq!(ExportName::parse(".a"), Err(ExportNameError::BadName));
        assert_eq!(ExportName::parse(&"a".repeat(65)), Err(ExportNameError::BadName));
        assert_eq!(ExportName::parse("a@x"), Err(ExportNameError::BadAccess));
        assert_eq!(ExportName::parse("a?tok"), Err(ExportNameError::BadQuery));
    }
}
