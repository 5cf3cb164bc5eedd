//! An XFS file system on a loop device of limited speed, as the disk of a slow shared file system, for as long as one command runs.
//!
//! A cgroup limits the device: the root of `blkio` in cgroups of version 1, a cgroup of the command in version 2. The command runs in
//! mount, network, IPC and process namespaces with `/dev/shm` and `TMPDIR` of its own, which end with it.

use crate::loop_disk::{LoopDisk, output};
use crate::options::SlowServerOptions;
use crate::outcome::{Context, Outcome};
use crate::sandbox;
use crate::wait::Interrupt;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the command finds the disk.
const MOUNT: &str = "/dev/shm/disk";
/// Set in the namespaces, to the options of the disk.
pub const INSIDE: &str = "TAMEIKE_BENCH_NAMESPACES";
/// The arguments are the cgroup's list of processes, the loop device, and the command.
const SCRIPT: &str = "echo $$ > $0 && loop=$1 && shift && ip link set lo up && \
    mount -t tmpfs -o size=100% tmpfs /dev/shm && mkdir -m 1777 $TMPDIR && mkdir /dev/shm/disk && mount $loop /dev/shm/disk && \
    exec \"$@\"";

/// Runs the command with the disk.
pub fn run(options: &SlowServerOptions) -> Outcome<()> {
    let interrupt = Interrupt::listen()?;
    let disk = Disk::new(options)?;
    let words = options.command.iter().map(|word| word.replace("{mount}", MOUNT));
    let mut command = sandbox::command(SCRIPT);
    command.arg(disk.group.join("cgroup.procs")).arg(disk.disk.device());
    let options = format!("slow-server --rate {} --iops {}", options.rate, options.iops);
    command.args(words).env(INSIDE, options).env("TMPDIR", "/dev/shm/tmp");
    sandbox::run(&mut command, &interrupt)
}

/// A loop device of limited speed.
struct Disk {
    disk: LoopDisk,
    /// Its major and minor number.
    number: String,
    /// The cgroup that the command runs in.
    group: PathBuf,
    is_version_1: bool,
}

impl Disk {
    fn new(options: &SlowServerOptions) -> Outcome<Self> {
        let disk = LoopDisk::new(&options.image, "", options.size_gib)?;
        let base = Path::new("/sys/fs/cgroup");
        let is_version_1 = base.join("blkio").exists();
        let group = match is_version_1 {
            true => base.join("blkio"),
            false => base.join(format!("tameike-bench-{}", std::process::id())),
        };
        let mut disk = Self { disk, number: String::new(), group, is_version_1 };
        disk.number = output(&["lsblk", "--noheadings", "--output", "MAJ:MIN", disk.disk.device()])?;
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
        if !self.is_version_1 {
            // An unlimited cgroup without processes does no harm.
            fs::remove_dir(&self.group).ok();
        }
        if let Err(message) = unlimited {
            eprintln!("tameike-bench: {message}");
        }
    }
}

fn write(path: &Path, text: &str) -> Outcome<()> {
    fs::write(path, text).context(|| format!("write {text} to {}", path.display()))
}
