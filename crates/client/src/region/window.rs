//! A remote memory window on this node ([decision 0091](../../../../docs/decisions/0091-remote-memory-windows.md)).
//!
//! A window is a region without pages. Its processes have ranks, and each has memory that all processes of its node map. Accesses to
//! ranks on other nodes come here: this node sends them to the agent of the rank, which applies them to the memory. The process of the
//! rank takes no part.

use super::Parts;
use crate::replies::unexpected_reply;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::region::{RegionReply, RegionRequest};
use tameike_core::wire::window::{Access, WindowReply, WindowRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, InodeId, NodeId, Result};
use tameike_dsm::window::{Queue, Shape, WindowMemory};
use tameike_io::{Frame, Payload};

/// The memory of a window on this node, and the ranks that have a part of it.
pub(super) struct NodeWindow {
    parts: Arc<Parts>,
    window: InodeId,
    memory: WindowMemory,
    descriptor: OwnedFd,
    state: Mutex<State>,
    /// The node of each rank.
    nodes: OnceLock<Vec<NodeId>>,
}

#[derive(Default)]
struct State {
    /// Ranks of attached processes of this node.
    ranks: BTreeSet<u32>,
    /// Error of waits since a process has failed.
    broken: Option<Errno>,
}

/// A process that has attached to a window.
pub struct AttachedWindow {
    window: Arc<NodeWindow>,
    rank: u32,
}

fn refused(errno: Errno, access: &Access) -> Fault {
    Fault::new(errno, format!("an access to a window: {access:?}"))
}

impl NodeWindow {
    /// # Errors
    /// `ENOMEM`, `EMFILE`.
    pub fn create(parts: Arc<Parts>, window: InodeId, shape: Shape) -> Result<Arc<Self>> {
        let created = WindowMemory::create(shape);
        let (memory, descriptor) =
            created.map_err(|error| Fault::from_os("creating the memory of a window", &error))?;
        let (state, nodes) = Default::default();
        Ok(Arc::new(Self { parts, window, memory, descriptor, state, nodes }))
    }

    /// A process of this node has attached.
    pub fn attach(self: &Arc<Self>, rank: u32) -> AttachedWindow {
        let mut state = self.state.lock();
        state.ranks.insert(rank);
        if let Some(errno) = state.broken {
            self.break_rank(rank, errno);
        }
        AttachedWindow { window: self.clone(), rank }
    }

    fn break_rank(&self, rank: u32, errno: Errno) {
        // The coordinator has checked the rank.
        let _ = self.memory.set_broken(rank, errno);
    }

    /// Barriers of the region fail. Waits fail too, unless a process has just detached: others may still send what is waited for.
    pub fn failed(&self, fault: &Fault) {
        if fault.errno == Errno::EPIPE {
            return;
        }
        let mut state = self.state.lock();
        let errno = *state.broken.get_or_insert(fault.errno);
        state.ranks.iter().for_each(|rank| self.break_rank(*rank, errno));
    }

    /// The node of each rank, once all have attached.
    async fn nodes(&self) -> Result<&[NodeId]> {
        if let Some(nodes) = self.nodes.get() {
            return Ok(nodes);
        }
        match self.parts.ask(self.window, RegionRequest::Ranks { region: self.window }).await? {
            RegionReply::Ranks(nodes) => Ok(self.nodes.get_or_init(|| nodes)),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Accesses a rank on any node.
    async fn access(
        &self,
        rank: u32,
        access: Access,
        payload: Option<Payload>,
    ) -> Result<(WindowReply, Option<Payload>)> {
        let node = self.nodes().await?.get(rank as usize).copied();
        let node = node.ok_or_else(|| refused(Errno::EINVAL, &access))?;
        if node == self.parts.rpc.local() {
            return self.apply(rank, &access, payload).await;
        }
        let request = WindowRequest { window: self.window, rank, access };
        let answer = self.parts.call(node, Request::Client(ClientRequest::Window(request)), payload).await?;
        match answer.reply {
            Reply::Client(ClientReply::Window(reply)) => Ok((reply, answer.payload)),
            Reply::Client(ClientReply::Failed(fault)) => Err(fault),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Applies an access to the memory of a rank of this node.
    pub async fn apply(
        &self,
        rank: u32,
        access: &Access,
        payload: Option<Payload>,
    ) -> Result<(WindowReply, Option<Payload>)> {
        if !self.state.lock().ranks.contains(&rank) {
            return Err(Fault::new(Errno::EPIPE, format!("rank {rank} has detached from the window")));
        }
        if let Access::Get { from } = access {
            let size = from.total().ok_or_else(|| refused(Errno::EINVAL, access))?;
            let mut frame = self.parts.engine.take_frame().await;
            let loaded = self.memory.load_elements(rank, from, &mut frame[..size as usize]);
            loaded.map_err(|errno| refused(errno, access))?;
            return Ok((WindowReply::Read, Some(Payload::new(Arc::new(frame), 0..size))));
        }
        let bytes = payload.as_deref().unwrap_or_default();
        let applied = self.apply_now(rank, access, bytes).map_err(|errno| refused(errno, access))?;
        Ok((applied, None))
    }

    fn apply_now(&self, rank: u32, access: &Access, bytes: &[u8]) -> std::result::Result<WindowReply, Errno> {
        let memory = &self.memory;
        match access {
            Access::Put { to, signal } => {
                if let Some(signal) = signal {
                    memory.check_word(rank, signal.offset)?;
                }
                memory.store_elements(rank, to, bytes)?;
                if let Some(signal) = signal {
                    memory.change(rank, signal.offset, signal.change)?;
                }
                memory.changed(rank)?;
                Ok(WindowReply::Done)
            }
            Access::Atomic { offset, operation } => {
                Ok(WindowReply::Previous(memory.atomic(rank, *offset, *operation)?))
            }
            Access::Send { queue } => {
                let is_sent = Queue::open(memory, (rank, *queue))?.send(bytes)?;
                Ok(if is_sent { WindowReply::Done } else { WindowReply::Full })
            }
            Access::Get { .. } => Err(Errno::EINVAL),
        }
    }
}

impl AttachedWindow {
    /// The descriptor of the memory, for the process.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.window.descriptor.as_fd()
    }

    /// Returns for each rank whether it is a process of this node.
    ///
    /// # Errors
    /// `EAGAIN` before the first barrier; `EHOSTDOWN` if the coordinator has failed.
    pub async fn are_near(&self) -> Result<Vec<bool>> {
        let local = self.window.parts.rpc.local();
        Ok(self.window.nodes().await?.iter().map(|node| *node == local).collect())
    }

    /// A frame for the bytes of an access.
    pub async fn take_frame(&self) -> Frame {
        self.window.parts.engine.take_frame().await
    }

    /// Accesses the memory of a rank on any node. The bytes of a get are returned.
    ///
    /// # Errors
    /// `EINVAL` beyond the memory; `EPIPE` if the rank has detached; `EHOSTDOWN` if its node has failed; those of the access.
    pub async fn access(
        &self,
        rank: u32,
        access: Access,
        payload: Option<Payload>,
    ) -> Result<(WindowReply, Option<Payload>)> {
        self.window.access(rank, access, payload).await
    }

    /// The process has ended or detached.
    pub(super) fn left(&self) {
        self.window.state.lock().ranks.remove(&self.rank);
    }
}
