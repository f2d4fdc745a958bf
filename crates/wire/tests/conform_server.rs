//! The server machine against byte sequences written by hand from the protocol's document.
//!
//! Owns: the expected bytes. Never: uses the crate's own encoders to make them.
//! Invariant: every fixture is the exact stream of one direction.

use segue_wire::nbd::server::{ExportInfo, Session, Step, TlsPolicy};
use segue_wire::nbd::{Command, Errno, reply};

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
}

const GREETING: &str = "4e42444d41474943 49484156454f5054 0003";

/// Feeds all of `bytes` and returns the last step; everything must be consumed.
fn feed(session: &mut Session, bytes: &str) -> Step {
    let bytes = hex(bytes);
    let (used, step) = session.step(&bytes).unwrap();
    assert_eq!(used, bytes.len());
    step
}

/// A session in transmission of a 1 MiB export, after GO "d" with (or without) structured replies.
fn ready(structured: bool) -> Session {
    let mut session = Session::new(TlsPolicy::Off);
    assert_eq!(session.take_output(), hex(GREETING));
    feed(&mut session, "00000003");
    if structured {
        feed(&mut session, "49484156454f5054 00000008 00000000");
        assert_eq!(session.take_output(), hex("0003e889045565a9 00000008 00000001 00000000"));
    }
    let step = feed(&mut session, "49484156454f5054 00000007 00000007 00000001 64 0000");
    assert_eq!(step, Step::Lookup { enter: true });
    assert_eq!(session.export_name(), "d");
    session.export_ready(Ok(ExportInfo::new(1 << 20)));
    let flags = if structured { "0ded" } else { "0d6d" };
    let expected = format!(
        "0003e889045565a9 00000007 00000003 0000000c 0000 0000000000100000 {flags}
         0003e889045565a9 00000007 00000003 0000000e 0003 00000200 00001000 02000000
         0003e889045565a9 00000007 00000001 00000000"
    );
    assert_eq!(session.take_output(), hex(&expected));
    assert!(session.transmitting());
    session
}

#[test]
fn conform_simple_read_write_flush() {
    let mut session = ready(false);
    let mut head = [0; reply::ERROR_BYTES_MAX];

    let step = feed(&mut session, "25609513 0000 0000 0102030405060708 0000000000001000 00000200");
    let Step::Request(read) = step else { panic!("{step:?}") };
    assert_eq!((read.command, read.offset, read.len), (Command::Read, 4096, 512));
    let n = session.replies().data(&read, 4096, 512, true, &mut head);
    assert_eq!(head[..n], hex("67446698 00000000 0102030405060708"));

    let step = feed(&mut session, "25609513 0001 0001 0000000000000009 0000000000000000 00001000");
    let Step::Write(write) = step else { panic!("{step:?}") };
    assert!(write.fua());
    let n = session.replies().ok(&write, &mut head);
    assert_eq!(head[..n], hex("67446698 00000000 0000000000000009"));

    let step = feed(&mut session, "25609513 0000 0003 000000000000000a 0000000000000000 00000000");
    let Step::Request(flush) = step else { panic!("{step:?}") };
    let n = session.replies().error(&flush, Errno::IO, &mut head);
    assert_eq!(head[..n], hex("67446698 00000005 000000000000000a"));

    let step = feed(&mut session, "25609513 0000 0002 0000000000000000 0000000000000000 00000000");
    assert_eq!(step, Step::Disconnect);
}
