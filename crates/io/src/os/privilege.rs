//! Checks whether user 0 at the other end of a local socket is privileged over this process's files.
//!
//! User 0 in a container, in a user namespace, or without capabilities is an ordinary user to the kernel. So the user id alone is
//! not enough.

use super::socket::peer_process;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

const CAP_CHOWN: u64 = 1 << 0;
const CAP_DAC_OVERRIDE: u64 = 1 << 1;
const CAP_FOWNER: u64 = 1 << 3;
const CAP_FSETID: u64 = 1 << 4;
/// The capabilities that override mode bits and owners of files.
const OVER_FILES: u64 = CAP_CHOWN | CAP_DAC_OVERRIDE | CAP_FOWNER | CAP_FSETID;

/// True if the process that connected has all capabilities over files in effect, in the user namespace of this process. False if
/// that is unknown, as before Linux 6.5.
pub fn is_peer_privileged(socket: &UnixStream) -> bool {
    peer_process(socket).is_ok_and(|process| is_privileged(&process).unwrap_or(false))
}

/// `None` if the process cannot be inspected, or has exited: then its number may belong to another process.
fn is_privileged(process: &OwnedFd) -> Option<bool> {
    // The number of the process in this `/proc`.
    let described = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).ok()?;
    let number: u32 = field(&described, "Pid:")?.parse().ok()?;
    let namespace = |process: &str| {
        let found = fs::metadata(format!("/proc/{process}/ns/user")).ok()?;
        Some((found.dev(), found.ino()))
    };
    let is_here = namespace(&number.to_string())? == namespace("self")?;
    let status = fs::read_to_string(format!("/proc/{number}/status")).ok()?;
    let effective = u64::from_str_radix(field(&status, "CapEff:")?, 16).ok()?;
    (!has_ended(process)).then_some(is_here && effective & OVER_FILES == OVER_FILES)
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn has_ended(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)) != Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::process::user;
    use std::os::unix::net::UnixListener;
    use std::process::{Command, Stdio};

    /// The result for a program that `wrap` starts, which connects and then waits.
    fn is_wrapped_privileged(wrap: &[&str]) -> bool {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let script = "import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)";
        let words = [wrap, &["python3", "-c", script, path.to_str().expect("plain")]].concat();
        let mut command = Command::new(words[0]);
        let mut child = command.args(&words[1..]).stdin(Stdio::null()).spawn().expect("a program");
        let (socket, _) = listener.accept().expect("a connection");
        let found = is_peer_privileged(&socket);
        drop(socket);
        assert!(child.wait().expect("an exit status").success());
        found
    }

    #[test]
    fn user_0_is_privileged_by_its_capabilities_alone() {
        if user() != 0 {
            assert!(!is_wrapped_privileged(&["env"]));
            return;
        }
        assert!(is_wrapped_privileged(&["env"]));
        assert!(!is_wrapped_privileged(&["setpriv", "--inh-caps=-all", "--bounding-set=-all"]));
        assert!(!is_wrapped_privileged(&[
            "setpriv",
            "--inh-caps=-dac_override",
            "--bounding-set=-dac_override"
        ]));
        assert!(!is_wrapped_privileged(&["unshare", "--user", "--map-root-user"]));
        assert!(!is_wrapped_privileged(&["unshare", "--user"]));
    }

    #[test]
    fn a_process_that_has_ended_is_not_privileged() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let script = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])";
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(&path).status().expect("Python");
        let (socket, _) = listener.accept().expect("a connection");
        assert!(!is_peer_privileged(&socket));
    }
}
