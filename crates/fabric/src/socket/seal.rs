//! Authentication of messages by keyed hashes.
//!
//! ```text
//!  TCP:        header | body | tag | payload or location | tag      (the second tag only after a payload or location)
//!  libfabric:  token (16) | number (8) | header | body | payload or location | tag
//! ```
//!
//! A tag is a BLAKE3 hash, keyed for the connection and the direction, of everything before it:
//!
//! - TCP: the message's number (8 bytes, little-endian, counted by both ends from 0) and all its pieces so far. So no attacker on
//!   the network can forge, change, repeat, reorder or drop a message unnoticed. The first tag lets the receiver verify a header
//!   before use.
//! - libfabric: the whole packet. Packets may be reordered, and lost before the peer has answered by libfabric. The receiver
//!   accepts each number once ([`Packets`]).
//!
//! Local sockets need no tags: the kernel reports the user at the other end, and no other process can write to the socket.

use tameike_core::wire::endpoint::TOKEN_SIZE;

/// Size of a tag, in bytes.
pub(super) const TAG_SIZE: usize = 32;
const NUMBER_SIZE: usize = 8;
/// Bytes of a packet before its message.
pub(super) const PACKET_HEAD: usize = TOKEN_SIZE + NUMBER_SIZE;
/// Largest accepted reordering, in packets; more are never in flight.
const WINDOW: u64 = 1024;

pub(super) type Tag = [u8; TAG_SIZE];

/// The keys of a connection, one per direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    pub outgoing: [u8; 32],
    pub incoming: [u8; 32],
}

/// The state of one direction of a stream.
pub(super) struct Stream {
    key: [u8; 32],
    next: u64,
}

/// The hash of a message's pieces so far.
pub(super) struct Message(blake3::Hasher);

impl Stream {
    pub(super) fn new(key: [u8; 32]) -> Self {
        Self { key, next: 0 }
    }

    pub(super) fn message(&mut self) -> Message {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.next.to_le_bytes());
        self.next += 1;
        Message(hasher)
    }
}

impl Message {
    pub(super) fn update(&mut self, piece: &[u8]) -> &mut Self {
        self.0.update(piece);
        self
    }

    /// The tag of all pieces so far.
    pub(super) fn tag(&self) -> Tag {
        *self.0.finalize().as_bytes()
    }

    /// Compares `tag` with that of all pieces so far, in constant time.
    pub(super) fn is(&self, tag: &Tag) -> bool {
        self.0.finalize() == *tag
    }
}

/// The authentication of a connection's packets by libfabric.
pub(super) struct Packets {
    keys: Keys,
    sent: u64,
    seen: Seen,
}

impl Packets {
    pub(super) fn new(keys: Keys) -> Self {
        Self { keys, sent: 0, seen: Seen::default() }
    }

    /// Encodes a packet of these pieces.
    pub(super) fn seal(&mut self, token: &[u8], pieces: [&[u8]; 3]) -> Vec<u8> {
        let number = self.sent.to_le_bytes();
        self.sent += 1;
        let [head, body, beside] = pieces;
        let mut packet = [token, &number, head, body, beside].concat();
        let tag = blake3::keyed_hash(&packet_key(&self.keys.outgoing), &packet);
        packet.extend_from_slice(tag.as_bytes());
        packet
    }

    /// Verifies a packet and removes its tag. False if it is not from the peer, or is a replay.
    pub(super) fn open(&mut self, packet: &mut Vec<u8>) -> bool {
        let Some((content, tag)) = packet.split_last_chunk::<TAG_SIZE>() else { return false };
        let Some(number) = content.get(TOKEN_SIZE..).and_then(|rest| rest.first_chunk::<NUMBER_SIZE>())
        else {
            return false;
        };
        let is_proven = blake3::keyed_hash(&packet_key(&self.keys.incoming), content) == *tag;
        if !is_proven || !self.seen.is_first(u64::from_le_bytes(*number)) {
            return false;
        }
        packet.truncate(packet.len() - TAG_SIZE);
        true
    }
}

/// A separate key, so that no tag of a packet is valid in a stream.
fn packet_key(key: &[u8; 32]) -> [u8; 32] {
    *blake3::keyed_hash(key, b"packets").as_bytes()
}

/// The numbers received: all below `from`, and those in `after`.
#[derive(Default)]
struct Seen {
    from: u64,
    after: std::collections::BTreeSet<u64>,
}

impl Seen {
    fn is_first(&mut self, number: u64) -> bool {
        if number < self.from || !self.after.insert(number) {
            return false;
        }
        self.from = self.from.max(number.saturating_sub(WINDOW));
        while self.after.first().is_some_and(|first| *first <= self.from) {
            self.from = self.from.max(self.after.pop_first().map_or(0, |first| first + 1));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: Keys = Keys { outgoing: [1; 32], incoming: [1; 32] };

    #[test]
    fn a_tag_depends_on_number_and_pieces() {
        let mut stream = Stream::new([7; 32]);
        let tag = |number: u64, text: &[u8]| {
            *blake3::keyed_hash(&[7; 32], &[&number.to_le_bytes(), text].concat()).as_bytes()
        };
        let mut message = stream.message();
        assert_eq!(message.update(b"header").update(b"body").tag(), tag(0, b"headerbody"));
        assert_eq!(message.update(b"payload").tag(), tag(0, b"headerbodypayload"));
        let mut message = stream.message();
        assert_eq!(message.update(b"header").tag(), tag(1, b"header"));
        assert!(message.is(&tag(1, b"header")) && !message.is(&tag(0, b"header")));
    }

    #[test]
    fn a_packet_is_accepted_once_and_unchanged() {
        let (mut ours, mut theirs) = (Packets::new(KEYS), Packets::new(KEYS));
        let sealed: Vec<_> = (0..5).map(|_| ours.seal(&[9; TOKEN_SIZE], [b"head", b"body", b""])).collect();
        for at in 0..sealed[0].len() {
            let mut forged = sealed[0].clone();
            forged[at] ^= 1;
            assert!(!theirs.open(&mut forged), "byte {at}");
        }
        for number in [3, 0, 4, 1] {
            let mut packet = sealed[number].clone();
            assert!(theirs.open(&mut packet), "packet {number}");
            assert_eq!(packet[PACKET_HEAD..], *b"headbody");
            assert!(!theirs.open(&mut sealed[number].clone()), "packet {number} again");
        }
        assert!(!theirs.open(&mut Vec::new()) && !theirs.open(&mut vec![0; TAG_SIZE + 3]));
    }

    #[test]
    fn numbers_that_are_too_old_are_refused() {
        let mut seen = Seen::default();
        assert!(seen.is_first(0) && seen.is_first(2) && seen.is_first(WINDOW + 3));
        assert!(seen.is_first(4) && !seen.is_first(4) && !seen.is_first(1) && !seen.is_first(0));
        assert!((10 * WINDOW..11 * WINDOW).all(|number| seen.is_first(number)));
        assert!(
            (0..11 * WINDOW).all(|number| !seen.is_first(number)) || seen.after.len() < 2 * WINDOW as usize
        );
        assert!(seen.after.len() <= WINDOW as usize + 1);
    }
}
