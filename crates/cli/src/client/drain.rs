//! `tameike drain` and `tameike down`.

use super::connection::Connection;
use crate::arguments::DrainArguments;
use crate::driver::protocol::{ClientRequest, DriverReply, Mirrored};
use crate::exit;
use crate::place::record::JobRecord;
use crate::report;
use crate::report::progress::{self, Display};
use std::path::Path;
use tameike_core::Result;
use tameike_core::receipt::Receipt;

/// The receipt of a drain, and the outcome of the mirror of a job that has ended.
type Outcome = (Receipt, Option<Mirrored>);

/// Drains the job and prints the receipt. Returns the exit code.
pub fn drain(arguments: &DrainArguments) -> u8 {
    deliver(arguments, ask(arguments, &ClientRequest::Drain { verify: arguments.verify }))
}

/// Drains the job, ends it, and prints the receipt. Returns the exit code.
pub fn down(arguments: &DrainArguments) -> u8 {
    deliver(arguments, ask(arguments, &ClientRequest::Down { verify: arguments.verify }))
}

fn deliver(arguments: &DrainArguments, outcome: Result<Outcome>) -> u8 {
    let receipt_path = arguments.receipt.as_deref();
    report::exit_code(outcome.map(|(receipt, mirror)| {
        let code = report::receipt::deliver(&receipt, receipt_path);
        for message in mirror.iter().flat_map(|mirrored| &mirrored.messages) {
            println!("tameike: {message}");
        }
        if mirror.is_none_or(|mirrored| mirrored.is_complete) { code } else { exit::DRAIN_INCOMPLETE }
    }))
}

/// Sends the request, shows progress, and returns when the driver closes the connection: after `down`, when the job has been
/// removed.
fn ask(arguments: &DrainArguments, request: &ClientRequest) -> Result<Outcome> {
    report::receipt::check_place(arguments.receipt.as_deref())?;
    let (job_dir, _) = JobRecord::find(arguments.job.job.as_ref())?;
    end(&job_dir, request)
}

/// As [`ask`], for the job in `job_dir`.
pub fn end(job_dir: &Path, request: &ClientRequest) -> Result<Outcome> {
    let mut connection = Connection::ask(job_dir, request, &[])?;
    let mut display = Display::new(progress::DRAIN);
    let receipt = loop {
        match connection.must_next()? {
            DriverReply::Progress(progress) => display.drained(progress),
            DriverReply::Receipt(receipt) => break receipt,
            DriverReply::Status(_)
            | DriverReply::Warming(_)
            | DriverReply::Warmed(_)
            | DriverReply::Files(_)
            | DriverReply::Measured(_)
            | DriverReply::Resizing { .. }
            | DriverReply::Resized
            | DriverReply::CopiesChecked(_)
            | DriverReply::Mirrored(_)
            | DriverReply::Ended { .. }
            | DriverReply::Failed(_) => {}
        }
    };
    display.finish();
    let mut mirror = None;
    while let Some(reply) = connection.next()? {
        if let DriverReply::Mirrored(mirrored) = reply {
            mirror = Some(mirrored);
        }
    }
    Ok((receipt, mirror))
}
