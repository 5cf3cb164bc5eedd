//! Bugs on purpose: each proves that a checker fires.

use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_core::wire::client::ClientRequest;
use tameike_core::wire::lock::{LockReply, LockRequest, WaitEnd};
use tameike_core::wire::meta::{Command, MetaReply, MetaRequest, Step};
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, NodeId, Result, UnitId};
use tameike_fabric::{Answer, Rpc};
use tameike_io::os::simulated::Simulation;
use tameike_io::{Frame, Payload};

/// A bug in the simulator's own wrappers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Canary {
    /// Bytes on their way to their home are now and then dropped, and said to be there.
    LostFlush,
    /// A read is now and then answered with what the same read brought before.
    StaleRead,
    /// A node is now and then answered with what another one had in memory when it asked the same before.
    StaleHolder,
    /// A node sends what it has in memory without comparing its checksums.
    UncheckedSum,
    /// A rename on the shared file system takes away what it replaces before it puts the other there.
    TornRename,
    /// Two extents of a disk share their blocks.
    DoubleFreedExtent,
    /// The disks say that they have synced, and have not.
    LostSync,
    /// The disks say that a write is done which has failed.
    HiddenFailure,
    /// What rots on a disk still has its checksum.
    HiddenRot,
    /// A name is said to be counted without the home of its file being asked.
    UncountedName,
    /// A lock is now and then said to be granted without its home being asked.
    UnaskedLock,
    /// A lock is now and then said to be given back without its home being told.
    KeptLock,
    /// A wait for a lock is now and then said to last for ever without its home being asked.
    NeedlessDeadlock,
    /// A home is not told to end a wait that would last for ever.
    UntoldDeadlock,
    /// An agent that dies is said to be out of reach.
    UntoldDeath,
    /// A LOOKUP reply before an open now and then carries the size of an earlier file with the same inode number.
    OldAttributes,
    /// A write that finds no room waits at its home, with a frame of the home's.
    WaitingFrame,
}

impl Canary {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::LostFlush,
        Self::StaleRead,
        Self::StaleHolder,
        Self::UncheckedSum,
        Self::TornRename,
        Self::DoubleFreedExtent,
        Self::LostSync,
        Self::HiddenFailure,
        Self::HiddenRot,
        Self::UncountedName,
        Self::UnaskedLock,
        Self::KeptLock,
        Self::NeedlessDeadlock,
        Self::UntoldDeadlock,
        Self::UntoldDeath,
        Self::OldAttributes,
        Self::WaitingFrame,
    ];

    /// Whether it is in the way to other agents.
    pub(super) fn is_of_calls(self) -> bool {
        match self {
            Self::LostFlush
            | Self::StaleRead
            | Self::StaleHolder
            | Self::UncountedName
            | Self::UnaskedLock
            | Self::KeptLock
            | Self::NeedlessDeadlock
            | Self::UntoldDeadlock => true,
            Self::UncheckedSum
            | Self::TornRename
            | Self::DoubleFreedExtent
            | Self::LostSync
            | Self::HiddenFailure
            | Self::HiddenRot
            | Self::UntoldDeath
            | Self::OldAttributes
            | Self::WaitingFrame => false,
        }
    }

    /// Whether it must be found by what the stores look like, not by what programs are told.
    pub fn is_of_stores(self) -> bool {
        self == Self::DoubleFreedExtent
    }
}

type Question = (UnitId, u32, u32);

/// The way to other agents, with a bug in it.
pub(super) struct WrongRpc {
    pub inner: Arc<dyn Rpc>,
    pub canary: Canary,
    pub simulation: Simulation,
    pub answers: Arc<Mutex<BTreeMap<Question, Vec<u8>>>>,
}

impl WrongRpc {
    /// What is answered though nobody was asked.
    fn made_up(&self, request: &Request) -> Option<Result<Reply>> {
        let happens = || self.simulation.draw(8) == 0;
        match (self.canary, request) {
            (Canary::LostFlush, Request::Unit(UnitRequest::Write { .. })) if happens() => {
                Some(Ok(Reply::Unit(UnitReply::Done)))
            }
            (Canary::UnaskedLock, Request::Lock(LockRequest::Lock { .. }))
            | (Canary::KeptLock, Request::Lock(LockRequest::Unlock { .. }))
                if happens() =>
            {
                Some(Ok(Reply::Lock(LockReply::Done)))
            }
            (
                Canary::UncountedName,
                Request::Meta(MetaRequest::Execute(Command::Step { step: Step::AddLink { .. }, .. })),
            ) => Some(Ok(Reply::Meta(MetaReply::Done))),
            // Names are locked for no process.
            (Canary::NeedlessDeadlock, Request::Lock(LockRequest::Lock { lock, wait: true, .. }))
                if lock.pid > 0 && happens() =>
            {
                Some(Err(Errno::EDEADLK.into()))
            }
            (Canary::UntoldDeadlock, Request::Lock(LockRequest::EndWait { end: WaitEnd::Deadlock, .. })) => {
                Some(Ok(Reply::Lock(LockReply::Done)))
            }
            _ => None,
        }
    }
}

impl Rpc for WrongRpc {
    fn local(&self) -> NodeId {
        self.inner.local()
    }

    fn call(
        &self,
        to: NodeId,
        request: Request,
        payload: Option<Payload>,
        into: Option<Frame>,
    ) -> BoxFuture<'static, Result<Answer>> {
        if let Some(made_up) = self.made_up(&request) {
            return async { Ok(Answer { reply: made_up?, payload: None }) }.boxed();
        }
        match (self.canary, &request) {
            (Canary::StaleRead, Request::Unit(UnitRequest::Read { unit, offset, length, .. }))
            | (Canary::StaleHolder, Request::Client(ClientRequest::ReadHeld { unit, offset, length, .. })) => {
                let (question, answers) = ((*unit, *offset, *length), self.answers.clone());
                let call = self.inner.call(to, request, payload, into);
                async move {
                    let mut answer = call.await?;
                    let Some(bytes) = answer.payload.take() else { return Ok(answer) };
                    let before = answers.lock().insert(question, bytes.to_vec());
                    answer.payload = Some(match before.filter(|before| before.len() == bytes.len()) {
                        Some(before) => replaced(bytes, &before)?,
                        None => bytes,
                    });
                    Ok(answer)
                }
                .boxed()
            }
            _ => self.inner.call(to, request, payload, into),
        }
    }
}

/// The same place with other bytes. The payload of a reply is its caller's alone.
fn replaced(payload: Payload, bytes: &[u8]) -> Result<Payload> {
    let (start, length) = (payload.start(), payload.len() as u32);
    let mut frame = payload.into_frame().ok_or(Errno::EIO)?;
    frame[start as usize..(start + length) as usize].copy_from_slice(bytes);
    Ok(Payload::new(Arc::new(frame), start..start + length))
}
