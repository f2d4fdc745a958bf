//! The server machine against byte sequences written by hand from the protocol's document.
//!
//! Owns: the expected bytes. Never: uses the crate's own encoders to make them.
//! Invariant: every fixture is the exact stream of one direction.

use segue_wire::nbd::server::{ExportInfo, Refusal, RefusalCode, Session, SessionError, Step, TlsPolicy};
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

#[test]
fn conform_structured_replies() {
    let mut session = ready(true);
    let mut head = [0; reply::ERROR_BYTES_MAX];
    let step = feed(&mut session, "25609513 0000 0000 00000000000000aa 0000000000001000 00002000");
    let Step::Request(read) = step else { panic!("{step:?}") };
    let replies = session.replies();
    assert!(replies.fragments(&read));
    let n = replies.data(&read, 8192, 4096, false, &mut head);
    assert_eq!(head[..n], hex("668e33ef 0000 0001 00000000000000aa 00001008 0000000000002000"));
    let n = replies.hole(&read, 4096, 4096, true, &mut head);
    assert_eq!(head[..n], hex("668e33ef 0001 0002 00000000000000aa 0000000c 0000000000001000 00001000"));
    let n = replies.ok(&read, &mut head);
    assert_eq!(head[..n], hex("668e33ef 0001 0000 00000000000000aa 00000000"));
    let n = replies.error(&read, Errno::NOTSUP, &mut head);
    let text = hex_of("not offered for this range");
    assert_eq!(head[..n], hex(&format!("668e33ef 0001 8001 00000000000000aa 00000020 0000005f 001a {text}")));
}

fn hex_of(text: &str) -> String {
    text.bytes().map(|b| format!("{b:02x}")).collect()
}

const SET_META: &str =
    "49484156454f5054 0000000a 0000001c 00000001 64 00000001 0000000f 626173653a616c6c6f636174696f6e";

#[test]
fn conform_block_status_32_bits() {
    let mut session = Session::new(TlsPolicy::Off);
    feed(&mut session, "00000001 49484156454f5054 00000008 00000000");
    session.take_output();
    assert_eq!(feed_len(&mut session, SET_META), Step::NeedBytes);
    let name = "626173653a616c6c6f636174696f6e";
    assert_eq!(
        session.take_output(),
        hex(&format!(
            "0003e889045565a9 0000000a 00000004 00000013 00000001 {name} 0003e889045565a9 0000000a 00000001 00000000"
        ))
    );
    feed(&mut session, "49484156454f5054 00000007 00000007 00000001 64 0000");
    session.export_ready(Ok(ExportInfo::new(1 << 20)));
    let status = feed(&mut session, "25609513 0000 0007 0000000000000001 0000000000000000 00010000");
    let Step::Request(request) = status else { panic!("{status:?}") };
    let mut out = vec![9];
    let extents = [(4096, false), (4096, false), (1 << 40, true)];
    session.replies().block_status(&request, extents.into_iter(), &mut out);
    assert_eq!(
        out,
        hex("09 668e33ef 0001 0005 0000000000000001 00000014 00000001 00002000 00000000 0000e000 00000003")
    );
    let one = feed(&mut session, "25609513 0008 0007 0000000000000001 0000000000000000 00010000");
    let Step::Request(request) = one else { panic!("{one:?}") };
    let mut out = Vec::new();
    session.replies().block_status(&request, extents.into_iter(), &mut out);
    assert_eq!(out, hex("668e33ef 0001 0005 0000000000000001 0000000c 00000001 00002000 00000000"));
}

/// Feeds an option whose length field is worked out here.
fn feed_len(session: &mut Session, option: &str) -> Step {
    let mut bytes = hex(option);
    let len = (bytes.len() - 16) as u32;
    bytes[12..16].copy_from_slice(&len.to_be_bytes());
    let (used, step) = session.step(&bytes).unwrap();
    assert_eq!(used, bytes.len());
    step
}

#[test]
fn conform_extended_headers() {
    let mut session = Session::new(TlsPolicy::Off);
    feed(&mut session, "00000003 49484156454f5054 0000000b 00000000");
    feed_len(&mut session, SET_META);
    session.take_output();
    // Structured replies after extended headers are refused with EXT_HEADER_REQD.
    feed(&mut session, "49484156454f5054 00000008 00000000");
    assert_eq!(session.take_output()[8..16], hex("00000008 8000000a"));
    feed(&mut session, "49484156454f5054 00000007 00000007 00000001 64 0000");
    session.export_ready(Ok(ExportInfo::new(1 << 40)));
    session.take_output();
    let mut head = [0; reply::ERROR_BYTES_MAX];

    let step = feed(&mut session, "21e41c71 0000 0000 0000000000000005 0000000000001000 0000000000000200");
    let Step::Request(read) = step else { panic!("{step:?}") };
    let n = session.replies().data(&read, 4096, 512, true, &mut head);
    assert_eq!(
        head[..n],
        hex("6e8a278c 0001 0001 0000000000000005 0000000000001000 0000000000000208 0000000000001000")
    );

    // A write carries PAYLOAD_LEN; a trim of more than 4 GiB is one request.
    let step = feed(&mut session, "21e41c71 0021 0001 0000000000000006 0000000000001000 0000000000000200");
    let Step::Write(write) = step else { panic!("{step:?}") };
    assert!(write.fua() && write.flags == 1);
    let n = session.replies().ok(&write, &mut head);
    assert_eq!(head[..n], hex("6e8a278c 0001 0000 0000000000000006 0000000000001000 0000000000000000"));
    let step = feed(&mut session, "21e41c71 0000 0004 0000000000000007 0000000000000000 0000010000000000");
    let Step::Request(trim) = step else { panic!("{step:?}") };
    assert_eq!(trim.len, 1 << 40);

    let step = feed(&mut session, "21e41c71 0000 0007 0000000000000008 0000000000000000 0000010000000000");
    let Step::Request(status) = step else { panic!("{step:?}") };
    let mut out = Vec::new();
    session.replies().block_status(&status, [(1u64 << 39, true), (1 << 41, false)].into_iter(), &mut out);
    assert_eq!(
        out,
        hex("6e8a278c 0001 0006 0000000000000008 0000000000000000 0000000000000028 00000001 00000002
             0000008000000000 0000000000000003 0000008000000000 0000000000000000")
    );
}

#[test]
fn conform_export_name_with_and_without_zeroes() {
    for (client_flags, zeroes) in [("00000001", 124), ("00000003", 0)] {
        let mut session = Session::new(TlsPolicy::Off);
        session.take_output();
        let step = feed(&mut session, &format!("{client_flags} 49484156454f5054 00000001 00000001 64"));
        assert_eq!(step, Step::Lookup { enter: true });
        session.export_ready(Ok(ExportInfo { read_only: true, multi_conn: false, ..ExportInfo::new(4096) }));
        let mut expected = hex("0000000000001000 0407");
        expected.resize(10 + zeroes, 0);
        assert_eq!(session.take_output(), expected);
        let step = feed(&mut session, "25609513 0000 0001 0000000000000009 0000000000000000 00000000");
        let Step::Reject { errno, .. } = step else { panic!("{step:?}") };
        assert_eq!(errno, Errno::PERM);
    }
    let mut session = Session::new(TlsPolicy::Off);
    feed(&mut session, "00000003 49484156454f5054 00000001 00000001 64");
    session.export_ready(Err(Refusal::new(RefusalCode::Unknown, "no volume of this name")));
    assert_eq!(session.step(&[]), Err(SessionError::ExportRefused));
}

#[test]
fn conform_info_list_abort_and_unknown_options() {
    let mut session = Session::new(TlsPolicy::Off);
    feed(&mut session, "00000003");
    session.take_output();
    let step = feed(&mut session, "49484156454f5054 00000006 0000000b 00000001 64 0002 0001 0002");
    assert_eq!(step, Step::Lookup { enter: false });
    session.export_ready(Ok(ExportInfo {
        name: Some("disk".into()),
        description: "x".into(),
        ..ExportInfo::new(1 << 20)
    }));
    assert_eq!(
        session.take_output(),
        hex("0003e889045565a9 00000006 00000003 0000000c 0000 0000000000100000 0d6d
             0003e889045565a9 00000006 00000003 00000006 0001 6469736b
             0003e889045565a9 00000006 00000003 00000003 0002 78
             0003e889045565a9 00000006 00000003 0000000e 0003 00000200 00001000 02000000
             0003e889045565a9 00000006 00000001 00000000")
    );
    assert_eq!(
        feed(&mut session, "49484156454f5054 00000006 00000007 00000001 65 0000"),
        Step::Lookup { enter: false }
    );
    session.export_ready(Err(Refusal::new(RefusalCode::Unknown, "no")));
    assert_eq!(session.take_output(), hex("0003e889045565a9 00000006 80000006 00000002 6e6f"));

    assert_eq!(feed(&mut session, "49484156454f5054 00000003 00000000"), Step::List);
    session.list_ready([("d", "z"), ("ee", "")]);
    assert_eq!(
        session.take_output(),
        hex("0003e889045565a9 00000003 00000002 00000006 00000001 64 7a
             0003e889045565a9 00000003 00000002 00000006 00000002 6565
             0003e889045565a9 00000003 00000001 00000000")
    );
    // Unknown options, data where none belongs, data cut short, data too long: each has its own answer.
    for (option, code) in [
        ("00000063 00000002 aabb", "80000001"),
        ("00000004 00000000", "80000001"),
        ("00000005 00000000", "80000001"),
        ("00000003 00000001 00", "80000003"),
        ("00000007 00000006 00000001 64 00", "80000003"),
        ("00000007 00000006 000000ff 0000", "80000003"),
        ("00000007 00000008 00000001 64 0000 00", "80000003"),
        ("00000007 00000007 00000001 ff 0000", "80000003"),
        ("0000000a 00000009 00000001 64 00000000", "80000003"),
    ] {
        assert_eq!(feed(&mut session, &format!("49484156454f5054 {option}")), Step::NeedBytes);
        let answer = session.take_output();
        assert_eq!(answer[12..16], hex(code), "{option}");
    }
    let mut long = hex("49484156454f5054 00000007 00004001");
    long.resize(16 + 0x4001, 0);
    assert_eq!(session.step(&long), Ok((long.len(), Step::NeedBytes)));
    assert_eq!(session.take_output()[12..16], hex("80000009"));

    assert_eq!(feed(&mut session, "49484156454f5054 00000002 00000000"), Step::Disconnect);
    assert_eq!(session.take_output(), hex("0003e889045565a9 00000002 00000001 00000000"));
    assert_eq!(session.step(&[]), Err(SessionError::Ended));
}

#[test]
fn conform_tls_policies() {
    let starttls = "49484156454f5054 00000005 00000000";
    let mut session = Session::new(TlsPolicy::Required);
    feed(&mut session, "00000003");
    session.take_output();
    for option in ["00000003 00000000", "00000008 00000000", "00000007 00000007 00000001 64 0000", "00000063 00000000"]
    {
        assert_eq!(feed(&mut session, &format!("49484156454f5054 {option}")), Step::NeedBytes);
        assert_eq!(session.take_output()[12..16], hex("80000005"), "{option}");
    }
    assert_eq!(feed(&mut session, starttls), Step::StartTls);
    assert_eq!(session.take_output(), hex("0003e889045565a9 00000005 00000001 00000000"));
    session.tls_started();
    assert!(session.is_encrypted());
    assert_eq!(feed(&mut session, starttls), Step::NeedBytes);
    assert_eq!(session.take_output()[12..16], hex("80000003"));
    assert_eq!(feed(&mut session, "49484156454f5054 00000003 00000000"), Step::List);

    let mut session = Session::new(TlsPolicy::Required);
    feed(&mut session, "00000003");
    let chosen = hex("49484156454f5054 00000001 00000001 64");
    assert_eq!(session.step(&chosen), Err(SessionError::TlsRequired));

    // What was agreed in the clear is forgotten, and bytes behind STARTTLS are an attack.
    let mut session = Session::new(TlsPolicy::Offered);
    feed(&mut session, "00000003 49484156454f5054 00000008 00000000");
    assert_eq!(feed(&mut session, starttls), Step::StartTls);
    session.tls_started();
    session.take_output();
    feed(&mut session, "49484156454f5054 00000008 00000000");
    assert_eq!(session.take_output()[12..16], hex("00000001"));
    let mut session = Session::new(TlsPolicy::Offered);
    feed(&mut session, "00000003");
    let injected = hex(&format!("{starttls} 49484156454f5054 00000003 00000000"));
    assert_eq!(session.step(&injected), Err(SessionError::PlaintextAfterTls));
}

#[test]
fn conform_refusals_drain_their_payload() {
    let mut session = ready(false);
    // Past the end: ENOSPC; 512 bytes of payload are dropped and the next request is read.
    let mut bytes = hex("25609513 0000 0001 0000000000000001 0000000000100000 00000200");
    bytes.resize(28 + 512, 0x25);
    bytes.extend(hex("25609513 0000 0000 0000000000000002 0000000000000000 00000200"));
    let (used, step) = session.step(&bytes).unwrap();
    let Step::Reject { request, errno } = step else { panic!("{step:?}") };
    assert_eq!((used, request.cookie, errno), (28, 1, Errno::NOSPC));
    let (more, step) = session.step(&bytes[used..]).unwrap();
    let Step::Request(read) = step else { panic!("{step:?}") };
    assert_eq!((used + more, read.cookie), (bytes.len(), 2));

    for (request, errno) in [
        ("0000 0000 0000000000000001 00000000000fff00 00000200", Errno::INVAL),
        ("0000 0000 0000000000000001 0000000000100000 00000200", Errno::INVAL),
        ("0000 0006 0000000000000001 0000000000100000 00000200", Errno::NOSPC),
        ("0000 0004 0000000000000001 0000000000100000 00000200", Errno::INVAL),
        ("0000 0000 0000000000000001 fffffffffffffe00 00000200", Errno::INVAL),
        ("0000 0000 0000000000000001 0000000000000000 00000000", Errno::INVAL),
        ("0000 0000 0000000000000001 0000000000000000 00000001", Errno::INVAL),
        ("0004 0000 0000000000000001 0000000000000000 00000200", Errno::INVAL),
        ("0080 0000 0000000000000001 0000000000000000 00000200", Errno::INVAL),
        ("0000 0007 0000000000000001 0000000000000000 00000200", Errno::INVAL),
        ("0000 0063 0000000000000001 0000000000000000 00000200", Errno::INVAL),
    ] {
        let step = feed(&mut session, &format!("25609513 {request}"));
        assert!(matches!(step, Step::Reject { errno: e, .. } if e == errno), "{request}: {step:?}");
    }
    session.resized(2 << 20);
    let step = feed(&mut session, "25609513 0000 0000 0000000000000001 0000000000100000 00000200");
    assert!(matches!(step, Step::Request(_)));

    let huge = hex("25609513 0000 0001 0000000000000001 0000000000000000 04000200");
    assert_eq!(session.step(&huge), Err(SessionError::PayloadTooLarge(0x0400_0200)));
    assert!(session.step(&[]).is_err());
    let mut session = ready(false);
    assert_eq!(session.step(&[0; 28]), Err(SessionError::BadRequestMagic));
}

#[test]
fn conform_bad_greetings() {
    let mut session = Session::new(TlsPolicy::Off);
    assert_eq!(session.step(&hex("00000007")), Err(SessionError::UnknownClientFlags(7)));
    let mut session = Session::new(TlsPolicy::Off);
    let get = b"\0\0\0\x03GET / HTTP/1.1\r\n";
    assert_eq!(session.step(get), Err(SessionError::BadOptionMagic));
    let mut session = Session::new(TlsPolicy::Off);
    feed(&mut session, "00000003");
    let option = hex("49484156454f5054 00000063 00000000");
    let all: Vec<u8> = option.iter().copied().cycle().take(16 * 8192).collect();
    assert_eq!(session.step(&all), Ok((all.len(), Step::NeedBytes)));
    assert_eq!(session.step(&option), Err(SessionError::HandshakeTooLong));
    let mut session = Session::new(TlsPolicy::Off);
    let vast = hex("00000003 49484156454f5054 00000063 ffffffff");
    assert_eq!(session.step(&vast), Err(SessionError::HandshakeTooLong));
}

#[test]
fn conform_contexts_hold_for_their_own_export_only() {
    for (name, refused) in [("64", false), ("65", true)] {
        let mut session = Session::new(TlsPolicy::Off);
        feed(&mut session, "00000003 49484156454f5054 00000008 00000000");
        feed_len(&mut session, SET_META);
        feed(&mut session, &format!("49484156454f5054 00000007 00000007 00000001 {name} 0000"));
        session.export_ready(Ok(ExportInfo::new(1 << 20)));
        let step = feed(&mut session, "25609513 0000 0007 0000000000000001 0000000000000000 00010000");
        assert_eq!(matches!(step, Step::Reject { errno: Errno::INVAL, .. }), refused, "{step:?}");
    }
}
