//! Starts one agent, here or over ssh, and exchanges lines with it over pipes; a thread per pipe reads.

use super::event::Event;
use super::launch::remote_line;
use crate::node::start::NodeStart;
use crate::settings::JobPlan;
use libc::SIGKILL;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;
use tameike_agent::control::{AgentCommand, AgentRequest};
use tameike_core::{Fault, Result};
use tameike_io::os::process::{ProcessId, detach, start_thread};

/// Lines of an agent's standard error that are kept to explain its exit.
const LAST_LINES: usize = 4;
/// Longest prefix of such a line that is kept, in bytes.
const LINE_SIZE_MAX: usize = 400;
/// Time to wait for these lines after the agent has exited.
const LINES_WAIT: Duration = Duration::from_secs(1);

/// The driver's handle of one agent.
pub struct AgentLink {
    node: u32,
    /// Lines for a thread that writes them. A stopped agent, whose pipe is full, thus blocks only this thread.
    input: Option<Sender<Vec<u8>>>,
    process: Option<ProcessId>,
}

impl AgentLink {
    /// Starts an agent and sends its first line.
    pub fn start(plan: &JobPlan, start: &NodeStart, events: Sender<Event>) -> Result<Self> {
        Self::start_program(Path::new("/proc/self/exe"), plan, start, events)
    }

    /// As [`Self::start`], with another program for agents on this host.
    pub fn start_program(
        program: &Path,
        plan: &JobPlan,
        start: &NodeStart,
        events: Sender<Event>,
    ) -> Result<Self> {
        let node = start.start.node.0;
        let host = &plan.nodes[node as usize];
        let mut command = if host.is_here() {
            let mut command = Command::new(program);
            command.arg0("tameike").arg("agent");
            command
        } else {
            let mut command = Command::new(&plan.ssh[0]);
            let line = remote_line([plan.remote_program.as_os_str(), "agent".as_ref()]);
            command.args(&plan.ssh[1..]).arg(&host.host).arg(line);
            command
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The driver, not the terminal, decides when an agent exits.
        let mut child = detach(&mut command).spawn().map_err(|error| {
            let program = command.get_program().display();
            Fault::from_os(
                format_args!("starting the agent of node {node} on {} with {program}", host.host),
                &error,
            )
        })?;
        let input = start_writer(child.stdin.take())?;
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        let mut link = Self { node, input: Some(input), process: ProcessId::now(child.id()) };
        let mut line = serde_json::to_vec(start).map_err(|error| Fault::io(error.to_string()))?;
        line.push(b'\n');
        link.write(line);
        let (lines_sender, lines) = mpsc::channel();
        start_thread("agent-errors", move || lines_sender.send(last_lines(errors)))?;
        start_thread("agent-answers", move || {
            read_replies(node, output, &events);
            let how = exit_cause(&mut child, &lines);
            // The driver may have exited.
            let _ = events.send(Event::AgentGone { node, how });
        })?;
        Ok(link)
    }

    /// The handle of a node that has left the job.
    pub fn gone(node: u32) -> Self {
        Self { node, input: None, process: None }
    }

    pub fn node(&self) -> u32 {
        self.node
    }

    /// Sends a command to the agent. If that fails, the agent is about to exit, which is an event.
    pub fn send(&mut self, id: u64, request: &AgentRequest) {
        let command = AgentCommand { id, request: request.clone() };
        let mut line = serde_json::to_vec(&command).expect("commands are plain data");
        line.push(b'\n');
        self.write(line);
    }

    fn write(&mut self, line: Vec<u8>) {
        if self.input.as_ref().is_some_and(|input| input.send(line).is_err()) {
            self.input = None;
        }
    }

    /// Closes the pipe after what was sent before, from which the agent concludes that the driver has exited.
    pub fn hang_up(&mut self) {
        self.input = None;
    }

    /// Kills the agent's process, or the local ssh of an agent on another host.
    pub fn kill(&self) {
        // It may have exited.
        let _ = self.process.map(|process| process.signal(SIGKILL));
    }
}

/// Starts the thread that writes to an agent, until the channel or the pipe is closed.
fn start_writer(input: Option<ChildStdin>) -> Result<Sender<Vec<u8>>> {
    let (sender, lines) = mpsc::channel::<Vec<u8>>();
    start_thread("agent-requests", move || {
        let Some(mut input) = input else { return };
        for line in lines {
            if input.write_all(&line).and_then(|()| input.flush()).is_err() {
                return;
            }
        }
    })?;
    Ok(sender)
}

/// Sends an agent's lines as events, until its output ends.
fn read_replies(node: u32, output: Option<impl Read>, events: &Sender<Event>) {
    for line in output.map(BufReader::new).into_iter().flat_map(BufRead::lines) {
        let Ok(line) = line else { return };
        match serde_json::from_str(&line) {
            Ok(answer) => {
                if events.send(Event::Agent { node, answer }).is_err() {
                    return;
                }
            }
            // Login scripts of a site may print before the agent does.
            Err(_) => log::info!("node {node}: {line}"),
        }
    }
}

/// Reads standard error to its end and returns its last lines.
fn last_lines(errors: Option<impl Read>) -> Vec<String> {
    let mut words = VecDeque::new();
    let Some(errors) = errors else { return Vec::new() };
    for line in BufReader::new(errors).split(b'\n') {
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line[..line.len().min(LINE_SIZE_MAX)]).trim().to_owned();
        if !line.is_empty() {
            words.push_back(line);
        }
        if words.len() > LAST_LINES {
            words.pop_front();
        }
    }
    words.into()
}

/// Waits for the process, whose output is closed, and describes its exit. Its standard error may stay open in a process that
/// it left behind, like a shared connection of ssh.
fn exit_cause(child: &mut Child, lines: &Receiver<Vec<String>>) -> String {
    let status = match child.wait() {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    let words = lines.recv_timeout(LINES_WAIT).unwrap_or_default();
    if words.is_empty() { status } else { format!("{status}; its last messages: {}", words.join(" | ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The driver wrote to the pipe itself: an agent that was stopped blocked it.
    #[test]
    fn lines_to_a_stopped_agent_do_not_block_the_driver() {
        // It never reads, like a stopped agent.
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::piped()).spawn().expect("it starts");
        let input = start_writer(child.stdin.take()).expect("a thread");
        let process = ProcessId::now(child.id());
        let mut link = AgentLink { node: 0, input: Some(input), process };
        for _ in 0..100 {
            link.write(vec![b'x'; 64 << 10]);
        }
        link.kill();
        child.wait().expect("it ends");
        // The end of the pipe is noticed in time.
        while link.input.is_some() {
            link.write(vec![b'x']);
        }
    }
}
