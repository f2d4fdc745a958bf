//! Who may attach: plain secrets, tokens, and what a token leaves allowed.
//!
//! Owns: the checks at attach, the marks a token leaves on an attachment, revocation. Never: makes a token.
//! Invariant: when a revocation is answered, no request under an older token is accepted any more.

use super::Engine;
use crate::catalog::Volume;
use crate::crypt::same;
use crate::op::{AdminError, AdminReply, AttachMode, TokenShown};
use crate::settings::Access;
use segue_types::{Grant, Nanos, Token, TokenError, VolumeId};

/// What a token leaves allowed to an attachment. Without a token: everything.
#[derive(Clone)]
pub(crate) struct Pass {
    /// It came with a token, so a revocation ends it.
    pub(crate) by_token: bool,
    /// Bytes it may touch.
    pub(crate) range: (u64, u64),
    /// Over at this time of the driver's clock.
    pub(crate) ends_at: Nanos,
    /// What its session counts under.
    sessions: Vec<u64>,
}

impl Pass {
    fn full() -> Pass {
        Pass { by_token: false, range: (0, u64::MAX), ends_at: Nanos::MAX, sessions: Vec::new() }
    }
}

impl Engine {
    /// Checks what a client shows against what the volume demands. Also tells whether it may only read.
    pub(crate) fn admit_client(
        &self,
        volume: &Volume,
        sha256: Option<&[u8; 32]>,
        shown: Option<&TokenShown>,
    ) -> Result<(Pass, bool), AdminError> {
        if let (Some(wanted), Some(given)) = (&volume.token_sha256, sha256)
            && same(wanted, given)
        {
            return Ok((Pass::full(), false));
        }
        match (&volume.settings.access, shown) {
            (Some(access), Some(shown)) => self.admit_token(volume, access, shown),
            (None, Some(_)) if volume.token_sha256.is_none() => Err(TokenError::NotTaken.into()),
            (None, None) if volume.token_sha256.is_none() => Ok((Pass::full(), false)),
            _ => Err(AdminError::Denied),
        }
    }

    fn admit_token(&self, volume: &Volume, access: &Access, shown: &TokenShown) -> Result<(Pass, bool), AdminError> {
        let token = Token::parse(&shown.text)?;
        let grant = token.verify(&access.secret, &volume.name, access.generation)?;
        let now_unix_s = shown.now_unix_ms / 1000;
        grant.admit(now_unix_s, shown.source)?;
        for (under, most) in &grant.sessions {
            let here = |a: &&super::lease::Attach| a.counts_under(volume.id, *under);
            if self.attaches.iter().filter(here).count() as u64 >= u64::from(*most) {
                return Err(TokenError::Sessions.into());
            }
        }
        let Grant { read_only, expires_unix_s, range, sessions, .. } = grant;
        let left_ns = |at: u64| (at * 1000).saturating_sub(shown.now_unix_ms).saturating_mul(1_000_000);
        let ends_at = expires_unix_s.map_or(Nanos::MAX, |at| self.now.saturating_add(left_ns(at)));
        let sessions = sessions.into_iter().map(|(under, _)| under).collect();
        Ok((Pass { by_token: true, range, ends_at, sessions }, read_only))
    }

    /// Makes the volume demand tokens from now on. The first secret stays; asked again it changes nothing.
    pub(crate) fn require_tokens(&mut self, name: &str, secret: [u8; 32]) -> Result<AdminReply, AdminError> {
        let id = self.volume_id(name)?;
        self.catalog_room(1)?;
        let volume = self.catalog.volumes.get_mut(&id).expect("looked up before");
        if volume.settings.access.is_none() {
            volume.settings.access = Some(Access { secret, generation: 1 });
            self.log_volume(id);
        }
        self.volume_reply(id)
    }

    /// Ends every token given out so far, the sessions they opened, and with `plain` the plain secret too.
    pub(crate) fn revoke(&mut self, name: &str, plain: bool) -> Result<AdminReply, AdminError> {
        let id = self.volume_id(name)?;
        let volume = self.catalog.volumes.get_mut(&id).expect("looked up before");
        let Some(access) = &mut volume.settings.access else {
            return Err(AdminError::Conflict("the volume takes no tokens; there is nothing to revoke"));
        };
        access.generation += 1;
        if plain {
            volume.token_sha256 = None;
        }
        self.end_sessions(id, plain);
        self.log_volume(id);
        self.volume_reply(id)
    }

    /// The volume demands tokens no more; sessions opened with one end.
    pub(crate) fn drop_tokens(&mut self, name: &str) -> Result<AdminReply, AdminError> {
        let id = self.volume_id(name)?;
        self.catalog.volumes.get_mut(&id).expect("looked up before").settings.access = None;
        self.end_sessions(id, false);
        self.log_volume(id);
        self.volume_reply(id)
    }

    fn end_sessions(&mut self, id: VolumeId, all: bool) {
        for attach in self.attaches.iter_mut() {
            attach.end_by_revocation(id, all);
        }
    }
}

/// A read-only token opens read-only; with a lease to write it is a contradiction that the client must resolve.
pub(crate) fn narrowed(mode: AttachMode, read_only: bool) -> Result<AttachMode, AdminError> {
    match mode {
        AttachMode::Lease(_) if read_only => Err(TokenError::ReadOnly.into()),
        _ if read_only => Ok(AttachMode::ReadOnly),
        mode => Ok(mode),
    }
}

impl Pass {
    pub(crate) fn counts_under(&self, under: u64) -> bool {
        self.sessions.contains(&under)
    }
}
