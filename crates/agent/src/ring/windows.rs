//! Requests on remote memory windows.

use super::Call;
use super::convert::{Refusal, Served, reply_of};
use super::session::OpenFile;
use super::view::RingView;
use std::sync::Arc;
use tameike_client::region::{AttachedWindow, Attachment, Shape};
use tameike_client::vfs::Vfs;
use tameike_core::wire::window::{Access, WindowReply};
use tameike_core::{Errno, Fault, Result};
use tameike_io::Payload;
use tameike_ring::message::{Reply, Request};

impl<V: Vfs> RingView<V> {
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

/// Serves a request on a window.
pub(super) async fn serve(call: Call, attached: &Attachment, request: Request) {
    let Some(window) = attached.window() else { return call.answer(&Reply::Failed(Errno::EINVAL.0)) };
    let served = match request {
        Request::WindowRanks { .. } => match window.are_near().await {
            Ok(near) => {
                let near: Vec<u8> = near.into_iter().map(u8::from).collect();
                return call.answer_with(&near);
            }
            Err(fault) => Err(fault),
        },
        Request::WindowAccess { rank, access, size, .. } => {
            match access_rank(&call, window, rank, access, size).await {
                Ok((_, Some(bytes))) => return call.answer_with(&bytes),
                Ok((WindowReply::Previous(value), None)) => Ok(Reply::Offset(value)),
                Ok((WindowReply::Done, None)) => Ok(Reply::Count(size)),
                // An empty payload is none.
                Ok((WindowReply::Read, None)) => Ok(Reply::Count(0)),
                Ok((WindowReply::Full, None)) => Err(Errno::EAGAIN.into()),
                Err(fault) => Err(fault),
            }
        }
        _ => Err(Errno::EINVAL.into()),
    };
    call.answer(&reply_of(served.map_err(Refusal::Fault)));
}

async fn access_rank(
    call: &Call,
    window: &AttachedWindow,
    rank: u32,
    access: Access,
    size: u32,
) -> Result<(WindowReply, Option<Payload>)> {
    if size == 0 {
        return window.access(rank, access, None).await;
    }
    let mut frame = window.take_frame().await;
    call.window().copy_to(0, &mut frame[..size as usize]);
    window.access(rank, access, Some(Payload::new(Arc::new(frame), 0..size))).await
}
