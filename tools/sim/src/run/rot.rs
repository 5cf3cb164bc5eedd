//! Bit rot: a changed block of a disk is lost, and nothing else.
//!
//! The check of the stopped stores finds the files that lost bytes. Reads of them may fail, but never return the changed bytes, and
//! no receipt calls them complete. Clean bytes of the cache view are not lost, and no read fails because of them.

use super::{Call, Checked, Run};
use crate::model::ObjectId;
use crate::op::Op;
use std::collections::BTreeSet;
use tameike_agent::check::{Part, Severity};
use tameike_core::receipt::Receipt;
use tameike_core::{FileKind, View};

impl Run {
    /// Checks the stores that all nodes would leave if they failed now, and collects the inodes that lost bytes by bit rot. With
    /// `is_strict`, any other finding is a violation: a record without its data, a block of two units, an entry without inode.
    pub(super) fn check_stores(&mut self, is_strict: bool) -> Checked {
        self.lost = BTreeSet::new();
        let stores =
            self.world.check_stores().map_err(|fault| format!("the stores cannot be read: {fault}"))?;
        // A node that is getting a copy of a home may have units of an earlier one, whose files are gone. It drops them with the copy.
        let map = self.world.map();
        let wanted = self.world.cluster.replicas();
        let is_copying = map.homes().any(|home| map.copies(home) < wanted || map.joining(home).is_some());
        for (node, report) in stores {
            for finding in &report.findings {
                let has_rotted = finding.part == Part::Extents && self.rotten.contains(&node);
                let may_leak = self.has_gone_files || is_copying;
                let is_leak = may_leak && finding.part == Part::Extents && finding.lost.is_empty();
                if is_leak {
                    continue;
                }
                if has_rotted && finding.severity > Severity::Note {
                    self.lost.extend(finding.lost.iter().filter_map(|loss| loss.inode).map(|inode| inode.0));
                } else if finding.severity > Severity::Note && is_strict && !self.has_losses {
                    return Err(format!("the store of node {node} is not whole: {:?}", report.findings));
                }
            }
        }
        Ok(())
    }

    /// Adds the inodes that bit rot hit during the calls that just ended; calls may have truncated those of earlier. Writes the logs
    /// first, since agents also read records that they have not logged yet.
    pub(super) async fn find_rot(&mut self) -> Checked {
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

    /// Returns true if a call may fail with EIO because of bit rot. While bits rot, a concurrent call may overwrite them after the read
    /// failed, so that no store shows the loss.
    pub(super) fn may_report_rot(&mut self, call: &Call) -> bool {
        match (&call.op, &call.open, call.view) {
            (Op::Read { .. }, Some(open), View::Cache) => {
                self.rots || self.may_be_damaged(call.view, open.object)
            }
            _ => self.has_rotted,
        }
    }

    /// Returns true if bit rot may have permanently damaged a file.
    pub(super) fn may_be_damaged(&mut self, view: View, object: ObjectId) -> bool {
        let inode = self.model(view).object(object).inode;
        inode.is_some_and(|inode| self.lost.contains(&inode))
    }

    /// Marks the content of damaged files as unknown.
    pub(super) fn give_up_damaged(&mut self, view: View) {
        for id in self.model(view).all().into_values() {
            let is_damaged = self.damaged.contains(&(view.index(), id)) || self.may_be_damaged(view, id);
            if is_damaged && self.model(view).object(id).kind == FileKind::File {
                self.model(view).object_mut(id).data.forget();
            }
        }
    }

    /// Returns true if bit rot explains every file that is missing in a receipt.
    pub(super) fn lacks_only_rotten(&mut self, receipt: &Receipt) -> bool {
        receipt.faults.is_empty()
            && receipt.missing().all(|file| match self.model(View::Cache).find(&file.path) {
                Ok(id) => self.may_be_damaged(View::Cache, id),
                Err(_) => false,
            })
    }
}
