//! Connects a driver to the agent of a volume that runs already: this process passes lines on between its own pipes and the agent's socket.

use super::start::NodeStart;
use crate::place::base;
use std::io::{Read, Write, stdin, stdout};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use tameike_agent::control::AgentMode;
use tameike_io::os::process::start_thread;

/// Connects to the agent that a driver wants to start, if it runs already.
pub fn connect(start: &NodeStart) -> Option<UnixStream> {
    if start.start.mode != AgentMode::Volume {
        return None;
    }
    let job_dir = start.start.base_dir.join(start.start.job.as_str());
    UnixStream::connect(base::driver_socket(&base::node_dir(&job_dir, start.start.node.0))).ok()
}

/// Passes the driver's first line on, and all lines after it in both directions, until the agent closes the connection.
pub fn pass_on(mut agent: UnixStream, first: &str) -> std::io::Result<()> {
    agent.write_all(first.as_bytes())?;
    let mut to_agent = agent.try_clone()?;
    start_thread("bridge", move || {
        // The connection of the agent ends in either case.
        let _ = copy(&mut stdin().lock(), &mut to_agent);
        let _ = to_agent.shutdown(Shutdown::Write);
    })
    .map_err(|fault| std::io::Error::other(fault.to_string()))?;
    copy(&mut agent, &mut stdout().lock())
}

/// As `std::io::copy`, which would splice: while a splice waits for the socket, the kernel lets no one read the pipe.
fn copy(from: &mut impl Read, to: &mut impl Write) -> std::io::Result<()> {
    let mut buffer = [0; 16 << 10];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            size => to.write_all(&buffer[..size]).and_then(|()| to.flush())?,
        }
    }
}
