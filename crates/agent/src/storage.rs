//! The store of an agent, and what of an agent's store matters when the agent is dead.

use crate::control::Left;
use std::path::Path;
use std::sync::Arc;
use tameike_core::{Fault, Result, View};
use tameike_io::disk::uring::Direct;
use tameike_io::os::system::System;
use tameike_io::shared::PosixTree;
use tameike_io::{Pool, Slab};
use tameike_packer::{count_noted, count_owed};
use tameike_server::cache::{Journaled, journaled};
use tameike_store::ledger::RecordKind;
use tameike_store::table::Table;
use tameike_store::{Options, Store, meta};

/// Metadata changes kept in memory before they move into the key-value store, in bytes.
const CHECKPOINT_BYTES: usize = 32 << 20;
/// Cache of the key-value store, in bytes.
const TABLE_CACHE_BYTES: usize = 16 << 20;
/// Frames with which a dead agent's store is looked into.
const INSPECTION_FRAMES: u32 = 4;

/// Opens the store in a device directory, or makes one there. `scratch` is of `slab`.
///
/// # Errors
/// When another agent has it open, it is damaged, or the disk fails.
pub async fn open(
    system: &System,
    dir: &Path,
    capacity: [u64; 3],
    slab: &Arc<Slab>,
    scratch: Pool,
    care: Care<'_>,
) -> Result<Store> {
    let options = Options {
        runtime: system.runtime().clone(),
        direct: Some(Direct { reactor: system.reactor().clone(), slab: slab.clone() }),
        scratch,
        capacity,
        checkpoint_bytes: CHECKPOINT_BYTES,
        table_cache_bytes: TABLE_CACHE_BYTES,
    };
    match care {
        Care::Whole => Store::open(dir, options, replay).await,
        Care::Salvage(missing) => Store::salvage(dir, options, missing, replay).await,
    }
}

/// What is to become of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care<'a> {
    /// A damaged store is not opened.
    Whole,
    /// What can be read is; this is known to be missing.
    Salvage(&'a [String]),
}

/// Applies a record of names or of cached files again.
///
/// # Errors
/// When it is damaged.
pub fn replay(kind: RecordKind, body: &[u8], table: &mut dyn Table) -> Result<()> {
    match kind {
        RecordKind::Names => meta::replay(table, body),
        RecordKind::Cache => tameike_server::cache::replay(body, table),
        RecordKind::Extents => Err(Fault::io("a record of extents came to the wrong room")),
    }
}

/// What an open store in the directory `dir` holds that is not on the shared file system.
///
/// # Errors
/// When the store cannot be read.
fn left(store: &Store, dir: &Path) -> Result<Left> {
    let Journaled { dirty, named, open } = journaled(store.ledger.clone())?;
    let dir = PosixTree::open(dir)?;
    let names = count_noted(&dir)? + count_owed(&dir)?;
    Ok(Left { files: dirty, bytes: store.extents.space(View::Cache).dirty, named, names, open })
}

/// As [`left`], but a store that was salvaged is never called empty: somebody has to decide to give it up.
///
/// # Errors
/// The same, and `EIO` for a salvaged store.
pub fn left_if_whole(store: &Store, dir: &Path) -> Result<Left> {
    match store.damage.first() {
        None => left(store, dir),
        Some(damage) => Err(Fault::io(format!(
            "the journal was damaged ({damage}); what could be read of it is drained, and `tameike recover \
             --discard` gives up the rest"
        ))),
    }
}

/// As [`left_if_whole`], for the device directory of an agent that is dead.
///
/// # Errors
/// When the store cannot be opened or read.
pub fn inspect(dir: &Path) -> Result<Left> {
    let doing = || format!("looking into the journal in {}", dir.display());
    let system = System::start(1).map_err(|error| Fault::from_os(doing(), &error))?;
    let slab = Slab::new(INSPECTION_FRAMES).map_err(|error| Fault::from_os(doing(), &error))?;
    Store::verify_table(dir).map_err(|fault| fault.context(doing()))?;
    // What is there is only read: no room for more is needed.
    let scratch = slab.pool(INSPECTION_FRAMES);
    let store = pollster::block_on(open(&system, dir, [0; 3], &slab, scratch, Care::Whole));
    store.and_then(|store| left_if_whole(&store, dir)).map_err(|fault| fault.context(doing()))
}
