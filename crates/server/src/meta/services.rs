//! The metadata services of all homes of a node, and the requests that concern several of them.

use super::leases::Leases;
use super::{MetaParts, MetaService};
use futures_util::future::{join_all, try_join_all};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tameike_core::limits::{DIRECTORY_CACHE_TIME, READDIR_ENTRIES_MAX};
use tameike_core::wire::meta::{Closes, Command, DirEntry, DirStat, MetaReply, MetaRequest, Opener};
use tameike_core::{Attr, DirOffset, Errno, Fault, HomeId, InodeId, NodeId, Result, View};
use tameike_fabric::RequestContext;

/// Fewest entries that each home is asked for. Entries past another home's last one are dropped.
const PART_ENTRIES_MIN: u32 = 16;

/// The metadata services of a node, by home.
pub struct MetaServices {
    parts: Arc<MetaParts>,
    homes: RwLock<BTreeMap<HomeId, Arc<MetaService>>>,
    /// Number of leases and cached directories of all homes.
    leases: Arc<AtomicUsize>,
}

impl MetaServices {
    /// Starts the services on a ledger that has replayed its log. They can serve requests at once; [`Self::recover`] must run
    /// concurrently as soon as peers are reachable.
    ///
    /// # Errors
    /// Those of the ledger.
    pub async fn open(parts: MetaParts) -> Result<Arc<Self>> {
        let map = parts.cluster.map();
        let (homes, leases) = Default::default();
        let services = Self { parts: Arc::new(parts), homes, leases };
        for home in map.served_by(services.parts.node) {
            let leases = Leases::new(services.leases.clone());
            services.insert(MetaService::open(home, services.parts.clone(), leases)?);
        }
        // Not on the backups, which may start later.
        services.parts.ledger.sync_own(false).await?;
        Ok(Arc::new(services))
    }

    fn insert(&self, service: Arc<MetaService>) {
        self.homes.write().insert(service.home, service);
    }

    /// Starts the service of a home that another node has served until now. These inodes are open on other nodes. [`Self::recover_at`] must
    /// follow.
    ///
    /// # Errors
    /// Those of the ledger; `EREMCHG` if this node does not serve the home any more.
    pub fn take_over(&self, home: HomeId, opens: &[(InodeId, Opener)]) -> Result<()> {
        // The node before has told others that they may cache directories.
        let cached_until = self.parts.runtime.clock.monotonic() + DIRECTORY_CACHE_TIME;
        let leases = Leases::after(self.leases.clone(), cached_until);
        let service = MetaService::open(home, self.parts.clone(), leases)?;
        service.reopen(opens)?;
        self.insert(service);
        Ok(())
    }

    /// Reopens inodes of a home that another node has served. Inodes that are gone stay so.
    ///
    /// # Errors
    /// `EREMCHG` if this node does not serve the home; those of the ledger.
    pub fn reopen(&self, home: HomeId, opens: &[(InodeId, Opener)]) -> Result<()> {
        self.at(home)?.reopen(opens)
    }

    /// Ends the service of a home that another node serves now. Its operations fail with `EREMCHG`.
    pub fn leave(&self, home: HomeId) {
        let left = self.homes.write().remove(&home);
        drop(left);
    }

    /// The services, ascending by home.
    pub(super) fn all(&self) -> Vec<Arc<MetaService>> {
        self.homes.read().values().cloned().collect()
    }

    /// Serves a request to a home, or to all homes of this node (`None`).
    ///
    /// # Errors
    /// - The POSIX errno of the call.
    /// - `EREMCHG` if this node does not serve the home.
    /// - `EPROTO` if the home does not have the name or inode.
    /// - `EHOSTDOWN` if a node of the operation cannot be reached.
    /// - `ETIMEDOUT` if a pending operation blocks the name; it completes once its nodes are reachable.
    pub async fn serve(&self, context: RequestContext, request: MetaRequest) -> Result<MetaReply> {
        let RequestContext { from, home, call, .. } = context;
        match (home, request) {
            (_, MetaRequest::Sync { durable }) => {
                self.parts.ledger.sync(durable).await?;
                Ok(MetaReply::Done)
            }
            (_, MetaRequest::Close { node, homes, holder_outcomes }) => {
                self.parts.holders.add_outcomes(&holder_outcomes);
                self.close(node, &homes).await
            }
            (Some(home), request) => self.at(home)?.serve(from, call, request).await,
            (None, MetaRequest::DirStat { dir }) => self.dir_stat(dir).await,
            (None, MetaRequest::ReadDir { dir, after, limit, sharded: true }) => {
                self.read_dir(dir, after, limit).await
            }
            (None, MetaRequest::Execute(command @ Command::SetDirTime { .. })) => {
                let request = MetaRequest::Execute(command);
                let homes = self.all();
                let set = homes.iter().map(|home| home.serve(from, None, request.clone()));
                try_join_all(set).await.map(|_| MetaReply::Done)
            }
            (None, request) => {
                let problem = format!("{} got a request without a home: {request:?}", self.parts.node);
                Err(Fault::new(Errno::EPROTO, problem))
            }
        }
    }

    /// The service of a home.
    fn at(&self, home: HomeId) -> Result<Arc<MetaService>> {
        self.homes.read().get(&home).cloned().ok_or_else(|| {
            let problem = format!("{} got a request for {home}, which it does not serve", self.parts.node);
            Fault::new(Errno::EREMCHG, problem)
        })
    }

    fn of(&self, inode: InodeId) -> Result<Arc<MetaService>> {
        self.at(self.parts.cluster.inode_home(inode))
    }

    async fn close(&self, node: NodeId, homes: &[Closes]) -> Result<MetaReply> {
        let close = |closes: &Closes| {
            let service = self.at(closes.home);
            let (opens, undone) = (closes.opens.clone(), closes.undone.clone());
            async move { service?.close(node, &opens, &undone).await }
        };
        // An error at one home does not keep the others from closing.
        let closed = join_all(homes.iter().map(close)).await;
        closed.into_iter().collect::<Result<()>>().map(|()| MetaReply::Done)
    }

    async fn dir_stat(&self, dir: InodeId) -> Result<MetaReply> {
        let homes = self.all();
        let parts = try_join_all(homes.iter().map(|home| home.dir_stat(dir))).await?;
        // Only the home of the children knows whether the directory is sharded.
        let home = self.parts.cluster.children_home(dir);
        let known = homes.iter().zip(&parts).find(|(one, _)| one.home == home);
        let sharded = known.is_none_or(|(_, part)| part.sharded);
        let mut all = DirStat::default();
        parts.into_iter().for_each(|part| all.gather(part));
        Ok(MetaReply::DirStat(DirStat { sharded, ..all }))
    }

    /// Entries of a sharded directory at all homes of this node, up to the smallest last offset of a home that has more.
    async fn read_dir(&self, dir: InodeId, after: DirOffset, limit: u32) -> Result<MetaReply> {
        let limit = limit.clamp(1, READDIR_ENTRIES_MAX);
        let homes = self.all();
        let each = (2 * limit / homes.len().max(1) as u32).clamp(PART_ENTRIES_MIN.min(limit), limit);
        let parts = homes.iter().map(|home| home.read_dir(dir, after, each, true));
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
        let homes = self.all();
        join_all(homes.iter().map(|home| home.recover())).await;
    }

    /// Truncates units of a home's files, as far as truncations are pending. A node that cannot be reached may leave some.
    pub async fn finish_truncations(&self, home: HomeId) {
        if let Ok(service) = self.at(home) {
            service.finish_truncations().await;
        }
    }

    /// As [`Self::recover`], for one home.
    pub async fn recover_at(&self, home: HomeId) {
        if let Ok(service) = self.at(home) {
            service.recover().await;
        }
    }

    /// Drops the opens and leases of a failed node.
    pub fn peer_failed(&self, node: NodeId) {
        self.all().iter().for_each(|home| home.peer_failed(node));
    }

    /// Returns the number of inodes of a view on this node.
    pub fn inodes(&self, view: View) -> u64 {
        self.all().iter().map(|home| home.inodes[view.index()].load(Ordering::Relaxed)).sum()
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
