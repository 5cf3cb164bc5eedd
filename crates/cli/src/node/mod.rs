//! The process of a node's agent: `tameike agent`.
//!
//! It creates the node's directories, namespaces and mounts, starts the agent in them, executes commands of the driver that
//! arrive over a pipe, and cleans up. When the driver exits, it stops too, and dirty data stays in the journal. The agent of a volume
//! waits for the next driver instead, or starts one.

mod bridge;
mod cleanup;
mod connection;
mod drivers;
pub mod enter;
mod log_file;
pub mod preload;
mod prepare;
pub mod probe;
mod serve;
mod standby;
pub mod start;

use connection::Connection;
use start::NodeStart;
use std::io::BufRead;
use tameike_agent::control::{AgentControl, AgentReply, CONTROL_VERSION};
use tameike_core::{Errno, Fault, Result};

/// Runs the agent until the driver stops it or exits, or connects the driver to the agent of a volume that runs. Returns the exit code.
pub fn run<A: AgentControl>() -> u8 {
    let mut line = String::new();
    let read = std::io::stdin()
        .lock()
        .read_line(&mut line)
        .map_err(|error| Fault::from_os("reading the driver's first line", &error));
    let failed = |fault| {
        Connection::of_parent(String::new(), false).reply(0, AgentReply::Failed(fault));
        crate::exit::FAILED
    };
    let start = match read.and_then(|_| parse_start(&line)) {
        Ok(start) => start,
        Err(fault) => return failed(fault),
    };
    if let Some(agent) = bridge::connect(&start) {
        return if bridge::pass_on(agent, &line).is_ok() { 0 } else { crate::exit::FAILED };
    }
    if start.only_running {
        return failed(Fault::new(Errno::ESRCH, "its agent does not run"));
    }
    match prepare::prepare::<A>(&start) {
        Ok(node) => serve::serve::<A>(node, &start),
        Err(fault) => failed(fault),
    }
}

fn parse_start(line: &str) -> Result<NodeStart> {
    let value: serde_json::Value = serde_json::from_str(line).map_err(|error| not_a_start(&error))?;
    let version = value.pointer("/start/version").and_then(serde_json::Value::as_u64);
    if version != Some(u64::from(CONTROL_VERSION)) {
        let message = "the driver and this agent have different versions of tameike: install the same version \
                       on all hosts, or set remote-program in the configuration";
        return Err(Fault::new(Errno::EPROTO, message));
    }
    serde_json::from_value(value).map_err(|error| not_a_start(&error))
}

fn not_a_start(error: &serde_json::Error) -> Fault {
    Fault::new(Errno::EPROTO, format!("`tameike agent` must be started by a driver: {error}"))
}
