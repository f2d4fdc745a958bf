//! `segue attach` on a real node with real file systems: crashes, fences, cuts, partitions, and what is left afterwards.
//!
//! Owns: one node and one state directory per test. Never: sleeps to wait.
//! Invariant: after each test no mount, loop device or daemon of it is left; dropping the bench checks that.
//!
//! Needs root and /dev/fuse; where /dev/fuse is missing each test says so and passes.

mod common;

use common::{Node, Said, run, segue, until};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const CONFIG: &str = r#"
[nbd]
listen = ["unix:DIR/nbd.sock"]
[[pool]]
name = "pool"
path = "DIR/pool.img"
"#;

struct Bench {
    node: Node,
    state: PathBuf,
    mount: PathBuf,
}

impl Bench {
    /// A node with an empty 2 GiB pool. None: this machine cannot attach.
    fn new() -> Option<Bench> {
        if !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
            println!("SKIPPED: /dev/fuse or /dev/loop-control is missing here");
            return None;
        }
        let mut node = Node::prepare(CONFIG);
        let pool = node.path("pool.img");
        let said = run(segue().args(["pool", "format", "--size", "2GiB"]).arg(&pool));
        assert_eq!(said.code, 0, "{}", said.err);
        node.up();
        let (state, mount) = (node.path("state"), node.path("mnt"));
        fs::create_dir(&mount).unwrap();
        Some(Bench { node, state, mount })
    }

    fn create(&self, volume: &str) {
        self.node.json(&["volume", "create", volume, "--size", "512MiB"]);
    }

    fn command(&self, verb: &str, args: &[&str]) -> Said {
        let socket = self.node.path("nbd.sock");
        let mut command = segue();
        command.env("SEGUE_NODE", format!("unix:{}", socket.display()));
        command.arg("--admin").arg(self.node.path("admin.sock")).arg("--json").arg(verb).args(args);
        run(command.arg("--state-dir").arg(&self.state))
    }

    /// Attaches and gives the device.
    fn attach(&self, args: &[&str]) -> PathBuf {
        let said = self.command("attach", args);
        assert_eq!(said.code, 0, "attach {args:?}: {}", said.err);
        PathBuf::from(said.json()["device"].as_str().unwrap())
    }

    /// Attaches with ext4 on the mount directory, made when missing.
    fn attach_ext4(&self, volume: &str, more: &[&str]) -> PathBuf {
        let mount = self.mount.to_str().unwrap();
        self.attach(&[&[volume, "--mount", mount, "--fs", "ext4"], more].concat())
    }

    fn detach(&self, what: &str) {
        let said = self.command("detach", &[what]);
        assert_eq!(said.code, 0, "detach {what}: {}", said.err);
    }

    fn control(&self, what: &str, verb: &str) {
        let said = self.command("attach-control", &[what, verb]);
        assert_eq!(said.code, 0, "{verb} {what}: {}", said.err);
    }

    /// `link` of the attachment, from the list.
    fn link(&self, name: &str) -> String {
        let list = self.command("attach", &["--list"]).json();
        let items = list["items"].as_array().unwrap();
        let one = items.iter().find(|item| item["name"] == name);
        one.map_or(String::new(), |item| item["link"].as_str().unwrap().to_owned())
    }

    fn status(&self, name: &str) -> Value {
        self.command("attach-control", &[name, "status"]).json()
    }

    fn write_files(&self, from: u32, to: u32) {
        for number in from..to {
            let content = pattern(number);
            fs::write(self.mount.join(format!("f{number}")), content).unwrap();
            if number % 4 == 0 {
                let file = fs::File::open(self.mount.join(format!("f{number}"))).unwrap();
                file.sync_all().unwrap();
            }
        }
    }

    fn check_files(&self, count: u32) {
        for number in 0..count {
            let content = fs::read(self.mount.join(format!("f{number}"))).unwrap();
            assert!(content == pattern(number), "f{number} differs");
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for entry in fs::read_dir(&self.state).into_iter().flatten().flatten() {
                let name = entry.file_name().into_string().unwrap();
                println!("log of {name}:\n{}", fs::read_to_string(entry.path().join("log")).unwrap_or_default());
                self.command("detach", &["--force", &name]);
            }
            return;
        }
        let dir = self.node.dir.path().to_str().unwrap().to_owned();
        until("everything to be gone", || {
            let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
            let names = fs::read_dir(&self.state).map_or(0, Iterator::count);
            (!mounts.contains(&dir) && names == 0 && loops_under(&dir) == 0).then_some(())
        });
    }
}

fn loops_under(dir: &str) -> usize {
    let entries = fs::read_dir("/sys/block").unwrap().flatten();
    let file = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
    entries.map(file).filter(|file| file.starts_with(dir)).count()
}

/// Content of a file, unlike any other's.
fn pattern(number: u32) -> Vec<u8> {
    let len = 20_000 + number as usize * 3001;
    (0..len).map(|at| (at as u32).wrapping_mul(2_654_435_761).wrapping_add(number * 97) as u8).collect()
}

fn crash_and_fsck(fs_name: &str, fsck: &[&str]) {
    let Some(mut bench) = Bench::new() else { return };
    bench.create("data");
    let mount = bench.mount.to_str().unwrap().to_owned();
    bench.attach(&["data", "--mount", &mount, "--fs", fs_name]);
    let mut written = 0;
    for _ in 0..3 {
        bench.write_files(written, written + 20);
        bench.node.kill();
        // Written while the node is down: it waits, in the page cache and in the daemon.
        for number in written + 20..written + 23 {
            fs::write(bench.mount.join(format!("f{number}")), pattern(number)).unwrap();
        }
        bench.node.up();
        written += 23;
    }
    let file = fs::File::open(&bench.mount).unwrap();
    nix::unistd::syncfs(&file).unwrap();
    drop(file);
    bench.check_files(written);
    assert!(bench.status("data")["reconnects"].as_u64().unwrap() >= 3);
    // The last crash: everything was synced, so nothing may be missing after it.
    bench.node.kill();
    bench.node.up();
    bench.detach(&mount);
    let device = bench.attach(&["data"]);
    let said = run(Command::new(fsck[0]).args(&fsck[1..]).arg(&device));
    assert_eq!(said.code, 0, "{fsck:?}: {} {}", said.out, said.err);
    bench.detach(device.to_str().unwrap());
    bench.attach(&["data", "--mount", &mount]);
    bench.check_files(written);
    bench.detach("data");
}

#[test]
fn crash_ext4_is_clean_and_whole_after_killed_nodes() {
    crash_and_fsck("ext4", &["e2fsck", "-fn"]);
}

#[test]
fn crash_xfs_is_clean_and_whole_after_killed_nodes() {
    crash_and_fsck("xfs", &["xfs_repair", "-n"]);
}

#[test]
fn conform_fio_verifies_what_it_wrote_through_a_killed_node() {
    let Some(mut bench) = Bench::new() else { return };
    bench.create("data");
    let device = bench.attach(&["data", "--unflushed", "4MiB"]);
    let mut fio = Command::new("fio");
    fio.args(["--name=v", "--rw=randwrite", "--bsrange=4k-128k", "--bs_unaligned=0", "--size=96M", "--direct=1"]);
    fio.args([
        "--ioengine=libaio",
        "--iodepth=16",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--do_verify=1",
        "--fsync=64",
        "--verify_state_save=0",
    ]);
    let mut fio =
        fio.arg(format!("--filename={}", device.display())).stdout(std::process::Stdio::null()).spawn().unwrap();
    let begun = bench.status("data");
    until("fio to write", || {
        let now = bench.status("data");
        (now["unflushed_bytes"] != begun["unflushed_bytes"] || fio.try_wait().unwrap().is_some()).then_some(())
    });
    bench.node.kill();
    bench.node.up();
    assert!(fio.wait().unwrap().success());
    bench.detach("data");
}

#[test]
fn fault_a_fenced_primary_fails_at_once_and_the_child_goes_on() {
    let Some(bench) = Bench::new() else { return };
    bench.create("data");
    bench.attach_ext4("data", &[]);
    bench.write_files(0, 1);
    let granted = bench.node.json(&["super", "data"]);
    let lease = granted["children"][0]["lease"].as_str().unwrap();
    let child_mount = bench.node.path("child");
    bench.attach(&["data", "--lease", lease, "--mount", child_mount.to_str().unwrap()]);
    let id = granted["super_id"].to_string();
    assert_eq!(bench.node.json(&["collapse", "data", "--super", &id])["outcome"], "promoted");
    fs::write(bench.mount.join("late"), b"late").unwrap();
    let late = fs::File::open(bench.mount.join("late")).unwrap();
    assert!(late.sync_all().is_err(), "a fenced primary must not acknowledge");
    drop(late);
    assert_eq!(bench.link("data"), "fenced");
    assert_eq!(fs::read(child_mount.join("f0")).unwrap(), pattern(0));
    fs::write(child_mount.join("more"), b"more").unwrap();
    fs::File::open(child_mount.join("more")).unwrap().sync_all().unwrap();
    assert!(!child_mount.join("late").exists());
    assert_eq!(bench.command("detach", &["--force", "data"]).code, 0);
    bench.detach(child_mount.to_str().unwrap());
    let said = bench.command("attach", &["data", "--lease", "00000000000000000000000000000001"]);
    assert_eq!(said.code, 6, "an unknown lease is refused: {}", said.err);
}

#[test]
fn fault_a_cut_loses_the_page_cache_and_frees_the_device() {
    let Some(bench) = Bench::new() else { return };
    bench.create("data");
    bench.attach_ext4("data", &[]);
    bench.write_files(0, 1);
    let open = fs::File::create(bench.mount.join("dirty")).unwrap();
    std::io::Write::write_all(&mut &open, &pattern(9)).unwrap();
    bench.control("data", "cut");
    let before = bench.node.json(&["volume", "show", "data"]);
    assert!(std::io::Write::write_all(&mut &open, b"x").is_err() || open.sync_all().is_err());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(bench.mount.to_str().unwrap()), "the mount is out of the name space");
    drop(open);
    until("the device to be free", || (loops_under(bench.state.to_str().unwrap()) == 0).then_some(()));
    until("the daemon to end", || bench.link("data").is_empty().then_some(()));
    let after = bench.node.json(&["volume", "show", "data"]);
    assert_eq!(before["own_bytes"], after["own_bytes"], "nothing is written after a cut");
    assert!(after["lease"].is_object(), "a lost machine gives no lease back");
    bench.node.json(&["lease", "break", "data"]);
    bench.attach_ext4("data", &[]);
    bench.check_files(1);
    assert!(!fs::read(bench.mount.join("dirty")).is_ok_and(|content| content == pattern(9)), "it was never synced");
    bench.detach("data");
}

#[test]
fn fault_a_partition_holds_requests_then_fails_them_then_heals() {
    let Some(bench) = Bench::new() else { return };
    bench.create("data");
    let device = bench.attach(&["data", "--timeout", "2s"]);
    let write = |byte: u8| {
        use std::os::unix::fs::{FileExt, OpenOptionsExt};
        let file = fs::OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(&device).unwrap();
        file.write_all_at(&vec![byte; 8192], 0).and_then(|()| file.sync_all())
    };
    bench.control("data", "partition");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(1));
        until("a request to wait", || (bench.status("data")["in_flight"].as_u64() > Some(0)).then_some(()));
        assert_eq!(bench.link("data"), "partitioned");
        bench.control("data", "heal");
        writer.join().unwrap().unwrap();
    });
    bench.control("data", "partition");
    assert!(write(2).is_err(), "a wait longer than the timeout ends with an error");
    bench.control("data", "heal");
    until("the link to be up", || (bench.link("data") == "up").then_some(()));
    write(3).unwrap();
    let said = bench.command("detach", &["data"]);
    assert_eq!(said.code, 5, "what was lost is said once more before the device goes: {}", said.err);
    bench.detach("data");
}

#[test]
fn fault_a_hung_node_does_not_hold_a_forced_detach() {
    let Some(bench) = Bench::new() else { return };
    bench.create("data");
    bench.attach_ext4("data", &["--timeout", "2s"]);
    fs::write(bench.mount.join("waits"), b"waits").unwrap();
    let pid = bench.node.pid() as i32;
    // SAFETY: plain numbers; the process is ours.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    let said = bench.command("detach", &["--force", "data"]);
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    assert_eq!(said.code, 0, "{}", said.err);
}

#[test]
fn fault_remains_of_a_killed_daemon_are_taken_down() {
    let Some(bench) = Bench::new() else { return };
    bench.create("data");
    bench.attach_ext4("data", &[]);
    let pid = bench.status("data")["pid"].as_i64().unwrap() as i32;
    // SAFETY: plain numbers; the process is ours.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    until("the daemon to be dead", || (bench.link("data") == "dead").then_some(()));
    bench.detach("data");
}

#[test]
fn fault_a_failed_attach_leaves_nothing_and_gives_the_lease_back() {
    let Some(bench) = Bench::new() else { return };
    bench.create("data");
    let device = bench.attach(&["data"]);
    fs::write(&device, vec![7u8; 8192]).unwrap();
    bench.detach("data");
    let mount = bench.mount.to_str().unwrap();
    let said = bench.command("attach", &["data", "--mount", mount, "--fs", "ext4"]);
    assert_eq!(said.code, 7, "foreign data is never overwritten: {}", said.err);
    assert!(bench.node.json(&["volume", "show", "data"])["lease"].is_null());
    assert_eq!(bench.command("attach", &["nosuch"]).code, 3);
    let socket = format!("unix:{}", bench.node.path("nobody.sock").display());
    assert_eq!(bench.command("attach", &["data", "--node", &socket]).code, 11);
}

#[test]
fn conform_mkfs_runs_once_and_orderly_detach_refuses_a_busy_mount() {
    let Some(bench) = Bench::new() else { return };
    bench.create("data");
    bench.attach_ext4("data", &[]);
    bench.write_files(0, 3);
    let open = fs::File::open(bench.mount.join("f0")).unwrap();
    assert_eq!(bench.command("detach", &["data"]).code, 5, "a file is open");
    drop(open);
    bench.detach("data");
    let mount = bench.mount.to_str().unwrap();
    assert_eq!(bench.command("attach", &["data", "--mount", mount, "--fs", "xfs"]).code, 7, "it has ext4 already");
    bench.attach_ext4("data", &[]);
    bench.check_files(3);
    bench.detach(mount);
    bench.attach(&["data", "--read-only", "--mount", mount]);
    assert!(fs::write(bench.mount.join("no"), b"no").is_err());
    bench.check_files(3);
    bench.detach(mount);
}
