//! Attaches programs to shared memory regions and remote memory windows.

use super::Call;
use super::convert::{Refusal, Served, reply_of};
use super::session::OpenFile;
use super::view::RingView;
use std::sync::Arc;
use tameike_client::region::Shape;
use tameike_client::vfs::Vfs;
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::wire::unit::SpaceChange;
use tameike_core::{Errno, Fault};
use tameike_ring::message::Reply;

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
        let file =
            self.vfs.region_file(open.handle).filter(|file| file.pages > 0).ok_or(Errno::EOPNOTSUPP)?;
        if reserve {
            let bytes = 0..u64::from(file.pages) * BLOCK_SIZE as u64;
            match self.vfs.change_space(open.handle, SpaceChange::Allocate, bytes, false).await {
                Err(fault) if fault.errno != Errno::EOPNOTSUPP => return Err(fault.into()),
                _ => {}
            }
        }
        let attached = regions.attach(file, processes, alone).await.map_err(Refusal::Fault)?;
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

    pub(super) fn open_window(
        self: Arc<Self>,
        call: Call,
        open: Arc<OpenFile>,
        rank: u32,
        (ranks, bytes): (u32, u64),
    ) {
        let view = self.clone();
        self.tasks.spawn(async move {
            let served = view.attach_window(&call, &open, rank, (ranks, bytes)).await;
            call.answer(&reply_of(served));
        });
    }

    async fn attach_window(
        &self,
        call: &Call,
        open: &OpenFile,
        rank: u32,
        (ranks, bytes): (u32, u64),
    ) -> Served {
        if !open.mode.read || !open.mode.write {
            return Err(Errno::EBADF.into());
        }
        let regions = self.regions.as_ref().ok_or(Errno::EOPNOTSUPP)?;
        if !call.session().can_attach() {
            return Err(Errno::EMFILE.into());
        }
        let shape = Shape::new(ranks, bytes)?;
        // Another node may have changed the file since the open.
        self.vfs.revalidate(open.handle).await?;
        let file = self.vfs.region_file(open.handle).ok_or(Errno::EOPNOTSUPP)?;
        let attached = regions.attach_window(file, shape, rank).await.map_err(Refusal::Fault)?;
        let window = attached.window().ok_or_else(|| Fault::from(Errno::EIO));
        match window.and_then(|window| call.send_window(window.memory())) {
            Ok(()) => Ok(Reply::Offset(call.session().add_region(attached))),
            Err(fault) => {
                let detached = attached.detach(false).await;
                detached.inspect_err(|fault| log::warn!("detaching from a window: {fault}")).ok();
                Err(Refusal::Fault(fault))
            }
        }
    }
}
