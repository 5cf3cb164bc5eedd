//! `tameike cache warm`: loads files into the job.

use super::connection::Connection;
use crate::arguments::WarmArguments;
use crate::driver::protocol::{ClientRequest, DriverReply};
use crate::exit;
use crate::place::record::JobRecord;
use crate::report::progress::{self, Display};
use crate::report::{self, plural};
use crate::settings::size::show;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;
use tameike_core::wire::admin::Warmed;
use tameike_core::{Errno, Fault, Result, View};
use tameike_io::os::process::monotonic;

/// Loads files into a job and reports how many. Returns the exit code.
pub fn cache_warm(arguments: &WarmArguments) -> u8 {
    let began = monotonic();
    report::exit_code(warm(arguments).map(|warmed| {
        report_loaded(&warmed, monotonic() - began);
        let is_whole = warmed.failed == 0 && warmed.left_out_files == 0;
        if is_whole { 0 } else { exit::FAILED }
    }))
}

fn report_loaded(warmed: &Warmed, took: Duration) {
    let files = plural(warmed.files as usize, "file");
    let seconds = took.as_secs_f64();
    report::say(format_args!("{} {files} loaded, {} in {seconds:.1} s", warmed.files, show(warmed.bytes)));
    warmed.faults.iter().for_each(|fault| report::say(format_args!("{fault}")));
    let more = warmed.failed - (warmed.faults.len() as u64).min(warmed.failed);
    if more > 0 {
        report::say(format_args!("and {more} more that could not be read"));
    }
    if warmed.left_out_files > 0 {
        let files = plural(warmed.left_out_files as usize, "file");
        report::say(format_args!(
            "{} of {} {files} did not fit the cache area: see `tameike status`, and --capacity cache=SIZE",
            show(warmed.left_out_bytes),
            warmed.left_out_files
        ));
    }
}

fn warm(arguments: &WarmArguments) -> Result<Warmed> {
    let (job_dir, record) = JobRecord::find(arguments.job.job.as_ref())?;
    let bytes = |path: &PathBuf| in_shared(path, &record).map(|path| path.into_os_string().into_vec());
    let paths: Result<_> = arguments.paths.iter().map(bytes).collect();
    let mut connection = Connection::ask(&job_dir, &ClientRequest::Warm { paths: paths? }, &[])?;
    let mut display = Display::new(progress::WARM);
    let warmed = loop {
        match connection.must_next()? {
            DriverReply::Warming(so_far) => display.warmed(&so_far),
            DriverReply::Warmed(warmed) => break warmed,
            other => return Err(other.out_of_turn()),
        }
    };
    display.finish();
    Ok(warmed)
}

/// Returns a path relative to the job's shared directory.
pub(super) fn in_shared(path: &Path, record: &JobRecord) -> Result<PathBuf> {
    let job = &record.plan.job;
    let none = || Fault::new(Errno::EINVAL, format!("job {job} has no shared directory"));
    let shared = record.plan.shared_dir.as_ref().ok_or_else(none)?;
    let views = record.nodes.iter().flat_map(|node| &node.mounts).filter(|(view, _)| *view == View::Cache);
    let absolute = std::path::absolute(path)
        .map_err(|error| Fault::from_os(format_args!("finding {}", path.display()), &error))?;
    // Prefer the path with links resolved, if it is visible here.
    let seen = [path.canonicalize().ok(), Some(absolute)];
    let roots: Vec<_> = views
        .map(|(_, mount)| mount.clone())
        .chain([shared.clone()])
        .chain(shared.canonicalize().ok())
        .collect();
    let below =
        |path: &PathBuf| roots.iter().find_map(|root| path.strip_prefix(root).ok().map(Path::to_owned));
    let is_plain = |path: &PathBuf| path.components().all(|part| matches!(part, Component::Normal(_)));
    seen.iter().flatten().find_map(below).filter(is_plain).ok_or_else(|| {
        Fault::new(
            Errno::EINVAL,
            format!(
                "{} is neither in the shared directory of job {job}, {}, nor in its cache view",
                path.display(),
                shared.display()
            ),
        )
    })
}
