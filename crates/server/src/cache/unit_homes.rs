//! The nodes that hold the units of cached files, and requests to them.

use super::record::Record;
use crate::unit::digest::unit_count;
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_core::wire::unit::{FLUSH_UNITS_MAX, UnitDigest, UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{
    Cluster, Errno, Fault, HomeId, HomeMap, InodeId, Layout, MapEpoch, NodeId, Result, UnitId,
};
use tameike_fabric::{Destination, Rpc, join_calls, under_one_map};
use tameike_store::Ledger;

/// The homes of units, as one coordinator reaches them.
pub(super) struct UnitHomes {
    cluster: Arc<Cluster>,
    rpc: Arc<dyn Rpc>,
    ledger: Arc<Ledger>,
}

impl UnitHomes {
    pub(super) fn new(cluster: Arc<Cluster>, rpc: Arc<dyn Rpc>, ledger: Arc<Ledger>) -> Self {
        Self { cluster, rpc, ledger }
    }

    /// The epoch of the current home map. Nodes that are chosen under it are asked under it, or chosen again.
    pub(super) fn epoch(&self) -> MapEpoch {
        self.cluster.epoch()
    }

    /// Whether no home has got another primary since the map of an epoch.
    pub(super) fn keep_primaries_of(&self, epoch: MapEpoch) -> bool {
        self.cluster.keeps_primaries_of(epoch)
    }

    /// The home whose primary coordinates a file.
    pub(super) fn of_record(&self, inode: InodeId) -> HomeId {
        self.cluster.inode_home(inode)
    }

    /// Whether this node coordinates a file now.
    pub(super) fn coordinates(&self, inode: InodeId) -> bool {
        self.cluster.primary(self.of_record(inode)) == self.rpc.local()
    }

    /// Whether nodes that fail are excluded, and others serve their homes.
    pub(super) fn are_replicated(&self) -> bool {
        self.cluster.is_replicated()
    }

    /// Whether a node is excluded: it serves nothing, and may wait long before it answers.
    pub(super) fn excludes(&self, node: NodeId) -> bool {
        self.cluster.map().excludes(node)
    }

    /// All nodes that hold units.
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        self.cluster.map().nodes().to_vec()
    }

    /// All nodes that may hold units of a file.
    pub(super) fn all(&self, inode: InodeId) -> Vec<NodeId> {
        self.of_first_units(inode, u64::MAX)
    }

    /// The nodes that may hold bytes that the shared file lacks, committed or not. Units on other nodes are clean, and an old generation
    /// makes them invalid.
    pub(super) fn written(&self, inode: InodeId, record: &Record) -> Vec<NodeId> {
        self.of_first_units(inode, self.reach(record))
    }

    /// Those of [`Self::written`] that may hold committed bytes.
    pub(super) fn committed(&self, inode: InodeId, record: &Record) -> Vec<NodeId> {
        self.of_first_units(inode, unit_count(record.size).min(self.reach(record)))
    }

    fn reach(&self, record: &Record) -> u64 {
        // A power failure may have lost the record of later units.
        if self.ledger.may_lack_records() { u64::MAX } else { record.reach }
    }

    fn of_first_units(&self, inode: InodeId, count: u64) -> Vec<NodeId> {
        let nodes = self.cluster.nodes_of_units(&self.cluster.map(), Layout::Striped, inode, 0..count);
        nodes.into_iter().map(|(node, _)| node).collect()
    }

    /// Sends a request to one node, which was chosen under the map of an epoch. Fails with `EREMCHG` if a home has got another primary since.
    pub(super) async fn ask(&self, epoch: MapEpoch, node: NodeId, request: UnitRequest) -> Result<UnitReply> {
        let to = Destination::Primary(node, epoch);
        match self.rpc.call(to, Request::Unit(request), None, None).await?.reply {
            Reply::Unit(reply) => Ok(reply),
            other => Err(Fault::new(Errno::EPROTO, format!("{node} answered a unit request with {other:?}"))),
        }
    }

    /// Sends one request to the nodes that `choose` returns, at once. Chooses again if a home gets another primary meanwhile. Returns the first
    /// fault.
    pub(super) async fn ask_all(
        &self,
        choose: impl Fn() -> Vec<NodeId>,
        request: &UnitRequest,
    ) -> Result<()> {
        self.chosen_again(|epoch| {
            join_calls(choose().into_iter().map(move |node| self.ask(epoch, node, request.clone())))
        })
        .await
        .map(drop)
    }

    /// Runs `work` under the epoch of the current map, and again if a node refuses a request because a home has got another primary.
    pub(super) async fn chosen_again<T, F: Future<Output = Result<T>>>(
        &self,
        work: impl Fn(MapEpoch) -> F,
    ) -> Result<T> {
        under_one_map(&self.cluster, |map| work(map.epoch)).await
    }

    /// Files behind `after` that this coordinator answers for, and of which a node holds dirty bytes.
    pub(super) async fn dirty_inodes(
        &self,
        (epoch, node): (MapEpoch, NodeId),
        after: InodeId,
        limit: u32,
    ) -> Result<Vec<InodeId>> {
        let coordinator = self.rpc.local();
        match self.ask(epoch, node, UnitRequest::DirtyInodes { coordinator, after, limit }).await? {
            UnitReply::DirtyInodes(inodes) => Ok(inodes),
            other => Err(Fault::new(Errno::EPROTO, format!("it answered with {other:?}"))),
        }
    }

    /// Digests of units, as their homes now read them from the shared file system; by index.
    pub(super) async fn digest(
        &self,
        inode: InodeId,
        path: &[u8],
        size: u64,
        units: Vec<u64>,
    ) -> Result<Vec<UnitDigest>> {
        under_one_map(&self.cluster, |map| self.digest_under(map, inode, path, (size, units.clone()))).await
    }

    async fn digest_under(
        &self,
        map: Arc<HomeMap>,
        inode: InodeId,
        path: &[u8],
        (size, units): (u64, Vec<u64>),
    ) -> Result<Vec<UnitDigest>> {
        let mut by_node = BTreeMap::<NodeId, Vec<u64>>::new();
        for index in units {
            let home = self.cluster.unit_home(Layout::Striped, UnitId { inode, index });
            by_node.entry(map.primary(home)).or_default().push(index);
        }
        let epoch = map.epoch;
        let calls = by_node.into_iter().map(|(node, units)| async move {
            let mut digests = Vec::with_capacity(units.len());
            for part in units.chunks(FLUSH_UNITS_MAX) {
                let request = UnitRequest::Digest { inode, path: path.to_vec(), size, units: part.to_vec() };
                match self.ask(epoch, node, request).await? {
                    UnitReply::Digests(part) => digests.extend(part),
                    other => {
                        let why = format!("{node} answered a digest with {other:?}");
                        return Err(Fault::new(Errno::EPROTO, why));
                    }
                }
            }
            Ok(digests)
        });
        let mut digests = join_calls(calls).await?.concat();
        digests.sort_by_key(|digest| digest.index);
        Ok(digests)
    }
}
