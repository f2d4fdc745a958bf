//! The volume engine in the real world: over sockets and driven locally, in every world.
//!
//! Owns: that what was promised is on the drive after a stop and after none. Never: repeats the engine's own tests.
//! Invariant: the bodies are the same on io_uring and on the fallback, on a file and in memory.

mod common;

use common::client::{self, Client};
use common::{WORLDS, World};
use segue_runtime::{
    CallError, DriveSpec, IoChoice, ListenAddr, Local, LocalOp, Options, PoolSpec, Runtime, Tls, drive, format_drive,
};
use segue_types::{Caveat, IoStatus, LeaseId, Token};
use segue_volume::engine::EngineOptions;
use segue_volume::op::{AdminError, AdminOp, AdminReply, AttachMode, ObservationRule, TokenSecret};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::time::Duration;

const POOL_BYTES: u64 = 256 << 20;
const VOLUME_BYTES: u64 = 64 << 20;

fn create(name: &str) -> AdminOp {
    AdminOp::Create {
        name: name.into(),
        size_bytes: VOLUME_BYTES,
        rule: ObservationRule::Flush,
        token_sha256: None,
        encryption: None,
    }
}

fn drive_in(world: World, dir: &Path) -> DriveSpec {
    if !world.file {
        return DriveSpec::Memory { bytes: POOL_BYTES };
    }
    let path = dir.join("pool");
    let spec = DriveSpec::File { path: path.clone() };
    if !path.exists() {
        drive::create_sparse(&path, POOL_BYTES).unwrap();
        format_drive(&spec, false).unwrap();
        assert!(format_drive(&spec, false).is_err());
    }
    spec
}

fn serve(world: World, dir: &Path) -> Runtime {
    let runtime = Runtime::start(Options { io: world.io, ..Options::default() }).unwrap();
    runtime.add_pool(PoolSpec::engine("p", drive_in(world, dir), EngineOptions::default())).unwrap();
    runtime.listen(&ListenAddr::Unix(dir.join("nbd.sock")), Tls::Off).unwrap();
    runtime
}

#[test]
fn conform_a_volume_keeps_its_bytes_over_a_restart() {
    for world in WORLDS {
        let dir = tempfile::tempdir().unwrap();
        let runtime = serve(world, dir.path());
        runtime.admin_wait("p", create("vol")).unwrap();
        assert_eq!(runtime.admin_wait("p", create("vol")), Err(CallError::Refused(AdminError::Exists)));
        assert_eq!(runtime.admin_wait("none", AdminOp::List), Err(CallError::NoPool));
        let mut client = Client::open(&dir.path().join("nbd.sock"), "vol", true);
        client.write(0, &vec![7; 1 << 20]);
        client.write(512, &[9; 512]);
        assert_eq!(client.call(client::FLUSH, 0, 0, 0, &[]).errno, 0);
        client.disconnect();
        runtime.stop(Duration::from_secs(20)).unwrap();
        assert_eq!(runtime.counters()[0].mem_used_bytes, 0, "{world:?}");
        assert_eq!(runtime.admin_wait("p", AdminOp::List), Err(CallError::Stopped));
        if !world.file {
            continue;
        }
        let runtime = serve(world, dir.path());
        let mut client = Client::open(&dir.path().join("nbd.sock"), "vol@ro", false);
        let mut wanted = vec![7; 1 << 20];
        wanted[512..1024].fill(9);
        assert!(client.read(0, 1 << 20) == wanted);
        assert_eq!(client.call(client::WRITE, 0, 0, 512, &[0; 512]).errno, 1);
        client.disconnect();
        runtime.stop(Duration::from_secs(20)).unwrap();
    }
}

#[test]
fn conform_leases_tokens_and_fences_reach_the_client() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nbd.sock");
    let runtime = serve(WORLDS[0], dir.path());
    runtime.admin_wait("p", create("vol")).unwrap();
    let mut first = Client::open(&socket, "vol", true);
    let mut second = Client::open(&socket, "vol", true);
    first.write(0, &[1; 4096]);
    second.write(4096, &[2; 4096]);
    let lease = LeaseId(77);
    let acquire = AdminOp::Acquire { name: "vol".into(), lease, holder: "me".into(), now_unix_ms: 1 };
    let busy = runtime.admin_wait("p", acquire.clone());
    let Err(CallError::Refused(AdminError::Busy(holder))) = busy else { panic!("{busy:?}") };
    assert!(holder.holder.starts_with("unix:pid="), "{}", holder.holder);
    runtime.admin_wait("p", AdminOp::BreakLease { name: "vol".into() }).unwrap();
    assert_eq!(first.call(client::WRITE, 0, 0, 4096, &[3; 4096]).errno, 108);
    runtime.admin_wait("p", acquire).unwrap();
    let mut third = Client::open(&socket, &format!("vol@{lease}"), true);
    third.write(8192, &[4; 4096]);
    runtime.admin_wait("p", AdminOp::Resize { name: "vol".into(), size_bytes: 2 * VOLUME_BYTES }).unwrap();
    third.write(VOLUME_BYTES, &[5; 4096]);
    let status = third.call(client::STATUS, 0, 0, 1 << 20, &[]);
    assert_eq!(status.errno, 22, "block status without its context is refused");
    runtime.stop(Duration::from_secs(20)).unwrap();
}

/// A revocation reaches sessions that are open: theirs is over when the answer to the operator is there.
#[test]
fn conform_a_revoked_token_ends_its_sessions_and_no_other() {
    for world in WORLDS {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("nbd.sock");
        let runtime = serve(world, dir.path());
        let plain = AdminOp::Create {
            name: "vol".into(),
            size_bytes: VOLUME_BYTES,
            rule: ObservationRule::Flush,
            token_sha256: Some(Sha256::digest(b"plain").into()),
            encryption: None,
        };
        runtime.admin_wait("p", plain).unwrap();
        let secret = TokenSecret([3; 32]);
        runtime.admin_wait("p", AdminOp::RequireTokens { name: "vol".into(), secret }).unwrap();
        let token = Token::mint(&secret.0, "vol", 1).narrow(Caveat::Range(0, 8192)).unwrap();
        let mut other = Client::open(&socket, "vol?token=plain", true);
        let mut mine = Client::open(&socket, &format!("vol?token={token}"), true);
        mine.write(4096, &[1; 4096]);
        assert_eq!(mine.call(client::WRITE, 0, 4096, 8192, &[1; 8192]).errno, 1, "beyond its range");
        runtime.admin_wait("p", AdminOp::Revoke { name: "vol".into(), plain: false }).unwrap();
        assert!(mine.closed(), "{world:?}");
        assert!(other.read(4096, 4096) == [1; 4096]);
        runtime.stop(Duration::from_secs(20)).unwrap();
    }
}

#[test]
fn conform_a_local_engine_answers_every_operation() {
    for io in [IoChoice::Auto, IoChoice::Poll] {
        for file in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let drive = drive_in(World { io, file }, dir.path());
            let mut local = Local::open(&drive, &EngineOptions::default(), io).unwrap();
            assert!(matches!(local.admin(create("vol")), Ok(AdminReply::Volume(_))));
            let attach = local.attach("vol").unwrap();
            let writes = (0..256u64).map(|n| LocalOp::Write { offset: n * 8192, len: 4096, fua: n % 64 == 0 });
            let mut seen = vec![false; 256];
            local.run(attach, 32, writes, |done| {
                assert_eq!(done.status, IoStatus::Ok);
                assert!(!std::mem::replace(&mut seen[done.index], true));
            });
            assert!(seen.iter().all(|seen| *seen));
            local.write(attach, 4096 - 512, &[6; 1024], true).unwrap();
            let mut bytes = [0; 2048];
            local.read(attach, 4096 - 512, &mut bytes).unwrap();
            assert!(bytes[..1024] == [6; 1024] && bytes[1024..] == [0; 1024]);
            assert_eq!(local.attach_as("vol", AttachMode::Lease(LeaseId(1))).err(), Some(AdminError::Fenced));
            let mixed =
                [LocalOp::Flush, LocalOp::Discard { offset: 0, len: 1 << 20 }, LocalOp::Read { offset: 0, len: 512 }];
            local.run(attach, 1, mixed, |done| assert_eq!(done.status, IoStatus::Ok));
            local.close().unwrap();
        }
    }
}
