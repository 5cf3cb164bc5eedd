//! Changes at this home only: one logged command each.

use super::leases::Revocation;
use super::query::node;
use super::state::State;
use super::{MetaService, RETRY_TIME_MIN, back_off, unexpected};
use std::sync::Weak;
use tameike_core::wire::call::NumberedCall;
use tameike_core::wire::meta::{Closed, Command, DirStat, MetaReply, Node, OpenId, Opener, Step, Target};
use tameike_core::{Errno, Fault, FileKind, InodeId, NodeId, Result, Timestamp};
use tameike_store::meta::{LogCommand, Outcome, query as table};

/// Closed files that one read of the table checks.
const CLOSED_CHUNK: usize = 1024;

impl MetaService {
    pub(super) async fn create(
        &self,
        command: Command,
        from: NodeId,
        call: Option<NumberedCall>,
    ) -> Result<MetaReply> {
        let Command::Create { entry, new, opener, sharded, .. } = &command else {
            return Err(Errno::EINVAL.into());
        };
        let inode_counter = match new.kind {
            FileKind::Directory => {
                self.allocator.next_directory(&self.parts.cluster, self.home, (entry, *sharded), from)
            }
            _ => self.allocator.next(),
        };
        let (entry, opener, sharded) = (entry.clone(), *opener, *sharded);
        let record = LogCommand::Wire { command, inode_counter, held: Vec::new(), call };
        let applied = self
            .when_free(&[&entry], |state| {
                opener.map_or(Ok(()), |opener| state.check_opener(opener))?;
                if let Some(sharded) = self.correct_sharding(entry.dir, Some(entry.offset()), sharded)? {
                    return Ok((MetaReply::Sharding { sharded }, None));
                }
                let applied = self.execute(&record)?;
                let reply = match &applied.outcome {
                    Outcome::Created { target, attr } => {
                        let content = opener.filter(|_| attr.inline).map(|_| Default::default());
                        let node = Some(Node { content, ..Node::of(attr.clone()) });
                        let dir = self.children_stat(entry.dir)?;
                        let lease = self.lease(state, entry.dir, *target, node.as_ref(), from);
                        MetaReply::Entry { target: *target, node, created: true, dir: Some(dir), lease }
                    }
                    Outcome::Found { target } => self.found(*target, opener.is_some())?,
                    Outcome::Sharding { sharded } => {
                        return Ok((MetaReply::Sharding { sharded: *sharded }, None));
                    }
                    other => return Err(unexpected(self.home, other)),
                };
                if let (MetaReply::Entry { target, node: Some(_), .. }, Some(opener)) = (&reply, opener)
                    && target.kind == FileKind::File
                {
                    state.open(target.inode, opener);
                }
                Ok((reply, Some(applied)))
            })
            .await?;
        let (mut reply, applied) = applied;
        if let (MetaReply::Entry { node: Some(node), created: false, .. }, Some(opener)) =
            (&mut reply, opener)
        {
            self.add_holders(node, opener.node);
        }
        if let Some(applied) = applied {
            self.follow(&applied);
        }
        if let MetaReply::Entry { target: Target { kind: FileKind::Directory, .. }, created: true, .. } =
            reply
        {
            self.allocator.made_directory(entry.dir, from);
            // Other homes will store entries of this directory: it must survive this agent.
            self.parts.ledger.sync(false).await?;
        }
        Ok(reply)
    }

    /// Returns this home's part of a directory. If it is not the home of the children, the directory is sharded.
    pub(super) fn children_stat(&self, dir: InodeId) -> Result<DirStat> {
        let children = self.query(|names| table::directory(names, dir))?;
        let sharded = self.parts.cluster.children_home(dir) != self.home;
        Ok(children.map_or_else(|| DirStat { sharded, ..DirStat::default() }, |children| children.stat()))
    }

    pub(super) fn found(&self, target: Target, opened: bool) -> Result<MetaReply> {
        let node = self.query(|names| node(names, target.inode, opened))?;
        Ok(MetaReply::Entry { target, node, created: false, dir: None, lease: false })
    }

    /// Executes a command on one inode that changes neither names nor units.
    pub(super) fn change_inode(&self, command: Command, call: Option<NumberedCall>) -> Result<MetaReply> {
        let record = LogCommand::Wire { command, inode_counter: 0, held: Vec::new(), call };
        self.reply_to_change(self.execute(&record)?.outcome)
    }

    /// The reply after a command on one inode.
    pub(super) fn reply_to_change(&self, outcome: Outcome) -> Result<MetaReply> {
        match outcome {
            Outcome::Changed { attr } => Ok(MetaReply::Node(Node::of(attr))),
            Outcome::Reserved { offset, attr } => Ok(MetaReply::Reserved { offset, attr }),
            Outcome::Done => Ok(MetaReply::Done),
            other => Err(unexpected(self.home, &other)),
        }
    }

    pub(super) async fn set_dir_time(&self, command: Command) -> Result<MetaReply> {
        let Command::SetDirTime { dir, .. } = &command else { return Err(Errno::EINVAL.into()) };
        self.when_free_dir(*dir).await?;
        let record = LogCommand::Wire { command, inode_counter: 0, held: Vec::new(), call: None };
        match self.execute(&record)?.outcome {
            Outcome::Sharding { sharded } => Ok(MetaReply::Sharding { sharded }),
            _ => Ok(MetaReply::Done),
        }
    }

    /// Opens inodes again that nodes have open, as far as they exist.
    pub(super) fn reopen(&self, opens: &[(InodeId, Opener)]) -> Result<()> {
        let mut state = self.state.lock();
        for &(inode, opener) in opens {
            if self.query(|names| table::inode(names, inode))?.is_some() {
                state.open(inode, opener);
            }
        }
        Ok(())
    }

    /// Closes opens of a node.
    ///
    /// # Errors
    /// Those of the ledger; the opens are closed all the same.
    pub(super) async fn close(&self, node: NodeId, opens: &[Closed], undone: &[OpenId]) -> Result<()> {
        let opener = |open| Opener { node, open };
        let reads: Vec<_> =
            opens.iter().filter_map(|closed| Some((opener(closed.open), closed.read?))).collect();
        let read = if reads.is_empty() { Ok(Vec::new()) } else { self.read(node, &reads).await };
        let closed: Vec<_> = {
            let mut state = self.state.lock();
            let mut closed: Vec<_> =
                opens.iter().filter_map(|closed| state.close(opener(closed.open))).collect();
            closed.extend(undone.iter().filter_map(|&open| state.undo(opener(open))));
            closed
        };
        self.forget_nameless(&closed);
        self.revoke(read?).await;
        Ok(())
    }

    /// Records access times of files that `node` has open. Returns the leases to revoke.
    async fn read(&self, node: NodeId, reads: &[(Opener, Timestamp)]) -> Result<Vec<Revocation>> {
        self.parts.ledger.wait_for_space().await?;
        let mut state = self.state.lock();
        let files =
            reads.iter().filter_map(|&(opener, time)| Some((state.read_through(opener, time)?, time)));
        let files: Vec<_> = self.query(|names| {
            let mut counted = Vec::new();
            for (inode, time) in files {
                if table::inode(names, inode)?.is_some_and(|record| record.times().counts(time)) {
                    counted.push((inode, time));
                }
            }
            Ok(counted)
        })?;
        if files.is_empty() {
            return Ok(Vec::new());
        }
        self.execute(&LogCommand::Accessed { files: files.clone() })?;
        let now = self.parts.runtime.clock.monotonic();
        let changed = |&(inode, _): &(InodeId, _)| state.leases.changed(inode, false, Some(node), now);
        Ok(files.iter().filter_map(changed).collect())
    }

    /// Removes the closed inodes that have no name and are not open. (A removal of the last name of a closed file removes its inode itself.)
    fn forget_nameless(&self, closed: &[InodeId]) {
        for closed in closed.chunks(CLOSED_CHUNK) {
            let nameless = self.query(|names| {
                let mut nameless = Vec::new();
                for &inode in closed {
                    if table::inode(names, inode)?.is_some_and(|record| record.links == 0) {
                        nameless.push(inode);
                    }
                }
                Ok(nameless)
            });
            // After an error, check them one by one, with retries.
            let left = nameless.unwrap_or_else(|_| closed.to_vec());
            left.into_iter().for_each(|inode| self.forget_unless_open(inode));
        }
    }

    pub(super) fn peer_failed(&self, node: NodeId) {
        let closed = {
            let mut state = self.state.lock();
            state.leases.forget_node(node);
            state.close_all(node)
        };
        self.forget_nameless(&closed);
    }

    /// Removes an inode without names that is not open; on an error, a background task retries, since the client does not repeat its close.
    pub(super) fn forget_unless_open(&self, inode: InodeId) {
        if let Err(fault) = self.try_forget(inode) {
            log::warn!("cannot remove the unlinked {inode} yet: {fault}");
            self.spawn(|service| forget_until_done(service, inode));
        }
    }

    fn try_forget(&self, inode: InodeId) -> Result<()> {
        let state = self.state.lock();
        if !state.is_open(inode) {
            let applied = self.execute(&LogCommand::Forget { inode })?;
            drop(state);
            self.follow(&applied);
        }
        Ok(())
    }

    /// Executes a step of an operation that another home or this one coordinates. Persists it before the reply.
    pub(super) async fn foreign_step(&self, command: Command) -> Result<MetaReply> {
        let Command::Step { operation, step, by, .. } = &command else { return Err(Errno::EINVAL.into()) };
        self.check_step(step)?;
        let (applied, revocations) = {
            let mut state = self.state.lock();
            if is_busy(&state, step) {
                return Err(Fault::new(Errno::EAGAIN, "another operation on the name is pending"));
            }
            let undone = match step {
                Step::Undo { number } => self.query(|names| table::added_link(names, *operation, *number))?,
                _ => None,
            };
            let undone = undone.map(|inode| Step::DropLink { inode });
            let steps: Vec<_> = undone.into_iter().chain([step.clone()]).collect();
            let (held, by) = (state.held(&steps), *by);
            let applied = self.execute(&LogCommand::Wire { command, inode_counter: 0, held, call: None })?;
            (applied, self.revocations(&mut state, &steps, by))
        };
        self.follow(&applied);
        self.revoke(revocations).await;
        self.parts.ledger.sync(false).await?;
        match applied.outcome {
            Outcome::Done => Ok(MetaReply::Done),
            Outcome::UndoOutcome { applied } => Ok(MetaReply::UndoOutcome { applied }),
            other => Err(unexpected(self.home, &other)),
        }
    }

    fn check_step(&self, step: &Step) -> Result<()> {
        match step {
            Step::AddLink { inode } | Step::DropLink { inode } | Step::SetParent { dir: inode, .. } => {
                self.check_inode(*inode)
            }
            Step::Touch { target } => self.check_inode(target.inode),
            Step::Seal { dir, sharded } => self.check_sharding(*dir, None, *sharded),
            Step::Attach { entry, sharded, .. } | Step::Detach { entry, sharded, .. } => {
                self.check_sharding(entry.dir, Some(entry.offset()), *sharded)
            }
            Step::LockTree | Step::UnlockTree => self.check_inode(InodeId::ROOT),
            Step::NotBelow { .. } | Step::Receive { .. } | Step::Undo { .. } => Ok(()),
        }
    }

    pub(super) fn check_sharding(
        &self,
        dir: InodeId,
        offset: Option<tameike_core::DirOffset>,
        sharded: bool,
    ) -> Result<()> {
        match self.correct_sharding(dir, offset, sharded)? {
            None => Ok(()),
            Some(_) => Err(Fault::new(Errno::EAGAIN, "the directory has been sharded meanwhile")),
        }
    }
}

pub(super) fn is_busy(state: &State, step: &Step) -> bool {
    match step {
        Step::Attach { entry, .. } | Step::Detach { entry, .. } => state.is_busy(entry),
        Step::Seal { dir, .. } => state.is_busy_dir(*dir),
        _ => false,
    }
}

async fn forget_until_done(service: Weak<MetaService>, inode: InodeId) {
    let mut pause = RETRY_TIME_MIN;
    loop {
        let Some(this) = service.upgrade() else { return };
        back_off(this, &mut pause).await;
        let Some(this) = service.upgrade() else { return };
        match this.try_forget(inode) {
            Ok(()) => return,
            Err(fault) => log::debug!("{inode} is not removed yet: {fault}"),
        }
    }
}
