//! From an export's name to an attachment of a volume, wherever its pool is.
//!
//! Owns: the questions to the pools, and a connection's way to the core of its pool. Never: decides who may attach.
//! Invariant: a connection whose question is out is not read, and every question's answer finds it or is dropped.

use super::conn::{Lookup, Phase};
use super::control::{AdminKind, Msg};
use super::tls::TlsStream;
use super::{Core, conn::Conn};
use crate::chance;
use crate::listen;
use crate::options::CallError;
use crate::runtime::CoreShared;
use segue_types::{ExportAccess, ExportName, LeaseId, TOKEN_PREFIX, Token, TokenError};
use segue_volume::op::{AdminError, AdminOp, AdminReply, AttachMode, AttachState, TokenShown, VolumeKind, VolumeState};
use segue_wire::nbd::server::{ExportInfo, Refusal, RefusalCode, Session};
use sha2::{Digest, Sha256};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Times that a volume is looked for again when it was not where it was found.
const LOOKS_AGAIN_MAX: u8 = 3;

/// A pool that has the volume.
pub(super) struct Found {
    place: usize,
    volume: Box<VolumeState>,
}

/// A pool's answer to a connection's question.
pub(crate) struct Answer {
    pub(super) conn: u32,
    pub(super) generation: u32,
    /// Place of the pool in the runtime's list.
    pub(super) place: usize,
    pub(super) result: Result<AdminReply, CallError>,
}

/// A question on its way: it comes back answered, also when the core it went to has ended.
struct Question {
    home: Arc<CoreShared>,
    conn: u32,
    generation: u32,
    place: usize,
    open: bool,
}

impl Question {
    fn answer(mut self, result: Result<AdminReply, CallError>) {
        self.send(result);
    }

    fn send(&mut self, result: Result<AdminReply, CallError>) {
        self.open = false;
        let Question { conn, generation, place, .. } = *self;
        self.home.send(Msg::Answer(Answer { conn, generation, place, result }));
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if self.open {
            self.send(Err(CallError::Stopped));
        }
    }
}

/// A connection on its way to another core.
pub(crate) struct Traveler {
    fd: OwnedFd,
    session: Session,
    received: Vec<u8>,
    tls: Option<Box<TlsStream>>,
    tls_config: Option<Arc<rustls::ServerConfig>>,
    holder: String,
    lookup: Box<Lookup>,
    pool: String,
}

fn token_hash(export: &ExportName) -> Option<[u8; 32]> {
    export.token.as_ref().map(|token| Sha256::digest(token.as_bytes()).into())
}

/// A signed token, as the client shows it; `None` when it shows none, or something else.
fn shown(export: &ExportName, socket: RawFd) -> Option<TokenShown> {
    let text = export.token.clone().filter(|text| text.starts_with(TOKEN_PREFIX))?;
    // A socket that has gone has no address any more; then the connection ends as well.
    let source = listen::peer_ip(socket).unwrap_or(None);
    Some(TokenShown { text, source, now_unix_ms: chance::unix_ms() })
}

fn refusal(error: &AdminError) -> Refusal {
    let code = match error {
        AdminError::NotFound => RefusalCode::Unknown,
        AdminError::Invalid(_) => RefusalCode::Invalid,
        // A lease that is over is refused for good (policy), so that a client never takes it for a node that is stopping.
        AdminError::Poisoned => RefusalCode::Shutdown,
        _ => RefusalCode::Policy,
    };
    Refusal::new(code, error.to_string())
}

impl Conn {
    /// True when it is on its way to another core.
    pub(super) fn travels(&self) -> bool {
        self.travel.is_some()
    }
}

impl Core {
    /// The session asks for an export: asks every pool for the volume.
    pub(super) fn look_up(&mut self, id: u32, enter: bool) {
        let conn = &mut self.conns[id];
        let export = match ExportName::parse(conn.session.export_name()) {
            Ok(export) => export,
            Err(error) => {
                return self.answer_lookup(id, Err(Refusal::new(RefusalCode::Invalid, error.to_string())));
            }
        };
        conn.phase = Phase::Waiting;
        let name = export.volume.clone();
        let lookup = Lookup { export, enter, asked: 0, again: 0, names: Vec::new(), found: None };
        conn.lookup = Some(Box::new(lookup));
        self.ask_all(id, || AdminOp::Show { name: name.clone() });
    }

    /// The session asks for the names of all volumes.
    pub(super) fn list(&mut self, id: u32) {
        let conn = &mut self.conns[id];
        conn.phase = Phase::Waiting;
        let export = ExportName { volume: String::new(), access: ExportAccess::ReadOnly, token: None };
        conn.lookup =
            Some(Box::new(Lookup { export, enter: false, asked: 0, again: 0, names: Vec::new(), found: None }));
        self.ask_all(id, || AdminOp::List);
    }

    fn ask_all(&mut self, id: u32, op: impl Fn() -> AdminOp) {
        let places = self.shared.places();
        let generation = self.conns[id].generation;
        self.conns[id].lookup.as_mut().expect("a lookup is on").asked = places.len();
        for (place, pool) in places.iter().enumerate() {
            let home = self.shared.cores[self.number].clone();
            let question = Question { home, conn: id, generation, place, open: true };
            let reply = Box::new(move |result| question.answer(result));
            // A question that nobody takes answers itself when it is dropped.
            let _ = self.shared.admin(&pool.name, op(), reply);
        }
        if places.is_empty() {
            self.answered_all(id);
        }
    }

    /// A pool answered.
    pub(super) fn answered(&mut self, answer: Answer) {
        let Some(conn) = self.conns.get_mut(answer.conn).filter(|conn| conn.generation == answer.generation) else {
            return;
        };
        let Some(lookup) = conn.lookup.as_mut() else { return };
        lookup.asked -= 1;
        match answer.result {
            // While a volume changes its pool both may answer: the later epoch is its place.
            Ok(AdminReply::Volume(volume))
                if lookup.found.as_ref().is_none_or(|found| found.volume.epoch < volume.epoch) =>
            {
                lookup.found = Some(Found { place: answer.place, volume });
            }
            Ok(AdminReply::Volumes(volumes)) => lookup.names.extend(volumes.into_iter().map(|volume| volume.name)),
            _ => {}
        }
        if lookup.asked == 0 {
            self.answered_all(answer.conn);
        }
    }

    fn answered_all(&mut self, id: u32) {
        let conn = &mut self.conns[id];
        let lookup = conn.lookup.as_mut().expect("a lookup is on");
        if conn.dead || conn.input_over {
            return self.end_waiting(id);
        }
        if lookup.export.volume.is_empty() {
            let names = std::mem::take(&mut lookup.names);
            conn.session.list_ready(names.iter().map(|name| (name.as_str(), "")));
            conn.collect_output();
            return self.end_waiting(id);
        }
        let Some(found) = lookup.found.take() else {
            return self.answer_lookup(id, Err(Refusal::new(RefusalCode::Unknown, AdminError::NotFound.to_string())));
        };
        let places = self.shared.places();
        let place = &places[found.place];
        if !lookup.enter {
            let answer = describe(&lookup.export, &found.volume, shown(&lookup.export, conn.fd.as_raw_fd()));
            return self.answer_lookup(id, answer);
        }
        if place.core == self.number {
            self.attach(id, &place.name);
        } else {
            conn.travel = Some((place.core, place.name.clone()));
            self.mark(id);
        }
    }

    /// Asks again, from the start.
    pub(super) fn look_again(&mut self, id: u32) {
        let conn = &mut self.conns[id];
        conn.pool = super::pools::NO_POOL;
        let name = conn.lookup.as_ref().expect("a lookup is on").export.volume.clone();
        self.ask_all(id, || AdminOp::Show { name: name.clone() });
    }

    pub(super) fn attach(&mut self, id: u32, pool: &str) {
        let Some(pool) = self.pools.position(pool) else {
            if let Some(core) = self.whereabouts(pool) {
                // It has gone to another core meanwhile.
                self.conns[id].travel = Some((core, pool.to_owned()));
                return self.mark(id);
            }
            return self.answer_lookup(id, Err(Refusal::new(RefusalCode::Shutdown, "the pool is closing")));
        };
        let name = self.conns[id].lookup.as_ref().expect("a lookup is on").export.volume.clone();
        if self.park(id, pool, &name) {
            return;
        }
        let conn = &mut self.conns[id];
        conn.pool = pool;
        let lookup = conn.lookup.as_ref().expect("a lookup is on");
        let mode = match lookup.export.access {
            ExportAccess::ReadOnly => AttachMode::ReadOnly,
            ExportAccess::Lease(lease) => AttachMode::Lease(lease),
            ExportAccess::Implicit => AttachMode::Implicit {
                lease: LeaseId(chance::secret()),
                holder: conn.holder.clone(),
                now_unix_ms: chance::unix_ms(),
            },
        };
        let name = lookup.export.volume.clone();
        let op = match (shown(&lookup.export, conn.raw()), token_hash(&lookup.export)) {
            (Some(token), Some(token_sha256)) => {
                conn.by_token = true;
                AdminOp::AttachToken { name, mode, token_sha256, token }
            }
            (_, token_sha256) => AdminOp::Attach { name, mode, token_sha256 },
        };
        let generation = conn.generation;
        self.admin(pool, AdminKind::Attach { conn: id, generation }, op);
    }

    /// The engine answered an attach.
    pub(super) fn attached(&mut self, id: u32, result: Result<AdminReply, AdminError>) {
        let conn = &mut self.conns[id];
        if conn.session.transmitting() {
            return self.reattached(id, result);
        }
        match result {
            Ok(AdminReply::Attached(AttachState { attach, size_bytes, read_only, .. })) => {
                conn.attach = Some(attach);
                conn.export = conn.lookup.as_ref().map(|lookup| Box::new(lookup.export.clone()));
                conn.volume = conn.export.as_ref().map(|export| export.volume.clone()).unwrap_or_default();
                let mut info = ExportInfo::new(size_bytes);
                info.read_only = read_only;
                info.name = Some(conn.volume.clone());
                self.enter_share(id);
                self.answer_lookup(id, Ok(info));
            }
            Ok(other) => unreachable!("an attach is answered by an attachment, not {other:?}"),
            // It was there when it was found: it may have moved to another pool since.
            Err(AdminError::NotFound | AdminError::Conflict(_)) if self.may_look_again(id) => self.look_again(id),
            Err(error) => self.answer_lookup(id, Err(refusal(&error))),
        }
    }

    fn may_look_again(&mut self, id: u32) -> bool {
        let lookup = self.conns[id].lookup.as_mut().expect("a lookup is on");
        lookup.again += 1;
        lookup.again <= LOOKS_AGAIN_MAX
    }

    fn answer_lookup(&mut self, id: u32, answer: Result<ExportInfo, Refusal>) {
        let conn = &mut self.conns[id];
        if !conn.dead && !conn.input_over {
            conn.session.export_ready(answer);
            conn.collect_output();
        }
        self.end_waiting(id);
    }

    fn end_waiting(&mut self, id: u32) {
        let conn = &mut self.conns[id];
        conn.lookup = None;
        conn.phase = Phase::Handshake;
        if conn.session.transmitting() {
            conn.phase = Phase::Open;
            conn.replies = conn.session.replies();
            conn.deadline = 0;
        }
        self.mark(id);
    }

    /// Sends a connection to the core of its pool.
    pub(super) fn depart(&mut self, id: u32) {
        let (core, pool) = self.conns[id].travel.take().expect("it travels");
        let conn = self.conns.remove(id);
        self.io.remove_socket(conn.raw());
        let received = conn.rx[conn.rx_start..conn.rx_end].to_vec();
        let Conn { fd, session, tls, tls_config, holder, lookup, .. } = conn;
        let lookup = lookup.expect("it travels for a lookup");
        let traveler = Traveler { fd, session, received, tls, tls_config, holder, lookup, pool };
        self.shared.cores[core].send(Msg::Arrive(Box::new(traveler)));
    }

    /// A connection arrives from another core.
    pub(super) fn arrive(&mut self, traveler: Traveler) {
        let Traveler { fd, session, received, tls, tls_config, holder, lookup, pool } = traveler;
        let full = self.conns.len() >= self.options.connections_max && !session.transmitting();
        if self.stopping.is_some() || full {
            return;
        }
        let Some(id) = self.seat(fd, session, holder) else { return };
        let timeout_ns = self.options.handshake_timeout.as_nanos() as u64;
        let deadline = self.now + timeout_ns;
        let conn = &mut self.conns[id];
        conn.phase = Phase::Waiting;
        (conn.tls, conn.tls_config, conn.lookup, conn.deadline) = (tls, tls_config, Some(lookup), deadline);
        conn.rx[..received.len()].copy_from_slice(&received);
        conn.rx_end = received.len();
        self.arm_check();
        self.attach(id, &pool);
    }

    /// A volume has a new size: its sessions check against it from now on.
    pub(super) fn resized(&mut self, pool: usize, name: &str, size_bytes: u64) {
        for id in 0..self.conns.end() {
            if let Some(conn) =
                self.conns.get_mut(id).filter(|c| c.attach.is_some() && c.pool == pool && c.volume == name)
            {
                conn.session.resized(size_bytes);
            }
        }
    }

    /// Tokens of a volume were revoked: its sessions that came with one end now, and with `all` every other too.
    pub(super) fn revoked(&mut self, pool: usize, name: &str, all: bool) {
        for id in 0..self.conns.end() {
            let ends = |c: &&mut Conn| c.attach.is_some() && c.pool == pool && c.volume == name && (all || c.by_token);
            if let Some(conn) = self.conns.get_mut(id).filter(ends) {
                tracing::info!(holder = %conn.holder, volume = name, "token revoked: connection cut");
                conn.cut();
                self.mark(id);
            }
        }
    }

    /// A volume has a new name.
    pub(super) fn renamed(&mut self, pool: usize, from: &str, to: &str) {
        self.pools[pool].share.renamed(from, to);
        for id in 0..self.conns.end() {
            if let Some(conn) =
                self.conns.get_mut(id).filter(|c| c.attach.is_some() && c.pool == pool && c.volume == from)
            {
                to.clone_into(&mut conn.volume);
            }
        }
    }
}

/// What a client that only asks is told: nothing without what it would need to attach.
fn describe(export: &ExportName, volume: &VolumeState, shown: Option<TokenShown>) -> Result<ExportInfo, Refusal> {
    let denied = |error: AdminError| refusal(&error);
    let mut read_only = export.access == ExportAccess::ReadOnly || volume.kind == VolumeKind::Snapshot;
    let plain = volume.token_sha256.is_some() && volume.token_sha256 == token_hash(export);
    if !plain {
        match (&volume.access, shown) {
            (Some(access), Some(shown)) => {
                let grant = Token::parse(&shown.text)
                    .and_then(|token| token.verify(&access.secret.0, &volume.name, access.generation))
                    .and_then(|grant| grant.admit(shown.now_unix_ms / 1000, shown.source).map(|()| grant))
                    .map_err(|error| denied(error.into()))?;
                read_only |= grant.read_only;
            }
            (None, None) if volume.token_sha256.is_none() => {}
            (None, Some(_)) if volume.token_sha256.is_none() => return Err(denied(TokenError::NotTaken.into())),
            _ => return Err(denied(AdminError::Denied)),
        }
    }
    let mut info = ExportInfo::new(volume.size_bytes);
    info.read_only = read_only;
    info.name = Some(volume.name.clone());
    Ok(info)
}
