//! One established connection, and its queue of outgoing messages.
//!
//! The sender's thread writes the message unless another thread is writing: header, body and payload in one system call, without
//! copies. The queue takes what the kernel does not accept, and messages sent while another thread writes. The writing thread, or
//! a task that waits until the socket is writable, drains it. No lock is held during a system call.

use super::header::Kind;
use super::host::{EXPORT_MIN, Neighbour};
use super::link::{LINK_MESSAGE_MAX, Link};
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

/// Bound on queued messages of one connection; more are refused. Senders that wait for their messages stay far below it. It
/// bounds the memory that a peer's requests can occupy.
const QUEUE_MAX: usize = 16 << 10;
const BATCH: usize = 32;
/// Bytes after which a system call takes no further message. They are authenticated before any of them is sent.
const BATCH_BYTES: usize = 1 << 20;

/// The end that opened the connection. It decides which messages travel on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// This agent: the connection carries its requests, and the replies to them.
    Opened,
    /// The peer: the connection carries the peer's requests, and this agent's replies.
    Accepted,
}

/// The reason that a connection did not take a message.
pub(super) enum Unsent {
    /// The connection is closing in an orderly way: send the message on another one.
    Closing(Box<Outgoing>),
    Failed(Fault),
}

/// The message that was not taken, with the fault; `None` during an orderly close.
type Refused = Box<(Option<Fault>, Outgoing)>;

#[derive(Default)]
struct Outbox {
    queue: VecDeque<Outgoing>,
    /// An empty batch whose memory is reused.
    spare: VecDeque<Outgoing>,
    /// A thread is writing, or a task waits for the socket in order to write.
    busy: bool,
    /// Messages sent by libfabric instead of this socket.
    by_libfabric: u64,
    /// The last message has been queued.
    is_closing: bool,
    /// Resolves when the last message is written.
    closing: Option<Promise<Result<()>>>,
    /// The reason that the connection is closed.
    closed: Option<Fault>,
}

impl Outbox {
    /// Fails if no more messages are taken, with `None` during an orderly close.
    fn check(&self) -> Result<(), Option<Fault>> {
        match &self.closed {
            _ if self.is_closing => Err(None),
            Some(fault) => Err(Some(fault.clone())),
            None if self.queue.len() < QUEUE_MAX => Ok(()),
            None => Err(Some(Fault::new(
                Errno::EAGAIN,
                format!("the queue of one connection is full ({QUEUE_MAX} messages)"),
            ))),
        }
    }

    /// Queues a message, or returns it as a batch to write now if no thread is writing.
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

pub(super) struct Connection {
    pub peer: NodeId,
    pub side: Side,
    pub socket: Watched<OwnedFd>,
    /// Set if the peer runs on this host.
    pub neighbour: Option<Neighbour>,
    /// Set once the peer has announced its libfabric endpoint.
    pub link: OnceLock<Link>,
    /// Messages received by libfabric and handled.
    pub arrived: AtomicU64,
    /// Grows with each sign of life of the peer: bytes read, or space in the socket for writes.
    pub heard: AtomicU64,
    /// The reader waits for a frame of this agent, so that silence does not count against the peer.
    pub stalled: AtomicBool,
    /// The logical time of the last use, see `Occupancy::clock`.
    pub used: AtomicU64,
    /// Key that authenticates messages on the socket; `None` on a local socket.
    pub incoming_key: Option<[u8; 32]>,
    pub packets: Mutex<Packets>,
    outbox: Mutex<Outbox>,
    /// Authenticates messages in the order in which they are written; `None` on a local socket.
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

    /// Sends a message. Completes when the kernel has all its bytes, or when the peer has copied an exported payload.
    pub(super) async fn send(self: &Arc<Self>, mut message: Outgoing) -> Result<(), Unsent> {
        let (resolver, promise) = promise();
        message.done = Some(resolver);
        self.post(message)?;
        promise.await.map_err(Unsent::Failed)
    }

    /// Sends a message without waiting for its completion.
    pub(super) fn post(self: &Arc<Self>, mut message: Outgoing) -> Result<(), Unsent> {
        let link = self.link.get().filter(|link| link.is_usable());
        let by_memory = self.neighbour.as_ref().map(|neighbour| (&neighbour.exporter, EXPORT_MIN));
        // Payloads that do not fit in a packet with their message are exported; if no packet fits the message, those from
        // `EXPORT_MIN` on.
        let least =
            LINK_MESSAGE_MAX.checked_sub(message.size_without_payload()).map_or(EXPORT_MIN, |fits| fits + 1);
        let exporter = by_memory.or(link.map(|link| (link.exporter(), least)));
        let export = exporter.and_then(|exporter| message.export(exporter, self.peer));
        let taken = match link.filter(|_| message.size() <= LINK_MESSAGE_MAX) {
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
        if let (Some((exporter, _)), Some(export)) = (exporter, export) {
            message.cancel_export(exporter, export);
        }
        Err(refusal.map_or_else(|| Unsent::Closing(Box::new(message)), Unsent::Failed))
    }

    /// Sends a message by the link.
    pub(super) fn send_by(self: &Arc<Self>, link: &Link, message: Outgoing) {
        link.send(message, &mut self.packets.lock());
        self.ring();
    }

    /// Rings the peer's doorbell if its provider needs that to make progress.
    pub(super) fn ring(self: &Arc<Self>) {
        if self.link.get().is_some_and(Link::needs_bell) {
            // A closed connection needs no doorbell.
            let _ = self.write_out(Outgoing::bare(Kind::Bell, 0));
        }
    }

    /// Handles a knock of the peer, or the answer to one, that arrived by the link.
    pub(super) fn knocked(self: &Arc<Self>, link: &Link, kind: Kind) {
        match kind {
            Kind::Knock => self.send_by(link, Outgoing::bare(Kind::Knocked, 0)),
            _ => link.answered(),
        }
    }

    /// Counts a message that libfabric carries.
    fn count(&self) -> Result<(), Option<Fault>> {
        let mut outbox = self.outbox.lock();
        outbox.check()?;
        outbox.by_libfabric += 1;
        Ok(())
    }

    /// Queues a message for the socket, or returns it if the connection takes no more.
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

    /// Writes a batch, now or in a task that waits for the socket.
    fn begin(self: &Arc<Self>, batch: Option<VecDeque<Outgoing>>) {
        let Some(batch) = batch else { return };
        if !self.flush(batch) {
            let connection = self.clone();
            self.runtime.spawn(async move {
                loop {
                    if let Err(error) = connection.socket.writable().await {
                        connection.close(broken("cannot send", connection.peer, &error));
                    }
                    connection.heard.fetch_add(1, Ordering::Relaxed);
                    if connection.flush(VecDeque::new()) {
                        return;
                    }
                }
            });
        }
    }

    /// Sends the last message of this end; later ones use another connection. Once both ends have done so, no message is in
    /// flight here.
    pub(super) fn send_bye(self: &Arc<Self>) {
        let (resolver, promise) = promise();
        let batch = {
            let mut outbox = self.outbox.lock();
            if outbox.is_closing || outbox.closed.is_some() {
                return;
            }
            (outbox.is_closing, outbox.closing) = (true, Some(promise));
            let mut bye = Outgoing::bare(Kind::Bye, outbox.by_libfabric);
            bye.done = Some(resolver);
            outbox.take(bye)
        };
        self.begin(batch);
    }

    /// Waits until the last message is written, then signals the peer that all its messages were read.
    pub(super) async fn bye_sent(&self) -> Result<()> {
        let written = self.outbox.lock().closing.take();
        match written {
            Some(written) => written.await?,
            None => return Err(self.closed().unwrap_or_else(|| Errno::ECONNRESET.into())),
        }
        let ended = shutdown(self.socket.get(), Shutdown::Write);
        ended.map_err(|error| broken("cannot end the stream", self.peer, &error.into()))
    }

    /// True if no message waits to be written.
    pub(super) fn is_quiet(&self) -> bool {
        let by_libfabric = self.link.get().is_some_and(|link| link.is_busy());
        let outbox = self.outbox.lock();
        !outbox.busy && outbox.queue.is_empty() && !by_libfabric
    }

    /// Writes `batch`, then the queue. Called by the thread that set `busy`. False if the socket is full.
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
            let count = BATCH.saturating_sub(batch.len()).min(outbox.queue.len());
            batch.extend(outbox.queue.drain(..count));
            if batch.is_empty() {
                outbox.busy = false;
                outbox.spare = batch;
                return true;
            }
        }
    }

    /// Authenticates the messages of the next system call. Returns their number.
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

    /// Performs one system call, and removes the messages that it completed from `batch`. False if the socket is full.
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

    /// Closes the connection, unless it is closed already. Its reader ends.
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
        // Fails only if the peer has closed the connection first.
        let _ = shutdown(self.socket.get(), Shutdown::Both);
    }

    /// The reason that the connection is closed, if it is.
    pub(super) fn closed(&self) -> Option<Fault> {
        self.outbox.lock().closed.clone()
    }
}

/// The fault of a broken connection: `ETIMEDOUT` after silence, else `ECONNRESET`. Unreachable hosts count as silent, because the
/// kernel reports them for an established connection only after its time limit.
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
