//! `tameike exec`: runs a command on one node, or on all at once.
//!
//! Outside the job's namespaces, this process starts the command. Inside, a process can neither enter another node's
//! namespaces nor reach the user's ssh configuration: the job's driver starts the command, with the open files of this process
//! as its input and output.

mod labels;
mod task;

use crate::arguments::ExecArguments;
use crate::driver::protocol::Launch;
use crate::exit;
use crate::node::enter::JOB_DIR_VARIABLE;
use crate::place::base::control_socket;
use crate::place::record::{JobRecord, user_namespace};
use crate::report;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::start_thread;
use tameike_io::os::{owned, signal};
use task::{Stdio, Task, Way};

/// Runs the command. Returns the exit code.
pub fn exec(arguments: &ExecArguments) -> u8 {
    report::exit_code(start(arguments).and_then(wait))
}

/// Returns the directory and record of the job; inside a job, of this job regardless of TMPDIR.
fn find_job(arguments: &ExecArguments) -> Result<(PathBuf, JobRecord)> {
    if let (Some(dir), Some(job)) = (std::env::var_os(JOB_DIR_VARIABLE), &arguments.job.job) {
        let dir = PathBuf::from(dir);
        if dir.file_name() == Some(job.as_str().as_ref()) {
            // Another user who could write there would choose the command.
            owned::is_own_dir(&dir)?;
            let gone = || Fault::new(Errno::ENOENT, format!("job {job} has no record in {}", dir.display()));
            return Ok((dir.clone(), JobRecord::read_anywhere(&dir)?.ok_or_else(gone)?));
        }
    }
    JobRecord::find(arguments.job.job.as_ref())
}

fn start(arguments: &ExecArguments) -> Result<Vec<Task>> {
    let (job_dir, record) = find_job(arguments)?;
    let outside = record.driver_namespace == user_namespace();
    // A host without the driver has no socket: start over ssh.
    let way = if outside || !control_socket(&job_dir).exists() { Way::Directly } else { Way::ByDriver };
    let cwd = match &arguments.cwd {
        Some(dir) => dir.clone(),
        None => std::env::current_dir()
            .map_err(|error| Fault::from_os("finding the current directory", &error))?,
    };
    let launch = |node| Launch {
        preload: arguments.preload,
        ..Launch::here(node, cwd.clone(), arguments.command.clone(), arguments.variables.clone())
    };
    if !arguments.all {
        return Ok(vec![Task::start(way, &record, &job_dir, &launch(arguments.node), Stdio::Own)?]);
    }
    let place = Arc::new((record, job_dir));
    // In parallel, because a start may take a round trip to another host.
    let starting: Vec<_> = (0..place.0.plan.nodes.len() as u32)
        .filter(|node| !place.0.gone.contains(node))
        .map(|node| {
            let (place, launch) = (place.clone(), launch(node));
            start_thread("start", move || Task::start(way, &place.0, &place.1, &launch, Stdio::Labelled))
        })
        .collect::<Result<_>>()?;
    let panicked = |_| Err(Fault::io("starting a command panicked"));
    starting.into_iter().map(|starting| starting.join().unwrap_or_else(panicked)).collect()
}

/// Waits for all tasks, forwards signals to them, and returns the largest exit code.
fn wait(tasks: Vec<Task>) -> Result<u8> {
    let signals: Arc<Vec<_>> = Arc::new(tasks.iter().map(Task::signaller).collect());
    signal::watch_ending(move |arrived| {
        for signaller in signals.iter().filter(|s| arrived.from_process || !s.shares_terminal()) {
            signaller.signal(arrived.signal);
        }
    })?;
    let (ended, codes) = channel();
    let count = tasks.len();
    for task in tasks {
        let ended = ended.clone();
        start_thread("task", move || drop(ended.send(task.wait())))?;
    }
    drop(ended);
    let codes: Vec<Result<u8>> = codes.iter().take(count).collect();
    Ok(codes.into_iter().map(report::exit_code).max().unwrap_or(exit::FAILED))
}
