//! `tameike run --aggregate-only` with a container and a spool for one test.

use crate::support::{Run, binary, preload, processes_naming, succeed, utf8};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A directory with a container, and one with a spool. When dropped, it checks that the runs have left only an intact container.
pub struct SpoolSite {
    pub base: TempDir,
}

impl SpoolSite {
    pub fn new() -> Self {
        preload::install();
        let site = Self { base: tempfile::tempdir().expect("a directory") };
        fs::create_dir(site.spool()).expect("a directory");
        fs::create_dir(site.plain()).expect("a directory");
        let script = site.base.path().join("until-packed");
        fs::write(&script, include_str!("until-packed")).expect("a script");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("ours");
        site
    }

    pub fn container(&self) -> PathBuf {
        self.base.path().join("container")
    }

    pub fn spool(&self) -> PathBuf {
        self.base.path().join("spool")
    }

    pub fn plain(&self) -> PathBuf {
        self.base.path().join("plain")
    }

    /// Runs a command with the container.
    pub fn run(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.arg("run").arg("--aggregate-only").arg(self.container()).arg("--spool").arg(self.spool());
        command.arg("--").args(arguments).current_dir(self.base.path());
        command.env("PATH", self.path()).env("TAMEIKE_BINARY", binary());
        command
    }

    /// The PATH of scripts, with `until-packed`.
    pub fn path(&self) -> String {
        format!("{}:{}", self.base.path().display(), std::env::var("PATH").expect("there are programs"))
    }

    /// Runs a script in the plain directory.
    pub fn plainly(&self, script: &str) -> String {
        let mut bash = Command::new("bash");
        succeed(bash.args(["-euc", script]).current_dir(self.plain()).env("PATH", self.path()))
    }

    /// Runs a script in the container's directory.
    pub fn script(&self, script: &str) -> Command {
        let script = format!("cd {}\n{script}", self.container().display());
        self.run(&["bash", "-euc", &script])
    }

    /// `tameike agg ACTION` with the container.
    pub fn agg(&self, action: &str, more: &[&Path]) -> Command {
        let mut command = Command::new(binary());
        command.args(["agg", action]).arg(self.container()).args(more);
        command
    }

    /// Panics if a spool or a process is left, or the container is damaged.
    pub fn assert_intact(&self) {
        assert_eq!(fs::read_dir(self.spool()).expect("a directory").count(), 0, "a spool is left");
        // A test may have it in a mount namespace.
        if self.container().join("container").exists() {
            self.agg("verify", &[]).exits(0);
        }
        assert_eq!(processes_naming(utf8(self.base.path())), Vec::<String>::new());
    }

    /// Extracts all files of the container.
    pub fn extracted(&self) -> PathBuf {
        let into = self.base.path().join("extracted");
        self.agg("extract", &[Path::new("--same-permissions"), &into]).exits(0);
        into
    }

    /// Extracts one file of the container, as text.
    pub fn extracted_text(&self, name: &str) -> String {
        fs::read_to_string(self.extracted().join(name)).expect("it is there")
    }
}

impl Drop for SpoolSite {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.assert_intact();
        }
    }
}
