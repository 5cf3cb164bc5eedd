//! Large files, read and written in one direction in large calls, as the program IOR does.
//!
//! Each rank has a file, a part of one file, or every n-th record of one file; or all ranks read one file.

use super::{Measured, Site, Workload, open};
use crate::outcome::{Context, Outcome};
use crate::pattern::Content;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;
/// A record size that is no multiple of a page, as particle codes have (IOR's "hard" pattern).
const RECORD_BYTES: u64 = 47_008;
/// Bytes that are generated or checked at once while the clock stands.
const WINDOW_BYTES: u64 = 256 << 20;

/// How the bytes of one rank lie in a file.
struct Stream {
    path: PathBuf,
    content: Content,
    /// Bytes of one call.
    call_bytes: u64,
    /// Where the first call goes.
    start: u64,
    /// From the start of one call to that of the next.
    stride: u64,
    /// Of this rank, in all.
    size_bytes: u64,
    /// Of all ranks that write this file.
    file_bytes: u64,
}

/// One call.
#[derive(Clone, Copy)]
struct Call {
    offset: u64,
    size: usize,
}

impl Stream {
    fn of(site: &Site, rank: u32) -> Self {
        let (ranks, size) = (u64::from(site.plan.ranks), site.plan.size_bytes);
        let part = u64::from(rank);
        let own = Self {
            path: site.large_file(rank),
            content: site.content(rank, None),
            call_bytes: MIB,
            start: 0,
            stride: MIB,
            size_bytes: size,
            file_bytes: size,
        };
        // A file of all ranks has the bytes of the first one's.
        let content = site.content(0, None);
        match site.plan.workload {
            Workload::HotFile => Self { content, ..own },
            Workload::Shared => Self { content, start: part * size, file_bytes: ranks * size, ..own },
            Workload::Interleaved => {
                let size_bytes = (size / RECORD_BYTES).max(1) * RECORD_BYTES;
                Self {
                    content,
                    call_bytes: RECORD_BYTES,
                    start: part * RECORD_BYTES,
                    stride: ranks * RECORD_BYTES,
                    size_bytes,
                    file_bytes: ranks * size_bytes,
                    ..own
                }
            }
            Workload::OneProcess | Workload::FourProcesses => {
                let size_bytes = size / ranks;
                let call_bytes = 16 * MIB;
                Self { call_bytes, stride: call_bytes, size_bytes, file_bytes: size_bytes, ..own }
            }
            _ => own,
        }
    }

    fn calls(&self) -> Vec<Call> {
        let call = |index| Call {
            offset: self.start + index * self.stride,
            size: self.call_bytes.min(self.size_bytes - index * self.call_bytes) as usize,
        };
        (0..self.size_bytes.div_ceil(self.call_bytes)).map(call).collect()
    }

    fn calls_in_window(&self) -> usize {
        (WINDOW_BYTES / self.call_bytes) as usize
    }

    /// Memory for one window, written once, so that no page faults are measured.
    fn window(&self) -> Vec<u8> {
        vec![1; (self.calls_in_window() as u64 * self.call_bytes).min(self.size_bytes) as usize]
    }
}

/// The part of `window` that belongs to each of `calls`.
fn pieces<'a>(calls: &'a [Call], stream: &Stream, window: &'a mut [u8]) -> Vec<(Call, &'a mut [u8])> {
    let pieces = calls.iter().zip(window.chunks_mut(stream.call_bytes as usize));
    pieces.map(|(&call, piece)| (call, &mut piece[..call.size])).collect()
}

/// Creates, writes, fsyncs and closes this rank's file, or its part of one.
pub fn write(site: &Site) -> Outcome<Measured> {
    let stream = Stream::of(site, site.rank);
    let doing = || format!("write {}", stream.path.display());
    let mut window = stream.window();
    let mut measured = Measured::default();
    let mut file = None;
    for calls in stream.calls().chunks(stream.calls_in_window()) {
        let mut pieces = pieces(calls, &stream, &mut window);
        for (call, bytes) in &mut pieces {
            site.pattern.fill(stream.content, call.offset, bytes);
        }
        measured.time(|laps| {
            let file = match &mut file {
                Some(file) => file,
                // Other ranks may have written their parts.
                None => file.insert(
                    OpenOptions::new()
                        .write(true)
                        .create(true)
                        .truncate(false)
                        .open(&stream.path)
                        .context(doing)?,
                ),
            };
            laps.pass();
            for (call, bytes) in &pieces {
                file.write_all_at(bytes, call.offset).context(doing)?;
                laps.done(call.size);
            }
            Ok(())
        })?;
    }
    measured.time(|_| {
        let Some(file) = file else { return Ok(()) };
        file.sync_all().context(|| format!("fsync {}", stream.path.display()))
    })?;
    Ok(measured)
}

/// Reads what `rank` wrote, and checks it.
pub fn read(site: &Site, rank: u32) -> Outcome<Measured> {
    let stream = Stream::of(site, rank);
    let doing = || format!("read {}", stream.path.display());
    let mut window = stream.window();
    let mut measured = Measured::default();
    let mut file = None;
    for calls in stream.calls().chunks(stream.calls_in_window()) {
        let mut pieces = pieces(calls, &stream, &mut window);
        measured.time(|laps| {
            let file = match &mut file {
                Some(file) => file,
                None => file.insert(open(&stream.path)?),
            };
            laps.pass();
            for (call, bytes) in &mut pieces {
                file.read_exact_at(bytes, call.offset).context(doing)?;
                laps.done(call.size);
            }
            Ok(())
        })?;
        for (call, bytes) in &pieces {
            site.check(&stream.path, stream.content, call.offset, bytes)?;
        }
    }
    let found =
        file.map(|file| file.metadata()).transpose().context(|| format!("stat {}", stream.path.display()))?;
    match found.map(|metadata| metadata.len()) {
        Some(size) if size == stream.file_bytes => Ok(measured),
        size => Err(format!("WRONG SIZE of {}: {size:?}, not {}", stream.path.display(), stream.file_bytes)),
    }
}
