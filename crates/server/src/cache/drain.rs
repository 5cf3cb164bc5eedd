//! The drain: every dirty byte that this node answers for goes to the shared file system, and is accounted for.

use super::CacheService;
use super::files::File;
use super::flush::Patience;
use super::locate::SHOWN_OLD_PAUSE;
use super::record::Record;
use futures_util::{StreamExt, stream};
use std::collections::{BTreeMap, BTreeSet};
use tameike_core::receipt::{FileOutcome, FileReceipt, Receipt};
use tameike_core::wire::codec;
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::{Errno, Fault, InodeId, NodeId, Result};
use tameike_io::shared::is_missing;

/// Files of one answer; also bounds how long it takes.
const PAGE_FILES: usize = 256;
/// Encoded size of one answer, with room for what stands around it.
const PAGE_BYTES: usize = 128 << 10;
/// Inodes asked for at once.
const DIRTY_INODES_MAX: u32 = 8192;

/// Which nodes hold dirty bytes of which files.
type Holders = BTreeMap<InodeId, Vec<NodeId>>;

impl CacheService {
    /// Flushes everything (`after == None`), and gives the next page of receipts.
    pub(super) async fn drain(
        &self,
        verify: bool,
        after: Option<InodeId>,
    ) -> Result<(Receipt, Option<InodeId>)> {
        let mut receipt = Receipt::default();
        if after.is_none() {
            self.flush_all(&mut receipt).await?;
        }
        let next = self.receipts(verify, after, &mut receipt).await?;
        Ok((receipt, next))
    }

    async fn flush_all(&self, receipt: &mut Receipt) -> Result<()> {
        let mut holders = self.find_holders(receipt).await;
        let mut after = None;
        while let Some((last, dirty)) = self.dirty_records(after)? {
            dirty.into_iter().for_each(|inode| {
                holders.entry(inode).or_default();
            });
            after = Some(last);
        }
        let flush = |(inode, nodes): (InodeId, Vec<NodeId>)| async move {
            match self.files.get(&self.journal, inode) {
                Ok(Some(file)) if file.state().record.removed => {
                    let mut homes = self.homes_reached(inode, &file.state().record);
                    homes.extend(nodes);
                    let request = UnitRequest::Truncate { inode, size: 0 };
                    self.ask_units(homes, &request).await.err().map(|fault| fault.to_string())
                }
                Ok(Some(_)) => {
                    // Why a file could not be flushed stands in its record, and from there in its receipt.
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
        let parallel = self.parts.flush_parallel.max(1);
        let faults = stream::iter(holders).map(flush).buffer_unordered(parallel);
        receipt.faults.extend(faults.filter_map(std::future::ready).collect::<Vec<_>>().await);
        Ok(())
    }

    /// Whether the file is dirty, also for bytes on these nodes whose writer has not committed them: if they cannot be
    /// flushed, the file is not what it was written to be all the same. The file's flush lock is held.
    pub(super) async fn take_uncommitted(&self, file: &File, nodes: &[NodeId]) -> Result<bool> {
        if file.state().record.dirty {
            return Ok(true);
        }
        let before = InodeId(file.inode.0 - 1);
        for &node in nodes {
            // Who cannot say may have some.
            if self.dirty_inodes_of(node, before, 1).await.is_ok_and(|inodes| !inodes.contains(&file.inode)) {
                continue;
            }
            let now = self.parts.runtime.now();
            file.update(&self.journal, |state| {
                state.changes += 1;
                (state.record.dirty, state.record.journaled, state.record.mtime) = (true, true, now);
            })?;
            self.mark_dirty(file.inode);
            return Ok(true);
        }
        Ok(false)
    }

    /// The dirty ones of the next records in the ledger, and the last record looked at.
    fn dirty_records(&self, after: Option<InodeId>) -> Result<Option<(InodeId, Vec<InodeId>)>> {
        let page = self.journal.page(after, 1024)?;
        let dirty = page.iter().filter(|(_, record)| record.dirty).map(|(inode, _)| *inode).collect();
        Ok(page.last().map(|(last, _)| (*last, dirty)))
    }

    /// Flushes again what was written while it was flushed, a few times, and what is missing where a node may be shown what was there before.
    async fn flush_until_clean(&self, inode: InodeId, holders: &[NodeId]) -> Result<()> {
        let (mut tries, until) = (0, self.shown_old_until());
        loop {
            match self.flush_file(inode, holders, Patience::Urgent).await {
                Ok(false) if tries < 3 => tries += 1,
                Err(fault) if is_missing(fault.errno) && self.parts.runtime.clock.monotonic() < until => {
                    self.parts.runtime.sleep(SHOWN_OLD_PAUSE).await;
                }
                flushed => return flushed.map(drop),
            }
        }
    }

    /// Asks all nodes for dirty bytes of the files that this node coordinates: they may have some that never
    /// were committed.
    async fn find_holders(&self, receipt: &mut Receipt) -> Holders {
        let mut holders = Holders::new();
        for &node in self.parts.cluster.device_nodes() {
            let mut after = InodeId(0);
            loop {
                match self.dirty_inodes_of(node, after, DIRTY_INODES_MAX).await {
                    Ok(inodes) => {
                        let Some(&last) = inodes.last() else { break };
                        inodes.into_iter().for_each(|inode| holders.entry(inode).or_default().push(node));
                        after = last;
                    }
                    Err(fault) => {
                        receipt.faults.push(format!("{node} does not say what it holds: {fault}"));
                        break;
                    }
                }
            }
        }
        holders
    }

    async fn dirty_inodes_of(&self, node: NodeId, after: InodeId, limit: u32) -> Result<Vec<InodeId>> {
        let coordinator = self.parts.rpc.local();
        let request = UnitRequest::DirtyInodes { coordinator, after, limit };
        match self.ask_unit(node, request).await? {
            UnitReply::DirtyInodes(inodes) => Ok(inodes),
            other => Err(Fault::new(Errno::EPROTO, format!("it answered with {other:?}"))),
        }
    }

    /// Marks the files that programs of a node were writing which cannot be reached. It may come back, so that this is said of them in
    /// this receipt only.
    async fn find_cut_off(&self, page: &mut [(InodeId, Record)]) {
        let writers: BTreeSet<_> =
            page.iter().flat_map(|(_, record)| record.writers.iter().copied()).collect();
        let mut dead = BTreeSet::new();
        for node in writers {
            // Nobody has dirty bytes behind the last file.
            let asked = self.dirty_inodes_of(node, InodeId(u64::MAX), 1).await;
            dead.extend(asked.is_err_and(|fault| fault.errno == Errno::EHOSTDOWN).then_some(node));
        }
        for (_, record) in page {
            record.cut_off |= record.writers.iter().any(|node| dead.contains(node));
        }
    }

    /// Receipts of the files after `after`, until a page is full; where to go on.
    async fn receipts(
        &self,
        verify: bool,
        after: Option<InodeId>,
        receipt: &mut Receipt,
    ) -> Result<Option<InodeId>> {
        let mut page = self.journal.page(after, PAGE_FILES)?;
        self.find_cut_off(&mut page).await;
        let mut next = (page.len() == PAGE_FILES).then(|| page.last().map(|(inode, _)| *inode)).flatten();
        let written = page.into_iter().filter(|(_, record)| record.journaled && !record.removed);
        let account = |(inode, record): (InodeId, Record)| async move {
            let shown = record.shown_path();
            let failed = |fault: Fault| FileReceipt {
                path: shown,
                size: 0,
                written: 0,
                checksum: String::new(),
                note: String::new(),
                outcome: FileOutcome::Missing(fault.to_string()),
            };
            (inode, self.account(inode, record, verify).await.unwrap_or_else(failed))
        };
        let accounts = stream::iter(written).map(account).buffered(self.parts.flush_parallel.max(1));
        let mut accounts = std::pin::pin!(accounts);
        let mut bytes = 0;
        let mut last = after;
        while let Some((inode, file)) = accounts.next().await {
            bytes += codec::encode(&file)?.len();
            if bytes > PAGE_BYTES && last != after {
                next = last;
                break;
            }
            receipt.files.push(file);
            last = Some(inode);
        }
        Ok(next)
    }
}
