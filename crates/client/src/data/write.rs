//! Write-behind: writes gather in frames; the client sends them to the units' homes when a unit is full, when frames run out, and at a
//! flush.

use super::file::FileData;
use super::file::UnitFrame;
use super::frames::FrameCache;
use super::home::Home;
use super::homes::HomeClient;
use super::split;
use crate::replies::unexpected_reply;
use crate::types::WriteBytes;
use event_listener::listener;
use futures_util::{FutureExt, StreamExt, stream};
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::{FILE_SIZE_MAX, INLINE_SIZE_MAX, UNIT_SIZE};
use tameike_core::ranges::RangeSet;
use tameike_core::wire::meta::{Command, MetaReply, MetaRequest};
use tameike_core::wire::unit::{SPACE_ATTEMPTS_MAX, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Generation, HomeId, Result, UnitId};
use tameike_io::{Frame, Payload};

/// Pieces of one unit that may be in flight at the same time.
const WRITES_AT_ONCE: usize = 16;
/// Largest piece of a unit that is copied into a shared message, in bytes: below it, a separate message costs more than the copy.
const GATHERED_MAX: usize = 128 << 10;

/// Writes into frames, and sends frames to the units' homes.
pub(super) struct Writer {
    homes: Arc<HomeClient>,
    frames: Arc<FrameCache>,
}

impl Writer {
    pub(super) fn new(homes: Arc<HomeClient>, frames: Arc<FrameCache>) -> Self {
        Self { homes, frames }
    }

    /// Returns a frame, evicting a clean unit if necessary; if all are dirty, it sends some.
    pub(super) async fn take_frame(self: &Arc<Self>) -> Frame {
        self.frames.take(|| self.frames.send_first(|file, index| self.send_unit(file, index))).await
    }

    pub(super) async fn write(
        self: &Arc<Self>,
        file: &Arc<FileData>,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        self.write_counted(file, offset, &data, &mut 0).await
    }

    pub(super) fn write_now(
        self: &Arc<Self>,
        file: &Arc<FileData>,
        offset: u64,
        data: &dyn WriteBytes,
    ) -> Result<usize> {
        let mut written = 0;
        // A call that is dropped while it waits for a frame has written whole pieces and holds no resources.
        self.write_counted(file, offset, data, &mut written).now_or_never().transpose()?;
        Ok(written)
    }

    async fn write_counted(
        self: &Arc<Self>,
        file: &Arc<FileData>,
        offset: u64,
        data: &dyn WriteBytes,
        written: &mut usize,
    ) -> Result<()> {
        if offset.checked_add(data.size() as u64).is_none_or(|end| end > FILE_SIZE_MAX) {
            return Err(Errno::EFBIG.into());
        }
        for (index, start, count) in split(offset, data.size() as u64) {
            if count as usize == UNIT_SIZE
                && count as usize == data.size()
                && let Some(frame) = data.take_frame()
            {
                self.write_frame(file, index, frame);
                *written = UNIT_SIZE;
                break;
            }
            let copy = |into: &mut [u8]| data.copy_to(*written, into);
            self.write_piece(file, index, start..start + count, &copy).await;
            *written += count as usize;
        }
        Ok(())
    }

    async fn write_piece(
        self: &Arc<Self>,
        file: &Arc<FileData>,
        index: u64,
        range: Range<u32>,
        copy: &(impl Fn(&mut [u8]) + Sync),
    ) {
        self.send_scattered(file, index).await;
        let mut spare = self.frames.try_take();
        let enter = |unit: &mut UnitFrame| self.frames.enter(file, unit, index);
        while !file.put_bytes((index, &range), self.homes.runtime.now(), copy, &mut spare, enter) {
            spare = Some(self.take_frame().await);
        }
        drop(spare);
        if file.is_unit_dirty(index) {
            self.send_unit(file, index);
        }
    }

    /// Writes a whole unit as `frame`, which the unit takes over. The unit is one piece then, so no earlier piece must be sent first.
    fn write_frame(self: &Arc<Self>, file: &Arc<FileData>, index: u64, frame: Frame) {
        file.put_frame(index, frame, self.homes.runtime.now(), |unit| self.frames.enter(file, unit, index));
        self.send_unit(file, index);
    }

    /// Sends a unit whose dirty bytes are in many pieces, after its sends in flight. This bounds the memory and messages that the pieces
    /// take.
    async fn send_scattered(self: &Arc<Self>, file: &Arc<FileData>, index: u64) {
        while file.is_unit_scattered(index) {
            listener!(file.changed() => ended);
            if self.send_unit(file, index) || !file.is_unit_scattered(index) {
                return;
            }
            ended.await;
        }
    }

    /// Starts sending a unit's dirty bytes, unless some are in flight (the fabric does not preserve order) or the file may still stay
    /// inline. Returns true if it started.
    pub(super) fn send_unit(self: &Arc<Self>, file: &Arc<FileData>, index: u64) -> bool {
        let Some(parts) = file.begin_send(index) else { return false };
        let (writer, file) = (self.clone(), file.clone());
        self.homes.runtime.spawn(async move {
            let sent = writer.send_parts(&file, index, parts).await;
            file.end_send(index, sent, || writer.frames.is_wanted());
            writer.frames.freed();
        });
        true
    }

    async fn send_parts(
        self: &Arc<Self>,
        file: &Arc<FileData>,
        index: u64,
        parts: Vec<Payload>,
    ) -> Result<()> {
        if index == 0 && file.is_inline() {
            let end = parts.iter().map(|part| part.start() as usize + part.len()).max().unwrap_or(0);
            if end <= INLINE_SIZE_MAX && self.write_inline(file, &parts).await? {
                return Ok(());
            }
        }
        self.leave_inline(file).await?;
        let unit = UnitId { inode: file.inode, index };
        let home = self.homes.of_unit(file, index);
        self.write_unit(file, unit, home, parts).await
    }

    async fn write_unit(
        &self,
        file: &FileData,
        unit: UnitId,
        home: HomeId,
        parts: Vec<Payload>,
    ) -> Result<()> {
        let generation = file.begin_unit_write(home);
        let writes = stream::iter(self.gathered(parts))
            .map(|message| self.write_message(home, unit, generation, message));
        // Wait for all pieces, even after a failure: bytes still in flight must not overwrite newer ones.
        let written: Vec<_> = writes.buffer_unordered(WRITES_AT_ONCE).collect().await;
        written.into_iter().collect()
    }

    /// Sends one message with bytes of a unit. If the home of a cached file is full, the bytes wait in this node's frames until the home
    /// has flushed some files.
    async fn write_message(
        &self,
        home: HomeId,
        unit: UnitId,
        generation: Generation,
        (ranges, payload): (RangeSet, Payload),
    ) -> Result<()> {
        let request = Request::Unit(UnitRequest::Write { unit, ranges, generation });
        let mut attempt = 0;
        loop {
            let written = self.homes.call(home, request.clone(), Some(payload.clone()), None).await;
            let is_full = written.as_ref().is_err_and(|fault| fault.errno == Errno::ENOSPC);
            if !is_full || !unit.inode.is_cached() || attempt == SPACE_ATTEMPTS_MAX {
                return written.map(drop);
            }
            self.homes.ask(home, Request::Unit(UnitRequest::WaitForSpace { attempt })).await?;
            attempt += 1;
        }
    }

    /// Groups the pieces of a unit into messages: small pieces are copied one after another into a frame, if one is free.
    fn gathered(&self, parts: Vec<Payload>) -> Vec<(RangeSet, Payload)> {
        let range = |part: &Payload| part.start()..part.start() + part.len() as u32;
        let alone = |part: Payload| (range(&part).into(), part);
        let (small, large): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| part.len() <= GATHERED_MAX);
        let mut messages: Vec<_> = large.into_iter().map(alone).collect();
        let frame = if small.len() > 1 { self.frames.try_take() } else { None };
        let Some(mut frame) = frame else {
            messages.extend(small.into_iter().map(alone));
            return messages;
        };
        let mut end = 0;
        for part in &small {
            frame[end..end + part.len()].copy_from_slice(part);
            end += part.len();
        }
        let ranges = small.iter().map(range).collect();
        messages.push((ranges, Payload::new(Arc::new(frame), 0..end as u32)));
        messages
    }

    /// Writes into the inode record; returns `false` if the content has moved to a unit.
    async fn write_inline(&self, file: &FileData, parts: &[Payload]) -> Result<bool> {
        let to = self.homes.cluster().inode_home(file.inode);
        for part in parts {
            let command = Command::WriteInline {
                inode: file.inode,
                offset: part.start(),
                data: part.to_vec(),
                now: self.homes.runtime.now(),
            };
            match self.homes.ask(to, Request::Meta(MetaRequest::Execute(command))).await {
                Ok(answer) => wrote_inline(file, answer.reply)?,
                Err(fault) if fault.errno == Errno::EFBIG => return Ok(false),
                Err(fault) => return Err(fault),
            }
        }
        Ok(true)
    }

    /// Has the home move inline content to a unit, so that the file can grow.
    pub(super) async fn leave_inline(&self, file: &FileData) -> Result<()> {
        if !file.is_inline() || !matches!(file.home(), Home::Inode) {
            return Ok(());
        }
        let request = Request::Meta(MetaRequest::Spill { inode: file.inode });
        self.homes.ask(self.homes.cluster().inode_home(file.inode), request).await?;
        file.left_inline();
        Ok(())
    }
}

fn wrote_inline(file: &FileData, reply: Reply) -> Result<()> {
    let Reply::Meta(MetaReply::Node(node)) = reply else { return Err(unexpected_reply(&reply)) };
    file.own_change(node.attr.generation, node.attr.inline);
    file.learn_attr(Some(node.attr));
    Ok(())
}
