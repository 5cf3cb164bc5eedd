//! The process of a node's agent: `tameike agent`.
//!
//! It creates the node's directories, namespaces and mounts, starts the agent in them, executes commands of the driver that
//! arrive over a pipe, and cleans up. When the driver exits, it stops too, and dirty data stays in the journal.

mod cleanup;
pub mod enter;
mod log_file;
pub mod preload;
mod prepare;
pub mod probe;
mod serve;
pub mod start;

use start::NodeStart;
use std::io::{BufRead, Write};
use tameike_agent::control::{AgentAnswer, AgentControl, AgentReply, CONTROL_VERSION};
use tameike_core::{Errno, Fault, Result};

/// Runs the agent until the driver stops it or exits. Returns the exit code.
pub fn run<A: AgentControl>() -> u8 {
    let mut line = String::new();
    let prepared = std::io::stdin()
        .lock()
        .read_line(&mut line)
        .map_err(|error| Fault::from_os("reading the driver's first line", &error))
        .and_then(|_| parse_start(&line))
        .and_then(|start| prepare::prepare::<A>(&start));
    match prepared {
        Ok(node) => serve::serve::<A>(node),
        Err(fault) => {
            // The driver may have exited.
            let _ = answer(&AgentAnswer { id: 0, reply: AgentReply::Failed(fault) });
            crate::exit::FAILED
        }
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

fn answer(answer: &AgentAnswer) -> Result<()> {
    let failed = |error| Fault::from_os("replying to the driver", &error);
    let mut line = serde_json::to_vec(answer).map_err(|error| failed(error.into()))?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush()).map_err(failed)
}
