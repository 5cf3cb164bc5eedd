//! Operations that were pending when the agent ended.

use super::super::key;
use super::super::record::{Intent, StepRecord, Truncation};
use super::{Names, decode_or_lose, lose_key, only_inode};
use crate::check::{Findings, Part};
use crate::table::{Table, for_each, prefix};
use std::collections::BTreeSet;
use tameike_core::{InodeId, OperationId, Result};

/// Length of a step's key: prefix, coordinator, sequence, number.
const STEP_KEY_SIZE: usize = 17;
/// Length of the key of a coordinator's last finished operation.
const FINISHED_KEY_SIZE: usize = 5;

fn describe(intent: &Intent) -> &'static str {
    match intent {
        Intent::Open { .. } => "and undecided: the next start of the node undoes or completes it",
        Intent::Decided { .. } => "and decided: the next start of the node completes it",
        Intent::Shard { .. } => "and shards a directory: the next start of the node completes it",
    }
}

impl Names {
    pub(super) fn read_pending(&mut self, table: &dyn Table, findings: &mut Findings) -> Result<()> {
        let mut intents = BTreeSet::new();
        for_each(table, prefix::INTENT, |key, value| {
            let Some(InodeId(sequence)) = only_inode("a metadata operation", key, value, findings) else {
                return Ok(());
            };
            let what = format!("the plan of metadata operation {sequence}");
            if let Some(intent) = decode_or_lose::<Intent>(&what, None, (key, value), findings) {
                intents.insert(sequence);
                let message = format!("metadata operation {sequence} is pending {}", describe(&intent));
                findings.note(Part::Names, message);
            }
            Ok(())
        })?;
        let mut steps = 0;
        for_each(table, prefix::STEP, |key, value| {
            let what = "a step of another node's operation";
            if key.len() != STEP_KEY_SIZE {
                lose_key(what, key, value, findings);
            } else if decode_or_lose::<StepRecord>(what, None, (key, value), findings).is_some() {
                steps += 1;
            }
            Ok(())
        })?;
        for_each(table, prefix::FINISHED, |key, value| {
            let what = "the last finished operation of another node";
            if key.len() != FINISHED_KEY_SIZE {
                lose_key(what, key, value, findings);
            } else {
                decode_or_lose::<u64>(what, None, (key, value), findings);
            }
            Ok(())
        })?;
        self.busy = !intents.is_empty() || steps > 0;
        self.read_tree_lock(table, &intents, findings)?;
        self.read_truncations(table, findings)
    }

    fn read_tree_lock(
        &self,
        table: &dyn Table,
        intents: &BTreeSet<u64>,
        findings: &mut Findings,
    ) -> Result<()> {
        let Some(value) = table.get(&key::tree_lock())? else { return Ok(()) };
        let what = "the lock of the tree's shape";
        let Some(holder) = decode_or_lose::<OperationId>(what, None, (&key::tree_lock(), &value), findings)
        else {
            return Ok(());
        };
        let own = self.share.as_ref().is_some_and(|share| share.node == holder.node);
        if own && !intents.contains(&holder.sequence) {
            let message = format!(
                "{what} is held by operation {}, which has finished: no directory could be renamed",
                holder.sequence
            );
            findings.wrong(Part::Names, message);
            findings.remove(key::tree_lock());
        } else {
            let message = format!("{what} is held by operation {} of {}", holder.sequence, holder.node);
            findings.note(Part::Names, message);
        }
        Ok(())
    }

    fn read_truncations(&mut self, table: &dyn Table, findings: &mut Findings) -> Result<()> {
        for_each(table, prefix::TRUNCATION, |key, value| {
            let what = "the record of a pending truncation";
            let Some(inode) = only_inode(what, key, value, findings) else { return Ok(()) };
            self.truncated.insert(inode);
            decode_or_lose::<Truncation>(what, Some(inode), (key, value), findings);
            Ok(())
        })?;
        let count = self.truncated.len();
        if count > 0 {
            let message = format!(
                "truncations of {count} files are pending; the next start of the node, or the removal of the file, \
                 completes them"
            );
            findings.note(Part::Names, message);
        }
        Ok(())
    }
}
