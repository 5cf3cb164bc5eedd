//! How an agent asks the packer.

use super::packer::{OWN_BYTES_MAX, Packer};
use std::sync::Arc;
use tameike_core::wire::pack::{PACKED_BYTES_MAX, PackReply, PackRequest, PackedStat};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_fabric::Rpc;

/// The way to the packer. Asking blocks.
#[derive(Clone)]
pub enum Way {
    /// It is this agent: asked straight, on the thread that asks, so that no thread waits here for another one of the same pool.
    Own(Arc<Packer>),
    /// It is another one.
    Far {
        /// Asks it.
        rpc: Arc<dyn Rpc>,
        /// Which.
        node: NodeId,
    },
}

impl Way {
    /// Asks the packer.
    ///
    /// # Errors
    /// What it says, and what is said of an agent that cannot be reached.
    pub fn ask(&self, request: PackRequest) -> Result<PackReply> {
        match self {
            Self::Own(packer) => packer.serve(request),
            Self::Far { rpc, node } => {
                match pollster::block_on(rpc.call(*node, Request::Pack(request), None, None))?.reply {
                    Reply::Pack(reply) => Ok(reply),
                    other => Err(out_of_turn(&other)),
                }
            }
        }
    }

    /// Most bytes of a file in one request.
    pub(super) fn bytes_max(&self) -> usize {
        match self {
            Self::Own(_) => OWN_BYTES_MAX,
            Self::Far { .. } => PACKED_BYTES_MAX,
        }
    }

    /// Asks for something to be done.
    pub(super) fn done(&self, request: PackRequest) -> Result<()> {
        match self.ask(request)? {
            PackReply::Done => Ok(()),
            other => Err(out_of_turn(&other)),
        }
    }

    /// Asks for attributes.
    pub(super) fn stat(&self, request: PackRequest) -> Result<PackedStat> {
        match self.ask(request)? {
            PackReply::Stat(stat) => Ok(stat),
            other => Err(out_of_turn(&other)),
        }
    }
}

pub(super) fn out_of_turn(reply: &impl std::fmt::Debug) -> Fault {
    Fault::new(Errno::EPROTO, format!("the packer answered out of turn: {reply:?}"))
}
