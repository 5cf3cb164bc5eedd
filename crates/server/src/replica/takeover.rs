//! Which homes this node serves, and how it takes over homes from a failed primary.
//!
//! A node that becomes the primary of a home serves it only when
//! - all nodes that are not excluded have reclaimed what their programs have open and locked at the home,
//! - the requests of earlier primaries to this backup have ended, and
//! - the services have started on the copy, as after a restart, and pending truncations are done.
//!
//! Requests wait meanwhile, those for units only until the requests to the backup have ended. They also wait while the node does not have
//! the lease of the home map ([`MapLease`]), and after its store has failed.

use super::{BackupService, Replicas, moved};
use crate::cache::CacheService;
use crate::lock::LockService;
use crate::meta::MetaServices;
use event_listener::{Event, EventListener};
use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tameike_core::limits::FAILOVER_TIME_MAX;
use tameike_core::wire::Request;
use tameike_core::wire::lock::FileLock;
use tameike_core::wire::meta::Opener;
use tameike_core::wire::pack::PackRequest;
use tameike_core::wire::reclaim::{OpenFile, Reclaim, Reclaimed};
use tameike_core::wire::unit::UnitRequest;
use tameike_core::{Cluster, HomeId, HomeMap, InodeId, MapEpoch, NodeId, Result};
use tameike_fabric::MapLease;
use tameike_io::Runtime;
use tameike_store::Ledger;

/// Pause before services that could not start are started again.
const RETRY_TIME: Duration = Duration::from_millis(200);

/// The parts that a takeover needs.
pub struct TakeoverParts {
    /// Clock and tasks.
    pub runtime: Runtime,
    /// All nodes.
    pub cluster: Arc<Cluster>,
    /// This node.
    pub node: NodeId,
    /// The lease of the home map.
    pub lease: Arc<MapLease>,
    /// Log and table.
    pub ledger: Arc<Ledger>,
    /// The primary's side of replicas.
    pub replicas: Arc<Replicas>,
    /// The backup's side.
    pub backups: Arc<BackupService>,
    /// Names and inodes.
    pub meta: Arc<MetaServices>,
    /// Coordinator of cached files.
    pub cache: Arc<CacheService>,
    /// Locks of files.
    pub locks: Arc<LockService>,
}

/// What nodes have reclaimed at a home that this node takes over.
#[derive(Default)]
struct Reclaims {
    /// The requests of earlier primaries to this backup have ended.
    is_fenced: bool,
    /// Nodes that have sent everything.
    complete: BTreeSet<NodeId>,
    opens: Vec<(InodeId, Opener)>,
    files: Vec<(NodeId, OpenFile)>,
    locks: Vec<(InodeId, FileLock)>,
}

#[derive(Default)]
struct State {
    /// The epoch of the map to which the homes are adapted.
    noted: MapEpoch,
    served: BTreeSet<HomeId>,
    /// Homes of which this node has a copy that others count on.
    held: BTreeSet<HomeId>,
    /// Homes of which this node may have units of an earlier copy.
    left_over: BTreeSet<HomeId>,
    taking_over: BTreeMap<HomeId, Reclaims>,
}

/// The homes that a node serves, and those that it takes over.
pub struct Takeover {
    me: Weak<Self>,
    parts: TakeoverParts,
    state: Mutex<State>,
    /// The epoch of the last map under which this node serves all of its homes.
    complete_epoch: AtomicU64,
    /// Notified when a home is served, a node has reclaimed, or the map has changed.
    changed: Event,
}

impl Takeover {
    /// Serves all homes of the current map from the start.
    pub fn new(parts: TakeoverParts) -> Arc<Self> {
        let map = parts.cluster.map();
        let (served, held) = (map.served_by(parts.node).collect(), held_by(&map, parts.node));
        let left_over = map.homes().filter(|home| !held.contains(home)).collect();
        let state = State { noted: map.epoch, served, held, left_over, taking_over: BTreeMap::new() };
        let cluster = parts.cluster.clone();
        let takeover = Arc::new_cyclic(|me: &Weak<Self>| Self {
            me: me.clone(),
            parts,
            state: Mutex::new(state),
            complete_epoch: AtomicU64::new(map.epoch.0),
            changed: Event::new(),
        });
        let weak = Arc::downgrade(&takeover);
        cluster.watch(move || {
            if let Some(takeover) = weak.upgrade() {
                takeover.map_changed();
            }
        });
        takeover
    }

    /// The number of homes that this node takes over now.
    pub fn pending(&self) -> usize {
        self.state.lock().taking_over.len()
    }

    /// Adapts the homes to the current map.
    fn map_changed(&self) {
        let map = self.parts.cluster.map();
        let (left, gained, old) = {
            let state = &mut *self.state.lock();
            if state.noted >= map.epoch {
                return;
            }
            state.noted = map.epoch;
            let own: BTreeSet<_> = map.served_by(self.parts.node).collect();
            let left: Vec<_> = state.served.difference(&own).copied().collect();
            state.served.retain(|home| own.contains(home));
            state.taking_over.retain(|home, _| own.contains(home));
            let is_new =
                |home: &HomeId| !state.served.contains(home) && !state.taking_over.contains_key(home);
            let gained: Vec<_> = own.into_iter().filter(is_new).collect();
            gained.iter().for_each(|home| drop(state.taking_over.insert(*home, Reclaims::default())));
            self.note_complete(state);
            let held = held_by(&map, self.parts.node);
            let mut old: BTreeSet<_> = state.held.difference(&held).copied().collect();
            state.left_over.retain(|home| !held.contains(home));
            let complete = self.complete(&map, &state.left_over);
            state.left_over.retain(|home| !complete.contains(home));
            let kept = self.complete(&map, &old);
            state.left_over.extend(old.difference(&kept));
            old.extend(complete);
            state.held = held;
            (left, gained, old)
        };
        for home in left {
            log::info!("another node serves {home} now");
            self.parts.meta.leave(home);
            self.parts.cache.leave(home);
            self.parts.locks.leave(home);
        }
        for home in gained {
            if let Some(this) = self.me.upgrade() {
                self.parts.runtime.spawn(async move { this.take_over(home).await });
            }
        }
        if let (Some(this), true) = (self.me.upgrade(), !old.is_empty()) {
            self.parts.runtime.spawn(async move { this.parts.backups.discard_old(old).await });
        }
        self.changed.notify(usize::MAX);
    }

    /// The homes among these that have all replicas: old copies of them are of no use.
    fn complete(&self, map: &HomeMap, homes: &BTreeSet<HomeId>) -> BTreeSet<HomeId> {
        let replicas = self.parts.cluster.replicas();
        homes.iter().copied().filter(|home| map.copies(*home) >= replicas).collect()
    }

    /// Drops the copies that an earlier incarnation of the node has left, and that do not count under the map with which this one began.
    pub async fn discard_old_copies(&self) {
        let old = {
            let state = &mut *self.state.lock();
            let complete = self.complete(&self.parts.cluster.map(), &state.left_over);
            let old = state.left_over.clone();
            state.left_over.retain(|home| !complete.contains(home));
            old
        };
        self.parts.backups.discard_old(old).await;
    }

    fn note_complete(&self, state: &State) {
        if state.taking_over.is_empty() {
            self.complete_epoch.fetch_max(state.noted.0, Ordering::AcqRel);
        }
    }

    /// Takes parts of what the programs of a node have open and locked.
    ///
    /// # Errors
    /// `EREMCHG` if another node serves a home; those of the ledger.
    pub fn reclaim(&self, from: NodeId, reclaim: Reclaim) -> Result<Reclaimed> {
        // The map may be so new that its change is not noted yet.
        self.map_changed();
        let Reclaim { complete, opens, files, locks } = reclaim;
        let cluster = &self.parts.cluster;
        let opener = |(inode, open)| (inode, Opener { node: from, open });
        let mut late = Reclaims::default();
        {
            let state = &mut *self.state.lock();
            for (inode, opener) in opens.into_iter().map(opener) {
                let of_home = state.taking_over.get_mut(&cluster.inode_home(inode));
                of_home.unwrap_or(&mut late).opens.push((inode, opener));
            }
            for file in files {
                let of_home = state.taking_over.get_mut(&cluster.inode_home(file.inode));
                of_home.unwrap_or(&mut late).files.push((from, file));
            }
            for (inode, lock) in locks.into_iter().filter(|(_, lock)| lock.owner.node == from) {
                let of_home = state.taking_over.get_mut(&cluster.inode_home(inode));
                of_home.unwrap_or(&mut late).locks.push((inode, lock));
            }
            for home in complete {
                if let Some(reclaims) = state.taking_over.get_mut(&home) {
                    reclaims.complete.insert(from);
                }
            }
        }
        self.changed.notify(usize::MAX);
        // The sender was excluded when this node took the homes over.
        for (inode, opener) in late.opens {
            self.parts.meta.reopen(cluster.inode_home(inode), &[(inode, opener)])?;
        }
        for (node, file) in late.files {
            self.parts.cache.reopen(node, &file)?;
        }
        Ok(Reclaimed { lost_locks: self.parts.locks.reclaim(late.locks) })
    }

    /// Waits until all nodes that are not excluded have reclaimed. Returns what they have, or `None` if another node serves the home.
    async fn reclaimed(&self, home: HomeId) -> Option<Reclaims> {
        loop {
            let changed = self.changed.listen();
            let map = self.parts.cluster.map();
            {
                let mut state = self.state.lock();
                let reclaims = state.taking_over.get_mut(&home)?;
                let nodes = self.parts.cluster.nodes();
                if nodes
                    .iter()
                    .map(|info| info.id)
                    .all(|node| map.excludes(node) || reclaims.complete.contains(&node))
                {
                    // The home stays among those that are taken over.
                    let is_fenced = reclaims.is_fenced;
                    return Some(std::mem::replace(reclaims, Reclaims { is_fenced, ..Reclaims::default() }));
                }
            }
            changed.await;
        }
    }

    async fn take_over(self: Arc<Self>, home: HomeId) {
        let begun = self.parts.runtime.clock.monotonic();
        self.parts.backups.finish_requests(home).await;
        let reconciled = self.parts.replicas.reconcile(home, self.parts.backups.extents()).await;
        let useless = reconciled.unwrap_or_else(|fault| {
            log::error!("cannot compare the dirty units of {home} with those of its backups: {fault}");
            self.parts.cluster.map().backups(home).to_vec()
        });
        if let Some(reclaims) = self.state.lock().taking_over.get_mut(&home) {
            reclaims.is_fenced = true;
        }
        self.changed.notify(usize::MAX);
        let Some(reclaims) = self.reclaimed(home).await else { return };
        while let Err(fault) = self.start_services(home, &reclaims) {
            if self.parts.cluster.primary(home) != self.parts.node {
                return;
            }
            log::error!("cannot take over {home} yet: {fault}");
            self.parts.runtime.sleep(RETRY_TIME).await;
        }
        useless.into_iter().for_each(|backup| self.parts.replicas.note_useless(home, backup));
        // A program may write behind the new end of a file as soon as this node serves the home.
        self.parts.meta.finish_truncations(home).await;
        let lost = self.parts.locks.reclaim(reclaims.locks);
        lost.iter().for_each(|(inode, lock)| log::error!("a lock of {inode} is lost: {lock:?}"));
        {
            let state = &mut *self.state.lock();
            if state.taking_over.remove(&home).is_some() {
                state.served.insert(home);
            }
            self.note_complete(state);
        }
        self.changed.notify(usize::MAX);
        let time = self.parts.runtime.clock.monotonic() - begun;
        log::info!("{} serves {home} now, after {} ms", self.parts.node, time.as_millis());
        self.parts.meta.recover_at(home).await;
    }

    fn start_services(&self, home: HomeId, reclaims: &Reclaims) -> Result<()> {
        self.parts.replicas.begin_stream(home, &self.parts.ledger)?;
        self.parts.meta.take_over(home, &reclaims.opens)?;
        self.parts.cache.take_over(home, &reclaims.files)
    }

    /// What a request must wait for before this node may serve it; `None` if it may be served now.
    pub fn admit(
        &self,
        (home, epoch): (Option<HomeId>, MapEpoch),
        request: &Request,
    ) -> Option<BoxFuture<'static, Result<()>>> {
        if !is_served_by_primaries(request) || self.serves_all() && self.may_serve() {
            return None;
        }
        let (this, is_unit) = (self.me.upgrade()?, matches!(request, Request::Unit(_)));
        Some(async move { this.wait_until_served((home, epoch), is_unit).await }.boxed())
    }

    /// Whether this node serves all of its homes under the current map.
    fn serves_all(&self) -> bool {
        self.complete_epoch.load(Ordering::Acquire) == self.parts.cluster.epoch().0
    }

    /// Whether the node has the lease, and a store that accepts changes.
    fn may_serve(&self) -> bool {
        self.parts.lease.is_valid() && !self.gives_up()
    }

    /// Whether the store has failed and other nodes will serve the homes: the authority excludes this node as soon as it knows that, unless
    /// it is the last one.
    fn gives_up(&self) -> bool {
        let TakeoverParts { cluster, node, ledger, .. } = &self.parts;
        ledger.has_failed() && {
            let map = cluster.map();
            !map.excludes(*node) && map.excluded().len() + 1 < cluster.nodes().len()
        }
    }

    /// Waits until the node may serve, or `changed` completes, in a wait that has begun at a time.
    ///
    /// # Errors
    /// `EHOSTDOWN` if it has taken [`FAILOVER_TIME_MAX`].
    async fn wait_to_serve(&self, changed: EventListener, begun: Duration) -> Result<()> {
        let TakeoverParts { runtime, lease, .. } = &self.parts;
        lease.check_wait(begun)?;
        let left = (begun + FAILOVER_TIME_MAX).saturating_sub(runtime.clock.monotonic());
        if self.gives_up() {
            runtime.timeout(left, changed).await;
        } else {
            runtime.timeout(left, lease.wait_valid(changed)).await;
        }
        Ok(())
    }

    async fn wait_until_served(
        &self,
        (home, epoch): (Option<HomeId>, MapEpoch),
        is_unit: bool,
    ) -> Result<()> {
        let begun = self.parts.runtime.clock.monotonic();
        loop {
            let changed = self.changed.listen();
            // The map may be so new that its change is not noted yet.
            self.map_changed();
            self.check_primary(home, epoch)?;
            let is_served = {
                let state = self.state.lock();
                let waits = |reclaims: &Reclaims| !is_unit || !reclaims.is_fenced;
                match home {
                    Some(home) => !state.taking_over.get(&home).is_some_and(waits),
                    None => !state.taking_over.values().any(waits),
                }
            };
            if is_served && self.may_serve() {
                return Ok(());
            }
            if is_served {
                self.wait_to_serve(changed, begun).await?;
            } else {
                changed.await;
            }
        }
    }

    /// Confirms that this node was entitled to serve a request that was admitted under the map of `epoch`: no other node has served its home
    /// meanwhile.
    ///
    /// # Errors
    /// - `EREMCHG` if another node serves the home, or perhaps one of all homes.
    /// - `EHOSTDOWN` if the node gets no lease within [`FAILOVER_TIME_MAX`].
    pub async fn confirm(&self, home: Option<HomeId>, epoch: MapEpoch) -> Result<()> {
        let begun = self.parts.runtime.clock.monotonic();
        while !self.may_serve() {
            let changed = self.changed.listen();
            self.check_primary(home, epoch)?;
            self.wait_to_serve(changed, begun).await?;
        }
        self.check_primary(home, epoch)
    }

    fn check_primary(&self, home: Option<HomeId>, epoch: MapEpoch) -> Result<()> {
        let map = self.parts.cluster.map();
        match home {
            Some(home) if map.primary(home) != self.parts.node => Err(moved(home)),
            Some(home) if map.primary_since(home) > epoch => Err(moved(home)),
            None if !map.keeps_primaries_of(epoch) => Err(tameike_core::Errno::EREMCHG.into()),
            _ => Ok(()),
        }
    }
}

/// The homes of which a node has a copy.
fn held_by(map: &HomeMap, node: NodeId) -> BTreeSet<HomeId> {
    map.homes().filter(|&home| map.is_on(home, node)).collect()
}

/// Whether only a node that serves homes may serve a request.
pub fn is_served_by_primaries(request: &Request) -> bool {
    match request {
        Request::Unit(UnitRequest::WaitForSpace { .. })
        | Request::Admin(_)
        | Request::Client(_)
        | Request::Pack(PackRequest::Keep(_))
        | Request::Replica(_)
        | Request::Reclaim(_) => false,
        Request::Meta(_)
        | Request::Unit(_)
        | Request::Cache(_)
        | Request::Lock(_)
        | Request::Pack(_)
        | Request::Region(_) => true,
    }
}
