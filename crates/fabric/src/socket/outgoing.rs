//! A message on its way out.

use super::header::{HEADER_SIZE, Header, Kind};
use super::host::{Lender, PLACE_SIZE};
use super::seal::{Packets, Stream, Tag};
use crate::Lane;
use std::io::IoSlice;
use tameike_core::{NodeId, Result};
use tameike_io::os::runtime::Resolver;
use tameike_io::slab::Payload;

/// Pieces in which a message is written.
pub(super) const PIECES: usize = 5;

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
    /// For header and body, and for all of it.
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

    /// A message without content.
    pub(super) fn bare(kind: Kind, get: u64) -> Self {
        Self::new(kind, Lane::Reply, Vec::new(), None, (0, get))
    }

    pub(super) fn size_without_payload(&self) -> usize {
        HEADER_SIZE + self.body.len()
    }

    pub(super) fn size(&self) -> usize {
        self.pieces().iter().map(|piece| piece.len()).sum()
    }

    /// All that is written.
    fn pieces(&self) -> [&[u8]; PIECES] {
        let beside = self.beside.bytes();
        let [first, second]: [&[u8]; 2] = match &self.tags {
            None => [&[], &[]],
            Some([first, _]) if beside.is_empty() => [first, &[]],
            Some([first, second]) => [first, second],
        };
        [&self.head, &self.body, first, beside, second]
    }

    /// What is still to be written; pieces may be empty.
    pub(super) fn slices(&self) -> [IoSlice<'_>; PIECES] {
        let mut skip = self.written;
        self.pieces().map(|piece| {
            let from = skip.min(piece.len());
            skip -= from;
            IoSlice::new(&piece[from..])
        })
    }

    /// Makes this the next message of a stream, unless that is done already.
    pub(super) fn seal(&mut self, stream: &mut Stream) {
        if self.tags.is_none() {
            let mut message = stream.message();
            let first = message.update(&self.head).update(&self.body).tag();
            let beside = self.beside.bytes();
            let second = if beside.is_empty() { first } else { message.update(beside).tag() };
            self.tags = Some([first, second]);
        }
    }

    /// Lends a payload of at least so many bytes to a peer rather than send it; the loan's number.
    pub(super) fn lend(&mut self, (lender, least): (&Lender, usize), to: NodeId) -> Option<u64> {
        let Beside::Payload(payload) = &self.beside else { return None };
        let place = lender.lend(to, (payload, least), &mut self.done)?;
        self.header.lent = true;
        (self.head, self.beside) = (self.header.encode(), Beside::Place(place.encode()));
        Some(place.number)
    }

    /// A packet of it for libfabric, and what is resolved when it was sent.
    pub(super) fn into_packet(
        self,
        token: &[u8],
        packets: &mut Packets,
    ) -> (Vec<u8>, Option<Resolver<Result<()>>>) {
        (packets.seal(token, [&self.head, &self.body, self.beside.bytes()]), self.done)
    }

    /// Undoes [`Outgoing::lend`].
    pub(super) fn take_back(&mut self, lender: &Lender, loan: u64) {
        let Some((payload, done)) = lender.loans.take_back(loan) else { return };
        self.header.lent = false;
        (self.head, self.beside, self.done) = (self.header.encode(), Beside::Payload(payload), done);
    }

    pub(super) fn finish(self, result: Result<()>) {
        if let Some(done) = self.done {
            done.resolve(result);
        }
    }
}
