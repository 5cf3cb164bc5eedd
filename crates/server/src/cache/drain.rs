//! The drain: flushes all dirty files of this coordinator, and lists their receipts.

use super::account::Accountant;
use super::base::Base;
use super::flush::{Extra, Flusher, Urgency};
use super::locate::STALE_NAME_PAUSE;
use super::record::Record;
use futures_util::{StreamExt, stream};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tameike_core::receipt::{FileOutcome, FileReceipt};
use tameike_core::wire::unit::UnitRequest;
use tameike_core::{Errno, Fault, FaultKind, InodeId, MapEpoch, NodeId, Result};

/// Receipts in one page: bounds the records in memory.
const PAGE_FILES: usize = 256;
/// Inode numbers in one reply of a node.
const DIRTY_INODES_MAX: u32 = 8192;
/// Further flushes of a file that programs keep writing to.
const FLUSHES_AGAIN_MAX: usize = 3;

/// The nodes that hold dirty bytes of each file.
type DirtyNodes = BTreeMap<InodeId, Vec<NodeId>>;

/// Drains the files of a coordinator.
pub(super) struct Drain {
    base: Base,
    flusher: Arc<Flusher>,
    accountant: Accountant,
}

impl Drain {
    pub(super) fn new(base: Base, flusher: Arc<Flusher>) -> Self {
        Self { accountant: Accountant::new(base.clone()), base, flusher }
    }

    /// Flushes all dirty files. Returns what went wrong besides the errors of files, which their records keep.
    pub(super) async fn flush_all(&self) -> Result<Vec<String>> {
        loop {
            let epoch = self.base.homes.epoch();
            let faults = self.flush_dirty(epoch).await?;
            // Dirty bytes that moved to another node meanwhile may have been missed.
            if self.base.homes.keep_primaries_of(epoch) {
                return Ok(faults);
            }
        }
    }

    async fn flush_dirty(&self, epoch: MapEpoch) -> Result<Vec<String>> {
        let mut faults = Vec::new();
        let mut dirty = self.find_dirty(epoch, &mut faults).await;
        self.base.journal.for_each(|inode, record| {
            if record.dirty {
                dirty.entry(inode).or_default();
            }
            Ok(())
        })?;
        let flush = |(inode, nodes): (InodeId, Vec<NodeId>)| async move {
            match self.base.files.get(inode) {
                Ok(Some(file)) if file.state().record.removed => {
                    let homes = || {
                        let mut homes = self.base.homes.written(inode, &file.state().record);
                        homes.extend(&nodes);
                        homes
                    };
                    let request = UnitRequest::Truncate { inode, size: 0 };
                    self.base.homes.ask_all(homes, &request).await.err().map(|fault| fault.to_string())
                }
                Ok(Some(_)) => {
                    // The record keeps the error, and the receipt shows it.
                    let _ = self.flush_until_clean(inode, &nodes).await;
                    None
                }
                Ok(None) => Some(format!(
                    "{inode}: dirty bytes on {} belong to a file whose name is not known",
                    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
                )),
                Err(fault) => Some(format!("{inode}: {fault}")),
            }
        };
        let flushed = stream::iter(dirty).map(flush).buffer_unordered(self.flusher.parallel);
        faults.extend(flushed.filter_map(std::future::ready).collect::<Vec<_>>().await);
        Ok(faults)
    }

    /// Flushes again what was written during the flush, a few times, and files that are missing while a mount may show old names.
    async fn flush_until_clean(&self, inode: InodeId, nodes: &[NodeId]) -> Result<()> {
        let (mut again, until) = (0, self.base.locator.stale_until());
        let is_late = || self.base.runtime.clock.monotonic() >= until;
        loop {
            match self.flusher.flush(inode, Extra::Nodes(nodes), Urgency::Urgent).await {
                Ok(false) if again < FLUSHES_AGAIN_MAX => again += 1,
                Err(fault) if fault.kind() == FaultKind::Missing && !is_late() => {
                    self.base.runtime.sleep(STALE_NAME_PAUSE).await;
                }
                flushed => return flushed.map(drop),
            }
        }
    }

    /// Asks all nodes for dirty bytes of this coordinator's files: some may never have been committed.
    async fn find_dirty(&self, epoch: MapEpoch, faults: &mut Vec<String>) -> DirtyNodes {
        let mut dirty = DirtyNodes::new();
        for node in self.base.homes.nodes() {
            let mut after = InodeId(0);
            loop {
                match self.base.homes.dirty_inodes((epoch, node), after, DIRTY_INODES_MAX).await {
                    Ok(inodes) => {
                        let Some(&last) = inodes.last() else { break };
                        inodes.into_iter().for_each(|inode| dirty.entry(inode).or_default().push(node));
                        after = last;
                    }
                    Err(fault) => {
                        faults.push(format!("{node} does not report its dirty files: {fault}"));
                        break;
                    }
                }
            }
        }
        dirty
    }

    /// Returns the receipts of the first files behind `after`, and where the next page begins.
    pub(super) async fn receipts(
        &self,
        verify: bool,
        after: Option<InodeId>,
    ) -> Result<(Vec<FileReceipt>, Option<InodeId>)> {
        let mut page = self.base.journal.page(after, PAGE_FILES)?;
        self.mark_unreachable_writers(&mut page).await;
        let next = (page.len() == PAGE_FILES).then(|| page.last().map(|(inode, _)| *inode)).flatten();
        let written = page.into_iter().filter(|(_, record)| record.journaled && !record.removed);
        let account = |(inode, record): (InodeId, Record)| async move {
            let receipt = record.receipt(FileOutcome::Synced);
            let failed = |fault: Fault| {
                let outcome = FileOutcome::Missing(fault.to_string());
                FileReceipt { size: 0, written: 0, outcome, ..receipt }
            };
            self.accountant.account(inode, record, verify).await.unwrap_or_else(failed)
        };
        let receipts = stream::iter(written).map(account).buffered(self.flusher.parallel).collect().await;
        Ok((receipts, next))
    }

    /// Marks files with uncommitted writes of a node that is excluded or cannot be reached, in this receipt only, as the node may come back.
    async fn mark_unreachable_writers(&self, page: &mut [(InodeId, Record)]) {
        let writers: BTreeSet<_> =
            page.iter().flat_map(|(_, record)| record.writers.iter().copied()).collect();
        let mut unreachable = BTreeSet::new();
        for node in writers {
            if self.base.homes.excludes(node) {
                unreachable.insert(node);
                continue;
            }
            // No file is behind the last inode number: the answer is empty.
            let answer =
                self.base.homes.dirty_inodes((self.base.homes.epoch(), node), InodeId(u64::MAX), 1).await;
            unreachable.extend(answer.is_err_and(|fault| fault.errno == Errno::EHOSTDOWN).then_some(node));
        }
        for (_, record) in page {
            record.writer_failed |= record.writers.iter().any(|node| unreachable.contains(node));
        }
    }
}
