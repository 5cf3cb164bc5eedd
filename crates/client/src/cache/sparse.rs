//! Holes in files of the cache view. The shared file owns the allocation; data is in the shared file, or dirty in the pool.

use super::CacheView;
use super::opens::OpenFile;
use crate::data::FileVersion;
use crate::passthrough::{change_space, seek_of};
use std::ops::Range;
use tameike_core::wire::cache::CacheRequest;
use tameike_core::wire::unit::{Sought, SpaceChange};
use tameike_core::{Errno, Result};
use tameike_io::shared::SharedFile;

impl CacheView {
    pub(super) async fn change_open_space(
        &self,
        open: &OpenFile,
        change: SpaceChange,
        bytes: Range<u64>,
        grows: bool,
    ) -> Result<()> {
        let _stays = open.data.leaving.read().await;
        if open.is_orphan() {
            let shared = open.shared.clone();
            return self.below.run(move |_| change_space(&*shared, change, bytes, grows)).await;
        }
        self.announce(open, 0).await?;
        let (inode, now) = (open.data.inode, self.runtime.now());
        let Range { start, end } = bytes;
        let change_homes =
            self.ask_state(inode, CacheRequest::Space { inode, change, start, end, grows, now });
        let state = self.engine.space().change(&open.data, change, bytes, change_homes).await?;
        let size = if grows { open.data.size().max(end) } else { open.data.size() };
        open.data.refresh(FileVersion::of_cache(state, size));
        Ok(())
    }

    pub(super) async fn seek_open(&self, open: &OpenFile, sought: Sought, offset: u64) -> Result<u64> {
        let _stays = open.data.leaving.read().await;
        if open.is_orphan() {
            let shared = open.shared.clone();
            return self.below.run(move |_| shared.seek(seek_of(sought), offset)).await;
        }
        let size = open.data.size();
        if offset >= size {
            return Err(Errno::ENXIO.into());
        }
        match sought {
            Sought::Data => {
                // Query the pool first: data that is flushed meanwhile is then found in the shared file.
                let dirty =
                    self.engine.space().seek(&open.data, sought, offset, size).await?.unwrap_or(u64::MAX);
                let shared = self.seek_shared(open, sought, offset).await?.unwrap_or(u64::MAX);
                Some(dirty.min(shared)).filter(|&at| at < size).ok_or_else(|| Errno::ENXIO.into())
            }
            Sought::Hole => {
                let mut at = offset;
                while at < size {
                    let dirty = self.engine.space().seek(&open.data, sought, at, size).await?.unwrap_or(size);
                    let shared = self.seek_shared(open, sought, dirty).await?.unwrap_or(dirty);
                    if shared == dirty {
                        return Ok(dirty.min(size));
                    }
                    at = shared;
                }
                Ok(size)
            }
        }
    }

    /// Seeks in the shared file; None past its last data or hole. Without support for seek, the whole file counts as data.
    async fn seek_shared(&self, open: &OpenFile, sought: Sought, offset: u64) -> Result<Option<u64>> {
        let shared = open.shared.clone();
        let seek = move |file: &dyn SharedFile| match file.seek(seek_of(sought), offset) {
            Err(fault) if fault.errno == Errno::ENXIO => Ok(None),
            Err(fault) if matches!(fault.errno, Errno::EINVAL | Errno::EOPNOTSUPP) => {
                let end = file.stat()?.size;
                Ok((offset < end).then_some(if sought == Sought::Data { offset } else { end }))
            }
            other => other.map(Some),
        };
        self.below.run(move |_| seek(&*shared)).await
    }
}
