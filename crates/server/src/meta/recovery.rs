//! Completes or undoes operations that a crash or an unreachable home interrupted.
//!
//! The log decides: recovery undoes an operation without a decision, and completes one with a decision. Every step can be repeated.

use super::{MetaService, RETRY_TIME_MIN, back_off, unexpected};
use futures_util::future::{join_all, try_join_all};
use std::sync::Weak;
use tameike_core::wire::meta::{MetaReply, Step};
use tameike_core::{HomeId, NodeId, Result};
use tameike_store::meta::query as table;
use tameike_store::meta::record::{Intent, PlacedStep};

/// The final state of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolution {
    /// It took effect.
    Completed,
    /// It had no effect.
    Undone,
}

impl MetaService {
    /// Undoes a step. Returns true if the step was applied and cannot be undone; otherwise it will never take effect.
    async fn undo(&self, home: HomeId, sequence: u64, number: u32) -> Result<bool> {
        let now = self.parts.runtime.now();
        match self.step(home, (sequence, number), Step::Undo { number }, None, now).await? {
            MetaReply::UndoOutcome { applied } => Ok(applied),
            other => Err(unexpected(home, &other)),
        }
    }

    /// Completes or undoes an operation, as its log records require.
    async fn settle(&self, sequence: u64, by: Option<NodeId>) -> Result<Resolution> {
        match self.query(|names| table::intent(names, sequence))? {
            None => {
                self.state.lock().ended(sequence);
                return Ok(Resolution::Undone);
            }
            Some(Intent::Open { prepared, commit, decision, busy, call }) => {
                if !self.is_committed(sequence, commit).await? {
                    // The first step excludes others of its kind: it is undone last.
                    let (first, others) = prepared.split_at(prepared.len().min(1));
                    for steps in [others, first] {
                        try_join_all(steps.iter().map(|&(home, number)| self.undo(home, sequence, number)))
                            .await?;
                    }
                    self.end(sequence, busy.as_ref())?;
                    return Ok(Resolution::Undone);
                }
                let now = self.parts.runtime.now();
                let revocations = self.decide(sequence, &decision, busy.as_ref(), (by, call), now)?;
                if !decision.redo.is_empty() {
                    self.redo(sequence, decision.redo, by).await?;
                }
                self.revoke(revocations).await;
            }
            Some(Intent::Decided { redo }) => self.redo(sequence, redo, by).await?,
            Some(Intent::Shard { dir }) => self.move_entries(sequence, dir).await?,
        }
        Ok(Resolution::Completed)
    }

    async fn is_committed(&self, sequence: u64, commit: Option<(HomeId, u32)>) -> Result<bool> {
        match commit {
            Some((home, number)) => self.undo(home, sequence, number).await,
            None => Ok(false),
        }
    }

    async fn redo(&self, sequence: u64, redo: Vec<PlacedStep>, by: Option<NodeId>) -> Result<()> {
        self.persist().await?;
        for PlacedStep { home, number, step } in redo {
            self.step(home, (sequence, number), step, by, self.parts.runtime.now()).await?;
        }
        self.end(sequence, None)
    }

    /// As [`Self::settle`], for a process on node `by`. Returns `None` if a background task must retry until all nodes are reachable.
    pub(super) async fn settle_or_later(&self, sequence: u64, by: Option<NodeId>) -> Option<Resolution> {
        match self.settle(sequence, by).await {
            Ok(settled) => Some(settled),
            Err(fault) => {
                log::warn!("an operation on names will be completed when its nodes are reachable: {fault}");
                self.spawn(|service| settle_until_done(service, sequence));
                None
            }
        }
    }

    /// Begins the pending truncations of an earlier incarnation, and waits until the first attempts have ended.
    pub(super) async fn finish_truncations(&self) {
        let truncations = std::mem::take(&mut self.unfinished.lock().0);
        let begun = truncations.into_iter().map(|(inode, truncation)| self.truncate_units(inode, truncation));
        for fault in join_all(begun).await.into_iter().filter_map(Result::err) {
            log::warn!("{fault}");
        }
    }

    pub(super) async fn recover(&self) {
        let (truncations, orphans) = std::mem::take(&mut *self.unfinished.lock());
        for inode in orphans {
            self.forget_unless_open(inode);
        }
        for (inode, truncation) in truncations {
            drop(self.truncate_units(inode, truncation));
        }
        let pending = self.query(table::intents).unwrap_or_else(|fault| {
            log::error!("cannot read the pending operations: {fault}");
            Vec::new()
        });
        let old = pending.into_iter().map(|(sequence, _)| sequence).filter(|&sequence| sequence < self.first);
        join_all(old.map(|sequence| settle_until_done(self.this.clone(), sequence))).await;
    }
}

async fn settle_until_done(service: Weak<MetaService>, sequence: u64) {
    let mut pause = RETRY_TIME_MIN;
    loop {
        let Some(this) = service.upgrade() else { return };
        let Err(fault) = this.settle(sequence, None).await else { return };
        log::debug!("operation {sequence} is not complete yet: {fault}");
        back_off(this, &mut pause).await;
    }
}
