//! Units that are wanted before anybody reads them.

use super::{UnitService, check_index};
use futures_util::{StreamExt, TryStreamExt, stream};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::unit::{Backing, LOAD_UNITS_MAX};
use tameike_core::{Errno, Fault, Generation, InodeId, Result, UnitId};

/// Units that are read at the same time for one request.
const LOADED_AT_ONCE: usize = 4;

impl UnitService {
    /// Has this node hold units of a file of this size; how many bytes they have.
    pub(super) async fn load(
        &self,
        inode: InodeId,
        units: Vec<u64>,
        size: u64,
        (generation, backing): (Generation, Backing),
    ) -> Result<u64> {
        if units.len() > LOAD_UNITS_MAX {
            return Err(Fault::new(Errno::EINVAL, format!("{} units are to be loaded at once", units.len())));
        }
        let loaded = stream::iter(units).map(|index| {
            let backing = backing.clone();
            async move {
                check_index(index)?;
                let unit = UnitId { inode, index };
                let length = size.saturating_sub(unit.start()).min(UNIT_SIZE as u64) as u32;
                if length > 0 {
                    let frame = self.parts.read_pool.take().await;
                    self.read(unit, 0..length, frame, generation, backing).await?;
                }
                Ok(u64::from(length))
            }
        });
        loaded
            .buffer_unordered(LOADED_AT_ONCE)
            .try_fold(0, |sum, length| async move { Ok(sum + length) })
            .await
    }
}
