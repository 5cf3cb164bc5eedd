//! Attributes and nodes for tests of several modules.

use std::sync::Arc;
use tameike_core::{
    Attr, Cluster, FileKind, Generation, InodeId, JobId, Layout, NodeId, NodeInfo, Timestamp,
};

/// Attributes of a new, empty file.
pub(crate) fn attr(inode: InodeId) -> Attr {
    let zero = Timestamp::default();
    Attr {
        inode,
        kind: FileKind::File,
        mode: 0o600,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: zero,
        mtime: zero,
        ctime: zero,
        generation: Generation(1),
        layout: Layout::Striped,
        inline: true,
        sparse: false,
    }
}

/// A cluster of nodes with devices.
pub(crate) fn cluster(nodes: u32) -> Arc<Cluster> {
    let (host, address) = (String::new(), String::new());
    let info = |id| NodeInfo {
        id: NodeId(id),
        host: host.clone(),
        address: address.clone(),
        group: 0,
        device: true,
    };
    let job = JobId::new("test").expect("a name");
    Arc::new(Cluster::new(job, (0..nodes).map(info).collect(), 1).expect("a cluster"))
}
