//! One established connection, and the messages that wait to be written to it.
//!
//! A message is written by its sender's own thread when nobody else is writing: header, body and payload in
//! one system call, straight from where they lie. What the kernel does not take, and what comes while another
//! thread writes, is queued; the writing thread, or a task that waits for room in the socket, goes on with it.
//! No lock is held during a system call.

use super::header::{HEADER_SIZE, Header, Kind};
use super::host::{LENT_MIN, Lender, Neighbour, PLACE_SIZE};
use super::link::{LINK_ROOM, Link};
use crate::fabric::Lane;
use crate::os::reactor::Watched;
use crate::os::runtime::{Resolver, Runtime, promise};
use crate::slab::Payload;
use parking_lot::Mutex;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, sendmsg, shutdown};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
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

/// What goes out behind a body.
enum Beside {
    Nothing,
    Payload(Payload),
    /// That of a lent payload.
    Place([u8; PLACE_SIZE]),
}

impl Beside {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Nothing => &[],
            Self::Payload(payload) => payload,
            Self::Place(place) => place,
        }
    }
}

/// A message to write.
pub(super) struct Outgoing {
    header: Header,
    /// The header as it is written.
    head: [u8; HEADER_SIZE],
    body: Vec<u8>,
    beside: Beside,
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
        let beside = |payload: &Payload| (payload.len() as u32, payload.sums().digest());
        let beside = payload.as_ref().map_or((0, 0), beside);
        let header = Header { grant, get, ..Header::new(kind, lane, &body, beside) };
        let beside = payload.map_or(Beside::Nothing, Beside::Payload);
        Self { head: header.encode(), header, body, beside, written: 0, done: None }
    }

    /// A message without content.
    pub(super) fn bare(kind: Kind, get: u64) -> Self {
        Self::new(kind, Lane::Reply, Vec::new(), None, (0, get))
    }

    fn size_without_payload(&self) -> usize {
        HEADER_SIZE + self.body.len()
    }

    pub(super) fn size(&self) -> usize {
        HEADER_SIZE + self.body.len() + self.beside.bytes().len()
    }

    /// What is still to be written, as three pieces of which some may be empty.
    fn slices(&self) -> [IoSlice<'_>; 3] {
        let mut skip = self.written;
        [&self.head[..], &self.body[..], self.beside.bytes()].map(|piece| {
            let from = skip.min(piece.len());
            skip -= from;
            IoSlice::new(&piece[from..])
        })
    }

    /// Lends a payload of at least so many bytes to a peer rather than send it; the loan's number.
    fn lend(&mut self, (lender, least): (&Lender, usize), to: NodeId) -> Option<u64> {
        let Beside::Payload(payload) = &self.beside else { return None };
        let place = lender.lend(to, (payload, least), &mut self.done)?;
        self.header.lent = true;
        (self.head, self.beside) = (self.header.encode(), Beside::Place(place.encode()));
        Some(place.number)
    }

    /// All of it behind `first`, and who is told when it was sent.
    pub(super) fn into_packet(self, first: &[u8]) -> (Vec<u8>, Option<Resolver<Result<()>>>) {
        ([first, &self.head, &self.body, self.beside.bytes()].concat(), self.done)
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
    pub socket: Watched<OwnedFd>,
    /// When it runs on this host.
    pub neighbour: Option<Neighbour>,
    /// When it has told where its endpoint of libfabric is.
    pub link: OnceLock<Link>,
    /// Grows whenever something is heard of the peer: bytes read, or room made by it for bytes to write.
    pub heard: AtomicU64,
    /// The reader waits for a frame of this agent, so that silence says nothing about the peer.
    pub stalled: AtomicBool,
    outbox: Mutex<Outbox>,
    runtime: Runtime,
}

impl Connection {
    pub(super) fn new(
        (peer, side): (NodeId, Side),
        socket: Watched<OwnedFd>,
        neighbour: Option<Neighbour>,
        runtime: Runtime,
    ) -> Arc<Self> {
        Arc::new(Self {
            peer,
            side,
            socket,
            neighbour,
            link: OnceLock::new(),
            heard: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
            outbox: Mutex::default(),
            runtime,
        })
    }

    /// Writes a message; ends when the kernel has all its bytes, or the peer has copied what it was lent.
    pub(super) async fn send(self: &Arc<Self>, mut message: Outgoing) -> Result<()> {
        let (resolver, promise) = promise();
        message.done = Some(resolver);
        self.post(message)?;
        promise.await
    }

    /// Writes a message that nobody waits for.
    pub(super) fn post(self: &Arc<Self>, mut message: Outgoing) -> Result<()> {
        let link = self.link.get().filter(|link| link.is_usable());
        let by_memory = self.neighbour.as_ref().map(|neighbour| (&neighbour.lender, LENT_MIN));
        // What does not fit beside the rest of a packet; beside what fits none, as much as is lent to others.
        let least = LINK_ROOM.checked_sub(message.size_without_payload()).map_or(LENT_MIN, |room| room + 1);
        let lender = by_memory.or(link.map(|link| (link.lender(), least)));
        let loan = lender.and_then(|lender| message.lend(lender, self.peer));
        let posted = match link.filter(|_| message.size() <= LINK_ROOM) {
            Some(link) => self.check().map(|()| link.send(self, message)),
            None => self.write_out(message),
        };
        if let (Err(_), Some((lender, _)), Some(loan)) = (&posted, lender, loan) {
            lender.loans.take_back(loan);
        }
        posted
    }

    fn check(&self) -> Result<()> {
        self.outbox.lock().check()
    }

    /// Writes a message to the socket.
    pub(super) fn write_out(self: &Arc<Self>, message: Outgoing) -> Result<()> {
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
        if let Some(link) = self.link.get() {
            link.close(self.peer, &fault);
        }
        // Fails only when the peer was faster.
        let _ = shutdown(self.socket.get(), Shutdown::Both);
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
