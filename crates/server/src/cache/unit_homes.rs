//! The nodes that hold the units of cached files, and requests to them.

use super::record::Record;
use crate::unit::digest::unit_count;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_core::wire::unit::{FLUSH_UNITS_MAX, UnitDigest, UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Cluster, Errno, Fault, InodeId, Layout, NodeId, Result, UnitId};
use tameike_fabric::Rpc;
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

    /// All nodes that hold units.
    pub(super) fn nodes(&self) -> &[NodeId] {
        self.cluster.device_nodes()
    }

    /// All nodes that may hold units of a file.
    pub(super) fn all(&self, inode: InodeId) -> Vec<NodeId> {
        self.cluster.unit_homes(Layout::Striped, inode)
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
        if count >= self.nodes().len() as u64 {
            return self.all(inode);
        }
        let mut homes: Vec<_> = (0..count).map(|index| self.home(UnitId { inode, index })).collect();
        homes.sort_unstable();
        homes.dedup();
        homes
    }

    fn home(&self, unit: UnitId) -> NodeId {
        self.cluster.unit_home(Layout::Striped, unit)
    }

    /// Sends a request to one node.
    pub(super) async fn ask(&self, node: NodeId, request: UnitRequest) -> Result<UnitReply> {
        match self.rpc.call(node, Request::Unit(request), None, None).await?.reply {
            Reply::Unit(reply) => Ok(reply),
            other => Err(Fault::new(Errno::EPROTO, format!("{node} answered a unit request with {other:?}"))),
        }
    }

    /// Sends one request to several nodes at once. Returns the first fault.
    pub(super) async fn ask_all(&self, nodes: Vec<NodeId>, request: &UnitRequest) -> Result<()> {
        let calls = nodes.into_iter().map(|node| self.ask(node, request.clone()));
        join_all(calls).await.into_iter().try_for_each(|answer| answer.map(|_| ()))
    }

    /// Files behind `after` that this coordinator answers for, and of which a node holds dirty bytes.
    pub(super) async fn dirty_inodes(
        &self,
        node: NodeId,
        after: InodeId,
        limit: u32,
    ) -> Result<Vec<InodeId>> {
        let coordinator = self.rpc.local();
        match self.ask(node, UnitRequest::DirtyInodes { coordinator, after, limit }).await? {
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
        let mut by_home = BTreeMap::<NodeId, Vec<u64>>::new();
        for index in units {
            by_home.entry(self.home(UnitId { inode, index })).or_default().push(index);
        }
        let calls = by_home.into_iter().map(|(home, units)| async move {
            let mut digests = Vec::with_capacity(units.len());
            for part in units.chunks(FLUSH_UNITS_MAX) {
                let request = UnitRequest::Digest { inode, path: path.to_vec(), size, units: part.to_vec() };
                match self.ask(home, request).await? {
                    UnitReply::Digests(part) => digests.extend(part),
                    other => {
                        let why = format!("{home} answered a digest with {other:?}");
                        return Err(Fault::new(Errno::EPROTO, why));
                    }
                }
            }
            Ok(digests)
        });
        let mut digests = Vec::new();
        for answer in join_all(calls).await {
            digests.extend(answer?);
        }
        digests.sort_by_key(|digest| digest.index);
        Ok(digests)
    }
}
