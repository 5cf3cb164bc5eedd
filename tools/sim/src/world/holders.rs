//! Counts outcomes of peer reads, and flips bits in frames of cache holders.

use super::World;
use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use std::fmt::{Display, Formatter};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tameike_core::wire::admin::counters;
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{InodeId, NodeId, Result, UnitId, View};
use tameike_fabric::{Answer, Destination, Rpc};
use tameike_io::{Frame, Payload};

/// Attempts to find a byte with a known checksum for a bit flip.
const ATTEMPTS_MAX: usize = 8;

/// Outcomes of peer reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Peer reads sent.
    pub sent: u64,
    /// The holder sent the bytes.
    pub hits: u64,
    /// The holder did not have them.
    pub misses: u64,
    /// The holder was busy.
    pub busy: u64,
    /// The holder failed or was unreachable.
    pub failed: u64,
    /// The caller cancelled the request or failed.
    pub cancelled: u64,
    /// Bits flipped in memory.
    pub flipped: u64,
    /// Flipped bits that a holder detected at a peer read.
    pub detected: u64,
}

impl Display for Counts {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { sent, hits, misses, busy, failed, cancelled, flipped, detected } = self;
        write!(
            f,
            "{sent} peer reads: {hits} sent, {misses} not held, {busy} busy, {failed} failed, {cancelled} cancelled; \
             {flipped} bits flipped in memory, {detected} of them detected at peer reads"
        )
    }
}

/// Sums of counts over any number of runs.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<Mutex<Counts>>);

impl Tally {
    /// Returns the current counts.
    pub fn counts(&self) -> Counts {
        *self.0.lock()
    }

    fn add(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.lock());
    }
}

/// Calls to other agents, with peer reads counted.
pub(super) struct CountedRpc {
    pub inner: Arc<dyn Rpc>,
    pub tally: Tally,
}

/// A pending peer read; counts as cancelled if dropped.
struct PendingRead(Option<Tally>);

impl PendingRead {
    fn ended(mut self, change: impl FnOnce(&mut Counts)) {
        if let Some(tally) = self.0.take() {
            tally.add(change);
        }
    }
}

impl Drop for PendingRead {
    fn drop(&mut self) {
        if let Some(tally) = self.0.take() {
            tally.add(|counts| counts.cancelled += 1);
        }
    }
}

impl Rpc for CountedRpc {
    fn local(&self) -> NodeId {
        self.inner.local()
    }

    fn call(
        &self,
        to: Destination,
        request: Request,
        payload: Option<Payload>,
        into: Option<Frame>,
    ) -> BoxFuture<'static, Result<Answer>> {
        let is_counted = matches!(request, Request::Client(ClientRequest::ReadHeld { .. }));
        let call = self.inner.call(to, request, payload, into);
        if !is_counted {
            return call;
        }
        self.tally.add(|counts| counts.sent += 1);
        let pending = PendingRead(Some(self.tally.clone()));
        async move {
            let answer = call.await;
            pending.ended(|counts| match answer.as_ref().map(|answer| &answer.reply) {
                Ok(Reply::Client(ClientReply::Read)) => counts.hits += 1,
                Ok(Reply::Client(ClientReply::Busy)) => counts.busy += 1,
                Ok(_) => counts.misses += 1,
                Err(_) => counts.failed += 1,
            });
            answer
        }
        .boxed()
    }
}

/// A bit flip in memory of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flip {
    view: View,
    inode: InodeId,
    at: u64,
    mask: u8,
}

impl Flip {
    /// Returns true if it hit a file.
    pub fn is_of(&self, view: View, inode: u64) -> bool {
        (self.view, self.inode.0) == (view, inode)
    }

    /// Returns the index of the byte in the result of a read at `offset`, and its value without the flip.
    pub fn reverted(&self, offset: u64, bytes: &[u8]) -> Option<(usize, u8)> {
        let index = self.at.checked_sub(offset)? as usize;
        Some((index, bytes.get(index)? ^ self.mask))
    }
}

impl World {
    /// Flips a bit in memory of a node, in bytes whose checksums are known.
    pub fn flip(&self, node: usize) {
        let flip = self.with(node, |node, _, _| {
            let of_view = |view| node.views().at_rest(view).into_iter().map(move |found| (view, found));
            let all: Vec<_> = [View::JobShared, View::Cache].into_iter().flat_map(of_view).collect();
            (0..ATTEMPTS_MAX).find_map(|_| {
                let (view, found) = all.get(self.simulation.draw(all.len().max(1) as u64) as usize)?;
                let index = self.simulation.draw(found.bytes.len() as u64) as u32;
                let mask = 1 << self.simulation.draw(8);
                let byte = found.bytes.slice(index..index + 1);
                flip_bits(&byte, mask).then(|| Flip {
                    view: *view,
                    inode: found.unit.inode,
                    at: found.unit.start() + u64::from(found.bytes.start() + index),
                    mask,
                })
            })
        });
        if let Some(flip) = flip.flatten() {
            log::info!("node {node}: a bit flips in memory: {flip:?}");
            self.tally.add(|counts| counts.flipped += 1);
            self.state.lock().sites[node].flips.push(flip);
        }
    }

    /// Returns the bit flips in memory of a node since its last start.
    pub(crate) fn flips(&self, node: usize) -> Vec<Flip> {
        self.state.lock().sites[node].flips.clone()
    }

    /// Counts the flips that a stopping node detected.
    pub(super) fn count_detected(&self, node: &tameike_agent::Node) {
        let damaged = node.views().counters().into_iter().filter(|counter| counter.name == counters::DAMAGED);
        let detected: u64 = damaged.map(|counter| counter.value).sum();
        self.tally.add(|counts| counts.detected += detected);
    }
}

/// Flips bits of a byte in memory, if its checksum can detect that. Returns whether it did.
fn flip_bits(byte: &Payload, mask: u8) -> bool {
    let set = |value: u8| {
        let memory = File::options().write(true).open("/proc/self/mem").expect("this process");
        memory.write_all_at(&[value], byte.as_ptr() as u64).expect("the frame is there");
    };
    let before = byte[0];
    set(before ^ mask);
    let is_known = byte.is_damaged();
    if !is_known {
        set(before);
    }
    is_known
}

/// The injected bug [`Canary::UncheckedSum`]: returns the frame of a node without verifying its checksums.
pub(super) fn unchecked(
    node: &tameike_agent::Node,
    frames: &tameike_io::Pool,
    request: &ClientRequest,
) -> Option<Payload> {
    let ClientRequest::ReadHeld { unit, offset, length, generation } = request else { return None };
    let view = if unit.inode.is_cached() { View::Cache } else { View::JobShared };
    let end = offset + length;
    let is_meant = |of: &UnitId, bytes: &Payload| {
        of == unit && bytes.start() <= *offset && end <= bytes.start() + bytes.len() as u32
    };
    let mut all = node.views().at_rest(view).into_iter();
    let found = all.find(|found| found.generation == *generation && is_meant(&found.unit, &found.bytes))?;
    let start = (offset - found.bytes.start()) as usize;
    let mut frame = frames.try_take()?;
    frame[..*length as usize].copy_from_slice(&found.bytes[start..start + *length as usize]);
    Some(Payload::new(Arc::new(frame), 0..*length))
}
