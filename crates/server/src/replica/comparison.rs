//! Comparison of the copies of one unit, and repair of what differs.

use super::{Copies, Replicas};
use std::sync::Arc;
use tameike_core::limits::{BLOCK_SIZE, BLOCKS_PER_UNIT, UNIT_SIZE};
use tameike_core::ranges::RangeSet;
use tameike_core::wire::replica::{BLOCKS_READ_MAX, ReplicaReply, ReplicaRequest};
use tameike_core::wire::unit::SpaceChange;
use tameike_core::{Errno, Fault, Generation, HomeId, HomeSet, Layout, NodeId, Result, UnitId};
use tameike_io::{BlockSums, Frame, Payload};
use tameike_store::extent::Examined;

pub(super) const BLOCK: u32 = BLOCK_SIZE as u32;
const WHOLE: std::ops::Range<u32> = 0..UNIT_SIZE as u32;

/// A copy of a unit that was damaged or differed.
pub(super) struct Difference {
    pub(super) node: NodeId,
    pub(super) bytes: RangeSet,
    pub(super) is_repaired: bool,
}

/// A comparison of one unit, which is locked.
pub(super) struct Comparison<'a> {
    pub(super) copies: &'a Copies,
    pub(super) replicas: &'a Replicas,
    pub(super) home: HomeId,
    pub(super) unit: UnitId,
    /// Whether the copies shall have the same bytes, and not only the same content.
    pub(super) is_exact: bool,
}

/// All bytes of the blocks that have some of these.
fn whole_blocks(bytes: &RangeSet) -> RangeSet {
    bytes.iter().map(|range| range.start / BLOCK * BLOCK..range.end.next_multiple_of(BLOCK)).collect()
}

fn is_in_unit(bytes: &RangeSet) -> bool {
    bytes.is_in_order() && bytes.end() <= WHOLE.end
}

/// The blocks, as bytes, that a backup must get from the primary: all, if copies differ whose blocks have equal checksums.
fn differing(own: &Examined, backup: &Examined) -> RangeSet {
    let sums = own.sums.as_bytes().chunks(4).zip(backup.sums.as_bytes().chunks(4));
    let other = (0..).zip(sums).filter(|(_, (own, backup))| own != backup);
    let mut bytes: RangeSet = other.map(|(block, _): (u32, _)| block * BLOCK..(block + 1) * BLOCK).collect();
    if bytes.is_empty() && own.digest != backup.digest {
        bytes = WHOLE.into();
    }
    bytes.insert_all(&whole_blocks(&backup.bad));
    bytes.without(&whole_blocks(&own.bad))
}

/// Sends a node the blocks in which its unit differs from this node's. Returns false if this node's is damaged, and nothing was sent.
pub(super) async fn make_equal(
    copies: &Copies,
    replicas: &Replicas,
    (home, unit): (HomeId, UnitId),
    node: NodeId,
) -> Result<bool> {
    let comparison = Comparison { copies, replicas, home, unit, is_exact: true };
    // Before the locks: their holders need no frame of this pool.
    let mut frame = copies.parts.pool.take().await;
    let _locks = copies.lock(unit).await;
    let own = copies.parts.extents.examine(unit, None).await?;
    // Once more, if other blocks differ whose checksums are equal.
    for _ in 0..2 {
        let other = comparison.examine_on(node, &own).await?;
        if !own.bad.is_empty() {
            return Ok(false);
        }
        let bytes = differing(&own, &other);
        if bytes.is_empty() && other.surplus.is_empty() {
            return Ok(true);
        }
        comparison.drop_surplus(node, &other.surplus).await?;
        frame = comparison.send(frame, node, &own, &bytes).await?;
    }
    Ok(true)
}

pub(super) fn unexpected(backup: NodeId, reply: &ReplicaReply) -> Fault {
    Fault::new(Errno::EPROTO, format!("{backup} answered a comparison with {reply:?}"))
}

impl Comparison<'_> {
    /// Compares the unit, and repairs it. Returns nothing if changes of it are in flight to the backups.
    pub(super) async fn run(&self) -> Result<Option<Vec<Difference>>> {
        // Before the locks: their holders need no frame of this pool.
        let mut frame = self.copies.parts.pool.take().await;
        let _locks = self.copies.lock(self.unit).await;
        let (node, extents) = (self.replicas.parts.node, &self.copies.parts.extents);
        let mut own = extents.examine(self.unit, None).await?;
        let backups = self.examine_backups(&own).await?;
        let mut differences = Vec::new();
        if !own.bad.is_empty() {
            frame = self.restore(frame, &own.bad, &backups).await?;
            let restored = extents.examine(self.unit, None).await?;
            let (bytes, is_repaired) = (whole_blocks(&own.bad), restored.bad.is_empty());
            differences.push(Difference { node, bytes, is_repaired });
            own = restored;
        }
        for (node, backup) in backups {
            let mut bytes = differing(&own, &backup);
            if bytes.is_empty() && backup.surplus.is_empty() {
                continue;
            }
            if self.copies.is_unsent(self.unit) {
                return Ok((!differences.is_empty()).then_some(differences));
            }
            self.drop_surplus(node, &backup.surplus).await?;
            frame = self.send(frame, node, &own, &bytes).await?;
            let sent = self.examine_on(node, &own).await?;
            bytes.insert_all(&whole_blocks(&backup.surplus));
            let is_repaired = differing(&own, &sent).is_empty() && sent.surplus.is_empty();
            differences.push(Difference { node, bytes, is_repaired });
        }
        Ok(Some(differences))
    }

    async fn examine_backups(&self, own: &Examined) -> Result<Vec<(NodeId, Examined)>> {
        let map = self.replicas.parts.cluster.map();
        let mut examined = Vec::new();
        for &backup in map.backups(self.home) {
            examined.push((backup, self.examine_on(backup, own).await?));
        }
        Ok(examined)
    }

    async fn examine_on(&self, backup: NodeId, own: &Examined) -> Result<Examined> {
        let &Self { home, unit, .. } = self;
        let is_exact = self.is_exact;
        let data = if is_exact { own.data.clone() } else { WHOLE.into() };
        let request = ReplicaRequest::Examine { home, unit, data: data.clone(), is_exact };
        match self.replicas.ask_copy(home, backup, request, None).await? {
            ReplicaReply::Examined { sums, digest, bad, surplus }
                if sums.len() == 4 * BLOCKS_PER_UNIT && [&bad, &surplus].into_iter().all(is_in_unit) =>
            {
                Ok(Examined { data, sums: BlockSums::from_bytes(sums), digest, bad, surplus })
            }
            other => Err(unexpected(backup, &other)),
        }
    }

    /// Replaces this node's damaged bytes by those of backups, in a frame.
    async fn restore(&self, frame: Frame, bad: &RangeSet, backups: &[(NodeId, Examined)]) -> Result<Frame> {
        let &Self { home, unit, .. } = self;
        let (mut frame, mut sound) = (frame, RangeSet::new());
        for (backup, examined) in backups {
            let wanted = whole_blocks(bad).without(&whole_blocks(&examined.bad)).without(&sound);
            for blocks in wanted.iter().flat_map(|bytes| parts(bytes.start / BLOCK, bytes.end / BLOCK)) {
                let (first, count) = (blocks.start, blocks.end - blocks.start);
                let request = ReplicaRequest::ReadBlocks { home, unit, first, count };
                let bytes = blocks.start * BLOCK..blocks.end * BLOCK;
                match self.replicas.ask_copy(home, *backup, request, None).await? {
                    ReplicaReply::Blocks(content) if content.len() == bytes.len() => {
                        frame[bytes.start as usize..bytes.end as usize].copy_from_slice(&content);
                    }
                    other => return Err(unexpected(*backup, &other)),
                }
                sound.insert(bytes);
            }
        }
        let bytes = Payload::new(Arc::new(frame), WHOLE);
        self.copies.parts.extents.restore(unit, bytes.clone(), sound).await?;
        self.frame_again(bytes.into_frame()).await
    }

    /// Sends what the store has of these bytes, which are whole blocks, to a backup.
    async fn send(&self, frame: Frame, to: NodeId, own: &Examined, bytes: &RangeSet) -> Result<Frame> {
        let &Self { home, unit, .. } = self;
        let (mut frame, generation) = (frame, Generation(0));
        for range in bytes.iter() {
            let (filled, held) = self.copies.parts.extents.read(unit, range.clone(), frame, generation).await;
            let (mut filled, held) = (filled, held?);
            for gap in held.ranges.gaps(range.clone()).into_iter().filter(|_| held.sums.is_none()) {
                filled[gap.start as usize..gap.end as usize].fill(0);
            }
            let whole = RangeSet::from(range);
            let ranges = if self.is_exact { whole.intersection(&own.data) } else { whole };
            // One write replaces all data of a block, so that the backup does not read its damaged blocks.
            let mut end = 0;
            for range in ranges.iter().map(|range| range.start as usize..range.end as usize) {
                filled.copy_within(range.clone(), end);
                end += range.len();
            }
            let filled = Arc::new(filled);
            if end > 0 {
                let payload = Payload::new(filled.clone(), 0..end as u32);
                let request = ReplicaRequest::Write { home, unit, ranges, generation };
                self.replicas.ask_copy(home, to, request, Some(payload)).await?;
            }
            frame = self.frame_again(Arc::into_inner(filled)).await?;
        }
        Ok(frame)
    }

    /// The frame again. A message to a backup of an earlier map may have it still.
    async fn frame_again(&self, frame: Option<Frame>) -> Result<Frame> {
        match frame {
            Some(frame) => Ok(frame),
            None => Ok(self.copies.parts.pool.take().await),
        }
    }

    /// Drops bytes on a backup that the primary does not have.
    async fn drop_surplus(&self, backup: NodeId, surplus: &RangeSet) -> Result<()> {
        let UnitId { inode, .. } = self.unit;
        for range in surplus.iter() {
            let [start, end] = [range.start, range.end].map(|place| self.unit.start() + u64::from(place));
            let homes = HomeSet::from_iter([self.home]);
            let (change, layout) = (SpaceChange::Punch, Layout::Striped);
            let request = ReplicaRequest::Space { homes, inode, change, start, end, layout };
            self.replicas.ask_copy(self.home, backup, request, None).await?;
        }
        Ok(())
    }
}

/// Divides blocks among requests.
fn parts(start: u32, end: u32) -> impl Iterator<Item = std::ops::Range<u32>> {
    let step = BLOCKS_READ_MAX;
    (start..end).step_by(step as usize).map(move |first| first..end.min(first + step))
}
