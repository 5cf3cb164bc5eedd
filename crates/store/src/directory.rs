//! A store on real files in one directory.
//!
//! ```text
//! format      version of everything below
//! lock        held by the agent that has the store open
//! log.0 log.1 the ledger's log, alternating between checkpoints
//! table       the ledger's key-value store
//! extents     bytes of units
//! ```

use crate::extent::ExtentStore;
use crate::ledger::{Ledger, RecordKind};
use crate::table::Table;
use std::path::Path;
use std::sync::Arc;
use tameike_core::Result;
use tameike_io::{Pool, Runtime};

/// What a store is opened with.
pub struct Options {
    /// Time and tasks.
    pub runtime: Runtime,
    /// Frames for merging and for rewriting units.
    pub scratch: Pool,
    /// Limits in bytes, by [`tameike_core::View::index`].
    pub capacity: [u64; 3],
    /// Size of changes kept in memory (and in the log) before they move into the key-value store, in bytes.
    pub checkpoint_bytes: usize,
    /// Memory of the key-value store's cache, in bytes.
    pub table_cache_bytes: usize,
}

/// An open store.
pub struct Store {
    /// Metadata.
    pub ledger: Arc<Ledger>,
    /// Bytes.
    pub extents: Arc<ExtentStore>,
}

impl Store {
    /// Opens the store in `dir`, or makes one there. `replay` re-applies records of kinds other than
    /// [`RecordKind::Extents`].
    pub async fn open(
        dir: &Path,
        options: Options,
        replay: impl FnMut(RecordKind, &[u8], &mut dyn Table) -> Result<()> + Send,
    ) -> Result<Self> {
        let _ = (dir, options, replay);
        todo!()
    }
}
