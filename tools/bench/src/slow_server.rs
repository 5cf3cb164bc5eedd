//! An XFS file system on a loop device of limited speed, as the disk of a slow shared file system, for as long as one command runs.
//!
//! A cgroup limits the device: the root of `blkio` in cgroups of version 1, a cgroup of the command in version 2. The command runs in
//! mount, network, IPC and process namespaces with `/dev/shm` and `TMPDIR` of its own, which end with it.

use crate::options::SlowServerOptions;
use crate::outcome::{Context, Outcome, output_of};
use crate::wait::{self, Interrupt};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Where the command finds the disk.
const MOUNT: &str = "/dev/shm/disk";
/// Set in the namespaces, to the options of the disk.
pub const INSIDE: &str = "TAMEIKE_BENCH_NAMESPACES";
const NAMESPACES: &str = "--mount --net --ipc --pid --fork --kill-child --mount-proc --propagation private";
/// The arguments are the cgroup's list of processes, the loop device, and the command.
const SCRIPT: &str = "echo $$ > $0 && loop=$1 && shift && ip link set lo up && \
    mount -t tmpfs -o size=100% tmpfs /dev/shm && mkdir -m 1777 $TMPDIR && mkdir /dev/shm/disk && mount $loop /dev/shm/disk && \
    exec \"$@\"";

/// Runs the command with the disk.
pub fn run(options: &SlowServerOptions) -> Outcome<()> {
    let interrupt = Interrupt::listen()?;
    let disk = Disk::new(options)?;
    let words = options.command.iter().map(|word| word.replace("{mount}", MOUNT));
    let mut command = Command::new("unshare");
    command
        .args(NAMESPACES.split(' '))
        .args(["sh", "-c", SCRIPT])
        .arg(disk.group.join("cgroup.procs"))
        .arg(&disk.device);
    let options = format!("slow-server --rate {} --iops {}", options.rate, options.iops);
    command.args(words).env(INSIDE, options).env("TMPDIR", "/dev/shm/tmp");
    let mut child = command.spawn().context(|| "start unshare")?;
    let mut status = None;
    wait::until("the command", Duration::MAX, || {
        if interrupt.check().is_err() {
            // All processes of the namespace end with this one.
            child.kill().context(|| "end the command")?;
        }
        status = child.try_wait().context(|| "wait for the command")?;
        Ok(status.is_some())
    })?;
    match status {
        Some(status) if !status.success() => Err(format!("the command failed: {status}")),
        _ => Ok(()),
    }
}

/// A loop device of limited speed.
struct Disk {
    device: String,
    /// Its major and minor number.
    number: String,
    /// The cgroup that the command runs in.
    group: PathBuf,
    is_version_1: bool,
}

impl Disk {
    fn new(options: &SlowServerOptions) -> Outcome<Self> {
        let image = options.image.join(format!("tameike-bench-{}.image", std::process::id()));
        let doing = || format!("make {}", image.display());
        File::create_new(&image).and_then(|file| file.set_len(options.size_gib << 30)).context(doing)?;
        let path = image.display().to_string();
        let losetup = ["losetup", "--find", "--show", "--direct-io=on", &path];
        let made = output(&["mkfs.xfs", "-q", &path]).and_then(|_| output(&losetup));
        // The loop device holds the image open.
        fs::remove_file(&image).context(|| format!("remove {path}"))?;
        let device = made?;
        let base = Path::new("/sys/fs/cgroup");
        let is_version_1 = base.join("blkio").exists();
        let group = match is_version_1 {
            true => base.join("blkio"),
            false => base.join(format!("tameike-bench-{}", std::process::id())),
        };
        let mut disk = Self { device, number: String::new(), group, is_version_1 };
        disk.number = output(&["lsblk", "--noheadings", "--output", "MAJ:MIN", &disk.device])?;
        if !is_version_1 {
            write(&base.join("cgroup.subtree_control"), "+io +memory")?;
            fs::create_dir(&disk.group).context(|| format!("make {}", disk.group.display()))?;
        }
        disk.limit(options.rate * 1_000_000, options.iops)?;
        Ok(disk)
    }

    /// Limits reads and writes to so many bytes and operations per second; 0 is no limit.
    fn limit(&self, bytes: u64, operations: u64) -> Outcome<()> {
        if self.is_version_1 {
            for (kind, limit) in [("bps", bytes), ("iops", operations)] {
                for what in ["read", "write"] {
                    let file = self.group.join(format!("blkio.throttle.{what}_{kind}_device"));
                    write(&file, &format!("{} {limit}", self.number))?;
                }
            }
            return Ok(());
        }
        let [bytes, operations] = [bytes, operations].map(|limit| match limit {
            0 => "max".to_owned(),
            limit => limit.to_string(),
        });
        let limits = format!("rbps={bytes} wbps={bytes} riops={operations} wiops={operations}");
        write(&self.group.join("io.max"), &format!("{} {limits}", self.number))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let unlimited = self.limit(0, 0);
        let detached = output(&["losetup", "--detach", &self.device]);
        if !self.is_version_1 {
            // An unlimited cgroup without processes does no harm.
            fs::remove_dir(&self.group).ok();
        }
        if let Err(message) = unlimited.and(detached.map(drop)) {
            eprintln!("tameike-bench: {message}");
        }
    }
}

fn write(path: &Path, text: &str) -> Outcome<()> {
    fs::write(path, text).context(|| format!("write {text} to {}", path.display()))
}

/// Runs a program to its end, and returns its output.
fn output(words: &[&str]) -> Outcome<String> {
    let output = output_of(Command::new(words[0]).args(&words[1..]), " (is it installed?)")?;
    Ok(output.trim().to_owned())
}
