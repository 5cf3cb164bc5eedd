//! Directory renames by other nodes: processes on this node continue to use the directory.

use super::CacheView;
use futures_util::future::join_all;
use tameike_core::wire::Request;
use tameike_core::wire::client::ClientRequest;
use tameike_core::{FileKind, InodeId};
use tameike_io::shared::FileStat;

impl CacheView {
    /// Reports the rename of a directory to all other nodes. A node that misses the report notices the rename when the old path fails.
    pub(super) async fn report_moved(&self, stat: &FileStat, from: &[u8], to: &[u8]) {
        if stat.kind != FileKind::Directory {
            return;
        }
        let dir = stat.inode_id();
        let nodes = self.cluster.nodes();
        let others = nodes.iter().map(|info| info.id).filter(|&node| node != self.rpc.local());
        let reports = others.map(|node| {
            let request = ClientRequest::Moved { dir, from: from.to_vec(), to: to.to_vec() };
            let call = self.rpc.call(node.into(), Request::Client(request), None, None);
            async move {
                if let Err(fault) = call.await {
                    log::warn!("cannot report a renamed directory to {node}: {fault}");
                }
            }
        });
        join_all(reports).await;
    }

    /// Handles another node's rename of a directory.
    pub async fn moved(&self, dir: InodeId, from: &[u8], to: &[u8]) {
        match self.below.moved(dir, from, to).await {
            Ok(true) => self.refresh_all_paths(),
            // It was renamed again: another report follows.
            Ok(false) => {}
            Err(fault) => log::debug!("cannot find a renamed directory: {fault}"),
        }
    }
}
