//! The ranks of a remote memory window.

use std::collections::BTreeMap;
use tameike_core::wire::window::{RANKS_MAX, Rank};
use tameike_core::{Errno, Fault, NodeId, Result};

/// The nodes of ranks. A rank whose process has ended stays here: no process can attach any more.
pub(super) struct Ranks {
    count: u32,
    /// Size of the memory of each rank.
    bytes: u64,
    nodes: BTreeMap<u32, NodeId>,
}

impl Ranks {
    /// No ranks yet, of `count` processes.
    pub(super) fn new(count: u32, bytes: u64) -> Self {
        Self { count, bytes, nodes: BTreeMap::new() }
    }

    /// Adds the rank of a process of `node`.
    ///
    /// # Errors
    /// `EINVAL` for a number or size that does not fit the window; `EEXIST` if the rank has attached.
    pub(super) fn add(&mut self, node: NodeId, rank: Rank) -> Result<()> {
        let Rank { number, bytes } = rank;
        if number >= self.count || self.count > RANKS_MAX {
            let problem = format!("rank {number} is not one of {}, of at most {RANKS_MAX}", self.count);
            return Err(Fault::new(Errno::EINVAL, problem));
        }
        if bytes != self.bytes {
            let problem =
                format!("rank {number} has {bytes} bytes of a window, and others have {}", self.bytes);
            return Err(Fault::new(Errno::EINVAL, problem));
        }
        if let Some(other) = self.nodes.get(&number) {
            let problem = format!("rank {number} of the window is a process of {other} already");
            return Err(Fault::new(Errno::EEXIST, problem));
        }
        self.nodes.insert(number, node);
        Ok(())
    }

    /// The node of each rank; `None` before all have attached.
    pub(super) fn nodes(&self) -> Option<Vec<NodeId>> {
        (self.nodes.len() == self.count as usize).then(|| self.nodes.values().copied().collect())
    }
}
