//! A mount namespace of a test's own, in which its shared directory is a small file system of its own.

use crate::support::{Site, shown};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A namespace that lives as long as this; its mounts end with it.
pub struct Mounts {
    holder: Child,
}

impl Mounts {
    /// A new namespace; `None`, with a line that says so, where the test may not make one.
    pub fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("not tested: mounting file systems takes root");
            return None;
        }
        let mut holder = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", "echo ready; exec sleep 1000"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare is installed");
        let mut line = String::new();
        let output = holder.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("the holder speaks");
        assert_eq!(line, "ready\n", "a mount namespace cannot be made");
        Some(Self { holder })
    }

    /// The command, in the namespace.
    pub fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.args(["--mount", "--target", &self.holder.id().to_string(), "--"]);
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// The root of the namespace as the test sees it.
    pub fn root(&self) -> PathBuf {
        format!("/proc/{}/root", self.holder.id()).into()
    }

    /// Runs a line of shell in the namespace; what it said.
    pub fn shell(&self, line: &str) -> Output {
        self.inside(Command::new("sh").args(["-euc", line])).output().expect("nsenter is installed")
    }

    /// Runs a line of shell that must succeed; its standard output.
    pub fn must(&self, line: &str) -> String {
        let output = self.shell(line);
        assert!(output.status.success(), "{line}: {}", shown(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Mounts a file system in memory of this size on `dir`.
    pub fn mount_memory(&self, dir: &Path, size: &str) {
        self.must(&format!("mount -t tmpfs -o size={size} tameike-test {}", dir.display()));
    }

    /// `tameike` with these arguments in the namespace; its output.
    pub fn tameike(&self, site: &Site, arguments: &[&str]) -> Output {
        self.inside(&site.tameike(arguments)).output().expect("nsenter is installed")
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        // The namespace goes with its last process.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
