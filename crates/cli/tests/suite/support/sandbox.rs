//! Directories of one test with the recording agent, and the program.

use crate::support::{assert_code, utf8};
use std::fs::Permissions;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// The directories of a test. When dropped, it checks that the test has left nothing.
pub struct Sandbox {
    dir: TempDir,
    pub program: PathBuf,
}

impl Sandbox {
    /// Empty directories that every user can enter.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("tmk").tempdir_in("/tmp").expect("a directory");
        for name in ["tmp", "shared", "disk"] {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).expect("made");
            std::fs::set_permissions(&path, Permissions::from_mode(0o1777)).expect("ours");
        }
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("ours");
        let built = std::env::current_exe()
            .expect("the test")
            .parent()
            .and_then(Path::parent)
            .map(|target| target.join("examples/tameike-recording"));
        let program = dir.path().join("tameike");
        // Another process copies it: if another test forks while this one has the file open for writing, it cannot be executed
        // (ETXTBSY).
        let copied = Command::new("cp").arg(built.expect("target/PROFILE/deps")).arg(&program).status();
        assert!(copied.expect("cp").success(), "cargo builds the examples");
        Self { dir, program }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn shared(&self, name: &str) -> PathBuf {
        self.path("shared").join(name)
    }

    /// Creates a file that controls the recording agents.
    pub fn request(&self, name: &str) {
        std::fs::write(self.shared(name), "").expect("written");
    }

    /// Removes such a file.
    pub fn cancel(&self, name: &str) {
        std::fs::remove_file(self.shared(name)).expect("there");
    }

    /// `tameike` with these arguments, in this sandbox.
    pub fn tameike(&self, arguments: &[&str]) -> Command {
        // A test in the background inherits ignored terminal signals, and the job would inherit them too.
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP,INT,QUIT").arg(&self.program).args(arguments);
        self.set_up(&mut command);
        command
    }

    /// Sets the variables and the directory of a command.
    pub fn set_up(&self, command: &mut Command) {
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TAMEIKE_")) {
            command.env_remove(name);
        }
        command.env("TMPDIR", self.path("tmp")).current_dir(self.dir.path()).stdin(Stdio::null());
    }

    /// `tameike run ... -- sh -c SCRIPT` with the shared directory and disk of the sandbox.
    pub fn run(&self, options: &str, script: &str) -> Command {
        let (shared, disk) = (self.path("shared"), self.path("disk"));
        let mut arguments =
            vec!["run", "--capacity", "64M", "--shared", utf8(&shared), "--device", utf8(&disk)];
        arguments.extend(options.split_whitespace());
        arguments.extend(["--", "sh", "-c", script]);
        self.tameike(&arguments)
    }

    /// Starts a run; returns when its script prints `ready`.
    pub fn start(&self, options: &str, script: &str) -> Started {
        self.start_command(self.run(options, script))
    }

    /// The same with a command of the test.
    pub fn start_command(&self, mut command: Command) -> Started {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut started = Started { child };
        started.read("ready\n");
        started
    }

    /// Waits until no process of a job runs, by the lock on its directory.
    pub fn await_end(&self, job: &str) {
        let dir = self.path("tmp").join(format!("tameike-{}", tameike_io::os::process::user())).join(job);
        if dir.exists() {
            let status = Command::new("flock").arg(dir).arg("true").status().expect("flock is installed");
            assert!(status.success());
        }
    }

    /// Files below the base directories and the disk, without the lock file.
    fn leftovers(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let bases = std::fs::read_dir(self.path("tmp")).expect("there").flatten().map(|entry| entry.path());
        for dir in bases.chain([self.path("disk")]) {
            let entries = std::fs::read_dir(dir).expect("there").flatten().map(|entry| entry.path());
            found.extend(entries.filter(|path| !path.ends_with("lock")));
        }
        found
    }

    /// Checks that no file is left.
    pub fn assert_clean(&self) {
        assert_eq!(self.leftovers(), Vec::<PathBuf>::new());
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("proc");
        assert!(!mounts.contains(self.dir.path().to_str().expect("UTF-8")), "{mounts}");
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Processes of a failed test would keep its program open.
        let own = std::fs::read_dir("/proc").expect("proc").flatten().filter(|entry| {
            std::fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == self.program)
        });
        let running: Vec<_> = own.map(|entry| entry.file_name()).collect();
        for pid in &running {
            let _ = Command::new("kill").arg("-9").arg(pid).status();
        }
        if !std::thread::panicking() {
            assert!(running.is_empty(), "processes are left: {running:?}");
            self.assert_clean();
        }
    }
}

pub struct Started {
    pub child: Child,
}

impl Started {
    /// Waits for the next output of the command, which must be `expected`.
    pub fn read(&mut self, expected: &str) {
        let mut bytes = vec![0; expected.len()];
        self.child.stdout.as_mut().expect("piped").read_exact(&mut bytes).expect("the command runs");
        assert_eq!(String::from_utf8_lossy(&bytes), expected);
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(status.expect("kill is installed").success());
    }

    pub fn output(self) -> Output {
        self.child.wait_with_output().expect("it ends")
    }

    /// Waits for the end of the command, which must exit with `code`.
    #[track_caller]
    pub fn exits(self, code: i32) -> Output {
        let output = self.output();
        assert_code(&output, code);
        output
    }
}
