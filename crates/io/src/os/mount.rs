//! FUSE mounts, by `mount(2)` or by `fusermount3`; mounts of tmpfs; and the list of mounts in this process's namespace.
//!
//! Serving a mount is not a part of this module. Programs wait on a mount that is not served yet, and get `ENOTCONN` from one
//! whose descriptor was closed.

use super::socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{getegid, geteuid};
use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tameike_core::limits::{BLOCK_SIZE, UNIT_SIZE};
use tameike_core::{Errno, Fault, Result};

/// Type of the mounts in `/proc/self/mountinfo`.
pub const FUSE_TYPE: &str = "fuse.tameike";
/// Type of a file system in memory.
const MEMORY_TYPE: &str = "tmpfs";
/// Unit of its space, in bytes.
const PAGE_SIZE: u64 = BLOCK_SIZE as u64;
/// The mounts of this process's namespace.
const MOUNT_TABLE: &str = "/proc/self/mountinfo";
/// The device of all FUSE mounts.
pub const FUSE_DEVICE: &str = "/dev/fuse";
/// Its major and minor number.
const FUSE_DEVICE_NUMBER: (u32, u32) = (10, 229);
/// The set-user-id program that mounts for unprivileged users.
pub const FUSE_HELPER: &str = "fusermount3";

/// Mounts a FUSE file system named `source` at `path` with the permissions of the process. Returns the open `/dev/fuse` for
/// serving it. The kernel checks permissions by the served attributes. If root mounts, other users may use the mount too. With
/// `is_read_only` the kernel refuses changes and requests no updates of access times.
///
/// # Errors
/// `/dev/fuse` is missing or not permitted, or the kernel refuses the mount.
pub fn mount_fuse(source: &str, path: &Path, is_read_only: bool) -> Result<OwnedFd> {
    let fuse = OpenOptions::new()
        .read(true)
        .write(true)
        .open(FUSE_DEVICE)
        .map_err(|error| Fault::from_os(format_args!("opening {FUSE_DEVICE}"), &error))?;
    let (user, group) = (geteuid(), getegid());
    let others = if user.is_root() { ",allow_other" } else { "" };
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},max_read={UNIT_SIZE},default_permissions{others}",
        fuse.as_raw_fd(),
        user.as_raw(),
        group.as_raw()
    );
    let options = CString::new(options).expect("numbers and words have no NUL");
    let access = if is_read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    let flags = MountFlags::NOSUID | MountFlags::NODEV | access;
    rustix::mount::mount(source, path, FUSE_TYPE, flags, options.as_c_str())
        .map_err(|error| Fault::from_os(format_args!("mounting {}", path.display()), &error.into()))?;
    read_far_ahead(path);
    Ok(fuse.into())
}

/// Sets the kernel's readahead to the size of a request, instead of an eighth of it. Requires root.
fn read_far_ahead(path: &Path) {
    let set = device_of(path).map(|device| {
        let ahead = (UNIT_SIZE >> 10).to_string();
        std::fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), ahead)
    });
    if !matches!(set, Some(Ok(()))) {
        log::debug!("the kernel keeps its default readahead");
    }
}

/// The device number of the file system mounted at `path`, as `major:minor`. Does not access the mount.
fn device_of(path: &Path) -> Option<String> {
    let table = mount_table().ok()?;
    let mut ours = table
        .split(|&byte| byte == b'\n')
        .filter(|line| mount_point(line).is_some_and(|found| found == path));
    String::from_utf8(Mounted::parse(ours.next_back()?)?.device.to_vec()).ok()
}

/// True if a descriptor is an open FUSE device, whatever its path is.
pub fn is_fuse_device(file: BorrowedFd<'_>) -> bool {
    let is_device = |found: rustix::fs::Stat| {
        FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
            && (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev)) == FUSE_DEVICE_NUMBER
    };
    fstat(file).is_ok_and(is_device)
}

/// Waits until the kernel has a request for the server of a mount. Returns false after `limit`, and if the device is not mounted.
pub fn has_request(fuse: BorrowedFd<'_>, limit: Duration) -> bool {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    let mut polled = [PollFd::from_borrowed_fd(fuse, PollFlags::IN)];
    poll(&mut polled, Some(&limit)).is_ok() && polled[0].revents().contains(PollFlags::IN)
}

/// Waits until a file system is no longer mounted.
pub struct UnmountWatch {
    device: String,
    table: File,
}

impl UnmountWatch {
    /// Watches the file system mounted at `path`.
    ///
    /// # Errors
    /// `ENOENT` if there is none, and the errors of reading the mount table.
    pub fn new(path: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| Fault::from_os(format_args!("reading {MOUNT_TABLE}"), &error);
        let table = File::open(MOUNT_TABLE).map_err(failed)?;
        let missing = || Fault::new(Errno::ENOENT, format!("nothing is mounted at {}", path.display()));
        Ok(Self { device: device_of(path).ok_or_else(missing)?, table })
    }

    /// Blocks until then. Only mounts in this process's namespace count, not copies in namespaces created meanwhile.
    pub fn wait(self) -> Result<()> {
        let failed = |error: std::io::Error| Fault::from_os(format_args!("watching {MOUNT_TABLE}"), &error);
        while is_mounted(&mount_table()?, self.device.as_bytes()) {
            // `poll` reports changes since the last call or the open.
            match poll(&mut [PollFd::new(&self.table, PollFlags::PRI)], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
        Ok(())
    }
}

fn is_mounted(table: &[u8], device: &[u8]) -> bool {
    let mut mounts = table.split(|&byte| byte == b'\n').filter_map(Mounted::parse);
    mounts.any(|mounted| mounted.device == device)
}

/// Mounts a tmpfs named `source` at `path`, for at most `capacity` bytes in whole pages, and as many files and directories as it
/// has pages. It belongs to the calling user, and is freed with its last mount.
pub fn mount_memory(source: &str, path: &Path, capacity: u64) -> Result<()> {
    let pages = capacity.div_ceil(PAGE_SIZE).max(1);
    let options = format!("size={},nr_inodes={},mode=0755", pages * PAGE_SIZE, pages + 1);
    let options = CString::new(options).expect("numbers and words have no NUL");
    rustix::mount::mount(
        source,
        path,
        MEMORY_TYPE,
        MountFlags::NOSUID | MountFlags::NODEV,
        options.as_c_str(),
    )
    .map_err(|error| Fault::from_os(format_args!("mounting memory at {}", path.display()), &error.into()))
}

/// As [`mount_fuse`], by `fusermount3`, which any user may call if it is installed set-user-id root. The mount is visible in the
/// namespace of the process, which may be that of the host.
///
/// # Errors
/// `fusermount3` is missing or refuses; the fault carries what it printed.
pub fn mount_fuse_by_helper(source: &str, path: &Path, is_read_only: bool) -> Result<OwnedFd> {
    let doing = format!("mounting {} with {FUSE_HELPER}", path.display());
    let (ours, theirs) = UnixStream::pair().map_err(|error| Fault::from_os(&doing, &error))?;
    let mut command = Command::new(FUSE_HELPER);
    command.arg("-o").arg(format!(
        "fsname={source},subtype=tameike,max_read={UNIT_SIZE},default_permissions,nosuid,nodev,{}",
        if is_read_only { "ro" } else { "rw" }
    ));
    command.env("_FUSE_COMMFD", "0").stdin(Stdio::from(OwnedFd::from(theirs)));
    run_helper(command.arg("--").arg(path), &doing)?;
    let (_, mut files) = socket::receive_with_files(&ours)?;
    files
        .pop()
        .ok_or_else(|| Fault::io(format!("{FUSE_HELPER} sent no {FUSE_DEVICE} for {}", path.display())))
}

/// Detaches a mount, even if it is in use or its server has exited.
///
/// # Errors
/// It is not a mount, or the process may not unmount it.
pub fn unmount(path: &Path) -> Result<()> {
    rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
        .map_err(|error| Fault::from_os(format_args!("unmounting {}", path.display()), &error.into()))
}

/// As [`unmount`], by `fusermount3`, for a mount that it made.
///
/// # Errors
/// It is not a mount of this user, or `fusermount3` is missing; the fault carries what it printed.
pub fn unmount_by_helper(path: &Path) -> Result<()> {
    let mut command = Command::new(FUSE_HELPER);
    command.args(["-u", "-z", "--"]).arg(path).stdin(Stdio::null());
    run_helper(&mut command, &format!("unmounting {} with {FUSE_HELPER}", path.display()))
}

fn run_helper(command: &mut Command, doing: &str) -> Result<()> {
    let output = command.output().map_err(|error| Fault::from_os(doing, &error))?;
    if output.status.success() {
        return Ok(());
    }
    let output_text = String::from_utf8_lossy(&output.stderr);
    Err(Fault::new(Errno::EPERM, format!("{doing}: {}", output_text.trim())))
}

/// The mount points of Tameike in the process's namespace, the innermost last.
///
/// # Errors
/// `/proc` is not mounted.
pub fn mounts() -> Result<Vec<PathBuf>> {
    Ok(mount_table()?.split(|&byte| byte == b'\n').filter_map(mount_point).collect())
}

fn mount_table() -> Result<Vec<u8>> {
    std::fs::read(MOUNT_TABLE).map_err(|error| Fault::from_os(format_args!("reading {MOUNT_TABLE}"), &error))
}

/// The mount point in a line of `mountinfo`, if it is a mount of Tameike.
fn mount_point(line: &[u8]) -> Option<PathBuf> {
    let mounted = Mounted::parse(line)?;
    (mounted.kind == FUSE_TYPE.as_bytes()).then(|| PathBuf::from(unescape(mounted.path)))
}

/// Type and source of the mount that contains a file, such as `fuse.sshfs` and `host:`; `None` if unknown.
pub fn mounted_as(path: &Path) -> Option<(String, OsString)> {
    let device = std::fs::metadata(path).ok()?.dev();
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    device_mounted_as(&mount_table().ok()?, &device)
}

fn device_mounted_as(table: &[u8], device: &str) -> Option<(String, OsString)> {
    let mut lines = table.split(|&byte| byte == b'\n').filter_map(Mounted::parse);
    let mounted = lines.find(|mounted| mounted.device == device.as_bytes())?;
    Some((String::from_utf8(mounted.kind.to_vec()).ok()?, unescape(mounted.source)))
}

/// The fields of a line of `mountinfo` (proc(5)).
struct Mounted<'a> {
    /// The device number, `major:minor`.
    device: &'a [u8],
    /// The mount point, escaped.
    path: &'a [u8],
    kind: &'a [u8],
    /// The source, escaped.
    source: &'a [u8],
}

impl<'a> Mounted<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut words = line.split(|&byte| byte == b' ');
        let (device, path) = (words.by_ref().nth(2)?, words.by_ref().nth(1)?);
        words.by_ref().find(|word| *word == b"-")?;
        Some(Self { device, path, kind: words.next()?, source: words.next()? })
    }
}

/// Decodes the octal escapes (`\040` for a blank) of `mountinfo`.
fn unescape(text: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) if byte == b'\\' => {
                plain.push(escaped);
                rest = &after[3..];
            }
            _ => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(plain)
}

/// Searches `PATH` for a program.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(OsStr::from_bytes(name.as_bytes()))).find(|p| p.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_tameike_are_found() {
        let ours = br"36 35 0:45 / /tmp/a\040b/mnt rw,nosuid shared:7 master:2 - fuse.tameike tameike:j rw";
        let other = b"36 35 0:45 / /tmp/ssh rw - fuse.sshfs host: rw";
        assert_eq!(mount_point(ours), Some(PathBuf::from("/tmp/a b/mnt")));
        assert_eq!(mount_point(other), None);
        assert_eq!(mount_point(b""), None);
        assert_eq!(unescape(br"a\0"), OsString::from(r"a\0"));
    }

    #[test]
    fn a_mount_is_found_by_its_device() {
        let table = br"21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
36 21 0:45 / /mnt/a rw,nosuid master:2 - fuse mfs\043m:9421 rw
";
        let of = |device| device_mounted_as(table, device);
        assert_eq!(of("0:45"), Some(("fuse".to_owned(), "mfs#m:9421".into())));
        assert_eq!(of("8:1"), Some(("ext4".to_owned(), "/dev/sda1".into())));
        assert_eq!(of("0:4"), None);
        assert_eq!(mounted_as(Path::new("/proc")).map(|(kind, _)| kind).as_deref(), Some("proc"));
        assert_eq!(mounted_as(Path::new("/proc/none")), None);
    }
}
