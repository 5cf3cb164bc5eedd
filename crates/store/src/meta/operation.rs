//! Operations across homes: the log commands of their coordinator, and the steps at other homes.
//!
//! ```text
//! coordinator   Begin ---------------------------------> Decide ----------------> End
//!                 | prepare (can fail, can be undone)      ^  | redo (cannot fail)
//! other homes     +--> Step 0, Step 1, ... commit step ----+  +--> Step n, ...
//! ```
//!
//! An operation without steps at other homes is a single `Decide`: one atomic change. A home keeps the result of a
//! step, by operation and number, until the coordinator reports that the operation has ended; so a step is applied once
//! however often the request arrives.

use super::record::{self, CallRecord, Decision, Intent, StepRecord};
use super::{Outcome, Shard, key, query};
use tameike_core::wire::meta::Step;
use tameike_core::{Errno, Fault, OperationId, Result, Timestamp};

impl Shard<'_> {
    pub(super) fn begin(&mut self, sequence: u64, intent: &Intent) -> Result<Outcome> {
        if let Intent::Open { busy: Some(entry), decision, .. } = intent {
            let current = query::entry(self.table, entry)?;
            let replaced = decision.local.iter().find_map(|step| match step {
                Step::Detach { entry: name, target, .. } if name == entry => Some(Some(*target)),
                Step::Attach { entry: name, replaces, .. } if name == entry => Some(*replaces),
                _ => None,
            });
            if replaced != Some(current) {
                return Err(Errno::EAGAIN.into());
            }
        }
        record::put(self.table, key::intent(sequence), intent)?;
        if let Intent::Open { call, .. } = intent {
            self.record_call(call.as_ref(), || CallRecord::Begun { sequence })?;
        }
        Ok(Outcome::Done)
    }

    pub(super) fn decide(
        &mut self,
        operation: OperationId,
        decision: &Decision,
        now: Timestamp,
    ) -> Result<Outcome> {
        for step in &decision.local {
            self.step(operation, step, now)?;
        }
        if decision.redo.is_empty() {
            return self.end(operation.sequence);
        }
        let intent = Intent::Decided { redo: decision.redo.clone() };
        record::put(self.table, key::intent(operation.sequence), &intent)?;
        Ok(Outcome::Done)
    }

    pub(super) fn end(&mut self, sequence: u64) -> Result<Outcome> {
        if query::intent(self.table, sequence)?.is_some() {
            self.table.delete(key::intent(sequence));
        }
        Ok(Outcome::Done)
    }

    /// Applies a step of an operation that another home coordinates.
    pub(super) fn foreign_step(
        &mut self,
        operation: OperationId,
        number: u32,
        step: &Step,
        finished: u64,
        now: Timestamp,
    ) -> Result<Outcome> {
        self.forget_steps(operation, finished)?;
        if let Step::Undo { number } = step {
            return self.undo(operation, *number, now);
        }
        match record::get(self.table, &key::step(operation, number))? {
            None => (),
            Some(StepRecord::Undone) => {
                return Err(Fault::new(Errno::EAGAIN, "the step was undone before it arrived"));
            }
            Some(_) => return Ok(Outcome::Done),
        }
        self.step(operation, step, now)?;
        let result = match step {
            Step::AddLink { inode } => StepRecord::LinkAdded(*inode),
            Step::Seal { dir, .. } => StepRecord::Sealed(*dir),
            Step::LockTree => StepRecord::TreeLocked,
            _ => StepRecord::Applied,
        };
        record::put(self.table, key::step(operation, number), &result)?;
        Ok(Outcome::Done)
    }

    /// Drops the results of operations that their coordinator has ended.
    fn forget_steps(&mut self, operation: OperationId, finished: u64) -> Result<()> {
        let known: u64 = record::get(self.table, &key::finished(operation.home))?.unwrap_or_default();
        if operation.sequence < known {
            return Err(Fault::new(Errno::ESTALE, "a step arrived after its operation had ended"));
        }
        if finished <= known {
            return Ok(());
        }
        // Starts at `known`: earlier results are gone, and a scan from the first one would pass all their removals.
        let [start, end] = [known, finished].map(|sequence| key::first_step(operation.home, sequence));
        for (key, _) in self.table.scan(&start, &end, usize::MAX)? {
            self.table.delete(key);
        }
        record::put(self.table, key::finished(operation.home), &finished)
    }

    fn undo(&mut self, operation: OperationId, number: u32, now: Timestamp) -> Result<Outcome> {
        let applied = match record::get(self.table, &key::step(operation, number))? {
            Some(StepRecord::Applied) => return Ok(Outcome::UndoOutcome { applied: true }),
            applied => applied.unwrap_or(StepRecord::Undone),
        };
        match applied {
            StepRecord::LinkAdded(inode) => self.drop_link(inode, now)?,
            StepRecord::Sealed(dir) => self.unseal(dir, operation)?,
            StepRecord::TreeLocked => self.unlock_tree(operation)?,
            StepRecord::Applied | StepRecord::Undone => (),
        }
        record::put(self.table, key::step(operation, number), &StepRecord::Undone)?;
        Ok(Outcome::UndoOutcome { applied: false })
    }

    fn step(&mut self, operation: OperationId, step: &Step, now: Timestamp) -> Result<()> {
        match step {
            Step::AddLink { inode } => self.add_link(*inode, now),
            Step::DropLink { inode } => self.drop_link(*inode, now),
            Step::Seal { dir, sharded } => self.seal(*dir, *sharded, operation),
            Step::Attach { entry, sharded, target, replaces } => {
                self.attach(entry, *sharded, *target, *replaces, now)
            }
            Step::Detach { entry, sharded, target } => self.detach(entry, *sharded, *target, now),
            Step::SetParent { dir, parent } => self.set_parent(*dir, *parent),
            Step::Touch { target } => self.touch(target.inode, now),
            Step::NotBelow { dir, ancestor } => self.not_below(*dir, *ancestor),
            Step::LockTree => self.lock_tree(operation),
            Step::UnlockTree => self.unlock_tree(operation),
            Step::Receive { dir, entries } => self.receive(*dir, entries),
            Step::Undo { .. } => Err(Fault::new(Errno::EINVAL, "only a step of another home can be undone")),
        }
    }

    fn lock_tree(&mut self, operation: OperationId) -> Result<()> {
        match record::get::<OperationId>(self.table, &key::tree_lock())? {
            Some(holder) if holder != operation => Err(Errno::EAGAIN.into()),
            _ => record::put(self.table, key::tree_lock(), &operation),
        }
    }

    fn unlock_tree(&mut self, operation: OperationId) -> Result<()> {
        if record::get(self.table, &key::tree_lock())? == Some(operation) {
            self.table.delete(key::tree_lock());
        }
        Ok(())
    }
}
