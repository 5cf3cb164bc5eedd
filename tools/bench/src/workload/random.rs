//! Blocks of 4 KiB at random places of a file that is there already.
//!
//! The places follow from the seed, so the reader knows which blocks its neighbour has overwritten.

use super::{Measured, Site, Workload, open};
use crate::outcome::{Context, Outcome};
use crate::pattern::{Content, random_blocks};
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

const BLOCK_BYTES: usize = 4096;
const WRITE: u64 = 1;
const READ: u64 = 2;

/// Overwrites random blocks of this rank's file, then fsyncs.
pub fn write(site: &Site) -> Outcome<Measured> {
    let path = site.large_file(site.rank);
    let content = Content { version: 1, ..site.content(site.rank, None) };
    let places = places(site, site.rank, WRITE);
    let mut bytes = vec![0; places.len() * BLOCK_BYTES];
    for (&place, block) in places.iter().zip(bytes.chunks_mut(BLOCK_BYTES)) {
        site.pattern.fill(content, place, block);
    }
    let file = OpenOptions::new().write(true).open(&path).context(|| format!("open {}", path.display()))?;
    Measured::of(|laps| {
        for (&place, block) in places.iter().zip(bytes.chunks(BLOCK_BYTES)) {
            file.write_all_at(block, place).context(|| format!("write {}", path.display()))?;
            laps.done(BLOCK_BYTES);
        }
        file.sync_all().context(|| format!("fsync {}", path.display()))
    })
}

/// Reads random blocks of the file of `rank`, and checks them.
pub fn read(site: &Site, rank: u32) -> Outcome<Measured> {
    let path = site.large_file(rank);
    let overwritten: BTreeSet<u64> = match site.plan.workload {
        Workload::Random => places(site, rank, WRITE).into_iter().collect(),
        _ => BTreeSet::new(),
    };
    let places = places(site, rank, READ);
    let mut bytes = vec![1; places.len() * BLOCK_BYTES];
    let file = open(&path)?;
    let measured = Measured::of(|laps| {
        for (&place, block) in places.iter().zip(bytes.chunks_mut(BLOCK_BYTES)) {
            file.read_exact_at(block, place).context(|| format!("read {}", path.display()))?;
            laps.done(BLOCK_BYTES);
        }
        Ok(())
    })?;
    for (&place, block) in places.iter().zip(bytes.chunks(BLOCK_BYTES)) {
        let version = u64::from(overwritten.contains(&place));
        site.check(&path, Content { version, ..site.content(rank, None) }, place, block)?;
    }
    Ok(measured)
}

/// Offsets in the file of `rank`, in the order of their visits.
fn places(site: &Site, rank: u32, purpose: u64) -> Vec<u64> {
    let blocks = site.plan.size_bytes / BLOCK_BYTES as u64;
    let file = (u64::from(rank) << 8) + purpose;
    random_blocks(site.plan.seed, file, blocks, u64::from(site.plan.operations))
        .map(|block| block * BLOCK_BYTES as u64)
        .collect()
}
