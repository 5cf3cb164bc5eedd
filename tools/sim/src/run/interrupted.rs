//! Files that were open for writing when their node failed: the receipt must call them interrupted (S45).

use super::{Call, Checked, End, Open, Run};
use crate::model::ObjectId;
use crate::op::{Flags, Op};
use std::collections::BTreeSet;
use tameike_core::View;
use tameike_core::receipt::{FileOutcome, Receipt};

impl Run {
    /// Iterates over files of the cache view that are open for writing, with their nodes.
    fn writable(&self) -> impl Iterator<Item = (usize, &Open)> + '_ {
        let cache = View::Cache.index();
        let writable =
            self.slots.iter().filter(move |((_, view, _), open)| *view == cache && open.flags.write);
        writable.map(|((node, ..), open)| (*node, open))
    }

    /// Records a write to a file, or a lock call, which commits earlier writes (S45).
    pub(super) fn note_commit(&mut self, call: &Call) {
        let is_committed = call.op.locks();
        if let Some(open) = &call.open
            && (is_committed || matches!(call.op, Op::Write { .. }))
        {
            self.descriptors(call, open.object).for_each(|open| open.is_committed = is_committed);
        }
    }

    /// Records the files that were open for writing, or being opened, on failed nodes.
    pub(super) fn note_interrupted(&mut self, failed: &BTreeSet<usize>, calls: &[Call]) {
        let open = self.writable().filter(|(node, _)| failed.contains(node));
        let open: Vec<_> = open.map(|(_, open)| open.object).collect();
        self.interrupted.extend(open);
        for call in calls.iter().filter(|call| call.view == View::Cache && failed.contains(&call.node)) {
            if let Op::Open { path, flags: Flags { write: true, .. }, .. } = &call.op
                && !matches!(call.end, End::Failed(_))
            {
                let object = self.model(View::Cache).find(path);
                self.interrupted.extend(object);
            }
        }
    }

    /// Writes to a new file of the cache view and leaves it open.
    pub(super) async fn leave_open(&mut self) -> Checked {
        const SLOT: u8 = u8::MAX;
        let _pause = self.world.countdown.pause();
        let node = self.moment() as usize % self.world.count();
        let name = (node, View::Cache.index(), SLOT);
        let open = Op::open(SLOT, "left-open", Flags::CREATE);
        for op in [open, Op::Write { slot: SLOT, offset: 0, length: 100_000, tag: 1 }] {
            let open = self.slots.get(&name).cloned();
            let call = self.one(node, View::Cache, op, open).await?;
            self.verify(vec![call])?;
            if !self.slots.contains_key(&name) {
                break;
            }
        }
        Ok(())
    }

    /// Returns the files with writes that no close, fsync or lock call covers.
    pub(super) fn being_written(&mut self) -> BTreeSet<ObjectId> {
        let writable = self.writable().filter(|(_, open)| !open.is_committed);
        let writable: Vec<_> = writable.map(|(node, open)| (node, open.object)).collect();
        let model = self.model(View::Cache);
        let is_written =
            |&(node, object): &(usize, ObjectId)| model.object(object).data.first_unpublished(node).is_some();
        writable.into_iter().filter(is_written).map(|(_, object)| object).collect()
    }

    /// Compares the files that a receipt calls interrupted (S45) with those that were open: it may list no others, and must list `named`.
    pub(super) fn compare_interrupted(&mut self, receipt: &Receipt, named: &BTreeSet<ObjectId>) -> Checked {
        let interrupted = self.interrupted.clone();
        if self.has_losses {
            // Journals without their tails list neither.
            return Ok(());
        }
        let model = self.model(View::Cache);
        for entry in receipt.files.iter().filter(|entry| matches!(entry.outcome, FileOutcome::Interrupted(_)))
        {
            let is_known = model.find(&entry.path).is_ok_and(|object| interrupted.contains(&object));
            if !is_known && !model.is_unknown(&entry.path, false) {
                return Err(format!(
                    "no process was writing the file when a node failed, but the receipt has {entry:?}"
                ));
            }
        }
        let all = model.all();
        for object in named {
            let paths = || all.iter().filter(|(_, id)| *id == object).map(|(path, _)| path);
            let is_named =
                |path: &String| receipt.files.iter().any(|entry| entry.path == *path && !entry.is_complete());
            if paths().next().is_some()
                && !paths().any(|path| model.is_unknown(path, false) || is_named(path))
            {
                let paths: Vec<_> = paths().collect();
                return Err(format!(
                    "{paths:?}: the file was being written when the job failed, but the receipt does not list it as interrupted"
                ));
            }
        }
        Ok(())
    }
}
