//! The connection of a driver to an agent: JSON lines over the pipes with which the agent was started, or over a local socket.

use parking_lot::Mutex;
use std::io::{BufRead, Read, Stdout, Write, stdout};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use tameike_agent::control::{AgentAnswer, AgentReply};
use tameike_core::{Errno, Fault, Result};

/// Longest line that an agent reads, in bytes: the record or the home map of a job with the most nodes fits in it.
const LINE_SIZE_MAX: u64 = 64 << 20;

/// Where replies go.
enum Output {
    Pipe(Stdout),
    Socket(UnixStream),
}

/// A connection of a driver, for replies.
pub(super) struct Connection {
    output: Mutex<Output>,
    /// The host of the driver.
    host: String,
    /// It is this one.
    is_here: bool,
}

impl Connection {
    /// The connection of the driver that has started the agent.
    pub fn of_parent(host: String, is_here: bool) -> Self {
        Self { output: Mutex::new(Output::Pipe(stdout())), host, is_here }
    }

    /// A connection over a socket.
    pub fn over(socket: UnixStream, host: String, is_here: bool) -> Self {
        Self { output: Mutex::new(Output::Socket(socket)), host, is_here }
    }

    /// Whether the driver is on this host.
    pub fn is_here(&self) -> bool {
        self.is_here
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

    /// Replies that the connection is refused. Ends it, if it is a socket: its process waits for that.
    pub fn refuse(&self, fault: Fault) {
        self.reply(0, AgentReply::Failed(fault));
        if let Output::Socket(socket) = &*self.output.lock() {
            // The other end may have closed it.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn send(&self, answer: &AgentAnswer) -> Result<()> {
        let failed = |error| Fault::from_os("replying to the driver", &error);
        let mut line = serde_json::to_vec(answer).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        let mut output = self.output.lock();
        let output: &mut dyn Write = match &mut *output {
            Output::Pipe(pipe) => pipe,
            Output::Socket(socket) => socket,
        };
        output.write_all(&line).and_then(|()| output.flush()).map_err(failed)
    }
}

/// Reads the next line of a driver; `None` if the connection has ended, also amid a line.
///
/// # Errors
/// `EMSGSIZE` for a line that is too long; `EPROTO` if it is no text.
pub(super) fn read_line(input: &mut impl BufRead) -> Result<Option<String>> {
    let mut line = Vec::new();
    // A connection that breaks has ended.
    let is_whole = input.take(LINE_SIZE_MAX).read_until(b'\n', &mut line).is_ok() && line.ends_with(b"\n");
    if line.len() as u64 == LINE_SIZE_MAX && !is_whole {
        let message = format!("a line of a driver is longer than {} MiB", LINE_SIZE_MAX >> 20);
        return Err(Fault::new(Errno::EMSGSIZE, message));
    }
    let invalid = |error| Fault::new(Errno::EPROTO, format!("a line of a driver is no text: {error}"));
    is_whole.then(|| String::from_utf8(line).map_err(invalid)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufReader, Cursor, repeat};

    #[test]
    fn lines_end_at_a_bound_and_incomplete_ones_are_dropped() {
        let mut input = Cursor::new(b"one\n\ntwo".to_vec());
        assert_eq!(read_line(&mut input), Ok(Some("one\n".to_owned())));
        assert_eq!(read_line(&mut input), Ok(Some("\n".to_owned())));
        assert_eq!(read_line(&mut input), Ok(None), "the driver was killed");
        assert_eq!(read_line(&mut input), Ok(None));
        let errno =
            |input: &mut dyn BufRead| read_line(&mut BufReader::new(input)).map_err(|fault| fault.errno);
        assert_eq!(errno(&mut BufReader::new(repeat(b'x'))), Err(Errno::EMSGSIZE));
        assert_eq!(errno(&mut Cursor::new(b"\xff\n")), Err(Errno::EPROTO));
    }
}
