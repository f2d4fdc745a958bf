//! TLS on connections: required, with client certificates, in both kinds of world.
//!
//! Owns: certificates made for the test. Never: weakens a check to make a test pass.
//! Invariant: without the right certificate no byte of a volume is seen.

mod common;

use common::client::{self, Client, option, request};
use common::{Served, VOLUME, WORLDS};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use segue_runtime::{ListenAddr, Options, Tls};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

struct Certificates {
    server: Arc<ServerConfig>,
    known: Arc<ClientConfig>,
    stranger: Arc<ClientConfig>,
}

fn certificates() -> Certificates {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let make = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let key =
        |cert: &rcgen::CertifiedKey<rcgen::KeyPair>| PrivateKeyDer::try_from(cert.signing_key.serialize_der()).unwrap();
    let (server, client) = (make("localhost"), make("client"));
    let mut trusted = RootCertStore::empty();
    trusted.add(client.cert.der().clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(trusted), provider.clone()).build().unwrap();
    let server_config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![server.cert.der().clone()], key(&server))
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(server.cert.der().clone()).unwrap();
    let client_config = || {
        let builder = ClientConfig::builder_with_provider(provider.clone());
        builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots.clone())
    };
    let known = client_config().with_client_auth_cert(vec![client.cert.der().clone()], key(&client)).unwrap();
    let stranger = client_config().with_no_client_auth();
    Certificates { server: Arc::new(server_config), known: Arc::new(known), stranger: Arc::new(stranger) }
}

fn start(client: Client, config: Arc<ClientConfig>) -> StreamOwned<ClientConnection, UnixStream> {
    let mut client = client;
    client.put(&option(5, &[]));
    assert_eq!(client.option_reply().0, 1);
    let name = ServerName::try_from("localhost").unwrap();
    StreamOwned::new(ClientConnection::new(config, name).unwrap(), client.socket)
}

fn take(stream: &mut impl Read, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn enter(stream: &mut (impl Read + Write)) {
    let mut data = (VOLUME.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(VOLUME.as_bytes());
    data.extend_from_slice(&[0, 0]);
    stream.write_all(&option(7, &data)).unwrap();
    loop {
        let head = take(stream, 20);
        let len = u32::from_be_bytes(head[16..20].try_into().unwrap());
        take(stream, len as usize);
        match u32::from_be_bytes(head[12..16].try_into().unwrap()) {
            1 => return,
            3 => {}
            kind => panic!("refused: {kind:#x}"),
        }
    }
}

#[test]
fn conform_tls_carries_small_and_large_requests() {
    let certificates = certificates();
    for world in WORLDS {
        let served = Served::new(world, Options::default());
        let path = served.dir.path().join("tls.sock");
        served.runtime.listen(&ListenAddr::Unix(path.clone()), Tls::Required(certificates.server.clone())).unwrap();
        let mut stream = start(Client::raw(&path), certificates.known.clone());
        enter(&mut stream);
        for len in [512usize, 4096, 100_352, 3 << 20] {
            let bytes: Vec<u8> = (0..len).map(|n| (n * 31 + len) as u8).collect();
            stream.write_all(&request(client::WRITE, 0, 1, 512, len as u32)).unwrap();
            stream.write_all(&bytes).unwrap();
            assert_eq!(take(&mut stream, 16)[4..8], [0; 4], "{world:?} {len}");
            stream.write_all(&request(client::READ, 0, 2, 512, len as u32)).unwrap();
            assert_eq!(take(&mut stream, 16)[4..8], [0; 4]);
            assert!(take(&mut stream, len) == bytes, "{world:?} {len}");
        }
        drop(stream);
        served.settle();
        served.stop();
    }
}

#[test]
fn fault_tls_refuses_the_plain_and_the_unknown() {
    let certificates = certificates();
    for world in WORLDS {
        let served = Served::new(world, Options::default());
        let path = served.dir.path().join("tls.sock");
        served.runtime.listen(&ListenAddr::Unix(path.clone()), Tls::Required(certificates.server.clone())).unwrap();
        let mut plain = Client::raw(&path);
        plain.put(&option(3, &[]));
        assert_eq!(plain.option_reply().0, 0x8000_0005);
        let mut stranger = start(Client::raw(&path), certificates.stranger.clone());
        let tried = stranger.write_all(&option(3, &[])).and_then(|()| stranger.read_exact(&mut [0; 20]));
        assert!(tried.is_err(), "{world:?}");
        let mut liar = Client::raw(&path);
        liar.put(&option(5, &[]));
        assert_eq!(liar.option_reply().0, 1);
        liar.put(&[0x55; 400]);
        assert!(liar.closed());
        drop((plain, stranger));
        served.settle();
        served.stop();
    }
}

/// Panics while it chooses a certificate, when told to: a bug inside a handshake.
#[derive(Debug)]
struct Fickle {
    key: Arc<rustls::sign::CertifiedKey>,
    panics: AtomicBool,
}

impl ResolvesServerCert for Fickle {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<rustls::sign::CertifiedKey>> {
        assert!(!self.panics.load(Ordering::SeqCst), "planned");
        Some(self.key.clone())
    }
}

fn fickle() -> (Arc<Fickle>, Arc<ServerConfig>, Arc<ClientConfig>) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let cert = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let der = PrivateKeyDer::try_from(cert.signing_key.serialize_der()).unwrap();
    let key = provider.key_provider.load_private_key(der).unwrap();
    let certified = rustls::sign::CertifiedKey::new(vec![cert.cert.der().clone()], key);
    let fickle = Arc::new(Fickle { key: Arc::new(certified), panics: AtomicBool::new(false) });
    let server = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let server = server.with_no_client_auth().with_cert_resolver(fickle.clone());
    let mut roots = RootCertStore::empty();
    roots.add(cert.cert.der().clone()).unwrap();
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    (fickle, Arc::new(server), Arc::new(client.with_root_certificates(roots).with_no_client_auth()))
}

fn elsewhere(served: &Served) -> u64 {
    served.runtime.counters().iter().map(|core| core.handshakes_elsewhere).sum()
}

#[test]
fn fault_a_panic_inside_a_handshake_costs_its_connection_alone() {
    for world in WORLDS {
        let (fickle, server, known) = fickle();
        let served = Served::new(world, Options { helpers: 2, ..Options::default() });
        let path = served.dir.path().join("tls.sock");
        served.runtime.listen(&ListenAddr::Unix(path.clone()), Tls::Required(server)).unwrap();
        let mut old = start(Client::raw(&path), known.clone());
        enter(&mut old);
        assert!(elsewhere(&served) >= 2, "both flights of the client are handled by a helper");
        fickle.panics.store(true, Ordering::SeqCst);
        for _ in 0..3 {
            let mut unlucky = start(Client::raw(&path), known.clone());
            assert!(unlucky.write_all(&option(3, &[])).and_then(|()| unlucky.read_exact(&mut [0; 20])).is_err());
        }
        fickle.panics.store(false, Ordering::SeqCst);
        let mut new = start(Client::raw(&path), known.clone());
        enter(&mut new);
        for stream in [&mut old, &mut new] {
            stream.write_all(&request(client::READ, 0, 2, 0, 4096)).unwrap();
            assert_eq!(take(stream, 16)[4..8], [0; 4]);
            take(stream, 4096);
        }
        drop((old, new));
        served.settle();
        served.stop();
    }
}

#[test]
fn conform_without_helpers_the_core_does_handshakes() {
    for world in WORLDS {
        let (_, server, known) = fickle();
        let served = Served::new(world, Options { helpers: 0, ..Options::default() });
        let path = served.dir.path().join("tls.sock");
        served.runtime.listen(&ListenAddr::Unix(path.clone()), Tls::Required(server)).unwrap();
        let mut stream = start(Client::raw(&path), known);
        enter(&mut stream);
        assert_eq!(elsewhere(&served), 0);
        drop(stream);
        served.settle();
        served.stop();
    }
}

#[test]
fn fault_clients_that_leave_in_the_middle_of_a_handshake_leave_nothing() {
    for world in WORLDS {
        let (_, server, known) = fickle();
        let served = Served::new(world, Options { helpers: 1, ..Options::default() });
        let path = served.dir.path().join("tls.sock");
        served.runtime.listen(&ListenAddr::Unix(path.clone()), Tls::Required(server)).unwrap();
        for _ in 0..50 {
            let mut gone = start(Client::raw(&path), known.clone());
            // The first flight is sent, and nobody waits for the answer.
            gone.conn.write_tls(&mut gone.sock).unwrap();
        }
        let mut stream = start(Client::raw(&path), known);
        enter(&mut stream);
        drop(stream);
        served.settle();
        served.stop();
    }
}
