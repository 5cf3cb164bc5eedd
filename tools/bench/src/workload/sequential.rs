//! A large file per rank, written and read from its beginning in calls of 1 MiB.

use super::{Site, Work, open, timed};
use crate::outcome::{Context, Outcome};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of one call.
const CALL_BYTES: usize = 1 << 20;
/// Bytes made or checked at once, between stretches of the clock; a file no larger than this is timed in one.
const WINDOW_BYTES: u64 = 256 << 20;

/// Creates, writes, fsyncs and closes this rank's file.
pub fn write(site: &Site) -> Outcome<Work> {
    let (path, content) = (site.large_file(site.rank), site.content(site.rank, None));
    let doing = || format!("write {}", path.display());
    let mut window = window(site);
    let mut work = Work::default();
    let mut file = None;
    for (start, size) in windows(site.plan.size_bytes) {
        let bytes = &mut window[..size];
        site.pattern.fill(content, start, bytes);
        let (seconds, ()) = timed(|| {
            let file = match &mut file {
                Some(file) => file,
                None => file.insert(File::create(&path).context(doing)?),
            };
            for (offset, call) in (start..).step_by(CALL_BYTES).zip(bytes.chunks(CALL_BYTES)) {
                file.write_all_at(call, offset).context(doing)?;
            }
            Ok(())
        })?;
        count(&mut work, seconds, size);
    }
    let (seconds, ()) = timed(|| {
        file.as_ref().map_or(Ok(()), File::sync_all).context(|| format!("fsync {}", path.display()))?;
        drop(file);
        Ok(())
    })?;
    work.seconds += seconds;
    Ok(work)
}

/// Reads the file of `rank`, and checks it.
pub fn read(site: &Site, rank: u32) -> Outcome<Work> {
    let (path, content) = (site.large_file(rank), site.content(rank, None));
    let mut window = window(site);
    let mut work = Work::default();
    let mut file = None;
    for (start, size) in windows(site.plan.size_bytes) {
        let bytes = &mut window[..size];
        let (seconds, ()) = timed(|| {
            let file = match &mut file {
                Some(file) => file,
                None => file.insert(open(&path)?),
            };
            for (offset, call) in (start..).step_by(CALL_BYTES).zip(bytes.chunks_mut(CALL_BYTES)) {
                file.read_exact_at(call, offset).context(|| format!("read {}", path.display()))?;
            }
            Ok(())
        })?;
        count(&mut work, seconds, size);
        site.check(&path, content, start, bytes)?;
    }
    let found =
        file.map(|file| file.metadata()).transpose().context(|| format!("stat {}", path.display()))?;
    match found.map(|metadata| metadata.len()) {
        Some(size) if size == site.plan.size_bytes => Ok(work),
        size => Err(format!("WRONG SIZE of {}: {size:?}, not {}", path.display(), site.plan.size_bytes)),
    }
}

/// As [`read`], after this node's kernel has been asked to forget the file's pages.
pub fn read_cold(site: &Site, rank: u32) -> Outcome<Work> {
    let path = site.large_file(rank);
    let file = open(&path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
        .context(|| format!("drop the pages of {}", path.display()))?;
    drop(file);
    read(site, rank)
}

/// Memory for one window, touched already: what is measured is the file system, not page faults.
fn window(site: &Site) -> Vec<u8> {
    vec![1; site.plan.size_bytes.min(WINDOW_BYTES) as usize]
}

fn windows(size_bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..size_bytes)
        .step_by(WINDOW_BYTES as usize)
        .map(move |start| (start, WINDOW_BYTES.min(size_bytes - start) as usize))
}

fn count(work: &mut Work, seconds: f64, bytes: usize) {
    work.seconds += seconds;
    work.bytes += bytes as u64;
    work.operations += bytes.div_ceil(CALL_BYTES) as u64;
}
