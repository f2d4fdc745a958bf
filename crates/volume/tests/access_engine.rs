//! Tokens at the engine: what they leave allowed, request by request, and how they end.
//!
//! Owns: scripted sessions. Never: tests the signing (see `segue_types::Token`).
//! Invariant: no request is served that the token of its session does not allow.

mod sim;

use segue_des::{Cut, Faults};
use segue_types::{BLOCK_BYTES, Caveat, Cidr, IoStatus, LeaseId, Token, TokenError};
use segue_volume::op::{
    AdminError, AdminOp, AdminReply, AttachId, AttachMode, AttachState, ObservationRule, Op, TokenSecret, TokenShown,
};
use sim::Sim;
use sim::scene::{block, setup};

const B: u64 = BLOCK_BYTES;
const SECRET: TokenSecret = TokenSecret([5; 32]);
const NOW_S: u64 = 1_000_000;

fn guarded() -> Sim {
    let mut sim = Sim::fresh(&setup(1));
    sim.create("a", 1 << 20, ObservationRule::Flush);
    sim.admin(AdminOp::RequireTokens { name: "a".into(), secret: SECRET }).expect("tokens");
    sim
}

fn token(caveats: &[Caveat]) -> Token {
    caveats.iter().try_fold(Token::mint(&SECRET.0, "a", 1), |t, c| t.narrow(*c)).expect("short enough")
}

fn attach_with(sim: &mut Sim, token: &Token, source: Option<&str>) -> Result<AttachState, AdminError> {
    let source = source.map(|ip| ip.parse().expect("an address"));
    let shown = TokenShown { text: token.to_string(), source, now_unix_ms: NOW_S * 1000 + 998 };
    let mode = AttachMode::Implicit { lease: LeaseId(1), holder: "h".into(), now_unix_ms: 0 };
    match sim.admin(AdminOp::AttachToken { name: "a".into(), mode, token_sha256: [0; 32], token: shown })? {
        AdminReply::Attached(state) => Ok(state),
        other => panic!("attach answered {other:?}"),
    }
}

fn good(sim: &mut Sim, caveats: &[Caveat]) -> AttachId {
    attach_with(sim, &token(caveats), None).expect("a good token").attach
}

#[test]
fn without_a_token_nobody_attaches() {
    let mut sim = guarded();
    assert_eq!(sim.attach("a", AttachMode::ReadOnly), Err(AdminError::Denied));
    let forged = Token::mint(&[6; 32], "a", 1);
    assert_eq!(attach_with(&mut sim, &forged, None), Err(TokenError::Signature.into()));
    assert!(attach_with(&mut sim, &token(&[]), None).is_ok());
    sim.create("open", 1 << 20, ObservationRule::Flush);
    let shown = TokenShown { text: token(&[]).to_string(), source: None, now_unix_ms: 0 };
    let (name, mode, token_sha256) = ("open".into(), AttachMode::ReadOnly, [0; 32]);
    let op = AdminOp::AttachToken { name, mode, token_sha256, token: shown };
    assert_eq!(sim.admin(op), Err(TokenError::NotTaken.into()));
}

#[test]
fn a_range_and_read_only_hold_for_each_request() {
    let mut sim = guarded();
    let a = good(&mut sim, &[Caveat::Range(2 * B, 4 * B)]);
    assert_eq!(sim.write(a, 2 * B, &[block(1, 2), block(1, 3)].concat(), false), IoStatus::Ok);
    for (offset, len) in [(B, 1), (3 * B, 2), (4 * B, 1), (0, 8)] {
        assert_eq!(sim.write(a, offset, &vec![1; (len * B) as usize], false), IoStatus::ReadOnly, "{offset} {len}");
        assert_eq!(sim.read(a, offset, (len * B) as u32), Err(IoStatus::ReadOnly));
        for no_hole in [false, true] {
            let op = Op::WriteZeroes { offset, len: len * B, no_hole, fua: false };
            assert_eq!(sim.op(a, op), IoStatus::ReadOnly);
        }
        assert_eq!(sim.op(a, Op::Discard { offset, len: len * B, fua: false }), IoStatus::ReadOnly);
        assert_eq!(sim.op(a, Op::BlockStatus { offset, len: len * B, extents_max: 4 }), IoStatus::ReadOnly);
        assert_eq!(sim.op(a, Op::Cache { offset, len: len * B }), IoStatus::ReadOnly);
    }
    assert_eq!(sim.op(a, Op::Flush), IoStatus::Ok);
    let reader = attach_with(&mut sim, &token(&[Caveat::ReadOnly]), None).expect("a good token");
    assert!(reader.read_only);
    assert_eq!(sim.read(reader.attach, 2 * B, B as u32), Ok(block(1, 2)));
    assert_eq!(sim.write(reader.attach, 2 * B, &block(2, 2), false), IoStatus::ReadOnly);
}

#[test]
fn addresses_times_and_numbers_of_sessions_are_kept() {
    let mut sim = guarded();
    let local = token(&[Caveat::Source(Cidr::parse("127.0.0.0/8").expect("good"))]);
    assert_eq!(attach_with(&mut sim, &local, None), Err(TokenError::Source.into()));
    assert_eq!(attach_with(&mut sim, &local, Some("10.0.0.1")), Err(TokenError::Source.into()));
    let first = attach_with(&mut sim, &local, Some("127.0.0.1")).expect("inside").attach;
    sim.admin(AdminOp::Detach { attach: first }).expect("detach");

    assert_eq!(attach_with(&mut sim, &token(&[Caveat::Expires(NOW_S)]), None), Err(TokenError::Expired.into()));
    let short = good(&mut sim, &[Caveat::Expires(NOW_S + 1)]);
    assert_eq!(sim.write(short, 0, &block(1, 0), false), IoStatus::Ok);
    let begun = sim.now();
    // Virtual time passes with each request; the two milliseconds end in the middle of the session.
    let long = good(&mut sim, &[]);
    while sim.now() < begun + 2_000_000 {
        assert_eq!(sim.write(long, 0, &block(2, 0), true), IoStatus::Ok);
    }
    assert_eq!(sim.read(short, 0, B as u32), Err(IoStatus::Fenced), "a session outlived its token");
    assert_eq!(sim.read(long, 0, B as u32), Ok(block(2, 0)));

    let two = token(&[Caveat::Sessions(2)]);
    let narrower = two.clone().narrow(Caveat::ReadOnly).expect("short enough");
    let one = attach_with(&mut sim, &two, None).expect("the first").attach;
    attach_with(&mut sim, &narrower, None).expect("the second, of a narrower token");
    assert_eq!(attach_with(&mut sim, &two, None), Err(TokenError::Sessions.into()));
    assert_eq!(attach_with(&mut sim, &narrower, None), Err(TokenError::Sessions.into()));
    sim.admin(AdminOp::Detach { attach: one }).expect("detach");
    attach_with(&mut sim, &narrower, None).expect("one has left");
}

#[test]
fn a_revocation_ends_sessions_at_once_and_survives_a_power_cut() {
    let mut sim = guarded();
    let a = good(&mut sim, &[]);
    assert_eq!(sim.write(a, 0, &block(1, 0), false), IoStatus::Ok);
    sim.admin(AdminOp::Revoke { name: "a".into(), plain: false }).expect("revoked");
    assert_eq!(sim.read(a, 0, B as u32), Err(IoStatus::Fenced));
    assert_eq!(attach_with(&mut sim, &token(&[]), None), Err(TokenError::Revoked.into()));
    let image = sim.cut(Cut::KeepsNone);
    let mut sim = Sim::boot(&setup(2), image, Faults::default(), "again").expect("it opens");
    assert_eq!(attach_with(&mut sim, &token(&[]), None), Err(TokenError::Revoked.into()));
    let state = sim.show("a").access.expect("tokens are demanded");
    let new = Token::mint(&state.secret.0, "a", state.generation);
    let fresh = attach_with(&mut sim, &new, None).expect("a new token").attach;
    sim.admin(AdminOp::RequireTokens { name: "a".into(), secret: TokenSecret([9; 32]) }).expect("changes nothing");
    assert_eq!(sim.show("a").access, Some(state));
    sim.admin(AdminOp::DropTokens { name: "a".into() }).expect("none any more");
    assert_eq!(sim.op(fresh, Op::Flush), IoStatus::Fenced);
    assert!(sim.attach("a", AttachMode::ReadOnly).is_ok());
    let nothing = sim.admin(AdminOp::Revoke { name: "a".into(), plain: false });
    assert!(matches!(nothing, Err(AdminError::Conflict(_))));
}
