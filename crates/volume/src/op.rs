//! What goes into the volume engine and what comes out.
//!
//! Owns: the event, command and reply types. Never: holds behaviour.
//! Invariant: every request gets exactly one reply, and every I/O command exactly one completion.

use crate::crypt::{NewEncryption, Secret};
use crate::mem::Buf;
use segue_types::{IoStatus, LayerId, LeaseId, Nanos, Share, SuperId, TokenError, VolumeId};
use std::net::IpAddr;

pub use crate::move_op::{CHUNK_BLOCKS, Chunk, END_BLOCK, MoveOp, MoveReply, MoveStage, MoveState, Passport, Piece};
pub use segue_types::api::{ObservationRule, SuperPhase, VolumeKind};

/// The driver's own mark on a request; comes back in its reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tag(pub u64);

/// The engine's mark on an I/O command; the driver returns it in the completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket(pub u32);

/// An open attachment to one version of one volume. Small, dense, reused after detach.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AttachId(pub u32);

/// A request of a client. Offsets and lengths are bytes, multiples of 512, and at most
/// [`MAX_REQUEST_BYTES`] for those with a buffer; drivers split larger ones.
///
/// A buffer covers the *aligned span* of the request: from `offset` rounded down to 4096 to `offset + len`
/// rounded up ([`aligned_span`]); the client's bytes begin at `offset % 4096` in it. The engine owns the buffer
/// until the reply, then it is the driver's again; what lies outside the client's range in it is unspecified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Read `len` bytes into `buf`.
    Read { offset: u64, len: u32, buf: Buf },
    /// Write `len` bytes from `buf`; with `fua` durable before the reply. On an encrypted volume `buf` is encrypted in
    /// place: to try again, a driver needs the client's bytes anew.
    Write { offset: u64, len: u32, buf: Buf, fua: bool },
    /// Make durable everything that was acknowledged on this volume before.
    Flush,
    /// Give the range's space back; it then reads as zero.
    Discard { offset: u64, len: u64, fua: bool },
    /// Make the range read as zero; with `no_hole` its space stays allocated.
    WriteZeroes { offset: u64, len: u64, no_hole: bool, fua: bool },
    /// Tell which parts of the range are allocated. Extents come in the reply (at most `extents_max`).
    BlockStatus { offset: u64, len: u64, extents_max: u32 },
    /// Bring the range's map into the cache.
    Cache { offset: u64, len: u64 },
}

/// Largest request with a buffer, bytes.
pub const MAX_REQUEST_BYTES: u32 = 256 << 10;

/// Bytes of the aligned span of a request: what its buffer must have.
pub const fn aligned_span(offset: u64, len: u32) -> usize {
    let start = offset & !4095;
    let end = (offset + len as u64 + 4095) & !4095;
    (end - start) as usize
}

/// One run of equal allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Length, bytes.
    pub len: u64,
    /// True when no space is allocated (a hole; it reads as zero). False: allocated data.
    pub hole: bool,
}

/// Something that happened.
pub enum Event {
    /// A client asks.
    Request { tag: Tag, attach: AttachId, op: Op },
    /// An operator, monitor or session asks. May allocate; not the hot path.
    Admin { tag: Tag, op: AdminOp },
    /// An I/O command ended. `errno` 0 is success.
    IoDone { ticket: Ticket, errno: i32 },
    /// The home of the drive's free extents lends these (none: it has none left now). Comes after [`Out::want_extents`].
    Lend { extents: Vec<u32> },
    /// Another slice of the drive is short of space: give back whole extents that are not needed.
    Shrink,
    /// Nothing, or the time of [`Out::wake_at`] came: do background work within one step's budget.
    Tick,
}

/// An I/O for the drive. Offsets and lengths are multiples of 4096.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Io {
    /// To be returned in [`Event::IoDone`].
    pub ticket: Ticket,
    /// What to do.
    pub kind: IoKind,
}

/// Kinds of I/O. Writes are not durable until a later flush completes; a flush covers the writes
/// that *completed* before it was issued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoKind {
    /// Fill `buf` from the drive.
    Read { offset: u64, buf: Buf },
    /// Write `buf` to the drive.
    Write { offset: u64, buf: Buf },
    /// Make completed writes durable.
    Flush,
    /// The range's content is no longer needed (a hint; failing is fine).
    Discard { offset: u64, len: u64 },
}

/// Answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The request's tag.
    pub tag: Tag,
    /// How it ended.
    pub status: IoStatus,
    /// For a block status: how many entries of [`Out::extents`] belong to this reply, in order of replies.
    pub extents: u32,
}

/// Where the engine puts its commands. The driver drains it after each step and reuses it.
#[derive(Default)]
pub struct Out {
    /// I/O to submit.
    pub ios: Vec<Io>,
    /// Replies to requests.
    pub replies: Vec<Reply>,
    /// Extents of the block-status replies, concatenated.
    pub extents: Vec<Extent>,
    /// Replies to admin operations.
    pub admin: Vec<(Tag, Result<AdminReply, AdminError>)>,
    /// Things a person must look at.
    pub alarms: Vec<Alarm>,
    /// Extents the engine would like to lease; the driver answers with [`Event::Lend`] and sets it to 0.
    pub want_extents: u32,
    /// Extents that were given back durably: they are the home's from now on.
    pub returned: Vec<u32>,
    /// The engine wants a [`Event::Tick`] at this time at the latest; `Some(0)` means as soon as the driver is idle.
    pub wake_at: Option<Nanos>,
}

impl Out {
    /// Room for `n` of each, so that a step never allocates.
    pub fn with_capacity(n: usize) -> Out {
        Out {
            ios: Vec::with_capacity(n),
            replies: Vec::with_capacity(n),
            extents: Vec::with_capacity(n),
            admin: Vec::new(),
            alarms: Vec::with_capacity(64),
            want_extents: 0,
            returned: Vec::new(),
            wake_at: None,
        }
    }
}

/// What was read when a checksum did not match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AlarmKind {
    /// A block of data of this layer.
    Data { layer: LayerId, block: u64 },
    /// A page of the map of this layer.
    Map { layer: LayerId, level: u8, index: u64 },
    /// A drive I/O failed with this errno.
    Drive { errno: i32 },
    /// The pool refuses changes from now on; reopen it after fixing the drive.
    Poisoned { errno: i32 },
}

/// Something a person must look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alarm {
    /// What.
    pub kind: AlarmKind,
    /// Byte offset on the drive.
    pub offset: u64,
    /// Checksum expected and found (0, 0 when none was compared).
    pub expected_crc32c: u32,
    /// Checksum found.
    pub found_crc32c: u32,
    /// Generation expected.
    pub generation: u64,
}

/// How an attachment is wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AttachMode {
    /// Read only, of the volume's current primary version. Needs no lease.
    ReadOnly,
    /// Write, under an ephemeral lease made from this id if the volume is free, or shared when the ephemeral
    /// holder has the same words. Ends with the last detach or the process.
    Implicit { lease: LeaseId, holder: String, now_unix_ms: u64 },
    /// Write, under a durable lease granted before (of the primary or of a child).
    Lease(LeaseId),
}

/// A token as a client shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenShown {
    /// Its text.
    pub text: String,
    /// The client's address; `None` on a unix socket.
    pub source: Option<IpAddr>,
    /// Now, ms of Unix time.
    pub now_unix_ms: u64,
}

/// Hides the token.
impl std::fmt::Debug for TokenShown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenShown({:?})", self.source)
    }
}

/// The secret that signs a volume's tokens. Never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenSecret(pub [u8; 32]);

impl std::fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenSecret")
    }
}

/// What a volume's tokens are checked against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessState {
    /// Tokens of another generation are revoked.
    pub generation: u64,
    /// What signs them.
    pub secret: TokenSecret,
}

/// An operation of operators, monitors and sessions. Names are volume names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AdminOp {
    /// Make a volume. Reply: `Volume`.
    Create {
        name: String,
        size_bytes: u64,
        rule: ObservationRule,
        token_sha256: Option<[u8; 32]>,
        encryption: Option<NewEncryption>,
    },
    /// All volumes. Reply: `Volumes`.
    List,
    /// One volume. Reply: `Volume`.
    Show { name: String },
    /// Grow. Reply: `Volume`.
    Resize { name: String, size_bytes: u64 },
    /// Rename. Reply: `Volume`.
    Rename { name: String, to: String },
    /// Delete a volume or snapshot; refused while leased or racing. Space comes back in the background. Reply: `Done`.
    Delete { name: String },
    /// Read-only snapshot of the primary version, O(1). Reply: `Volume`.
    Snapshot { name: String, to: String },
    /// Writable clone of a volume's primary version or of a snapshot, O(1). Reply: `Volume`.
    Clone { name: String, to: String },
    /// Keep a text in the volume's record. Reply: `Done`.
    SetNote { name: String, note: String },
    /// Load the key of an encrypted volume, and of every clone and snapshot with the same origin. Reply: `Volume`.
    Unlock { name: String, secret: Secret },
    /// Wipe that key from memory; refused while somebody is attached. Reply: `Volume`.
    Lock { name: String },
    /// Set the volume's share of its drive, or take it back to the default. Reply: `Volume`.
    SetShare { name: String, share: Option<Share> },
    /// Open an attachment. `token_sha256` is compared with the volume's. Reply: `Attached`.
    Attach { name: String, mode: AttachMode, token_sha256: Option<[u8; 32]> },
    /// Open an attachment with a signed token. The text may also be the volume's plain secret, so its hash comes along.
    /// Reply: `Attached`.
    AttachToken { name: String, mode: AttachMode, token_sha256: [u8; 32], token: TokenShown },
    /// Demand tokens signed by this secret, unless the volume already demands tokens. Reply: `Volume`.
    RequireTokens { name: String, secret: TokenSecret },
    /// End every token given out so far and their sessions; with `plain` also the plain secret and all sessions.
    /// Reply: `Volume`.
    Revoke { name: String, plain: bool },
    /// Demand no tokens any more. Reply: `Volume`.
    DropTokens { name: String },
    /// Close an attachment; its requests in flight must have been answered. Reply: `Done`.
    Detach { attach: AttachId },
    /// Grant a durable lease on the primary version, if it is free. Reply: `Leased`.
    Acquire { name: String, lease: LeaseId, holder: String, now_unix_ms: u64 },
    /// Give a durable lease back. Reply: `Done`.
    Release { name: String, lease: LeaseId },
    /// Take the lease away from whoever holds it: a fence without `super`. Also ends a superposition by abort.
    /// Reply: `Done`.
    BreakLease { name: String },
    /// Start a superposition of a group, atomically. `child_leases[i]` becomes the lease of the child of `names[i]`.
    /// Reply: `Super`.
    Super { names: Vec<String>, child_leases: Vec<LeaseId>, holder: String, now_unix_ms: u64 },
    /// Ask who won and, if the primary was not observed, promote the children: one durable compare-and-set and fence.
    /// Reply: `Collapsed`. Asked again with the same id it answers the same.
    Collapse { name: String, super_id: SuperId },
    /// End a superposition in favour of the primary; the children are dropped. Reply: `Done`. Idempotent.
    Abort { name: String, super_id: SuperId },
    /// Part of the move of a volume from or to another pool. Replies: see [`MoveOp`].
    Move(MoveOp),
    /// State of the pool. Reply: `Pool`.
    PoolStatus,
    /// Write a checkpoint now. Reply: `Done` when it is durable.
    Checkpoint,
    /// Start reading and verifying every block in the background. Reply: `Done` at once.
    ScrubStart,
    /// How far it is. Reply: `Scrub`.
    ScrubStatus,
    /// Stop taking requests, checkpoint, and answer `Done`: the pool may then be closed.
    Shutdown,
}

/// Answers to admin operations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AdminReply {
    /// Done, durably.
    Done,
    /// One volume.
    Volume(Box<VolumeState>),
    /// All volumes, by name.
    Volumes(Vec<VolumeState>),
    /// An attachment.
    Attached(AttachState),
    /// A granted lease and the epoch it began.
    Leased { epoch: u64 },
    /// A superposition: its id, and the epoch of each volume of the group.
    Super { super_id: SuperId, epochs: Vec<u64> },
    /// Who won.
    Collapsed { promoted: bool },
    /// About a move.
    Move(MoveReply),
    /// State of the pool.
    Pool(PoolState),
    /// Progress of a scrub.
    Scrub { running: bool, blocks_done: u64, blocks_total: u64, errors: u64 },
}

/// Who holds a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// In the holder's words.
    pub holder: String,
    /// Since when.
    pub since_unix_ms: u64,
    /// Granted by name, not by connecting.
    pub durable: bool,
}

/// A volume, for show and list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeState {
    /// Its id.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Volume or snapshot.
    pub kind: VolumeKind,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Bytes its own top layer holds.
    pub own_bytes: u64,
    /// Layers a read may pass through.
    pub depth: u32,
    /// Grows with every change of the right to write.
    pub epoch: u64,
    /// The rule of observation.
    pub rule: ObservationRule,
    /// SHA-256 of the access token, if one is needed.
    pub token_sha256: Option<[u8; 32]>,
    /// Holder of the right to write the primary.
    pub lease: Option<Holder>,
    /// Phase of its superposition.
    pub phase: SuperPhase,
    /// Id of its superposition.
    pub super_id: Option<SuperId>,
    /// The monitor's text.
    pub note: String,
    /// A clean-up beside or below it still runs.
    pub cleaning: bool,
    /// It demands signed tokens, checked against this.
    pub access: Option<AccessState>,
    /// Its blocks are encrypted on the drive.
    pub encrypted: bool,
    /// It is encrypted and its key is not in memory: nobody can attach.
    pub locked: bool,
    /// Its share of the drive, if one was set.
    pub share: Option<Share>,
}

/// An open attachment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttachState {
    /// Its handle.
    pub attach: AttachId,
    /// Size of the volume now, bytes.
    pub size_bytes: u64,
    /// True when writes are refused.
    pub read_only: bool,
    /// Epoch it belongs to.
    pub epoch: u64,
}

/// State of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolState {
    /// Bytes of the drive.
    pub capacity_bytes: u64,
    /// Bytes a write may still allocate.
    pub free_bytes: u64,
    /// Bytes freed but not yet reusable.
    pub pending_bytes: u64,
    /// Volumes and snapshots.
    pub volumes: u64,
    /// Layers.
    pub layers: u64,
    /// Journal in use, bytes.
    pub journal_used_bytes: u64,
    /// Journal region, bytes.
    pub journal_bytes: u64,
    /// Cached map pages, bytes.
    pub cache_used_bytes: u64,
    /// Cap of the cache, bytes.
    pub cache_bytes: u64,
    /// Allocation bitmap, bytes.
    pub bitmap_bytes: u64,
    /// Changes are refused until reopened.
    pub poisoned: bool,
    /// Checksum mismatches since open.
    pub integrity_errors: u64,
    /// Clean-up jobs that still run.
    pub cleaning: u64,
    /// Commits (journal write + drive flush) since open.
    pub commits: u64,
    /// Checkpoints since open.
    pub checkpoints: u64,
    /// Bytes of data read only to be written again beside a client's, because its request covered a block in part.
    /// Requests in whole blocks never add to it, not on a child or clone either.
    pub bytes_copied: u64,
}

/// Why an admin operation was refused. Each names the cause; the doc says what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AdminError {
    /// No such volume: check the name.
    #[error("no volume of this name")]
    NotFound,
    /// The name is taken: choose another.
    #[error("the name is taken")]
    Exists,
    /// The name, size or group is not valid.
    #[error("not valid: {0}")]
    Invalid(&'static str),
    /// Somebody holds the right to write: wait, or break the lease.
    #[error("held by {} since {} (ms of Unix time)", .0.holder, .0.since_unix_ms)]
    Busy(Holder),
    /// The token or lease is not the right one.
    #[error("access denied: wrong or missing token")]
    Denied,
    /// The token shown is not good here; it says why.
    #[error("access denied: {0}")]
    Token(#[from] TokenError),
    /// The volume is encrypted and its key is not in memory: unlock it first.
    #[error("the volume is encrypted and locked; load its key with `segue volume unlock`")]
    Locked,
    /// The key given is not this volume's: give the right one.
    #[error("this is not the volume's encryption key")]
    WrongKey,
    /// The lease is over: it was fenced, broken, released or aborted. Get a new one.
    #[error("this lease is over (fenced, broken, released or aborted)")]
    Fenced,
    /// The state does not allow it.
    #[error("not possible now: {0}")]
    Conflict(&'static str),
    /// The pool or its catalogue is full: delete something.
    #[error("no space left in the pool")]
    NoSpace,
    /// A block or map page does not match its checksum, or the drive failed at it: see the pool's events.
    #[error("a block could not be read back as it was written; `segue node events` tells which")]
    Corrupt,
    /// The drive failed; the pool refuses changes until it is reopened.
    #[error("the pool's drive failed; reopen the pool after fixing it")]
    Poisoned,
}
