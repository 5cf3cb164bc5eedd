//! What was under way when the agent ended.

use super::super::key;
use super::super::record::{Intent, StepRecord, Truncation};
use super::{Names, decode_or_lose, lose_key, only_inode};
use crate::check::{Book, Part};
use crate::table::{Table, for_each, prefix};
use std::collections::BTreeSet;
use tameike_core::{InodeId, OperationId, Result};

/// Length of a step's key: prefix, coordinator, sequence, number.
const STEP_KEY_SIZE: usize = 17;
/// Length of the key that says how far a coordinator's operations are ended.
const FINISHED_KEY_SIZE: usize = 5;

fn in_words(intent: &Intent) -> &'static str {
    match intent {
        Intent::Open { .. } => "not decided: the next start of the node undoes it, or carries it through",
        Intent::Decided { .. } => "decided: the next start of the node carries it through",
        Intent::Widen { .. } => {
            "of a directory that goes wide: the next start of the node carries it through"
        }
    }
}

impl Names {
    pub(super) fn read_pending(&mut self, table: &dyn Table, book: &mut Book) -> Result<()> {
        let mut intents = BTreeSet::new();
        for_each(table, prefix::INTENT, |key, value| {
            let Some(InodeId(sequence)) = only_inode("an operation on names", key, value, book) else {
                return Ok(());
            };
            let what = format!("what was to be done for operation {sequence} on names");
            if let Some(intent) = decode_or_lose::<Intent>(&what, None, (key, value), book) {
                intents.insert(sequence);
                let words = format!("operation {sequence} on names is half done, {}", in_words(&intent));
                book.note(Part::Names, words);
            }
            Ok(())
        })?;
        let mut steps = 0;
        for_each(table, prefix::STEP, |key, value| {
            if key.len() != STEP_KEY_SIZE {
                lose_key("a step of another node's operation", key, value, book);
            } else if decode_or_lose::<StepRecord>(
                "a step of another node's operation",
                None,
                (key, value),
                book,
            )
            .is_some()
            {
                steps += 1;
            }
            Ok(())
        })?;
        for_each(table, prefix::FINISHED, |key, value| {
            let what = "how far another node's operations are ended";
            if key.len() != FINISHED_KEY_SIZE {
                lose_key(what, key, value, book);
            } else {
                decode_or_lose::<u64>(what, None, (key, value), book);
            }
            Ok(())
        })?;
        self.busy = !intents.is_empty() || steps > 0;
        self.read_tree_lock(table, &intents, book)?;
        self.read_truncations(table, book)
    }

    fn read_tree_lock(&self, table: &dyn Table, intents: &BTreeSet<u64>, book: &mut Book) -> Result<()> {
        let Some(value) = table.get(&key::tree_lock())? else { return Ok(()) };
        let what = "the lock on the shape of the tree";
        let Some(holder) = decode_or_lose::<OperationId>(what, None, (&key::tree_lock(), &value), book)
        else {
            return Ok(());
        };
        let own = self.share.is_some_and(|share| share.node == holder.node);
        if own && !intents.contains(&holder.sequence) {
            let words = format!(
                "{what} is held by operation {}, which is ended: no directory could move",
                holder.sequence
            );
            book.wrong(Part::Names, words);
            book.remove(key::tree_lock());
        } else {
            book.note(
                Part::Names,
                format!("{what} is held by operation {} of {}", holder.sequence, holder.node),
            );
        }
        Ok(())
    }

    fn read_truncations(&mut self, table: &dyn Table, book: &mut Book) -> Result<()> {
        for_each(table, prefix::TRUNCATION, |key, value| {
            let what = "the note that units are to be cut";
            let Some(inode) = only_inode(what, key, value, book) else { return Ok(()) };
            self.truncated.insert(inode);
            decode_or_lose::<Truncation>(what, Some(inode), (key, value), book);
            Ok(())
        })?;
        let count = self.truncated.len();
        if count > 0 {
            let words = format!(
                "units of {count} files are still to be cut; the next start of the node, or the removal of the file, \
                 does it"
            );
            book.note(Part::Names, words);
        }
        Ok(())
    }
}
