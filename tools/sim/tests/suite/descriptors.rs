//! Calls on open descriptors that programs of the simulation do not make.

use std::sync::Arc;
use tameike_agent::control::AgentMode;
use tameike_client::vfs::{FileNumber, Inodes};
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Attr, View};
use tameike_sim::countdown::Countdown;
use tameike_sim::kernel::{self, Told};
use tameike_sim::op::{Flags, Op};
use tameike_sim::world::{World, WorldConfig};

/// A call in the cache view of a node.
async fn cached(world: &World, node: usize, op: Op) -> Told {
    let (views, _) = world.views(node).expect("the node runs");
    let caller = world.caller(node, View::Cache).expect("the node runs");
    kernel::call(views.cache().expect("a view"), &caller, &op, None).await.expect("the call")
}

async fn open(world: &World, node: usize, path: &str) -> Attr {
    let flags = Flags { write: true, create: true, ..Flags::default() };
    let Told::Opened(_, attr) = cached(world, node, Op::Open { slot: 0, path: path.to_owned(), flags }).await
    else {
        unreachable!("an open opens")
    };
    *attr
}

async fn stat(world: &World, path: &str) -> (u16, u64) {
    let Told::Attr(attr) = cached(world, 1, Op::Stat { path: path.to_owned() }).await else {
        unreachable!("a stat tells attributes")
    };
    (attr.mode, attr.size)
}

/// fchmod and ftruncate of a node went to the path under which it had opened the file: when another node had renamed
/// that, to whatever had taken its place.
#[test]
fn attributes_are_changed_of_the_file_that_is_open() {
    let world = World::new(WorldConfig::plain(3, 2), Countdown::default());
    let at = Arc::clone(&world);
    world.simulation.clone().run(async move {
        at.start_all(AgentMode::Serve, false).await.expect("the agents start");
        let attr = open(&at, 0, "x").await;
        let rename = Op::Rename { from: "x".to_owned(), to: "y".to_owned(), mode: RenameMode::Replace };
        cached(&at, 1, rename).await;
        open(&at, 1, "x").await;
        let (views, _) = at.views(0).expect("the node runs");
        let change = AttrChange { mode: Some(0o751), size: Some(300), ..AttrChange::default() };
        let file = FileNumber(attr.inode.0);
        views.cache().expect("a view").setattr(file, change).await.expect("the change");
        assert_eq!((stat(&at, "y").await, stat(&at, "x").await), ((0o751, 300), (0o644, 0)));
        assert!(at.drain(true).await.files.iter().any(|file| file.path == "y" && file.size == 300));
    });
}
