//! Authentication of messages on TCP and libfabric.

/// Keys of a connection, one per direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    pub outgoing: [u8; 32],
    pub incoming: [u8; 32],
}
