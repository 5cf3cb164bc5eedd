//! Operations that were pending when the agent ended.

use super::super::key;
use super::super::record::{Intent, StepRecord, Truncation};
use super::{Found, Names, decode_or_lose, lose_key, only_inode};
use crate::check::{Findings, Part};
use crate::table::{HomeTable, ReadTable, key_of_home, prefix};
use std::collections::BTreeSet;
use tameike_core::{HomeId, InodeId, OperationId, Result};

/// Length of a step's key: prefix, coordinator, sequence, number.
const STEP_KEY_SIZE: usize = 15;
/// Length of the key of a coordinator's last finished operation.
const FINISHED_KEY_SIZE: usize = 3;

/// The operation in the key of a step.
fn operation_of_step(key: &[u8]) -> Option<OperationId> {
    let home = HomeId(u16::from_be_bytes(key.get(1..3)?.try_into().ok()?));
    let sequence = u64::from_be_bytes(key.get(3..11)?.try_into().ok()?);
    (key.len() == STEP_KEY_SIZE).then_some(OperationId { home, sequence })
}

fn show(operation: OperationId) -> String {
    format!("operation {} of {}", operation.sequence, operation.home)
}

fn describe(intent: &Intent) -> &'static str {
    match intent {
        Intent::Open { .. } => "and undecided: the next start of the node undoes or completes it",
        Intent::Decided { .. } => "and decided: the next start of the node completes it",
        Intent::Shard { .. } => "and shards a directory: the next start of the node completes it",
    }
}

impl Names {
    pub(super) fn read_pending(&mut self, table: &dyn ReadTable, findings: &mut Findings) -> Result<()> {
        let mut intents = BTreeSet::new();
        self.for_each(table, prefix::INTENT, |found| {
            let Some(InodeId(sequence)) = only_inode("a metadata operation", found, findings) else {
                return Ok(());
            };
            let operation = OperationId { home: found.home, sequence };
            let what = format!("the plan of metadata {}", show(operation));
            if let Some(intent) = decode_or_lose::<Intent>(&what, None, found, findings) {
                intents.insert(operation);
                let message = format!("metadata {} is pending {}", show(operation), describe(&intent));
                findings.note(Part::Names, message);
            }
            Ok(())
        })?;
        let mut has_steps = false;
        self.for_each(table, prefix::STEP, |found| {
            let what = "a step of another home's operation";
            let Some(operation) = operation_of_step(found.key) else {
                lose_key(what, found, findings);
                return Ok(());
            };
            if decode_or_lose::<StepRecord>(what, None, found, findings).is_some() {
                // The steps of ended operations remain for a while. A coordinator on another node may not have ended them.
                has_steps |= !self.shares.contains_key(&operation.home) || intents.contains(&operation);
            }
            Ok(())
        })?;
        self.for_each(table, prefix::FINISHED, |found| {
            let what = "the last finished operation of another home";
            if found.key.len() != FINISHED_KEY_SIZE {
                lose_key(what, found, findings);
            } else {
                decode_or_lose::<u64>(what, None, found, findings);
            }
            Ok(())
        })?;
        self.busy = !intents.is_empty() || has_steps;
        for &home in &self.homes {
            self.read_tree_lock(home, table, &intents, findings)?;
        }
        self.read_truncations(table, findings)
    }

    fn read_tree_lock(
        &self,
        home: HomeId,
        table: &dyn ReadTable,
        intents: &BTreeSet<OperationId>,
        findings: &mut Findings,
    ) -> Result<()> {
        let key = key::tree_lock();
        let Some(value) = HomeTable::new(home, table).get(&key)? else { return Ok(()) };
        let what = "the lock of the tree's shape";
        let found = Found { home, key: &key, value: &value };
        let Some(holder) = decode_or_lose::<OperationId>(what, None, found, findings) else {
            return Ok(());
        };
        if self.shares.contains_key(&holder.home) && !intents.contains(&holder) {
            let message = format!(
                "{what} is held by {}, which has finished: no directory could be renamed",
                show(holder)
            );
            findings.wrong(Part::Names, message);
            findings.remove(key_of_home(home, &key));
        } else {
            findings.note(Part::Names, format!("{what} is held by {}", show(holder)));
        }
        Ok(())
    }

    fn read_truncations(&mut self, table: &dyn ReadTable, findings: &mut Findings) -> Result<()> {
        let mut truncated = BTreeSet::new();
        self.for_each(table, prefix::TRUNCATION, |found| {
            let what = "the record of a pending truncation";
            let Some(inode) = only_inode(what, found, findings) else { return Ok(()) };
            truncated.insert(inode);
            decode_or_lose::<Truncation>(what, Some(inode), found, findings);
            Ok(())
        })?;
        self.truncated = truncated;
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
