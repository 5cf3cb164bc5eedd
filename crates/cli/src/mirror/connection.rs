//! A running `tameike receive`, here or over ssh, and its standard input and output.

use super::protocol::{MAGIC, Order, PING_INTERVAL_S, Reply, VERSION, read_frame, write_frame};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::{ProcessId, detach, monotonic, start_thread};

/// Time in which the receiver must be ready: longer than an ssh takes to connect.
const HELLO_LIMIT: Duration = Duration::from_secs(60);
/// Bytes that login scripts may print before the receiver does.
const BANNER_MAX: u64 = 64 << 10;
/// Buffers of input and output.
const BUFFER_SIZE: usize = 1 << 20;
/// Lines of standard error that are kept to explain the end.
const LAST_LINES: usize = 3;
/// Longest prefix of such a line, in bytes.
const LINE_SIZE_MAX: usize = 300;
/// Time to wait for these lines after the end.
const LINES_LIMIT: Duration = Duration::from_millis(300);

/// A reply with its data.
pub type Answer = (Reply, Vec<u8>);

/// The receiver's answer to the first order.
pub struct Greeting {
    /// Names that the source lacks can be removed.
    pub is_mirror: bool,
    /// Names of staged files of an earlier connection.
    pub staged: Vec<Vec<u8>>,
}

/// A connection. Its drop ends the process.
pub struct Connection {
    child: Child,
    /// `None` after the input was closed.
    input: Option<BufWriter<ChildStdin>>,
    answers: Receiver<Result<Answer>>,
    errors: Receiver<Vec<String>>,
    is_broken: bool,
    last_sent: Duration,
}

impl Connection {
    /// Starts a receiver. `started` gets its process, to end it from another thread.
    ///
    /// # Errors
    /// It does not start, or does not answer as a receiver.
    pub fn open(
        mut command: Command,
        makes_mirror: bool,
        started: impl FnOnce(Option<ProcessId>),
    ) -> Result<(Self, Greeting)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = command.get_program().to_owned();
        // The driver, not the terminal, decides when it ends.
        let mut child = detach(&mut command)
            .spawn()
            .map_err(|error| Fault::from_os(format_args!("starting {}", program.display()), &error))?;
        started(ProcessId::now(child.id()));
        let input = child.stdin.take().map(|input| BufWriter::with_capacity(BUFFER_SIZE, input));
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        let (answer_sender, answers) = channel();
        start_thread("mirror-replies", move || read_answers(output, &answer_sender))?;
        let (lines_sender, lines) = channel();
        start_thread("mirror-errors", move || drop(lines_sender.send(last_lines(errors))))?;
        let mut connection =
            Self { child, input, answers, errors: lines, is_broken: false, last_sent: monotonic() };
        connection.send(&Order::Hello { version: VERSION, makes_mirror }, &[])?;
        connection.flush()?;
        match connection.answer(HELLO_LIMIT)? {
            Some((Reply::Hello { version: VERSION, is_mirror, staged }, _)) => {
                Ok((connection, Greeting { is_mirror, staged }))
            }
            Some((Reply::Hello { version, .. }, _)) => {
                let message = format!("the receiver has version {version} of the protocol, not {VERSION}");
                Err(Fault::new(Errno::EPROTO, message))
            }
            Some(_) => Err(Fault::new(Errno::EPROTO, "the receiver sent an unexpected reply")),
            None => Err(Fault::new(Errno::ETIMEDOUT, "the receiver did not become ready")),
        }
    }

    /// Whether the connection has failed: the fault of an operation is not one of a file.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Sends an order.
    pub fn send(&mut self, order: &Order, data: &[u8]) -> Result<()> {
        self.last_sent = monotonic();
        let Some(input) = &mut self.input else { return Err(self.broken(None)) };
        match write_frame(input, order, data) {
            // Not an error of the connection: nothing was sent.
            Err(fault) if fault.errno == Errno::EINVAL => Err(fault),
            Err(fault) => Err(self.broken(Some(fault))),
            Ok(()) => Ok(()),
        }
    }

    /// Sends what is buffered.
    pub fn flush(&mut self) -> Result<()> {
        let flushed = self.input.as_mut().map_or(Ok(()), Write::flush);
        flushed.map_err(|error| self.broken(Some(Fault::from_os("writing to the mirror", &error))))
    }

    /// Shows the receiver that the sender exists, if it has not sent an order for a while.
    pub fn keep_alive(&mut self) -> Result<()> {
        if monotonic().saturating_sub(self.last_sent) < Duration::from_secs(PING_INTERVAL_S) {
            return Ok(());
        }
        self.send(&Order::Ping, &[])?;
        self.flush()
    }

    /// Waits for the next reply; `None` if there is none in time.
    pub fn answer(&mut self, limit: Duration) -> Result<Option<Answer>> {
        match self.answers.recv_timeout(limit) {
            Ok(Ok((Reply::Failed(fault), _))) => {
                self.is_broken = true;
                Err(fault)
            }
            Ok(Ok(answer)) => Ok(Some(answer)),
            Ok(Err(fault)) => Err(self.broken(Some(fault))),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.broken(None)),
        }
    }

    /// The fault of the broken connection, with the words of the receiver if it has ended.
    fn broken(&mut self, fault: Option<Fault>) -> Fault {
        self.is_broken = true;
        self.input = None;
        // It may have explained its end before.
        while let Ok(Ok((reply, _))) = self.answers.try_recv() {
            if let Reply::Failed(fault) = reply {
                return fault;
            }
        }
        let lines = self.errors.recv_timeout(LINES_LIMIT).unwrap_or_default();
        let status = match self.child.try_wait() {
            Ok(Some(status)) => format!("the receiver has ended ({status})"),
            _ => fault
                .map_or_else(|| "the receiver has closed its output".to_owned(), |fault| fault.to_string()),
        };
        let words = if lines.is_empty() { status } else { format!("{status}: {}", lines.join(" | ")) };
        Fault::new(Errno::ECONNRESET, words)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.input = None;
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends replies until the output ends.
fn read_answers(output: Option<impl Read>, answers: &Sender<Result<Answer>>) {
    let Some(output) = output else { return };
    let mut output = BufReader::with_capacity(BUFFER_SIZE, output);
    if let Err(fault) = skip_banner(&mut output) {
        // The connection may be closed.
        let _ = answers.send(Err(fault));
        return;
    }
    loop {
        let answer = match read_frame(&mut output) {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => return,
            Err(fault) => Err(fault),
        };
        let is_last = answer.is_err();
        if answers.send(answer).is_err() || is_last {
            return;
        }
    }
}

/// Skips what login scripts print, up to the receiver's first bytes.
fn skip_banner(output: &mut impl BufRead) -> Result<()> {
    let mut last = VecDeque::with_capacity(MAGIC.len());
    for byte in output.take(BANNER_MAX).bytes() {
        let byte = byte.map_err(|error| Fault::from_os("reading from the mirror", &error))?;
        if last.len() == MAGIC.len() {
            last.pop_front();
        }
        last.push_back(byte);
        if last.iter().eq(MAGIC) {
            return Ok(());
        }
    }
    Err(Fault::new(Errno::EPROTO, "the receiver did not start"))
}

/// Reads standard error to its end, and returns its last lines.
fn last_lines(errors: Option<impl Read>) -> Vec<String> {
    let mut last = VecDeque::new();
    for line in errors.map(BufReader::new).into_iter().flat_map(|errors| errors.split(b'\n')) {
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line[..line.len().min(LINE_SIZE_MAX)]).trim().to_owned();
        if !line.is_empty() {
            last.push_back(line);
        }
        if last.len() > LAST_LINES {
            last.pop_front();
        }
    }
    last.into()
}
