//! What recovery scopes look like from outside: plain data for people and programs.
//!
//! Owns: the shapes. Never: borrows from the machine.
//! Invariant: every declared scope is in a report once, and every lock it saw lately in one of its parts.

/// What a declared scope stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// One request of a client.
    Request,
    /// A volume.
    Volume,
    /// A drive.
    Device,
    /// A client's connection.
    Connection,
    /// A journal.
    Journal,
    /// Work that no client waits for.
    Background,
}

impl Kind {
    /// A name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Request => "request",
            Kind::Volume => "volume",
            Kind::Device => "device",
            Kind::Connection => "connection",
            Kind::Journal => "journal",
            Kind::Background => "background",
        }
    }
}

/// All scopes now.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Report {
    /// Declared scopes, in order of kind and id.
    pub declared: Vec<DeclaredReport>,
    /// Times the sets were renewed.
    pub rotations: u64,
}

/// A declared scope and what was observed inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredReport {
    /// What it stands for.
    pub kind: Kind,
    /// Which one.
    pub id: u64,
    /// The declared scope around it, if any.
    pub outer: Option<(Kind, u64)>,
    /// Tasks in it now.
    pub tasks: u64,
    /// Tasks in it now that have taken no lock: each is a scope of its own.
    pub tasks_alone: u64,
    /// More was going on than could be watched, so the scope counts as one for a while.
    pub coarse: bool,
    /// Locks of it that another declared scope took too, since the start. Not 0: it is declared too narrow.
    pub crossings: u64,
    /// The scope that the last of them belongs to.
    pub crossed_last: Option<(Kind, u64)>,
    /// Connected components of its locks, those with most tasks first.
    pub observed: Vec<ObservedReport>,
}

/// A connected component of overlapping lock sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedReport {
    /// Locks in it.
    pub locks: u64,
    /// Its smallest lock: a name for it.
    pub lock_first: u64,
    /// Tasks in it now.
    pub tasks: u64,
    /// Tasks that were in it during the window, those in it now included.
    pub tasks_seen: u64,
}
