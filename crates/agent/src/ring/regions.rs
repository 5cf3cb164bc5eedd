//! Requests on shared memory regions.

use super::convert::{Refusal, reply_of};
use super::{Call, Ending, windows};
use crate::fuse::Tasks;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tameike_client::region::{Attachment, ProcessMapping, RegionFile, Regions, Shape};
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::region::Terms;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::pagemap::Pagemap;
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

    /// Attaches a program of this node.
    pub(super) async fn attach(&self, file: RegionFile, terms: Terms) -> Result<Arc<Attachment>> {
        self.regions.attach(file, terms).await
    }

    /// Attaches a program of this node to a window.
    pub(super) async fn attach_window(
        &self,
        file: RegionFile,
        shape: Shape,
        rank: u32,
    ) -> Result<Arc<Attachment>> {
        self.regions.attach_window(file, shape, rank).await
    }

    /// Serves a request on the program's region `number`.
    pub(super) fn serve(&self, call: Call, request: Request, number: u64) {
        let session = call.session();
        let region = match request {
            Request::RegionClose { .. } => session.remove_region(number),
            _ => session.region(number),
        };
        // Before the request can fail: it must not leave its descriptors for the next one.
        let passed = match request {
            Request::RegionMapped { .. } => call.take_descriptors(),
            _ => VecDeque::new(),
        };
        let Some(region) = region else { return call.answer(&Reply::Failed(Errno::EBADF.0)) };
        if let Request::WindowRanks { .. } | Request::WindowAccess { .. } = request {
            return self.tasks.spawn(async move { windows::serve(call, &region, request).await });
        }
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

async fn about(region: &Attachment, request: Request, passed: VecDeque<OwnedFd>) -> Result<Reply> {
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
        Request::RegionAllocate { bytes, alignment, .. } => {
            return Ok(Reply::Offset(region.allocate(bytes, alignment).await?));
        }
        Request::RegionFree { offset, .. } => region.free(offset).await?,
        Request::RegionClose { .. } => region.detach(false).await?,
        _ => return Err(Errno::EINVAL.into()),
    }
    Ok(Reply::Done)
}

fn set_mapped(region: &Attachment, mut passed: VecDeque<OwnedFd>, address: u64) -> Result<()> {
    let failed = |error| Fault::from_os("taking the page faults of a program", &error);
    let mut take = |what| {
        passed.pop_front().ok_or_else(|| Fault::new(Errno::EBADF, format!("the program has sent no {what}")))
    };
    let size = u64::from(region.memory().pages()) * BLOCK_SIZE as u64;
    let userfault = Userfault::of_process(take("userfaultfd")?, address, size).map_err(failed)?;
    let pagemap = match region.tracks_written_pages() {
        true => Some(Pagemap::of_process(take("page table")?).map_err(failed)?),
        false => None,
    };
    region.mapped(ProcessMapping { userfault, pagemap });
    Ok(())
}
