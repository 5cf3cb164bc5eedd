//! Bytes of a unit are read from the shared file: those that the file has, and zeros behind its end and in its holes.
//!
//! Where this machine remembers that the file ends earlier than it does, it asks again. What this node has flushed there it does not
//! take for gone: it waits until the bytes show, or fails.

use super::UnitService;
use super::ends::FlushedEnd;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::{Errno, Fault, Result, UnitId};
use tameike_io::Frame;
use tameike_io::shared::SharedFile;

/// Pauses after which bytes that this node has flushed are looked for again.
const PAUSES_MS: [u64; 5] = [100, 200, 400, 800, 1600];
/// The longest of them where the file was changed after the flush: it is likely to have been cut.
const CUT_PAUSE_MS: u64 = 200;

/// What is to be read of a unit.
#[derive(Clone)]
pub(super) struct Gaps {
    pub(super) unit: UnitId,
    pub(super) ranges: Vec<Range<u32>>,
    /// Nobody waits for bytes of the unit from here on.
    pub(super) wanted: u32,
}

impl Gaps {
    /// Reads into the frame what the file has, with zeros behind its end; the parts that it has.
    fn read(&self, file: &dyn SharedFile, frame: &mut Frame) -> Result<Vec<Range<u32>>> {
        let mut parts = Vec::with_capacity(self.ranges.len());
        for gap in &self.ranges {
            let mut end = read_gap(file, self.unit.start(), gap, frame)?;
            if end < gap.end.min(self.wanted) {
                file.look_anew()?;
                end = read_gap(file, self.unit.start(), gap, frame)?;
            }
            parts.push(gap.start..end);
        }
        Ok(parts)
    }

    /// Whether bytes before `end` are wanted and not among the parts that were read.
    fn lack(&self, parts: &[Range<u32>], end: u64) -> bool {
        let until = end.saturating_sub(self.unit.start()).min(u64::from(self.wanted)) as u32;
        self.ranges.iter().zip(parts).any(|(gap, part)| part.end < gap.end.min(until))
    }
}

/// The bytes `gap` of a unit that begins at `start`, read into their place; zeros beyond the end of the file.
/// Gives the end of what was read.
fn read_gap(file: &dyn SharedFile, start: u64, gap: &Range<u32>, frame: &mut [u8]) -> Result<u32> {
    let part = &mut frame[gap.start as usize..gap.end as usize];
    let count = file.read_at(part, start + u64::from(gap.start))?;
    part[count..].fill(0);
    Ok(gap.start + count as u32)
}

impl UnitService {
    /// Reads gaps of a unit from the shared file into their places, with zeros behind its end; the parts that the file has.
    ///
    /// # Errors
    /// `EIO` when bytes that this node has flushed do not show, and nothing says that the file was cut since.
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
            let is_cut = known.is_cut(changed, self.parts.runtime.now());
            match pause {
                Some(pause) if !is_cut || pause <= CUT_PAUSE_MS => {
                    self.parts.runtime.sleep(Duration::from_millis(pause)).await;
                }
                _ if is_cut => {
                    self.flushed_ends.lower(inode, 0);
                    return Ok((frame, parts));
                }
                _ => break,
            }
        }
        Err(not_shown(path, gaps.unit, self.flushed_ends.of(inode)))
    }
}

fn not_shown(path: &[u8], unit: UnitId, known: Option<FlushedEnd>) -> Fault {
    let message = format!(
        "read unit {} of {}: this node has flushed bytes up to {}, and its mount of the shared file system shows fewer: see to the mount",
        unit.index,
        String::from_utf8_lossy(path),
        known.map_or(0, |known| known.end)
    );
    log::error!("{message}");
    Fault::new(Errno::EIO, message)
}
