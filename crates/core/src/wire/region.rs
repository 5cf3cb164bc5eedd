//! Messages about shared memory regions: to the coordinator, which is the home of the region's inode, and between the
//! nodes of its barrier tree.
//!
//! Pages are blocks of [`crate::limits::BLOCK_SIZE`] bytes, numbered from the start of the file. Lists of pages may
//! contain more pages than were changed, never fewer.

use crate::ids::{InodeId, NodeId};
use crate::limits::{MESSAGE_SIZE_MAX, NODES_MAX};
use crate::ranges::RangeSet;
use crate::wire::window::Rank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Largest number of children of a node in a barrier tree.
pub const BARRIER_CHILDREN: usize = 8;
/// Largest number of page ranges in one message; lists with more are coarsened. With more writers, the message says that any page may have
/// changed.
pub const PAGE_RANGES_MAX: usize = 1 << 13;

/// A memory of the region: that of the processes of one node, or of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Writer {
    /// The node.
    pub node: NodeId,
    /// Number of the memory on the node.
    pub memory: u32,
}

/// Pages that the processes of one memory have changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeChanges {
    /// The memory.
    pub writer: Writer,
    /// The pages.
    pub pages: RangeSet,
}

// A list fits beside the set of all nodes: a writer takes 8 bytes, the number of its ranges 1 more than a node, a range of pages 10, and a
// range of nodes 5.
const _: () = assert!(PAGE_RANGES_MAX * (9 + 10) + NODES_MAX as usize / 2 * 5 + 64 <= MESSAGE_SIZE_MAX);

/// Unites the entries of each memory. The result has one entry per memory with changes, ascending.
pub fn united(changes: impl IntoIterator<Item = NodeChanges>) -> Vec<NodeChanges> {
    let mut writers = BTreeMap::<Writer, RangeSet>::new();
    for NodeChanges { writer, pages } in changes {
        writers.entry(writer).or_default().insert_all(&pages);
    }
    writers.retain(|_, pages| !pages.is_empty());
    writers.into_iter().map(|(writer, pages)| NodeChanges { writer, pages }).collect()
}

/// Joins ranges with the smallest gaps between them until at most `limit` ranges are left, or one in each entry.
pub fn coarsen(changes: &mut [NodeChanges], limit: usize) {
    let mut gaps = Vec::new();
    let mut count = 0;
    for NodeChanges { pages, .. } in &*changes {
        count += pages.count();
        gaps.extend(pages.iter().zip(pages.iter().skip(1)).map(|(last, next)| next.start - last.end));
    }
    let excess = count.saturating_sub(limit).min(gaps.len());
    if excess == 0 {
        return;
    }
    let (smaller, &mut largest, _) = gaps.select_nth_unstable(excess - 1);
    let mut equal = excess - smaller.iter().filter(|&&gap| gap < largest).count();
    for NodeChanges { pages, .. } in changes {
        pages.join(|gap| {
            let is_last = gap == largest && equal > 0;
            equal -= usize::from(is_last);
            gap < largest || is_last
        });
    }
}

/// Changes since a sequence number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Changes {
    /// Any page may have changed: the coordinator does not know the changes since then.
    Any,
    /// These pages; a memory may have several entries.
    Pages(Vec<NodeChanges>),
}

/// The nodes with attached processes, as numbered by the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// Rises with each change of the set.
    pub version: u64,
    /// Numbers of the nodes.
    pub nodes: RangeSet,
}

/// Processes of one or more nodes that have arrived at a barrier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// The region.
    pub region: InodeId,
    /// The coordinator's number of this barrier: that of the last release the sender received.
    pub barrier: u64,
    /// Number of processes.
    pub processes: u32,
    /// Pages that they changed since the last barrier, already stored at the units' homes, without those of
    /// [`RegionRequest::Publish`].
    pub changes: Vec<NodeChanges>,
    /// Version of [`Members`] by which the sender chose the receiver.
    pub version: u64,
}

/// The end of a barrier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// Number of the next barrier.
    pub barrier: u64,
    /// Sequence number up to which `changes` are complete.
    pub sequence: u64,
    /// Changes of all nodes since the previous barrier.
    pub changes: Changes,
    /// The nodes that take part.
    pub members: Members,
}

/// A request to the coordinator of a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RegionRequest {
    /// A process of the sender attaches. Fails with `EPIPE` if a process of the region has ended and others are still
    /// attached, with `EINVAL` if the others have other terms, or memory of another size, with `EEXIST` if
    /// one of them has the same rank, with `EBUSY` if all have attached.
    Attach {
        /// The region.
        region: InodeId,
        /// Number of processes that take part in barriers; the same for all of them.
        processes: u32,
        /// Two nodes never store to the same page between two synchronizations; the same for all of them.
        one_writer: bool,
        /// The rank of the process, if the region is a remote memory window.
        rank: Option<Rank>,
    },
    /// A process of the sender detaches. If others are still attached, barriers fail from now on.
    Detach {
        /// The region.
        region: InodeId,
        /// Whether it ended without detaching.
        failed: bool,
    },
    /// The sender has stored changes at the units' homes.
    Publish {
        /// The region.
        region: InodeId,
        /// Number of the memory with the changes.
        memory: u32,
        /// The changed pages.
        pages: RangeSet,
    },
    /// Requests the changes after a sequence number. Only those since the last release are known.
    Changes {
        /// The region.
        region: InodeId,
        /// The sequence number.
        after: u64,
    },
    /// Processes have arrived at a barrier. The reply is the release. Fails with `ESTALE` if it is not the current
    /// barrier, with `EPIPE` if a process has detached, with `EOWNERDEAD` if one has ended without detaching.
    Arrive(Arrival),
    /// Allocates a block of bytes. Fails with `EINVAL` if the size is 0 or the alignment no power of two, with `ENOMEM` if there is no
    /// free block.
    Allocate {
        /// The region.
        region: InodeId,
        /// Size of the region in pages.
        pages: u32,
        /// Size of the block in bytes.
        bytes: u64,
        /// The offset is a multiple of it.
        alignment: u64,
    },
    /// Frees an allocated block. Fails with `EINVAL` if none begins there.
    Free {
        /// The region.
        region: InodeId,
        /// Offset of the block in bytes.
        offset: u64,
    },
    /// Requests the nodes of all ranks. Fails with `EAGAIN` before all processes have attached.
    Ranks {
        /// The region.
        region: InodeId,
    },
}

impl RegionRequest {
    /// As [`super::Request::is_read_only`].
    pub(super) fn is_read_only(&self) -> bool {
        match self {
            Self::Changes { .. } | Self::Ranks { .. } => true,
            Self::Attach { .. }
            | Self::Detach { .. }
            | Self::Publish { .. }
            | Self::Arrive(_)
            | Self::Allocate { .. }
            | Self::Free { .. } => false,
        }
    }
}

/// The reply to a [`RegionRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RegionReply {
    /// The request was carried out.
    Done,
    /// Reply to [`RegionRequest::Attach`].
    Attached {
        /// Number of the next barrier: larger than those of all barriers before the processes of the region attached.
        barrier: u64,
        /// Sequence number of the last change.
        sequence: u64,
        /// The nodes that take part.
        members: Members,
    },
    /// Reply to [`RegionRequest::Publish`]: the sequence number of the change.
    Published(u64),
    /// Reply to [`RegionRequest::Changes`].
    Changes {
        /// Sequence number up to which `changes` are complete.
        sequence: u64,
        /// The changes of all nodes.
        changes: Changes,
        /// Whether a process of the region has ended without detaching.
        failed: bool,
    },
    /// Reply to [`RegionRequest::Arrive`].
    Released(Release),
    /// Reply to [`RegionRequest::Allocate`]: the offset of the block in bytes.
    Allocated(u64),
    /// Reply to [`RegionRequest::Ranks`]: the node of each rank.
    Ranks(Vec<NodeId>),
}
