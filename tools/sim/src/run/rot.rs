//! Rot: what a disk gives back changed is lost, and nothing else. The check of the stopped stores knows which files
//! have lost bytes; reads of these may fail, but never bring them, and a receipt does not call such a file complete.
//! Clean bytes of the cache view are not lost, and no read is told that they have rotted.

use super::{Call, Checked, Run};
use crate::model::ObjectId;
use crate::op::Op;
use std::collections::BTreeSet;
use tameike_agent::check::{Part, Severity};
use tameike_core::receipt::Receipt;
use tameike_core::{FileKind, View};

impl Run {
    /// With `is_judged` nothing is wrong in what all nodes would leave if they died now, but what has rotted there: data
    /// before the record that names it, no block of two units, no entry without its inode.
    pub(super) fn check_stores(&mut self, is_judged: bool) -> Checked {
        self.lost = BTreeSet::new();
        let stores =
            self.world.check_stores().map_err(|fault| format!("the stores cannot be read: {fault}"))?;
        for (node, report) in stores {
            for finding in &report.findings {
                let has_rotted = finding.part == Part::Extents && self.rotten.contains(&node);
                if has_rotted && finding.severity > Severity::Note {
                    self.lost.extend(finding.lost.iter().filter_map(|loss| loss.inode).map(|inode| inode.0));
                } else if finding.severity > Severity::Note && is_judged && !self.has_losses {
                    return Err(format!("the store of node {node} is not whole: {:?}", report.findings));
                }
            }
        }
        Ok(())
    }

    /// Finds what has rotted during the calls that have ended now; what had before may have been cut by them. Agents read also what
    /// the records name that they have not written to their logs yet: only then do the stores tell of it.
    pub(super) async fn look_for_rot(&mut self) -> Checked {
        if !self.has_rotted {
            return Ok(());
        }
        for &node in &self.rotten {
            self.world.write_log(node).await;
        }
        let before = self.lost.clone();
        self.check_stores(false)?;
        self.lost.extend(before);
        Ok(())
    }

    /// Whether a call may be told that a disk has changed what it holds. What changes while calls run may be written anew by one of them,
    /// after another was told, so that no store has lost it in the end.
    pub(super) fn may_tell_of_rot(&mut self, call: &Call) -> bool {
        match (&call.op, &call.open, call.view) {
            (Op::Read { .. }, Some(open), View::Cache) => {
                self.rots || self.may_be_damaged(call.view, open.object)
            }
            _ => self.has_rotted,
        }
    }

    /// Whether a read of a file may fail for good, as a disk has changed what it held.
    pub(super) fn may_be_damaged(&mut self, view: View, object: ObjectId) -> bool {
        let inode = self.model(view).object(object).inode;
        inode.is_some_and(|inode| self.lost.contains(&inode))
    }

    /// Nothing more is asked of files that have lost bytes.
    pub(super) fn give_up_damaged(&mut self, view: View) {
        for id in self.model(view).all().into_values() {
            let is_damaged = self.damaged.contains(&(view.index(), id)) || self.may_be_damaged(view, id);
            if is_damaged && self.model(view).object(id).kind == FileKind::File {
                self.model(view).object_mut(id).data.forget();
            }
        }
    }

    /// Whether all that a receipt says is missing has rotted.
    pub(super) fn lacks_only_rotten(&mut self, receipt: &Receipt) -> bool {
        receipt.faults.is_empty()
            && receipt.missing().all(|file| match self.model(View::Cache).find(&file.path) {
                Ok(id) => self.may_be_damaged(View::Cache, id),
                Err(_) => false,
            })
    }
}
