//! `agg mount` exits after the unmount, also if other mount namespaces have copies of the mount.

use super::{Dirs, Mounted};
use crate::support::jobs::wait_for;
use crate::support::succeed;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A mount namespace with a copy of a mount.
struct Namespace(Child);

impl Namespace {
    fn new(at: &Path) -> Self {
        let hold = r#"ls "$0/empty" && echo ready && exec sleep 600"#;
        let mut holder = Command::new("unshare")
            .args(["--map-root-user", "--mount", "sh", "-c", hold])
            .arg(at)
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare is installed");
        let text = BufReader::new(holder.stdout.take().expect("a pipe"));
        assert!(text.lines().any(|line| line.is_ok_and(|line| line == "ready")), "it has the mount");
        Self(holder)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process continued, and only SIGKILL ended it.
#[test]
fn copies_of_a_mount_do_not_keep_it_alive() {
    let tree = Dirs::tree().packed();
    for is_interrupted in [false, true] {
        let (mut server, at) = Mounted::new(&tree);
        let other = Namespace::new(&at);
        match is_interrupted {
            true => succeed(Command::new("kill").arg(server.0.id().to_string())),
            false => succeed(Command::new("fusermount3").arg("-u").arg(&at)),
        };
        let status = wait_for("the end of the mount", || server.0.try_wait().expect("a child"));
        assert!(status.success(), "{status}");
        assert_eq!(fs::read_dir(&at).expect("a directory").count(), 0);
        drop(other);
    }
    let (mut server, at) = Mounted::new(&tree);
    assert!(at.join("empty").is_dir());
    assert!(server.end().success());
}

/// Nothing in a mounted container can change, but the kernel requested each name and attribute again.
#[test]
fn the_kernel_caches_names_and_attributes() {
    let tree = Dirs::tree().packed();
    let (mut server, at) = Mounted::new(&tree);
    let file = at.join("results/deep/er/0007");
    let read = || {
        assert_eq!(fs::read_dir(at.join("results/deep/er")).expect("a directory").count(), 300);
        (fs::metadata(&file).expect("there").len(), fs::read(&file).expect("read"))
    };
    let before = read();
    // A stopped process serves no requests.
    succeed(Command::new("kill").args(["-STOP", &server.0.id().to_string()]));
    let stat = Command::new("timeout").args(["--signal=KILL", "30", "stat"]).arg(&file).output();
    succeed(Command::new("kill").args(["-CONT", &server.0.id().to_string()]));
    assert!(stat.expect("it runs").status.success(), "the kernel sent a request");
    assert_eq!(read(), before);
    assert!(server.end().success());
}
