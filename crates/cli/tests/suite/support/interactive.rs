//! A command whose output is read line by line while it runs.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub struct Interactive {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The lines that were read.
    pub lines: Vec<String>,
}

impl Interactive {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, input, output, lines: Vec::new() }
    }

    /// Starts a command that prints `ready`; returns then.
    #[track_caller]
    pub fn start_until_ready(command: &mut Command) -> Self {
        let mut started = Self::start(command);
        assert_eq!(started.line().as_deref(), Some("ready"));
        started
    }

    pub fn send_line(&mut self, line: &str) {
        let input = self.input.as_mut().expect("open until the end");
        writeln!(input, "{line}").expect("it waits");
    }

    /// Sends a signal, like a batch system.
    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args([signal, &pid]).stderr(Stdio::null()).status();
    }

    /// The next line; `None` at the end.
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line).expect("text") == 0 {
            return None;
        }
        self.lines.push(line.trim_end().to_owned());
        self.lines.last().cloned()
    }

    /// Closes its input, and reads to the end; returns all output and the exit code.
    pub fn end(mut self) -> (Vec<String>, Option<i32>) {
        self.input.take();
        while self.line().is_some() {}
        let status = self.child.wait().expect("our child");
        (std::mem::take(&mut self.lines), status.code())
    }

    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("our child");
    }
}

impl Drop for Interactive {
    fn drop(&mut self) {
        // After a failed assertion, a job drains within its grace time, and ends.
        self.input.take();
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.signal("-TERM");
            let _ = self.child.wait();
        }
    }
}
