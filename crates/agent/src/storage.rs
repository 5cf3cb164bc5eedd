//! Opens the store of an agent, and inspects the store of an agent that has failed.

use crate::control::Undrained;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::wire::pack::PACKER_HOME;
use tameike_core::{Cluster, Errno, Fault, HomeMap, HomeSet, NodeId, Result, View};
use tameike_io::disk::uring::Direct;
use tameike_io::os::process;
use tameike_io::os::system::System;
use tameike_io::shared::PosixTree;
use tameike_io::{Pool, Slab};
use tameike_packer::{count_journaled, count_pending_promotions};
use tameike_server::cache::{Journaled, journaled};
use tameike_server::replay;
use tameike_store::{Options, Store};

/// Metadata changes kept in memory before they move into the key-value store, in bytes.
const CHECKPOINT_BYTES: usize = 32 << 20;
/// Cache of the key-value store, in bytes.
const TABLE_CACHE_BYTES: usize = 16 << 20;
/// Time that an inspection waits for another one of the same store: `status`, `doctor` and each new job of the host inspect stores.
const BUSY_TIME: Duration = Duration::from_secs(2);
const BUSY_STEP: Duration = Duration::from_millis(20);
/// Frames for the inspection of a store.
const INSPECTION_FRAMES: u32 = 4;

/// Opens or creates the store in a device directory. `scratch` is a pool of `slab`.
pub async fn open(
    system: &System,
    dir: &Path,
    capacity: [u64; 3],
    (slab, scratch): (&Arc<Slab>, Pool),
    on_damage: OnDamage<'_>,
) -> Result<Store> {
    let options = Options {
        runtime: system.runtime().clone(),
        direct: Some(Direct { reactor: system.reactor().clone(), slab: slab.clone() }),
        scratch,
        capacity,
        checkpoint_bytes: CHECKPOINT_BYTES,
        table_cache_bytes: TABLE_CACHE_BYTES,
    };
    match on_damage {
        OnDamage::Refuse => Store::open(dir, options, replay).await,
        OnDamage::Salvage(missing) => Store::salvage(dir, options, missing, replay).await,
    }
}

/// Handling of a damaged store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDamage<'a> {
    /// Do not open a damaged store.
    Refuse,
    /// Opens the readable parts. The strings describe the parts that are known to be missing.
    Salvage(&'a [String]),
}

/// The nodes of a job, and the one that owns a store.
pub type Owner = (Arc<Cluster>, NodeId);

/// Returns the data of an open store in `dir` that is not on the shared file system. Without an owner, files count of which the store
/// may have a copy only.
fn undrained(store: &Store, dir: &Path, owner: Option<Owner>) -> Result<Undrained> {
    let bytes = match &owner {
        Some((cluster, node)) if cluster.is_replicated() => dirty_bytes(store, &cluster.map(), *node)?,
        _ => store.extents.space(View::Cache).dirty,
    };
    let names = match &owner {
        // A copy of what the packer has journaled.
        Some((cluster, node)) if cluster.is_replicated() && cluster.primary(PACKER_HOME) != *node => 0,
        _ => {
            let dir = PosixTree::open(dir)?;
            count_journaled(&dir)? + count_pending_promotions(&dir)?
        }
    };
    let Journaled { dirty, named, open } = journaled(store.ledger.clone(), owner)?;
    Ok(Undrained { files: dirty, bytes, named, names, open })
}

/// The dirty bytes of the homes that a node serves: others answer for the copies that it has.
fn dirty_bytes(store: &Store, map: &HomeMap, node: NodeId) -> Result<u64> {
    let mut bytes = 0;
    for unit in store.extents.units_of(&HomeSet::served(map, node)) {
        let unit = unit?;
        if unit.inode.is_cached() {
            bytes += u64::from(store.extents.dirty_of(unit)?.len());
        }
    }
    Ok(bytes)
}

/// As [`undrained`], but fails with `EIO` for a salvaged store: the user must decide to discard it.
pub fn undrained_unless_salvaged(store: &Store, dir: &Path, owner: Option<Owner>) -> Result<Undrained> {
    match store.damage.first() {
        None => undrained(store, dir, owner),
        Some(damage) => Err(Fault::io(format!(
            "the journal was damaged ({damage}): its readable part is drained; `tameike recover --discard` gives \
             up the rest"
        ))),
    }
}

/// As [`undrained_unless_salvaged`], for the device directory of an agent that has failed. Waits while another process inspects the same
/// store; fails with `EBUSY` if a process keeps it open.
pub fn inspect(dir: &Path) -> Result<Undrained> {
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

fn inspect_now(dir: &Path) -> Result<Undrained> {
    let doing = || format!("reading the journal in {}", dir.display());
    let system = System::start(1).map_err(|error| Fault::from_os(doing(), &error))?;
    let slab = Slab::new(INSPECTION_FRAMES).map_err(|error| Fault::from_os(doing(), &error))?;
    Store::verify_table(dir).map_err(|fault| fault.context(doing()))?;
    // The inspection only reads: it needs no capacity.
    let frames = (&slab, slab.pool(INSPECTION_FRAMES));
    let store = pollster::block_on(open(&system, dir, [0; 3], frames, OnDamage::Refuse));
    store
        .and_then(|store| undrained_unless_salvaged(&store, dir, None))
        .map_err(|fault| fault.context(doing()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two concurrent inspections of a store, one failed with `EBUSY`.
    #[test]
    fn an_inspection_waits_for_another_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let open_store = || {
            let system = System::start(1).expect("a thread");
            let slab = Slab::new(INSPECTION_FRAMES).expect("memory");
            let frames = (&slab, slab.pool(INSPECTION_FRAMES));
            let opened = open(&system, dir.path(), [1 << 20; 3], frames, OnDamage::Refuse);
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
