//! Requests on the content of open files.

use super::convert::{Refusal, Served, reply_of};
use super::session::OpenFile;
use super::view::RingView;
use super::{Call, RingFrontend};
use crate::arbiter::InFlight;
use std::sync::Arc;
use tameike_client::data::Located;
use tameike_client::vfs::{HandleNumber, Vfs, WriteAt, WriteBytes};
use tameike_core::attr::AttrChange;
use tameike_core::limits::FILE_SIZE_MAX;
use tameike_core::wire::unit::Sought;
use tameike_core::{Errno, Result};
use tameike_ring::message::{Accepts, Reply};
use tameike_ring::server::Window;

/// Data of a write, in memory that the program can still change.
struct WindowBytes {
    window: Window<RingFrontend>,
    size: usize,
}

impl WriteBytes for WindowBytes {
    fn size(&self) -> usize {
        self.size
    }

    fn copy_to(&self, start: usize, into: &mut [u8]) {
        self.window.copy_to(start, into);
    }
}

impl WindowBytes {
    fn of(call: &Call, size: u32) -> Self {
        Self { window: call.window(), size: size as usize }
    }
}

/// Begins a request at the file's gate; declines it while the kernel has the file open.
fn begin(open: &OpenFile) -> Served<InFlight> {
    open.gate.begin().ok_or(Refusal::Declined)
}

impl<V: Vfs> RingView<V> {
    pub(super) fn read(
        self: Arc<Self>,
        call: Call,
        open: Arc<OpenFile>,
        (offset, size): (u64, u32),
        accepts: Accepts,
    ) {
        let view = self.clone();
        self.tasks.spawn(async move {
            let begun = view.begin_read(&open, offset);
            // Until a grant is made, too: when the kernel opens the file, the agent revokes grants after requests in flight.
            let _in_flight = match begun {
                Ok(in_flight) => in_flight,
                Err(refusal) => return call.answer(&reply_of(Err(refusal))),
            };
            if accepts.stale {
                view.vfs.drop_location(open.handle, offset);
            }
            let located = async {
                if accepts.located { view.vfs.locate(open.handle, offset, size).await } else { Ok(None) }
            };
            let call = match located.await {
                Ok(Some(Located { device, location, range })) => {
                    match call.answer_located(&device, &location, &range) {
                        Ok(()) => return,
                        Err(call) => call,
                    }
                }
                Ok(None) => call,
                Err(fault) => return call.answer(&reply_of(Err(fault.into()))),
            };
            match view.vfs.read(open.handle, offset, size).await {
                Ok(bytes) => {
                    let grantable = open.grantable.as_ref();
                    let is_granted = grantable.is_some_and(|file| file.grant(offset, bytes.len(), size));
                    if is_granted && accepts.granted {
                        call.answer(&Reply::Granted(bytes.len() as u32));
                    } else {
                        call.answer_with(&bytes);
                    }
                }
                Err(fault) => call.answer(&reply_of(Err(fault.into()))),
            }
        });
    }

    fn begin_read(&self, open: &OpenFile, offset: u64) -> Served<InFlight> {
        if !open.mode.read {
            return Err(Errno::EBADF.into());
        }
        if offset > FILE_SIZE_MAX {
            return Err(Errno::EINVAL.into());
        }
        begin(open)
    }

    /// Checks a write before its data is read.
    fn begin_write(&self, open: &OpenFile) -> Served<InFlight> {
        if !open.mode.write {
            return Err(Errno::EBADF.into());
        }
        // The kernel decides whether the write must clear set-ID bits.
        if open.gate.has_setid() {
            return Err(Refusal::Declined);
        }
        let in_flight = begin(open)?;
        self.arbiter.writes(&open.gate);
        Ok(in_flight)
    }

    /// Writes on the serving thread as far as that need not wait.
    pub(super) fn write(&self, call: Call, open: &OpenFile, (offset, size): (u64, u32)) {
        let in_flight = match self.begin_write(open) {
            Ok(in_flight) => in_flight,
            Err(refusal) => return call.answer(&reply_of(Err(refusal))),
        };
        let bytes = WindowBytes::of(&call, size);
        let (vfs, handle) = (self.vfs.clone(), open.handle);
        let done = move |written: Result<()>| {
            vfs.mark_pages_stale(handle);
            drop(in_flight);
            let written = written.map(|()| Reply::Count(size)).map_err(Refusal::Fault);
            call.answer(&reply_of(written));
        };
        self.backlog.write(&self.tasks, &self.vfs, (handle, WriteAt::Offset(offset), &bytes), done);
    }

    pub(super) fn append(self: Arc<Self>, call: Call, open: &OpenFile, size: u32) {
        let in_flight = match self.begin_write(open) {
            Ok(in_flight) => in_flight,
            Err(refusal) => return call.answer(&reply_of(Err(refusal))),
        };
        let (view, handle, bytes) = (self.clone(), open.handle, WindowBytes::of(&call, size));
        let done = move |written: Result<()>| {
            let this = view.clone();
            view.tasks.spawn(async move {
                let reply = this.appended(handle, size, written).await;
                drop(in_flight);
                call.answer(&reply_of(reply));
            });
        };
        self.backlog.write(&self.tasks, &self.vfs, (handle, WriteAt::End, &bytes), done);
    }

    async fn appended(&self, handle: HandleNumber, count: u32, written: Result<()>) -> Served {
        self.vfs.mark_pages_stale(handle);
        written.map_err(Refusal::Fault)?;
        // If another process has appended since, the position is after its data, so that the program reads nothing twice.
        let end = self.vfs.size(handle).await.map_err(Refusal::Fault)?;
        Ok(Reply::Appended { count, end })
    }

    pub(super) async fn set_size(&self, open: &OpenFile, size: u64) -> Served {
        if !open.mode.write {
            return Err(Errno::EINVAL.into());
        }
        if size > FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        let _in_flight = self.begin_write(open)?;
        let change = AttrChange { size: Some(size), ..AttrChange::default() };
        let changed = self.vfs.setattr(open.file, change).await;
        self.vfs.mark_pages_stale(open.handle);
        changed?;
        Ok(Reply::Done)
    }

    /// As in the FUSE frontend: a sync without writes before makes writes of other nodes visible (S2b).
    pub(super) async fn sync(&self, open: &OpenFile) -> Served {
        let only_awaits_others = self.vfs.only_awaits_others(open.handle);
        self.vfs.fsync(open.handle).await.map_err(Refusal::Fault)?;
        if only_awaits_others {
            self.vfs.revalidate(open.handle).await?;
        }
        Ok(Reply::Done)
    }

    pub(super) async fn seek(&self, open: &OpenFile, data: bool, offset: u64) -> Served {
        let _in_flight = begin(open)?;
        let sought = if data { Sought::Data } else { Sought::Hole };
        Ok(Reply::Offset(self.vfs.seek(open.handle, sought, offset).await?))
    }
}
