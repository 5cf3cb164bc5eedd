//! Calls on open descriptors that the generated programs do not make.

use std::sync::Arc;
use tameike_agent::control::AgentMode;
use tameike_client::vfs::{FileNumber, Inodes};
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Attr, View};
use tameike_sim::countdown::Countdown;
use tameike_sim::kernel::{self, Output};
use tameike_sim::op::{Flags, Op};
use tameike_sim::world::{World, WorldConfig};

async fn cached(world: &World, node: usize, op: Op) -> Output {
    let (views, _) = world.views(node).expect("the node runs");
    let caller = world.caller(node, View::Cache).expect("the node runs");
    kernel::call(views.cache().expect("a view"), &caller, &op, None).await.expect("the call")
}

async fn open(world: &World, node: usize, path: &str) -> Attr {
    let flags = Flags { write: true, create: true, ..Flags::default() };
    let Output::Opened(_, attr) =
        cached(world, node, Op::Open { slot: 0, path: path.to_owned(), flags }).await
    else {
        unreachable!("an open returns a handle")
    };
    *attr
}

async fn stat(world: &World, path: &str) -> (u16, u64) {
    let Output::Attr(attr) = cached(world, 1, Op::Stat { path: path.to_owned() }).await else {
        unreachable!("a stat returns attributes")
    };
    (attr.mode, attr.size)
}

/// Regression: fchmod and ftruncate used the path under which the node had opened the file. After another node renamed the file, they
/// changed the file that replaced it.
#[test]
fn fchmod_and_ftruncate_change_the_open_file() {
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
