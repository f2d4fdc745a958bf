//! The published rules give the golden latencies, chunk for chunk and nanosecond for nanosecond.
//!
//! Owns: the golden files of this directory. Never: a tolerance.
//! Invariant: one changed digit is found.

use segue_models::choosy::golden::{self, GoldenError};

const GROUPS: &str = include_str!("golden/choosy/groups.csv");
const FILES: [(&str, &str); 8] = [
    ("chunk128k-drive400-plain.csv", include_str!("golden/choosy/chunk128k-drive400-plain.csv")),
    ("chunk128k-drive400-renegotiate.csv", include_str!("golden/choosy/chunk128k-drive400-renegotiate.csv")),
    ("chunk128k-drive1000-plain.csv", include_str!("golden/choosy/chunk128k-drive1000-plain.csv")),
    ("chunk128k-drive1000-renegotiate.csv", include_str!("golden/choosy/chunk128k-drive1000-renegotiate.csv")),
    ("chunk1024k-drive400-plain.csv", include_str!("golden/choosy/chunk1024k-drive400-plain.csv")),
    ("chunk1024k-drive400-renegotiate.csv", include_str!("golden/choosy/chunk1024k-drive400-renegotiate.csv")),
    ("chunk1024k-drive1000-plain.csv", include_str!("golden/choosy/chunk1024k-drive1000-plain.csv")),
    ("chunk1024k-drive1000-renegotiate.csv", include_str!("golden/choosy/chunk1024k-drive1000-renegotiate.csv")),
];

#[test]
fn golden_choosy() {
    let groups = golden::parse_groups(GROUPS).expect("the groups are well formed");
    for (name, text) in FILES {
        let compared = golden::check(name, &groups, text).expect("it can be compared");
        assert_eq!((compared.differing, compared.first_difference), (0, None), "{name}");
        assert_eq!(compared.chunks as usize, text.lines().count() - 1, "{name}");
    }
}

#[test]
fn golden_canary_one_digit_is_found() {
    let groups = golden::parse_groups(GROUPS).expect("the groups are well formed");
    let (name, text) = FILES[6];
    let changed = text.replacen("4026544", "4026545", 1);
    let compared = golden::check(name, &groups, &changed).expect("it can be compared");
    let first = compared.first_difference.expect("the change is found");
    assert_eq!((compared.differing, first.place), (1, 0));
    assert_eq!(first.expected.map(|w| w.latency_ns), Some(4_026_545));
    assert_eq!(first.found.map(|w| w.latency_ns), Some(4_026_544));
    let shorter = &text[..text.trim_end().rfind('\n').expect("many lines") + 1];
    let compared = golden::check(name, &groups, shorter).expect("it can be compared");
    assert_eq!((compared.differing, compared.first_difference.and_then(|d| d.expected)), (1, None));
}

#[test]
fn golden_malformed_text_names_its_line() {
    use GoldenError::{Group, Header, Initiators, Line, Name, Order};
    let groups = |text: &str| golden::parse_groups(text).expect_err("it is malformed");
    let head = "initiator,chunk_index,group\n";
    assert_eq!(groups("x"), Header { expected: head.trim_end() });
    for (rows, error) in [
        ("0,0,3\n0,1\n", Line { line: 3 }),
        ("0,0,3\n0,1,2,3\n", Line { line: 3 }),
        ("0,0,x\n", Line { line: 2 }),
        ("0,0,3\n0,2,3\n", Order { line: 3 }),
        ("0,0,3\n2,0,3\n", Order { line: 3 }),
        ("0,0,10\n", Group { line: 2 }),
        ("0,0,3\n", Initiators { found: 1 }),
    ] {
        assert_eq!(groups(&format!("{head}{rows}")), error);
    }
    let text = "initiator,created_ns,latency_ns\n1,0,5\n1,5,-3\n";
    assert_eq!(golden::parse_result(text), Err(Line { line: 3 }));
    for name in [
        "chunk128k-drive400.csv",
        "chunk0k-drive400-plain.csv",
        "chunk64k-drive400-fast.csv",
        "chunk128k-drive400-plain",
        "groups.csv",
    ] {
        assert_eq!(golden::configuration(name, &[]).err(), Some(Name));
    }
}
