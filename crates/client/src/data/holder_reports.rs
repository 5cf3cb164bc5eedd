//! Outcomes of peer requests, which this node reports to the nodes of the files' homes.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tameike_core::limits::HOLDER_REPORTS_MAX;
use tameike_core::wire::holders::{Holder, HolderOutcome};
use tameike_core::{InodeId, NodeId};

/// Limit on unreported pairs of file and holder, some 50 bytes each. Beyond it, the report for one node is dropped.
const UNREPORTED_MAX: usize = 4096;

/// Outcomes of peer requests, for the nodes that serve the files' homes.
#[derive(Default)]
pub struct HolderReports(Mutex<Unreported>);

/// Unreported outcomes by node.
#[derive(Default)]
struct Unreported {
    nodes: BTreeMap<NodeId, BTreeMap<(InodeId, NodeId), Holder>>,
    count: usize,
}

impl Unreported {
    fn take(&mut self, to: NodeId) -> impl Iterator<Item = HolderOutcome> + use<> {
        let files = self.nodes.remove(&to).unwrap_or_default();
        self.count -= files.len();
        files.into_iter().map(|((inode, _), holder)| HolderOutcome { inode, holder })
    }
}

impl HolderReports {
    /// Records a peer request. Entries beyond the size of one report are dropped: the report is a hint.
    pub(super) fn add(&self, to: NodeId, inode: InodeId, node: NodeId, has_delivered: bool) {
        let unreported = &mut *self.0.lock();
        if unreported.count >= UNREPORTED_MAX
            && let Some(other) = unreported.nodes.keys().find(|other| **other != to).copied()
        {
            drop(unreported.take(other));
        }
        let files = unreported.nodes.entry(to).or_default();
        let is_new = !files.contains_key(&(inode, node));
        if is_new && files.len() == HOLDER_REPORTS_MAX {
            return;
        }
        unreported.count += usize::from(is_new);
        let holder = files.entry((inode, node)).or_insert(Holder { node, requested: 0, delivered: 0 });
        holder.requested += 1;
        holder.delivered += u32::from(has_delivered);
    }

    /// Takes the report for a node; the next message to a home there carries it.
    pub fn take(&self, to: NodeId) -> Vec<HolderOutcome> {
        self.0.lock().take(to).collect()
    }
}
