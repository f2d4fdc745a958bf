//! Loop devices: one made on a file with direct I/O, found again, and freed.
//!
//! Owns: the loop ioctls. Never: frees a device whose backing file is not ours.
//! Invariant: a device is configured to free itself, so that it never outlives its last user.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const LOOP_CLR_FD: libc::Ioctl = 0x4c01;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const FLAG_READ_ONLY: u32 = 1;
const FLAG_AUTOCLEAR: u32 = 4;
const FLAG_DIRECT_IO: u32 = 16;

/// `struct loop_info64` of the kernel.
#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of the kernel.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

/// A loop device that we hold open, which keeps it in being.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    file: File,
}

fn open(path: &Path, extra_flags: i32, write: bool) -> io::Result<File> {
    OpenOptions::new().read(true).write(write).custom_flags(libc::O_CLOEXEC | extra_flags).open(path)
}

impl LoopDevice {
    /// Makes a loop device on `backing` with direct I/O and this logical block size (512 or 4096).
    ///
    /// # Errors
    /// The system's: no loop devices here, or the caller may not (be root).
    pub fn create(backing: &Path, sector_bytes: u32, read_only: bool) -> io::Result<LoopDevice> {
        let backing = open(backing, libc::O_DIRECT, !read_only)?;
        let control = open(Path::new("/dev/loop-control"), 0, true)?;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        // Another process may take the free device between the two calls; then ask for the next.
        for _ in 0..64 {
            // SAFETY: the call takes no argument and returns a number.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            make_node(&path, number)?;
            let file = open(&path, 0, true)?;
            match configure(&file, &backing, sector_bytes, read_only) {
                Ok(()) => return Ok(LoopDevice { path, file }),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes what the kernel still holds of it to the backing file.
    ///
    /// # Errors
    /// The system's: a write failed, and data is lost.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// True while somebody else has it mounted or open for themselves alone.
    pub fn is_claimed(&self) -> bool {
        let claim = open(&self.path, libc::O_EXCL, false);
        claim.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
    }

    /// Frees it: at once, or when its last user lets go.
    pub fn free(self) {
        clear(&self.file);
    }
}

fn clear(file: &File) {
    // SAFETY: the call takes no argument. Failing (already free) is fine.
    unsafe { libc::ioctl(file.as_raw_fd(), LOOP_CLR_FD, 0) };
}

/// Machines without a device manager lack the nodes of new devices.
fn make_node(path: &Path, number: i32) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o660);
    let device = libc::makedev(7, number as u32);
    match nix::sys::stat::mknod(path, nix::sys::stat::SFlag::S_IFBLK, mode, device) {
        Ok(()) | Err(nix::Error::EEXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn configure(device: &File, backing: &File, sector_bytes: u32, read_only: bool) -> io::Result<()> {
    let flags = FLAG_AUTOCLEAR | FLAG_DIRECT_IO | if read_only { FLAG_READ_ONLY } else { 0 };
    let info = LoopInfo64 {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        sizelimit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let config = LoopConfig { fd: backing.as_raw_fd() as u32, block_size: sector_bytes, info, reserved: [0; 8] };
    // SAFETY: `config` has the layout the call reads and lives across it.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &config) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The file a loop device stands on, as the kernel names it; None when it is free or no loop device.
pub fn backing_file(device: &Path) -> Option<String> {
    let name = device.file_name()?.to_str()?;
    let text = std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
    Some(text.trim_end().to_owned())
}

/// Frees every loop device whose backing file lies under `dir` (a dead daemon's remains).
pub fn free_all_under(dir: &Path) {
    let Ok(entries) = std::fs::read_dir("/sys/block") else { return };
    for entry in entries.flatten() {
        let device = Path::new("/dev").join(entry.file_name());
        let ours = backing_file(&device).is_some_and(|file| Path::new(&file).starts_with(dir));
        if let (true, Ok(file)) = (ours, open(&device, 0, false)) {
            clear(&file);
        }
    }
}
