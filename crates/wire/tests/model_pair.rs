//! The client machine against the server machine, over a pipe that cuts bytes anywhere, beside a naive disk.
//!
//! Owns: the expected outcome of every request. Never: asks the server what it thinks.
//! Invariant: chance comes from one seed, so that a failure replays.

mod support;

use proptest::prelude::*;
use segue_wire::nbd::client::{Client, ClientOptions, Step};
use segue_wire::nbd::proto::{PAYLOAD_MAX_BYTES, REQUEST_EXT_BYTES, STATE_HOLE, cmd_flag};
use segue_wire::nbd::reply::ReplyForm;
use segue_wire::nbd::server::{TlsPolicy, UNFRAGMENTED_MAX_BYTES};
use segue_wire::nbd::{Command, Errno};
use support::{Disk, FORMS, Rng, SECTOR, ServerEnd};

const SECTORS: usize = 256;
const BAD_SECTOR: usize = 77;
const IN_FLIGHT: u32 = 8;

#[derive(Clone, Debug)]
struct Ask {
    command: Command,
    offset: u64,
    len: u64,
    flags: u16,
}

fn ask() -> impl Strategy<Value = Ask> {
    let command = prop_oneof![
        4 => Just(Command::Read), 4 => Just(Command::Write), 1 => Just(Command::Flush), 2 => Just(Command::Trim),
        1 => Just(Command::Cache), 2 => Just(Command::WriteZeroes), 3 => Just(Command::BlockStatus),
    ];
    let place = prop_oneof![
        8 => (0..SECTORS as u64, 1u64..64).prop_map(|(o, n)| (o * 512, n.min(SECTORS as u64 - o) * 512)),
        1 => (0..SECTORS as u64 + 9, 0u64..300).prop_map(|(o, n)| (o * 512, n * 512)),
        1 => (0u64..200_000, 0u64..9000),
        1 => Just((u64::MAX - 511, 1024)),
    ];
    (command, place, 0u16..64, prop::bool::ANY).prop_map(|(command, (offset, len), flags, plain)| {
        let flags = if plain { 0 } else { flags & !cmd_flag::PAYLOAD_LEN };
        if command == Command::Flush && plain {
            return Ask { command, offset: 0, len: 0, flags };
        }
        Ask { command, offset, len, flags }
    })
}

/// What the client must be told, worked out from the protocol's document alone.
fn expected(ask: &Ask, disk: &Disk, form: ReplyForm, read_only: bool) -> Errno {
    let allowed = cmd_flag::FUA
        | match ask.command {
            Command::Read if form != ReplyForm::Simple => cmd_flag::DF,
            Command::WriteZeroes => cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO,
            Command::BlockStatus => cmd_flag::REQ_ONE,
            _ => 0,
        };
    let size = disk.data.len() as u64;
    let changes = matches!(ask.command, Command::Write | Command::Trim | Command::WriteZeroes);
    let past_end = ask.offset.checked_add(ask.len).is_none_or(|end| end > size);
    if ask.flags & !allowed != 0 {
        Errno::INVAL
    } else if changes && read_only {
        Errno::PERM
    } else if ask.command == Command::Flush {
        if (ask.offset, ask.len) == (0, 0) { Errno::OK } else { Errno::INVAL }
    } else if ask.len == 0 || !ask.len.is_multiple_of(512) || !ask.offset.is_multiple_of(512) {
        Errno::INVAL
    } else if past_end {
        if matches!(ask.command, Command::Write | Command::WriteZeroes) { Errno::NOSPC } else { Errno::INVAL }
    } else if ask.command == Command::Read && disk.is_bad(ask.offset, ask.len) {
        Errno::IO
    } else {
        Errno::OK
    }
}

struct Waiting {
    ask: Ask,
    errno: Errno,
    data: Vec<u8>,
    got: Vec<u8>,
    extents: Vec<(u64, bool)>,
}

struct Pair {
    rng: Rng,
    server: ServerEnd,
    client: Client,
    key: u8,
    rx: Vec<u8>,
    tx: Vec<u8>,
    model: Disk,
    waiting: Vec<Option<Waiting>>,
    data: Option<(u64, usize, usize)>,
    ready: bool,
    done: usize,
}

impl Pair {
    fn new(seed: u64, form: ReplyForm, tls: bool, read_only: bool) -> Pair {
        let disk = Disk::new(SECTORS, BAD_SECTOR);
        let policy = if tls { TlsPolicy::Required } else { TlsPolicy::Offered };
        let options = ClientOptions { tls, form, in_flight_max: IN_FLIGHT, ..ClientOptions::new("disk") };
        Pair {
            rng: Rng::new(seed),
            server: ServerEnd::new(policy, disk.clone(), read_only),
            client: Client::new(options),
            key: 0,
            rx: Vec::new(),
            tx: Vec::new(),
            model: disk,
            waiting: (0..IN_FLIGHT).map(|_| None).collect(),
            data: None,
            ready: false,
            done: 0,
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.tx.extend(bytes.iter().map(|b| b ^ self.key));
    }

    fn ask(&mut self, ask: &Ask, form: ReplyForm, read_only: bool) -> bool {
        let mut head = [0; REQUEST_EXT_BYTES];
        let Some((cookie, n)) = self.client.request(ask.command, ask.offset, ask.len, ask.flags, &mut head) else {
            return false;
        };
        self.send(&head[..n]);
        let errno = expected(ask, &self.model, form, read_only);
        let mut data = Vec::new();
        if ask.command == Command::Write {
            let fill = self.rng.next() as u8 | 1;
            data = vec![fill; ask.len as usize];
            self.send(&data);
        }
        if errno == Errno::OK {
            let zeroes = vec![0; ask.len as usize];
            match ask.command {
                Command::Write => self.model.set(ask.offset, &data, true),
                Command::Trim => self.model.set(ask.offset, &zeroes, false),
                Command::WriteZeroes => {
                    self.model.set(ask.offset, &zeroes, ask.flags & cmd_flag::NO_HOLE != 0);
                }
                Command::Read => data = self.model.data[Disk::range(ask.offset, ask.len)].to_vec(),
                _ => {}
            }
        }
        // Bytes that are no one's: a read that leaves a gap shows.
        let got = if ask.command == Command::Read && ask.len < 1 << 20 { vec![0xee; ask.len as usize] } else { vec![] };
        let slot = Client::slot_of(cookie);
        assert!(self.waiting[slot].is_none(), "a slot is used twice");
        self.waiting[slot] = Some(Waiting { ask: ask.clone(), errno, data, got, extents: Vec::new() });
        true
    }

    fn waiting(&mut self, cookie: u64) -> &mut Waiting {
        self.waiting[Client::slot_of(cookie)].as_mut().expect("a reply to a request in flight")
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.rx.extend(bytes.iter().map(|b| b ^ self.key));
        loop {
            if let Some((cookie, at, left)) = self.data.take() {
                let n = left.min(self.rx.len());
                let bytes: Vec<u8> = self.rx.drain(..n).collect();
                self.waiting(cookie).got[at..at + n].copy_from_slice(&bytes);
                if n < left {
                    self.data = Some((cookie, at + n, left - n));
                    return;
                }
            }
            let (used, step) = self.client.step(&self.rx).expect("the server is honest");
            self.rx.drain(..used);
            let output = self.client.take_output();
            self.send(&output);
            match step {
                Step::NeedBytes => return,
                Step::StartTls => {
                    self.key = 0x5a;
                    self.client.tls_started();
                    let output = self.client.take_output();
                    self.send(&output);
                }
                Step::Ready => self.ready = true,
                Step::Data { cookie, offset, len } => {
                    let at = offset - self.waiting(cookie).ask.offset;
                    self.data = Some((cookie, at as usize, len as usize));
                }
                Step::Hole { cookie, offset, len } => {
                    let w = self.waiting(cookie);
                    let at = (offset - w.ask.offset) as usize;
                    w.got[at..at + len as usize].fill(0);
                }
                Step::Extent { cookie, len, flags } => {
                    self.waiting(cookie).extents.push((len, flags & STATE_HOLE != 0))
                }
                Step::Done { cookie, errno } => self.check(cookie, errno),
            }
        }
    }

    fn check(&mut self, cookie: u64, errno: Errno) {
        let w = self.waiting[Client::slot_of(cookie)].take().expect("done once");
        self.done += 1;
        assert_eq!(errno, w.errno, "{:?}", w.ask);
        if errno != Errno::OK {
            return;
        }
        if w.ask.command == Command::Read {
            assert!(w.got == w.data, "wrong bytes for {:?}", w.ask);
        }
        if w.ask.command == Command::BlockStatus {
            let total: u64 = w.extents.iter().map(|e| e.0).sum();
            let one = w.ask.flags & cmd_flag::REQ_ONE != 0;
            assert!(total <= w.ask.len && (one || total == w.ask.len), "{:?} {total}", w.ask);
            assert!(!one || w.extents.len() == 1);
            assert!(w.extents.windows(2).all(|e| e[0].1 != e[1].1), "extents are merged");
        }
    }

    /// Carries a random run of bytes one way.
    fn carry(&mut self, to_server: bool) {
        let queue = if to_server { &mut self.tx } else { &mut self.server.tx };
        let max = if self.rng.below(2) == 0 { 9 } else { 20_000 };
        // The exclusive-or must not begin in the middle of a flight that was sent in the clear: fragments are fine.
        let n = (self.rng.below(max) + 1).min(queue.len());
        let bytes: Vec<u8> = queue.drain(..n).collect();
        if to_server {
            self.server.receive(&bytes).expect("the client is honest");
        } else {
            self.receive(&bytes);
        }
    }

    fn run(&mut self, asks: &[Ask], form: ReplyForm, read_only: bool) {
        let mut next = 0;
        let mut turns = 0u64;
        while !self.ready || self.done < asks.len() {
            turns += 1;
            assert!(turns < 3_000_000, "stuck: ready {} done {} of {}", self.ready, self.done, asks.len());
            match self.rng.below(4) {
                0 => self.carry(true),
                1 => self.carry(false),
                2 => {
                    let mut rng = Rng::new(self.rng.next());
                    self.server.reply_one(&mut rng);
                }
                _ if self.ready && next < asks.len() => next += self.ask(&asks[next], form, read_only) as usize,
                _ => {}
            }
        }
        assert_eq!(self.client.in_flight(), 0);
        assert!(self.server.disk.data == self.model.data && self.server.disk.allocated == self.model.allocated);
        let mut head = [0; REQUEST_EXT_BYTES];
        let n = self.client.disconnect(&mut head);
        self.send(&head[..n]);
        while !self.server.gone {
            self.carry(true);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn model_client_and_server_agree_with_a_naive_disk(
        seed in any::<u64>(), form in 0usize..3, tls in any::<bool>(), read_only in prop::bool::weighted(0.15),
        asks in prop::collection::vec(ask(), 0..60),
    ) {
        let form = FORMS[form];
        let asks: Vec<Ask> =
            asks.into_iter().filter(|a| form != ReplyForm::Simple || a.command != Command::BlockStatus).collect();
        Pair::new(seed, form, tls, read_only).run(&asks, form, read_only);
    }
}

#[test]
fn model_large_requests_are_answered_in_pieces_or_refused() {
    let ask = |command, len: u32, flags| Ask { command, offset: 0, len: len as u64, flags };
    for form in FORMS {
        let mut pair = Pair::new(7, form, false, false);
        let sectors = PAYLOAD_MAX_BYTES as usize / SECTOR * 2;
        pair.model = Disk::new(sectors, usize::MAX / SECTOR);
        pair.server.disk = pair.model.clone();
        // The client's table of expectations holds no bytes of reads this large: only their outcome is checked here.
        let big = [
            (ask(Command::Write, PAYLOAD_MAX_BYTES, 0), Errno::OK),
            (ask(Command::Write, PAYLOAD_MAX_BYTES + 512, 0), Errno::INVAL),
            (ask(Command::Read, PAYLOAD_MAX_BYTES + 512, 0), Errno::INVAL),
            (ask(Command::Read, UNFRAGMENTED_MAX_BYTES + 512, cmd_flag::DF), Errno::OVERFLOW),
        ];
        for (ask, errno) in big {
            let skip = form == ReplyForm::Simple && ask.flags != 0;
            if !skip {
                assert_eq!(outcome(&mut pair, &ask), errno, "{ask:?} {form:?}");
            }
        }
    }
}

/// Runs one request alone and says how it ended.
fn outcome(pair: &mut Pair, ask: &Ask) -> Errno {
    let mut head = [0; REQUEST_EXT_BYTES];
    while !pair.ready {
        pair.carry(true);
        pair.carry(false);
    }
    let (cookie, n) = pair.client.request(ask.command, ask.offset, ask.len, ask.flags, &mut head).expect("a slot");
    pair.server.receive(&head[..n]).expect("the client is honest");
    if ask.command == Command::Write {
        let payload = vec![7; ask.len as usize];
        for part in payload.chunks(100_000) {
            pair.server.receive(part).expect("the client is honest");
        }
    }
    pair.server.reply_one(&mut Rng::new(1));
    let bytes = std::mem::take(&mut pair.server.tx);
    let mut at = 0;
    loop {
        let (used, step) = pair.client.step(&bytes[at..]).expect("the server is honest");
        at += used;
        match step {
            Step::Done { cookie: done, errno } => {
                assert_eq!(done, cookie);
                return errno;
            }
            other => assert!(other == Step::NeedBytes && at < bytes.len(), "{other:?}"),
        }
    }
}
