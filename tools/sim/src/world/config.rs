//! What a cluster is like.

use super::Canary;
use std::time::Duration;
use tameike_core::limits::UNIT_SIZE;

/// Small enough that checkpoints happen.
pub(crate) const CHECKPOINT_BYTES: usize = 60_000;

/// More than a program ever writes, in bytes.
pub(crate) const AMPLE_CAPACITY: u64 = 48 << 20;

/// What a cluster is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorldConfig {
    /// Of all chance.
    pub seed: u64,
    /// For each node, whether it has a device.
    pub devices: Vec<bool>,
    /// Largest payload beside a message.
    pub inline_max: usize,
    /// Limit of each view on each node, in bytes.
    pub capacity: u64,
    /// Frames that each view of a node has at most.
    pub view_frames: u32,
    /// Frames that each pool of a node's services has at most: those of requests, replies, reads, flushes and the disk.
    pub service_frames: u32,
    /// Size of the log beyond which a checkpoint begins, in bytes.
    pub checkpoint_bytes: usize,
    /// Longest time that calls which may block take, on each node.
    pub slowness: Vec<Duration>,
    /// How far each node's clock is ahead.
    pub skew: Vec<Duration>,
    /// Whether the disks keep what no sync has made safe, whatever happens to the machine.
    pub volatile: bool,
    /// A bug on purpose.
    pub canary: Option<Canary>,
}

impl WorldConfig {
    /// Nodes that all have a device, and on which nothing is slow.
    #[must_use]
    pub fn plain(seed: u64, nodes: usize) -> Self {
        Self {
            seed,
            devices: vec![true; nodes],
            inline_max: UNIT_SIZE,
            capacity: AMPLE_CAPACITY,
            view_frames: u32::MAX,
            service_frames: u32::MAX,
            checkpoint_bytes: CHECKPOINT_BYTES,
            slowness: vec![Duration::ZERO; nodes],
            skew: vec![Duration::ZERO; nodes],
            volatile: false,
            canary: None,
        }
    }
}
