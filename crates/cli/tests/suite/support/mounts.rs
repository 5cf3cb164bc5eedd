//! A private mount namespace for a test, in which the shared directory can be a small file system.

use crate::support::{Site, is_root, succeed, wrapped};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A namespace with its mounts, until this is dropped.
pub struct Mounts {
    holder: Child,
}

impl Mounts {
    /// Creates a namespace; `None`, with a message, if the test is not permitted to.
    pub fn new() -> Option<Self> {
        if !is_root() {
            return None;
        }
        let mut holder = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", "echo ready; exec sleep 1000"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare is installed");
        let mut line = String::new();
        let output = holder.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("the holder is ready");
        assert_eq!(line, "ready\n", "creating a mount namespace failed");
        Some(Self { holder })
    }

    pub fn inside(&self, command: &Command) -> Command {
        wrapped("nsenter", &["--mount", "--target", &self.holder.id().to_string(), "--"], command)
    }

    /// The root of the namespace as the test sees it.
    pub fn root(&self) -> PathBuf {
        format!("/proc/{}/root", self.holder.id()).into()
    }

    /// Runs a line of shell in the namespace.
    pub fn shell(&self, line: &str) -> Output {
        self.inside(Command::new("sh").args(["-euc", line])).output().expect("nsenter is installed")
    }

    /// Changes the size of such a file system.
    pub fn resize(&self, dir: &Path, size: &str) {
        self.must(&format!("mount -o remount,size={size} {}", dir.display()));
    }

    /// Runs a line of shell that must succeed; returns its standard output.
    pub fn must(&self, line: &str) -> String {
        succeed(&mut self.inside(Command::new("sh").args(["-euc", line])))
    }

    /// Mounts a file system in memory of this size on `dir`.
    pub fn mount_memory(&self, dir: &Path, size: &str) {
        self.must(&format!("mount -t tmpfs -o size={size} tameike-test {}", dir.display()));
    }

    /// `tameike` with these arguments in the namespace.
    pub fn tameike(&self, site: &Site, arguments: &[&str]) -> Command {
        self.inside(&site.tameike(arguments))
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        // The namespace ends with its last process.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
