//! Tokens narrowed and tampered with at random.
//!
//! Owns: the rules no token may break. Never: reads a clock.
//! Invariant: every seed is a number in the test, so a failure replays.

use super::*;

const SECRET: [u8; 32] = [7; 32];

/// A small generator: this room has no other source of chance.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % n
    }

    fn caveat(&mut self) -> Caveat {
        match self.below(5) {
            0 => Caveat::ReadOnly,
            1 => Caveat::Expires(self.below(100)),
            2 => {
                let from = self.below(50);
                Caveat::Range(from * 4096, (from + self.below(50)) * 4096)
            }
            3 => {
                let ip = if self.below(2) == 0 { "10.1.2.3" } else { "fd00::1" };
                Caveat::Source(Cidr { base: ip.parse().expect("an address"), bits: self.below(33) as u8 })
            }
            _ => Caveat::Sessions(self.below(5) as u32),
        }
    }
}

/// Everything a session could try: time, address, write, offset and length.
fn allows(grant: &Grant, now: u64, source: Option<IpAddr>, write: bool, offset: u64, len: u64) -> bool {
    grant.admit(now, source).is_ok() && !(write && grant.read_only) && grant.covers(offset, len)
}

#[test]
fn model_narrowing_never_widens() {
    let sources: [Option<IpAddr>; 4] =
        [None, "10.1.2.3".parse().ok(), "10.200.0.1".parse().ok(), "fd00::2".parse().ok()];
    for seed in 0..300 {
        let mut chance = Chance(seed);
        let mut token = Token::mint(&SECRET, "v", 3);
        let mut before = token.verify(&SECRET, "v", 3).expect("fresh");
        for _ in 0..chance.below(8) {
            // Over the text and back: what a client that narrows really does.
            let narrowed = Token::parse(&token.to_string()).expect("its own text").narrow(chance.caveat());
            let narrowed = narrowed.expect("short enough");
            let after = narrowed.verify(&SECRET, "v", 3).expect("narrowed tokens are good");
            for _ in 0..200 {
                let (now, source) = (chance.below(120), sources[chance.below(4) as usize]);
                let (write, offset, len) = (chance.below(2) == 0, chance.below(100) * 4096, chance.below(9) * 4096);
                let (was, is) = [&before, &after].map(|g| allows(g, now, source, write, offset, len)).into();
                assert!(was || !is, "seed {seed}: {narrowed:?} allows more than {token:?}");
            }
            for limit in &before.sessions {
                assert!(after.sessions.contains(limit), "seed {seed}: a limit of sessions is gone");
            }
            (token, before) = (narrowed, after);
        }
    }
}

#[test]
fn fault_any_tampering_is_refused() {
    let mut token = Token::mint(&SECRET, "v.1-x", 12);
    let caveats = [Caveat::ReadOnly, Caveat::Expires(1_800_000_000), Caveat::Range(0, 4096), Caveat::Sessions(2)];
    for caveat in caveats {
        token = token.narrow(caveat).expect("short enough");
    }
    let text = token.to_string();
    let good = |text: &str| Token::parse(text).and_then(|t| t.verify(&SECRET, "v.1-x", 12)).is_ok();
    assert!(good(&text));
    for at in 0..text.len() {
        for bit in 0..7 {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1 << bit;
            let changed = String::from_utf8(bytes).expect("still ASCII");
            assert!(!good(&changed), "{changed}");
        }
        assert!(!good(&text[..at]), "cut at {at}");
        assert!(!good(&format!("{}0{}", &text[..at], &text[at..])), "a digit at {at}");
    }
    // Caveats taken away, swapped and repeated.
    let parts: Vec<&str> = text.split('~').collect();
    for i in 3..parts.len() - 1 {
        let mut fewer = parts.clone();
        fewer.remove(i);
        assert!(!good(&fewer.join("~")));
        let mut more = parts.clone();
        more.insert(i, parts[i]);
        assert!(!good(&more.join("~")));
        let mut other = parts.clone();
        other.swap(i, 3 + (i - 2) % (parts.len() - 4));
        assert!(!good(&other.join("~")), "{other:?}");
    }
    assert_eq!(token.verify(&[8; 32], "v.1-x", 12), Err(TokenError::Signature));
    assert_eq!(token.verify(&SECRET, "v.1-x", 13), Err(TokenError::Revoked));
    assert_eq!(token.verify(&SECRET, "other", 12), Err(TokenError::OtherVolume));
}

#[test]
fn unknown_restrictions_and_kinds_are_refused() {
    let token = Token::mint(&SECRET, "v", 1);
    let base = "v1.v~rw~1";
    let key = mac(&SECRET, base);
    for caveat in
        ["later=1", "", "exp=01", "exp=-1", "exp=+1", "range=1", "src=10.0.0.0-33", "src=x-8", "max=4294967296"]
    {
        let forged = format!("{base}~{caveat}~{}", hex_encode(&mac(&key, caveat)));
        assert_eq!(Token::parse(&forged), Err(TokenError::Malformed), "{caveat}");
    }
    assert_eq!(Token::parse(&token.to_string().replacen("v1.", "v2.", 1)), Err(TokenError::Malformed));
    let mut long = token;
    for _ in 0..CAVEATS_MAX {
        long = long.narrow(Caveat::ReadOnly).expect("as many as allowed");
    }
    assert_eq!(long.narrow(Caveat::ReadOnly), Err(TokenError::Malformed));
}

#[test]
fn addresses_are_matched_by_their_first_bits() {
    let inside = |cidr: &str, ip: &str| Cidr::parse(cidr).expect(cidr).contains(ip.parse().expect(ip));
    assert!(inside("10.0.0.0/8", "10.255.0.1") && !inside("10.0.0.0/8", "11.0.0.1"));
    assert!(inside("0.0.0.0/0", "192.0.2.1") && !inside("0.0.0.0/0", "::1"));
    assert!(inside("192.0.2.7", "192.0.2.7") && !inside("192.0.2.7", "192.0.2.6"));
    assert!(inside("192.0.2.0/24", "::ffff:192.0.2.9"), "a mapped address is the address");
    assert!(inside("fd00::/8", "fd12::1") && inside("::/0", "::1") && !inside("fd00::/8", "fe00::1"));
    assert_eq!(Cidr::parse("10.0.0.0/33"), Err(TokenError::Malformed));
    assert_eq!(Caveat::Source(Cidr::parse("fd00::/8").expect("good")).to_string(), "src=fd00::-8");
}
