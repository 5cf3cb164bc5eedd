//! Jobs of which only stores are visible: examined, removed if they have no dirty data, and reported.

use super::janitor;
use super::stores::{self, Store};
use std::path::PathBuf;
use tameike_agent::control::{AgentControl, Undrained};
use tameike_core::{Errno, JobId, Result};

/// A job of which only stores are visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// The job.
    pub job: JobId,
    /// Device directories that are not needed any more.
    pub needless: Vec<PathBuf>,
    /// Device directories that are kept.
    pub kept: Vec<PathBuf>,
    /// Their dirty data.
    left: Undrained,
    /// Messages on parts that could not be examined or removed.
    faults: Vec<String>,
}

impl Orphan {
    /// Describes what is kept, like [`janitor::Kept::describe`].
    pub fn describe(&self) -> Option<String> {
        let device = self.kept.first()?;
        let names: Vec<_> = self.kept.iter().map(|device| device.display().to_string()).collect();
        let what = match self.left {
            left if left.is_nothing() => "may have left data on its nodes".to_owned(),
            left => format!("left {}", janitor::show_left(left)),
        };
        let faults = self.faults.iter().map(|fault| format!(" ({fault})")).collect::<String>();
        let option = janitor::device_option(device.parent().unwrap_or(device));
        Some(format!(
            "job {job} was interrupted and {what} (its directory is missing, and its data is in {stores}){faults}; \
             run: tameike recover --job {job}{option}",
            job = self.job,
            stores = names.join(", ")
        ))
    }

    /// Returns messages on removed stores.
    fn removed(&self) -> impl Iterator<Item = String> {
        let message = |device: &PathBuf| {
            let device = device.display();
            format!(
                "removed {device} of job {}, whose directory is missing: it had no data to drain",
                self.job
            )
        };
        self.needless.iter().map(message)
    }
}

/// Removes stores in these directories that belong to this user's jobs of which nothing else is left. Stores with dirty data
/// stay, and stores whose job directory may only be invisible here. Returns messages for the user.
pub fn sweep<A: AgentControl>(roots: &[PathBuf]) -> Vec<String> {
    let mut messages = Vec::new();
    for mut orphan in examine::<A>(roots) {
        for device in std::mem::take(&mut orphan.needless) {
            match janitor::remove_device(&device) {
                Ok(()) => orphan.needless.push(device),
                Err(fault) => {
                    orphan.faults.push(fault.to_string());
                    orphan.kept.push(device);
                }
            }
        }
        messages.extend(orphan.removed().chain(orphan.describe()));
    }
    messages
}

/// Examines the jobs of which only stores are found, without those whose stores another process has open. The examination of a
/// store moves its log into its table, and keeps all data.
pub fn examine<A: AgentControl>(roots: &[PathBuf]) -> Vec<Orphan> {
    let stores = stores::find(roots);
    let mut found = Vec::new();
    for (job, stores) in stores::orphaned(&stores) {
        let examined: Vec<_> = stores.into_iter().map(|store| (store, examine_store::<A>(store))).collect();
        if examined.iter().any(|(_, left)| left.as_ref().is_err_and(|fault| fault.errno == Errno::EBUSY)) {
            continue;
        }
        // One node's dirty data may need the names that another node's journal knows.
        let others = examined.iter().any(|(_, left)| !left.as_ref().is_ok_and(|left| left.is_nothing()));
        let (needless, kept, left, faults) = Default::default();
        let mut orphan = Orphan { job, needless, kept, left, faults };
        for (store, left) in examined {
            match left {
                Ok(left) if left.is_needless(others) && store.owner.is_gone() => {
                    orphan.needless.push(store.dir.clone());
                    continue;
                }
                // A starting job, whose directory may be invisible here, may still use it.
                Ok(_) if store.is_unused() => continue,
                Ok(left) => orphan.left += left,
                Err(fault) => orphan.faults.push(fault.to_string()),
            }
            orphan.kept.push(store.dir.clone());
        }
        found.push(orphan);
    }
    found
}

fn examine_store<A: AgentControl>(store: &Store) -> Result<Undrained> {
    if store.is_unused() { Ok(Undrained::default()) } else { A::inspect(&store.dir) }
}
