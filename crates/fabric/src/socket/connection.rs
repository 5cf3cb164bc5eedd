//! One established connection, and the messages that wait to be written to it.
//!
//! A message is written by its sender's own thread when nobody else is writing: header, body and payload in
//! one system call, straight from where they lie. What the kernel does not take, and what comes while another
//! thread writes, is queued; the writing thread, or a task that waits for room in the socket, goes on with it.
//! No lock is held during a system call.

use super::header::Kind;
use super::host::{LENT_MIN, Neighbour};
use super::link::{LINK_ROOM, Link};
use super::outgoing::{Outgoing, PIECES};
use super::seal::{Keys, Packets, Stream};
use parking_lot::Mutex;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, sendmsg, shutdown};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_io::os::reactor::Watched;
use tameike_io::os::runtime::{Promise, Runtime, promise};

/// Messages waiting for one connection beyond which more are refused: as good as never reached by senders that
/// wait, it bounds what a peer can make this agent hold by asking.
const QUEUE_MAX: usize = 16 << 10;
/// Messages written by one system call.
const BATCH: usize = 32;
/// Bytes after which no further message is added to one system call: those that are authenticated before any is sent.
const BATCH_BYTES: usize = 1 << 20;

/// Which end opened the connection; it decides what travels on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// This agent: its requests leave here, and replies to them arrive.
    Opened,
    /// The peer: its requests arrive here, and replies to them leave.
    Accepted,
}

/// Why a connection has not taken a message.
pub(super) enum Unsent {
    /// It is being closed in good order: this is to go by another one.
    Parting(Box<Outgoing>),
    Failed(Fault),
}

/// What is not taken, and why: no fault when the connection is being closed in good order.
type Refused = Box<(Option<Fault>, Outgoing)>;

#[derive(Default)]
struct Outbox {
    queue: VecDeque<Outgoing>,
    /// Memory for a batch, empty.
    spare: VecDeque<Outgoing>,
    /// Somebody is writing, or waits for room in the socket in order to write.
    busy: bool,
    /// Messages that have gone by libfabric instead.
    by_libfabric: u64,
    /// The last message was taken.
    has_parted: bool,
    /// It was written.
    parting: Option<Promise<Result<()>>>,
    /// Why the connection is closed.
    closed: Option<Fault>,
}

impl Outbox {
    /// Why no more messages are taken: no fault when it is being closed in good order.
    fn check(&self) -> Result<(), Option<Fault>> {
        match &self.closed {
            _ if self.has_parted => Err(None),
            Some(fault) => Err(Some(fault.clone())),
            None if self.queue.len() < QUEUE_MAX => Ok(()),
            None => {
                Err(Some(Fault::new(Errno::EAGAIN, format!("{QUEUE_MAX} messages wait for one connection"))))
            }
        }
    }

    /// Queues a message; what is to be written at once, when nobody writes.
    fn take(&mut self, message: Outgoing) -> Option<VecDeque<Outgoing>> {
        if self.busy {
            self.queue.push_back(message);
            return None;
        }
        self.busy = true;
        let mut batch = std::mem::take(&mut self.spare);
        batch.push_back(message);
        Some(batch)
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
    /// Messages that have come by libfabric, and were seen to.
    pub arrived: AtomicU64,
    /// Grows whenever something is heard of the peer: bytes read, or room made by it for bytes to write.
    pub heard: AtomicU64,
    /// The reader waits for a frame of this agent, so that silence says nothing about the peer.
    pub stalled: AtomicBool,
    /// When something last travelled here, see `Crowd::turn`.
    pub used: AtomicU64,
    /// By which messages that arrive on the socket are checked; none on a local socket.
    pub incoming_key: Option<[u8; 32]>,
    pub packets: Mutex<Packets>,
    outbox: Mutex<Outbox>,
    /// Authenticates messages on the socket in the order in which they are written; none on a local socket.
    outgoing: Option<Mutex<Stream>>,
    runtime: Runtime,
}

impl Connection {
    pub(super) fn new(
        (peer, side, keys): (NodeId, Side, Keys),
        socket: Watched<OwnedFd>,
        neighbour: Option<Neighbour>,
        runtime: Runtime,
    ) -> Arc<Self> {
        let is_local = neighbour.is_some();
        Arc::new(Self {
            peer,
            side,
            socket,
            neighbour,
            link: OnceLock::new(),
            arrived: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
            used: AtomicU64::new(0),
            incoming_key: (!is_local).then_some(keys.incoming),
            packets: Mutex::new(Packets::new(keys)),
            outbox: Mutex::default(),
            outgoing: (!is_local).then(|| Mutex::new(Stream::new(keys.outgoing))),
            runtime,
        })
    }

    /// Writes a message; ends when the kernel has all its bytes, or the peer has copied what it was lent.
    pub(super) async fn send(self: &Arc<Self>, mut message: Outgoing) -> Result<(), Unsent> {
        let (resolver, promise) = promise();
        message.done = Some(resolver);
        self.post(message)?;
        promise.await.map_err(Unsent::Failed)
    }

    /// Writes a message that nobody waits for.
    pub(super) fn post(self: &Arc<Self>, mut message: Outgoing) -> Result<(), Unsent> {
        let link = self.link.get().filter(|link| link.is_usable());
        let by_memory = self.neighbour.as_ref().map(|neighbour| (&neighbour.lender, LENT_MIN));
        // What does not fit beside the rest of a packet; beside what fits none, as much as is lent to others.
        let least = LINK_ROOM.checked_sub(message.size_without_payload()).map_or(LENT_MIN, |room| room + 1);
        let lender = by_memory.or(link.map(|link| (link.lender(), least)));
        let loan = lender.and_then(|lender| message.lend(lender, self.peer));
        let taken = match link.filter(|_| message.size() <= LINK_ROOM) {
            Some(link) => match self.count() {
                Ok(()) => {
                    self.send_by(link, message);
                    Ok(())
                }
                Err(refusal) => Err(Box::new((refusal, message))),
            },
            None => self.write_out(message),
        };
        let Err(refused) = taken else { return Ok(()) };
        let (refusal, mut message) = *refused;
        if let (Some((lender, _)), Some(loan)) = (lender, loan) {
            message.take_back(lender, loan);
        }
        Err(refusal.map_or_else(|| Unsent::Parting(Box::new(message)), Unsent::Failed))
    }

    /// Sends a message by the connection's link.
    pub(super) fn send_by(self: &Arc<Self>, link: &Link, message: Outgoing) {
        link.send(message, &mut self.packets.lock());
        self.ring();
    }

    /// Has the peer make progress with what was posted on the link, if it needs that.
    pub(super) fn ring(self: &Arc<Self>) {
        if self.link.get().is_some_and(Link::needs_bell) {
            // A closed connection needs none.
            let _ = self.write_out(Outgoing::bare(Kind::Bell, 0));
        }
    }

    /// Takes a knock of the peer, or the answer to one, that came by the link.
    pub(super) fn knocked(self: &Arc<Self>, link: &Link, kind: Kind) {
        match kind {
            Kind::Knock => self.send_by(link, Outgoing::bare(Kind::Knocked, 0)),
            _ => link.answered(),
        }
    }

    /// Counts a message that goes by libfabric.
    fn count(&self) -> Result<(), Option<Fault>> {
        let mut outbox = self.outbox.lock();
        outbox.check()?;
        outbox.by_libfabric += 1;
        Ok(())
    }

    /// Writes a message to the socket; gives it back when none is taken (any more).
    pub(super) fn write_out(self: &Arc<Self>, message: Outgoing) -> Result<(), Refused> {
        let taken = {
            let mut outbox = self.outbox.lock();
            match outbox.check() {
                Ok(()) => outbox.take(message),
                Err(refusal) => return Err(Box::new((refusal, message))),
            }
        };
        self.begin(taken);
        Ok(())
    }

    /// Writes what was taken while nobody wrote.
    fn begin(self: &Arc<Self>, batch: Option<VecDeque<Outgoing>>) {
        let Some(batch) = batch else { return };
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
    }

    /// Takes the last message of this end: what is sent from now on goes by another connection. Once both ends have parted,
    /// nothing is on its way.
    pub(super) fn part(self: &Arc<Self>) {
        let (resolver, promise) = promise();
        let batch = {
            let mut outbox = self.outbox.lock();
            if outbox.has_parted || outbox.closed.is_some() {
                return;
            }
            (outbox.has_parted, outbox.parting) = (true, Some(promise));
            let mut bye = Outgoing::bare(Kind::Bye, outbox.by_libfabric);
            bye.done = Some(resolver);
            outbox.take(bye)
        };
        self.begin(batch);
    }

    /// Ends when the last message is written, and tells the peer that its own was read.
    pub(super) async fn parted(&self) -> Result<()> {
        let written = self.outbox.lock().parting.take();
        match written {
            Some(written) => written.await?,
            None => return Err(self.closed().unwrap_or_else(|| Errno::ECONNRESET.into())),
        }
        let ended = shutdown(self.socket.get(), Shutdown::Write);
        ended.map_err(|error| broken("cannot end the stream", self.peer, &error.into()))
    }

    /// Whether nothing waits to be written.
    pub(super) fn is_quiet(&self) -> bool {
        let by_libfabric = self.link.get().is_some_and(|link| link.is_busy());
        let outbox = self.outbox.lock();
        !outbox.busy && outbox.queue.is_empty() && !by_libfabric
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

    /// How many messages one system call takes, all of them authenticated.
    fn seal(&self, batch: &mut VecDeque<Outgoing>) -> usize {
        let mut stream = self.outgoing.as_ref().map(|stream| stream.lock());
        let (mut count, mut bytes) = (0, 0);
        for message in batch.iter_mut().take(BATCH) {
            if let Some(stream) = &mut stream {
                message.seal(stream);
            }
            (count, bytes) = (count + 1, bytes + message.size());
            if bytes >= BATCH_BYTES {
                break;
            }
        }
        count
    }

    /// One system call. Takes what is written whole out of `batch`; `false` when the socket is full.
    fn write(&self, batch: &mut VecDeque<Outgoing>) -> bool {
        let mut all = [IoSlice::new(&[]); PIECES * BATCH];
        let count = self.seal(batch);
        for (slices, message) in all.chunks_exact_mut(PIECES).zip(batch.iter().take(count)) {
            slices.copy_from_slice(&message.slices());
        }
        let slices = &all[..PIECES * count];
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
