//! `tameike check --replicas`: compares the copies of a running job's data.

use super::connection::Connection;
use crate::arguments::CheckArguments;
use crate::driver::protocol::{ClientRequest, DriverReply};
use crate::place::record::JobRecord;
use crate::report;
use tameike_core::{Fault, Result};

/// Compares and repairs the copies of a job, and prints what was found. Returns the exit code.
pub fn check_replicas(arguments: &CheckArguments) -> u8 {
    report::exit_code(check(arguments))
}

fn check(arguments: &CheckArguments) -> Result<u8> {
    let (job_dir, _) = JobRecord::find(arguments.job.job.as_ref())?;
    let mut connection = Connection::ask(&job_dir, &ClientRequest::CheckCopies, &[])?;
    let lines = match connection.must_next()? {
        DriverReply::CopiesChecked(lines) => lines,
        other => return Err(other.out_of_turn()),
    };
    let mut out = std::io::stdout().lock();
    let written = match arguments.json {
        true => report::copies::write_json(&lines, &mut out),
        false => report::copies::write(&lines, &mut out),
    };
    written.map_err(|error| Fault::io(format!("printing the findings: {error}")))?;
    Ok(report::copies::code(&lines))
}
