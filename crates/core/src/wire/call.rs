//! What stands before a request and before a reply on the way between two agents.
//!
//! Each caller numbers its calls to one agent by slot and sequence: a slot carries one call at a time, and the
//! next call in it has a higher sequence number. So the answerer need only remember the last call of each slot
//! to execute every request at most once, and a new call in a slot tells it that the reply before has arrived
//! or is no longer wanted.

use serde::{Deserialize, Serialize};

/// Most calls of one agent to one other at the same time.
pub const CALLS_MAX: u32 = 1 << 16;

/// Names a call between two agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallId {
    /// The caller's life: drawn at random when its process starts.
    pub epoch: u64,
    /// Below [`CALLS_MAX`].
    pub slot: u32,
    /// Counted within the slot.
    pub sequence: u64,
}

/// Stands before a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestHeader {
    /// Which call.
    pub id: CallId,
    /// Grant and length of a payload that does not come beside the message, to be fetched from the caller.
    pub source: Option<(u64, u32)>,
    /// Grant of the frame that takes the payload of the reply.
    pub target: Option<u64>,
    /// The caller reads the answerer's device by itself: the reply may say where on it its payload lies.
    pub places: bool,
}

/// Consecutive bytes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The first one.
    pub at: u64,
    /// Their number.
    pub length: u32,
}

/// Where on the answerer's device the payload of a reply lies. Nothing holds it there: it is right if no block there has become
/// free since, and it has its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Its parts, in their order, each of whole blocks of [`crate::limits::BLOCK_SIZE`] bytes.
    pub runs: Vec<Run>,
    /// The CRC-32C of the CRC-32Cs of its blocks.
    pub digest: u32,
    /// When, on the clock of the device.
    pub time: u64,
}

/// How the payload of a reply travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carriage {
    /// Beside the message, if there is any.
    Beside,
    /// So many bytes were put into the caller's frame.
    Put(u32),
    /// Not at all: the caller reads it where it lies.
    Placed(Place),
}

/// Stands before a reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyHeader {
    /// Which call.
    pub id: CallId,
    /// How its payload travels.
    pub carriage: Carriage,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::codec::{decode, decode_first, encode};
    use crate::wire::{Request, admin::AdminRequest};

    #[test]
    fn the_bytes_are_those_of_version_1() {
        let id = CallId { epoch: 300, slot: 2, sequence: 5 };
        let header = RequestHeader { id, source: Some((7, 128)), target: None, places: true };
        let request = Request::Admin(AdminRequest::Status);
        let bytes = encode(&(header, &request)).expect("small");
        assert_eq!(bytes, [0xac, 0x02, 2, 5, 1, 7, 0x80, 0x01, 0, 1, 3, 1]);
        let (found, rest) = decode_first::<RequestHeader>(&bytes).expect("as encoded");
        assert_eq!((found, decode(rest)), (header, Ok(request)));
        let place = Place { runs: vec![Run { at: 4096, length: 8192 }], digest: 129, time: 130 };
        for (carriage, golden) in [
            (Carriage::Beside, &[0][..]),
            (Carriage::Put(9), &[1, 9]),
            (Carriage::Placed(place), &[2, 1, 0x80, 0x20, 0x80, 0x40, 0x81, 0x01, 0x82, 0x01]),
        ] {
            let golden = [&[0xac, 0x02, 2, 5], golden].concat();
            assert_eq!(encode(&ReplyHeader { id, carriage }), Ok(golden));
        }
        assert!(decode_first::<RequestHeader>(&bytes[..3]).is_err());
    }
}
