//! `tameike grow`, `tameike shrink` and `tameike restart`: change the nodes of a running job, or of the job that serves a volume.

use super::connection::Connection;
use crate::arguments::{
    AddedNodes, GrowArguments, JobChoice, RestartArguments, RestartedNodes, ShrinkArguments,
};
use crate::driver::protocol::{ClientRequest, DriverReply};
use crate::place::record::JobRecord;
use crate::report::progress::{self, Display};
use crate::report::{self, plural};
use crate::settings;
use std::path::{Path, PathBuf};
use tameike_core::{Fault, Result};

/// Adds nodes. Returns the exit code.
pub fn grow(arguments: &GrowArguments) -> u8 {
    report::exit_code(directory(&arguments.job).and_then(|dir| add_nodes(&dir, &arguments.added)))
}

/// Removes nodes. Returns the exit code.
pub fn shrink(arguments: &ShrinkArguments) -> u8 {
    report::exit_code(directory(&arguments.job).and_then(|dir| remove_nodes(&dir, &arguments.nodes)))
}

/// Restarts the agents of nodes. Returns the exit code.
pub fn restart(arguments: &RestartArguments) -> u8 {
    let restarted = directory(&arguments.job);
    report::exit_code(restarted.and_then(|dir| restart_nodes(&dir, &arguments.restarted, false)))
}

fn directory(choice: &JobChoice) -> Result<PathBuf> {
    JobRecord::find(choice.job.as_ref()).map(|(dir, _)| dir)
}

/// As [`grow`], for the job in `job_dir`.
pub fn add_nodes(job_dir: &Path, AddedNodes { local, hosts, hostfile }: &AddedNodes) -> Result<u8> {
    let nodes = settings::added_nodes(*local, hosts.as_deref(), hostfile.as_deref())?;
    let count = nodes.len();
    change(job_dir, &ClientRequest::Grow { nodes })?;
    report::say(format_args!("{count} {} added", plural(count, "node")));
    Ok(0)
}

/// As [`shrink`], for the job in `job_dir`.
pub fn remove_nodes(job_dir: &Path, nodes: &[u32]) -> Result<u8> {
    change(job_dir, &ClientRequest::Shrink { nodes: nodes.to_vec() }).map(|()| 0)
}

/// As [`restart`], for the job in `job_dir`. Failed nodes of a volume may get new stores.
pub fn restart_nodes(job_dir: &Path, restarted: &RestartedNodes, new_store: bool) -> Result<u8> {
    let RestartedNodes { nodes, program } = restarted;
    let absolute = |program: &PathBuf| std::path::absolute(program);
    let program = program.as_ref().map(absolute).transpose();
    let program = program.map_err(|error| Fault::from_os("finding the program", &error))?;
    change(job_dir, &ClientRequest::Restart { nodes: nodes.clone(), program, new_store }).map(|()| 0)
}

/// Sends the request, and shows progress until the driver has made the change.
fn change(job_dir: &Path, request: &ClientRequest) -> Result<()> {
    let mut connection = Connection::ask(job_dir, request, &[])?;
    let mut display = Display::new(progress::RESIZE);
    loop {
        match connection.must_next()? {
            DriverReply::Resizing { copies } => display.resizing(copies),
            DriverReply::Resized => {
                display.finish();
                return Ok(());
            }
            other => return Err(other.out_of_turn()),
        }
    }
}
