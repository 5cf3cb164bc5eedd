//! The store of an agent, and what of an agent's store matters when the agent is dead.

use crate::control::Left;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::{Errno, Fault, Result, View};
use tameike_io::disk::uring::Direct;
use tameike_io::os::process;
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
/// How long an inspection waits for another one of the same store: `status`, `doctor` and each new job of the host make some.
const BUSY_TIME: Duration = Duration::from_secs(2);
/// Time between two attempts.
const BUSY_STEP: Duration = Duration::from_millis(20);
/// Frames for the inspection of a store.
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

/// As [`left_if_whole`], for the device directory of an agent that has failed. Waits while another process inspects the same store.
///
/// # Errors
/// When the store cannot be opened or read; `EBUSY` when a process has it open for long.
pub fn inspect(dir: &Path) -> Result<Left> {
    let mut busy = None;
    let inspected = process::ask_until(BUSY_TIME, BUSY_STEP, || match inspect_now(dir) {
        Err(fault) if fault.errno == Errno::EBUSY => {
            busy = Some(fault);
            None
        }
        inspected => Some(inspected),
    });
    inspected.unwrap_or_else(|| Err(busy.unwrap_or_else(|| Errno::EBUSY.into())))
}

fn inspect_now(dir: &Path) -> Result<Left> {
    let doing = || format!("looking into the journal in {}", dir.display());
    let system = System::start(1).map_err(|error| Fault::from_os(doing(), &error))?;
    let slab = Slab::new(INSPECTION_FRAMES).map_err(|error| Fault::from_os(doing(), &error))?;
    Store::verify_table(dir).map_err(|fault| fault.context(doing()))?;
    // What is there is only read: no room for more is needed.
    let scratch = slab.pool(INSPECTION_FRAMES);
    let store = pollster::block_on(open(&system, dir, [0; 3], &slab, scratch, Care::Whole));
    store.and_then(|store| left_if_whole(&store, dir)).map_err(|fault| fault.context(doing()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two commands that inspected a store at the same time: one of them said that a process has it open.
    #[test]
    fn an_inspection_waits_for_another_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let open_store = || {
            let system = System::start(1).expect("a thread");
            let slab = Slab::new(INSPECTION_FRAMES).expect("memory");
            let scratch = slab.pool(INSPECTION_FRAMES);
            let opened = open(&system, dir.path(), [1 << 20; 3], &slab, scratch, Care::Whole);
            (pollster::block_on(opened).expect("a store"), system)
        };
        let held = open_store();
        let holder = process::start_thread("test", move || {
            process::ask_until(10 * BUSY_STEP, BUSY_STEP, || None::<()>);
            drop(held);
        });
        assert_eq!(inspect(dir.path()).expect("it is read").files, 0);
        holder.expect("a thread").join().expect("no panic");
        let held = open_store();
        assert_eq!(inspect(dir.path()).expect_err("it is open").errno, Errno::EBUSY);
        drop(held);
    }
}
