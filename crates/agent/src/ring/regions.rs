//! Requests on shared memory regions.

use super::convert::{Refusal, Served, reply_of};
use super::session::OpenFile;
use super::view::RingView;
use super::{Call, Ending};
use crate::fuse::Tasks;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tameike_client::region::{Attachment, Regions};
use tameike_client::vfs::Vfs;
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::wire::unit::SpaceChange;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::userfault::Userfault;
use tameike_ring::message::{Reply, Request};

/// The regions of the node, for programs.
pub(super) struct RingRegions {
    regions: Arc<Regions>,
    tasks: Tasks,
}

impl RingRegions {
    pub(super) fn new(regions: Arc<Regions>, tasks: Tasks) -> Self {
        Self { regions, tasks }
    }

    /// Serves a request on the program's region `number`.
    pub(super) fn serve(&self, call: Call, request: Request, number: u64) {
        // Before all else: a request that fails must not leave its descriptor for the next one.
        let passed = match request {
            Request::RegionMapped { .. } => call.take_descriptor(),
            _ => None,
        };
        let session = call.session();
        let region = match request {
            Request::RegionClose { .. } => session.remove_region(number),
            _ => session.region(number),
        };
        let Some(region) = region else { return call.answer(&Reply::Failed(Errno::EBADF.0)) };
        self.tasks.spawn(async move {
            let served = about(&region, request, passed).await;
            call.answer(&reply_of(served.map_err(Refusal::Fault)));
        });
    }

    /// Detaches a program that has ended.
    pub(super) fn detach_abandoned(&self, region: Arc<Attachment>, ending: Option<Arc<Ending>>) {
        // This thread must not block.
        self.tasks.spawn_apart(async move {
            if let Err(fault) = region.detach(true).await {
                log::warn!("detaching a program that has ended from its region: {fault}");
            }
            drop(ending);
        });
    }
}

async fn about(region: &Attachment, request: Request, passed: Option<OwnedFd>) -> Result<Reply> {
    match request {
        Request::RegionMapped { address, .. } => set_mapped(region, passed, address)?,
        Request::RegionFetch { page, write, .. } => {
            return Ok(Reply::Count(region.fetch(page, write).await?));
        }
        Request::RegionFlush { .. } => region.flush().await?,
        Request::RegionUpdate { .. } => region.update().await?,
        Request::RegionBarrier { .. } => region.barrier().await?,
        Request::RegionLock { lock, .. } => return Ok(Reply::Count(region.lock(lock).await?.into())),
        Request::RegionUnlock { lock, .. } => region.unlock(lock).await?,
        Request::RegionFetchAdd { offset, addend, .. } => {
            return Ok(Reply::Offset(region.fetch_add(offset, addend).await?));
        }
        Request::RegionClose { .. } => region.detach(false).await?,
        _ => return Err(Errno::EINVAL.into()),
    }
    Ok(Reply::Done)
}

fn set_mapped(region: &Attachment, passed: Option<OwnedFd>, address: u64) -> Result<()> {
    let failed = |error| Fault::from_os("taking the page faults of a program", &error);
    let userfault = passed.ok_or_else(|| Fault::new(Errno::EBADF, "the program has sent no userfaultfd"))?;
    let size = u64::from(region.memory().pages()) * BLOCK_SIZE as u64;
    region.mapped(Userfault::of_process(userfault, address, size).map_err(failed)?);
    Ok(())
}

impl<V: Vfs> RingView<V> {
    pub(super) fn open_region(
        self: Arc<Self>,
        call: Call,
        open: Arc<OpenFile>,
        processes: u32,
        (alone, reserve): (bool, bool),
    ) {
        let view = self.clone();
        self.tasks.spawn(async move {
            let served = view.attach(&call, &open, processes, (alone, reserve)).await;
            call.answer(&reply_of(served));
        });
    }

    async fn attach(
        &self,
        call: &Call,
        open: &OpenFile,
        processes: u32,
        (alone, reserve): (bool, bool),
    ) -> Served {
        if !open.mode.read || !open.mode.write {
            return Err(Errno::EBADF.into());
        }
        let regions = self.regions.as_ref().ok_or(Errno::EOPNOTSUPP)?;
        if !call.session().can_attach() {
            return Err(Errno::EMFILE.into());
        }
        // Another node may have set the size since the open.
        self.vfs.revalidate(open.handle).await?;
        let file = self.vfs.region_file(open.handle).ok_or(Errno::EOPNOTSUPP)?;
        if reserve {
            let bytes = 0..u64::from(file.pages) * BLOCK_SIZE as u64;
            match self.vfs.change_space(open.handle, SpaceChange::Allocate, bytes, false).await {
                Err(fault) if fault.errno != Errno::EOPNOTSUPP => return Err(fault.into()),
                _ => {}
            }
        }
        let attached = regions.regions.attach(file, processes, alone).await.map_err(Refusal::Fault)?;
        let memory = attached.memory().descriptors().ok_or_else(|| Fault::from(Errno::EIO));
        match memory.and_then(|memory| call.send_region(&memory)) {
            Ok(()) => {
                let (owner, pages) = (attached.owner(), file.pages);
                Ok(Reply::Region { number: call.session().add_region(attached), owner, pages })
            }
            Err(fault) => {
                let detached = attached.detach(false).await;
                detached.inspect_err(|fault| log::warn!("detaching from a region: {fault}")).ok();
                Err(Refusal::Fault(fault))
            }
        }
    }
}
