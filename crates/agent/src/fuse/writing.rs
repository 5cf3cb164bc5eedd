//! Write requests of the kernel: clears set-ID bits before them, and drops stale pages after them.

use super::FuseFrontend;
use super::answer::answer;
use super::convert::errno;
use tameike_client::vfs::{FileNumber, HandleNumber, Vfs, WriteAt, WriteBytes, without_setid};
use tameike_core::attr::AttrChange;
use tameike_core::{Errno, Result};
use tameike_fuse::{Reply, WriteFlags};

impl<V: Vfs> FuseFrontend<V> {
    /// Writes data, and replies. If the kernel requests it, clears set-ID bits of the file first.
    pub(super) fn write_bytes(
        &self,
        file: FileNumber,
        (handle, offset, data): (HandleNumber, u64, &dyn WriteBytes),
        flags: WriteFlags,
        reply: Reply,
    ) {
        // For writes through the page cache, the kernel does it.
        if flags.takes_rights && self.arbiter.has_setid(file) {
            // Rare enough to block this thread.
            let cleared = self.tasks.wait(|| pollster::block_on(self.clear_setid(file)));
            if let Err(fault) = cleared {
                return reply.error(errno(&fault));
            }
        }
        let answer = self.written(file, handle, (offset, data.size() as u32), flags, reply);
        let at = if flags.appends { WriteAt::End } else { WriteAt::Offset(offset) };
        self.backlog.write(&self.tasks, &self.vfs, (handle, at, data), answer);
    }

    async fn clear_setid(&self, file: FileNumber) -> Result<()> {
        let cleared = async {
            // Before the mode is read, so that a concurrent chmod is not missed.
            self.arbiter.set_has_setid(file, false);
            let mode = self.vfs.getattr(file).await?.mode;
            let left = without_setid(mode);
            if left != mode {
                let change = AttrChange { mode: Some(left), ..AttrChange::default() };
                let changed = self.vfs.setattr(file, change).await;
                // For a file of another owner, the file system below clears them at the write.
                if !changed.as_ref().is_err_and(|fault| fault.errno == Errno::EPERM) {
                    changed?;
                }
                self.arbiter.kernel().drop_attributes(file).await?;
            }
            Ok(())
        };
        cleared.await.inspect_err(|_| self.arbiter.set_has_setid(file, true))
    }

    /// Replies to a write once all readers on this node see its data.
    fn written(
        &self,
        file: FileNumber,
        handle: HandleNumber,
        (offset, size): (u64, u32),
        flags: WriteFlags,
        reply: Reply,
    ) -> impl FnOnce(Result<()>) + Send + use<V> {
        let (runtime, vfs, kernel) = (self.tasks.runtime().clone(), self.vfs.clone(), self.kernel_cache());
        move |written| {
            // Pages that are written back are up to date, and dropping them would wait for this reply.
            let is_direct = !flags.writes_back && kernel.is_direct(file, handle);
            if is_direct {
                vfs.mark_pages_stale(handle);
            }
            if !is_direct || written.is_err() || !kernel.is_used(file) {
                return answer(reply, written, |reply, ()| reply.size(size));
            }
            runtime.spawn(async move {
                let dropped = kernel.drop_bytes(file, offset, size).await;
                answer(reply, dropped, |reply, ()| reply.size(size));
            });
        }
    }
}
