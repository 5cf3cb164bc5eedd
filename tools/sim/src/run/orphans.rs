//! Names without inodes, and wrong link counts, in a job-shared view whose agents failed and restarted.

use super::check::Seen;
use super::{Checked, Run};
use std::collections::BTreeMap;
use tameike_core::{FileKind, View};

impl Run {
    /// Returns true if the inode of a name may be lost with its agent.
    pub(super) fn may_be_orphan(&mut self, view: View, path: &str) -> bool {
        view == View::JobShared && self.has_orphans && self.model(view).is_unknown(path, false)
    }

    /// Checks that the link count of each file equals the number of its names.
    pub(super) fn compare_counts(&self, view: View, seen: &Seen) -> Checked {
        // A disk that lost writes may have lost a link whose name survived, or an unlink.
        let forgotten = self.has_losses || self.log_broken;
        if view == View::JobShared && self.has_orphans && forgotten {
            return Ok(());
        }
        let mut names = BTreeMap::<u64, u32>::new();
        seen.values().for_each(|attr| *names.entry(attr.inode.0).or_default() += 1);
        for (path, attr) in seen.iter().filter(|(_, attr)| attr.kind == FileKind::File) {
            let (count, names) = (attr.nlink, names[&attr.inode.0]);
            if count != names {
                return Err(format!(
                    "{}: {path} has a link count of {count}, and {names} names",
                    view.as_str()
                ));
            }
        }
        Ok(())
    }
}
