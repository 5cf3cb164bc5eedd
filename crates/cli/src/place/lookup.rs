//! Lookup of the job of a command: by its directory, or by its stores.

use super::base::{self, Base};
use super::record::JobRecord;
use super::stores;
use std::path::PathBuf;
use tameike_core::{Errno, Fault, JobId, Result};

impl JobRecord {
    /// Reads the record of the selected job: the named one, or the only running one. If this TMPDIR has no such job, it
    /// searches stores for jobs with another TMPDIR: jobs of other batch jobs never make the choice ambiguous.
    pub fn find(job: Option<&JobId>) -> Result<(PathBuf, Self)> {
        let today = Base::open(&base::path())?;
        match Self::find_in(std::slice::from_ref(&today), job) {
            Err(fault) if fault.errno == Errno::ENOENT => {
                let bases = stores::bases(&today, &stores::find(&stores::roots(&today, &[])?));
                Self::find_in(&bases, job)
            }
            found => found,
        }
    }

    fn find_in(bases: &[Base], job: Option<&JobId>) -> Result<(PathBuf, Self)> {
        let Some(job) = job else {
            let mut all = Vec::new();
            for base in bases {
                all.extend(base.unless_gone(Self::all(base))?);
            }
            return only(all);
        };
        for dir in bases.iter().map(|base| base.job_path(job)) {
            if let Some(record) = Self::read_anywhere(&dir)? {
                return Ok((dir, record));
            }
        }
        Err(Fault::new(Errno::ENOENT, format!("this user has no job {job} on this host")))
    }
}

fn only(mut found: Vec<(PathBuf, JobRecord)>) -> Result<(PathBuf, JobRecord)> {
    found.retain(|(_, record)| record.driver_is_alive());
    if found.len() > 1 {
        let names: Vec<_> = found.iter().map(|(_, record)| record.plan.job.as_str()).collect();
        let message = format!("several jobs run here: choose one with --job ({})", names.join(", "));
        return Err(Fault::new(Errno::EINVAL, message));
    }
    let none = || Fault::new(Errno::ENOENT, "this user runs no job on this host; `tameike up` starts one");
    found.pop().ok_or_else(none)
}
