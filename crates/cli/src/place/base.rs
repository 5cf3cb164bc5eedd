//! The user's directory for jobs, the directories of jobs in it, and the locks that mark running jobs.

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tameike_core::limits::NODES_MAX;
use tameike_core::{Errno, Fault, FaultKind, JobId, Result, View};
use tameike_io::os::{owned, process};

/// Longest path of a local socket, in bytes, without the closing NUL.
const SOCKET_PATH_MAX: usize = 107;
/// The driver's socket in a job's directory.
const CONTROL_SOCKET: &str = "control.sock";
/// The socket of an agent for programs, in the node's directory.
const RING_SOCKET: &str = "ring";
/// The socket of a volume's agent for drivers, in the node's directory. No name is longer.
const DRIVER_SOCKET: &str = "ctrl";

/// Free space in bytes that a directory for jobs needs.
const TRIAL_SIZE: usize = 64 << 10;

/// Adds advice to a fault if no space is left for a job's records.
pub fn with_advice(fault: Fault) -> Fault {
    match fault.kind() {
        FaultKind::Full => {
            let advice = "free space there, or set TMPDIR to another directory";
            Fault::new(fault.errno, format!("{fault}; {advice}"))
        }
        _ => fault,
    }
}

/// Returns the path of the user's directory for jobs.
pub fn path() -> PathBuf {
    let parent = std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty()).unwrap_or_else(|| "/tmp".into());
    Path::new(&parent).join(format!("tameike-{}", process::user()))
}

/// Returns the path of an agent's socket for preloaded programs.
pub fn ring_socket(node_dir: &Path) -> PathBuf {
    node_dir.join(RING_SOCKET)
}

/// Returns the path of the socket of a volume's agent for drivers.
pub fn driver_socket(node_dir: &Path) -> PathBuf {
    node_dir.join(DRIVER_SOCKET)
}

/// The user's directory for jobs, whose owner and mode have been checked.
#[derive(Clone, Debug)]
pub struct Base {
    path: PathBuf,
}

/// Lock that prevents other processes from creating or removing a job directory.
#[derive(Debug)]
pub struct BaseLock(#[expect(dead_code, reason = "held for its lock")] File);

impl Base {
    /// Creates the directory if missing, and checks that only this user can access it.
    pub fn open(path: &Path) -> Result<Self> {
        let doing = || format!("directory for jobs {}", path.display());
        let longest_job = path.join("x".repeat(JobId::SIZE_MAX));
        let longest = ring_socket(&node_dir(&longest_job, NODES_MAX - 1));
        if longest.as_os_str().len() > SOCKET_PATH_MAX {
            let message =
                format!("{}: the path is too long for sockets; set TMPDIR to a shorter one", doing());
            return Err(Fault::new(Errno::ENAMETOOLONG, message));
        }
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(Fault::from_os(format_args!("creating the {}", doing()), &error));
            }
            _ => {}
        }
        let refused = |why: &str| {
            let advice = "remove it, or set TMPDIR to a directory that you own";
            Fault::new(Errno::EACCES, format!("directory for jobs: {why}; {advice}"))
        };
        let found = path.symlink_metadata().map_err(|error| Fault::from_os(doing(), &error))?;
        if found.is_dir() && found.uid() == process::user() && found.mode() & 0o077 != 0 {
            return Err(refused(&format!(
                "{} is accessible to other users; it must have mode 0700",
                path.display()
            )));
        }
        owned::is_own_dir(path).map_err(|fault| refused(&fault.to_string()))?;
        Ok(Self { path: path.to_owned() })
    }

    /// Waits for the lock on creating and removing job directories.
    pub fn lock(&self) -> Result<BaseLock> {
        let path = self.path.join("lock");
        let failed = |error| Fault::from_os(format_args!("locking {}", path.display()), &error);
        let mut options = File::options();
        options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let file = options.open(&path).map_err(failed)?;
        flock(&file, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        Ok(BaseLock(file))
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes and removes a file with the size of a small job's records.
    pub fn try_write(&self) -> Result<()> {
        let path = self.path.join(format!("try-{}", std::process::id()));
        let written = std::fs::write(&path, [0x5a; TRIAL_SIZE]);
        // Also after a partial write.
        let _ = std::fs::remove_file(&path);
        written.map_err(|error| Fault::from_os(format_args!("writing to {}", self.path.display()), &error))
    }

    /// Returns the result of work in the directory, or nothing if it is gone: batch systems remove the TMPDIR of a job that ends.
    pub fn unless_gone<T: Default>(&self, worked: Result<T>) -> Result<T> {
        match worked {
            Err(_) if !self.path.exists() => Ok(T::default()),
            worked => worked,
        }
    }

    /// Returns the path of a job's directory, which may not exist.
    pub fn job_path(&self, job: &JobId) -> PathBuf {
        self.path.join(job.as_str())
    }

    /// Returns the jobs that have a directory.
    pub fn jobs(&self) -> Result<Vec<JobId>> {
        let failed = |error| Fault::from_os(format_args!("reading {}", self.path.display()), &error);
        let mut jobs = Vec::new();
        for entry in self.path.read_dir().map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let is_dir = entry.file_type().map_err(failed)?.is_dir();
            jobs.extend(entry.file_name().to_str().filter(|_| is_dir).and_then(|name| JobId::new(name).ok()));
        }
        jobs.sort();
        Ok(jobs)
    }
}

/// Use of a job's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobDirUse {
    /// The driver creates it for a new job.
    New,
    /// An agent or a recovery joins it.
    Join,
}

/// The directory of a running job, with a lock that prevents its removal.
#[derive(Debug)]
pub struct JobDir {
    path: PathBuf,
    lock: File,
}

impl JobDir {
    /// Creates or joins the directory of a job, and takes a shared lock on it. Fails with `EEXIST` if it must be new and exists.
    pub fn open(base: &Base, job: &JobId, usage: JobDirUse) -> Result<Self> {
        let _lock = base.lock()?;
        let path = base.job_path(job);
        let doing = || format!("creating the job's directory {}", path.display());
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists && usage == JobDirUse::Join => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let message = format!(
                    "a job named {job} exists already; see `tameike status --job {job}`, or, if it was \
                     interrupted, `tameike recover --job {job}`"
                );
                return Err(Fault::new(Errno::EEXIST, message));
            }
            Err(error) => return Err(with_advice(Fault::from_os(doing(), &error))),
        }
        let lock = open_dir(&path)?;
        flock(&lock, FlockOperation::NonBlockingLockShared)
            .map_err(|error| Fault::from_os(doing(), &error.into()))?;
        Ok(Self { path, lock })
    }

    /// Locks the directory of a job without running processes exclusively; `None` if a process runs. The lock on the base keeps
    /// agents that are joining from being refused.
    pub fn lock_ended(base: &Base, _lock: &BaseLock, job: &JobId) -> Result<Option<Self>> {
        let path = base.job_path(job);
        let lock = open_dir(&path)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { path, lock })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(Fault::from_os(format_args!("locking {}", path.display()), &error.into())),
        }
    }

    /// Turns the exclusive lock into the shared lock of a running job.
    pub fn revive(&self) -> Result<()> {
        flock(&self.lock, FlockOperation::LockShared)
            .map_err(|error| Fault::from_os(format_args!("locking {}", self.path.display()), &error.into()))
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn open_dir(path: &Path) -> Result<File> {
    rustix::fs::open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        .map(File::from)
        .map_err(|error| Fault::from_os(format_args!("opening {}", path.display()), &error.into()))
}

/// Returns the path of the driver's socket.
pub fn control_socket(job_dir: &Path) -> PathBuf {
    job_dir.join(CONTROL_SOCKET)
}

/// Returns the path of a node's directory.
pub fn node_dir(job_dir: &Path, node: u32) -> PathBuf {
    job_dir.join(format!("node-{node}"))
}

/// Returns the number of the node whose directory has this name.
pub fn node_of_dir(name: &str) -> Option<u32> {
    name.strip_prefix("node-")?.parse().ok()
}

/// Returns the numbers of the nodes that have a directory in the job's directory.
pub fn nodes_in(dir: &Path) -> Vec<u32> {
    let entries = dir.read_dir().into_iter().flatten().flatten();
    let mut nodes: Vec<u32> = entries.filter_map(|entry| node_of_dir(entry.file_name().to_str()?)).collect();
    nodes.sort_unstable();
    nodes
}

/// Prefix of the directories of mount points.
const VIEWS: &str = "mnt";

/// Name of the mount point of a volume, beside those of the views.
const VOLUME: &str = "volume";

/// Returns the names of mount points in one directory.
pub fn mount_names() -> impl Iterator<Item = &'static str> {
    View::ALL.iter().map(|view| view.as_str()).chain([VOLUME])
}

/// Returns the mount point of a volume; see [`mount_point`].
pub fn volume_mount_point(job_dir: &Path, apart: Option<u32>) -> PathBuf {
    mount_dir(job_dir, apart).join(VOLUME)
}

/// Returns the mount point of a view: the same path on every node with namespaces, else a path per node (`apart`).
pub fn mount_point(job_dir: &Path, view: View, apart: Option<u32>) -> PathBuf {
    mount_dir(job_dir, apart).join(view.as_str())
}

fn mount_dir(job_dir: &Path, apart: Option<u32>) -> PathBuf {
    job_dir.join(apart.map_or_else(|| VIEWS.to_owned(), |node| format!("{VIEWS}-{node}")))
}

/// Returns the directories of a job that contain mount points.
pub fn view_dirs(job_dir: &Path) -> Vec<PathBuf> {
    let entries = job_dir.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let is_one = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(VIEWS));
        name.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    entries.filter(is_one).collect()
}

/// Creates a directory of mode 0700, with its parents.
pub fn make_private_dir(path: &Path) -> Result<()> {
    DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(path)
        .map_err(|error| with_advice(Fault::from_os(format_args!("creating {}", path.display()), &error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_base_that_other_users_can_access_is_refused() {
        let temp = tempfile::tempdir().expect("a directory");
        let path = temp.path().join("base");
        Base::open(&path).expect("made");
        Base::open(&path).expect("there");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("ours");
        assert!(Base::open(&path).expect_err("open").to_string().contains("0700"));
        let link = temp.path().join("link");
        std::os::unix::fs::symlink(temp.path(), &link).expect("a link");
        assert!(Base::open(&link).expect_err("link").to_string().contains("is a symbolic link"));
        assert!(Base::open(Path::new("/proc/1")).is_err());
        let long = temp.path().join("y".repeat(80));
        assert!(Base::open(&long).expect_err("long").to_string().contains("TMPDIR"));
    }

    /// Regression: commands failed if the directory of another batch job was removed while they looked for jobs.
    #[test]
    fn a_base_that_is_gone_has_no_jobs() {
        let temp = tempfile::tempdir().expect("a directory");
        let base = Base::open(&temp.path().join("base")).expect("made");
        let failed = || base.lock().and(Err::<Vec<JobId>, _>(Errno::EIO.into()));
        assert_eq!(base.unless_gone(failed()), Err(Errno::EIO.into()));
        std::fs::remove_dir_all(base.path()).expect("ours");
        assert!(base.jobs().is_err());
        assert_eq!(base.unless_gone(base.jobs()), Ok(Vec::new()));
        assert_eq!(base.unless_gone(failed()), Ok(Vec::new()));
    }

    #[test]
    fn running_jobs_are_not_locked_exclusively() {
        let temp = tempfile::tempdir().expect("a directory");
        let base = Base::open(&temp.path().join("base")).expect("made");
        let job = JobId::new("j").expect("a name");
        let driver = JobDir::open(&base, &job, JobDirUse::New).expect("new");
        assert!(JobDir::open(&base, &job, JobDirUse::New).is_err());
        let agent = JobDir::open(&base, &job, JobDirUse::Join).expect("there");
        drop(driver);
        let lock = base.lock().expect("ours");
        assert!(JobDir::lock_ended(&base, &lock, &job).expect("opened").is_none());
        drop(agent);
        assert_eq!(base.jobs().expect("read"), std::slice::from_ref(&job));
        let dead = JobDir::lock_ended(&base, &lock, &job).expect("opened").expect("dead");
        dead.revive().expect("ours");
        drop(lock);
        JobDir::open(&base, &job, JobDirUse::Join).expect("shared again");
    }
}
