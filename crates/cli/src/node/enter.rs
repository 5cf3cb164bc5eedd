//! `tameike enter`: executes a program inside a node, with the node's mounts and variables.
//!
//! The process enters the namespaces and then executes the program, so the program has its process id, terminal, input and
//! output, signals and exit code.
//!
//! Values of variables are passed in a file of the job's directory, to other hosts by standard input: every user can read the
//! arguments of a process.

use super::preload;
use crate::arguments::{CommandPlace, EnterArguments};
use crate::driver::protocol::Text;
use crate::exit;
use crate::place::base::node_dir;
use crate::place::record::NodeState;
use crate::report::{exit_code, say};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use tameike_agent::control::Isolation;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::namespace::{self, Namespaces};
use tameike_io::os::process::ProcessId;

/// Variable with the job's directory.
pub const JOB_DIR_VARIABLE: &str = "TAMEIKE_JOB_DIR";
/// Variable with the number of the node.
pub const NODE_VARIABLE: &str = "TAMEIKE_NODE";

/// Variable with the mount point of the volume that the job uses.
const VOLUME_VARIABLE: &str = "TAMEIKE_VOLUME";

/// Extension of a file of variables.
const VARIABLES: &str = "variables";

/// The process of a command, in `node-K/commands/NAME`.
#[derive(Serialize, Deserialize)]
struct Entered {
    pid: u32,
    start: u64,
}

/// Executes the program; returns the exit code only if that fails.
pub fn run(arguments: &EnterArguments) -> u8 {
    let entered = enter(arguments).map(|mut command| {
        let error = command.exec();
        say(format_args!("{}: {error}", command.get_program().display()));
        exit::of_start_error(&error)
    });
    exit_code(entered.map_err(|fault| fault.context(format_args!("node {}", arguments.place.node))))
}

/// Stores the variables from standard input. Returns the exit code.
pub fn keep(place: &CommandPlace) -> u8 {
    let kept = std::io::read_to_string(std::io::stdin())
        .map_err(|error| Fault::from_os("reading variables from standard input", &error))
        .and_then(|text| write_variables(&node_dir(&place.job_dir, place.node), &place.name, &text));
    exit_code(kept.map(|()| 0).map_err(|fault| fault.context(format_args!("node {}", place.node))))
}

fn enter(arguments: &EnterArguments) -> Result<Command> {
    let CommandPlace { job_dir, node, name } = &arguments.place;
    let node_dir = node_dir(job_dir, *node);
    // Remove the file even if a later step fails.
    let kept = if arguments.variables { take_variables(&node_dir, name)? } else { Vec::new() };
    let none = || Fault::new(Errno::ENOENT, format!("no such node in {}", job_dir.display()));
    let state = NodeState::read(job_dir, *node)?.ok_or_else(none)?;
    if !state.process().is_alive() {
        let log = node_dir.join("agent.log");
        let message = format!("its agent has exited; its log is {}", log.display());
        return Err(Fault::new(Errno::EHOSTDOWN, message));
    }
    write_command(&node_dir, name)?;
    match state.record.isolation {
        _ if shares_mounts(state.record.pid) => {}
        Isolation::MountNamespace => namespace::enter(state.record.pid, Namespaces::Mount)?,
        Isolation::UserNamespace => namespace::enter(state.record.pid, Namespaces::UserAndMount)?,
        Isolation::None => {}
    }
    if let Some(dir) = &arguments.cwd {
        std::env::set_current_dir(dir).map_err(|error| {
            Fault::from_os(format_args!("changing to directory {}", dir.display()), &error)
        })?;
    }
    let (program, rest) = arguments.command.split_first().ok_or_else(|| Fault::from(Errno::EINVAL))?;
    let mut command = Command::new(program);
    command.args(rest);
    let preload = preload::variables(arguments.preload, job_dir, *node)?;
    command.envs(variables(&state, job_dir)).envs(preload);
    command.envs(kept.into_iter().map(|(name, value)| (OsString::from(name), OsString::from(value))));
    Ok(command)
}

/// Returns true if this process is already in the node's namespaces.
fn shares_mounts(pid: u32) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    namespace("self").is_some_and(|own| namespace(&pid.to_string()) == Some(own))
}

/// Returns the variables that describe the job and its views to programs.
pub fn variables(state: &NodeState, job_dir: &Path) -> Vec<(&'static str, OsString)> {
    let job = job_dir.file_name().unwrap_or_default().to_owned();
    let mut variables = vec![
        ("TAMEIKE_JOB", job),
        (JOB_DIR_VARIABLE, job_dir.into()),
        (NODE_VARIABLE, state.record.node.0.to_string().into()),
        ("TAMEIKE_NODES", state.node_count.to_string().into()),
    ];
    variables.extend(state.record.mounts.iter().map(|(view, path)| (view.variable(), path.into())));
    variables.extend(state.record.volume.iter().map(|path| (VOLUME_VARIABLE, path.into())));
    variables
}

fn write_command(node_dir: &Path, name: &str) -> Result<()> {
    let path = command_path(node_dir, name)?;
    let ProcessId { pid, start } = ProcessId::own()?;
    let failed = |error| Fault::from_os(format_args!("writing {}", path.display()), &error);
    let text = serde_json::to_vec(&Entered { pid, start }).map_err(|error| failed(error.into()))?;
    std::fs::write(&path, text).map_err(failed)
}

/// Returns the process of a command.
pub fn read_command(node_dir: &Path, name: &str) -> Result<ProcessId> {
    let path = command_path(node_dir, name)?;
    let failed = |error| Fault::from_os(format_args!("reading {}", path.display()), &error);
    let text = std::fs::read(&path).map_err(failed)?;
    let Entered { pid, start } = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
    Ok(ProcessId { pid, start })
}

/// Stores `text`, the variables of a command as JSON, until the command enters.
pub fn write_variables(node_dir: &Path, name: &str, text: &str) -> Result<()> {
    let path = command_path(node_dir, name)?.with_extension(VARIABLES);
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    made.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| Fault::from_os(format_args!("writing {}", path.display()), &error))
}

fn take_variables(node_dir: &Path, name: &str) -> Result<Vec<(String, Text)>> {
    let path = command_path(node_dir, name)?.with_extension(VARIABLES);
    let failed = |error| Fault::from_os(format_args!("reading {}", path.display()), &error);
    let text = std::fs::read(&path).map_err(failed)?;
    std::fs::remove_file(&path).map_err(failed)?;
    serde_json::from_slice(&text).map_err(|error| failed(error.into()))
}

fn command_path(node_dir: &Path, name: &str) -> Result<std::path::PathBuf> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if name.is_empty() || !name.chars().all(plain) {
        return Err(Fault::new(Errno::EINVAL, format!("{name:?} is not the name of a command")));
    }
    Ok(node_dir.join("commands").join(name))
}
