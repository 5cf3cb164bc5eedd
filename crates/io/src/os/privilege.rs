//! Whether user 0 at the other end of a local socket is privileged over this process's files.
//!
//! User 0 of a container, of a user namespace, or of a program that has dropped its capabilities is an ordinary user to the
//! kernel. Its number alone says nothing.

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
/// By these the kernel lets a program pass the mode bits and owners of files.
const OVER_FILES: u64 = CAP_CHOWN | CAP_DAC_OVERRIDE | CAP_FOWNER | CAP_FSETID;

/// Whether the process that connected has in effect all capabilities over files, in the user namespace of this process. `false`
/// where the system does not say, as before Linux 6.5.
pub fn is_peer_privileged(socket: &UnixStream) -> bool {
    peer_process(socket).is_ok_and(|process| is_privileged(&process).unwrap_or(false))
}

/// None where the process cannot be looked at, or has ended: then its number may be another's.
fn is_privileged(process: &OwnedFd) -> Option<bool> {
    // The number that it has in this `/proc`.
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

    /// What is decided about a program that `wrap` starts, which connects and then waits.
    fn is_wrapped_privileged(wrap: &[&str]) -> bool {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let script = "import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)";
        let words = [wrap, &["python3", "-c", script, path.to_str().expect("plain")]].concat();
        let mut command = Command::new(words[0]);
        let mut child = command.args(&words[1..]).stdin(Stdio::null()).spawn().expect("a program");
        let (socket, _) = listener.accept().expect("it connects");
        let found = is_peer_privileged(&socket);
        drop(socket);
        assert!(child.wait().expect("it ends").success());
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
        let (socket, _) = listener.accept().expect("it has connected");
        assert!(!is_peer_privileged(&socket));
    }
}
