//! Buffered input of a connection, and the verification of its tags.

use super::connection::{Connection, broken};
use super::seal::{Message, PACKET_HEAD, Stream, TAG_SIZE};
use std::sync::atomic::Ordering;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::runtime::yield_now;

const BUFFER_SIZE: usize = 16 << 10;
/// Bytes after which a busy connection yields to other tasks.
const YIELD_AFTER: usize = 4 << 20;

/// The stream of a connection, with a small buffer so that a system call reads many small messages.
pub(super) struct Input<'a> {
    connection: &'a Connection,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    turn: usize,
    /// The input is an authenticated packet of libfabric, complete in the buffer.
    pub(super) is_packet: bool,
    /// Verifies a TCP stream.
    stream: Option<Stream>,
    message: Option<Message>,
}

impl<'a> Input<'a> {
    pub(super) fn new(connection: &'a Connection) -> Self {
        let buffer = vec![0; BUFFER_SIZE].into();
        let stream = connection.incoming_key.map(Stream::new);
        Self { connection, buffer, start: 0, end: 0, turn: 0, is_packet: false, stream, message: None }
    }

    pub(super) fn of_packet(connection: &'a Connection, packet: Vec<u8>) -> Self {
        let (start, end) = (PACKET_HEAD, packet.len());
        let (stream, message) = (None, None);
        Self { connection, buffer: packet.into(), start, end, turn: 0, is_packet: true, stream, message }
    }

    /// Reads the next tag. True if it matches this header and body.
    pub(super) async fn proves_head(&mut self, head: &[u8], body: &[u8]) -> Result<bool> {
        if let Some(stream) = &mut self.stream {
            let mut message = stream.message();
            message.update(head);
            self.message = Some(message);
        }
        self.proves_beside(body).await
    }

    /// Reads the next tag. True if it matches the message up to this piece.
    pub(super) async fn proves_beside(&mut self, piece: &[u8]) -> Result<bool> {
        let Some(mut message) = self.message.take() else { return Ok(true) };
        message.update(piece);
        let mut tag = [0; TAG_SIZE];
        self.read(&mut tag).await?;
        let is_proven = message.is(&tag);
        self.message = Some(message);
        Ok(is_proven)
    }

    /// Adds a piece of the message that is not followed by a tag.
    pub(super) fn hash(&mut self, piece: &[u8]) {
        if let Some(message) = &mut self.message {
            message.update(piece);
        }
    }

    /// Fills `target`. The same system call reads further bytes of the socket into the buffer.
    pub(super) async fn read(&mut self, target: &mut [u8]) -> Result<()> {
        let mut filled = target.len().min(self.end - self.start);
        target[..filled].copy_from_slice(&self.buffer[self.start..self.start + filled]);
        self.start += filled;
        if self.is_packet && filled < target.len() {
            let why = format!("a packet of {} is shorter than its header states", self.connection.peer);
            return Err(Fault::new(Errno::ECONNRESET, why));
        }
        while filled < target.len() {
            let rest = &mut target[filled..];
            let wanted = rest.len();
            let count = match self.connection.socket.read(rest, &mut self.buffer).await {
                Ok(0) => {
                    let why = format!("{} has closed the connection", self.connection.peer);
                    return Err(Fault::new(Errno::ECONNRESET, why));
                }
                Ok(count) => count,
                Err(error) => return Err(broken("cannot receive", self.connection.peer, &error)),
            };
            self.connection.heard.fetch_add(1, Ordering::Relaxed);
            filled += count.min(wanted);
            (self.start, self.end) = (0, count.saturating_sub(wanted));
            self.count(count).await;
        }
        Ok(())
    }

    /// Counts bytes received.
    pub(super) async fn count(&mut self, bytes: usize) {
        self.turn += bytes;
        if self.turn > YIELD_AFTER {
            self.turn = 0;
            yield_now().await;
        }
    }
}
