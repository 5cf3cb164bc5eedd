//! Encoding of the header of every message between agents.
//!
//! Little-endian. A message is its header, its body, and its payload.
//!
//! ```text
//!   0      4     6    7    8        12       16           24          32        36        40      44
//!  +------+-----+----+----+--------+--------+------------+-----------+---------+---------+-------+
//!  | TMKF |vers.|kind|flag| body   | payload| grant      | get       | body    | payload | this  |
//!  |      |     |    |    | length | length |            | number    | crc32c  | digest  | crc32c|
//!  +------+-----+----+----+--------+--------+------------+-----------+---------+---------+-------+
//! ```
//!
//! The digest of a payload is the CRC-32C of the CRC-32Cs (4 bytes each) of its blocks of 4096 bytes. Fields that a kind does not
//! use are zero. A damaged header ends the connection, since the start of the next message is unknown.
//!
//! - Flag bit 0: the message is on the reply lane.
//! - Flag bit 1: the payload is exported, and its location (16 bytes, see `host`) follows instead.

use crate::Lane;
use tameike_core::limits::{MESSAGE_SIZE_MAX, UNIT_SIZE};
use tameike_core::wire::PROTOCOL_VERSION;
use tameike_io::crc32c;

/// Size of an encoded header, in bytes.
pub(super) const HEADER_SIZE: usize = 44;
const MAGIC: [u8; 4] = *b"TMKF";
const FLAG_REPLY: u8 = 1;
const FLAG_EXPORTED: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A body for the receiver, optionally with a payload.
    Message,
    /// A payload for the granted frame, then a body for the receiver.
    Put,
    /// Requests bytes of the granted payload; the body is their number, 4 bytes.
    Get,
    /// The bytes that the get of this number requested.
    GetReply,
    /// The get of this number is refused: the grant does not exist, or has fewer bytes.
    Refused,
    Ping,
    Pong,
    /// The receiver has copied the export of this number.
    Copied,
    /// The last message of this end before an orderly close, with the number of messages that it sent by libfabric.
    Bye,
    /// Announces the sender's libfabric endpoint (`link`), in the body.
    Endpoint,
    /// Sent by libfabric, requests an answer by libfabric.
    Knock,
    /// The answer to a knock.
    Knocked,
    /// Doorbell: a message was sent by libfabric, whose provider does not signal it to the receiver.
    Bell,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::Message,
        Self::Put,
        Self::Get,
        Self::GetReply,
        Self::Refused,
        Self::Ping,
        Self::Pong,
        Self::Copied,
        Self::Bye,
        Self::Endpoint,
        Self::Knock,
        Self::Knocked,
        Self::Bell,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub kind: Kind,
    pub lane: Lane,
    /// The payload is exported.
    pub exported: bool,
    pub body_length: u32,
    pub payload_length: u32,
    pub grant: u64,
    pub get: u64,
    pub body_checksum: u32,
    /// See [`tameike_io::slab::BlockSums::digest`].
    pub payload_digest: u32,
}

impl Header {
    /// A header for this body, and for a payload of this length and digest.
    pub(super) fn new(kind: Kind, lane: Lane, body: &[u8], (length, digest): (u32, u32)) -> Self {
        Self {
            kind,
            lane,
            exported: false,
            body_length: body.len() as u32,
            payload_length: length,
            grant: 0,
            get: 0,
            body_checksum: crc32c(body),
            payload_digest: digest,
        }
    }

    pub(super) fn encode(&self) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        bytes[6] = 1 + self.kind as u8;
        bytes[7] = if self.lane == Lane::Reply { FLAG_REPLY } else { 0 };
        bytes[7] |= if self.exported { FLAG_EXPORTED } else { 0 };
        bytes[8..12].copy_from_slice(&self.body_length.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.payload_length.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.grant.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.get.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.body_checksum.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.payload_digest.to_le_bytes());
        let checksum = crc32c(&bytes[..40]);
        bytes[40..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes a header; the error describes the damage.
    pub(super) fn decode(bytes: &[u8; HEADER_SIZE]) -> Result<Self, String> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if bytes[..4] != MAGIC || crc32c(&bytes[..40]) != u32_at(40) {
            return Err("the header of a message is damaged".into());
        }
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        if version != PROTOCOL_VERSION {
            return Err(format!("a message has version {version}, not {PROTOCOL_VERSION}"));
        }
        let place = usize::from(bytes[6]).wrapping_sub(1);
        let Some(&kind) = Kind::ALL.get(place) else {
            return Err(format!("a message is of unknown kind {}", bytes[6]));
        };
        let flags = bytes[7];
        if flags & !(FLAG_REPLY | FLAG_EXPORTED) != 0 {
            return Err(format!("a message has unknown flags {flags:#x}"));
        }
        let lane = if flags & FLAG_REPLY == 0 { Lane::Request } else { Lane::Reply };
        let (body_length, payload_length) = (u32_at(8), u32_at(12));
        if body_length as usize > MESSAGE_SIZE_MAX || payload_length as usize > UNIT_SIZE {
            return Err(format!(
                "a message of {body_length} + {payload_length} bytes is beyond the limits of {MESSAGE_SIZE_MAX} + {UNIT_SIZE}"
            ));
        }
        Ok(Self {
            kind,
            lane,
            exported: flags & FLAG_EXPORTED != 0,
            body_length,
            payload_length,
            grant: u64_at(16),
            get: u64_at(24),
            body_checksum: u32_at(32),
            payload_digest: u32_at(36),
        })
    }
}

#[cfg(feature = "fuzz")]
pub(crate) fn fuzz_seeds() -> [(&'static str, Vec<u8>); 2] {
    let put = Header { grant: 7, ..Header::new(Kind::Put, Lane::Reply, b"abc", (5, 0x1234_5678)) };
    let bye = Header::new(Kind::Bye, Lane::Reply, b"", (0, tameike_io::slab::BlockSums::of(b"").digest()));
    [("put", put.encode().to_vec()), ("bye", bye.encode().to_vec())]
}

#[cfg(feature = "fuzz")]
pub(crate) fn fuzz(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk::<HEADER_SIZE>() else { return };
    match Header::decode(bytes) {
        Ok(header) => {
            assert_eq!(header.encode(), *bytes);
            assert!(
                header.body_length as usize <= MESSAGE_SIZE_MAX
                    && header.payload_length as usize <= UNIT_SIZE
            );
        }
        Err(why) => assert!(!why.is_empty()),
    }
    // Random bytes never contain a valid checksum: check the same bytes with the right one too.
    let mut right = *bytes;
    let checksum = crc32c(&right[..40]);
    right[40..].copy_from_slice(&checksum.to_le_bytes());
    if let Ok(header) = Header::decode(&right) {
        assert_eq!(header.encode(), right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_are_those_of_version_1() {
        let header = Header {
            grant: 0x0102_0304_0506_0708,
            ..Header::new(Kind::Put, Lane::Reply, b"abc", (5, 0x1234_5678))
        };
        let mut golden = b"TMKF\x01\x00\x02\x01\x03\0\0\0\x05\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01".to_vec();
        golden.extend([0; 8]);
        golden.extend(0x364b_3fb7_u32.to_le_bytes()); // crc32c of "abc"
        golden.extend(b"\x78\x56\x34\x12");
        golden.extend(crc32c(&golden).to_le_bytes());
        assert_eq!(header.encode().to_vec(), golden);
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn lengths_beyond_the_limits_are_refused() {
        let mut header = Header::new(Kind::Message, Lane::Request, b"", (0, 0));
        header.payload_length = UNIT_SIZE as u32 + 1;
        assert!(Header::decode(&header.encode()).is_err_and(|why| why.contains("limits")));
        header.payload_length = 0;
        header.body_length = MESSAGE_SIZE_MAX as u32 + 1;
        assert!(Header::decode(&header.encode()).is_err());
    }

    #[test]
    fn every_kind_is_decoded_as_encoded() {
        for (number, kind) in Kind::ALL.into_iter().enumerate() {
            let bytes = Header::new(kind, Lane::Reply, b"", (0, 0)).encode();
            assert_eq!(usize::from(bytes[6]), 1 + number);
            assert_eq!(Header::decode(&bytes).map(|header| header.kind), Ok(kind));
        }
    }

    proptest! {
        #[test]
        fn one_changed_byte_is_detected(at in 0..HEADER_SIZE, change in 1_u8..) {
            let mut bytes = Header::new(Kind::Message, Lane::Request, b"body", (7, 8)).encode();
            bytes[at] ^= change;
            prop_assert!(Header::decode(&bytes).is_err());
        }

        #[test]
        fn any_bytes_end_in_a_header_or_an_error(bytes: [u8; 32], tail: [u8; 12]) {
            let mut all = [0; HEADER_SIZE];
            all[..32].copy_from_slice(&bytes);
            all[32..].copy_from_slice(&tail);
            let _ = Header::decode(&all);
        }
    }
}
