//! Reads missing bytes of a unit from the shared file, with zeros behind its end and in its holes.
//!
//! A mount may show a stale size that is too small: the read then revalidates the file. Bytes that this node has flushed must exist: the
//! read waits until they are visible, or fails.

use super::UnitService;
use super::ends::FlushedEnd;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::{Errno, Fault, Result, UnitId};
use tameike_io::Frame;
use tameike_io::shared::SharedFile;

/// Pauses between reads of flushed bytes that are not visible yet.
const PAUSES_MS: [u64; 5] = [100, 200, 400, 800, 1600];
/// Longest pause for a file that was changed after the flush: it was probably truncated.
const TRUNCATED_PAUSE_MS: u64 = 200;

/// Gaps of a unit to read.
#[derive(Clone)]
pub(super) struct Gaps {
    pub(super) unit: UnitId,
    pub(super) ranges: Vec<Range<u32>>,
    /// End of the bytes that the reader needs.
    pub(super) wanted: u32,
}

impl Gaps {
    /// Reads into the frame, with zeros behind the end of the file. Returns the parts that the file has.
    fn read(&self, file: &dyn SharedFile, frame: &mut Frame) -> Result<Vec<Range<u32>>> {
        let mut parts = Vec::with_capacity(self.ranges.len());
        for gap in &self.ranges {
            let mut end = read_gap(file, self.unit.start(), gap, frame)?;
            if end < gap.end.min(self.wanted) {
                file.revalidate()?;
                end = read_gap(file, self.unit.start(), gap, frame)?;
            }
            parts.push(gap.start..end);
        }
        Ok(parts)
    }

    /// Returns true if the parts lack needed bytes before `end`.
    fn lack(&self, parts: &[Range<u32>], end: u64) -> bool {
        let until = end.saturating_sub(self.unit.start()).min(u64::from(self.wanted)) as u32;
        self.ranges.iter().zip(parts).any(|(gap, part)| part.end < gap.end.min(until))
    }
}

/// Reads the bytes `gap` of the unit at offset `start` into the frame, with zeros behind the end of the file. Returns the end of the bytes
/// that the file has.
fn read_gap(file: &dyn SharedFile, start: u64, gap: &Range<u32>, frame: &mut [u8]) -> Result<u32> {
    let part = &mut frame[gap.start as usize..gap.end as usize];
    let count = file.read_at(part, start + u64::from(gap.start))?;
    part[count..].fill(0);
    Ok(gap.start + count as u32)
}

impl UnitService {
    /// Reads gaps of a unit from the shared file, with zeros behind its end. Returns the parts that the file has. Fails with `EIO` if bytes
    /// that this node has flushed stay invisible although the file was not truncated.
    pub(super) async fn read_gaps(
        &self,
        (file, path): (Arc<dyn SharedFile>, &[u8]),
        gaps: Gaps,
        mut frame: Frame,
    ) -> Result<(Frame, Vec<Range<u32>>)> {
        if gaps.ranges.is_empty() {
            return Ok((frame, Vec::new()));
        }
        let inode = gaps.unit.inode;
        for pause in PAUSES_MS.map(Some).into_iter().chain([None]) {
            let (own_file, own_gaps) = (file.clone(), gaps.clone());
            let read = move || own_gaps.read(&*own_file, &mut frame).map(|parts| (frame, parts));
            let parts;
            (frame, parts) = self.parts.runtime.block(read).await?;
            let known = self.flushed_ends.of(inode).filter(|known| gaps.lack(&parts, known.end));
            let Some(known) = known else { return Ok((frame, parts)) };
            let own_file = file.clone();
            let changed = self.parts.runtime.block(move || own_file.stat()).await?.ctime;
            let is_truncated = known.is_truncated(changed, self.parts.runtime.now());
            match pause {
                Some(pause) if !is_truncated || pause <= TRUNCATED_PAUSE_MS => {
                    self.parts.runtime.sleep(Duration::from_millis(pause)).await;
                }
                _ if is_truncated => {
                    self.flushed_ends.lower(inode, 0);
                    return Ok((frame, parts));
                }
                _ => break,
            }
        }
        Err(stale_mount(path, gaps.unit, self.flushed_ends.of(inode)))
    }
}

fn stale_mount(path: &[u8], unit: UnitId, known: Option<FlushedEnd>) -> Fault {
    let message = format!(
        "read unit {} of {}: this node has flushed bytes up to {}, and its mount of the shared file system shows fewer: check the mount",
        unit.index,
        String::from_utf8_lossy(path),
        known.map_or(0, |known| known.end)
    );
    log::error!("{message}");
    Fault::new(Errno::EIO, message)
}
