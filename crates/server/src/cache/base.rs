//! The objects that all parts of the service use.

use super::dirty_queue::DirtyQueue;
use super::file_table::FileTable;
use super::locate::Locator;
use super::record::Journal;
use super::unit_homes::UnitHomes;
use std::sync::Arc;
use tameike_core::{InodeId, Result};
use tameike_fabric::MapLease;
use tameike_io::Runtime;
use tameike_io::shared::SharedFs;

#[derive(Clone)]
pub(super) struct Base {
    pub runtime: Runtime,
    pub shared: Arc<dyn SharedFs>,
    pub lease: Arc<MapLease>,
    pub journal: Arc<Journal>,
    pub files: Arc<FileTable>,
    pub homes: Arc<UnitHomes>,
    pub locator: Arc<Locator>,
    pub queue: Arc<DirtyQueue>,
}

impl Base {
    /// Runs a job that changes the shared file of an inode that this node coordinates; as [`MapLease::block`].
    pub async fn change_shared<T: Send + 'static>(
        &self,
        inode: InodeId,
        job: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let homes = self.homes.clone();
        self.lease.block(&self.runtime, move || homes.coordinates(inode), job).await
    }
}
