//! Sends requests to the packer: a call within its own agent, a message from all others.

use crate::{LOCAL_BYTES_MAX, PackHandler};
use std::sync::Arc;
use tameike_core::wire::pack::{PACKED_BYTES_MAX, PackReply, PackRequest, PackedStat};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, Result};
use tameike_fabric::{Destination, Rpc};

/// Sends requests to the packer; blocks.
#[derive(Clone)]
pub enum PackerClient {
    /// The packer of this agent. It serves on the calling thread, so that no thread of a pool waits for another of the same pool.
    Local(Arc<dyn PackHandler>),
    /// The packer of another agent, or of the node that serves its home now: that may be this one.
    Remote {
        /// Carries the requests.
        rpc: Arc<dyn Rpc>,
        /// The node of the packer, or its home.
        to: Destination,
    },
}

impl PackerClient {
    /// Sends a request and returns the reply.
    pub fn call(&self, request: PackRequest) -> Result<PackReply> {
        match self {
            Self::Local(packer) => packer.serve(request),
            Self::Remote { rpc, to } => {
                match pollster::block_on(rpc.call(*to, Request::Pack(request), None, None))?.reply {
                    Reply::Pack(reply) => Ok(reply),
                    other => Err(unexpected_reply(&other)),
                }
            }
        }
    }

    /// Whether another node may become the packer, and then get requests that this one has executed.
    pub(crate) fn may_move(&self) -> bool {
        matches!(self, Self::Remote { to: Destination::Home(_), .. })
    }

    /// Bytes of file content in one request, at most.
    pub(crate) fn bytes_max(&self) -> usize {
        match self {
            Self::Local(_) => LOCAL_BYTES_MAX,
            Self::Remote { .. } => PACKED_BYTES_MAX,
        }
    }

    /// Sends a request whose reply carries nothing.
    pub(crate) fn done(&self, request: PackRequest) -> Result<()> {
        match self.call(request)? {
            PackReply::Done => Ok(()),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Sends a request whose reply is attributes.
    pub(crate) fn stat(&self, request: PackRequest) -> Result<PackedStat> {
        match self.call(request)? {
            PackReply::Stat(stat) => Ok(stat),
            other => Err(unexpected_reply(&other)),
        }
    }
}

pub(crate) fn unexpected_reply(reply: &impl std::fmt::Debug) -> Fault {
    Fault::new(Errno::EPROTO, format!("the packer sent a reply of another request: {reply:?}"))
}
