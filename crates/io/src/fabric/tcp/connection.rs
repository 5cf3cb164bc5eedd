//! One established connection, and the messages that wait to be written to it.
//!
//! A message is written by its sender's own thread when nobody else is writing: header, body and payload in
//! one system call, straight from where they lie. What the kernel does not take, and what comes while another
//! thread writes, is queued; the writing thread, or a task that waits for room in the socket, goes on with it.
//! No lock is held during a system call.

use super::header::{HEADER_SIZE, Header, Kind};
use crate::fabric::Lane;
use crate::os::reactor::Watched;
use crate::os::runtime::{Resolver, Runtime, promise};
use crate::slab::Payload;
use parking_lot::Mutex;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tameike_core::{Errno, Fault, NodeId, Result};

/// Messages waiting for one connection beyond which more are refused: as good as never reached by senders that
/// wait, it bounds what a peer can make this agent hold by asking.
const QUEUE_MAX: usize = 16 << 10;
/// Messages written by one system call; each has up to three pieces.
const BATCH: usize = 32;

/// Which end opened the connection; it decides what travels on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// This agent: its requests leave here, and replies to them arrive.
    Opened,
    /// The peer: its requests arrive here, and replies to them leave.
    Accepted,
}

/// A message to write.
pub(super) struct Outgoing {
    header: [u8; HEADER_SIZE],
    body: Vec<u8>,
    payload: Option<Payload>,
    written: usize,
    done: Option<Resolver<Result<()>>>,
}

impl Outgoing {
    pub(super) fn new(
        kind: Kind,
        lane: Lane,
        body: Vec<u8>,
        payload: Option<Payload>,
        (grant, get): (u64, u64),
    ) -> Self {
        let header =
            Header { grant, get, ..Header::new(kind, lane, &body, payload.as_deref().unwrap_or(&[])) };
        Self { header: header.encode(), body, payload, written: 0, done: None }
    }

    /// A message without content.
    pub(super) fn bare(kind: Kind, get: u64) -> Self {
        Self::new(kind, Lane::Reply, Vec::new(), None, (0, get))
    }

    fn size(&self) -> usize {
        HEADER_SIZE + self.body.len() + self.payload.as_ref().map_or(0, |payload| payload.len())
    }

    /// What is still to be written, as three pieces of which some may be empty.
    fn slices(&self) -> [IoSlice<'_>; 3] {
        let mut skip = self.written;
        [&self.header[..], &self.body[..], self.payload.as_deref().unwrap_or(&[])].map(|piece| {
            let from = skip.min(piece.len());
            skip -= from;
            IoSlice::new(&piece[from..])
        })
    }

    fn finish(self, result: Result<()>) {
        if let Some(done) = self.done {
            done.resolve(result);
        }
    }
}

#[derive(Default)]
struct Outbox {
    queue: VecDeque<Outgoing>,
    /// Memory for a batch, empty.
    spare: VecDeque<Outgoing>,
    /// Somebody is writing, or waits for room in the socket in order to write.
    busy: bool,
    /// Why the connection is closed.
    closed: Option<Fault>,
}

impl Outbox {
    fn check(&self) -> Result<()> {
        match &self.closed {
            Some(fault) => Err(fault.clone()),
            None if self.queue.len() < QUEUE_MAX => Ok(()),
            None => Err(Fault::new(Errno::EAGAIN, format!("{QUEUE_MAX} messages wait for one connection"))),
        }
    }
}

/// An established connection.
pub(super) struct Connection {
    pub peer: NodeId,
    pub side: Side,
    pub socket: Watched<TcpStream>,
    /// Grows whenever something is heard of the peer: bytes read, or room made by it for bytes to write.
    pub heard: AtomicU64,
    /// The reader waits for a frame of this agent, so that silence says nothing about the peer.
    pub stalled: AtomicBool,
    outbox: Mutex<Outbox>,
    runtime: Runtime,
}

impl Connection {
    pub(super) fn new(peer: NodeId, side: Side, socket: Watched<TcpStream>, runtime: Runtime) -> Arc<Self> {
        Arc::new(Self {
            peer,
            side,
            socket,
            heard: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
            outbox: Mutex::default(),
            runtime,
        })
    }

    /// Writes a message; ends when the kernel has all its bytes.
    pub(super) async fn send(self: &Arc<Self>, mut message: Outgoing) -> Result<()> {
        let (resolver, promise) = promise();
        message.done = Some(resolver);
        self.post(message)?;
        promise.await
    }

    /// Writes a message that nobody waits for.
    pub(super) fn post(self: &Arc<Self>, message: Outgoing) -> Result<()> {
        let mut batch = {
            let mut outbox = self.outbox.lock();
            outbox.check()?;
            if outbox.busy {
                outbox.queue.push_back(message);
                return Ok(());
            }
            outbox.busy = true;
            std::mem::take(&mut outbox.spare)
        };
        batch.push_back(message);
        if !self.flush(batch) {
            let connection = self.clone();
            self.runtime.spawn(async move {
                loop {
                    connection.socket.writable().await;
                    connection.heard.fetch_add(1, Ordering::Relaxed);
                    if connection.flush(VecDeque::new()) {
                        return;
                    }
                }
            });
        }
        Ok(())
    }

    /// Writes `batch`, and then what is queued, as the one who is busy. `false` when the socket is full.
    fn flush(&self, mut batch: VecDeque<Outgoing>) -> bool {
        loop {
            let full = !batch.is_empty() && !self.write(&mut batch);
            let mut outbox = self.outbox.lock();
            if let Some(fault) = outbox.closed.clone() {
                drop(outbox);
                batch.into_iter().for_each(|message| message.finish(Err(fault.clone())));
                return true;
            }
            if full {
                while let Some(message) = batch.pop_back() {
                    outbox.queue.push_front(message);
                }
                return false;
            }
            let room = BATCH.saturating_sub(batch.len()).min(outbox.queue.len());
            batch.extend(outbox.queue.drain(..room));
            if batch.is_empty() {
                outbox.busy = false;
                outbox.spare = batch;
                return true;
            }
        }
    }

    /// One system call. Takes what is written whole out of `batch`; `false` when the socket is full.
    fn write(&self, batch: &mut VecDeque<Outgoing>) -> bool {
        let mut all = [IoSlice::new(&[]); 3 * BATCH];
        for (slices, message) in all.chunks_exact_mut(3).zip(&*batch) {
            slices.copy_from_slice(&message.slices());
        }
        let slices = &all[..3 * batch.len().min(BATCH)];
        let mut control = SendAncillaryBuffer::default();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut written = match sendmsg(self.socket.get(), slices, &mut control, flags) {
            Ok(written) => written,
            Err(rustix::io::Errno::INTR) => return true,
            Err(rustix::io::Errno::AGAIN) => return false,
            Err(error) => {
                self.close(broken("cannot send", self.peer, &error.into()));
                return true;
            }
        };
        while let Some(first) = batch.front_mut() {
            let left = first.size() - first.written;
            if written < left {
                first.written += written;
                break;
            }
            written -= left;
            if let Some(first) = batch.pop_front() {
                first.finish(Ok(()));
            }
        }
        true
    }

    /// Closes the connection, unless that is done already; its reader ends.
    pub(super) fn close(&self, fault: Fault) {
        let queue = {
            let mut outbox = self.outbox.lock();
            if outbox.closed.is_some() {
                return;
            }
            outbox.closed = Some(fault.clone());
            std::mem::take(&mut outbox.queue)
        };
        queue.into_iter().for_each(|message| message.finish(Err(fault.clone())));
        // Fails only when the peer was faster.
        let _ = self.socket.get().shutdown(Shutdown::Both);
    }

    /// Why the connection is closed, if it is.
    pub(super) fn closed(&self) -> Option<Fault> {
        self.outbox.lock().closed.clone()
    }
}

/// The fault of a connection that broke: `ETIMEDOUT` when nothing was heard, else `ECONNRESET`. That no way leads
/// to the peer is what the kernel says of an established connection only after its time limit.
pub(super) fn broken(doing: &str, peer: NodeId, error: &std::io::Error) -> Fault {
    let silent = matches!(
        error.kind(),
        ErrorKind::TimedOut
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
    );
    let errno = if silent { Errno::ETIMEDOUT } else { Errno::ECONNRESET };
    Fault::new(errno, format!("{doing} to or from {peer}: {error}"))
}
