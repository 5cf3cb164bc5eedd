//! Durability of fsync when all nodes lose power.

use std::sync::Arc;
use tameike_agent::control::AgentMode;
use tameike_client::vfs::HandleNumber;
use tameike_core::View;
use tameike_core::limits::UNIT_SIZE;
use tameike_sim::countdown::Countdown;
use tameike_sim::kernel::{self, Output};
use tameike_sim::op::{Flags, Op};
use tameike_sim::world::{Canary, World, WorldConfig};

const NODES: usize = 3;
const FILE: &str = "file";
/// Sizes that fit the inode record, fit one unit, and span all nodes.
const SIZES: [u64; 3] = [100, 70_000, 4 * UNIT_SIZE as u64 + 17];

async fn call(world: &World, view: View, node: usize, op: Op, open: Option<HandleNumber>) -> Option<Output> {
    let (views, _) = world.views(node)?;
    let caller = world.caller(node, view)?;
    let output = match view {
        View::Cache => kernel::call(views.cache()?, &caller, &op, open).await,
        _ => kernel::call(views.shared(), &caller, &op, open).await,
    };
    output.ok()
}

/// Reads the file; `None` if that fails.
async fn content(world: &World, view: View, node: usize, size: u64) -> Option<Vec<u8>> {
    let open = Op::Open { slot: 0, path: FILE.to_owned(), flags: Flags::default() };
    let Output::Opened(handle, attr) = call(world, view, node, open, None).await? else { return None };
    let mut content = Vec::new();
    for offset in (0..attr.size.min(size)).step_by(UNIT_SIZE) {
        let read = Op::Read { slot: 0, offset, length: UNIT_SIZE as u32 };
        let Output::Bytes(bytes) = call(world, view, node, read, Some(handle)).await? else { return None };
        content.extend(bytes);
    }
    Some(content)
}

/// Writes a file on node 0, with an fsync if `synced`; cuts the power of all nodes and restarts them. Returns true if every node then
/// reads the written bytes.
fn survives(config: WorldConfig, view: View, size: u64, synced: bool) -> bool {
    let world = World::new(config, Countdown::default());
    let at = Arc::clone(&world);
    world.simulation.clone().run(async move {
        at.start_all(AgentMode::Serve, false).await.expect("the agents start");
        let flags = Flags { write: true, create: true, ..Flags::default() };
        let open = Op::Open { slot: 0, path: FILE.to_owned(), flags };
        let Some(Output::Opened(handle, _)) = call(&at, view, 0, open, None).await else {
            unreachable!("an open returns a handle")
        };
        for offset in (0..size).step_by(UNIT_SIZE) {
            let length = (size - offset).min(UNIT_SIZE as u64) as u32;
            let write = Op::Write { slot: 0, offset, length, tag: 5 + offset };
            call(&at, view, 0, write, Some(handle)).await.expect("the write");
        }
        if synced {
            call(&at, view, 0, Op::Fsync { slot: 0 }, Some(handle)).await.expect("the fsync");
        }
        let written = content(&at, view, 0, size).await.expect("the file");
        assert_eq!(written.len() as u64, size);
        (0..NODES).for_each(|node| at.kill(node, true));
        if at.start_all(AgentMode::Serve, true).await.is_err() {
            return false;
        }
        for node in 0..NODES {
            if content(&at, view, node, size).await.as_ref() != Some(&written) {
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
