//! The connection of a driver to an agent: JSON lines over the pipes with which the agent was started, or over a local socket.

use parking_lot::Mutex;
use std::io::{Write, stdout};
use std::os::unix::net::UnixStream;
use tameike_agent::control::{AgentAnswer, AgentReply};
use tameike_core::{Fault, Result};

/// A connection of a driver, for replies.
pub(super) struct Connection {
    output: Mutex<Box<dyn Write + Send>>,
    /// The host of the driver.
    host: String,
}

impl Connection {
    /// The connection of the driver that has started the agent.
    pub fn of_parent(host: String) -> Self {
        Self { output: Mutex::new(Box::new(stdout())), host }
    }

    /// A connection over a socket.
    pub fn over(socket: UnixStream, host: String) -> Self {
        Self { output: Mutex::new(Box::new(socket)), host }
    }

    /// The host of the driver.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Replies to the driver. If it has exited, the input ends too, and its reader handles that.
    pub fn reply(&self, id: u64, reply: AgentReply) {
        if let Err(fault) = self.send(&AgentAnswer { id, reply }) {
            log::warn!("{fault}");
        }
    }

    fn send(&self, answer: &AgentAnswer) -> Result<()> {
        let failed = |error| Fault::from_os("replying to the driver", &error);
        let mut line = serde_json::to_vec(answer).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        let mut output = self.output.lock();
        output.write_all(&line).and_then(|()| output.flush()).map_err(failed)
    }
}
