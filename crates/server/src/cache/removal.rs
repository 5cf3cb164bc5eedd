//! Removal of files that lose their last name. The job drops its data of them; a node that has one open moves its content to the shared
//! file first, and continues there.

use super::base::Base;
use super::file_table::File;
use super::locate::STALE_NAME_TIME;
use crate::holders::CacheTable;
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::limits::FAILOVER_TIME_MAX;
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::unit::UnitRequest;
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, FaultKind, InodeId, NodeId, Result};
use tameike_fabric::{Answer, Rpc};

/// How long an announced removal may take. One whose node has failed since never ends.
const REMOVAL_TIME_MAX: Duration = Duration::from_secs(60);

/// Pause before a node that did not answer is notified again.
const NOTIFY_PAUSE: Duration = Duration::from_millis(100);

/// Interval at which a wait for the answer of a node ends if the node is excluded.
const EXCLUDED_INTERVAL: Duration = Duration::from_millis(500);

/// Removals of files, and those that nodes have announced.
pub(super) struct Removals {
    base: Base,
    rpc: Arc<dyn Rpc>,
    holders: Arc<CacheTable>,
    /// The time of each announcement, also for files without a record.
    announced: Mutex<BTreeMap<InodeId, Duration>>,
}

impl Removals {
    pub(super) fn new(base: Base, rpc: Arc<dyn Rpc>, holders: Arc<CacheTable>) -> Self {
        Self { base, rpc, holders, announced: Mutex::default() }
    }

    /// Announces a removal. The journal records it, so that a removal that is interrupted before [`Self::removed`] is known as one. Other
    /// nodes that may have the file open are notified. Returns when they need no more of the job's data. Fails if a node cannot continue
    /// without that data: the file must not be removed.
    pub(super) async fn announce(&self, inode: InodeId, by: NodeId) -> Result<()> {
        let now = self.base.runtime.clock.monotonic();
        self.announced.lock().insert(inode, now);
        let Some(file) = self.base.files.get(inode)? else { return Ok(()) };
        let openers = self.base.files.update(&file, |state| {
            state.record.removing = true;
            state.openers.clone()
        })?;
        self.base.journal.sync(false).await?;
        let all_know = self.notify(openers, by, &ClientRequest::Removing { inode }, inode).await?;
        file.state().may_be_written_late |= !all_know;
        Ok(())
    }

    /// Cancels an announced removal.
    pub(super) async fn cancel(&self, inode: InodeId, by: NodeId) -> Result<()> {
        self.announced.lock().remove(&inode);
        let Some(file) = self.base.files.get(inode)? else { return Ok(()) };
        let openers = file.state().openers.clone();
        // The nodes must know even if the journal takes no more changes.
        let notified = self.notify(openers, by, &ClientRequest::Kept { inode }, inode).await;
        self.base.files.update(&file, |state| state.record.removing = false)?;
        notified.map(drop)
    }

    /// Notifies other nodes that may have a file open. Returns whether all of them know. Does not wait for a node that has failed or is excluded:
    /// otherwise a file that it had open could never be removed. Fails if a node answers that it cannot comply.
    async fn notify(
        &self,
        nodes: impl IntoIterator<Item = NodeId>,
        by: NodeId,
        request: &ClientRequest,
        inode: InodeId,
    ) -> Result<bool> {
        let others = nodes.into_iter().filter(|&node| node != by);
        let notified = join_all(others.map(|node| self.notify_node(node, request, inode))).await;
        notified.into_iter().try_fold(true, |all, knows| Ok(all & knows?))
    }

    async fn notify_node(&self, node: NodeId, request: &ClientRequest, inode: InodeId) -> Result<bool> {
        let runtime = &self.base.runtime;
        let deadline = runtime.clock.monotonic() + FAILOVER_TIME_MAX;
        loop {
            match self.ask_unless_excluded(node, request).await {
                Ok(Answer { reply: Reply::Client(ClientReply::Held(fault)), .. }) => {
                    return Err(fault.context(format_args!("{node} has the file open")));
                }
                Ok(_) => return Ok(true),
                Err(fault) => {
                    let is_cut_off =
                        fault.kind() == FaultKind::Unreachable && self.may_answer_later(node, inode);
                    if is_cut_off && runtime.clock.monotonic() < deadline {
                        runtime.sleep(NOTIFY_PAUSE).await;
                        continue;
                    }
                    log::warn!(
                        "{node} was not notified of the removal of a file that it may have open: {fault}"
                    );
                    return Ok(false);
                }
            }
        }
    }

    /// Asks a node. An excluded one may reach this node and not the homes: it then answers late, or that it cannot comply.
    async fn ask_unless_excluded(&self, node: NodeId, request: &ClientRequest) -> Result<Answer> {
        let mut call = self.rpc.call(node.into(), Request::Client(request.clone()), None, None);
        loop {
            let answer = self.base.runtime.timeout(EXCLUDED_INTERVAL, &mut call).await;
            match answer {
                None | Some(Ok(Answer { reply: Reply::Client(ClientReply::Held(_)), .. }))
                    if self.base.homes.excludes(node) =>
                {
                    return Err(Fault::new(Errno::EHOSTDOWN, "it is excluded"));
                }
                Some(answer) => return answer,
                None => {}
            }
        }
    }

    /// Whether a node that did not answer is, as far as this coordinator knows, only cut off from it: then this node or the other one is
    /// excluded soon, or they reach each other again.
    fn may_answer_later(&self, node: NodeId, inode: InodeId) -> bool {
        let homes = &self.base.homes;
        homes.are_replicated() && !homes.excludes(node) && homes.coordinates(inode)
    }

    /// Whether a node is about to remove the last name of a file.
    pub(super) fn is_announced(&self, inode: InodeId) -> bool {
        let mut announced = self.announced.lock();
        let Some(since) = announced.get(&inode) else { return false };
        let is_pending = self.base.runtime.clock.monotonic() < *since + REMOVAL_TIME_MAX;
        if !is_pending {
            announced.remove(&inode);
        }
        is_pending
    }

    /// Whether a removal was announced so recently that a mount may not show yet that the file had got the name just before.
    fn is_recent(&self, inode: InodeId) -> bool {
        let now = self.base.runtime.clock.monotonic();
        self.announced.lock().get(&inode).is_some_and(|since| now < *since + STALE_NAME_TIME)
    }

    /// Ends a removal: the last name of the file is gone.
    pub(super) async fn removed(&self, inode: InodeId) -> Result<()> {
        self.holders.removed(inode);
        let dropped = async {
            let Some(file) = self.base.files.get(inode)? else {
                return self.drop_unknown(inode).await;
            };
            let _flush = file.flush.lock().await;
            self.drop_data(&file).await
        };
        let dropped = dropped.await;
        // Only now: until here the reply to an open announces the removal. Also after an error: a file that is opened by this
        // number from now on is another one.
        self.announced.lock().remove(&inode);
        dropped
    }

    /// Drops data of a removed file without a record, where a power failure may have lost the record: a new file with its number would get
    /// that data.
    async fn drop_unknown(&self, inode: InodeId) -> Result<()> {
        if !self.base.journal.may_lack_records() {
            return Ok(());
        }
        let homes = &self.base.homes;
        homes.ask_all(|| homes.all(inode), &UnitRequest::Truncate { inode, size: 0 }).await
    }

    /// Finishes an interrupted removal, and returns whether the file is removed. The caller holds the file's flush lock.
    pub(super) async fn finish(&self, file: &File) -> Result<bool> {
        let record = file.state().record.clone();
        if !record.removing {
            return Ok(record.removed);
        }
        match self.base.locator.locate(file.inode, &record).await {
            // The mount may show the old file of that name: the node that removes this one reports the end.
            Err(fault) if fault.kind() == FaultKind::Missing && self.is_recent(file.inode) => Err(fault),
            Err(fault) if fault.kind() == FaultKind::Missing => self.drop_data(file).await.map(|()| true),
            found => found.map(|_| false),
        }
    }

    /// Drops the job's data of a removed file. The caller holds the file's flush lock.
    async fn drop_data(&self, file: &File) -> Result<()> {
        let inode = file.inode;
        let journaled = self.base.files.update(file, |state| {
            state.changes += 1;
            state.openers.clear();
            state.record.reach_end();
            state.record.removed = true;
            state.record.removing = false;
            state.record.dirty = false;
            state.record.truncate_to = None;
            state.record.space = None;
            state.record.generation = state.record.generation.next();
            state.record.journaled
        })?;
        self.base.queue.remove(inode);
        if !journaled {
            return self.drop_unknown(inode).await;
        }
        self.base.journal.drop_digests(inode, 0..u64::MAX)?;
        self.base.journal.sync(false).await?;
        self.drop_units(file).await
    }

    /// Drops the units of a removed file. A home that cannot be reached drops them before another file gets the number, or at the drain.
    async fn drop_units(&self, file: &File) -> Result<()> {
        let inode = file.inode;
        let homes = || self.base.homes.written(inode, &file.state().record);
        match self.base.homes.ask_all(homes, &UnitRequest::Truncate { inode, size: 0 }).await {
            Err(fault) if fault.kind() == FaultKind::Unreachable => {
                log::info!("a node drops its data of {inode}, which was removed, later: {fault}");
                return Ok(());
            }
            dropped => dropped?,
        }
        self.base.files.update(file, |state| {
            if !state.may_be_written_late {
                state.record.reach = 0;
            }
        })
    }
}
