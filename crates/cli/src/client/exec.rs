//! `tameike exec`: a command on one node, or on all at once.
//!
//! Outside the job's namespaces the command is started from here. Inside, where a process may neither enter
//! another node's namespaces nor reach the user's ssh configuration, the job's driver starts it, with the
//! open files of this process as its input and output.

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
    match start(arguments).and_then(wait) {
        Ok(code) => code,
        Err(fault) => {
            report::say(format_args!("{fault}"));
            exit::FAILED
        }
    }
}

/// The directory and record of the job: inside a job the one we are in, whatever TMPDIR says now.
fn find_job(arguments: &ExecArguments) -> Result<(PathBuf, JobRecord)> {
    if let (Some(dir), Some(job)) = (std::env::var_os(JOB_DIR_VARIABLE), &arguments.job.job) {
        let dir = PathBuf::from(dir);
        if dir.file_name() == Some(job.as_str().as_ref()) {
            // Who could write there would choose what runs here.
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
    // On a host without the driver, ssh from here is the only way.
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
    // At the same time: to start one may take a way to another host and back.
    let starting: Vec<_> = (0..place.0.plan.nodes.len() as u32)
        .map(|node| {
            let (place, launch) = (place.clone(), launch(node));
            start_thread("start", move || Task::start(way, &place.0, &place.1, &launch, Stdio::Labelled))
        })
        .collect::<Result<_>>()?;
    let panicked = |_| Err(Fault::io("starting a command panicked"));
    starting.into_iter().map(|starting| starting.join().unwrap_or_else(panicked)).collect()
}

/// Waits for all tasks, passes signals on to them, and returns the largest exit code.
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
        // The receiver below waits for every one of them.
        start_thread("task", move || drop(ended.send(task.wait())))?;
    }
    drop(ended);
    let codes: Vec<Result<u8>> = codes.iter().take(count).collect();
    let code = codes.into_iter().map(|code| {
        code.unwrap_or_else(|fault| {
            report::say(format_args!("{fault}"));
            exit::FAILED
        })
    });
    Ok(code.max().unwrap_or(exit::FAILED))
}
