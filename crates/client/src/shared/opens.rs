//! Tells the homes of closed files, in batches and after the fact: a program does not wait for it.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::wire::Request;
use tameike_core::wire::meta::MetaRequest;
use tameike_core::{InodeId, NodeId};
use tameike_io::Runtime;
use tameike_io::fabric::Rpc;

/// Closes gathered before they are sent at once.
const BATCH_MAX: usize = 64;
/// Longest wait of a close for company.
const BATCH_WAIT: Duration = Duration::from_millis(20);

pub(super) struct Closer {
    runtime: Runtime,
    rpc: Arc<dyn Rpc>,
    pending: Mutex<BTreeMap<NodeId, Vec<InodeId>>>,
}

impl Closer {
    pub(super) fn new(runtime: Runtime, rpc: Arc<dyn Rpc>) -> Self {
        Self { runtime, rpc, pending: Mutex::default() }
    }

    pub(super) fn close(self: &Arc<Self>, home: NodeId, inode: InodeId) {
        let count = {
            let mut pending = self.pending.lock();
            let batch = pending.entry(home).or_default();
            batch.push(inode);
            batch.len()
        };
        if count == BATCH_MAX {
            self.send(home);
        } else if count == 1 {
            let closer = self.clone();
            self.runtime.spawn(async move {
                closer.runtime.sleep(BATCH_WAIT).await;
                closer.send(home);
            });
        }
    }

    fn send(self: &Arc<Self>, home: NodeId) {
        let Some(inodes) = self.pending.lock().remove(&home) else { return };
        let request = MetaRequest::Close { inodes, node: self.rpc.local() };
        let call = self.rpc.call(home, Request::Meta(request), None, None);
        self.runtime.spawn(async move {
            if let Err(fault) = call.await {
                log::warn!("telling {home} of closed files: {fault}");
            }
        });
    }
}
