//! The task that reads the messages of one connection.
//!
//! It reads payloads from the socket directly into their frame: one of the receive pool of the lane, the granted frame of a put,
//! or the frame of a get. It copies exported payloads of peers on this host into that frame. While the pool is empty the task
//! does not read, which in the end blocks the sender. Damaged messages end the connection with their reason.

use super::Inner;
use super::connection::{Connection, broken};
use super::header::{HEADER_SIZE, Header, Kind};
use super::host::{LOCATION_SIZE, Location};
use super::input::Input;
use super::outgoing::Outgoing;
use crate::grant::PendingGet;
use crate::{Incoming, Lane};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tameike_core::{Errno, Fault, Result};
use tameike_io::crc32c;
use tameike_io::slab::{BlockSums, Frame, Payload};

/// Bytes of a payload that are read and hashed at a time.
const PIECE_SIZE: usize = 128 << 10;
/// Interval of checks for messages that libfabric still carries.
const PACKETS_PAUSE: Duration = Duration::from_millis(1);

/// Reads until the peer closes the connection in an orderly way; any other end is an error.
pub(super) async fn read_all(fabric: &Arc<Inner>, connection: &Arc<Connection>) -> Result<()> {
    let mut reader = Reader { fabric, connection, input: Input::new(connection) };
    while reader.read_message().await? != Kind::Bye {
        fabric.used(connection);
    }
    Ok(())
}

/// Waits until the peer ends its side of the stream, after its last message. More data is an error.
pub(super) async fn read_end(connection: &Connection) -> Result<()> {
    match connection.socket.read(&mut [0], &mut []).await {
        Ok(0) => Ok(()),
        Ok(_) => {
            let why = format!("{} sent data after its last message", connection.peer);
            Err(Fault::new(Errno::ECONNRESET, why))
        }
        Err(error) => Err(broken("cannot receive", connection.peer, &error)),
    }
}

/// Reads the message of a packet that libfabric delivered.
pub(super) async fn read_packet(fabric: Arc<Inner>, connection: Arc<Connection>, packet: Vec<u8>) {
    let mut reader =
        Reader { fabric: &fabric, connection: &connection, input: Input::of_packet(&connection, packet) };
    match reader.read_message().await {
        Ok(Kind::Knock | Kind::Knocked) => {}
        Ok(_) => drop(connection.arrived.fetch_add(1, Ordering::Release)),
        Err(fault) => connection.close(fault),
    }
}

struct Reader<'a> {
    fabric: &'a Arc<Inner>,
    connection: &'a Arc<Connection>,
    input: Input<'a>,
}

impl Reader<'_> {
    async fn read_message(&mut self) -> Result<Kind> {
        let mut bytes = [0; HEADER_SIZE];
        self.input.read(&mut bytes).await?;
        let header = Header::decode(&bytes).map_err(|why| self.damaged(&why))?;
        let mut body = vec![0; header.body_length as usize];
        self.input.read(&mut body).await?;
        if !self.input.proves_head(&bytes, &body).await? {
            return Err(self.damaged("a message is not authentic"));
        }
        if crc32c(&body) != header.body_checksum {
            return Err(self.damaged("a message is damaged"));
        }
        match header.kind {
            Kind::Message => self.message(&header, body).await?,
            Kind::Put => self.put(&header, body).await?,
            Kind::Get => self.get(&header, &body).await?,
            Kind::GetReply | Kind::Refused => self.got(&header).await?,
            Kind::Ping => {
                self.fabric.post_reply(self.connection.peer, Outgoing::bare(Kind::Pong, 0));
                self.skip(&header).await?;
            }
            Kind::Pong => self.skip(&header).await?,
            Kind::Bye => {
                self.await_packets(header.get).await?;
                self.skip(&header).await?;
            }
            Kind::Endpoint => {
                self.fabric.take_endpoint(self.connection, &body);
                self.skip(&header).await?;
            }
            Kind::Knock | Kind::Knocked => {
                if let Some(link) = self.connection.link.get().filter(|_| self.input.is_packet) {
                    self.connection.knocked(link, header.kind);
                }
                self.skip(&header).await?;
            }
            Kind::Bell => {
                self.fabric.on_doorbell();
                self.skip(&header).await?;
            }
            Kind::Copied => {
                self.fabric.exports.copied(header.get, self.connection.peer);
                self.skip(&header).await?;
            }
        }
        Ok(header.kind)
    }

    /// Waits until `count` messages have arrived by libfabric: those that the peer sent there before its last message here.
    async fn await_packets(&self, count: u64) -> Result<()> {
        let (runtime, limit) = (&self.fabric.runtime, self.fabric.config.peer_limit);
        let deadline = runtime.clock.monotonic() + limit;
        while self.connection.arrived.load(Ordering::Acquire) < count {
            if runtime.clock.monotonic() > deadline || self.connection.closed().is_some() {
                return Err(self.damaged("messages sent by libfabric did not arrive"));
            }
            self.fabric.on_doorbell();
            runtime.sleep(PACKETS_PAUSE).await;
        }
        Ok(())
    }

    async fn message(&mut self, header: &Header, body: Vec<u8>) -> Result<()> {
        let payload = match header.payload_length {
            0 => None,
            length => {
                let frame = self.frame(header.lane).await;
                let (frame, sums) = self.payload(header, frame).await;
                Some(Payload::new(Arc::new(frame), 0..length).with_sums(sums?))
            }
        };
        self.deliver(header.lane, body, payload);
        Ok(())
    }

    /// Takes a frame of the pool of this lane, and waits for one if necessary.
    async fn frame(&self, lane: Lane) -> Frame {
        let pool = match lane {
            Lane::Request => &self.fabric.config.request_frames,
            Lane::Reply => &self.fabric.config.reply_frames,
        };
        if let Some(frame) = pool.try_take() {
            return frame;
        }
        if self.input.is_packet {
            // A packet that waits for a frame does not block other packets.
            return pool.take().await;
        }
        self.connection.stalled.store(true, Ordering::Relaxed);
        let frame = pool.take().await;
        self.connection.stalled.store(false, Ordering::Relaxed);
        frame
    }

    async fn put(&mut self, header: &Header, body: Vec<u8>) -> Result<()> {
        let Some(frame) = self.fabric.grants.begin_fill(header.grant) else {
            return self.skip(header).await;
        };
        let (mut frame, filled) = self.payload(header, frame).await;
        let filled = filled.map(|sums| frame.keep_sums(header.payload_length, sums));
        let active = self.fabric.grants.end_fill(header.grant, frame);
        filled?;
        if active {
            self.deliver(header.lane, body, None);
        }
        Ok(())
    }

    async fn get(&mut self, header: &Header, body: &[u8]) -> Result<()> {
        let Ok(length) = <[u8; 4]>::try_from(body).map(u32::from_le_bytes) else {
            return Err(self.damaged("a get without a length arrived"));
        };
        self.skip(header).await?;
        let answer = match self.fabric.grants.readable(header.grant, length) {
            Some(payload) => {
                Outgoing::new(Kind::GetReply, Lane::Reply, Vec::new(), Some(payload), (0, header.get))
            }
            None => Outgoing::bare(Kind::Refused, header.get),
        };
        self.fabric.post_reply(self.connection.peer, answer);
        Ok(())
    }

    async fn got(&mut self, header: &Header) -> Result<()> {
        let Some(PendingGet { frame, length, resolver, .. }) =
            self.fabric.grants.take_get(header.get, self.connection.peer)
        else {
            return self.skip(header).await;
        };
        let (frame, read) = if header.kind == Kind::GetReply && header.payload_length == length {
            let (frame, sums) = self.payload(header, frame).await;
            (frame, sums.map(drop))
        } else {
            (frame, self.skip(header).await)
        };
        let result = match (&read, header.kind) {
            (Err(fault), _) => Err(fault.clone()),
            (Ok(()), Kind::GetReply) if header.payload_length == length => Ok(()),
            (Ok(()), _) => {
                let why =
                    format!("{} does not grant these bytes, or has revoked the grant", self.connection.peer);
                Err(Fault::new(Errno::ESTALE, why))
            }
        };
        resolver.resolve((frame, result));
        read
    }

    /// Reads the payload into the start of `frame` and verifies it. Returns the checksums of its blocks.
    async fn payload(&mut self, header: &Header, frame: Frame) -> (Frame, Result<BlockSums>) {
        let length = header.payload_length as usize;
        let (frame, read) = match header.exported {
            true => self.copy(frame, length).await,
            false => {
                let mut frame = frame;
                let read = self.read_beside(&mut frame[..length]).await;
                (frame, read)
            }
        };
        let sums = read.and_then(|()| {
            let sums = BlockSums::of(&frame[..length]);
            match sums.digest() == header.payload_digest {
                true => Ok(sums),
                false => Err(self.damaged("a payload is damaged")),
            }
        });
        (frame, sums)
    }

    /// Reads a payload, and hashes each piece while it is in the processor's cache and the next ones arrive.
    async fn read_beside(&mut self, target: &mut [u8]) -> Result<()> {
        let last = target.len().saturating_sub(1) / PIECE_SIZE * PIECE_SIZE;
        let (pieces, last) = target.split_at_mut(last);
        for piece in pieces.chunks_mut(PIECE_SIZE) {
            self.input.read(piece).await?;
            self.input.hash(piece);
        }
        self.input.read(last).await?;
        self.prove_beside(last).await
    }

    /// Copies an exported payload of `length` bytes.
    async fn copy(&mut self, mut frame: Frame, length: usize) -> (Frame, Result<()>) {
        let location = match self.location().await {
            Ok(location) => location,
            Err(fault) => return (frame, Err(fault)),
        };
        let (frame, copied) = match (&self.connection.neighbour, self.connection.link.get()) {
            (Some(neighbour), _) => {
                let copied =
                    neighbour.copy(location, &mut frame[..length]).map_err(|error| error.to_string());
                (frame, copied)
            }
            (None, Some(link)) => {
                let reading = link.read(location, frame, length as u32);
                self.connection.ring();
                let (frame, read) = reading.await;
                (frame, read.map_err(|fault| fault.to_string()))
            }
            (None, None) => (frame, Err("this connection exports no payloads".to_owned())),
        };
        if let Err(why) = copied {
            return (frame, Err(self.damaged(&format!("an exported payload cannot be read ({why})"))));
        }
        self.report_copied(location);
        self.input.count(length).await;
        (frame, Ok(()))
    }

    async fn location(&mut self) -> Result<Location> {
        let mut location = [0; LOCATION_SIZE];
        self.input.read(&mut location).await?;
        self.prove_beside(&location).await?;
        Ok(Location::decode(location))
    }

    /// Verifies the last piece of what follows the body. An empty one has no tag.
    async fn prove_beside(&mut self, piece: &[u8]) -> Result<()> {
        if piece.is_empty() {
            return Ok(());
        }
        match self.input.proves_beside(piece).await? {
            true => Ok(()),
            false => Err(self.damaged("a payload is not authentic")),
        }
    }

    /// Sent on the connection for replies, which is never blocked: a request may wait for the frame of a reply.
    fn report_copied(&self, location: Location) {
        self.fabric.post_reply(self.connection.peer, Outgoing::bare(Kind::Copied, location.number));
    }

    async fn skip(&mut self, header: &Header) -> Result<()> {
        if header.exported {
            let location = self.location().await?;
            self.report_copied(location);
            return Ok(());
        }
        let mut waste = [0; 4096];
        let mut left = header.payload_length as usize;
        while left > 0 {
            let piece = left.min(waste.len());
            self.input.read(&mut waste[..piece]).await?;
            left -= piece;
            if left == 0 {
                return self.prove_beside(&waste[..piece]).await;
            }
            self.input.hash(&waste[..piece]);
        }
        Ok(())
    }

    fn deliver(&self, lane: Lane, body: Vec<u8>, payload: Option<Payload>) {
        if let Some(receiver) = self.fabric.receiver.get() {
            receiver.message(Incoming { from: self.connection.peer, lane, body, payload });
        }
    }

    fn damaged(&self, what: &str) -> Fault {
        let why = format!("{what} on the connection with {}, which is closed", self.connection.peer);
        log::error!("{why}");
        Fault::new(Errno::ECONNRESET, why)
    }
}
