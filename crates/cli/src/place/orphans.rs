//! Jobs of which nothing is seen from here but stores: looked into, swept where they hold nothing, and told.

use super::janitor;
use super::stores::{self, Store};
use std::path::PathBuf;
use tameike_agent::control::{AgentControl, Left};
use tameike_core::{Errno, JobId, Result};

/// A job of which nothing is seen from here but stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// The job.
    pub job: JobId,
    /// Device directories that nobody needs any more.
    pub needless: Vec<PathBuf>,
    /// Those that are kept.
    pub kept: Vec<PathBuf>,
    /// What they hold that is not on the shared file system.
    left: Left,
    /// What could not be looked into or removed, in plain words.
    faults: Vec<String>,
}

impl Orphan {
    /// What is kept of it, in the words of [`janitor::Kept::describe`].
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
            "job {job} was cut off and {what} (its directory is gone, and what it has left is in {stores}){faults}; \
             run: tameike recover --job {job}{option}",
            job = self.job,
            stores = names.join(", ")
        ))
    }

    /// What was removed of it.
    fn removed(&self) -> impl Iterator<Item = String> {
        let told = |device: &PathBuf| {
            let device = device.display();
            format!("{device} of job {}, whose directory is gone, was needless and is removed", self.job)
        };
        self.needless.iter().map(told)
    }
}

/// Sweeps stores in these directories that belong to this user's jobs of which nothing else is left. Those with dirty data are kept.
/// Whose job's directory may only be hidden from here stays, too. Returns what is to be told.
pub fn sweep<A: AgentControl>(roots: &[PathBuf]) -> Vec<String> {
    let mut told = Vec::new();
    for mut orphan in look_into::<A>(roots) {
        for device in std::mem::take(&mut orphan.needless) {
            match janitor::remove_device(&device) {
                Ok(()) => orphan.needless.push(device),
                Err(fault) => {
                    orphan.faults.push(fault.to_string());
                    orphan.kept.push(device);
                }
            }
        }
        told.extend(orphan.removed().chain(orphan.describe()));
    }
    told
}

/// The jobs of which only stores are found. Stores that another process has open are passed over. To look into a store moves its log into
/// its table; what it holds stays.
pub fn look_into<A: AgentControl>(roots: &[PathBuf]) -> Vec<Orphan> {
    let stores = stores::find(roots);
    let mut found = Vec::new();
    for (job, stores) in stores::alone(&stores) {
        let looked: Vec<_> = stores.into_iter().map(|store| (store, look_into_store::<A>(store))).collect();
        if looked.iter().any(|(_, left)| left.as_ref().is_err_and(|fault| fault.errno == Errno::EBUSY)) {
            continue;
        }
        // One node's dirty data may need the names that another node's journal knows.
        let others = looked.iter().any(|(_, left)| !left.as_ref().is_ok_and(|left| left.is_nothing()));
        let (needless, kept, left, faults) = Default::default();
        let mut orphan = Orphan { job, needless, kept, left, faults };
        for (store, left) in looked {
            match left {
                Ok(left) if left.is_needless(others) && store.owner.is_gone() => {
                    orphan.needless.push(store.dir.clone());
                    continue;
                }
                // Its directory may only be hidden from here, and it is as yet to be used.
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

fn look_into_store<A: AgentControl>(store: &Store) -> Result<Left> {
    if store.is_unused() { Ok(Left::default()) } else { A::inspect(&store.dir) }
}
