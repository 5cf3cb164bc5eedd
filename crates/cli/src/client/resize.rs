//! `tameike grow`, `tameike shrink` and `tameike restart`: change the nodes of a running job.

use super::connection::Connection;
use crate::arguments::{GrowArguments, JobChoice, RestartArguments, ShrinkArguments};
use crate::driver::protocol::{ClientRequest, DriverReply};
use crate::place::record::JobRecord;
use crate::report::progress::{self, Display};
use crate::report::{self, plural};
use crate::settings;
use std::path::Path;
use tameike_core::Result;

/// Adds nodes. Returns the exit code.
pub fn grow(arguments: &GrowArguments) -> u8 {
    let GrowArguments { job, local, hosts, hostfile } = arguments;
    let added = settings::added_nodes(*local, hosts.as_deref(), hostfile.as_deref()).and_then(|nodes| {
        let count = nodes.len();
        change(job, &ClientRequest::Grow { nodes })?;
        report::say(format_args!("{count} {} added", plural(count, "node")));
        Ok(0)
    });
    report::exit_code(added)
}

/// Removes nodes. Returns the exit code.
pub fn shrink(arguments: &ShrinkArguments) -> u8 {
    let nodes = arguments.nodes.clone();
    report::exit_code(change(&arguments.job, &ClientRequest::Shrink { nodes }).map(|()| 0))
}

/// Restarts the agents of nodes. Returns the exit code.
pub fn restart(arguments: &RestartArguments) -> u8 {
    let absolute = |program: &std::path::PathBuf| std::path::absolute(program);
    let program = arguments.program.as_ref().map(absolute).transpose();
    let doing = || "finding the program";
    let restarted = program.map_err(|error| tameike_core::Fault::from_os(doing(), &error));
    let nodes = arguments.nodes.clone();
    report::exit_code(restarted.and_then(|program| {
        change(&arguments.job, &ClientRequest::Restart { nodes, program, new_store: false })?;
        Ok(0)
    }))
}

/// Sends the request, and shows progress until the driver has made the change.
fn change(choice: &JobChoice, request: &ClientRequest) -> Result<()> {
    let (job_dir, _) = JobRecord::find(choice.job.as_ref())?;
    change_nodes(&job_dir, request)
}

/// Sends the request to the driver of the job in `job_dir`, and shows progress until it has made the change.
pub fn change_nodes(job_dir: &Path, request: &ClientRequest) -> Result<()> {
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
