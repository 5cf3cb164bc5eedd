//! Shared files that stay open between reads, for sequential readers.

use super::UnitService;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tameike_core::{Cluster, Generation, InodeId, NodeId};
use tameike_io::shared::{KeptFile, KeptFiles, Moment, SharedFile};

/// How long a file stays open that nobody reads on in.
const KEPT_OPEN: Duration = Duration::from_millis(250);

/// Whether files stay open, and who closes them.
pub(super) struct Keeping {
    /// Another agent with the same mount may have a name go while a file is open here.
    is_alone_on_host: bool,
    /// A task looks whether nobody reads on.
    is_watched: Arc<AtomicBool>,
}

/// A read of a shared file.
pub(super) struct Reading<'a> {
    kept: Option<(&'a KeptFiles, Moment)>,
    /// The file, where it was open.
    pub(super) file: Option<Arc<dyn SharedFile>>,
}

impl Keeping {
    /// Of an agent.
    pub(super) fn new(cluster: &Cluster, node: NodeId) -> Self {
        let host = |node| cluster.node(node).map(|node| &node.host);
        let beside = cluster.nodes().iter().filter(|other| Some(&other.host) == host(node));
        Self { is_alone_on_host: beside.count() == 1, is_watched: Arc::default() }
    }
}

impl UnitService {
    /// Begins a read.
    pub(super) fn begin_reading(&self, inode: InodeId, generation: Generation) -> Reading<'_> {
        match self.parts.shared.kept().filter(|_| self.keeping.is_alone_on_host) {
            Some(kept) => {
                let (file, moment) = kept.take(inode, generation);
                Reading { kept: Some((kept, moment)), file }
            }
            None => Reading { kept: None, file: None },
        }
    }

    /// Ends a read, by this open file.
    pub(super) fn end_reading(
        &self,
        reading: &Reading<'_>,
        inode: InodeId,
        generation: Generation,
        file: Arc<dyn SharedFile>,
    ) {
        if let Some((kept, moment)) = reading.kept {
            let used = self.parts.runtime.clock.monotonic();
            kept.keep(KeptFile { inode, generation, used, file }, moment);
            self.let_go_later();
        }
    }

    fn let_go_later(&self) {
        let is_watched = self.keeping.is_watched.clone();
        if is_watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let (runtime, shared) = (self.parts.runtime.clone(), self.parts.shared.clone());
        self.parts.runtime.spawn(async move {
            loop {
                runtime.sleep(KEPT_OPEN).await;
                // Who keeps one from now on sees to it.
                is_watched.store(false, Ordering::Release);
                let (shared, before) = (shared.clone(), runtime.clock.monotonic().saturating_sub(KEPT_OPEN));
                let let_go = move || shared.kept().is_some_and(|kept| kept.let_go(before));
                let has_others = runtime.block(let_go).await;
                if !has_others || is_watched.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        });
    }
}
