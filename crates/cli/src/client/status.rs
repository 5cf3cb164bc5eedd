//! `tameike status` and `tameike cache stat`.

use super::connection::Connection;
use crate::arguments::{StatArguments, StatusArguments};
use crate::driver::protocol::{ClientRequest, DriverReply, JobStatus};
use crate::exit;
use crate::place::base::{self, Base};
use crate::place::record::JobRecord;
use crate::place::{janitor, orphans, stores};
use crate::report;
use serde::Serialize;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tameike_agent::control::AgentControl;
use tameike_agent::files::{FileSelection, FileSelector};
use tameike_core::{Errno, Fault, JobId, Result, View};

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
enum Known {
    Running(JobStatus),
    /// The job was interrupted; `recover` finishes it.
    Interrupted {
        job: JobId,
        /// Its leftovers and the command that recovers it, as `recover` prints them.
        state: String,
    },
    /// Its driver does not reply.
    Failed {
        job: JobId,
        fault: String,
    },
}

/// Prints the table of a running job.
type Table = fn(&JobStatus, &mut dyn Write) -> std::io::Result<()>;

/// Shows one job or all jobs. Returns the exit code.
pub fn status<A: AgentControl>(arguments: &StatusArguments) -> u8 {
    show::<A>(arguments, report::status::write)
}

/// Shows the sources of reads of one job or all, or the nodes that cache files of one. Returns the exit code.
pub fn cache_stat<A: AgentControl>(arguments: &StatArguments) -> u8 {
    if arguments.files.is_none() && arguments.paths.is_empty() {
        return show::<A>(&arguments.status, report::cache::write);
    }
    report::exit_code(show_files(arguments).map(|is_all| if is_all { 0 } else { exit::FAILED }))
}

/// Returns true if all files were found.
fn show_files(arguments: &StatArguments) -> Result<bool> {
    let (job_dir, record) = JobRecord::find(arguments.status.job.job.as_ref())?;
    let asked = match arguments.files {
        Some(count) => FileSelection::Most(count),
        None => {
            let files: Result<_> = arguments.paths.iter().map(|path| file_at(path, &record)).collect();
            FileSelection::These(files?)
        }
    };
    let mut connection = Connection::ask(&job_dir, &ClientRequest::Files(asked), &[])?;
    let mut lines = match connection.must_next()? {
        DriverReply::Files(lines) => lines,
        other => return Err(other.out_of_turn()),
    };
    for (line, path) in lines.iter_mut().zip(&arguments.paths) {
        line.file = path.to_string_lossy().escape_debug().to_string();
    }
    let mut out = std::io::stdout().lock();
    let written = if arguments.status.json {
        let document = serde_json::json!({ "job": record.plan.job, "files": lines });
        serde_json::to_string_pretty(&document)
            .map_err(std::io::Error::from)
            .and_then(|text| writeln!(out, "{text}"))
    } else {
        report::files::write(&lines, &mut out)
    };
    written.map_err(|error| Fault::from_os("printing the nodes that cache files", &error))?;
    Ok(lines.iter().all(|line| line.fault.is_none()))
}

/// Identifies a file of the shared directory by its relative path, a file of the shared view by its inode number.
fn file_at(path: &Path, record: &JobRecord) -> Result<FileSelector> {
    let absolute = std::path::absolute(path)
        .map_err(|error| Fault::from_os(format_args!("finding {}", path.display()), &error))?;
    let mounts = record.nodes.iter().flat_map(|node| &node.mounts);
    let mut shared = mounts.filter(|(view, _)| *view == View::JobShared).map(|(_, mount)| mount);
    if shared.any(|mount| absolute.starts_with(mount)) {
        let status = std::fs::symlink_metadata(path);
        return status
            .map(|found| FileSelector::Inode(found.ino()))
            .map_err(|error| Fault::from_os(format_args!("stat of {}", path.display()), &error));
    }
    let below = super::warm::in_shared(path, record)?;
    Ok(FileSelector::Shared(below.into_os_string().into_vec()))
}

fn show<A: AgentControl>(arguments: &StatusArguments, table: Table) -> u8 {
    let shown = gather::<A>(arguments).and_then(|jobs| {
        let written = if arguments.json { write_json(&jobs) } else { write_text(&jobs, table) };
        written.map_err(|error| Fault::from_os("printing the state", &error))
    });
    report::exit_code(shown.map(|()| 0))
}

fn gather<A: AgentControl>(arguments: &StatusArguments) -> Result<Vec<Known>> {
    let today = Base::open(&base::path())?;
    let roots = stores::roots(&today, &stores::search_dirs(&arguments.device)?)?;
    let found = stores::find(&roots);
    let wanted = |job: &JobId| arguments.job.job.as_ref().is_none_or(|wanted| wanted == job);
    let mut known = Vec::new();
    for base in stores::bases(&today, &found) {
        let jobs = base.unless_gone(base.jobs())?.into_iter().filter(wanted);
        for dir in jobs.map(|job| base.job_path(&job)) {
            // On a host without the driver, the nodes' directories have the record.
            let record = if arguments.job.job.is_some() {
                JobRecord::read_anywhere(&dir)
            } else {
                JobRecord::read(&dir)
            };
            known.extend(base.unless_gone(record)?.map(|record| state_of::<A>(&dir, &record)));
        }
    }
    let orphans = orphans::examine::<A>(&roots).into_iter();
    for orphan in orphans.filter(|orphan| wanted(&orphan.job)) {
        known.extend(orphan.describe().map(|state| Known::Interrupted { state, job: orphan.job }));
    }
    match &arguments.job.job {
        Some(job) if known.is_empty() => {
            Err(Fault::new(Errno::ENOENT, format!("this user has no job {job} on this host")))
        }
        _ => Ok(known),
    }
}

fn state_of<A: AgentControl>(dir: &Path, record: &JobRecord) -> Known {
    let job = record.plan.job.clone();
    if !record.driver_is_alive() {
        return Known::Interrupted { state: janitor::examine::<A>(&job, dir).describe(), job };
    }
    match status_of(dir) {
        Ok(status) => Known::Running(status),
        Err(fault) => Known::Failed { job, fault: fault.to_string() },
    }
}

/// Asks the driver of the job in `dir` for its state.
pub fn status_of(dir: &Path) -> Result<JobStatus> {
    let mut connection = Connection::ask(dir, &ClientRequest::Status, &[])?;
    match connection.must_next()? {
        DriverReply::Status(status) => Ok(status),
        other => Err(other.out_of_turn()),
    }
}

fn write_json(jobs: &[Known]) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(jobs)?)
}

fn write_text(jobs: &[Known], table: Table) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if jobs.is_empty() {
        writeln!(out, "this user has no job on this host; `tameike run` or `tameike up` starts one")?;
    }
    for job in jobs {
        match job {
            Known::Running(status) => table(status, &mut out)?,
            Known::Interrupted { state, .. } => writeln!(out, "{state}")?,
            Known::Failed { job, fault } => writeln!(out, "job {job}: {fault}")?,
        }
    }
    Ok(())
}
