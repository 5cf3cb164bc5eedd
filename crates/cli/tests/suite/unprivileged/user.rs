//! Unprivileged users on a host with configurable restrictions.
//!
//! Every command runs in a new mount namespace, where `/dev/fuse` is as the test needs it, and as a user without privileges. The
//! host itself is not changed.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

use crate::support::{assert_no_files, binary, is_root, processes_naming, utf8};

/// Longest time one command may take.
const COMMAND_LIMIT_SECONDS: &str = "120";

/// Restrictions of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allows {
    /// Debian with the package fuse3: `/dev/fuse` for all users, and namespaces.
    Everything,
    /// `/dev/fuse` for root only, so `fusermount3` fails too.
    NoDevice,
    /// No user namespaces: only `fusermount3` works.
    NoNamespaces,
    /// No user namespaces and no `fusermount3`.
    Nothing,
}

impl Allows {
    /// The shell script that root runs first; `"$@"` is the command.
    fn preparation(self) -> String {
        let mode = if self == Self::NoDevice { "600" } else { "666" };
        let device = format!(
            r#"mount -t tmpfs none "$PLACE"
               mknod "$PLACE/fuse" c 10 229
               chmod {mode} "$PLACE/fuse"
               mount --bind "$PLACE/fuse" /dev/fuse"#
        );
        match self {
            Self::Everything | Self::NoDevice => format!("{device}\nexec \"$@\""),
            Self::NoNamespaces => format!("{device}\n{WITHOUT_NAMESPACES}"),
            Self::Nothing => {
                let helper = r#"mount --bind /dev/null "$(command -v fusermount3)""#;
                format!("{device}\n{helper}\n{WITHOUT_NAMESPACES}")
            }
        }
    }
}

/// A test can forbid user namespaces only inside a new one, without affecting the host. All users are mapped to themselves
/// there, so that set-user-ID programs work.
const WITHOUT_NAMESPACES: &str = r#"
    mkfifo "$PLACE/made" "$PLACE/mapped"
    {
        read -r made < "$PLACE/made"
        echo "0 0 65536" > /proc/$$/uid_map
        echo "0 0 65536" > /proc/$$/gid_map
        echo > "$PLACE/mapped"
    } &
    exec unshare --user --mount sh -euc '
        echo > "$PLACE/made"
        read -r mapped < "$PLACE/mapped"
        exec sh -euc "echo 0 > /proc/sys/user/max_user_namespaces; exec \"\$@\"" sh "$@"' sh "$@""#;

/// Runs the command, and fails if it has left a mount.
const WITHOUT_LEFTOVERS: &str = r#"
    code=0; "$@" || code=$?
    if grep fuse.tameike /proc/self/mounts; then echo "mounts are left" >&2; exit 99; fi
    exit $code"#;

pub struct Host {
    dir: TempDir,
}

impl Host {
    /// A host with a world-writable directory for temporary files.
    pub fn new() -> Self {
        assert!(is_root(), "run the tests of unprivileged users as root");
        let dir = TempDir::with_prefix("tk").expect("a temporary directory");
        let host = Self { dir };
        for (name, mode) in [("", 0o755), ("bin", 0o755), ("tmp", 0o1777)] {
            let path = host.path(name);
            fs::create_dir_all(&path).expect("a directory");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
        }
        // Users may be unable to enter the binary's directory.
        fs::copy(binary(), host.path("bin/tameike")).expect("a copy of the binary");
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Copies a program or library to where all users can read it; returns its path.
    pub fn install(&self, file: &Path) -> PathBuf {
        let path = self.path("bin").join(file.file_name().expect("a name"));
        fs::copy(file, &path).expect("a copy");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
        path
    }

    /// The world-writable directory for temporary files.
    pub fn tmp(&self) -> PathBuf {
        self.path("tmp")
    }

    /// A user with a shared directory.
    pub fn user(&self, id: u32) -> User<'_> {
        let user = User { host: self, id, groups: Vec::new() };
        fs::create_dir(user.shared()).expect("a directory");
        chown(user.shared(), Some(id), Some(id)).expect("an owner");
        user
    }
}

impl Drop for Host {
    /// Checks that the jobs of this host have left no process and no file.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(processes_naming(utf8(&self.tmp())), Vec::<String>::new(), "processes left");
            assert_no_files(&self.tmp());
        }
    }
}

pub struct User<'a> {
    host: &'a Host,
    id: u32,
    /// Additional group, besides the one with the user's number.
    groups: Vec<u32>,
}

impl User<'_> {
    pub fn in_group(mut self, group: u32) -> Self {
        self.groups.push(group);
        self
    }

    pub fn shared(&self) -> PathBuf {
        self.host.path(&format!("shared-{}", self.id))
    }

    pub fn base(&self) -> PathBuf {
        self.host.tmp().join(format!("tameike-{}", self.id))
    }

    /// `tameike` with these arguments, on a host that allows this.
    pub fn tameike(&self, allows: Allows, arguments: &[&str]) -> Command {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let place = self.host.path(&format!("place-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&place).expect("a directory");
        let id = self.id.to_string();
        let binaries = self.host.path("bin");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-euc", &allows.preparation(), "sh"]);
        command.args(["setpriv", "--reuid", &id, "--regid", &id]);
        let groups: Vec<_> = self.groups.iter().map(u32::to_string).collect();
        match groups.is_empty() {
            true => command.arg("--clear-groups"),
            false => command.args(["--groups", &groups.join(",")]),
        };
        command.args(["sh", "-euc", WITHOUT_LEFTOVERS, "sh"]);
        command.args(["timeout", "--signal=KILL", COMMAND_LIMIT_SECONDS]).arg(binaries.join("tameike"));
        command.args(arguments);
        command.current_dir(self.shared()).env("PLACE", &place).env("TMPDIR", self.host.tmp());
        command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", binaries.display()));
        command.env("HOME", "/nonexistent").env_remove("TAMEIKE_JOB").env_remove("TAMEIKE_CONFIG");
        command
    }

    /// `tameike run --local 2 --shared DIR --verify --job JOB -- sh -euc SCRIPT`.
    pub fn job(&self, allows: Allows, job: &str, script: &str) -> Command {
        let shared = self.shared();
        let arguments = ["run", "--local", "2", "--shared", utf8(&shared), "--verify", "--job", job];
        self.tameike(allows, &[&arguments[..], &["--", "sh", "-euc", script]].concat())
    }

    /// Panics if the file in the shared directory has another owner or content.
    pub fn assert_shared(&self, name: &str, content: &str) {
        let path = self.shared().join(name);
        assert_eq!(fs::read_to_string(&path).expect(name), content, "{name}");
        assert_eq!(owner(&path), (self.id, self.id), "owner of {name}");
    }
}

fn owner(path: &Path) -> (u32, u32) {
    let found = path.symlink_metadata().expect("it is there");
    (found.uid(), found.gid())
}
