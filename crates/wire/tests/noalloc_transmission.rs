//! Counts allocations of both machines while requests flow: there must be none.
//!
//! Owns: the counting allocator. Never: counts the handshake, which may allocate.
//! Invariant: the counted section runs many requests of 4 KiB, whole and in fragments, in every form.

#[path = "support/drive.rs"]
mod drive;

#[path = "../../types/testing/calls.rs"]
mod calls;

use calls::calls;
use segue_wire::nbd::client::{self, Client, ClientOptions};
use segue_wire::nbd::proto::REQUEST_EXT_BYTES;
use segue_wire::nbd::reply::{HEADER_BYTES_MAX, ReplyForm};
use segue_wire::nbd::server::{ExportInfo, Session, Step, TlsPolicy};
use segue_wire::nbd::{Command, pieces};

const PAYLOAD: usize = 4096;

fn pair(form: ReplyForm) -> (Session, Client) {
    let mut session = Session::new(TlsPolicy::Off);
    let mut client = Client::new(ClientOptions { form, ..ClientOptions::new("d") });
    let mut to_server = Vec::new();
    loop {
        let out = session.take_output();
        let (_, step) = client.step(&out).unwrap();
        to_server.extend(client.take_output());
        if step == client::Step::Ready {
            return (session, client);
        }
        let (used, step) = session.step(&to_server).unwrap();
        to_server.drain(..used);
        if step == (Step::Lookup { enter: true }) {
            session.export_ready(Ok(ExportInfo::new(drive::SIZE_BYTES)));
        }
    }
}

/// One request through both machines; the payloads are only skipped over.
fn exchange(session: &mut Session, client: &mut Client, command: Command, wire: &mut [u8]) {
    let (cookie, n) = client.request(command, 8192, PAYLOAD as u64, 0, wire).unwrap();
    // The header comes in two parts.
    assert_eq!(session.step(&wire[..9]).unwrap(), (0, Step::NeedBytes));
    let (used, step) = session.step(&wire[..n]).unwrap();
    assert_eq!(used, n);
    assert!(session.take_output().is_empty());
    let (Step::Request(request) | Step::Write(request)) = step else { panic!("{step:?}") };
    let mut sent = HEADER_BYTES_MAX;
    if command == Command::Read {
        let (offset, len) = pieces(request.offset, request.len, 256 << 10).next().unwrap();
        let n = session.replies().data(&request, offset, len, true, wire);
        sent = sent.max(n + PAYLOAD);
    } else {
        session.replies().ok(&request, wire);
    }
    let (mut at, mut step) = client.step(&wire[..sent]).unwrap();
    if let client::Step::Data { len, .. } = step {
        at += len as usize;
        (_, step) = client.step(&wire[at..at]).unwrap();
    }
    assert_eq!(step, client::Step::Done { cookie, errno: segue_wire::nbd::Errno::OK });
}

#[test]
fn noalloc_parse_and_reply() {
    let mut wire = vec![0; PAYLOAD + HEADER_BYTES_MAX + REQUEST_EXT_BYTES];
    for form in [ReplyForm::Simple, ReplyForm::Structured, ReplyForm::Extended] {
        let (mut session, mut client) = pair(form);
        drop(session.take_output());
        let before = calls();
        for _ in 0..10_000 {
            exchange(&mut session, &mut client, Command::Read, &mut wire);
            exchange(&mut session, &mut client, Command::Write, &mut wire);
        }
        assert_eq!(calls() - before, 0, "{form:?} allocates");
    }
}
