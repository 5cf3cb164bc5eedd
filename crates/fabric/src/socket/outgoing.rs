//! An outgoing message: its encoding, export and authentication.

use super::header::{HEADER_SIZE, Header, Kind};
use super::host::{Exporter, LOCATION_SIZE};
use super::seal::{Packets, Stream, Tag};
use crate::Lane;
use std::io::IoSlice;
use tameike_core::{NodeId, Result};
use tameike_io::os::runtime::Resolver;
use tameike_io::slab::Payload;

/// Number of pieces of an encoded message.
pub(super) const PIECES: usize = 5;

/// The part of a message after its body.
enum Beside {
    Nothing,
    Payload(Payload),
    /// The location of an exported payload.
    Location([u8; LOCATION_SIZE]),
}

impl Beside {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Nothing => &[],
            Self::Payload(payload) => payload,
            Self::Location(location) => location,
        }
    }
}

pub(super) struct Outgoing {
    header: Header,
    /// The encoded header.
    head: [u8; HEADER_SIZE],
    body: Vec<u8>,
    beside: Beside,
    /// The tags of header and body, and of the whole message.
    tags: Option<[Tag; 2]>,
    pub(super) written: usize,
    pub(super) done: Option<Resolver<Result<()>>>,
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
        Self { head: header.encode(), header, body, beside, tags: None, written: 0, done: None }
    }

    /// A message without body and payload.
    pub(super) fn bare(kind: Kind, get: u64) -> Self {
        Self::new(kind, Lane::Reply, Vec::new(), None, (0, get))
    }

    pub(super) fn size_without_payload(&self) -> usize {
        HEADER_SIZE + self.body.len()
    }

    pub(super) fn size(&self) -> usize {
        self.pieces().iter().map(|piece| piece.len()).sum()
    }

    fn pieces(&self) -> [&[u8]; PIECES] {
        let beside = self.beside.bytes();
        let [first, second]: [&[u8]; 2] = match &self.tags {
            None => [&[], &[]],
            Some([first, _]) if beside.is_empty() => [first, &[]],
            Some([first, second]) => [first, second],
        };
        [&self.head, &self.body, first, beside, second]
    }

    /// The pieces that remain to be written; they may be empty.
    pub(super) fn slices(&self) -> [IoSlice<'_>; PIECES] {
        let mut skip = self.written;
        self.pieces().map(|piece| {
            let from = skip.min(piece.len());
            skip -= from;
            IoSlice::new(&piece[from..])
        })
    }

    /// Authenticates this as the next message of a stream, unless already done.
    pub(super) fn seal(&mut self, stream: &mut Stream) {
        if self.tags.is_none() {
            let mut message = stream.message();
            let first = message.update(&self.head).update(&self.body).tag();
            let beside = self.beside.bytes();
            let second = if beside.is_empty() { first } else { message.update(beside).tag() };
            self.tags = Some([first, second]);
        }
    }

    /// Exports a payload of at least `least` bytes instead of sending it. Returns the number of the export.
    pub(super) fn export(&mut self, (exporter, least): (&Exporter, usize), to: NodeId) -> Option<u64> {
        let Beside::Payload(payload) = &self.beside else { return None };
        let location = exporter.export(to, (payload, least), &mut self.done)?;
        self.header.exported = true;
        (self.head, self.beside) = (self.header.encode(), Beside::Location(location.encode()));
        Some(location.number)
    }

    /// Encodes the message as a packet of libfabric. Also returns the resolver of its completion.
    pub(super) fn into_packet(
        self,
        token: &[u8],
        packets: &mut Packets,
    ) -> (Vec<u8>, Option<Resolver<Result<()>>>) {
        (packets.seal(token, [&self.head, &self.body, self.beside.bytes()]), self.done)
    }

    /// Undoes [`Outgoing::export`].
    pub(super) fn cancel_export(&mut self, exporter: &Exporter, export: u64) {
        let Some((payload, done)) = exporter.exports.cancel_export(export) else { return };
        self.header.exported = false;
        (self.head, self.beside, self.done) = (self.header.encode(), Beside::Payload(payload), done);
    }

    pub(super) fn finish(self, result: Result<()>) {
        if let Some(done) = self.done {
            done.resolve(result);
        }
    }
}
