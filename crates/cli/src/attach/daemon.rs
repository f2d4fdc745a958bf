//! The daemon behind one attachment: puts it together, serves it, takes it down.
//!
//! Owns: every resource of the attachment, in the order they were made. Never: leaves one behind, but to a process that
//! still uses it.
//! Invariant: the control socket appears only when everything stands, and the state directory goes last.

use super::control::{Answer, AttachStatus, Command};
use super::filesystem;
use super::fuse::{self, FileShape};
use super::ledger::Limits;
use super::link::{Connection, LinkError, Target};
use super::loopdev::LoopDevice;
use super::options::{AttachOptions, LeaseChoice};
use super::pump::{self, Parts, Pump, PumpHandle, chain};
use super::record::{self, Record, StateDir};
use crate::exit::{ExitCode, fail};
use anyhow::{Context, bail};
use nix::fcntl::Flock;
use segue_node::client::AdminClient;
use segue_types::{ExportAccess, ExportName};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long opening the first connection may take.
const CONNECT_LIMIT_MAX: Duration = Duration::from_secs(10);
/// How long giving a lease back may take.
const RELEASE_LIMIT: Duration = Duration::from_secs(3);
/// How long the kernel may take to let go of a device nobody uses.
const LET_GO_LIMIT: Duration = Duration::from_secs(5);

/// How an attachment is taken down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Everything is written back first; whatever is in the way stops it.
    Orderly,
    /// Nothing stops it; what the node takes within the timeout is written back.
    Forced,
    /// As a power cut: nothing is written back.
    Cut,
}

struct Lease {
    admin: AdminClient,
    volume: String,
    id: String,
}

/// What has been put together so far.
#[derive(Default)]
struct Assembly {
    lease: Option<Lease>,
    pump: Option<PumpHandle>,
    fuse: Option<PathBuf>,
    device: Option<LoopDevice>,
    mount: Option<PathBuf>,
}

struct Shared {
    assembly: Mutex<Assembly>,
    pump: PumpHandle,
    record: Record,
}

impl Shared {
    fn assembly(&self) -> MutexGuard<'_, Assembly> {
        self.assembly.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Runs the daemon: options on stdin, one [`Answer`] line on stdout once it stands or has failed, then no more words there.
/// Returns when the attachment is down.
///
/// # Errors
/// Only what keeps it from starting at all; a failed set-up is told in the answer.
pub fn run() -> anyhow::Result<()> {
    let options: AttachOptions = serde_json::from_reader(std::io::stdin().lock()).context("cannot read the options")?;
    go_to_background()?;
    let mut ready = take_stdout()?;
    let mut assembly = Assembly::default();
    let outcome = set_up(&options, &mut assembly);
    let (answer, running) = match outcome {
        Ok(running) => {
            (Answer { ok: true, message: running.shared_name().to_owned(), ..Answer::default() }, Some(running))
        }
        Err(error) => {
            let message = error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ");
            (Answer { message, exit_code: exit_code(&error), ..Answer::default() }, None)
        }
    };
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    // Whoever started us may be gone; the attachment stands all the same.
    let _ = ready.write_all(&line);
    drop(ready);
    if let Some(running) = running {
        running.serve();
    }
    Ok(())
}

/// What a set-up that failed for this reason makes the command end with.
fn exit_code(error: &anyhow::Error) -> u8 {
    let code = match error.downcast_ref::<LinkError>() {
        Some(LinkError::Away { .. }) => ExitCode::Unreachable,
        Some(LinkError::Refused { .. }) => ExitCode::Denied,
        None if error.downcast_ref::<filesystem::FsError>().is_some() => ExitCode::Conflict,
        None if error.downcast_ref::<segue_types::ParseLeaseIdError>().is_some() => ExitCode::Misuse,
        None => crate::exit::code_of(error),
    };
    code as u8
}

/// Leaves the caller's session, and its care: the first process ends at once, so that nobody has to wait for us.
fn go_to_background() -> anyhow::Result<()> {
    // SAFETY: nothing has started a thread yet, so the child may do anything.
    if let nix::unistd::ForkResult::Parent { .. } = unsafe { nix::unistd::fork() }.context("cannot fork")? {
        // SAFETY: ends this process without running what belongs to the child.
        unsafe { libc::_exit(0) };
    }
    nix::unistd::setsid().context("cannot begin a session")?;
    std::env::set_current_dir("/").context("cannot leave the working directory")?;
    // The kernel may need us to write back memory: it must not wait for us to get some, nor choose us when there is none.
    const PR_SET_IO_FLUSHER: i32 = 57;
    // SAFETY: plain numbers; a kernel that refuses loses only this protection.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
    let _ = std::fs::write("/proc/self/oom_score_adj", "-900");
    run_soon();
    Ok(())
}

/// Every block request waits for this process twice: let it run as soon as it can, for short slices.
fn run_soon() {
    /// `struct sched_attr` of the kernel, first version.
    #[repr(C)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    const SLICE_NS: u64 = 100_000;
    let size = std::mem::size_of::<SchedAttr>() as u32;
    let attr =
        SchedAttr { size, policy: 0, flags: 0, nice: -10, priority: 0, runtime: SLICE_NS, deadline: 0, period: 0 };
    // SAFETY: the structure has the layout the call reads; a kernel that refuses leaves everything as it was.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &attr, 0) };
}

/// Keeps stdout for the one answer, and puts /dev/null in the place of stdin and stdout.
fn take_stdout() -> anyhow::Result<File> {
    let ready = nix::unistd::dup(std::io::stdout()).context("cannot keep stdout")?;
    let null = File::options().read(true).write(true).open("/dev/null").context("cannot open /dev/null")?;
    nix::unistd::dup2_stdin(&null).context("cannot close stdin")?;
    nix::unistd::dup2_stdout(&null).context("cannot close stdout")?;
    Ok(ready.into())
}

struct Running {
    state: StateDir,
    /// Held as long as this process lives.
    _lock: Flock<File>,
    listener: UnixListener,
    pump_thread: JoinHandle<()>,
    shared: Arc<Shared>,
}

impl Running {
    fn shared_name(&self) -> &str {
        &self.shared.record.name
    }
}

fn set_up(options: &AttachOptions, assembly: &mut Assembly) -> anyhow::Result<Running> {
    let (name, state, lock) = claim_name(options)?;
    open_log(&state)?;
    let outcome = assemble(options, &name, &state, assembly);
    let (listener, pump_thread, record) = match outcome {
        Ok(parts) => parts,
        Err(error) => {
            tracing::error!(error = %error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": "), "set-up failed");
            let _ = assembly.take_down(Manner::Forced);
            record::remove(&state);
            return Err(error);
        }
    };
    let pump = assembly.pump.clone().expect("an assembled attachment has a pump");
    let shared = Arc::new(Shared { assembly: Mutex::new(std::mem::take(assembly)), pump, record });
    Ok(Running { state, _lock: lock, listener, pump_thread, shared })
}

/// The name that was asked for, or the first free one after the volume's.
fn claim_name(options: &AttachOptions) -> anyhow::Result<(String, StateDir, Flock<File>)> {
    let names: Vec<String> = match &options.name {
        Some(name) => vec![name.clone()],
        None => {
            let numbered = (2..100).map(|number| format!("{}.{number}", options.volume));
            std::iter::once(options.volume.clone()).chain(numbered).collect()
        }
    };
    for name in names {
        segue_types::check_volume_name(&name)?;
        if let Some((state, lock)) = record::claim(&options.state_dir, &name)? {
            return Ok((name, state, lock));
        }
    }
    let message =
        "an attachment of this name is up already; `segue attach --list` shows it, another --name goes beside it";
    Err(fail(ExitCode::Exists, message))
}

fn open_log(state: &StateDir) -> anyhow::Result<()> {
    let log = File::options().create(true).append(true).open(state.log()).context("cannot open the daemon's log")?;
    nix::unistd::dup2_stderr(&log).context("cannot redirect stderr")?;
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(Mutex::new(log)).finish();
    // Only the first of a process counts, and this process is a daemon's alone.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok(())
}

type Assembled = (UnixListener, JoinHandle<()>, Record);

fn assemble(
    options: &AttachOptions,
    name: &str,
    state: &StateDir,
    assembly: &mut Assembly,
) -> anyhow::Result<Assembled> {
    block_termination();
    let export = choose_export(options, assembly)?;
    let target = Target { node: options.node.clone(), export, limit: options.timeout.min(CONNECT_LIMIT_MAX) };
    let links = pump::connect_all(&target, options.connections)?;
    let info = links[0].info;
    if info.read_only && !options.read_only {
        bail!("the node serves {} for reading only; attach with --read-only", options.volume);
    }
    let (device, pump_thread) = make_device(options, state, assembly, target, links)?;
    if let Some(dir) = &options.mount {
        let kind = filesystem::find_or_make(&device, options.fs, options.read_only)?;
        filesystem::mount(&device, dir, kind, options.read_only)?;
        assembly.mount = Some(dir.clone());
    } else if let Some(kind) = options.fs {
        filesystem::find_or_make(&device, Some(kind), options.read_only)?;
    }
    let record = Record {
        name: name.to_owned(),
        volume: options.volume.clone(),
        node: options.node.clone(),
        pid: std::process::id(),
        device,
        mount: options.mount.clone(),
        read_only: options.read_only,
        size_bytes: info.size_bytes,
        owns_lease: assembly.lease.is_some(),
        since_unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
    };
    let listener = UnixListener::bind(state.socket()).context("cannot listen on the control socket")?;
    state.write(&record)?;
    tracing::info!(device = %record.device.display(), node = %record.node, "attached");
    Ok((listener, pump_thread, record))
}

/// Under which export name the volume is opened, acquiring a lease when that is wanted.
fn choose_export(options: &AttachOptions, assembly: &mut Assembly) -> anyhow::Result<String> {
    let access = match &options.lease {
        _ if options.read_only => ExportAccess::ReadOnly,
        LeaseChoice::Ephemeral => ExportAccess::Implicit,
        LeaseChoice::Given(lease) => ExportAccess::Lease(lease.parse()?),
        LeaseChoice::Acquire { holder } => {
            let admin = AdminClient::new(&options.admin);
            let grant = admin.acquire_lease(&options.volume, holder).context("cannot acquire a lease on the volume")?;
            let lease = grant.lease.parse()?;
            assembly.lease = Some(Lease { admin, volume: options.volume.clone(), id: grant.lease });
            ExportAccess::Lease(lease)
        }
    };
    Ok(ExportName { volume: options.volume.clone(), access, token: options.token.clone() }.to_string())
}

fn make_device(
    options: &AttachOptions,
    state: &StateDir,
    assembly: &mut Assembly,
    target: Target,
    links: Vec<Connection>,
) -> anyhow::Result<(PathBuf, JoinHandle<()>)> {
    let info = links[0].info;
    let dir = state.fuse();
    std::fs::create_dir_all(&dir).context("cannot make the FUSE directory")?;
    let channel = fuse::mount(&dir).context("cannot mount FUSE; this needs root and /dev/fuse")?;
    assembly.fuse = Some(dir.clone());
    let shape = FileShape {
        size_bytes: info.size_bytes,
        read_only: options.read_only,
        can_discard: info.trim,
        can_zero: info.zero,
    };
    let timeout_ns = options.timeout.as_nanos() as u64;
    let limits = Limits { timeout_ns, kept_bytes_max: options.unflushed_bytes_max, write_cache: info.flush };
    let reconnects_allowed = options.read_only || options.lease != LeaseChoice::Ephemeral;
    let connections = options.connections;
    let parts = Parts { fuse: channel, shape, limits, target, connections, reconnects_allowed, links };
    let (pump, handle) = Pump::new(parts).context("cannot make the event queue")?;
    assembly.pump = Some(handle);
    let thread =
        std::thread::Builder::new().name("pump".into()).spawn(|| pump.run()).context("cannot start a thread")?;
    let backing = dir.join(fuse::FILE_NAME);
    let device = LoopDevice::create(&backing, options.sector_bytes, options.read_only)
        .context("cannot make a loop device; this needs root and the loop driver")?;
    let path = device.path().to_owned();
    assembly.device = Some(device);
    Ok((path, thread))
}

impl Assembly {
    /// Takes down what stands, the youngest first.
    ///
    /// # Errors
    /// Only in an orderly manner: what is in the way, and then everything still stands.
    fn take_down(&mut self, manner: Manner) -> anyhow::Result<()> {
        match manner {
            Manner::Orderly => self.write_back()?,
            Manner::Forced => self.write_back_what_goes(),
            Manner::Cut => {}
        }
        if manner != Manner::Orderly
            && let Some(pump) = &self.pump
        {
            pump.ask(pump::Command::Cut);
        }
        if let Some(mount) = self.mount.take() {
            filesystem::shut_down(&mount);
            fuse::umount_lazily(&mount).unwrap_or_else(|error| tracing::error!(%error, "cannot unmount"));
        }
        if let Some(device) = self.device.take() {
            device.free();
        }
        if let Some(dir) = self.fuse.take() {
            fuse::umount_lazily(&dir).unwrap_or_else(|error| tracing::error!(%error, "cannot unmount FUSE"));
        }
        if let Some(lease) = self.lease.take().filter(|_| manner != Manner::Cut) {
            let admin = lease.admin.with_limit(RELEASE_LIMIT);
            if let Err(error) = admin.release_lease(&lease.volume, &lease.id) {
                tracing::warn!(error = %chain(&error), "the lease is still in force; `segue lease break` ends it");
            }
        }
        Ok(())
    }

    /// Everything that was written reaches the node and is durable there, or nothing has changed.
    fn write_back(&mut self) -> anyhow::Result<()> {
        if let Some(mount) = &self.mount {
            filesystem::umount(mount).with_context(|| {
                format!("cannot unmount {}; end what uses it, or detach with --force", mount.display())
            })?;
            self.mount = None;
        }
        if let Some(device) = &self.device {
            let mounts = filesystem::mounts_of(device.path());
            if !mounts.is_empty() {
                bail!(
                    "{} is mounted on {}; unmount it first, or detach with --force",
                    device.path().display(),
                    mounts.join(", ")
                );
            }
            if device.is_claimed() {
                bail!("{} is in use; end what uses it, or detach with --force", device.path().display());
            }
            device.sync().context("not everything could be written back; --force gives it up")?;
        }
        let errno = self.pump.as_ref().and_then(|pump| pump.ask(pump::Command::Flush));
        match errno {
            None | Some(0) => Ok(()),
            Some(_) => bail!("the node did not make everything durable; --force gives it up"),
        }
    }

    fn write_back_what_goes(&mut self) {
        let up = self.pump.as_ref().and_then(|pump| pump.ask(pump::Command::Status)).is_some_and(|s| s.link == "up");
        if !up {
            return;
        }
        if let Some(file) = self.mount.as_ref().and_then(|dir| File::open(dir).ok())
            && let Err(error) = nix::unistd::syncfs(&file)
        {
            tracing::warn!(%error, "not everything was written back");
        }
        if let Err(error) = self.device.as_ref().map_or(Ok(()), LoopDevice::sync) {
            tracing::warn!(%error, "not everything was written back");
        }
        self.pump.as_ref().and_then(|pump| pump.ask(pump::Command::Flush));
    }
}

/// Keeps SIGTERM for the thread that waits for it.
fn block_termination() {
    let mut signals = nix::sys::signal::SigSet::empty();
    signals.add(nix::sys::signal::Signal::SIGTERM);
    let _ = signals.thread_block();
}

impl Running {
    /// Serves until the attachment is down, then removes its state.
    fn serve(self) {
        let shared = self.shared.clone();
        let listener = self.listener;
        let accept = move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                std::thread::spawn(move || serve_one(&shared, stream));
            }
        };
        std::thread::spawn(accept);
        let shared = self.shared.clone();
        std::thread::spawn(move || {
            let mut signals = nix::sys::signal::SigSet::empty();
            signals.add(nix::sys::signal::Signal::SIGTERM);
            while signals.wait().is_ok() {
                if let Err(error) = shared.assembly().take_down(Manner::Orderly) {
                    tracing::error!(error = %format!("{error:#}"), "asked to end, but cannot detach");
                }
            }
        });
        if self.pump_thread.join().is_err() {
            tracing::error!("the event loop failed; this is a fault of segue: please report it with this log");
        }
        // When the kernel let go by itself (somebody unmounted it all by hand), the rest still stands.
        let _ = self.shared.assembly().take_down(Manner::Cut);
        tracing::info!("down");
        record::remove(&self.state);
    }
}

fn serve_one(shared: &Shared, stream: UnixStream) {
    let mut line = String::new();
    if BufReader::new(&stream).read_line(&mut line).is_err() {
        return;
    }
    let answer = match serde_json::from_str(&line) {
        Ok(command) => obey(shared, command),
        Err(error) => Answer { message: format!("no such command: {error}"), ..Answer::default() },
    };
    let Ok(mut bytes) = serde_json::to_vec(&answer) else { return };
    bytes.push(b'\n');
    let _ = (&stream).write_all(&bytes);
}

fn obey(shared: &Shared, command: Command) -> Answer {
    let done = |ok: bool| {
        let message = if ok { String::new() } else { "the attachment is going down".to_owned() };
        Answer { ok, message, ..Answer::default() }
    };
    match command {
        Command::Status => match shared.pump.ask(pump::Command::Status) {
            Some(pump) => {
                let status = AttachStatus { record: shared.record.clone(), pump };
                Answer { ok: true, status: Some(status), ..Answer::default() }
            }
            None => done(false),
        },
        Command::Partition => done(shared.pump.ask(pump::Command::Partition).is_some()),
        Command::Heal => done(shared.pump.ask(pump::Command::Heal).is_some()),
        Command::Cut => {
            // First of all, and whatever else is going on: nothing more leaves.
            shared.pump.ask(pump::Command::Cut);
            let _ = shared.assembly().take_down(Manner::Cut);
            done(true)
        }
        Command::Detach { force } => detach(shared, force),
    }
}

fn detach(shared: &Shared, force: bool) -> Answer {
    if force && let Err(std::sync::TryLockError::WouldBlock) = shared.assembly.try_lock() {
        // An orderly detach hangs: fail what it waits for.
        shared.pump.ask(pump::Command::Cut);
    }
    let manner = if force { Manner::Forced } else { Manner::Orderly };
    match shared.assembly().take_down(manner) {
        Ok(()) => {
            let_go(shared);
            Answer { ok: true, ..Answer::default() }
        }
        Err(error) => Answer { message: format!("{error:#}"), ..Answer::default() },
    }
}

/// Waits for the kernel to release the file, which ends the event loop.
fn let_go(shared: &Shared) {
    let began = std::time::Instant::now();
    while began.elapsed() < LET_GO_LIMIT && shared.pump.ask(pump::Command::Status).is_some() {
        std::thread::sleep(Duration::from_millis(5));
    }
}
