//! Durability of fsync when all nodes lose power.

use super::programs::{FSYNC, bytes_of, call, on_cluster, opened, write};
use tameike_agent::control::AgentMode;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::{Result, View};
use tameike_sim::op::Flags;
use tameike_sim::world::{Canary, World, WorldConfig};

const NODES: usize = 3;
const FILE: &str = "file";
/// Sizes that fit the inode record, fit one unit, and span all nodes.
const SIZES: [u64; 3] = [100, 70_000, 4 * UNIT_SIZE as u64 + 17];

/// Reads the file.
async fn content(world: &World, view: View, node: usize, size: u64) -> Result<Vec<u8>> {
    let (handle, attr) = opened(world, view, node, FILE, Flags::READ).await?;
    let mut content = Vec::new();
    for offset in (0..attr.size.min(size)).step_by(UNIT_SIZE) {
        content.extend(bytes_of(world, view, node, handle, (offset, UNIT_SIZE as u32)).await?);
    }
    Ok(content)
}

/// Writes a file on node 0, with an fsync if `synced`; cuts the power of all nodes and restarts them. Returns true if every node then
/// reads the written bytes.
fn survives(config: WorldConfig, view: View, size: u64, synced: bool) -> bool {
    on_cluster(config, async |at| {
        let (handle, _) = opened(&at, view, 0, FILE, Flags::CREATE).await.expect("the open");
        for offset in (0..size).step_by(UNIT_SIZE) {
            let length = (size - offset).min(UNIT_SIZE as u64) as u32;
            call(&at, view, 0, write(offset, length, 5 + offset), Some(handle)).await.expect("the write");
        }
        if synced {
            call(&at, view, 0, FSYNC, Some(handle)).await.expect("the fsync");
        }
        let written = content(&at, view, 0, size).await.expect("the file");
        assert_eq!(written.len() as u64, size);
        (0..NODES).for_each(|node| at.kill(node, true));
        if at.start_all(AgentMode::Serve, true).await.is_err() {
            return false;
        }
        for node in 0..NODES {
            if content(&at, view, node, size).await.ok().as_ref() != Some(&written) {
                return false;
            }
        }
        true
    })
}

/// S7a.
#[test]
fn synced_bytes_survive_power_loss_of_all_nodes() {
    for view in [View::JobShared, View::Cache] {
        for size in SIZES {
            for seed in 0..20 {
                let config = WorldConfig::plain(seed, NODES);
                assert!(survives(config, view, size, true), "{view:?}, {size} bytes, seed {seed}");
            }
        }
    }
}

/// The test above can fail: without an fsync, and with a device that acknowledges syncs without executing them.
#[test]
fn unsynced_bytes_may_be_lost() {
    for size in SIZES {
        let lost =
            (0..20).any(|seed| !survives(WorldConfig::plain(seed, NODES), View::JobShared, size, false));
        assert!(lost, "{size} bytes");
        let forgetful =
            |seed| WorldConfig { canary: Some(Canary::LostSync), ..WorldConfig::plain(seed, NODES) };
        assert!((0..20).any(|seed| !survives(forgetful(seed), View::JobShared, size, true)), "{size} bytes");
    }
}
