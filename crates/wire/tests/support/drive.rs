//! Feeding arbitrary bytes to a machine and asserting all that must hold whatever they are.
//!
//! Owns: the rules that no input may break. Never: depends on chance; the bytes decide everything.
//! Invariant: shared by the tests on stable and the libFuzzer targets, so that a finding of one replays in the other.
#![allow(dead_code, reason = "every test binary uses its own part")]

use segue_wire::nbd::client::{self, Client, ClientOptions};
use segue_wire::nbd::proto::{self, MAGIC_OPTION, PAYLOAD_MAX_BYTES, REQUEST_EXT_BYTES, cmd_flag, handshake_flag, opt};
use segue_wire::nbd::reply::{self, ReplyForm};
use segue_wire::nbd::server::{DRAIN_MAX_BYTES, ExportInfo, Refusal, RefusalCode, Session, Step, TlsPolicy};
use segue_wire::nbd::{Command, Request};

/// Size of the export, bytes.
pub const SIZE_BYTES: u64 = 64 << 20;
/// Requests that are in flight on the client while its input is read: two of each command.
pub const CLIENT_REQUESTS: usize = 14;

/// Form named by two bits.
pub fn form_of(bits: u8) -> ReplyForm {
    match bits & 3 {
        0 => ReplyForm::Simple,
        1 => ReplyForm::Structured,
        _ => ReplyForm::Extended,
    }
}

/// Appends an option.
pub fn put_option(out: &mut Vec<u8>, option: u32, data: &[u8]) {
    out.extend_from_slice(&MAGIC_OPTION.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

/// A client's handshake to an export called "d", with `base:allocation` unless replies are simple.
pub fn honest_handshake(form: ReplyForm) -> Vec<u8> {
    let mut out = (handshake_flag::FIXED_NEWSTYLE as u32 | handshake_flag::NO_ZEROES as u32).to_be_bytes().to_vec();
    match form {
        ReplyForm::Simple => {}
        ReplyForm::Structured => put_option(&mut out, opt::STRUCTURED_REPLY, &[]),
        ReplyForm::Extended => put_option(&mut out, opt::EXTENDED_HEADERS, &[]),
    }
    if form != ReplyForm::Simple {
        put_option(&mut out, opt::SET_META_CONTEXT, b"\0\0\0\x01d\0\0\0\x01\0\0\0\x0fbase:allocation");
    }
    put_option(&mut out, opt::GO, b"\0\0\0\x01d\0\0");
    out
}

/// Feeds a server. Byte 0: TLS policy, whether an honest handshake goes before, its form, read-only; byte 1: size of
/// fragments; the rest is the stream. Returns the number of requests it let through.
pub fn server(data: &[u8]) -> usize {
    let Some((&[mode, fragment], stream)) = data.split_first_chunk() else { return 0 };
    let policy = [TlsPolicy::Off, TlsPolicy::Offered, TlsPolicy::Required, TlsPolicy::Off][mode as usize & 3];
    let mut session = Session::new(policy);
    let read_only = mode & 0x20 != 0;
    let mut requests = 0;
    let mut rx = Vec::new();
    if mode & 4 != 0 && policy != TlsPolicy::Required {
        let start = honest_handshake(form_of(mode >> 3));
        assert!(serve(&mut session, &start, &mut rx, &mut 0, read_only, &mut requests));
        assert!(session.transmitting() && rx.is_empty());
    }
    let mut payload = 0;
    for part in stream.chunks(fragment as usize + 1) {
        if !serve(&mut session, part, &mut rx, &mut payload, read_only, &mut requests) {
            assert!(session.step(&rx).is_err(), "a machine that has ended stays ended");
            break;
        }
    }
    requests
}

/// Feeds a part; false when the connection has ended.
fn serve(
    session: &mut Session,
    part: &[u8],
    rx: &mut Vec<u8>,
    payload: &mut u64,
    read_only: bool,
    requests: &mut usize,
) -> bool {
    rx.extend_from_slice(part);
    let mut at = 0;
    loop {
        let skip = (*payload).min((rx.len() - at) as u64);
        *payload -= skip;
        at += skip as usize;
        if *payload > 0 {
            break;
        }
        let Ok((used, step)) = session.step(&rx[at..]) else {
            assert!(session.step(&rx[at..]).is_err(), "an error is final");
            return false;
        };
        assert!(used <= rx.len() - at, "used more than there is");
        at += used;
        let out = session.take_output();
        assert!(out.len() <= 8192 + 64 * (used + 16), "an answer of {} bytes to {used}", out.len());
        match step {
            Step::NeedBytes => {
                assert!(rx.len() - at < REQUEST_EXT_BYTES, "it wants {} bytes kept", rx.len() - at);
                break;
            }
            Step::StartTls => session.tls_started(),
            Step::Lookup { .. } => {
                let answer = if session.export_name() == "d" {
                    Ok(ExportInfo { read_only, description: "fuzzed".into(), ..ExportInfo::new(SIZE_BYTES) })
                } else {
                    Err(Refusal::new(RefusalCode::Unknown, "no volume of this name"))
                };
                session.export_ready(answer);
            }
            Step::List => session.list_ready([("d", "fuzzed")]),
            Step::Request(request) => {
                *requests += 1;
                checked(session, &request, read_only);
            }
            Step::Write(request) => {
                *requests += 1;
                assert!(request.command == Command::Write);
                checked(session, &request, read_only);
                *payload = request.len;
            }
            Step::Reject { request, errno } => {
                let mut head = [0; reply::ERROR_BYTES_MAX];
                session.replies().error(&request, errno, &mut head);
                assert!(request.command != Command::Write || request.len <= DRAIN_MAX_BYTES);
            }
            Step::Disconnect => return false,
        }
    }
    rx.drain(..at);
    true
}

/// A request that was let through keeps every promise, and can be answered in every way its command has.
fn checked(session: &Session, request: &Request, read_only: bool) {
    let replies = session.replies();
    let mut head = [0; reply::ERROR_BYTES_MAX];
    let changes = matches!(request.command, Command::Write | Command::Trim | Command::WriteZeroes);
    assert!(!(read_only && changes), "a change of a read-only export");
    assert!(request.flags & !request.command.flags() == 0, "a flag that means nothing");
    if request.command == Command::Flush {
        assert!(request.offset == 0 && request.len == 0);
    } else {
        assert!(request.len > 0 && (request.offset | request.len).is_multiple_of(512));
        assert!(request.offset + request.len <= SIZE_BYTES, "out of range");
    }
    match request.command {
        Command::Read | Command::Write => assert!(request.len <= PAYLOAD_MAX_BYTES as u64),
        Command::Unknown => panic!("an unknown command was let through"),
        _ => {}
    }
    match request.command {
        Command::Read => {
            replies.data(request, request.offset, request.len as u32, true, &mut head);
        }
        Command::BlockStatus => {
            let mut out = Vec::new();
            replies.block_status(request, [(512, true), (u64::MAX, false)].into_iter(), &mut out);
        }
        _ => {
            replies.ok(request, &mut head);
        }
    }
}

/// Feeds a client. Byte 0: whether an honest handshake goes before, its form, TLS; byte 1: size of fragments; the
/// rest is what the server says. Returns the number of requests it saw done.
pub fn client(data: &[u8]) -> usize {
    let Some((&[mode, fragment], stream)) = data.split_first_chunk() else { return 0 };
    let honest = mode & 4 != 0;
    let tls = !honest && mode & 0x20 != 0;
    let options =
        ClientOptions { tls, form: form_of(mode), in_flight_max: CLIENT_REQUESTS as u32, ..ClientOptions::new("d") };
    let mut end = ClientSide { client: Client::new(options), asked: Vec::new(), open: 0, payload: 0, done: 0 };
    let mut rx = Vec::new();
    if honest {
        end.shake_hands();
    }
    for part in stream.chunks(fragment as usize + 1) {
        rx.extend_from_slice(part);
        let Some(used) = end.feed(&rx) else {
            assert!(end.client.step(&rx).is_err(), "an error is final");
            break;
        };
        rx.drain(..used);
    }
    end.done
}

struct ClientSide {
    client: Client,
    asked: Vec<(u64, Command, u64, u64)>,
    open: u32,
    payload: u64,
    done: usize,
}

impl ClientSide {
    fn shake_hands(&mut self) {
        let mut session = Session::new(TlsPolicy::Off);
        let mut rx = Vec::new();
        let mut to_client = session.take_output();
        while self.client.export().is_none() {
            let used = self.feed_keeping_output(&to_client).expect("the server is honest");
            assert_eq!(used, to_client.len());
            rx.extend_from_slice(&self.client.take_output());
            let (used, step) = session.step(&rx).expect("the client is honest");
            rx.drain(..used);
            if step == (Step::Lookup { enter: true }) {
                session.export_ready(Ok(ExportInfo::new(SIZE_BYTES)));
            }
            to_client = session.take_output();
        }
    }

    fn ask_all(&mut self) {
        let commands = [
            Command::Read,
            Command::Write,
            Command::Flush,
            Command::Trim,
            Command::Cache,
            Command::WriteZeroes,
            Command::BlockStatus,
        ];
        let mut head = [0; proto::REQUEST_EXT_BYTES];
        for (i, command) in commands.into_iter().chain(commands).enumerate() {
            if command == Command::BlockStatus && !self.client.has_block_status() {
                continue;
            }
            let (offset, len) = (i as u64 * 4096, if command == Command::Flush { 0 } else { 4096 });
            let (cookie, _) = self.client.request(command, offset, len, cmd_flag::FUA, &mut head).expect("a slot");
            self.asked.push((cookie, command, offset, len));
            self.open |= 1 << Client::slot_of(cookie);
        }
    }

    fn feed(&mut self, rx: &[u8]) -> Option<usize> {
        let used = self.feed_keeping_output(rx);
        let out = self.client.take_output();
        assert!(out.len() <= 256, "a client says little");
        used
    }

    fn feed_keeping_output(&mut self, rx: &[u8]) -> Option<usize> {
        let mut at = 0;
        loop {
            let skip = self.payload.min((rx.len() - at) as u64);
            self.payload -= skip;
            at += skip as usize;
            if self.payload > 0 {
                return Some(at);
            }
            let (used, step) = self.client.step(&rx[at..]).ok()?;
            assert!(used <= rx.len() - at, "used more than there is");
            at += used;
            match step {
                client::Step::NeedBytes => {
                    assert!(rx.len() - at < 64, "it wants {} bytes kept", rx.len() - at);
                    return Some(at);
                }
                client::Step::StartTls => self.client.tls_started(),
                client::Step::Ready => self.ask_all(),
                client::Step::Data { cookie, offset, len } => {
                    self.inside(cookie, offset, len);
                    self.payload = len as u64;
                }
                client::Step::Hole { cookie, offset, len } => self.inside(cookie, offset, len),
                client::Step::Extent { cookie, .. } => assert_eq!(self.request(cookie).1, Command::BlockStatus),
                client::Step::Done { cookie, .. } => {
                    self.request(cookie);
                    self.open &= !(1 << Client::slot_of(cookie));
                    self.done += 1;
                }
            }
        }
    }

    fn request(&self, cookie: u64) -> (u64, Command, u64, u64) {
        assert!(self.open & 1 << Client::slot_of(cookie) != 0, "news of a request that is done");
        *self.asked.iter().find(|a| a.0 == cookie).expect("a request that was asked")
    }

    fn inside(&self, cookie: u64, offset: u64, len: u32) {
        let (_, command, start, want) = self.request(cookie);
        assert!(command == Command::Read && offset >= start && offset + len as u64 <= start + want && len > 0);
    }
}
