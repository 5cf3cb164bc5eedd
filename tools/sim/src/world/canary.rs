//! Injected bugs: each proves that a check detects it.

use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tameike_core::wire::client::ClientRequest;
use tameike_core::wire::lock::{LockReply, LockRequest, WaitEnd};
use tameike_core::wire::meta::{Command, MetaReply, MetaRequest, Step};
use tameike_core::wire::reclaim::Reclaim;
use tameike_core::wire::replica::{ReplicaReply, ReplicaRequest};
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, NodeId, Result, UnitId};
use tameike_fabric::{Answer, Destination, Rpc};
use tameike_io::os::simulated::Simulation;
use tameike_io::{Frame, Payload};

/// A bug that the simulator's wrappers inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Canary {
    /// The fabric drops some writes to homes, and acknowledges them.
    LostFlush,
    /// Some reads return what the same read returned before.
    StaleRead,
    /// Some peer reads return what the same peer read returned before.
    StaleHolder,
    /// A cache holder sends frames without verifying their checksums.
    UncheckedSum,
    /// A rename on the shared file system removes its target before it renames the source.
    TornRename,
    /// Two extents of a disk share their blocks.
    DoubleFreedExtent,
    /// Disks acknowledge syncs that they do not execute.
    LostSync,
    /// Disks acknowledge writes that failed.
    HiddenFailure,
    /// Rotten blocks match their checksums.
    HiddenRot,
    /// A new link is acknowledged, but not sent to the file's home.
    UncountedName,
    /// Some locks are granted, but not requested from their home.
    UnrequestedLock,
    /// Some unlocks are acknowledged, but not sent to the home.
    KeptLock,
    /// Some lock requests fail with EDEADLK without a deadlock.
    NeedlessDeadlock,
    /// The home does not learn of a deadlock, so the wait does not end.
    UnreportedDeadlock,
    /// A failed agent is reported as unreachable.
    UnreportedFailure,
    /// Some LOOKUP replies before an open carry the size of an earlier file with the same inode number.
    OldAttributes,
    /// A write that gets ENOSPC waits at its home, and keeps a frame of the home.
    WaitingFrame,
    /// A flush of a region returns before the coordinator has its announcement.
    EarlyFlush,
    /// Some pages that other nodes have changed are not dropped by an update.
    UndroppedPage,
    /// Pages with numbers that processes add to at their home are not announced.
    UnannouncedSum,
    /// An update does not change the twins of written pages.
    UnmergedTwin,
    /// Some bytes of units are acknowledged, but not sent to the backup.
    LostCopy,
    /// A node to which a home is copied keeps units of its earlier copy that the primary has removed.
    OldUnits,
    /// Some log records of homes are acknowledged, but not sent to the backup.
    LostRecord,
    /// Nodes do not reclaim what their programs have open and locked from a new primary.
    EmptyReclaim,
    /// A node serves homes without the lease of the home map.
    EndlessLease,
    /// A driver that takes over does not wait until the leases of the one before have ended.
    HastyDriver,
    /// Primaries do not keep the results of calls.
    ForgottenCall,
}

impl Canary {
    /// Returns true if the check of the stores must detect it, and not the model.
    pub fn is_of_stores(self) -> bool {
        self == Self::DoubleFreedExtent
    }

    /// Returns true if only programs on homes with replicas can detect it.
    pub fn is_of_replicas(self) -> bool {
        let of_replicas = [
            Self::LostCopy,
            Self::OldUnits,
            Self::LostRecord,
            Self::EmptyReclaim,
            Self::EndlessLease,
            Self::ForgottenCall,
        ];
        of_replicas.contains(&self)
    }

    /// Returns true if random programs do not detect it: a test of leases does.
    pub fn is_of_leases(self) -> bool {
        self == Self::HastyDriver
    }

    /// Returns true if only programs on shared memory regions can detect it.
    pub fn is_of_regions(self) -> bool {
        [Self::EarlyFlush, Self::UndroppedPage, Self::UnannouncedSum, Self::UnmergedTwin].contains(&self)
    }
}

type ReadKey = (UnitId, u32, u32);

/// Calls to other agents, with an injected bug if the canary is one of calls.
pub(super) struct BuggyRpc {
    pub inner: Arc<dyn Rpc>,
    pub canary: Canary,
    pub simulation: Simulation,
    pub replies: Arc<Mutex<BTreeMap<ReadKey, Vec<u8>>>>,
    /// Pages with numbers that processes add to at their home.
    pub sums: Arc<Mutex<BTreeSet<u32>>>,
}

impl BuggyRpc {
    /// Returns a reply that replaces the call.
    fn forged(&self, request: &Request) -> Option<Result<Reply>> {
        let happens = || self.simulation.draw(8) == 0;
        let reply = match (self.canary, request) {
            (Canary::LostFlush, Request::Unit(UnitRequest::Write { .. } | UnitRequest::Patch { .. }))
                if happens() =>
            {
                Reply::Unit(UnitReply::Done)
            }
            (Canary::UnrequestedLock, Request::Lock(LockRequest::Lock { .. }))
            | (Canary::KeptLock, Request::Lock(LockRequest::Unlock { .. }))
                if happens() =>
            {
                Reply::Lock(LockReply::Done)
            }
            (Canary::LostCopy, Request::Replica(ReplicaRequest::Write { .. })) if happens() => {
                Reply::Replica(ReplicaReply::Done)
            }
            (Canary::OldUnits, Request::Replica(ReplicaRequest::EndCopy { .. })) => {
                Reply::Replica(ReplicaReply::Done)
            }
            (Canary::LostRecord, Request::Replica(ReplicaRequest::Records(_))) if happens() => {
                Reply::Replica(ReplicaReply::Appended { differing: Vec::new() })
            }
            (
                Canary::UncountedName,
                Request::Meta(MetaRequest::Execute(Command::Step { step: Step::AddLink { .. }, .. })),
            ) => Reply::Meta(MetaReply::Done),
            // Requests without a process are of the product's name locks.
            (Canary::NeedlessDeadlock, Request::Lock(LockRequest::Lock { lock, wait: true, .. }))
                if lock.pid > 0 && happens() =>
            {
                return Some(Err(Errno::EDEADLK.into()));
            }
            (
                Canary::UnreportedDeadlock,
                Request::Lock(LockRequest::EndWait { end: WaitEnd::Deadlock, .. }),
            ) => Reply::Lock(LockReply::Done),
            _ => return None,
        };
        Some(Ok(reply))
    }
}

impl Rpc for BuggyRpc {
    fn local(&self) -> NodeId {
        self.inner.local()
    }

    fn call(
        &self,
        to: Destination,
        request: Request,
        payload: Option<Payload>,
        into: Option<Frame>,
    ) -> BoxFuture<'static, Result<Answer>> {
        if let Some(forged) = self.forged(&request) {
            return async { Ok(Answer { reply: forged?, payload: None }) }.boxed();
        }
        if let Some(call) = self.region_call(to, &request) {
            return call;
        }
        let request = match request {
            Request::Reclaim(Reclaim { complete, .. }) if self.canary == Canary::EmptyReclaim => {
                Request::Reclaim(Reclaim { complete, ..Reclaim::default() })
            }
            request => request,
        };
        match (self.canary, &request) {
            (Canary::StaleRead, Request::Unit(UnitRequest::Read { unit, offset, length, .. }))
            | (Canary::StaleHolder, Request::Client(ClientRequest::ReadHeld { unit, offset, length, .. })) => {
                let (key, replies) = ((*unit, *offset, *length), self.replies.clone());
                let call = self.inner.call(to, request, payload, into);
                async move {
                    let mut answer = call.await?;
                    let Some(bytes) = answer.payload.take() else { return Ok(answer) };
                    let before = replies.lock().insert(key, bytes.to_vec());
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

/// Replaces the bytes of a reply's payload, which no other owner shares.
fn replaced(payload: Payload, bytes: &[u8]) -> Result<Payload> {
    let (start, length) = (payload.start(), payload.len() as u32);
    let mut frame = payload.into_frame().ok_or(Errno::EIO)?;
    frame[start as usize..(start + length) as usize].copy_from_slice(bytes);
    Ok(Payload::new(Arc::new(frame), start..start + length))
}
