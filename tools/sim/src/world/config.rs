//! Configuration of a simulated cluster.

use super::Canary;
use std::time::Duration;
use tameike_core::limits::UNIT_SIZE;

/// Log size that triggers a checkpoint, in bytes: small enough that programs reach it.
pub(crate) const CHECKPOINT_BYTES: usize = 60_000;

/// Capacity that exceeds everything that a program writes, in bytes.
pub(crate) const AMPLE_CAPACITY: u64 = 48 << 20;

/// Configuration of a simulated cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorldConfig {
    /// Seed of all random choices.
    pub seed: u64,
    /// Whether each node has a device.
    pub devices: Vec<bool>,
    /// Replicas of each home.
    pub replicas: u32,
    /// The drivers are those of a volume, of which one can take over from another.
    pub has_keepers: bool,
    /// Largest inline payload of a message, in bytes.
    pub inline_max: usize,
    /// Capacity of each view on each node, in bytes.
    pub capacity: u64,
    /// Maximum number of frames of each view of a node.
    pub view_frames: u32,
    /// Maximum number of frames of each service pool of a node: requests, replies, reads, flushes and disk.
    pub service_frames: u32,
    /// Memory of each node for pages of regions, in bytes.
    pub region_memory: u64,
    /// Log size that triggers a checkpoint, in bytes.
    pub checkpoint_bytes: usize,
    /// Maximum delay of blocking calls on each node.
    pub slowness: Vec<Duration>,
    /// Clock offset of each node.
    pub skew: Vec<Duration>,
    /// Agents treat the disks as memory, which syncs cannot make durable; the simulator injects no power loss.
    pub volatile: bool,
    /// Traffic is counted.
    pub metered: bool,
    /// The bug to inject.
    pub canary: Option<Canary>,
}

impl WorldConfig {
    /// Returns a configuration in which all nodes have a device and no delays.
    #[must_use]
    pub fn plain(seed: u64, nodes: usize) -> Self {
        Self {
            seed,
            devices: vec![true; nodes],
            replicas: 1,
            has_keepers: false,
            inline_max: UNIT_SIZE,
            capacity: AMPLE_CAPACITY,
            view_frames: u32::MAX,
            service_frames: u32::MAX,
            region_memory: u64::MAX,
            checkpoint_bytes: CHECKPOINT_BYTES,
            slowness: vec![Duration::ZERO; nodes],
            skew: vec![Duration::ZERO; nodes],
            volatile: false,
            metered: false,
            canary: None,
        }
    }
}
