//! Sharding of crowded directories: moves their entries to the homes of their slots; the inodes stay.
//!
//! All requests for the directory wait meanwhile. Once the intent is logged, sharding completes despite crashes: no entry can change
//! before, so that recovery repeats the same steps.

use super::MetaService;
use futures_util::future::try_join_all;
use serde_bytes::ByteBuf;
use std::collections::BTreeMap;
use tameike_core::limits::UNSHARDED_ENTRIES_MAX;
use tameike_core::wire::meta::{Step, Target};
use tameike_core::{DirOffset, Fault, HomeId, InodeId, Result};
use tameike_store::meta::record::Intent;
use tameike_store::meta::{LogCommand, query as table};

/// Maximum number of entries in one step, which fit a message with names of any length.
const BATCH_ENTRIES_MAX: usize = 512;

impl MetaService {
    pub(super) fn shard_if_crowded(&self, dir: InodeId, entries: u64) {
        let cluster = &self.parts.cluster;
        let can_be = || dir.pinned_node().is_none() && cluster.map().nodes().len() > 1;
        if entries <= UNSHARDED_ENTRIES_MAX || cluster.children_home(dir) != self.home || !can_be() {
            return;
        }
        self.spawn(|service| async move {
            let Some(this) = service.upgrade() else { return };
            match this.begin_sharding(dir) {
                Ok(Some(sequence)) => {
                    this.settle_or_later(sequence, None).await;
                }
                Ok(None) => (),
                Err(fault) => log::error!("cannot shard directory {dir}: {fault}"),
            }
        });
    }

    /// Logs the intent, unless the directory is sharded or a pending operation blocks a name in it (then the next new entry retries).
    fn begin_sharding(&self, dir: InodeId) -> Result<Option<u64>> {
        let mut state = self.state.lock();
        if state.is_busy_dir(dir) || state.has_busy_name(dir) {
            return Ok(None);
        }
        let children = self.query(|names| table::directory(names, dir))?.unwrap_or_default();
        if children.sharded || children.entries <= UNSHARDED_ENTRIES_MAX {
            return Ok(None);
        }
        let sequence = state.begin();
        let begun = self.execute(&LogCommand::Begin { sequence, intent: Intent::Shard { dir } });
        if let Err(fault) = begun {
            state.ended(sequence);
            return Err(fault);
        }
        state.make_busy_dir(dir);
        Ok(Some(sequence))
    }

    pub(super) async fn move_entries(&self, sequence: u64, dir: InodeId) -> Result<()> {
        self.persist().await?;
        let moves = self.entries_by_home(dir)?.into_iter().zip((0..).step_by(1 << 16));
        let moves = moves.map(|((home, entries), first)| async move {
            for (batch, number) in entries.chunks(BATCH_ENTRIES_MAX).zip(first..) {
                let step = Step::Receive { dir, entries: batch.to_vec() };
                self.step(home, (sequence, number), step, None, self.parts.runtime.now()).await?;
            }
            Ok::<_, Fault>(())
        });
        // Steps that are still on their way after an error can be repeated.
        try_join_all(moves).await?;
        // From now on, other homes change these names.
        let revocations = self.state.lock().leases.moved(dir, self.parts.runtime.clock.monotonic());
        self.revoke(revocations).await;
        self.execute(&LogCommand::Sharded { sequence, dir })?;
        // If this record is lost, the intent remains, and recovery shards the directory again.
        let waiting = {
            let mut state = self.state.lock();
            state.ended(sequence);
            state.free_dir(dir)
        };
        waiting.into_iter().for_each(|waiting| waiting.resolve(()));
        Ok(())
    }

    /// Returns the entries that a sharded directory has at other homes.
    fn entries_by_home(&self, dir: InodeId) -> Result<BTreeMap<HomeId, Vec<(ByteBuf, Target)>>> {
        let all = |names: &dyn tameike_store::table::ReadTable| {
            table::entries(names, dir, DirOffset::START, usize::MAX - 1)
        };
        let (entries, _) = self.query(all)?;
        let mut by_home = BTreeMap::<_, Vec<_>>::new();
        for entry in entries {
            let home = self.parts.cluster.entry_home(dir, entry.offset, true);
            if home != self.home {
                by_home.entry(home).or_default().push((ByteBuf::from(entry.name), entry.target));
            }
        }
        Ok(by_home)
    }
}
