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
}

/// Stands before a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyHeader {
    /// Which call.
    pub id: CallId,
    /// Number of bytes that were put into the caller's frame, if any.
    pub put: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::codec::{decode, decode_first, encode};
    use crate::wire::{Request, admin::AdminRequest};

    #[test]
    fn the_bytes_are_those_of_version_1() {
        let id = CallId { epoch: 300, slot: 2, sequence: 5 };
        let header = RequestHeader { id, source: Some((7, 128)), target: None };
        let request = Request::Admin(AdminRequest::Status);
        let bytes = encode(&(header, &request)).expect("small");
        assert_eq!(bytes, [0xac, 0x02, 2, 5, 1, 7, 0x80, 0x01, 0, 3, 1]);
        let (found, rest) = decode_first::<RequestHeader>(&bytes).expect("as encoded");
        assert_eq!((found, decode(rest)), (header, Ok(request)));
        let reply = ReplyHeader { id, put: Some(9) };
        assert_eq!(encode(&reply), Ok(vec![0xac, 0x02, 2, 5, 1, 9]));
        assert!(decode_first::<RequestHeader>(&bytes[..3]).is_err());
    }
}
