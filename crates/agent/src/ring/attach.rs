//! Attaches programs to shared memory regions and remote memory windows.

use super::Call;
use super::convert::{Refusal, Served, reply_of};
use super::session::OpenFile;
use super::view::RingView;
use std::sync::Arc;
use tameike_client::region::{Attachment, RegionFile, Shape};
use tameike_client::vfs::Vfs;
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::wire::unit::SpaceChange;
use tameike_core::{Errno, Fault, Result};
use tameike_ring::message::{Reply, Request};

impl<V: Vfs> RingView<V> {
    /// Serves [`Request::RegionOpen`] and [`Request::WindowOpen`].
    pub(super) fn attach(self: Arc<Self>, call: Call, open: Arc<OpenFile>, request: Request) {
        let view = self.clone();
        self.tasks.spawn(async move {
            let served = view.try_attach(&call, &open, &request).await;
            call.answer(&reply_of(served));
        });
    }

    async fn try_attach(&self, call: &Call, open: &OpenFile, request: &Request) -> Served {
        if !open.mode.read || !open.mode.write {
            return Err(Errno::EBADF.into());
        }
        if !call.session().can_attach() {
            return Err(Errno::EMFILE.into());
        }
        // Another node may have changed the file since the open.
        self.vfs.revalidate(open.handle).await?;
        let file = self.vfs.region_file(open.handle).ok_or(Errno::EOPNOTSUPP)?;
        let attached = self.attach_to(open, file, request).await?;
        if let Err(fault) = send_memory(call, &attached) {
            let detached = attached.detach(false).await;
            detached.inspect_err(|fault| log::warn!("detaching a program: {fault}")).ok();
            return Err(Refusal::Fault(fault));
        }
        let (owner, is_window) = (attached.owner(), attached.window().is_some());
        let number = call.session().add_region(attached);
        Ok(if is_window { Reply::Offset(number) } else { Reply::Region { number, owner, pages: file.pages } })
    }

    async fn attach_to(
        &self,
        open: &OpenFile,
        file: RegionFile,
        request: &Request,
    ) -> std::result::Result<Arc<Attachment>, Refusal> {
        let regions = self.regions.as_ref().ok_or(Errno::EOPNOTSUPP)?;
        let attached = match *request {
            Request::RegionOpen { .. } if file.pages == 0 => Err(Errno::EOPNOTSUPP.into()),
            Request::RegionOpen { terms, reserve, .. } => {
                if reserve {
                    self.reserve(open, file).await?;
                }
                regions.attach(file, terms).await
            }
            Request::WindowOpen { rank, ranks, bytes, .. } => {
                regions.attach_window(file, Shape::new(ranks, bytes)?, rank).await
            }
            _ => Err(Errno::EINVAL.into()),
        };
        attached.map_err(Refusal::Fault)
    }

    /// Reserves space for the whole file, if its view can do that.
    async fn reserve(&self, open: &OpenFile, file: RegionFile) -> Result<()> {
        let bytes = 0..u64::from(file.pages) * BLOCK_SIZE as u64;
        match self.vfs.change_space(open.handle, SpaceChange::Allocate, bytes, false).await {
            Err(fault) if fault.errno != Errno::EOPNOTSUPP => Err(fault),
            _ => Ok(()),
        }
    }
}

/// Sends the memory of a region or window to the program.
fn send_memory(call: &Call, attached: &Attachment) -> Result<()> {
    match attached.window() {
        Some(window) => call.send_window(window.memory()),
        None => {
            let memory = attached.memory().descriptors().ok_or_else(|| Fault::from(Errno::EIO))?;
            call.send_region(&memory)
        }
    }
}
