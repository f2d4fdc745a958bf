//! The queues of waiting tasks: one set of three per group, and the order of arrival across all groups.
//!
//! Owns: a slab of tasks, each linked into the queue of its group and into the shared queue of its priority.
//! Never: allocates after construction, or decides whose turn it is.
//! Invariant: a waiting task is in exactly one group queue and one shared queue, so a change of policy moves nothing.

use super::{Group, Priority, SubmitError, Task};

/// No node.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    task: Task,
    /// The next of the same group and priority, or the next free node.
    next: u32,
    /// Neighbours of the same priority in order of arrival.
    older: u32,
    newer: u32,
    group: u16,
}

/// Both ends of a list.
#[derive(Clone, Copy)]
struct Ends {
    head: u32,
    tail: u32,
}

const NO_ENDS: Ends = Ends { head: NONE, tail: NONE };

/// All waiting tasks.
pub(super) struct Queues {
    nodes: Box<[Node]>,
    free: u32,
    waiting: u32,
    groups: Box<[[Ends; 3]]>,
    lengths: Box<[u32]>,
    group_tasks_max: u32,
    shared: [Ends; 3],
}

impl Queues {
    /// Room for `tasks_max` tasks in all and `group_tasks_max` of one group.
    pub fn new(groups: usize, tasks_max: u32, group_tasks_max: u32) -> Queues {
        let free = |n: u32| Node {
            task: 0,
            next: if n + 1 < tasks_max { n + 1 } else { NONE },
            older: NONE,
            newer: NONE,
            group: 0,
        };
        Queues {
            nodes: (0..tasks_max).map(free).collect(),
            free: if tasks_max > 0 { 0 } else { NONE },
            waiting: 0,
            groups: vec![[NO_ENDS; 3]; groups].into_boxed_slice(),
            lengths: vec![0; groups].into_boxed_slice(),
            group_tasks_max,
            shared: [NO_ENDS; 3],
        }
    }

    /// Appends a task.
    pub fn push(&mut self, group: Group, priority: Priority, task: Task) -> Result<(), SubmitError> {
        let (g, level) = (usize::from(group.0), priority as usize);
        if self.lengths[g] >= self.group_tasks_max {
            return Err(SubmitError::GroupFull { group, tasks: self.group_tasks_max });
        }
        let n = self.free;
        if n == NONE {
            return Err(SubmitError::Full { tasks: self.nodes.len() as u32 });
        }
        let older = self.shared[level].tail;
        self.free = self.nodes[n as usize].next;
        self.nodes[n as usize] = Node { task, next: NONE, older, newer: NONE, group: group.0 };
        match older {
            NONE => self.shared[level].head = n,
            older => self.nodes[older as usize].newer = n,
        }
        self.shared[level].tail = n;
        let ends = &mut self.groups[g][level];
        match ends.tail {
            NONE => ends.head = n,
            tail => self.nodes[tail as usize].next = n,
        }
        ends.tail = n;
        self.lengths[g] += 1;
        self.waiting += 1;
        Ok(())
    }

    /// Takes the oldest task of a group and priority.
    pub fn pop(&mut self, group: Group, level: usize) -> Option<Task> {
        let ends = &mut self.groups[usize::from(group.0)][level];
        let n = ends.head;
        if n == NONE {
            return None;
        }
        let node = self.nodes[n as usize];
        *ends = if node.next == NONE { NO_ENDS } else { Ends { head: node.next, ..*ends } };
        match node.older {
            NONE => self.shared[level].head = node.newer,
            older => self.nodes[older as usize].newer = node.newer,
        }
        match node.newer {
            NONE => self.shared[level].tail = node.older,
            newer => self.nodes[newer as usize].older = node.older,
        }
        self.nodes[n as usize].next = self.free;
        self.free = n;
        self.lengths[usize::from(group.0)] -= 1;
        self.waiting -= 1;
        Some(node.task)
    }

    /// The group of the oldest task of a priority. Being the oldest of all, it is the oldest of its group too.
    pub fn oldest(&self, level: usize) -> Option<Group> {
        let n = self.shared[level].head;
        (n != NONE).then(|| Group(self.nodes[n as usize].group))
    }

    /// True when the group has a task of this priority.
    pub fn has(&self, group: usize, level: usize) -> bool {
        self.groups[group][level].head != NONE
    }

    /// Which priorities of the group have tasks: bit `n` is level `n`.
    pub fn levels(&self, group: usize) -> u8 {
        (0..3).map(|level| u8::from(self.has(group, level)) << level).sum()
    }

    /// Which priorities have tasks of any group.
    pub fn shared_levels(&self) -> u8 {
        (0..3).map(|level| u8::from(self.shared[level].head != NONE) << level).sum()
    }

    /// Tasks that wait, of a group.
    pub fn group_len(&self, group: usize) -> u32 {
        self.lengths[group]
    }

    /// Tasks that wait, in all.
    pub fn len(&self) -> u32 {
        self.waiting
    }
}
