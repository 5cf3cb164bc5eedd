//! Making safe what a writer has put: content first, then the entries that tell of it.

use super::LaneWriter;
use super::content_lanes::Streams;
use crate::format::geometry::LaneId;
use crate::format::record::{Kind, Payload};
use crate::index::LaneEnd;
use std::sync::Arc;
use std::thread::JoinHandle;
use tameike_core::{Fault, Result};
use tameike_io::os::process::start_thread;
use tameike_io::shared::SharedFile;

/// What a writer has written and not yet made safe.
pub struct UnsafePart(Vec<UnsafeLane>);

/// The same of a lane.
struct UnsafeLane {
    file: Arc<dyn SharedFile>,
    lane: LaneId,
    /// Address behind it.
    end: u64,
}

impl UnsafePart {
    /// Makes it safe, for [`LaneWriter::end_sync`].
    ///
    /// # Errors
    /// What the file system says.
    pub fn sync(&self) -> Result<()> {
        // Content is safe before an entry is that tells of it, which is last.
        let Some((entries, content)) = self.0.split_last() else { return Ok(()) };
        match content {
            [] => {}
            [one] => one.file.sync()?,
            _ => sync_all(content)?,
        }
        entries.file.sync()
    }
}

/// Syncs files at the same time; one after the other where the user may not have more threads.
fn sync_all(lanes: &[UnsafeLane]) -> Result<()> {
    let start = |lane: &UnsafeLane| {
        let file = lane.file.clone();
        start_thread("tameike-sync", move || file.sync()).ok()
    };
    let threads: Vec<_> = lanes.iter().map(start).collect();
    let end = |(lane, thread): (&UnsafeLane, Option<JoinHandle<Result<()>>>)| match thread {
        Some(thread) => {
            thread.join().unwrap_or_else(|_| Err(Fault::io("syncing a subfile: its thread has failed")))
        }
        None => lane.file.sync(),
    };
    let synced: Vec<_> = lanes.iter().zip(threads).map(end).collect();
    synced.into_iter().collect()
}

impl LaneWriter {
    /// Makes all that was put safe.
    ///
    /// # Errors
    /// What the file system says: then nothing is known of what was put since the last time.
    pub fn sync(&mut self) -> Result<()> {
        let unsafe_part = self.begin_sync()?;
        unsafe_part.sync()?;
        self.end_sync(&unsafe_part);
        Ok(())
    }

    /// Writes all that was put. It is safe when it was synced, which needs nothing of the writer: it may go on meanwhile.
    ///
    /// # Errors
    /// What the file system says.
    pub fn begin_sync(&mut self) -> Result<UnsafePart> {
        self.settle_streams()?;
        self.write_pending()?;
        let of = |writer: &Self| UnsafeLane {
            file: writer.subfile.file().clone(),
            lane: writer.lane,
            end: writer.address,
        };
        let written = self.content_lanes().iter().filter(|lane| lane.safe < lane.address);
        Ok(UnsafePart(written.map(of).chain([of(self)]).collect()))
    }

    /// A part was synced.
    pub fn end_sync(&mut self, part: &UnsafePart) {
        for UnsafeLane { lane, end, .. } in &part.0 {
            if let Some(writer) = self.of_lane(*lane) {
                writer.safe = writer.safe.max(*end);
            }
        }
    }

    /// Has what was written be on its way to the disk: a sync waits less then.
    pub fn start_write_back(&self) {
        self.content_lanes().iter().for_each(Self::start_write_back);
        self.subfile.file().start_write_back();
    }

    /// Makes all that was put safe, and says in its lanes that no more comes. Where they end.
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub fn finish(mut self) -> Result<Vec<LaneEnd>> {
        if self.safe < self.end() {
            self.sync()?;
        }
        // Lost with the power it is not missed: what is there is only believed less. Where it would begin a block, the next life may begin in its place.
        let end = self.end().next_multiple_of(self.superblock.geometry.block_size.into());
        self.encode(Kind::End, &[], &Payload::default());
        self.write_pending()?;
        let mut ends = self.streams.take().map_or(Ok(Vec::new()), Streams::finish)?;
        self.subfile.finish(self.lane.lane, (self.sequence >> 32) as u32)?;
        ends.push(LaneEnd { lane: self.lane, address: end, sequence: self.sequence, is_finished: true });
        Ok(ends)
    }
}
