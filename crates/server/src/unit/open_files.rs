//! Keeps shared files open between the reads of a sequential reader.

use super::UnitService;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tameike_core::{Cluster, Generation, InodeId, NodeId};
use tameike_io::shared::{CacheToken, CachedFile, OpenFileCache, SharedFile};

/// Time for which a file stays open after its last read.
const OPEN_TIME: Duration = Duration::from_millis(250);

/// Open files, and the task that closes them.
pub(super) struct OpenFiles {
    /// False if another agent with the same mount could remove a name while the file is open here.
    is_alone_on_host: Arc<AtomicBool>,
    /// The task runs.
    is_closing: Arc<AtomicBool>,
}

/// A read of a shared file.
pub(super) struct Reading<'a> {
    cache: Option<(&'a OpenFileCache, CacheToken)>,
    /// The open file, if any.
    pub(super) file: Option<Arc<dyn SharedFile>>,
}

impl OpenFiles {
    pub(super) fn new(cluster: &Arc<Cluster>, node: NodeId) -> Self {
        let is_alone_on_host = Arc::new(AtomicBool::new(is_alone(cluster, node)));
        let (flag, weak) = (is_alone_on_host.clone(), Arc::downgrade(cluster));
        cluster.watch(move || {
            if let Some(cluster) = weak.upgrade() {
                flag.store(is_alone(&cluster, node), Ordering::Relaxed);
            }
        });
        Self { is_alone_on_host, is_closing: Arc::default() }
    }
}

/// Whether a node is the only one of the job on its host.
fn is_alone(cluster: &Cluster, node: NodeId) -> bool {
    let nodes = cluster.nodes();
    let host = nodes.get(node.0 as usize).map(|info| &info.host);
    nodes.iter().filter(|other| Some(&other.host) == host).count() == 1
}

impl UnitService {
    /// Begins a read. Takes the open file of this generation, if any.
    pub(super) fn begin_reading(&self, inode: InodeId, generation: Generation) -> Reading<'_> {
        match self
            .parts
            .shared
            .open_file_cache()
            .filter(|_| self.open_files.is_alone_on_host.load(Ordering::Relaxed))
        {
            Some(cache) => {
                let (file, token) = cache.take(inode, generation);
                Reading { cache: Some((cache, token)), file }
            }
            None => Reading { cache: None, file: None },
        }
    }

    /// Ends a read, and keeps its file open.
    pub(super) fn end_reading(
        &self,
        reading: &Reading<'_>,
        inode: InodeId,
        generation: Generation,
        file: Arc<dyn SharedFile>,
    ) {
        if let Some((cache, token)) = reading.cache {
            let used = self.parts.runtime.clock.monotonic();
            cache.keep(CachedFile { inode, generation, used, file }, token);
            self.close_later();
        }
    }

    fn close_later(&self) {
        let is_closing = self.open_files.is_closing.clone();
        if is_closing.swap(true, Ordering::AcqRel) {
            return;
        }
        let (runtime, shared) = (self.parts.runtime.clone(), self.parts.shared.clone());
        self.parts.runtime.spawn(async move {
            loop {
                runtime.sleep(OPEN_TIME).await;
                // The next read that keeps a file open starts the task again.
                is_closing.store(false, Ordering::Release);
                let (shared, before) = (shared.clone(), runtime.clock.monotonic().saturating_sub(OPEN_TIME));
                let close_unused =
                    move || shared.open_file_cache().is_some_and(|cache| cache.close_unused(before));
                let has_others = runtime.block(close_unused).await;
                if !has_others || is_closing.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        });
    }
}
