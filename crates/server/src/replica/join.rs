//! Copies of homes that lack a replica: the primary copies the home to the node that the home map lists as joining.
//!
//! 1. The node drops the records that it has of the home. From then on it gets each change of a unit, as backups do.
//! 2. The primary sends all units, each under its lock, so that no change falls between the unit and the changes after it. If the node has
//!    units of an earlier copy, it gets only the blocks that differ, and drops those that the primary does not have.
//! 3. It sends the records of the home's names and cached files as of one moment, and then those of the log after that moment.
//! 4. When the node has everything, durably, nothing more is acknowledged that it lacks. The primary reports the copy to the authority of the
//!    home map, which makes the node a backup.
//!
//! Requests of programs come first: while programs use the node, it sends one unit at a time, and then pauses for longer than that took.

use super::comparison::make_equal;
use super::{Copies, Join, Replicas, may_be_repeated};
use crate::cache::{Activity, entries_of_home};
use async_lock::Semaphore;
use futures_util::{TryStreamExt, stream};
use serde_bytes::ByteBuf;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tameike_core::wire::replica::{RECORD_BYTES_MAX, ReplicaReply, ReplicaRequest};
use tameike_core::{Cluster, Errno, Fault, HomeId, HomeSet, NodeId, Result, UnitId};
use tameike_io::Payload;
use tameike_store::ledger::{last_record, last_record_entry};
use tameike_store::table::{ReadTable, key_of_home};
use tameike_store::{ExtentStore, Ledger};

/// Homes that a node copies at a time.
const HOMES_PARALLEL: usize = 2;
/// Units of a home that are in flight at a time.
const UNITS_PARALLEL: usize = 4;
/// The pause after a unit that was sent while programs used the node, in times that it took.
const PAUSE_FACTOR: u32 = 3;
/// Longest such pause.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// The parts that copies of homes and their checks need.
#[derive(Clone)]
pub struct JoinsParts {
    /// The primary's side of replicas.
    pub replicas: Arc<Replicas>,
    /// Changes of units.
    pub copies: Arc<Copies>,
    /// Log and table.
    pub ledger: Arc<Ledger>,
    /// Units of this node.
    pub extents: Arc<ExtentStore>,
    /// Whether programs wait for this node.
    pub activity: Arc<Activity>,
}

/// Copies the homes that this node serves to the nodes that the home map lists as joining.
pub struct Joins {
    me: Weak<Self>,
    parts: JoinsParts,
    running: parking_lot::Mutex<BTreeSet<(HomeId, NodeId)>>,
    parallel: Semaphore,
    /// Held while a unit is sent on a node that programs use, and during the pause after it.
    only: Semaphore,
    /// Units copied so far.
    units: AtomicU64,
}

/// The entries of a table for a home: names, inodes and cached files.
pub(super) fn entries_of(
    table: &dyn ReadTable,
    cluster: &Cluster,
    home: HomeId,
) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let names = table.scan(&key_of_home(home, &[0]), &key_of_home(home, &[u8::MAX]), usize::MAX)?;
    Ok(names.into_iter().chain(entries_of_home(table, cluster, home)?).collect())
}

/// The keys of a table for a home, with the number of its last record.
pub(super) fn keys_of(table: &dyn ReadTable, cluster: &Cluster, home: HomeId) -> Result<Vec<Vec<u8>>> {
    let entries = entries_of(table, cluster, home)?.into_iter().map(|(key, _)| key);
    let (last, _) = last_record_entry(home, last_record(table, home)?);
    Ok(entries.chain([last]).collect())
}

impl Joins {
    /// Follows the home map from now on.
    pub fn start(parts: JoinsParts) -> Arc<Self> {
        let cluster = parts.replicas.parts.cluster.clone();
        let joins = Arc::new_cyclic(|me: &Weak<Self>| {
            let (running, units) = Default::default();
            let [parallel, only] = [HOMES_PARALLEL, 1].map(Semaphore::new);
            Self { me: me.clone(), parts, running, parallel, only, units }
        });
        let weak = Arc::downgrade(&joins);
        cluster.watch(move || {
            if let Some(joins) = weak.upgrade() {
                joins.map_changed();
            }
        });
        joins.map_changed();
        joins
    }

    /// Number of units copied so far.
    pub fn units(&self) -> u64 {
        self.units.load(Ordering::Relaxed)
    }

    fn map_changed(&self) {
        let own = &self.parts.replicas.parts;
        let map = own.cluster.map();
        let copied = self.parts.replicas.copied();
        let is_wanted =
            |joining: &&(HomeId, NodeId)| map.primary(joining.0) == own.node && !copied.contains(joining);
        for &(home, node) in map.all_joining().iter().filter(is_wanted) {
            if let (true, Some(this)) = (self.running.lock().insert((home, node)), self.me.upgrade()) {
                own.runtime.spawn(async move { this.copy(home, node).await });
            }
        }
    }

    async fn copy(self: Arc<Self>, home: HomeId, node: NodeId) {
        let _turn = self.parallel.acquire().await;
        if let Err(fault) = self.try_copy(home, node).await {
            if fault.errno == Errno::EREMCHG {
                log::info!("the copy of {home} to {node} is given up");
            } else {
                self.parts.replicas.note_failed(node, &fault);
            }
        }
        self.running.lock().remove(&(home, node));
        // The map may list it again already.
        self.map_changed();
    }

    async fn try_copy(&self, home: HomeId, node: NodeId) -> Result<()> {
        let JoinsParts { replicas, ledger, extents, activity, .. } = &self.parts;
        replicas.wait_for_stream(home).await?;
        let begun = replicas.ask_copy(home, node, ReplicaRequest::BeginCopy { home }, None).await?;
        let has_units = matches!(begun, ReplicaReply::CopyBegun { has_units: true });
        replicas.begin_join(home, node);
        // The index shows changes between its batches. A unit that is made behind this point is sent with its change.
        let of_home = HomeSet::from_iter([home]);
        let units = extents.units_of(&of_home);
        let send = |unit| async move {
            let runtime = &replicas.parts.runtime;
            let only = if activity.is_quiet() { None } else { Some(self.only.acquire().await) };
            let begun = runtime.clock.monotonic();
            self.send_unit((home, unit), node, has_units).await?;
            self.units.fetch_add(1, Ordering::Relaxed);
            if only.is_some() {
                let pause = (runtime.clock.monotonic() - begun) * PAUSE_FACTOR;
                runtime.timeout(pause.min(PAUSE_MAX), activity.until_quiet()).await;
            }
            Ok(())
        };
        stream::iter(units).try_for_each_concurrent(UNITS_PARALLEL, send).await?;
        replicas.ask_copy(home, node, ReplicaRequest::EndCopy { home }, None).await?;
        replicas.keep_records(home, node);
        let (entries, last) = ledger.read(|table| {
            let last = last_record(table, home)?;
            let mut entries = entries_of(table, &replicas.parts.cluster, home)?;
            entries.push(last_record_entry(home, last));
            Ok((entries, last))
        })?;
        for entries in batches(entries) {
            let request = ReplicaRequest::CopyEntries { home, entries };
            replicas.ask_copy(home, node, request, None).await?;
        }
        replicas.send_records(home, node, last.number);
        replicas.wait_for_backups(Some(home)).await?;
        replicas.ask_copy(home, node, ReplicaRequest::Sync, None).await?;
        replicas.end_join(home, node);
        Ok(())
    }

    /// Sends a unit, or what differs from the one that the node has of an earlier copy.
    async fn send_unit(&self, (home, unit): (HomeId, UnitId), node: NodeId, has_units: bool) -> Result<()> {
        let JoinsParts { replicas, copies, .. } = &self.parts;
        let is_equal =
            has_units && !unit.inode.is_cached() && make_equal(copies, replicas, (home, unit), node).await?;
        if is_equal { Ok(()) } else { copies.send_unit(replicas, (home, unit), node).await }
    }
}

/// Divides entries among messages.
fn batches(entries: Vec<(Vec<u8>, Vec<u8>)>) -> Vec<Vec<(ByteBuf, ByteBuf)>> {
    let (mut all, mut size) = (vec![Vec::new()], 0);
    for (key, value) in entries {
        size += key.len() + value.len() + 16;
        if size > RECORD_BYTES_MAX && !all.last().is_some_and(Vec::is_empty) {
            size = key.len() + value.len() + 16;
            all.push(Vec::new());
        }
        let batch = all.last_mut().expect("there is one from the start");
        batch.push((ByteBuf::from(key), ByteBuf::from(value)));
    }
    all
}

impl Replicas {
    /// Sends a request to a backup of a home, or to the node to which it is being copied, until it answers.
    ///
    /// # Errors
    /// `EREMCHG` if the node has no copy of the home any more, or another node serves the home; those of the node.
    pub(super) async fn ask_copy(
        &self,
        home: HomeId,
        node: NodeId,
        request: ReplicaRequest,
        payload: Option<Payload>,
    ) -> Result<ReplicaReply> {
        loop {
            let map = self.parts.cluster.map();
            let has_copy = map.joining(home) == Some(node) || map.backups(home).contains(&node);
            if map.primary(home) != self.parts.node || !has_copy {
                let problem = format!("{node} has no copy of {home} any more");
                return Err(Fault::new(Errno::EREMCHG, problem));
            }
            match self.ask(&map, node, request.clone(), payload.clone()).await {
                Err(fault) if may_be_repeated(&fault) => self.wait_for_backup(&map, node, &fault).await,
                answered => return answered,
            }
        }
    }

    fn begin_join(&self, home: HomeId, node: NodeId) {
        self.joins.lock().insert(home, Join { node, is_complete: false });
        // A change that has chosen its nodes before is sent to this one too.
        self.joins_begun.fetch_add(1, Ordering::AcqRel);
    }

    fn end_join(&self, home: HomeId, node: NodeId) {
        if let Some(join) = self.joins.lock().get_mut(&home).filter(|join| join.node == node) {
            join.is_complete = true;
        }
    }

    /// The homes whose copies are complete, each with the node that can be a backup now.
    pub fn copied(&self) -> Vec<(HomeId, NodeId)> {
        let joins = self.joins.lock();
        joins.iter().filter(|(_, join)| join.is_complete).map(|(&home, join)| (home, join.node)).collect()
    }
}
