//! Directories that one node renames, and that others are in the middle of: their processes go on in them.

use super::CacheView;
use futures_util::future::join_all;
use tameike_core::wire::Request;
use tameike_core::wire::client::ClientRequest;
use tameike_core::{FileKind, InodeId};
use tameike_io::shared::FileStat;

impl CacheView {
    /// Tells the views of all other nodes what this one has renamed, if it was a directory. A node that cannot be
    /// told will find out when the old path leads it nowhere.
    pub(super) async fn tell_moved(&self, stat: &FileStat, from: &[u8], to: &[u8]) {
        if stat.kind != FileKind::Directory {
            return;
        }
        let dir = stat.inode_id();
        let others = self.cluster.nodes().iter().map(|info| info.id).filter(|&node| node != self.rpc.local());
        let told = others.map(|node| {
            let request = ClientRequest::Moved { dir, from: from.to_vec(), to: to.to_vec() };
            let call = self.rpc.call(node, Request::Client(request), None, None);
            async move {
                if let Err(fault) = call.await {
                    log::warn!("{node} does not know of a renamed directory: {fault}");
                }
            }
        });
        join_all(told).await;
    }

    /// Another node has renamed a directory.
    pub async fn moved(&self, dir: InodeId, from: &[u8], to: &[u8]) {
        match self.below.moved(dir, from, to).await {
            Ok(true) => self.refresh_all_paths(),
            // It has moved on since: whoever did that tells, too.
            Ok(false) => {}
            Err(fault) => log::debug!("looking for a renamed directory: {fault}"),
        }
    }
}
