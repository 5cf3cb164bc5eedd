//! Headers of requests and replies between two agents.
//!
//! Each caller numbers its calls to one agent by slot and sequence: a slot carries one call at a time, and the next
//! call in it has a higher sequence number. So the callee executes each request at most once by remembering the last
//! call of each slot. A new call in a slot shows that the previous reply has arrived or is no longer needed.

use crate::homes::MapEpoch;
use crate::ids::{HomeId, NodeId};
use serde::{Deserialize, Serialize};

/// Largest number of calls in flight from one agent to another.
pub const CALLS_MAX: u32 = 1 << 16;

/// Identifies a call between two agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallId {
    /// The caller's incarnation: a random number of its process.
    pub epoch: u64,
    /// Below [`CALLS_MAX`].
    pub slot: u32,
    /// Counter within the slot.
    pub sequence: u64,
}

/// The part of a node that a request concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// The node, whatever homes it serves.
    Node,
    /// All homes that the node serves, or of which it is a backup, under the home map of an epoch.
    Homes(MapEpoch),
    /// A home that the node serves under the home map of an epoch.
    Home(HomeId, MapEpoch),
}

impl Scope {
    /// The epoch of the home map under which the caller chose the node, if it did so for homes.
    pub fn epoch(self) -> Option<MapEpoch> {
        match self {
            Self::Node => None,
            Self::Homes(epoch) | Self::Home(_, epoch) => Some(epoch),
        }
    }

    /// The home, if it is one.
    pub fn home(self) -> Option<HomeId> {
        match self {
            Self::Node | Self::Homes(_) => None,
            Self::Home(home, _) => Some(home),
        }
    }
}

/// Identity of a call that changes a home with replicas. It stays the same when the call is repeated at another primary, which so
/// recognizes a change that the first one has made and replicated.
///
/// Calls of one caller have ascending numbers, as in RIFL (Lee et al., SOSP 2015).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallNumber {
    /// Its number among the calls of the caller.
    pub number: u64,
    /// All calls of the caller with smaller numbers have ended: their results are not needed any more.
    pub finished: u64,
}

/// A numbered call as its callee sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedCall {
    /// The node of the caller.
    pub node: NodeId,
    /// Its incarnation, as in [`CallId::epoch`].
    pub incarnation: u64,
    /// Its number at the caller.
    pub number: CallNumber,
}

/// Header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestHeader {
    /// The call.
    pub id: CallId,
    /// Grant and length of a payload that does not follow the message; the callee fetches it from the caller.
    pub source: Option<(u64, u32)>,
    /// Grant of the frame that takes the payload of the reply.
    pub target: Option<u64>,
    /// Whether the caller can read the callee's device directly, so that the reply may carry an extent location.
    pub places: bool,
    /// The part of the callee that the request concerns.
    pub scope: Scope,
    /// Identity of the call, if it may be repeated at another primary.
    pub number: Option<CallNumber>,
}

/// A contiguous byte range of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Offset of the first byte.
    pub at: u64,
    /// Number of bytes.
    pub length: u32,
}

/// Extent location of a reply's payload on the callee's device. It is not locked: it is valid if no block there has
/// become free since `time` and the digest matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentLocation {
    /// Its runs in order, each of whole blocks of [`crate::limits::BLOCK_SIZE`] bytes.
    pub runs: Vec<Run>,
    /// The CRC-32C of the CRC-32Cs of its blocks.
    pub digest: u32,
    /// Time of the reply on the clock of the device.
    pub time: u64,
}

/// Transport of a reply's payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carriage {
    /// After the message, if there is a payload.
    Beside,
    /// The callee put this many bytes into the caller's frame.
    Put(u32),
    /// None: the caller reads the device at this location.
    Placed(ExtentLocation),
}

/// Header of a reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyHeader {
    /// The call.
    pub id: CallId,
    /// Transport of its payload.
    pub carriage: Carriage,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::codec::{decode, decode_first, encode};
    use crate::wire::{Request, admin::AdminRequest};

    #[test]
    fn headers_encode_as_in_version_1() {
        let id = CallId { epoch: 300, slot: 2, sequence: 5 };
        let (source, scope) = (Some((7, 128)), Scope::Home(HomeId(130), MapEpoch(129)));
        let number = Some(CallNumber { number: 131, finished: 4 });
        let header = RequestHeader { id, source, target: None, places: true, scope, number };
        let request = Request::Admin(AdminRequest::Status);
        let bytes = encode(&(header, &request)).expect("small");
        let golden = [0xac, 2, 2, 5, 1, 7, 0x80, 1, 0, 1, 2, 0x82, 1, 0x81, 1, 1, 0x83, 1, 4, 3, 1];
        assert_eq!(bytes, golden);
        let (found, rest) = decode_first::<RequestHeader>(&bytes).expect("as encoded");
        assert_eq!((found, decode(rest)), (header, Ok(request)));
        let place = ExtentLocation { runs: vec![Run { at: 4096, length: 8192 }], digest: 129, time: 130 };
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
