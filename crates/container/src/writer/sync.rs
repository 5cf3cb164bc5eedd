//! Durability of a writer's records: content first, then the entries that reference it.

use super::LaneWriter;
use super::content_lanes::ContentLanes;
use crate::format::geometry::LaneId;
use crate::format::record::{Kind, Payload};
use crate::index::LaneEnd;
use std::sync::Arc;
use std::thread::JoinHandle;
use tameike_core::{Fault, Result};
use tameike_io::os::process::start_thread;
use tameike_io::shared::SharedFile;

/// Records that a writer has written and not synced.
pub struct UnsyncedRecords(Vec<UnsyncedLane>);

/// Unsynced records of a lane.
struct UnsyncedLane {
    file: Arc<dyn SharedFile>,
    lane: LaneId,
    /// End address.
    end: u64,
}

impl UnsyncedRecords {
    /// Makes the records durable, for [`LaneWriter::end_sync`].
    pub fn sync(&self) -> Result<()> {
        // Content must be durable before the entries, which are last.
        let Some((entries, content)) = self.0.split_last() else { return Ok(()) };
        match content {
            [] => {}
            [one] => one.file.sync()?,
            _ => sync_all(content)?,
        }
        entries.file.sync()
    }
}

/// Syncs files in parallel, or one after the other if threads cannot be started.
fn sync_all(lanes: &[UnsyncedLane]) -> Result<()> {
    let start = |lane: &UnsyncedLane| {
        let file = lane.file.clone();
        start_thread("tameike-sync", move || file.sync()).ok()
    };
    let threads: Vec<_> = lanes.iter().map(start).collect();
    let end = |(lane, thread): (&UnsyncedLane, Option<JoinHandle<Result<()>>>)| match thread {
        Some(thread) => {
            thread.join().unwrap_or_else(|_| Err(Fault::io("cannot sync a subfile: the thread panicked")))
        }
        None => lane.file.sync(),
    };
    let synced: Vec<_> = lanes.iter().zip(threads).map(end).collect();
    synced.into_iter().collect()
}

impl LaneWriter {
    /// Makes everything that was put durable. If that fails, records that were put since the last sync may be lost.
    pub fn sync(&mut self) -> Result<()> {
        let unsynced = self.begin_sync()?;
        unsynced.sync()?;
        self.end_sync(&unsynced);
        Ok(())
    }

    /// Writes everything that was put. The returned part can be synced without the writer, which may continue meanwhile.
    pub fn begin_sync(&mut self) -> Result<UnsyncedRecords> {
        self.settle_streams()?;
        self.write_pending()?;
        let of = |writer: &Self| UnsyncedLane {
            file: writer.subfile.file().clone(),
            lane: writer.lane,
            end: writer.address,
        };
        let written = self.content_lanes().iter().filter(|lane| lane.durable_end < lane.address);
        Ok(UnsyncedRecords(written.map(of).chain([of(self)]).collect()))
    }

    /// Records that a part was synced.
    pub fn end_sync(&mut self, part: &UnsyncedRecords) {
        for UnsyncedLane { lane, end, .. } in &part.0 {
            if let Some(writer) = self.of_lane(*lane) {
                writer.durable_end = writer.durable_end.max(*end);
            }
        }
    }

    /// Starts writeback of what was written, so that a later sync is shorter.
    pub fn start_write_back(&self) {
        self.content_lanes().iter().for_each(Self::start_write_back);
        self.subfile.file().start_write_back();
    }

    /// Makes everything durable, and marks the lanes as finished. Returns their ends.
    pub fn finish(mut self) -> Result<Vec<LaneEnd>> {
        if self.durable_end < self.end() {
            self.sync()?;
        }
        // The `End` record need not be synced: without it, readers only verify more. If it would begin a block, the next incarnation may begin at
        // the same address.
        let end = self.end().next_multiple_of(self.superblock.geometry.block_size.into());
        self.encode(Kind::End, &[], &Payload::default());
        self.write_pending()?;
        let mut ends = self.content_lanes.take().map_or(Ok(Vec::new()), ContentLanes::finish)?;
        self.subfile.finish(self.lane.lane, (self.sequence >> 32) as u32)?;
        ends.push(LaneEnd { lane: self.lane, address: end, sequence: self.sequence, is_finished: true });
        Ok(ends)
    }
}
