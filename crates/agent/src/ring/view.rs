//! Serves ring requests to one view.

use super::convert::{Refusal, Served, reply_of, status_of};
use super::directory_cache::{DirectoryCache, Lookup};
use super::regions::RingRegions;
use super::session::OpenFile;
use super::{Call, Ending, ShownView};
use crate::arbiter::Arbiter;
use crate::fuse::{Tasks, WriteBacklog};
use std::sync::Arc;
use std::time::Duration;
use tameike_client::vfs::Vfs;
use tameike_core::{Errno, Result};
use tameike_ring::message::{Reply, Request};

/// A view of any type.
pub(super) trait AnyView: Send + Sync + 'static {
    fn serve_path(self: Arc<Self>, call: Call, request: Request);
    fn serve_open(self: Arc<Self>, call: Call, request: Request, open: Arc<OpenFile>);
    /// Closes a file that the program did not change, without a reply.
    fn close_unchanged(self: Arc<Self>, open: Arc<OpenFile>);
    /// Closes a file whose program has ended.
    fn close_abandoned(self: Arc<Self>, open: Arc<OpenFile>, ending: Option<Arc<Ending>>);
}

/// A view that the ring serves.
pub(super) struct RingView<V: Vfs> {
    /// Index by which programs know the view.
    pub index: usize,
    pub vfs: Arc<V>,
    pub tasks: Tasks,
    pub backlog: WriteBacklog,
    pub arbiter: Arc<Arbiter>,
    pub directory_cache: DirectoryCache<V>,
    /// Shares names with programs. `None` if programs must request each name.
    pub shown: Option<Arc<ShownView>>,
    /// Shared memory regions of the node, if the job has them.
    pub regions: Option<Arc<RingRegions>>,
}

impl<V: Vfs> RingView<V> {
    pub(super) fn now(&self) -> Duration {
        self.tasks.runtime().clock.monotonic()
    }

    async fn at_path(&self, call: &Call, request: Request) -> Served {
        match request {
            Request::Open { path, flags, mode } => self.open(call, &path, flags, mode).await,
            Request::StatusAt { path, follow } => self.status_at(call, &path, follow).await,
            Request::Unlink { path } => self.unlink(call, &path).await,
            Request::MakeDir { path, mode } => self.make_dir(call, &path, mode).await,
            Request::Rename { from, to, flags } => self.rename(call, (&from, &to), flags).await,
            _ => Err(Refusal::Declined),
        }
    }

    async fn about(&self, request: Request, open: &OpenFile) -> Served {
        match request {
            Request::Status { .. } => {
                Ok(Reply::Status(status_of(open.file, &self.vfs.getattr(open.file).await?)))
            }
            Request::SetSize { size, .. } => self.set_size(open, size).await,
            Request::Sync { .. } => self.sync(open).await,
            Request::Seek { data, offset, .. } => self.seek(open, data, offset).await,
            _ => Err(Refusal::Declined),
        }
    }

    /// The part of a close before the reply.
    async fn flush(&self, open: &OpenFile) -> Result<()> {
        if open.mode.write { self.vfs.flush(open.handle).await } else { Ok(()) }
    }

    /// The part of a close after the reply.
    async fn release(&self, open: &OpenFile) {
        if let Some(name) = open.name.get() {
            self.arbiter.end_handover(name);
        }
        self.vfs.release(open.handle).await;
        self.arbiter.release(open.file);
        drop(Lookup::new(&self.vfs, open.file));
    }

    fn close(self: Arc<Self>, call: Call, open: Arc<OpenFile>) {
        let view = self.clone();
        self.tasks.spawn(async move {
            let flushed = view.flush(&open).await;
            call.answer(&reply_of(flushed.map(|()| Reply::Done).map_err(Refusal::Fault)));
            view.release(&open).await;
        });
    }

    /// Closes a file whose program has ended, and logs errors.
    async fn close_unreported(&self, open: &OpenFile) {
        if let Err(fault) = self.flush(open).await {
            log::warn!("closing a file of a program that has ended: {fault}");
        }
        self.release(open).await;
    }

    fn hand_over(&self, call: Call, open: &OpenFile) {
        let name = open.name.get_or_init(|| self.arbiter.hand_over(open.file));
        call.answer_with(name);
    }
}

impl<V: Vfs> AnyView for RingView<V> {
    fn serve_path(self: Arc<Self>, call: Call, request: Request) {
        let view = self.clone();
        self.tasks.spawn(async move {
            let served = view.at_path(&call, request).await;
            call.answer(&reply_of(served));
        });
    }

    fn serve_open(self: Arc<Self>, call: Call, request: Request, open: Arc<OpenFile>) {
        match request {
            Request::Read { offset, size, accepts, .. } => self.read(call, open, (offset, size), accepts),
            Request::Write { offset, size, .. } => self.write(call, &open, (offset, size)),
            Request::Append { size, .. } => self.append(call, &open, size),
            Request::HandOver { .. } => self.hand_over(call, &open),
            Request::RegionOpen { .. } | Request::WindowOpen { .. } => self.attach(call, open, request),
            Request::Close { handle } => match call.session().remove(handle) {
                Some(open) => self.close(call, open),
                // Another thread has closed it.
                None => call.answer(&Reply::Failed(Errno::EBADF.0)),
            },
            _ => {
                let view = self.clone();
                self.tasks.spawn(async move {
                    let served = view.about(request, &open).await;
                    call.answer(&reply_of(served));
                });
            }
        }
    }

    fn close_unchanged(self: Arc<Self>, open: Arc<OpenFile>) {
        let view = self.clone();
        // No flush: the file was not changed through this handle, and errors of other writes must go to calls that report them.
        self.tasks.spawn(async move { view.release(&open).await });
    }

    fn close_abandoned(self: Arc<Self>, open: Arc<OpenFile>, ending: Option<Arc<Ending>>) {
        let view = self.clone();
        // This thread must not block.
        self.tasks.spawn_apart(async move {
            view.close_unreported(&open).await;
            drop(ending);
        });
    }
}
