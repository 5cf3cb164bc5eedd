//! Background flush: runs while files are dirty and no program waits for this node.

use super::dirty_queue::Next;
use super::flush::{Extra, Flusher, Urgency};
use futures_util::future::select;
use futures_util::{StreamExt, stream};
use std::sync::Arc;
use tameike_core::InodeId;

/// Flushes dirty files from now on, until the flusher is dropped and its queue woken.
pub(super) fn start(flusher: &Arc<Flusher>) {
    let (weak, queue) = (Arc::downgrade(flusher), flusher.base.queue.clone());
    let (runtime, activity) = (flusher.base.runtime.clone(), flusher.activity.clone());
    let batch = 4 * flusher.parallel;
    runtime.clone().spawn(async move {
        loop {
            let changed = queue.listen();
            if weak.strong_count() == 0 {
                return;
            }
            match queue.next(batch) {
                Next::Nothing => changed.await,
                Next::In(time) => {
                    let _ = select(runtime.sleep(time), changed).await;
                }
                Next::Now(inodes) => {
                    activity.until_quiet().await;
                    let Some(flusher) = weak.upgrade() else { return };
                    flush_some(&flusher, inodes).await;
                }
            }
        }
    });
}

async fn flush_some(flusher: &Flusher, inodes: Vec<InodeId>) {
    let flush = |inode| async move {
        if flusher.activity.is_quiet() {
            let outcome = flusher.flush(inode, Extra::None, Urgency::Yields).await;
            flusher.base.queue.postpone(inode, outcome);
        }
    };
    stream::iter(inodes).for_each_concurrent(flusher.parallel, flush).await;
}
