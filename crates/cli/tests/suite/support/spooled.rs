//! `tameike run --aggregate-only` with a container and a spool for one test.

use crate::support::{binary, preload, processes_naming, shown, succeed};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A directory with a container, and one with a spool.
pub struct Place {
    pub base: TempDir,
}

impl Place {
    pub fn new() -> Self {
        preload::install();
        let place = Self { base: tempfile::tempdir().expect("a directory") };
        fs::create_dir(place.spool()).expect("a directory");
        fs::create_dir(place.plain()).expect("a directory");
        let waits = place.base.path().join("until-packed");
        fs::write(&waits, include_str!("until-packed")).expect("a script");
        fs::set_permissions(&waits, fs::Permissions::from_mode(0o755)).expect("ours");
        place
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
    pub fn run(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.arg("run").arg("--aggregate-only").arg(self.container()).arg("--spool").arg(self.spool());
        command.arg("--").args(words).current_dir(self.base.path());
        command.env("PATH", self.path()).env("TAMEIKE_BINARY", binary());
        command
    }

    /// The PATH of scripts, with `until-packed`.
    pub fn path(&self) -> String {
        format!("{}:{}", self.base.path().display(), std::env::var("PATH").expect("there are programs"))
    }

    /// Runs a script in the plain directory.
    pub fn plainly(&self, script: &str) -> String {
        succeed(
            Command::new("bash").args(["-euc", script]).current_dir(self.plain()).env("PATH", self.path()),
        )
    }

    /// Runs a script in the container's directory.
    pub fn script(&self, script: &str) -> Command {
        let script = format!("cd {}\n{script}", self.container().display());
        self.run(&["bash", "-euc", &script])
    }

    pub fn agg(&self, word: &str, more: &[&Path]) -> Output {
        Command::new(binary())
            .args(["agg", word])
            .arg(self.container())
            .args(more)
            .output()
            .expect("it starts")
    }

    /// No spool is left, and the container is intact.
    pub fn assert_whole(&self) {
        let left: Vec<_> = fs::read_dir(self.spool()).expect("a directory").flatten().collect();
        assert!(left.is_empty(), "{left:?}");
        let verified = self.agg("verify", &[]);
        assert!(verified.status.success(), "{}", shown(&verified));
        assert!(processes_naming(&self.base.path().to_string_lossy()).is_empty());
    }

    /// Extracts all files of the container.
    pub fn extracted(&self) -> PathBuf {
        let into = self.base.path().join("extracted");
        let output = self.agg("extract", &[Path::new("--same-permissions"), &into]);
        assert!(output.status.success(), "{}", shown(&output));
        into
    }
}
