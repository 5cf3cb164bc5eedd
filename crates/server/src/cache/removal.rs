//! Files that lose their last name. The job drops what it holds of them; a node that has one open goes on with the shared
//! file, to which the content is brought first.

use super::CacheService;
use super::files::File;
use super::flush::is_refusal;
use super::locate::SHOWN_OLD_TIME;
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::unit::UnitRequest;
use tameike_core::wire::{Reply, Request};
use tameike_core::{InodeId, NodeId, Result};
use tameike_fabric::Answer;
use tameike_io::shared::is_missing;

/// How long a removal that was announced may take. One whose node has died meanwhile never ends.
const REMOVAL_TIME_MAX: Duration = Duration::from_secs(60);

/// Files whose last names nodes are about to take away, and since when; also of those of which nothing else is known.
#[derive(Default)]
pub(super) struct Removals(Mutex<BTreeMap<InodeId, Duration>>);

impl CacheService {
    /// Notes in the journal of a file that it is about to be removed, so that a removal which is cut off before
    /// [`CacheService::removed`] is known for what it was; and tells the other nodes that may have it open. Returns when
    /// they need nothing more of the job's data.
    ///
    /// # Errors
    /// When one of them cannot go on without: the file must not be removed.
    pub(super) async fn removing(&self, inode: InodeId, by: NodeId) -> Result<()> {
        let now = self.parts.runtime.clock.monotonic();
        self.removals.0.lock().insert(inode, now);
        let Some(file) = self.files.get(&self.journal, inode)? else { return Ok(()) };
        let openers = file.update(&self.journal, |state| {
            state.record.removing = true;
            state.openers.clone()
        })?;
        self.journal.sync(false).await?;
        let all_know = self.tell(openers, by, &ClientRequest::Removing { inode }).await?;
        file.state().is_written_late |= !all_know;
        Ok(())
    }

    /// The removal did not happen.
    pub(super) async fn kept(&self, inode: InodeId, by: NodeId) -> Result<()> {
        self.removals.0.lock().remove(&inode);
        let Some(file) = self.files.get(&self.journal, inode)? else { return Ok(()) };
        let openers = file.state().openers.clone();
        // They must know even if the journal takes no more changes.
        let told = self.tell(openers, by, &ClientRequest::Kept { inode }).await;
        file.update(&self.journal, |state| state.record.removing = false)?;
        told.map(drop)
    }

    /// Tells other nodes what becomes of a file that they may have open; whether all know. One that cannot be reached is not waited for
    /// any longer: what a dead node had open could never be removed.
    ///
    /// # Errors
    /// What one of them answered that it cannot do.
    async fn tell(
        &self,
        nodes: impl IntoIterator<Item = NodeId>,
        by: NodeId,
        request: &ClientRequest,
    ) -> Result<bool> {
        let told = nodes.into_iter().filter(|&node| node != by).map(|node| async move {
            let call = self.parts.rpc.call(node, Request::Client(request.clone()), None, None);
            match call.await {
                Ok(Answer { reply: Reply::Client(ClientReply::Held(fault)), .. }) => {
                    Err(fault.context(format_args!("{node} has the file open")))
                }
                Ok(_) => Ok(true),
                Err(fault) => {
                    log::warn!("{node} does not know what becomes of a file that it may have open: {fault}");
                    Ok(false)
                }
            }
        });
        join_all(told).await.into_iter().try_fold(true, |all, told| Ok(all & told?))
    }

    /// Whether a node is about to take the last name of a file away.
    pub(super) fn is_being_removed(&self, inode: InodeId) -> bool {
        let mut removals = self.removals.0.lock();
        let Some(since) = removals.get(&inode) else { return false };
        let is_under_way = self.parts.runtime.clock.monotonic() < *since + REMOVAL_TIME_MAX;
        if !is_under_way {
            removals.remove(&inode);
        }
        is_under_way
    }

    /// Whether a removal was announced so lately that the file may have got the name just before.
    fn is_young_removal(&self, inode: InodeId) -> bool {
        let now = self.parts.runtime.clock.monotonic();
        self.removals.0.lock().get(&inode).is_some_and(|since| now < *since + SHOWN_OLD_TIME)
    }

    /// The last name of a file is gone.
    pub(super) async fn removed(&self, inode: InodeId) -> Result<()> {
        self.parts.holders.removed(inode);
        let forgotten = async {
            let Some(file) = self.files.get(&self.journal, inode)? else {
                return self.drop_unknown(inode).await;
            };
            let _flush = file.flush.lock().await;
            self.forget_removed(&file).await
        };
        let forgotten = forgotten.await;
        // Not before: until then a client that opens the file must hear of it. But whatever failed: who opens a file with
        // this number from now on opens another one.
        self.removals.0.lock().remove(&inode);
        forgotten
    }

    /// Drops what nodes hold of a removed file that has no record, as it may have gone with the power: a new file that gets its
    /// number would be given it.
    async fn drop_unknown(&self, inode: InodeId) -> Result<()> {
        if !self.parts.ledger.may_lack_records() {
            return Ok(());
        }
        self.ask_units(self.homes(inode), &UnitRequest::Truncate { inode, size: 0 }).await
    }

    /// Ends a removal that was cut off; whether the file is gone. The file's flush lock is held.
    pub(super) async fn finish_removal(&self, file: &File) -> Result<bool> {
        let record = file.state().record.clone();
        if !record.removing {
            return Ok(record.removed);
        }
        match self.locate(file.inode, &record).await {
            // This machine may be shown what had the name before the file: then who removes it will tell how that ended.
            Err(fault) if is_missing(fault.errno) && self.is_young_removal(file.inode) => Err(fault),
            Err(fault) if is_missing(fault.errno) => self.forget_removed(file).await.map(|()| true),
            found => found.map(|_| false),
        }
    }

    /// Drops what the job holds of a removed file. The file's flush lock is held.
    async fn forget_removed(&self, file: &File) -> Result<()> {
        let inode = file.inode;
        let journaled = file.update(&self.journal, |state| {
            state.changes += 1;
            state.openers.clear();
            state.record.reach_end();
            state.record.removed = true;
            state.record.removing = false;
            state.record.dirty = false;
            state.record.cut = None;
            state.record.space = None;
            state.record.generation = state.record.generation.next();
            state.record.journaled
        })?;
        self.dirty.lock().remove(&inode);
        if !journaled {
            return self.drop_unknown(inode).await;
        }
        self.journal.drop_digests(inode, 0..u64::MAX)?;
        self.journal.sync(false).await?;
        self.drop_removed(file).await
    }

    /// Drops what homes hold of a removed file. The name is gone, whether they can be reached or not: one that cannot drops it before another
    /// file gets the number, or when the job is drained.
    async fn drop_removed(&self, file: &File) -> Result<()> {
        let inode = file.inode;
        let homes = self.homes_reached(inode, &file.state().record);
        match self.ask_units(homes, &UnitRequest::Truncate { inode, size: 0 }).await {
            Err(fault) if !is_refusal(fault.errno) => {
                log::info!("what a node holds of {inode}, which was removed, is dropped later: {fault}");
                return Ok(());
            }
            dropped => dropped?,
        }
        file.update(&self.journal, |state| {
            // Nobody has it open who would write to it once more.
            if !state.is_written_late {
                state.record.reach = 0;
            }
        })
    }
}
