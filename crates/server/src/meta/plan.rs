//! Plans operations on names: reads the current entries, and computes the steps that change them.
//!
//! A plan changes nothing. Its steps check the entries that it was computed from; if they have changed, the operation is planned again.

use super::{MetaService, unexpected};
use tameike_core::limits::DIRECTORY_DEPTH_MAX;
use tameike_core::wire::meta::{
    DirStat, EntryName, MetaReply, MetaRequest, NameOperation, RenameMode, Step, Target,
};
use tameike_core::{Errno, Fault, FileKind, HomeId, InodeId, Result};
use tameike_store::meta::query as table;

/// The steps of an operation, each with the home that applies it.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Steps before the decision; they can fail and can be undone.
    pub(super) prepare: Vec<(HomeId, Step)>,
    /// Checked while the tree is locked: the first directory must not be the second one, nor below it.
    pub(super) not_below: Vec<(InodeId, InodeId)>,
    /// The step whose success decides the operation, if that is at another home.
    pub(super) commit: Option<(HomeId, Step)>,
    /// The steps of the decision at this home. They cannot fail after a successful `commit`.
    pub(super) local: Vec<Step>,
    /// Steps after the decision; they cannot fail.
    pub(super) redo: Vec<(HomeId, Step)>,
    /// The name at this home that is blocked until `local` is applied.
    pub(super) busy: Option<EntryName>,
}

impl Plan {
    fn found(self) -> Planned {
        Planned::Steps(Box::new(self))
    }
}

/// The result of planning.
#[derive(Debug)]
pub(super) enum Planned {
    /// The operation has no effect.
    Nothing,
    /// The sender is wrong about whether the directory is sharded.
    Sharding(bool),
    /// The steps to execute.
    Steps(Box<Plan>),
}

fn is_dir(target: Target) -> bool {
    target.kind == FileKind::Directory
}

impl MetaService {
    pub(super) async fn plan(&self, operation: &NameOperation, sharded: bool) -> Result<Planned> {
        let entry = match operation {
            NameOperation::Unlink { entry } | NameOperation::Rmdir { entry } => entry,
            NameOperation::Link { entry, .. } => entry,
            NameOperation::Rename { from, .. } => from,
        };
        self.when_free(&[entry], |_| Ok(())).await?;
        if let Some(sharded) = self.correct_sharding(entry.dir, Some(entry.offset()), sharded)? {
            return Ok(Planned::Sharding(sharded));
        }
        let current = self.query(|names| table::entry(names, entry))?;
        match operation {
            NameOperation::Unlink { entry } => {
                self.plan_unlink(entry, sharded, current.ok_or(Errno::ENOENT)?)
            }
            NameOperation::Rmdir { entry } => {
                self.plan_rmdir(entry, sharded, current.ok_or(Errno::ENOENT)?).await
            }
            NameOperation::Link { entry, target } => self.plan_link(entry, sharded, *target, current),
            NameOperation::Rename { from, to, mode } => {
                self.plan_rename((from, sharded, current.ok_or(Errno::ENOENT)?), to, *mode).await
            }
        }
    }

    fn plan_unlink(&self, entry: &EntryName, sharded: bool, target: Target) -> Result<Planned> {
        if is_dir(target) {
            return Err(Errno::EISDIR.into());
        }
        let inode = target.inode;
        Ok(Plan::found(Plan {
            local: vec![Step::Detach { entry: entry.clone(), sharded, target }],
            redo: vec![(self.home_of(inode), Step::DropLink { inode })],
            ..Plan::default()
        }))
    }

    async fn plan_rmdir(&self, entry: &EntryName, sharded: bool, target: Target) -> Result<Planned> {
        if !is_dir(target) {
            return Err(Errno::ENOTDIR.into());
        }
        let inode = target.inode;
        Ok(Plan::found(Plan {
            prepare: self.seals(inode).await?,
            local: vec![Step::Detach { entry: entry.clone(), sharded, target }],
            redo: vec![(self.home_of(inode), Step::DropLink { inode })],
            ..Plan::default()
        }))
    }

    /// Returns the steps that seal an empty directory against new entries at all homes that may have entries of it.
    async fn seals(&self, dir: InodeId) -> Result<Vec<(HomeId, Step)>> {
        let cluster = &self.parts.cluster;
        let home = cluster.children_home(dir);
        let DirStat { entries, sharded, .. } = match self.ask(home, MetaRequest::DirStat { dir }).await? {
            MetaReply::DirStat(stat) => stat,
            other => return Err(unexpected(home, &other)),
        };
        let all = if sharded { self.entries_of_sharded(dir).await? } else { entries };
        if all > 0 {
            return Err(Errno::ENOTEMPTY.into());
        }
        let homes: Vec<_> = if sharded { cluster.homes_of_entries().collect() } else { vec![home] };
        Ok(homes.into_iter().map(|home| (home, Step::Seal { dir, sharded })).collect())
    }

    /// The number of entries of a sharded directory at all homes.
    async fn entries_of_sharded(&self, dir: InodeId) -> Result<u64> {
        let parts = self.ask_all(MetaRequest::DirStat { dir }).await;
        // A part that is sealed belongs to another operation, which may be undone.
        let parts = parts.map_err(|fault| match fault.errno {
            Errno::ESTALE => Errno::EAGAIN.into(),
            _ => fault,
        })?;
        let parts = parts.into_iter().map(|part| match part {
            MetaReply::DirStat(stat) => Ok(stat.entries),
            other => Err(Fault::new(Errno::EPROTO, format!("a reply about a directory is wrong: {other:?}"))),
        });
        parts.sum()
    }

    fn plan_link(
        &self,
        entry: &EntryName,
        sharded: bool,
        target: Target,
        current: Option<Target>,
    ) -> Result<Planned> {
        if is_dir(target) {
            return Err(Errno::EPERM.into());
        }
        if current.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if target.inode.pinned_node() != entry.dir.pinned_node() {
            return Err(Errno::EXDEV.into());
        }
        let inode = target.inode;
        Ok(Plan::found(Plan {
            prepare: vec![(self.home_of(inode), Step::AddLink { inode })],
            local: vec![Step::Attach { entry: entry.clone(), sharded, target, replaces: None }],
            ..Plan::default()
        }))
    }

    /// Looks up a name at any home. Returns the home, whether the directory is sharded, and the target.
    async fn find(&self, entry: &EntryName) -> Result<(HomeId, bool, Option<Target>)> {
        let mut sharded = false;
        loop {
            let home = self.parts.cluster.entry_home(entry.dir, entry.offset(), sharded);
            match self.ask(home, MetaRequest::Lookup { entry: entry.clone(), sharded, view: false }).await {
                Ok(MetaReply::Entry { target, .. }) => return Ok((home, sharded, Some(target))),
                Ok(MetaReply::Sharding { sharded: true }) if !sharded => sharded = true,
                Ok(other) => return Err(unexpected(home, &other)),
                Err(fault) if fault.errno == Errno::ENOENT => return Ok((home, sharded, None)),
                Err(fault) => return Err(fault),
            }
        }
    }

    async fn plan_rename(
        &self,
        (from, from_sharded, moved): (&EntryName, bool, Target),
        to: &EntryName,
        mode: RenameMode,
    ) -> Result<Planned> {
        if from.dir.pinned_node() != to.dir.pinned_node() {
            return Err(Errno::EXDEV.into());
        }
        tameike_core::name::check(&to.name)?;
        let (to_home, to_sharded, replaced) = self.find(to).await?;
        check_rename(moved, replaced, mode)?;
        if replaced.is_some_and(|replaced| replaced.inode == moved.inode) {
            return Ok(Planned::Nothing);
        }
        let mut plan = Plan::default();
        let attach =
            Step::Attach { entry: to.clone(), sharded: to_sharded, target: moved, replaces: replaced };
        if to_home == self.home {
            plan.local.push(attach);
        } else {
            plan.commit = Some((to_home, attach));
            plan.busy = Some(from.clone());
        }
        let (entry, sharded) = (from.clone(), from_sharded);
        match replaced {
            Some(target) if mode == RenameMode::Exchange => {
                plan.local.push(Step::Attach { entry, sharded, target, replaces: Some(moved) });
                self.touch(&mut plan, &[moved, target]);
                self.plan_moves(&mut plan, &[(moved, from.dir, to.dir), (target, to.dir, from.dir)]);
                return Ok(plan.found());
            }
            Some(target) if is_dir(target) => plan.prepare = self.seals(target.inode).await?,
            _ => (),
        }
        plan.local.push(Step::Detach { entry, sharded, target: moved });
        if let Some(Target { inode, .. }) = replaced {
            plan.redo.push((self.home_of(inode), Step::DropLink { inode }));
        }
        self.touch(&mut plan, &[moved]);
        self.plan_moves(&mut plan, &[(moved, from.dir, to.dir)]);
        Ok(plan.found())
    }

    /// Updates the ctime of renamed inodes, as other file systems do. Mostly the inode is at this home, and the step part of the decision.
    fn touch(&self, plan: &mut Plan, renamed: &[Target]) {
        plan.redo.extend(renamed.iter().map(|&target| (self.home_of(target.inode), Step::Touch { target })));
    }

    /// Adds the steps for directories that get another parent: it must not be below them, and only one move runs at a time.
    fn plan_moves(&self, plan: &mut Plan, moves: &[(Target, InodeId, InodeId)]) {
        let moves = moves.iter().filter(|(target, old, new)| is_dir(*target) && old != new);
        let moves: Vec<_> = moves.map(|(target, _, new)| (target.inode, *new)).collect();
        let Some(&(_, parent)) = moves.first() else { return };
        plan.redo
            .extend(moves.iter().map(|&(dir, parent)| (self.home_of(dir), Step::SetParent { dir, parent })));
        if parent.pinned_node().is_some() {
            let checks = moves.iter().map(|&(ancestor, dir)| Step::NotBelow { dir, ancestor });
            plan.local.splice(0..0, checks);
        } else {
            let root = self.home_of(InodeId::ROOT);
            plan.prepare.insert(0, (root, Step::LockTree));
            plan.not_below.extend(moves.iter().map(|&(ancestor, dir)| (dir, ancestor)));
            plan.redo.push((root, Step::UnlockTree));
        }
    }

    /// Fails with `EINVAL` if `dir` is `ancestor` or below it. The tree must be locked.
    pub(super) async fn check_not_below(&self, mut dir: InodeId, ancestor: InodeId) -> Result<()> {
        for _ in 0..DIRECTORY_DEPTH_MAX {
            if dir == ancestor {
                return Err(Fault::new(Errno::EINVAL, "a directory cannot be moved below itself"));
            }
            let home = self.home_of(dir);
            match self.ask(home, MetaRequest::Parent { inode: dir }).await? {
                MetaReply::Parent(parent) if parent == dir => return Ok(()),
                MetaReply::Parent(parent) => dir = parent,
                other => return Err(unexpected(home, &other)),
            }
        }
        Err(Errno::ELOOP.into())
    }
}

fn check_rename(moved: Target, replaced: Option<Target>, mode: RenameMode) -> Result<()> {
    match (mode, replaced) {
        (RenameMode::NoReplace, Some(_)) => Err(Errno::EEXIST.into()),
        (RenameMode::Exchange, None) => Err(Errno::ENOENT.into()),
        (RenameMode::Replace, Some(replaced)) if is_dir(moved) && !is_dir(replaced) => {
            Err(Errno::ENOTDIR.into())
        }
        (RenameMode::Replace, Some(replaced)) if !is_dir(moved) && is_dir(replaced) => {
            Err(Errno::EISDIR.into())
        }
        _ => Ok(()),
    }
}
