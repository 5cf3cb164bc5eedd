//! Sends requests to the packer: a call within its own agent, a message from all others.

use crate::{LOCAL_BYTES_MAX, PackHandler};
use std::sync::Arc;
use tameike_core::wire::pack::{PACKED_BYTES_MAX, PackReply, PackRequest, PackedStat};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_fabric::Rpc;

/// Sends requests to the packer; blocks.
#[derive(Clone)]
pub enum PackerClient {
    /// The packer of this agent. It serves on the calling thread, so that no thread of a pool waits for another of the same pool.
    Local(Arc<dyn PackHandler>),
    /// The packer of another agent.
    Remote {
        /// Carries the requests.
        rpc: Arc<dyn Rpc>,
        /// The node of the packer.
        node: NodeId,
    },
}

impl PackerClient {
    /// Sends a request and returns the reply.
    pub fn call(&self, request: PackRequest) -> Result<PackReply> {
        match self {
            Self::Local(packer) => packer.serve(request),
            Self::Remote { rpc, node } => {
                match pollster::block_on(rpc.call((*node).into(), Request::Pack(request), None, None))?.reply
                {
                    Reply::Pack(reply) => Ok(reply),
                    other => Err(unexpected_reply(&other)),
                }
            }
        }
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
