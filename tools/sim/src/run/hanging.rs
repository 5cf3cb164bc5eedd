//! What is left of a job-shared view whose agents have died, and were started again.

use super::check::Seen;
use super::{Checked, Run};
use std::collections::BTreeMap;
use tameike_core::{FileKind, View};

impl Run {
    /// Whether the inode of a name may have died with its agent.
    pub(super) fn may_hang(&mut self, view: View, path: &str) -> bool {
        view == View::JobShared && self.has_orphans && self.model(view).is_doubtful(path, false)
    }

    /// A file has as many names as it counts.
    pub(super) fn compare_counts(&self, view: View, seen: &Seen) -> Checked {
        // What a disk has forgotten may have counted a name that another one keeps, or taken one from the count.
        let forgotten = self.has_losses || self.log_broken;
        if view == View::JobShared && self.has_orphans && forgotten {
            return Ok(());
        }
        let mut names = BTreeMap::<u64, u32>::new();
        seen.values().for_each(|attr| *names.entry(attr.inode.0).or_default() += 1);
        for (path, attr) in seen.iter().filter(|(_, attr)| attr.kind == FileKind::File) {
            let (count, names) = (attr.nlink, names[&attr.inode.0]);
            if count != names {
                return Err(format!("{}: {path} counts {count} names, and has {names}", view.as_str()));
            }
        }
        Ok(())
    }
}
