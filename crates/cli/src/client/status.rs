//! `tameike status` and `tameike cache stat`.

use super::connection::Connection;
use crate::arguments::StatusArguments;
use crate::driver::protocol::{ClientRequest, DriverReply, JobStatus};
use crate::exit;
use crate::place::base::{self, Base};
use crate::place::record::JobRecord;
use crate::report;
use serde::Serialize;
use std::io::Write;
use tameike_core::{Fault, JobId, Result};

/// What is known of one job.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
enum Known {
    /// It runs.
    Running(JobStatus),
    /// It was cut off; `recover` finishes it.
    CutOff {
        /// The job.
        job: JobId,
    },
    /// Its driver does not answer.
    Failed {
        /// The job.
        job: JobId,
        /// Why.
        fault: String,
    },
}

/// Prints a running job.
type Table = fn(&JobStatus, &mut dyn Write) -> std::io::Result<()>;

/// Shows one job or all. Returns the exit code.
pub fn status(arguments: &StatusArguments) -> u8 {
    show(arguments, report::status::write)
}

/// Shows where one job or all read from. Returns the exit code.
pub fn cache_stat(arguments: &StatusArguments) -> u8 {
    show(arguments, report::cache::write)
}

fn show(arguments: &StatusArguments, table: Table) -> u8 {
    let shown = gather(arguments).and_then(|jobs| {
        let written = if arguments.json { write_json(&jobs) } else { write_text(&jobs, table) };
        written.map_err(|error| Fault::from_os("printing the state", &error))
    });
    match shown {
        Ok(()) => 0,
        Err(fault) => {
            report::say(format_args!("{fault}"));
            exit::FAILED
        }
    }
}

fn gather(arguments: &StatusArguments) -> Result<Vec<Known>> {
    let base = Base::open(&base::path())?;
    let records = match &arguments.job.job {
        Some(job) => vec![JobRecord::find(&base, Some(job))?.1],
        None => JobRecord::all(&base)?,
    };
    let look = |record: JobRecord| {
        let job = record.plan.job.clone();
        if !record.driver_is_alive() {
            return Known::CutOff { job };
        }
        match ask(&base, &job) {
            Ok(status) => Known::Running(status),
            Err(fault) => Known::Failed { job, fault: fault.to_string() },
        }
    };
    Ok(records.into_iter().map(look).collect())
}

fn ask(base: &Base, job: &JobId) -> Result<JobStatus> {
    let mut connection = Connection::ask(&base.job_path(job), &ClientRequest::Status, &[])?;
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
        writeln!(out, "no job of yours on this host; `tameike run` or `tameike up` starts one")?;
    }
    for job in jobs {
        match job {
            Known::Running(status) => table(status, &mut out)?,
            Known::CutOff { job } => {
                writeln!(out, "job {job}: cut off; `tameike recover --job {job}` finishes its drain")?;
            }
            Known::Failed { job, fault } => writeln!(out, "job {job}: {fault}")?,
        }
    }
    Ok(())
}
