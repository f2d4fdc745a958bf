//! What a node refuses: bad configurations, open addresses, wrong tokens, wrong certificates.
//!
//! Owns: the ways in that must stay shut. Never: trusts that a refusal is one without trying the key that fits.
//! Invariant: every refusal names its cause and what to write instead.

mod common;

use common::{Node, nbdinfo, run, segue};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use std::path::Path;
use std::process::Command;

const POOL: &str = "[[pool]]\nname=\"m\"\nmemory_bytes=\"64MiB\"\n";

#[test]
fn conform_bad_configurations_are_misuse_with_a_message() {
    let cases = [
        ("", "no pool is configured"),
        ("colour = 1", "unknown field `colour`"),
        (
            "io_memory = \"1 parsec\"\n[[pool]]\nname=\"m\"\nmemory_bytes=\"64MiB\"",
            "a size is a whole number and a unit",
        ),
        ("[nbd]\nlisten=[\"0.0.0.0:0\"]\n[[pool]]\nname=\"m\"\nmemory_bytes=\"64MiB\"", "nbd.allow_plaintext"),
        ("[tls]\ncert=\"DIR/c\"\nkey=\"DIR/k\"\n[[pool]]\nname=\"m\"\nmemory_bytes=\"64MiB\"", "PEM file"),
    ];
    for (text, expected) in cases {
        let node = Node::prepare(text);
        let said = run(segue().args(["node", "start", "--foreground", "--config"]).arg(node.path("segue.toml")));
        assert_eq!(said.code, 2, "{text}: {}", said.err);
        assert!(said.err.contains(expected), "{text}: {}", said.err);
    }
    let said = run(segue().args(["config", "check", "/nonexistent.toml"]));
    assert_eq!(said.code, 2);
}

#[test]
fn conform_the_command_line_has_documented_exits() {
    assert_eq!(run(segue().arg("--help")).code, 0);
    assert_eq!(run(segue().arg("nonsense")).code, 2);
    let said = run(segue().args(["volume", "list", "--admin", "/nonexistent/admin.sock"]));
    assert_eq!(said.code, 11);
    assert!(said.err.contains("segue node start"), "{}", said.err);
    let script = run(segue().args(["completions", "bash"]));
    assert!(script.out.contains("_segue"));
    let reference = run(segue().args(["config", "reference", "--json"]));
    assert!(reference.json()["markdown"].as_str().unwrap().contains("allow_plaintext"));
}

#[test]
fn conform_a_token_opens_its_volume_and_no_other_does() {
    let node = Node::start(&format!("[nbd]\nlisten=[\"unix:DIR/nbd.sock\"]\n{POOL}"));
    std::fs::write(node.path("token"), "s3cret-of-a\n").unwrap();
    let file = node.path("token");
    let made = node.json(&["volume", "create", "a", "--size", "16MiB", "--token-file", file.to_str().unwrap()]);
    assert_eq!(made["token_required"], true);
    let socket = node.path("nbd.sock");
    for wrong in ["a", "a?token=", "a?token=other", "a@ro", "a@ro?token=s3cret-of-A"] {
        assert_ne!(nbdinfo(&socket, wrong).code, 0, "{wrong}");
    }
    for right in ["a?token=s3cret-of-a", "a@ro?token=s3cret-of-a"] {
        let said = nbdinfo(&socket, right);
        assert_eq!(said.code, 0, "{right}: {}\n{}", said.err, node.log());
    }
    assert!(!node.log().contains("s3cret"), "a token reached the log");
}

/// An authority, and files that it signed: `ca-cert.pem` and `NAME-cert.pem`, `NAME-key.pem` as libnbd expects them.
fn certificates(dir: &Path, name: &str) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    // Names that differ: a certificate that bears its issuer's name looks self-signed to some clients.
    params.distinguished_name.push(DnType::CommonName, "segue test authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join("ca-cert.pem"), authority.pem()).unwrap();
    for who in [name, "server"] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, who);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let cert = params.signed_by(&key, &authority).unwrap();
        std::fs::write(dir.join(format!("{who}-cert.pem")), cert.pem()).unwrap();
        std::fs::write(dir.join(format!("{who}-key.pem")), key.serialize_pem()).unwrap();
    }
}

#[test]
fn conform_tls_asks_for_the_right_certificate() {
    let mut node = Node::prepare(&format!(
        "[nbd]\nlisten=[\"127.0.0.1:0\"]\n[tls]\ncert=\"DIR/pki/server-cert.pem\"\nkey=\"DIR/pki/server-key.pem\"\n\
         client_ca=\"DIR/pki/ca-cert.pem\"\n{POOL}"
    ));
    certificates(&node.path("pki"), "client");
    certificates(&node.path("stranger"), "client");
    std::fs::copy(node.path("pki/ca-cert.pem"), node.path("stranger/ca-cert.pem")).unwrap();
    node.up();
    node.json(&["volume", "create", "a", "--size", "16MiB"]);
    let at = node.json(&["node", "status"])["nbd"][0].as_str().unwrap().to_owned();
    let tls = |dir: &str| {
        let uri =
            format!("nbds://{}/a?tls-certificates={}", at.replace("127.0.0.1", "localhost"), node.path(dir).display());
        run(Command::new("timeout").args(["20", "nbdinfo", "--json"]).arg(uri))
    };
    let right = tls("pki");
    assert_eq!(right.code, 0, "{}\n{}", right.err, node.log());
    assert_ne!(tls("stranger").code, 0);
    let plain = run(Command::new("timeout").args(["20", "nbdinfo", "--json"]).arg(format!("nbd://{at}/a")));
    assert_ne!(plain.code, 0);
}

#[test]
fn conform_the_admin_api_over_tcp_wants_a_client_certificate() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut node = Node::prepare(&format!(
        "[nbd]\nlisten=[]\n[admin_tls]\nlisten=\"127.0.0.1:{port}\"\ncert=\"DIR/pki/server-cert.pem\"\n\
         key=\"DIR/pki/server-key.pem\"\nclient_ca=\"DIR/pki/ca-cert.pem\"\n{POOL}",
    ));
    certificates(&node.path("pki"), "client");
    node.up();
    let curl = |with_certificate: bool| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--max-time", "20", "--cacert"]).arg(node.path("pki/ca-cert.pem"));
        if with_certificate {
            command.arg("--cert").arg(node.path("pki/client-cert.pem"));
            command.arg("--key").arg(node.path("pki/client-key.pem"));
        }
        run(command.arg(format!("https://localhost:{port}/v1/node")))
    };
    let right = curl(true);
    assert_eq!(right.code, 0, "{}", node.log());
    assert_eq!(right.json()["pid"], node.pid());
    assert_ne!(curl(false).code, 0);
}

#[test]
fn conform_the_api_answers_nonsense_with_an_api_error() {
    let node = Node::start(&format!("[nbd]\nlisten=[]\n{POOL}"));
    let curl = |args: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--max-time", "20", "--unix-socket"]).arg(node.path("admin.sock"));
        run(command.args(["--write-out", "\n%{http_code}"]).args(args)).out
    };
    for (args, status, kind) in [
        (&["http://n/nothing"][..], "404", "not_found"),
        (&["-d", "{", "http://n/v1/volumes"][..], "400", "invalid"),
        (&["-d", "{\"name\":\"a\"}", "http://n/v1/volumes"][..], "400", "invalid"),
        (&["http://n/v1/volumes/none"][..], "404", "not_found"),
        (&["-X", "DELETE", "http://n/v1/volumes/a/lease/zz"][..], "400", "invalid"),
    ] {
        let said = curl(args);
        let (body, code) = said.rsplit_once('\n').unwrap();
        let error: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|e| panic!("{args:?} {body} {e}"));
        assert_eq!((code, &error["kind"]), (status, &kind.into()), "{args:?}");
    }
    let described = curl(&["http://n/openapi.json"]);
    let described: serde_json::Value = serde_json::from_str(described.rsplit_once('\n').unwrap().0).unwrap();
    for path in ["/v1/super", "/v1/volumes/{volume}/lease", "/v1/pools/{pool}/scrub", "/metrics"] {
        assert!(described["paths"][path].is_object(), "{path}");
    }
}
