//! Transfers frame by frame: the check of the chunk and rate levels.
//!
//! Owns: a small store-and-forward network with a turn per flow at each link. Never: is used where speed matters.
//! Invariant: a link with a frame that may go is never idle.
//!
//! At each link the flows take turns, a frame each. A frame may go when the next hop has room for it: each flow has `window_frames`
//! places at every hop but its first, and a place is free when its frame has left that hop. Turns with such windows approach
//! max-min fairness (Hahne, Round-robin scheduling for max-min fairness in data networks, 1991).

use crate::Queue;
use crate::framing::bytes_ns;
use segue_types::Nanos;

/// A transfer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrameFlow {
    /// When all its bytes are there to be sent.
    pub start_ns: Nanos,
    /// Links, in order; at least one.
    pub path: Vec<u32>,
    /// How much.
    pub bytes: u64,
}

/// A network of links.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrameNet {
    /// Data rate of each link, bits per second.
    pub bits_per_s: Vec<u64>,
    /// Payload of a full frame.
    pub frame_bytes: u64,
    /// Frames of one flow that fit at a hop behind the first.
    pub window_frames: u64,
}

#[derive(Clone, Copy)]
enum Event {
    Start(u32),
    /// The link has sent the frame of this flow, which is at this hop of its path.
    Sent {
        link: u32,
        flow: u32,
        hop: u32,
    },
}

/// A flow under way: frames that left each hop.
struct Progress {
    frames: u64,
    left: Vec<u64>,
    started: bool,
    finished_ns: Nanos,
}

struct Port {
    /// (flow, hop) that use this link, in the order of their turns.
    users: Vec<(u32, u32)>,
    turn: usize,
    busy: bool,
}

struct Run<'a> {
    net: &'a FrameNet,
    flows: &'a [FrameFlow],
    progress: Vec<Progress>,
    ports: Vec<Port>,
    queue: Queue<Event>,
}

impl FrameNet {
    /// When the last byte of each flow has left its last link.
    ///
    /// # Panics
    /// When a flow has no link.
    pub fn run(&self, flows: &[FrameFlow]) -> Vec<Nanos> {
        let mut run = Run::new(self, flows);
        while let Some((_, event)) = run.queue.pop() {
            match event {
                Event::Start(flow) => {
                    run.progress[flow as usize].started = true;
                    run.serve(flows[flow as usize].path[0]);
                }
                Event::Sent { link, flow, hop } => run.sent(link, flow, hop),
            }
        }
        run.progress.iter().map(|flow| flow.finished_ns).collect()
    }

    fn frame_ns(&self, link: u32, bytes: u64) -> Nanos {
        bytes_ns(bytes, self.bits_per_s[link as usize])
    }
}

impl<'a> Run<'a> {
    fn new(net: &'a FrameNet, flows: &'a [FrameFlow]) -> Run<'a> {
        let port = |link: u32| {
            let hop = |flow: &FrameFlow| flow.path.iter().position(|l| *l == link);
            let users = (0u32..).zip(flows).filter_map(|(n, flow)| hop(flow).map(|hop| (n, hop as u32)));
            Port { users: users.collect(), turn: 0, busy: false }
        };
        let mut queue = Queue::new();
        let mut progress = Vec::new();
        for (n, flow) in flows.iter().enumerate() {
            assert!(!flow.path.is_empty() && flow.bytes > 0, "flow {n} goes nowhere");
            let frames = flow.bytes.div_ceil(net.frame_bytes);
            progress.push(Progress { frames, left: vec![0; flow.path.len()], started: false, finished_ns: 0 });
            queue.at(flow.start_ns, Event::Start(n as u32));
        }
        Run { net, flows, progress, ports: (0..net.bits_per_s.len() as u32).map(port).collect(), queue }
    }

    /// A frame has left a link: it is at the next hop, its place here is free, the link takes the next.
    fn sent(&mut self, link: u32, flow: u32, hop: u32) {
        let path = &self.flows[flow as usize].path;
        let progress = &mut self.progress[flow as usize];
        progress.left[hop as usize] += 1;
        if hop as usize + 1 == path.len() && progress.left[hop as usize] == progress.frames {
            progress.finished_ns = self.queue.now();
        }
        self.ports[link as usize].busy = false;
        self.serve(link);
        if let Some(next) = path.get(hop as usize + 1) {
            self.serve(*next);
        }
        if hop > 0 {
            self.serve(path[hop as usize - 1]);
        }
    }

    /// An idle link takes the next frame that may go, in turn.
    fn serve(&mut self, link: u32) {
        let port = &self.ports[link as usize];
        if port.busy {
            return;
        }
        let users = port.users.len();
        let turn = (0..users).map(|n| (port.turn + n) % users).find(|at| self.may_go(port.users[*at]));
        let Some(turn) = turn else { return };
        let (flow, hop) = port.users[turn];
        let sent = self.progress[flow as usize].left[hop as usize];
        let bytes = (self.flows[flow as usize].bytes - sent * self.net.frame_bytes).min(self.net.frame_bytes);
        let done_ns = self.queue.now() + self.net.frame_ns(link, bytes);
        let port = &mut self.ports[link as usize];
        port.busy = true;
        port.turn = (turn + 1) % users;
        self.queue.at(done_ns, Event::Sent { link, flow, hop });
    }

    fn may_go(&self, (flow, hop): (u32, u32)) -> bool {
        let progress = &self.progress[flow as usize];
        let left = progress.left[hop as usize];
        let here = match hop {
            0 if progress.started => progress.frames,
            0 => 0,
            hop => progress.left[hop as usize - 1],
        };
        let room = progress.left.get(hop as usize + 1).is_none_or(|next| left - next < self.net.window_frames);
        left < here && room
    }
}
