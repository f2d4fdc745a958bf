//! Tests of the configuration: each rule has a file that breaks it and the message a person then reads.
//!
//! Owns: examples of good and bad files. Never: opens anything.
//! Invariant: every variant of `ConfigError` is reached.

use super::*;

const POOL: &str = "[[pool]]\nname = \"p\"\nmemory_bytes = \"64MiB\"\n";

fn message(text: &str) -> String {
    let error: Box<dyn std::error::Error> = Box::new(Config::parse(text).expect_err(text));
    let mut all = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        all = format!("{all}: {source}");
        cause = source.source();
    }
    all
}

#[test]
fn defaults_fill_the_rest() {
    let config = Config::parse(POOL).unwrap();
    assert_eq!(config.admin, PathBuf::from("/run/segue/admin.sock"));
    assert_eq!(config.pools[0].backing, Backing::Memory(64 << 20));
    assert_eq!(config.nbd, [Listen::Unix("/run/segue/nbd.sock".into())]);
    assert_eq!(config.stop_wait, Duration::from_secs(5));
}

#[test]
fn golden_effective_reads_back_the_same() {
    let config = Config::parse(&format!("[nbd]\nlisten=[\"[::1]:0\", \"127.0.0.1:10809\"]\n{POOL}")).unwrap();
    let effective = config.effective();
    assert!(effective.contains("cache = \"16MiB\"") && effective.contains("stop_wait = \"5s\""), "{effective}");
    assert_eq!(Config::parse(&effective).unwrap().effective(), effective);
}

#[test]
fn each_rule_names_cause_and_fix() {
    let listen = |l: &str| format!("[nbd]\nlisten=[{l}]\n{POOL}");
    let cases = [
        (String::new(), "no pool is configured"),
        ("admn = 1".to_owned(), "unknown field `admn`"),
        (format!("io_memory = \"64\u{20}parsecs\"\n{POOL}"), "a size is a whole number and a unit"),
        (format!("stop_wait = \"5\"\n{POOL}"), "a duration is a number and a unit"),
        (format!("io_memory = \"4KiB\"\n{POOL}"), "io_memory is 4KiB, allowed are 32MiB to 16GiB"),
        (format!("cores = 65\n{POOL}"), "cores is 65, allowed are 0 to 64"),
        (format!("helpers = 65\n{POOL}"), "helpers is 65, allowed are 0 to 64"),
        (format!("{POOL}cache = \"1KiB\""), "cache is 1KiB, allowed are 4MiB to 64GiB"),
        ("[[pool]]\nname = \"a/b\"\npath = \"x\"".to_owned(), "a volume name is 1 to 64"),
        ("[[pool]]\nname = \"a\"".to_owned(), "exactly one of path and memory_bytes"),
        (format!("{POOL}[[key]]\nvolume='v'"), "exactly one of file and command"),
        (format!("{POOL}[[key]]\nvolume='/'\nfile='f'"), "the name of a volume"),
        (format!("{POOL}path = \"x\""), "exactly one of path and memory_bytes"),
        (format!("{POOL}knee_depth = 8"), "needs both of latency_target"),
        (format!("{POOL}policy = \"best\""), "unknown variant `best`"),
        (format!("{POOL}{POOL}"), "two pools share \"p\""),
        ("[[pool]]\nname='a'\npath='x'\n[[pool]]\nname='b'\npath='x'".to_owned(), "two pools share \"x\""),
        (listen("\"nonsense\""), "is not an address to listen on"),
        (listen("\"unix:\""), "is not an address to listen on"),
        (listen("\"127.0.0.1:1\", \"127.0.0.1:1\""), "listed twice"),
        (listen("\"0.0.0.0:10809\""), "not loopback and would be served without TLS"),
        (listen("\"[::]:10809\""), "not loopback and would be served without TLS"),
        (format!("[tls]\ncert='c'\n{POOL}"), "missing field `key`"),
        (format!("[admin_tls]\nlisten='x'\ncert='c'\nkey='k'\nclient_ca='a'\n{POOL}"), "is not an ADDRESS:PORT"),
    ];
    for (text, expected) in cases {
        let message = message(&text);
        assert!(message.contains(expected), "{text}\n{message}");
    }
    let error = Config::load(Path::new("/nonexistent/segue.toml")).unwrap_err();
    assert!(matches!(error, ConfigError::Read { .. }));
}

#[test]
fn plaintext_is_served_only_when_asked_for() {
    let open = format!("[nbd]\nlisten=[\"0.0.0.0:10809\"]\nallow_plaintext=true\n{POOL}");
    assert!(Config::parse(&open).is_ok());
    let tls = format!("[nbd]\nlisten=[\"0.0.0.0:10809\"]\n[tls]\ncert='c'\nkey='k'\n{POOL}");
    assert!(Config::parse(&tls).is_ok());
}

#[test]
fn golden_reference_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(kept == reference(), "docs/config.md is stale; run `segue config reference > docs/config.md`");
}
