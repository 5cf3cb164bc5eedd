//! Requests on remote memory windows.

use super::Call;
use super::convert::{Refusal, reply_of};
use std::sync::Arc;
use tameike_client::region::{AttachedWindow, Attachment};
use tameike_core::wire::window::{Access, WindowReply};
use tameike_core::{Errno, Result};
use tameike_io::Payload;
use tameike_ring::message::{Reply, Request};

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
