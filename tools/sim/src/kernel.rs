//! The kernel's VFS and the FUSE frontend of a simulated node: resolves paths, checks file types, calls the view.

mod cache;

pub use cache::Kernel;

use crate::locking::{self, Caller};
use crate::model::path::{parts, split};
use crate::model::pattern_byte;
use crate::op::{Op, XATTR};
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_agent::Views;
use tameike_client::vfs::{FileNumber, Found, HandleNumber, OpenMode, Vfs};
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::{NewInode, RenameMode};
use tameike_core::{Attr, Errno, Fault, FileKind, Layout, Result, View};

/// The result of a successful call.
#[derive(Clone, Debug)]
pub enum Output {
    /// No value.
    Done,
    /// The handle and attributes of an open file.
    Opened(HandleNumber, Box<Attr>),
    /// Bytes of a file, a symbolic link or an extended attribute.
    Bytes(Vec<u8>),
    /// Attributes of a file.
    Attr(Box<Attr>),
    /// The names of a directory with file type and inode number.
    Names(BTreeMap<String, (FileKind, u64)>),
}

/// The path resolution of a call: holds the inodes that it looked up until the call ends.
struct Walk<'a, V: Vfs> {
    vfs: &'a V,
    kernel: &'a Kernel,
    held: Vec<FileNumber>,
    /// Whether the call opens the file that it looks up.
    opens: bool,
}

impl<V: Vfs> Drop for Walk<'_, V> {
    fn drop(&mut self) {
        self.held.iter().for_each(|&file| self.kernel.put(file));
    }
}

impl<'a, V: Vfs> Walk<'a, V> {
    fn new(vfs: &'a V, kernel: &'a Kernel) -> Self {
        Self { vfs, kernel, held: Vec::new(), opens: false }
    }

    /// Counts a use of the kernel's inode for a file that was found or created.
    async fn hold(&mut self, found: Found, requested: cache::Version) -> Found {
        self.kernel.found(found.file);
        self.held.push(found.file);
        let found = if self.opens { self.kernel.opens_with(found) } else { found };
        self.kernel.apply_attr(found.file, &found.attr, requested).await;
        found
    }

    async fn name(&mut self, dir: FileNumber, name: &str) -> Result<Found> {
        let requested = self.kernel.version();
        let found = self.vfs.lookup(dir, name.as_bytes()).await?;
        Ok(self.hold(found, requested).await)
    }

    async fn file(&mut self, path: &str) -> Result<(FileNumber, Attr)> {
        let mut last: Option<Found> = None;
        for name in parts(path) {
            let at = match &last {
                Some(found) if found.attr.kind != FileKind::Directory => return Err(Errno::ENOTDIR.into()),
                Some(found) => found.file,
                None => FileNumber::ROOT,
            };
            last = Some(self.name(at, name).await?);
        }
        match last {
            Some(found) => Ok((found.file, found.attr)),
            None => Ok((FileNumber::ROOT, self.vfs.getattr(FileNumber::ROOT).await?)),
        }
    }

    async fn dir(&mut self, path: &str) -> Result<FileNumber> {
        let (file, attr) = self.file(path).await?;
        if attr.kind == FileKind::Directory { Ok(file) } else { Err(Errno::ENOTDIR.into()) }
    }

    /// Looks up a file, and fails with `errno` if it is a symbolic link.
    async fn no_symlink(&mut self, path: &str, errno: Errno) -> Result<FileNumber> {
        let (file, attr) = self.file(path).await?;
        if attr.kind == FileKind::Symlink { Err(errno.into()) } else { Ok(file) }
    }

    /// Looks up the directory of a path, and returns it with the last name.
    async fn parent<'b>(&mut self, path: &'b str) -> Result<(FileNumber, &'b [u8])> {
        let (dir, name) = split(path);
        let dir = if dir.is_empty() { FileNumber::ROOT } else { self.dir(dir).await? };
        Ok((dir, name.as_bytes()))
    }

    /// As [`Self::parent`]; fails with `EEXIST` if the name exists.
    async fn parent_of_new<'b>(&mut self, path: &'b str) -> Result<(FileNumber, &'b [u8])> {
        let (dir, name) = self.parent(path).await?;
        match self.at(dir, name).await? {
            Some(_) => Err(Errno::EEXIST.into()),
            None => Ok((dir, name)),
        }
    }

    /// Looks up a name; `None` if it is missing.
    async fn at(&mut self, dir: FileNumber, name: &[u8]) -> Result<Option<Found>> {
        let name = std::str::from_utf8(name).unwrap_or("?");
        match self.name(dir, name).await {
            Ok(found) => Ok(Some(found)),
            Err(fault) if fault.errno == Errno::ENOENT => Ok(None),
            Err(fault) => Err(fault),
        }
    }
}

fn new(kind: FileKind, mode: u16, symlink: &str) -> NewInode {
    NewInode {
        kind,
        mode,
        uid: crate::tree::OWNER,
        gid: crate::tree::OWNER,
        rdev: 0,
        layout: Layout::Striped,
        symlink: symlink.as_bytes().to_vec(),
    }
}

/// Executes a system call in the caller's view. As the kernel does, repeats it once after `ESTALE`, since the path may have changed
/// meanwhile.
pub async fn call(views: &Views, caller: &Caller, op: &Op, handle: Option<HandleNumber>) -> Result<Output> {
    match (caller.view, views.cache()) {
        (View::Cache, Some(cache)) => call_vfs(cache, caller, op, handle).await,
        _ => call_vfs(views.shared(), caller, op, handle).await,
    }
}

async fn call_vfs<V: Vfs>(
    vfs: &Arc<V>,
    caller: &Caller,
    op: &Op,
    handle: Option<HandleNumber>,
) -> Result<Output> {
    if op.slot().is_some() {
        return on_handle(vfs, caller, op, handle.ok_or(Errno::EBADF)?).await;
    }
    caller.kernel.shrink(&**vfs);
    match once(vfs, &caller.kernel, op).await {
        Err(fault) if fault.errno == Errno::ESTALE => once(vfs, &caller.kernel, op).await,
        output => output,
    }
}

async fn once<V: Vfs>(vfs: &Arc<V>, kernel: &Kernel, op: &Op) -> Result<Output> {
    let mut walk = Walk::new(&**vfs, kernel);
    match op {
        Op::Open { .. } => open_file(&mut walk, op).await,
        Op::Truncate { path, size } => {
            let (file, attr) = walk.file(path).await?;
            match attr.kind {
                FileKind::File => {}
                FileKind::Directory => return Err(Errno::EISDIR.into()),
                _ => return Err(Errno::EINVAL.into()),
            }
            truncate(&**vfs, kernel, file, *size).await
        }
        Op::Chmod { path, mode } => {
            let file = walk.no_symlink(path, Errno::EOPNOTSUPP).await?;
            change_mode(&**vfs, kernel, file, *mode).await
        }
        Op::Stat { path } => Ok(Output::Attr(Box::new(walk.file(path).await?.1))),
        Op::List { path } => list(&mut walk, path).await,
        Op::Readlink { path } => {
            let (file, attr) = walk.file(path).await?;
            if attr.kind != FileKind::Symlink {
                return Err(Errno::EINVAL.into());
            }
            Ok(Output::Bytes(vfs.readlink(file).await?))
        }
        Op::SetXattr { path, value } => {
            let file = walk.no_symlink(path, Errno::EPERM).await?;
            vfs.set_xattr(file, XATTR, &value.to_le_bytes(), false, false).await?;
            Ok(Output::Done)
        }
        Op::GetXattr { path } => {
            let file = walk.no_symlink(path, Errno::EPERM).await?;
            match vfs.get_xattr(file, XATTR).await {
                Err(fault) if fault.errno == Errno::ENODATA => Ok(Output::Bytes(Vec::new())),
                value => Ok(Output::Bytes(value?)),
            }
        }
        Op::SyncDir { path } => {
            let dir = walk.dir(path).await?;
            vfs.fsync_dir(dir).await?;
            Ok(Output::Done)
        }
        _ => {
            change_names(&mut walk, op).await?;
            Ok(Output::Done)
        }
    }
}

async fn truncate<V: Vfs>(vfs: &V, kernel: &Kernel, file: FileNumber, size: u64) -> Result<Output> {
    let change = AttrChange { size: Some(size), ..AttrChange::default() };
    let attr = vfs.setattr(file, change).await?;
    kernel.truncated(file, &attr);
    Ok(Output::Attr(Box::new(attr)))
}

async fn change_mode<V: Vfs>(vfs: &V, kernel: &Kernel, file: FileNumber, mode: u16) -> Result<Output> {
    let (change, requested) = (AttrChange { mode: Some(mode), ..AttrChange::default() }, kernel.version());
    let attr = vfs.setattr(file, change).await?;
    kernel.apply_attr(file, &attr, requested).await;
    Ok(Output::Attr(Box::new(attr)))
}

async fn on_handle<V: Vfs>(vfs: &Arc<V>, caller: &Caller, op: &Op, open: HandleNumber) -> Result<Output> {
    match op {
        Op::Read { offset, length, .. } => {
            return Ok(Output::Bytes(caller.kernel.read(&**vfs, open, *offset, *length).await?));
        }
        Op::Write { offset, length, tag, .. } => {
            let bytes: Vec<u8> = (0..u64::from(*length)).map(|at| pattern_byte(*tag, at)).collect();
            let written = async {
                let at = caller.kernel.write_at(open, *offset);
                let now = vfs.write_now(open, at, &bytes)?;
                if now < bytes.len() {
                    vfs.write(open, at.after(now), &bytes[now..]).await?;
                }
                Ok::<_, Fault>(())
            };
            let written = written.await;
            caller.kernel.wrote(&**vfs, open, *offset, if written.is_ok() { u64::from(*length) } else { 0 });
            written?;
        }
        Op::Space { change, offset, length, .. } => {
            let changed = vfs.change_space(open, *change, *offset..offset + length, false).await;
            caller.kernel.drop_bytes(open, *offset, *length);
            caller.kernel.expire(open);
            changed?;
        }
        Op::Fsync { .. } => {
            let only_awaits_others = vfs.only_awaits_others(open);
            vfs.fsync(open).await?;
            if only_awaits_others && let Some(generation) = vfs.revalidate(open).await? {
                caller.kernel.drop_stale(&**vfs, open, generation);
            }
        }
        Op::Lock { slot, range, kind, wait } => {
            locking::set(&**vfs, caller, (*slot, open), *range, (Some(*kind), *wait)).await?;
        }
        Op::Unlock { slot, range } => {
            locking::set(&**vfs, caller, (*slot, open), *range, (None, false)).await?;
        }
        Op::Close { slot } => {
            let closed = locking::close(&**vfs, caller, *slot, open).await;
            caller.kernel.closed(open);
            closed?;
        }
        _ => return Err(Errno::EINVAL.into()),
    }
    Ok(Output::Done)
}

async fn open_file<V: Vfs>(walk: &mut Walk<'_, V>, op: &Op) -> Result<Output> {
    let Op::Open { path, flags, .. } = op else { return Err(Errno::EINVAL.into()) };
    let (write, append, truncate) = (flags.write, flags.append, flags.truncate);
    let mode = OpenMode { read: true, write, append, truncate, ..OpenMode::default() };
    let (dir, name) = walk.parent(path).await?;
    walk.opens = true;
    let found = walk.at(dir, name).await?;
    if let (None, true) = (&found, flags.create) {
        let requested = walk.kernel.version();
        let made = walk.vfs.create(dir, name, new(FileKind::File, 0o644, ""), flags.exclusive, mode).await;
        let (found, opened) = made?;
        let found = walk.hold(found, requested).await;
        walk.kernel.opened(walk.vfs, found.file, mode, opened);
        return Ok(Output::Opened(opened.handle, Box::new(found.attr)));
    }
    let found = found.ok_or(Errno::ENOENT)?;
    match found.attr.kind {
        _ if flags.create && flags.exclusive => return Err(Errno::EEXIST.into()),
        FileKind::File => {}
        FileKind::Directory => return Err(Errno::EISDIR.into()),
        _ => return Err(Errno::ELOOP.into()),
    }
    let opened = walk.vfs.open(found.file, mode).await?;
    walk.kernel.opened(walk.vfs, found.file, mode, opened);
    Ok(Output::Opened(opened.handle, Box::new(found.attr)))
}

async fn list<V: Vfs>(walk: &mut Walk<'_, V>, path: &str) -> Result<Output> {
    let file = walk.dir(path).await?;
    let dir = walk.vfs.open_dir(file).await?;
    let mut names = BTreeMap::new();
    let mut after = 0;
    let listed = loop {
        let entries = match walk.vfs.readdir(dir, after).await {
            Ok(entries) => entries,
            Err(fault) => break Err(fault),
        };
        let mut is_end = true;
        for (next, inode, kind, name) in entries.iter() {
            (after, is_end) = (next, false);
            let name = String::from_utf8_lossy(name).into_owned();
            if name != "." && name != ".." && names.insert(name.clone(), (kind, inode)).is_some() {
                return Err(Fault::io(format!("readdir returned {name} twice")));
            }
        }
        if is_end {
            break Ok(());
        }
    };
    walk.vfs.release_dir(dir);
    listed.map(|()| Output::Names(names))
}

async fn change_names<V: Vfs>(walk: &mut Walk<'_, V>, op: &Op) -> Result<()> {
    match op {
        Op::Mkdir { path } | Op::Symlink { path, .. } => {
            let (dir, name) = walk.parent_of_new(path).await?;
            let inode = match op {
                Op::Symlink { target, .. } => new(FileKind::Symlink, 0o777, target),
                _ => new(FileKind::Directory, 0o755, ""),
            };
            let requested = walk.kernel.version();
            let made = walk.vfs.make(dir, name, inode).await?;
            walk.hold(made, requested).await;
        }
        Op::Rmdir { path } | Op::Unlink { path } => {
            let (dir, name) = walk.parent(path).await?;
            let found = walk.at(dir, name).await?.ok_or(Errno::ENOENT)?;
            let is_dir = found.attr.kind == FileKind::Directory;
            match (op, is_dir) {
                (Op::Rmdir { .. }, true) => walk.vfs.rmdir(dir, name).await?,
                (Op::Rmdir { .. }, false) => return Err(Errno::ENOTDIR.into()),
                (_, true) => return Err(Errno::EISDIR.into()),
                (_, false) => walk.vfs.unlink(dir, name).await?,
            }
        }
        Op::Link { from, to } => {
            let (file, attr) = walk.file(from).await?;
            let (dir, name) = walk.parent_of_new(to).await?;
            if attr.kind == FileKind::Directory {
                return Err(Errno::EPERM.into());
            }
            let requested = walk.kernel.version();
            let linked = walk.vfs.link(file, dir, name).await?;
            walk.hold(linked, requested).await;
        }
        Op::Rename { from, to, mode } => {
            let (old, new) = (walk.parent(from).await?, walk.parent(to).await?);
            walk.at(old.0, old.1).await?.ok_or(Errno::ENOENT)?;
            let target = walk.at(new.0, new.1).await?;
            if let Some(errno) = nested(from, to, *mode, target.is_some()) {
                return Err(errno.into());
            }
            if from == to && *mode == RenameMode::Replace {
                return Ok(());
            }
            walk.vfs.rename(old, new, *mode).await?;
        }
        _ => return Err(Errno::EINVAL.into()),
    }
    Ok(())
}

/// The kernel's errno for a rename of a directory into itself, or onto a directory above it. The kernel checks first whether the
/// target exists.
fn nested(from: &str, to: &str, mode: RenameMode, is_there: bool) -> Option<Errno> {
    let is_below = |path: &str, dir: &str| path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'));
    let (into, over) = (is_below(to, from), is_below(from, to));
    match mode {
        _ if !into && !over => None,
        RenameMode::NoReplace if is_there => Some(Errno::EEXIST),
        RenameMode::Exchange if !is_there => Some(Errno::ENOENT),
        RenameMode::Replace if over => Some(Errno::ENOTEMPTY),
        RenameMode::NoReplace | RenameMode::Exchange | RenameMode::Replace => Some(Errno::EINVAL),
    }
}
