//! A volume as a local block device: `segue attach`, `segue detach`, and the same as a library.
//!
//! Owns: the options, the handle of an attachment, and the map of this module. Never: moves a block itself; the daemon does.
//! Invariant: whatever way an attach ends, the loop devices, mounts and daemons it made are either listed or gone.
//!
//! Every attachment is one background process (the *daemon*, this same program), which owns everything the attachment
//! is made of: the connections to the node, the FUSE mount with its one file, the loop device on that file, and the
//! file system mounted from it. Others talk to it through its control socket:
//!
//! ```text
//! application -> ext4/xfs -> /dev/loopN -> FUSE file -> daemon -> NBD -> node
//!                                                         ^ control socket: status, detach, cut, partition, heal
//! ```
//!
//! Files, in reading order: `options` (what is asked), `handle` ([`Attachment`]), `record` (the state directory),
//! `control` (the daemon's socket), `daemon` (set up, serve, take down), `ledger` (the pure machine: which request
//! waits for what, what must be replayed), `pump` (its event loop), `link` (connections), `fuse`, `loopdev`, `filesystem`
//! (kernel interfaces), `args` (the commands).

pub mod args;
mod control;
mod daemon;
mod filesystem;
mod fuse;
mod handle;
mod ledger;
pub(crate) mod link;
mod loopdev;
mod options;
mod pump;
mod record;

// What other rooms of this program use; not all of it is used by the commands themselves.
#[allow(unused_imports)]
pub use control::AttachStatus;
#[allow(unused_imports)]
pub use handle::Attachment;
#[allow(unused_imports)]
pub use options::{AttachError, AttachOptions, FsKind, LeaseChoice, NodeAddr};
