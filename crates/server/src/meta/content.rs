//! Truncation, and the move of inline content to a unit: changes of files that reach the homes of their units.

use super::{MetaService, RETRY_TIME_MIN, back_off, unexpected};
use futures_util::future::join_all;
use std::sync::Arc;
use tameike_core::limits::INLINE_SIZE_MAX;
use tameike_core::wire::call::NumberedCall;
use tameike_core::wire::meta::{Command, MetaReply, MetaRequest, Node};
use tameike_core::wire::unit::UnitRequest;
use tameike_core::{
    Attr, Errno, Fault, FileKind, Generation, HomeId, InodeId, MapEpoch, NodeId, Result, Timestamp, UnitId,
};
use tameike_fabric::Destination;
use tameike_fabric::rpc::REFUSED_TIME;
use tameike_io::Payload;
use tameike_io::os::runtime::{Promise, promise};
use tameike_store::meta::record::{InodeRecord, Truncation};
use tameike_store::meta::{Applied, LogCommand, Outcome, query as table};

impl MetaService {
    pub(super) async fn set_attr(
        &self,
        inode: InodeId,
        command: Command,
        call: Option<NumberedCall>,
    ) -> Result<MetaReply> {
        self.check_inode(inode)?;
        let Command::SetAttr { change, now, .. } = &command else { return Err(Errno::EINVAL.into()) };
        let (is_resize, sets_mtime, now) = (change.size.is_some(), change.mtime.is_some(), *now);
        if change.atime.is_some() {
            self.state.lock().sets_access_time(inode, now);
        }
        let record = LogCommand::Wire { command, inode_counter: 0, held: Vec::new(), call };
        if is_resize {
            let _guard = self.contents.hold(inode).await;
            let applied = self.execute_or_spill(inode, &record).await?;
            for &(inode, truncation) in &applied.truncations {
                self.truncate_units(inode, truncation).await?;
            }
            return changed(self.home, applied.outcome);
        }
        let reply = changed(self.home, self.execute(&record)?.outcome)?;
        if let (true, MetaReply::Node(node)) = (sets_mtime, &reply)
            && node.attr.kind == FileKind::Directory
        {
            self.spread_dir_time(inode, node.attr.mtime.min(now)).await?;
        }
        Ok(reply)
    }

    pub(super) async fn reserve(
        &self,
        inode: InodeId,
        command: Command,
        call: Option<NumberedCall>,
    ) -> Result<MetaReply> {
        self.check_inode(inode)?;
        let record = LogCommand::Wire { command, inode_counter: 0, held: Vec::new(), call };
        let applied = match self.execute(&record) {
            Err(fault) if fault.errno == Errno::EFBIG => {
                let _guard = self.contents.hold(inode).await;
                self.execute_or_spill(inode, &record).await?
            }
            other => other?,
        };
        match applied.outcome {
            Outcome::Reserved { offset, attr } => Ok(MetaReply::Reserved { offset, attr }),
            other => Err(unexpected(self.home, &other)),
        }
    }

    /// Executes a command that may outgrow inline content, which then moves to a unit. The caller holds the content's lock.
    async fn execute_or_spill(&self, inode: InodeId, record: &LogCommand) -> Result<Applied> {
        match self.execute(record) {
            Err(fault) if fault.errno == Errno::EFBIG && self.is_inline(inode)? => {
                self.spill_locked(inode).await?;
                self.execute(record)
            }
            other => other,
        }
    }

    pub(super) async fn content_changed(&self, inode: InodeId) -> Result<()> {
        self.check_inode(inode)?;
        self.parts.ledger.wait_for_space().await?;
        let now = self.parts.runtime.now();
        // The size stays, so that this does not undo a concurrent truncation.
        self.change_inode(Command::Commit { inode, end: 0, sparse: false, now }, None)?;
        // No node has the new content in memory.
        self.parts.holders.removed(inode);
        let revoked = {
            let now = self.parts.runtime.clock.monotonic();
            self.state.lock().leases.changed(inode, false, None, now)
        };
        self.revoke(revoked.into_iter().collect()).await;
        Ok(())
    }

    fn is_inline(&self, inode: InodeId) -> Result<bool> {
        let record = self.query(|names| table::inode(names, inode))?;
        Ok(record.is_some_and(|record| record.inline))
    }

    /// Sends an mtime that a program set to all homes with entries of the directory, since readers take the latest time of all.
    async fn spread_dir_time(&self, dir: InodeId, changed: Timestamp) -> Result<()> {
        let cluster = &self.parts.cluster;
        let home = cluster.children_home(dir);
        let request = |sharded| MetaRequest::Execute(Command::SetDirTime { dir, sharded, changed });
        if let MetaReply::Sharding { sharded: true } = self.ask(home, request(false)).await? {
            self.ask_all(request(true)).await?;
        }
        Ok(())
    }

    pub(super) async fn spill(&self, inode: InodeId) -> Result<MetaReply> {
        Ok(MetaReply::Node(Node::of(self.move_to_units(inode).await?)))
    }

    pub(super) async fn move_to_units(&self, inode: InodeId) -> Result<Attr> {
        self.check_inode(inode)?;
        let _guard = self.contents.hold(inode).await;
        self.spill_locked(inode).await
    }

    async fn spill_locked(&self, inode: InodeId) -> Result<Attr> {
        loop {
            let (record, content, was_tried) = self.query(|names| {
                let record = table::inode(names, inode)?.ok_or(Errno::ENOENT)?;
                let was_tried = table::truncation(names, inode)?.is_some();
                Ok((record, table::content(names, inode)?, was_tried))
            })?;
            if record.kind != FileKind::File {
                return Err(Errno::EINVAL.into());
            }
            if !record.inline {
                return Ok(record.attr(inode));
            }
            let needs_unit = !content.is_empty() || was_tried;
            if needs_unit {
                self.execute(&LogCommand::Spilling { inode })?;
                self.write_first_unit(inode, &record, &content).await?;
            }
            match self.execute(&LogCommand::Spilled { inode, generation: record.generation }) {
                Ok(_) if needs_unit => self.parts.ledger.sync(false).await?,
                Ok(_) => (),
                // A concurrent write changed the content: write it again.
                Err(fault) if fault.errno == Errno::EAGAIN => (),
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Writes inline content to the unit, durably: an earlier fsync may cover it, and the inode record is about to drop it. Zeros after it
    /// overwrite the remains of an earlier attempt.
    async fn write_first_unit(&self, inode: InodeId, record: &InodeRecord, content: &[u8]) -> Result<()> {
        let unit = UnitId { inode, index: 0 };
        let mut frame = self.parts.pool.take().await;
        frame[..INLINE_SIZE_MAX].fill(0);
        frame[..content.len()].copy_from_slice(content);
        let payload = Payload::new(Arc::new(frame), 0..INLINE_SIZE_MAX as u32);
        let ranges = (0..INLINE_SIZE_MAX as u32).into();
        let request = UnitRequest::Write { unit, ranges, generation: Generation::default() };
        let home = self.parts.cluster.unit_home(record.layout, unit).into();
        self.ask_unit(home, request, Some(payload)).await?;
        self.ask_unit(home, UnitRequest::Sync { inode, durable: true }, None).await
    }

    /// Truncates the units of a file on all their homes, then logs that. The promise returns the result of the first attempt; the task
    /// retries unreachable nodes until they succeed.
    pub(super) fn truncate_units(&self, inode: InodeId, truncation: Truncation) -> Promise<Result<()>> {
        let (resolver, first) = promise();
        self.spawn(|service| async move {
            let (mut epoch, mut nodes) = (MapEpoch(0), Vec::new());
            let mut resolver = Some(resolver);
            let mut pause = RETRY_TIME_MIN;
            loop {
                let Some(this) = service.upgrade() else { return };
                let cluster = &this.parts.cluster;
                let map = cluster.map();
                if map.epoch != epoch {
                    epoch = map.epoch;
                    nodes = map.primaries(cluster.unit_homes(truncation.layout, inode));
                }
                let left = this.try_truncate(inode, truncation, (epoch, nodes)).await;
                if left.iter().any(|(_, fault)| fault.errno == Errno::EREMCHG) {
                    (epoch, nodes) = (MapEpoch(0), Vec::new());
                    let sleep = this.parts.runtime.sleep(REFUSED_TIME);
                    drop(this);
                    sleep.await;
                    continue;
                }
                let result = match left.first() {
                    None => this.execute(&LogCommand::Truncated { inode, truncation }).map(|_| ()),
                    Some((_, fault)) => Err(truncation_pending(inode, truncation, fault)),
                };
                if let Some(resolver) = resolver.take() {
                    resolver.resolve(result);
                } else if let Err(fault) = result {
                    log::debug!("{fault}");
                }
                nodes = left.into_iter().map(|(node, _)| node).collect();
                if nodes.is_empty() {
                    return;
                }
                back_off(this, &mut pause).await;
            }
        });
        first
    }

    /// Returns the nodes that failed, with their errors. Persists the new size first: after a crash, no file may have its old size without
    /// its data.
    async fn try_truncate(
        &self,
        inode: InodeId,
        truncation: Truncation,
        (epoch, nodes): (MapEpoch, Vec<NodeId>),
    ) -> Vec<(NodeId, Fault)> {
        if let Err(fault) = self.parts.ledger.sync(false).await {
            return nodes.into_iter().map(|node| (node, fault.clone())).collect();
        }
        let truncations = nodes.into_iter().map(|node| async move {
            let to = Destination::Primary(node, epoch);
            let truncate = UnitRequest::Truncate { inode, size: truncation.size };
            let truncate = match self.ask_unit(to, truncate, None).await {
                // The truncation must be persisted before its log record is removed.
                Ok(()) => self.ask_unit(to, UnitRequest::Sync { inode, durable: false }, None).await,
                failed => failed,
            };
            truncate.err().map(|fault| (node, fault))
        });
        join_all(truncations).await.into_iter().flatten().collect()
    }
}

fn truncation_pending(inode: InodeId, Truncation { size, .. }: Truncation, fault: &Fault) -> Fault {
    fault.clone().context(format_args!(
        "{inode} has its new size of {size} bytes, but a node that cannot be reached still has old data; it \
         will be truncated when the node is reachable"
    ))
}

fn changed(home: HomeId, outcome: Outcome) -> Result<MetaReply> {
    match outcome {
        Outcome::Changed { attr } => Ok(MetaReply::Node(Node::of(attr))),
        other => Err(unexpected(home, &other)),
    }
}
