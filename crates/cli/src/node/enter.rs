//! `tameike enter`: becomes a program inside a node, with the node's mounts and variables.
//!
//! The process moves itself into the namespaces and then turns into the program, so its number, terminal,
//! input and output, signals and exit code are the program's.

use super::preload;
use crate::arguments::EnterArguments;
use crate::exit;
use crate::place::base::node_dir;
use crate::place::record::NodeState;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use tameike_agent::control::Isolation;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::namespace::{self, Namespaces};
use tameike_io::os::process::ProcessId;

/// Names the directory of the job, for commands inside it.
pub const JOB_DIR_VARIABLE: &str = "TAMEIKE_JOB_DIR";
/// Names the node, for commands in it.
pub const NODE_VARIABLE: &str = "TAMEIKE_NODE";

/// A command that was entered, in `node-K/commands/NAME`.
#[derive(Serialize, Deserialize)]
struct Entered {
    pid: u32,
    start: u64,
}

/// Becomes the program; returns only when that fails, with the exit code.
pub fn run(arguments: &EnterArguments) -> u8 {
    match enter(arguments) {
        Ok(mut command) => {
            let error = command.exec();
            eprintln!("tameike: {}: {error}", command.get_program().display());
            exit::of_start_error(&error)
        }
        Err(fault) => {
            eprintln!("tameike: node {}: {fault}", arguments.node);
            exit::FAILED
        }
    }
}

fn enter(arguments: &EnterArguments) -> Result<Command> {
    let none = || Fault::new(Errno::ENOENT, format!("no such node in {}", arguments.job_dir.display()));
    let state = NodeState::read(&arguments.job_dir, arguments.node)?.ok_or_else(none)?;
    if !state.process().is_alive() {
        let log = node_dir(&arguments.job_dir, arguments.node).join("agent.log");
        let message = format!("its agent has ended; its log is {}", log.display());
        return Err(Fault::new(Errno::EHOSTDOWN, message));
    }
    write_command(&node_dir(&arguments.job_dir, arguments.node), &arguments.name)?;
    match state.record.isolation {
        _ if shares_mounts(state.record.pid) => {}
        Isolation::MountNamespace => namespace::enter(state.record.pid, Namespaces::Mount)?,
        Isolation::UserNamespace => namespace::enter(state.record.pid, Namespaces::UserAndMount)?,
        Isolation::None => {}
    }
    if let Some(dir) = &arguments.cwd {
        std::env::set_current_dir(dir)
            .map_err(|error| Fault::from_os(format_args!("going to directory {}", dir.display()), &error))?;
    }
    let (program, rest) = arguments.command.split_first().ok_or_else(|| Fault::from(Errno::EINVAL))?;
    let mut command = Command::new(program);
    command.args(rest);
    let preload = preload::variables(arguments.preload, &arguments.job_dir, arguments.node)?;
    command.envs(variables(&state, &arguments.job_dir)).envs(preload);
    command.envs(arguments.variables.iter().cloned());
    Ok(command)
}

/// Whether this process was started inside the node, and is in its namespaces already.
fn shares_mounts(pid: u32) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    namespace("self").is_some_and(|own| namespace(&pid.to_string()) == Some(own))
}

/// The variables by which programs find the views and each other.
pub fn variables(state: &NodeState, job_dir: &Path) -> Vec<(&'static str, OsString)> {
    let job = job_dir.file_name().unwrap_or_default().to_owned();
    let mut variables = vec![
        ("TAMEIKE_JOB", job),
        (JOB_DIR_VARIABLE, job_dir.into()),
        (NODE_VARIABLE, state.record.node.0.to_string().into()),
        ("TAMEIKE_NODES", state.node_count.to_string().into()),
    ];
    variables.extend(state.record.mounts.iter().map(|(view, path)| (view.variable(), path.into())));
    variables
}

fn write_command(node_dir: &Path, name: &str) -> Result<()> {
    let path = command_path(node_dir, name)?;
    let ProcessId { pid, start } = ProcessId::own()?;
    let failed = |error| Fault::from_os(format_args!("writing {}", path.display()), &error);
    let text = serde_json::to_vec(&Entered { pid, start }).map_err(|error| failed(error.into()))?;
    std::fs::write(&path, text).map_err(failed)
}

/// The process of a command that was entered.
pub fn read_command(node_dir: &Path, name: &str) -> Result<ProcessId> {
    let path = command_path(node_dir, name)?;
    let failed = |error| Fault::from_os(format_args!("reading {}", path.display()), &error);
    let text = std::fs::read(&path).map_err(failed)?;
    let Entered { pid, start } = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
    Ok(ProcessId { pid, start })
}

fn command_path(node_dir: &Path, name: &str) -> Result<std::path::PathBuf> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if name.is_empty() || !name.chars().all(plain) {
        return Err(Fault::new(Errno::EINVAL, format!("{name:?} is not the name of a command")));
    }
    Ok(node_dir.join("commands").join(name))
}
