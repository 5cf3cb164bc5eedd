//! Calls on open descriptors that the generated programs do not make.

use super::programs::{call, on_cluster, opened};
use tameike_client::vfs::{FileNumber, Inodes};
use tameike_core::View;
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::RenameMode;
use tameike_sim::kernel::Output;
use tameike_sim::op::{Flags, Op};
use tameike_sim::world::{World, WorldConfig};

async fn stat(world: &World, path: &str) -> (u16, u64) {
    let Ok(Output::Attr(attr)) = call(world, View::Cache, 1, Op::stat(path), None).await else {
        unreachable!("a stat returns attributes")
    };
    (attr.mode, attr.size)
}

/// Regression: fchmod and ftruncate used the path under which the node had opened the file. After another node renamed the file, they
/// changed the file that replaced it.
#[test]
fn fchmod_and_ftruncate_change_the_open_file() {
    on_cluster(WorldConfig::plain(3, 2), async |at| {
        let (_, attr) = opened(&at, View::Cache, 0, "x", Flags::CREATE).await.expect("the open");
        let rename = Op::rename("x", "y", RenameMode::Replace);
        call(&at, View::Cache, 1, rename, None).await.expect("the rename");
        opened(&at, View::Cache, 1, "x", Flags::CREATE).await.expect("the open");
        let (views, _) = at.views(0).expect("the node runs");
        let change = AttrChange { mode: Some(0o751), size: Some(300), ..AttrChange::default() };
        let file = FileNumber(attr.inode.0);
        views.cache().expect("a view").setattr(file, change).await.expect("the change");
        assert_eq!((stat(&at, "y").await, stat(&at, "x").await), ((0o751, 300), (0o644, 0)));
        assert!(at.drain(true).await.files.iter().any(|file| file.path == "y" && file.size == 300));
    });
}
