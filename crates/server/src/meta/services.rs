//! The metadata services of all homes of a node, and the requests that concern several of them.

use super::leases::Leases;
use super::{MetaParts, MetaService};
use futures_util::future::{join_all, try_join_all};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tameike_core::limits::READDIR_ENTRIES_MAX;
use tameike_core::wire::meta::{Closes, Command, DirEntry, DirStat, MetaReply, MetaRequest};
use tameike_core::{Attr, DirOffset, Errno, Fault, HomeId, InodeId, NodeId, Result, View};

/// Fewest entries that each home is asked for. Entries past another home's last one are dropped.
const PART_ENTRIES_MIN: u32 = 16;

/// The metadata services of a node, by home.
pub struct MetaServices {
    parts: Arc<MetaParts>,
    pub(super) homes: BTreeMap<HomeId, Arc<MetaService>>,
}

impl MetaServices {
    /// Starts the services on a ledger that has replayed its log. They can serve requests at once; [`Self::recover`] must run
    /// concurrently as soon as peers are reachable.
    ///
    /// # Errors
    /// Those of the ledger.
    pub async fn open(parts: MetaParts) -> Result<Arc<Self>> {
        let (map, parts) = (parts.cluster.map(), Arc::new(parts));
        let all = (0..map.count()).map(|home| HomeId(home as u16));
        let own = all.filter(|&home| map.primary(home) == parts.node);
        let leases = Arc::<AtomicUsize>::default();
        let homes =
            own.map(|home| Ok((home, MetaService::open(home, parts.clone(), Leases::new(leases.clone()))?)));
        let homes = homes.collect::<Result<_>>()?;
        // Not on the backups, which may start later.
        parts.ledger.sync_own(false).await?;
        Ok(Arc::new(Self { parts, homes }))
    }

    /// Serves a request to a home, or to all homes of this node (`None`).
    ///
    /// # Errors
    /// - The POSIX errno of the call.
    /// - `EPROTO` if this node does not serve the home, or the home does not have the name or inode.
    /// - `EHOSTDOWN` if a node of the operation cannot be reached.
    /// - `ETIMEDOUT` if a pending operation blocks the name; it completes once its nodes are reachable.
    pub async fn serve(&self, from: NodeId, home: Option<HomeId>, request: MetaRequest) -> Result<MetaReply> {
        match (home, request) {
            (_, MetaRequest::Sync { durable }) => {
                self.parts.ledger.sync(durable).await?;
                Ok(MetaReply::Done)
            }
            (_, MetaRequest::Close { node, homes, holder_outcomes }) => {
                self.parts.holders.add_outcomes(&holder_outcomes);
                self.close(node, &homes).await
            }
            (Some(home), request) => self.at(home)?.serve(from, request).await,
            (None, MetaRequest::DirStat { dir }) => self.dir_stat(dir).await,
            (None, MetaRequest::ReadDir { dir, after, limit, sharded: true }) => {
                self.read_dir(dir, after, limit).await
            }
            (None, MetaRequest::Execute(command @ Command::SetDirTime { .. })) => {
                let request = MetaRequest::Execute(command);
                let set = self.homes.values().map(|home| home.serve(from, request.clone()));
                try_join_all(set).await.map(|_| MetaReply::Done)
            }
            (None, request) => {
                let problem = format!("{} got a request without a home: {request:?}", self.parts.node);
                Err(Fault::new(Errno::EPROTO, problem))
            }
        }
    }

    /// The service of a home.
    fn at(&self, home: HomeId) -> Result<&Arc<MetaService>> {
        self.homes.get(&home).ok_or_else(|| {
            Fault::new(
                Errno::EPROTO,
                format!("{} got a request for {home}, which it does not serve", self.parts.node),
            )
        })
    }

    fn of(&self, inode: InodeId) -> Result<&Arc<MetaService>> {
        self.at(self.parts.cluster.inode_home(inode))
    }

    async fn close(&self, node: NodeId, homes: &[Closes]) -> Result<MetaReply> {
        let close = |closes: &Closes| {
            let service = self.at(closes.home).cloned();
            let (opens, undone) = (closes.opens.clone(), closes.undone.clone());
            async move { service?.close(node, &opens, &undone).await }
        };
        // An error at one home does not keep the others from closing.
        let closed = join_all(homes.iter().map(close)).await;
        closed.into_iter().collect::<Result<()>>().map(|()| MetaReply::Done)
    }

    async fn dir_stat(&self, dir: InodeId) -> Result<MetaReply> {
        let parts = try_join_all(self.homes.values().map(|home| home.dir_stat(dir))).await?;
        // Only the home of the children knows whether the directory is sharded.
        let home = self.parts.cluster.children_home(dir);
        let known = self.homes.keys().zip(&parts).find(|(one, _)| **one == home);
        let sharded = known.is_none_or(|(_, part)| part.sharded);
        let mut all = DirStat::default();
        parts.into_iter().for_each(|part| all.gather(part));
        Ok(MetaReply::DirStat(DirStat { sharded, ..all }))
    }

    /// Entries of a sharded directory at all homes of this node, up to the smallest last offset of a home that has more.
    async fn read_dir(&self, dir: InodeId, after: DirOffset, limit: u32) -> Result<MetaReply> {
        let limit = limit.clamp(1, READDIR_ENTRIES_MAX);
        let each = (2 * limit / self.homes.len().max(1) as u32).clamp(PART_ENTRIES_MIN.min(limit), limit);
        let parts = self.homes.values().map(|home| home.read_dir(dir, after, each, true));
        let (mut all, mut bound): (Vec<DirEntry>, _) = (Vec::new(), None::<DirOffset>);
        for part in try_join_all(parts).await? {
            let MetaReply::Entries { entries, end } = part else { return Ok(part) };
            if let (false, Some(last)) = (end, entries.last()) {
                bound = Some(bound.map_or(last.offset, |bound| bound.min(last.offset)));
            }
            all.extend(entries);
        }
        all.sort_by(|a, b| (a.offset, &a.name).cmp(&(b.offset, &b.name)));
        if let Some(extra) = all.get(limit as usize) {
            // Entries of one offset stay together.
            let (first, extra) = (all[0].offset, extra.offset);
            let last = all.iter().rev().map(|entry| entry.offset).find(|&offset| offset < extra);
            let last = last.unwrap_or(first);
            bound = Some(bound.map_or(last, |bound| bound.min(last)));
        }
        all.retain(|entry| bound.is_none_or(|bound| entry.offset <= bound));
        Ok(MetaReply::Entries { entries: all, end: bound.is_none() })
    }

    /// Completes the operations that were pending when the agent failed, and removes unlinked inodes that no process has open. Retries
    /// unreachable nodes, and returns when everything is complete.
    pub async fn recover(&self) {
        join_all(self.homes.values().map(|home| home.recover())).await;
    }

    /// Drops the opens and leases of a failed node.
    pub fn peer_failed(&self, node: NodeId) {
        self.homes.values().for_each(|home| home.peer_failed(node));
    }

    /// Returns the number of inodes of a view on this node.
    pub fn inodes(&self, view: View) -> u64 {
        self.homes.values().map(|home| home.inodes[view.index()].load(Ordering::Relaxed)).sum()
    }

    /// Moves inline content to a unit, so that other services can change it there.
    ///
    /// # Errors
    /// `ENOENT` if the file was removed; `EINVAL` if it is no regular file; `EHOSTDOWN`, `ENOSPC`.
    pub async fn move_to_units(&self, inode: InodeId) -> Result<Attr> {
        self.of(inode)?.move_to_units(inode).await
    }

    /// Raises the generation of a file after another service has changed its units. When it returns, no lease covers the generation before.
    ///
    /// # Errors
    /// `ENOENT` if the file was removed; `EINVAL` if its content is inline.
    pub async fn content_changed(&self, inode: InodeId) -> Result<()> {
        self.of(inode)?.content_changed(inode).await
    }
}
