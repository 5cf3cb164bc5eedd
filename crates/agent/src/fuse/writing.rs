//! Writes of the kernel: what comes before them, and what before their answers.

use super::FuseDoor;
use super::answer::answer_write;
use super::convert::errno;
use tameike_client::vfs::{FileNumber, HandleNumber, Vfs, WriteAt, WriteBytes, without_rights};
use tameike_core::attr::AttrChange;
use tameike_core::{Errno, Result};
use tameike_fuse::{Reply, WriteFlags};

impl<V: Vfs> FuseDoor<V> {
    /// Writes bytes, and answers; asked to, it first takes away what rights the file gives to who runs it.
    pub(super) fn write_bytes(
        &self,
        file: FileNumber,
        (handle, offset, data): (HandleNumber, u64, &dyn WriteBytes),
        flags: WriteFlags,
        reply: Reply,
    ) {
        // Through its pages, the kernel sees to it.
        if flags.takes_rights && self.custody.gives_rights(file) {
            // It is rare enough to hold this thread up.
            let taken = self.tasks.wait(|| pollster::block_on(self.take_rights(file)));
            if let Err(fault) = taken {
                return reply.error(errno(&fault));
            }
        }
        let answer = self.written(file, handle, (offset, data.size() as u32), flags, reply);
        let at = if flags.appends { WriteAt::End } else { WriteAt::Offset(offset) };
        self.waiting.write(&self.tasks, &self.vfs, (handle, at, data), answer);
    }

    /// Takes away what rights a file gives to who runs it, before somebody without privileges writes to it.
    async fn take_rights(&self, file: FileNumber) -> Result<()> {
        let taken = async {
            // Before it is looked at: who gives it rights after that is heard.
            self.custody.set_gives_rights(file, false);
            let mode = self.vfs.getattr(file).await?.mode;
            let left = without_rights(mode);
            if left != mode {
                let change = AttrChange { mode: Some(left), ..AttrChange::default() };
                match self.vfs.setattr(file, change).await {
                    // Of a file of another owner the file system below takes them when it is written.
                    Err(fault) if fault.errno == Errno::EPERM => {}
                    changed => {
                        changed?;
                    }
                }
                self.custody.kernel().drop_attributes(file).await?;
            }
            Ok(())
        };
        taken.await.inspect_err(|_| self.custody.set_gives_rights(file, true))
    }

    /// Answers a write, when all who read on this node see its bytes.
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
            // Pages that are written back stay right. Dropping them would wait for this very answer.
            let is_direct = !flags.writes_back && kernel.is_direct(file, handle);
            if is_direct {
                vfs.pages_passed(handle);
            }
            if !is_direct || written.is_err() || !kernel.is_used(file) {
                return answer_write(reply, size, written);
            }
            runtime.spawn(async move {
                answer_write(reply, size, kernel.drop_bytes(file, offset, size).await);
            });
        }
    }
}
