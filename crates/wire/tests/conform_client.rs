//! The client machine against byte sequences written by hand, from honest and dishonest servers.
//!
//! Owns: the expected bytes. Never: uses the crate's own encoders to make them.
//! Invariant: every lie of a server ends the connection with an error that names it.

use segue_wire::nbd::client::{Client, ClientError, ClientOptions, Step};
use segue_wire::nbd::proto::REQUEST_EXT_BYTES;
use segue_wire::nbd::reply::ReplyForm;
use segue_wire::nbd::{Command, Errno};

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
}

const GREETING: &str = "4e42444d41474943 49484156454f5054 0003";
const NAME: &str = "626173653a616c6c6f636174696f6e";
const GO: &str = "49484156454f5054 00000007 00000009 00000001 64 0001 0003";
const EXPORT: &str = "0003e889045565a9 00000007 00000003 0000000c 0000 0000000000100000 0ded
    0003e889045565a9 00000007 00000003 0000000e 0003 00000200 00001000 02000000
    0003e889045565a9 00000007 00000001 00000000";

/// Feeds all of `bytes`, compares what the client says, and returns the step.
fn turn(client: &mut Client, bytes: &str, says: &str) -> Step {
    let bytes = hex(bytes);
    let (used, step) = client.step(&bytes).unwrap();
    assert_eq!(used, bytes.len());
    assert_eq!(client.take_output(), hex(says));
    step
}

fn ack(option: &str) -> String {
    format!("0003e889045565a9 {option} 00000001 00000000")
}

fn set_meta() -> String {
    format!("49484156454f5054 0000000a 0000001c 00000001 64 00000001 0000000f {NAME}")
}

/// A client in transmission, of the form that the server granted.
fn ready(form: ReplyForm) -> Client {
    let mut client = Client::new(ClientOptions { form, in_flight_max: 2, ..ClientOptions::new("d") });
    assert_eq!(client.step(&[]), Ok((0, Step::NeedBytes)));
    let option = if form == ReplyForm::Extended { "0000000b" } else { "00000008" };
    if form == ReplyForm::Simple {
        turn(&mut client, GREETING, &format!("00000003 {GO}"));
    } else {
        turn(&mut client, GREETING, &format!("00000003 49484156454f5054 {option} 00000000"));
        // The name of 1, 4 bytes of count, one query of 4 + 15 bytes, and 4 + 1 of the name: 28.
        turn(&mut client, &ack(option), &set_meta());
        let meta = format!("0003e889045565a9 0000000a 00000004 00000013 0000002a {NAME} {}", ack("0000000a"));
        turn(&mut client, &meta, GO);
    }
    assert_eq!(turn(&mut client, EXPORT, ""), Step::Ready);
    let export = *client.export().unwrap();
    assert_eq!((export.size_bytes, export.flags), (1 << 20, 0x0ded));
    assert_eq!((export.block_min_bytes, export.payload_max_bytes), (512, 32 << 20));
    assert_eq!((client.form(), client.has_block_status()), (form, form != ReplyForm::Simple));
    client
}

fn ask(client: &mut Client, command: Command, offset: u64, len: u64, expected: &str) -> u64 {
    let mut head = [0; REQUEST_EXT_BYTES];
    let (cookie, n) = client.request(command, offset, len, 0, &mut head).unwrap();
    assert_eq!(head[..n], hex(expected));
    cookie
}

const READ: &str = "25609513 0000 0000 0000000100000000 0000000000001000 00000400";
const COOKIE: &str = "0000000100000000";

#[test]
fn conform_simple_replies() {
    let mut client = ready(ReplyForm::Simple);
    let cookie = ask(&mut client, Command::Read, 4096, 1024, READ);
    let flush = ask(&mut client, Command::Flush, 0, 0, "25609513 0000 0003 0000000100000001 0000000000000000 00000000");
    assert_eq!(client.request(Command::Flush, 0, 0, 0, &mut [0; REQUEST_EXT_BYTES]), None);
    let step = turn(&mut client, "67446698 00000005 0000000100000001", "");
    assert_eq!(step, Step::Done { cookie: flush, errno: Errno::IO });
    let step = turn(&mut client, &format!("67446698 00000000 {COOKIE}"), "");
    assert_eq!(step, Step::Data { cookie, offset: 4096, len: 1024 });
    assert_eq!(client.step(&[]), Ok((0, Step::Done { cookie, errno: Errno::OK })));
    assert_eq!((client.step(&[]), client.in_flight()), (Ok((0, Step::NeedBytes)), 0));
    let mut head = [0; REQUEST_EXT_BYTES];
    let n = client.disconnect(&mut head);
    assert_eq!(head[..n], hex("25609513 0000 0002 0000000000000000 0000000000000000 00000000"));
}

#[test]
fn conform_structured_replies() {
    let mut client = ready(ReplyForm::Structured);
    let cookie = ask(&mut client, Command::Read, 4096, 1024, READ);
    let step = turn(&mut client, &format!("668e33ef 0000 0001 {COOKIE} 00000208 0000000000001200"), "");
    assert_eq!(step, Step::Data { cookie, offset: 0x1200, len: 512 });
    let step = turn(&mut client, &format!("668e33ef 0001 0002 {COOKIE} 0000000c 0000000000001000 00000200"), "");
    assert_eq!(step, Step::Hole { cookie, offset: 4096, len: 512 });
    assert_eq!(client.step(&[]), Ok((0, Step::Done { cookie, errno: Errno::OK })));

    let status = "25609513 0000 0007 0000000200000000 0000000000000000 00010000";
    let cookie = ask(&mut client, Command::BlockStatus, 0, 65536, status);
    let reply = hex("668e33ef 0001 0005 0000000200000000 00000014 0000002a 00002000 00000000 0000e000 00000003");
    let (used, step) = client.step(&reply).unwrap();
    assert_eq!(step, Step::Extent { cookie, len: 8192, flags: 0 });
    let (more, step) = client.step(&reply[used..]).unwrap();
    assert_eq!((used + more, step), (reply.len(), Step::Extent { cookie, len: 0xe000, flags: 3 }));
    assert_eq!(client.step(&[]), Ok((0, Step::Done { cookie, errno: Errno::OK })));
}

#[test]
fn conform_extended_replies() {
    let mut client = ready(ReplyForm::Extended);
    let write = "21e41c71 0020 0001 0000000100000000 0000000000001000 0000000000000200";
    let cookie = ask(&mut client, Command::Write, 4096, 512, write);
    // An error with text, then, in a chunk of its own, the end.
    let text = "6e6f";
    let error = format!("6e8a278c 0000 8001 {COOKIE} 0000000000001000 0000000000000008 0000001c 0002 {text}");
    assert_eq!(turn(&mut client, &error, ""), Step::NeedBytes);
    let step = turn(&mut client, &format!("6e8a278c 0001 0000 {COOKIE} 0000000000001000 0000000000000000"), "");
    assert_eq!(step, Step::Done { cookie, errno: Errno::NOSPC });
}

#[test]
fn conform_less_than_was_asked_for() {
    let mut client = Client::new(ClientOptions { form: ReplyForm::Extended, ..ClientOptions::new("d") });
    turn(&mut client, GREETING, "00000003 49484156454f5054 0000000b 00000000");
    let unsupported = |option: &str| format!("0003e889045565a9 {option} 80000001 00000000");
    turn(&mut client, &unsupported("0000000b"), "49484156454f5054 00000008 00000000");
    turn(&mut client, &unsupported("00000008"), GO);
    assert_eq!(turn(&mut client, EXPORT, ""), Step::Ready);
    assert_eq!((client.form(), client.has_block_status()), (ReplyForm::Simple, false));
}

#[test]
fn conform_refusals_are_told() {
    let mut client = Client::new(ClientOptions { form: ReplyForm::Simple, ..ClientOptions::new("d") });
    turn(&mut client, GREETING, &format!("00000003 {GO}"));
    let refusal = hex("0003e889045565a9 00000007 80000006 00000002 6e6f");
    assert_eq!(client.step(&refusal), Err(ClientError::Refused { option: 7, code: 0x8000_0006 }));
    assert_eq!(client.refusal(), "no");
    let mut client = Client::new(ClientOptions { tls: true, ..ClientOptions::new("d") });
    turn(&mut client, GREETING, "00000003 49484156454f5054 00000005 00000000");
    let refusal = hex("0003e889045565a9 00000005 80000001 00000000");
    assert_eq!(client.step(&refusal), Err(ClientError::Refused { option: 5, code: 0x8000_0001 }));
    // An old server, and one that speaks in the clear behind its consent to TLS.
    let mut client = Client::new(ClientOptions::new("d"));
    assert_eq!(client.step(&hex("4e42444d41474943 49484156454f5054 0000")), Err(ClientError::NotNbd));
    let mut client = Client::new(ClientOptions { tls: true, ..ClientOptions::new("d") });
    turn(&mut client, GREETING, "00000003 49484156454f5054 00000005 00000000");
    assert_eq!(client.step(&hex(&format!("{} 00", ack("00000005")))), Err(ClientError::BadOptionReply));
}

#[test]
fn conform_lies_end_the_connection() {
    let lies = [
        ("67446698 00000000 0000000100000001", ClientError::UnknownCookie, ReplyForm::Simple),
        ("67446698 00000000 0000000200000000", ClientError::UnknownCookie, ReplyForm::Simple),
        ("67446698 00000000 00000001ffffffff", ClientError::UnknownCookie, ReplyForm::Simple),
        ("668e33ef 0001 0000 0000000100000000 00000000", ClientError::BadReplyMagic, ReplyForm::Simple),
        ("00000000", ClientError::BadReplyMagic, ReplyForm::Structured),
        // A read: called done at once; simply answered; outside; longer than asked; empty; with status; unknown.
        ("668e33ef 0001 0000 0000000100000000 00000000", ClientError::ShortRead, ReplyForm::Structured),
        ("67446698 00000000 0000000100000000", ClientError::BadReply, ReplyForm::Structured),
        ("668e33ef 0001 0001 0000000100000000 00000208 0000000000000e00", ClientError::BadReply, ReplyForm::Structured),
        ("668e33ef 0001 0001 0000000100000000 00000408 0000000000001200", ClientError::BadReply, ReplyForm::Structured),
        ("668e33ef 0001 0001 0000000100000000 ffffffff 0000000000001000", ClientError::BadReply, ReplyForm::Structured),
        ("668e33ef 0001 0001 0000000100000000 00000208 fffffffffffffe00", ClientError::BadReply, ReplyForm::Structured),
        ("668e33ef 0001 0001 0000000100000000 00000008 0000000000001000", ClientError::BadReply, ReplyForm::Structured),
        ("668e33ef 0001 0005 0000000100000000 0000000c 0000002a", ClientError::BadReply, ReplyForm::Structured),
        ("668e33ef 0001 0003 0000000100000000 00000000", ClientError::BadReply, ReplyForm::Structured),
        ("668e33ef 0000 0000 0000000100000000 00000000", ClientError::BadReply, ReplyForm::Structured),
        // An error that is none, and one whose text is longer than its chunk.
        ("668e33ef 0001 8001 0000000100000000 00000006 00000000 0000", ClientError::BadReply, ReplyForm::Structured),
        ("668e33ef 0001 8001 0000000100000000 00000006 00000005 0001", ClientError::BadReply, ReplyForm::Structured),
    ];
    for (reply, error, form) in lies {
        let mut client = ready(form);
        ask(&mut client, Command::Read, 4096, 1024, READ);
        assert_eq!(client.step(&hex(reply)), Err(error), "{reply}");
        assert_eq!(client.step(&[]), Err(error), "an error is final");
    }
    // The second half twice: as many bytes as asked for, and one too many.
    let mut client = ready(ReplyForm::Structured);
    ask(&mut client, Command::Read, 4096, 1024, READ);
    let half = format!("668e33ef 0000 0001 {COOKIE} 00000208 0000000000001200");
    turn(&mut client, &half, "");
    let hole = format!("668e33ef 0000 0002 {COOKIE} 0000000c 0000000000001000 00000400");
    assert_eq!(client.step(&hex(&hole)), Err(ClientError::BadReply));
}
