//! The admin API's data: what `segue` commands, the node and the failover monitor say to each other.
//!
//! Owns: the JSON shapes of API version 1. Never: holds logic; the volume engine has its own types.
//! Invariant: fields are added, never renamed or removed, within one version.

use crate::{FaultKind, RecoveryLevel, TaskKind};
use serde::{Deserialize, Serialize};

macro_rules! shape {
    ($(#[$meta:meta])* $vis:vis struct $($rest:tt)*) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        $vis struct $($rest)*
    };
    ($(#[$meta:meta])* $vis:vis enum $($rest:tt)*) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        $vis enum $($rest)*
    };
}

shape! {
    /// When a write of the primary counts as seen by the outside world.
    pub enum ObservationRule {
        /// The first applied write after `super` marks the primary observed.
        Write,
        /// Only a completed flush or FUA write after `super` marks the primary observed.
        Flush,
    }
}

shape! {
    /// What a volume is.
    pub enum VolumeKind {
        /// An ordinary writable volume (a clone is one too).
        Volume,
        /// A read-only snapshot.
        Snapshot,
    }
}

shape! {
    /// State of a volume's superposition.
    pub enum SuperPhase {
        /// No superposition.
        None,
        /// Two versions; neither has won.
        Racing,
        /// The primary was observed; the child can no longer win and waits to be aborted.
        Observed,
    }
}

shape! {
    /// Who may write a version of a volume.
    pub struct LeaseInfo {
        /// Who holds it, in the holder's own words.
        pub holder: String,
        /// Since when, milliseconds of Unix time.
        pub since_unix_ms: u64,
        /// True when it survives disconnects and restarts of the node (it was granted by name, not by connecting).
        pub durable: bool,
    }
}

shape! {
    /// A volume as `segue volume show` prints it.
    pub struct VolumeInfo {
        /// Its name, unique on the node.
        pub name: String,
        /// The pool it lives in.
        pub pool: String,
        /// Volume or snapshot.
        pub kind: VolumeKind,
        /// Size the clients see, bytes.
        pub size_bytes: u64,
        /// Bytes of the pool that only this volume's own top layer holds.
        pub own_bytes: u64,
        /// Layers a read may pass through, at least 1.
        pub depth: u32,
        /// Grows with every change of the right to write.
        pub epoch: u64,
        /// Rule by which the primary counts as observed.
        pub observation: ObservationRule,
        /// Whether a token is needed to attach.
        pub token_required: bool,
        /// Holder of the right to write the volume (the primary's version).
        pub lease: Option<LeaseInfo>,
        /// Phase of the superposition.
        pub super_phase: SuperPhase,
        /// Id of the superposition, when there is one.
        pub super_id: Option<u64>,
        /// Text kept for the failover monitor in the volume's record.
        pub note: String,
        /// True while a clean-up (merge or drop of layers below or beside it) still runs.
        pub cleaning: bool,
        /// True when its blocks are encrypted on the drive.
        #[serde(default)]
        pub encrypted: bool,
        /// True when it is encrypted and its key is not in the node's memory: nobody can attach until it is unlocked.
        #[serde(default)]
        pub locked: bool,
    }
}

/// Secret bytes on their way to the node, as hexadecimal digits. Not printed by `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct SecretHex(pub String);

impl std::fmt::Debug for SecretHex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretHex")
    }
}

shape! {
    /// What a token is limited to. Nothing given: everything is allowed.
    pub struct TokenLimits {
        /// No changes.
        #[serde(default)]
        pub read_only: bool,
        /// Worthless at this time, seconds of Unix time.
        #[serde(default)]
        pub expires_unix_s: Option<u64>,
        /// Only these bytes: from, and one past the last.
        #[serde(default)]
        pub range: Option<(u64, u64)>,
        /// Only clients of these addresses (`10.1.0.0/16`); all of them must hold.
        #[serde(default)]
        pub sources: Vec<String>,
        /// At most so many sessions at once, of this token and all narrowed from it.
        #[serde(default)]
        pub sessions_max: Option<u32>,
    }
}

shape! {
    /// A new token.
    pub struct TokenGrant {
        /// The volume.
        pub volume: String,
        /// The token: keep it secret.
        pub token: String,
        /// Export name to attach with.
        pub export: String,
    }
}

shape! {
    /// What is to be revoked besides the tokens.
    pub struct RevokeTokens {
        /// Also the plain secret, and every session.
        #[serde(default)]
        pub plain: bool,
    }
}

shape! {
    /// The key of an encrypted volume.
    pub struct UnlockVolume {
        /// 32 to 4096 bytes.
        pub key: SecretHex,
    }
}

shape! {
    /// A request for a new volume.
    pub struct CreateVolume {
        /// Name, unique on the node.
        pub name: String,
        /// Pool; the node's first when missing.
        #[serde(default)]
        pub pool: Option<String>,
        /// Size, bytes; a multiple of 4096, at most 16 TiB.
        pub size_bytes: u64,
        /// Rule of observation; `flush` when missing.
        #[serde(default)]
        pub observation: Option<ObservationRule>,
        /// Access token to be required of clients; only its SHA-256 is kept.
        #[serde(default)]
        pub token: Option<String>,
        /// Encrypt the volume's blocks on the drive with a key made from these 32 to 4096 random bytes. The node keeps
        /// the key in memory alone: it must be given again after each start.
        #[serde(default)]
        pub encryption_key: Option<SecretHex>,
    }
}

shape! {
    /// New size of a volume.
    pub struct ResizeVolume {
        /// Size, bytes; a multiple of 4096; never smaller than today's.
        pub size_bytes: u64,
    }
}

shape! {
    /// New name of a volume, or the name of a snapshot or clone of it.
    pub struct NewName {
        /// The name.
        pub name: String,
    }
}

shape! {
    /// Text for a volume's record, at most 1 KiB.
    pub struct Note {
        /// The text.
        pub note: String,
    }
}

shape! {
    /// A request for the right to write.
    pub struct AcquireLease {
        /// Who asks, for the error others will see.
        pub holder: String,
    }
}

shape! {
    /// A granted right to write.
    pub struct LeaseGrant {
        /// The volume.
        pub volume: String,
        /// The lease id, 32 hex digits: keep it secret.
        pub lease: String,
        /// Export name to attach with: `NAME@LEASE`.
        pub export: String,
        /// The epoch it was granted in.
        pub epoch: u64,
    }
}

shape! {
    /// Start a superposition of a group of volumes of one pool, atomically.
    pub struct SuperRequest {
        /// Names of the volumes.
        pub volumes: Vec<String>,
        /// Who will hold the children's leases.
        pub holder: String,
    }
}

shape! {
    /// A started superposition.
    pub struct SuperGrant {
        /// Its id, for collapse and abort.
        pub super_id: u64,
        /// One grant per volume, in the request's order: attach the children with these.
        pub children: Vec<LeaseGrant>,
    }
}

shape! {
    /// Names a superposition.
    pub struct SuperRef {
        /// Any volume of the group.
        pub volume: String,
        /// Its id as `super` returned it.
        pub super_id: u64,
    }
}

shape! {
    /// Who won.
    pub enum CollapseOutcome {
        /// The child is the volume now, and the old primary is fenced for ever.
        Promoted,
        /// The primary was observed first; the child can only be aborted.
        PrimaryObserved,
    }
}

shape! {
    /// Answer of collapse. The same question gets the same answer for as long as the record is kept.
    pub struct CollapseReply {
        /// Who won.
        pub outcome: CollapseOutcome,
    }
}

shape! {
    /// A pool as `segue pool show` prints it.
    pub struct PoolInfo {
        /// Its name on the node.
        pub name: String,
        /// The drive: a path, or `memory`.
        pub drive: String,
        /// The core that serves it, from 0.
        pub core: u32,
        /// Bytes of the drive.
        pub capacity_bytes: u64,
        /// Bytes a write may still allocate.
        pub free_bytes: u64,
        /// Bytes of the drive that are leased to none of its slices: each may get them. 0 for an undivided pool.
        #[serde(default)]
        pub shared_free_bytes: u64,
        /// Bytes freed and waiting for a commit, a checkpoint or a reader before they count as free.
        pub pending_bytes: u64,
        /// Volumes and snapshots.
        pub volumes: u64,
        /// Layers.
        pub layers: u64,
        /// Bytes of journal in use, of journal in all.
        pub journal_used_bytes: u64,
        /// Bytes of the journal region.
        pub journal_bytes: u64,
        /// Bytes of map pages cached and the cap.
        pub cache_used_bytes: u64,
        /// Cap of the map page cache, bytes.
        pub cache_bytes: u64,
        /// Bytes of the allocation bitmap held in memory.
        pub bitmap_bytes: u64,
        /// True when a drive error has made the pool refuse changes until it is reopened.
        pub poisoned: bool,
        /// Blocks whose checksum did not match since the pool was opened.
        pub integrity_errors: u64,
        /// Clean-up jobs (merges, drops) that still run.
        pub cleaning: u64,
    }
}

shape! {
    /// Body of `POST /v1/pools/{pool}/core`.
    pub struct BindPool {
        /// The core to serve it, from 0.
        pub core: u32,
    }
}

shape! {
    /// How a pool went from core to core.
    pub struct BoundPool {
        /// The core it left.
        pub from: u32,
        /// The core that serves it now.
        pub to: u32,
        /// For how long its clients were not served, ns.
        pub stall_ns: u64,
        /// Connections that went with it.
        pub connections: u64,
    }
}

shape! {
    /// Progress of a scrub.
    pub struct ScrubStatus {
        /// True while it runs.
        pub running: bool,
        /// Blocks verified so far.
        pub blocks_done: u64,
        /// Blocks to verify in all (an estimate while it runs).
        pub blocks_total: u64,
        /// Blocks that did not match.
        pub errors: u64,
    }
}

shape! {
    /// A block that did not match its checksum, or another thing a person must look at.
    pub struct IntegrityEvent {
        /// When, milliseconds of Unix time.
        pub unix_ms: u64,
        /// The pool's drive.
        pub drive: String,
        /// What was being read.
        pub what: String,
        /// Byte offset on the drive.
        pub offset_bytes: u64,
        /// The volume or layer and block it was read for.
        pub owner: String,
        /// Checksum expected.
        pub expected_crc32c: u32,
        /// Checksum found.
        pub found_crc32c: u32,
        /// Generation expected.
        pub generation: u64,
    }
}

shape! {
    /// Body of `POST /v1/node/inject`: what is to panic from now on. It replaces what was asked before.
    pub struct InjectRequest {
        /// Kinds of tasks; none of them ends all injection.
        pub tasks: Vec<TaskKind>,
        /// One task in so many fails, at least 1.
        pub one_in: u64,
        /// How a fault shows itself.
        #[serde(default)]
        pub kind: FaultKind,
        /// Seed of the choice.
        #[serde(default)]
        pub seed: u64,
    }
}

shape! {
    /// A part of a recovery scope: locks that tasks took in common lately.
    pub struct ObservedScope {
        /// Locks in it.
        pub locks: u64,
        /// Its first lock: a name for it.
        pub lock_first: String,
        /// Watched tasks in it now.
        pub tasks: u64,
        /// Watched tasks that were in it lately.
        pub tasks_seen: u64,
    }
}

shape! {
    /// A declared recovery scope, and what was observed inside it. One request in 16 is watched.
    pub struct RecoveryScope {
        /// The core, from 0.
        pub core: u32,
        /// device, volume or background.
        pub kind: String,
        /// The pool, or pool/volume.
        pub name: String,
        /// The scope around it.
        pub outer: Option<String>,
        /// Watched tasks in it now.
        pub tasks: u64,
        /// Of these, without a lock.
        pub tasks_alone: u64,
        /// There was no room to watch: it counts as one.
        pub coarse: bool,
        /// Locks that another scope takes too: what recovers together is wider.
        pub crossings: u64,
        /// The scope that the last of them belongs to.
        pub crossed_last: Option<String>,
        /// Its parts, those with most tasks first.
        pub observed: Vec<ObservedScope>,
    }
}

shape! {
    /// Recoveries of one kind of task at one level, since the node started.
    pub struct RecoveryCount {
        /// Whose panics.
        pub task: TaskKind,
        /// How far the recovery reached.
        pub level: RecoveryLevel,
        /// How many.
        pub count: u64,
    }
}

shape! {
    /// How often the node recovered from a panic since it started, and how long that took.
    pub struct Recoveries {
        /// Every kind and level that happened.
        pub counts: Vec<RecoveryCount>,
        /// Sum of the times of all recoveries, ns.
        pub took_ns_sum: u64,
        /// The longest, ns.
        pub took_ns_max: u64,
    }
}

shape! {
    /// Move a volume to another pool of the node.
    pub struct MoveRequest {
        /// The pool.
        pub pool: String,
        /// Bytes per second at most; 0 for no limit; 100 MiB/s when missing.
        #[serde(default)]
        pub rate_bytes_per_s: Option<u64>,
    }
}

shape! {
    /// How fast a move may copy, from now on.
    pub struct MoveRate {
        /// Bytes per second at most; 0 for no limit.
        pub rate_bytes_per_s: u64,
    }
}

shape! {
    /// What a move is doing.
    pub enum MovePhase {
        /// The two pools agree.
        Preparing,
        /// A round is copied while clients go on.
        Copying,
        /// Clients wait, the rest is copied.
        HandingOver,
        /// The destination is the volume; the source tidies up.
        Settling,
        /// It is being given up.
        GivingUp,
        /// Over: see the outcome.
        Over,
        /// It waits for a pool that is not open on this node.
        Stuck,
    }
}

shape! {
    /// How a move ended.
    pub enum MoveOutcome {
        /// The volume is in its new pool.
        Moved,
        /// It was given up as asked; the volume is where it was.
        Cancelled,
        /// It was given up; the volume is where it was, and the reason says why.
        Failed,
        /// A pool does not answer; the move goes on when both are opened again.
        Stopped,
    }
}

shape! {
    /// A move of a volume, as `segue volume move-status` prints it.
    pub struct MoveInfo {
        /// The move, `m` and 16 hex digits.
        pub id: String,
        /// The volume.
        pub volume: String,
        /// The pool that has it, or had it.
        pub from: String,
        /// The pool that gets it, or has it now.
        pub to: String,
        /// What it is doing.
        pub phase: MovePhase,
        /// The round being copied, from 0.
        pub round: u32,
        /// Bytes of this round that are copied.
        pub round_bytes_done: u64,
        /// Bytes of this round at most.
        pub round_bytes: u64,
        /// Bytes copied in all since the node started.
        pub copied_bytes: u64,
        /// Bytes per second at most; 0 for no limit.
        pub rate_bytes_per_s: u64,
        /// Bytes per second lately.
        pub bytes_per_s: u64,
        /// Time until the round is copied, milliseconds, when it can be told.
        pub eta_ms: Option<u64>,
        /// How long clients waited when they changed over, ns.
        pub stall_ns: Option<u64>,
        /// Connections that went along.
        pub connections: u64,
        /// How it ended.
        pub outcome: Option<MoveOutcome>,
        /// Why, when it did not move.
        pub reason: Option<String>,
    }
}

shape! {
    /// An error of the admin API.
    pub struct ApiError {
        /// What kind, so that programs can act.
        pub kind: ApiErrorKind,
        /// What happened and what to do, for people.
        pub message: String,
    }
}

shape! {
    /// Kinds of API errors; each tells what to do.
    pub enum ApiErrorKind {
        /// Fix the request.
        Invalid,
        /// No such volume, pool or superposition.
        NotFound,
        /// The name is taken.
        Exists,
        /// Somebody else holds it; the message says who and since when.
        Busy,
        /// Wrong or missing token, certificate, or lease.
        Denied,
        /// The state does not allow it (for example collapse without super).
        Conflict,
        /// The right was taken away.
        Fenced,
        /// No space left in the pool.
        NoSpace,
        /// The drive failed.
        Io,
        /// A fault of the node itself.
        Internal,
    }
}

shape! {
    /// What a node says of itself.
    pub struct NodeInfo {
        /// Version of the program.
        pub version: String,
        /// Process id.
        pub pid: u32,
        /// `io_uring` or `poll`.
        pub io_engine: String,
        /// Addresses that NBD is served on.
        pub nbd: Vec<String>,
        /// Cores that serve.
        pub cores: u32,
        /// Nanoseconds since start.
        pub uptime_ns: u64,
    }
}

shape! {
    /// What a node does now: counters to be compared with those of another moment.
    pub struct TopInfo {
        /// Nanoseconds since the node started: the moment of the counters.
        pub uptime_ns: u64,
        /// Upper bounds of the latency buckets, ns; the last bucket has none.
        pub latency_ns_max: Vec<u64>,
        /// Cores.
        pub cores: Vec<TopCore>,
        /// Pools and their drives.
        pub pools: Vec<TopPool>,
        /// Volumes that somebody is attached to.
        pub volumes: Vec<TopVolume>,
    }
}

shape! {
    /// A core.
    pub struct TopCore {
        /// Its number.
        pub core: u32,
        /// Processor time of its thread, ns; `None` where the system does not tell.
        pub cpu_ns: Option<u64>,
        /// Requests answered.
        pub requests: u64,
        /// Of these, with an error.
        pub errors: u64,
        /// Bytes read, written or trimmed.
        pub bytes: u64,
        /// Connections now.
        pub connections: u64,
        /// Requests in flight now.
        pub in_flight: u64,
        /// Latencies of its requests, by bucket.
        pub latency: Vec<u64>,
    }
}

shape! {
    /// A pool and its drive.
    pub struct TopPool {
        /// Its name.
        pub pool: String,
        /// The core that serves it.
        pub core: u32,
        /// How its drive is shared: the policy's name.
        pub policy: String,
        /// Cost of what the drive has now, and the most it may have.
        pub outstanding: u64,
        /// The most it may have.
        pub window: u64,
        /// Requests that wait for the drive now.
        pub queued: u64,
        /// 95th percentile of the drive's latency as the governor saw it last, ns.
        pub drive_p95_ns: u64,
        /// Bytes a write may still allocate; of a slice with what it may lease.
        pub free_bytes: u64,
        /// Bytes of the drive.
        pub capacity_bytes: u64,
        /// Clean-up jobs that run.
        pub cleaning: u64,
        /// Races of two versions that run.
        pub racing: u64,
        /// Encrypted volumes whose key is not loaded.
        pub locked: u64,
        /// Blocks that did not match their checksum.
        pub integrity_errors: u64,
        /// True when the pool refuses changes.
        pub poisoned: bool,
    }
}

shape! {
    /// A volume that somebody is attached to. Counters begin with the first attachment.
    pub struct TopVolume {
        /// Its name.
        pub volume: String,
        /// Its pool.
        pub pool: String,
        /// Requests.
        pub requests: u64,
        /// Bytes of those.
        pub bytes: u64,
        /// Requests that had to wait for others or for a limit.
        pub waited: u64,
        /// Requests that wait now.
        pub queued: u64,
        /// Why the first of them waits; `none` when none does.
        pub reason: String,
        /// Latencies, by bucket.
        pub latency: Vec<u64>,
    }
}
