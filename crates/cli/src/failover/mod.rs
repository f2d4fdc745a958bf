//! Failover for real: `segue failover`, and the same as a library for drills.
//!
//! Owns: the drivers around the race (processes, probes, endpoint, attachments, the node) and the commands.
//! Never: decides a failover; `segue_failover` does.
//! Invariant: what the race ordered is done, or it is told that it was not.
//!
//! For drills: load an [`App`], start a [`Monitor`], wait with [`Monitor::wait_serving`], break what [`Monitor::seat`]
//! names ([`Instance::family`] for its processes, [`Instance::attachments`] for its disks), tell an oracle with
//! [`Monitor::tell`], read [`Monitor::timeline`], and end with [`Monitor::shut_down`].
//!
//! Files, in reading order: `app` (APP.toml), `monitor` (the loop), `node` (super, collapse and the rest), `place` (an
//! instance in a slot), `process`, `probe`, `endpoint`, `timeline`, `rehearse`, `cmd` (the commands).

mod app;
mod clock;
mod cmd;
mod endpoint;
mod monitor;
mod node;
mod place;
mod probe;
mod process;
mod profile;
mod rehearse;
mod timeline;

pub use cmd::{Args, run};

// What drills use; the commands above need none of it.
#[allow(unused_imports)]
pub use self::{
    app::{App, ModeName, ProbeKind},
    clock::now_ns,
    monitor::{Monitor, Options, Status, StopHow},
    place::Instance,
    process::{Family, Process},
    rehearse::rehearse,
    timeline::{Entry, Timeline},
};
#[allow(unused_imports)]
pub use segue_failover::race::{Mode, Order};
