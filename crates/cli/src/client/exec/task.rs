//! One command on one node, started by this process or by the driver.

use super::labels;
use crate::client::connection::Connection;
use crate::driver::launch::prepare;
use crate::driver::protocol::{ClientRequest, DriverReply, Launch};
use crate::exit;
use crate::place::record::JobRecord;
use std::io::{IsTerminal, PipeReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Child;
use std::thread::JoinHandle;
use tameike_core::{Fault, Result};
use tameike_io::os::process::{ProcessId, start_thread};

/// The process that starts a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Directly,
    ByDriver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdio {
    /// Those of this process.
    Own,
    /// No input; output lines with the node's number.
    Labelled,
}

pub struct Task {
    running: Running,
    shares_terminal: bool,
    copiers: Vec<JoinHandle<()>>,
}

enum Running {
    Child(Child),
    Driver(Connection),
}

/// Signals a task's command from another thread.
pub struct Signaller {
    target: Target,
    shares_terminal: bool,
}

enum Target {
    Process(ProcessId),
    Driver(Connection),
    None,
}

impl Signaller {
    /// Returns true if the terminal sends Ctrl-C to the command too.
    pub fn shares_terminal(&self) -> bool {
        self.shares_terminal
    }

    /// Sends a signal; ignored if the command has exited.
    pub fn signal(&self, number: i32) {
        match &self.target {
            Target::Process(process) => drop(process.signal(number)),
            Target::Driver(connection) => {
                drop(connection.send(&ClientRequest::Signal { signal: number }, &[]));
            }
            Target::None => {}
        }
    }
}

impl Task {
    pub fn start(
        way: Way,
        record: &JobRecord,
        job_dir: &Path,
        launch: &Launch,
        stdio: Stdio,
    ) -> Result<Self> {
        let (files, pipes) = files(stdio)?;
        let [input, output, errors] = files;
        let (running, shares_terminal) = match way {
            Way::Directly => {
                let terminal =
                    stdio == Stdio::Own && std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
                let mut prepared = prepare(record, job_dir, launch, terminal)?;
                let command = prepared.command.stdin(input).stdout(output).stderr(errors);
                let doing = format_args!("starting the command for node {}", launch.node);
                let child = command.spawn().map_err(|error| Fault::from_os(doing, &error))?;
                (Running::Child(child), !prepared.is_remote)
            }
            Way::ByDriver => {
                let request = ClientRequest::Launch(launch.clone());
                let files = [input.as_fd(), output.as_fd(), errors.as_fd()];
                (Running::Driver(Connection::ask(job_dir, &request, &files)?), false)
            }
        };
        let mut copiers = Vec::new();
        if let Some((output, errors)) = pipes {
            let node = launch.node;
            copiers.push(start_thread("output", move || labels::copy(node, output, std::io::stdout()))?);
            copiers.push(start_thread("errors", move || labels::copy(node, errors, std::io::stderr()))?);
        }
        Ok(Self { running, shares_terminal, copiers })
    }

    /// Returns a handle that signals the command from another thread.
    pub fn signaller(&self) -> Signaller {
        let target = match &self.running {
            Running::Child(child) => ProcessId::now(child.id()).map_or(Target::None, Target::Process),
            Running::Driver(connection) => connection.sender().map_or(Target::None, Target::Driver),
        };
        Signaller { target, shares_terminal: self.shares_terminal }
    }

    /// Waits for the command and the end of its output; returns its exit code.
    pub fn wait(self) -> Result<u8> {
        let code = match self.running {
            Running::Child(mut child) => {
                let waited = child.wait().map_err(|error| Fault::from_os("waiting for the command", &error));
                waited.map(exit::of_status)
            }
            Running::Driver(connection) => wait_for_driver(connection),
        };
        for copier in self.copiers {
            let _ = copier.join();
        }
        code
    }
}

fn wait_for_driver(mut connection: Connection) -> Result<u8> {
    loop {
        if let DriverReply::Ended { code } = connection.must_next()? {
            return Ok(code);
        }
    }
}

type Pipes = Option<(PipeReader, PipeReader)>;

/// Returns input, output and error for a command, and the pipes to read here.
fn files(stdio: Stdio) -> Result<([OwnedFd; 3], Pipes)> {
    let failed = |error| Fault::from_os("preparing the command's input and output", &error);
    match stdio {
        Stdio::Own => {
            let own = |file: &dyn AsFd| file.as_fd().try_clone_to_owned().map_err(failed);
            Ok(([own(&std::io::stdin())?, own(&std::io::stdout())?, own(&std::io::stderr())?], None))
        }
        Stdio::Labelled => {
            let input = std::fs::File::open("/dev/null").map_err(failed)?;
            let (output_reader, output) = std::io::pipe().map_err(failed)?;
            let (errors_reader, errors) = std::io::pipe().map_err(failed)?;
            Ok(([input.into(), output.into(), errors.into()], Some((output_reader, errors_reader))))
        }
    }
}
