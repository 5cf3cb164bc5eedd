//! Promotes external files: when the job ends, they become files of the shared directory.

use super::APART;
use super::store::{ExternalFiles, Store};
use crate::external::{aside_of, copy, external_path, is_at, remove};
use crate::owner_of_new;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tameike_container::format::external::{self, ContentLocation};
use tameike_container::{Listing, split_path};
use tameike_core::attr::{AttrChange, S_ISGID};
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::{PACKED_BYTES_MAX, PackedStat};
use tameike_core::{Errno, Fault, FaultKind, FileKind, Result};
use tameike_io::os::process;
use tameike_io::shared::{Access, FileStat, SharedFile, SharedFs, retry_revalidated};

/// Promotions at a time: each waits for the file system.
const AT_ONCE: usize = 16;

/// Promotes the external files of a shared directory.
pub struct Promoter<'a> {
    pub plain: &'a dyn SharedFs,
    /// The container's directory.
    pub container: &'a dyn SharedFs,
    /// Counts operations, for progress.
    pub pieces: &'a AtomicU64,
}

impl Promoter<'_> {
    /// Promotes the external files of this job, makes their names durable, and removes their entries from the container. A file that cannot
    /// be promoted stays as it is, and the `recover` of this job, or the next packer, retries. Returns the first such error.
    pub fn promote_all(&self, store: &mut Store) -> Result<()> {
        if store.external.promotions().next().is_none() {
            return Ok(());
        }
        let ExternalFiles { mut files, are_all } = self.count(store.external_files())?;
        let known: BTreeSet<_> = files.iter().map(|(_, stat)| stat.number).collect();
        files.retain(|(path, stat)| store.external.is_pending(stat.number) && !is_apart(path, stat.number));
        files
            .iter()
            .try_for_each(|(path, _)| self.count(store.set_location_of(path, ContentLocation::Promotable)))?;
        self.count(store.sync())?;
        self.bring(store, &files)?;
        if are_all {
            // Files that an interrupted incarnation removed.
            let mut gone = store.external.promotions().filter(|number| !known.contains(number));
            gone.try_for_each(|number| remove(self.container, &external::name(number)))?;
        }
        store.external.end_promotions()
    }

    /// Finishes promotions that other incarnations have begun, and removes the entries of promoted files. Pending promotions of this job
    /// are left to it. A file that cannot be promoted is only logged.
    pub fn finish_interrupted(&self, store: &mut Store) -> Result<()> {
        let Self { plain, container, .. } = *self;
        if Listing::of(container)?.external.is_empty() && !store.was_interrupted {
            return Ok(());
        }
        let (mut leaving, mut at_place) = (Vec::new(), Vec::new());
        for (path, stat) in store.external_files()?.files {
            let is_leaving = store.location_of(&path)? == ContentLocation::Promotable;
            let name = external::name(stat.number);
            // A mount may show the directory as it was.
            container.revalidate(&name);
            match retry_revalidated(container, &name, || container.stat(&name)) {
                Err(fault) if fault.errno != Errno::ENOENT => return Err(fault),
                Err(_) if is_leaving => at_place.push(path),
                // It was not durable: the stores of its job have it.
                Err(_) => store.set_location_of(&path, ContentLocation::Internal)?,
                Ok(content) if is_leaving && has_come(plain, &path, &content) => at_place.push(path),
                Ok(_) if is_leaving && !store.external.is_pending(stat.number) => leaving.push((path, stat)),
                Ok(_) => {}
            }
        }
        for path in at_place {
            let number = store.stat(&path)?.number;
            // If the directory is gone, so is the file.
            let _ = plain.sync_dir(split_path(&path).0);
            remove(container, &external::name(number))?;
            store.remove_name(&path)?;
        }
        if let Err(fault) = self.bring(store, &leaving) {
            log::warn!("a file of an earlier job cannot be promoted: {fault}");
        }
        Ok(())
    }

    /// Promotes files, and removes their entries.
    fn bring(&self, store: &mut Store, files: &[(Vec<u8>, PackedStat)]) -> Result<()> {
        let (mut moved, mut outcome) = (Vec::new(), Ok(()));
        for ((path, _), done) in files.iter().zip(self.move_at_once(files)) {
            match done {
                Ok(()) => moved.push(path),
                Err(fault) => {
                    outcome =
                        outcome.and(Err(fault.context(format_args!("{}", String::from_utf8_lossy(path)))));
                }
            }
        }
        let dirs: BTreeSet<_> = moved.iter().map(|path| split_path(path).0).collect();
        dirs.into_iter().try_for_each(|dir| self.count(self.plain.sync_dir(dir)))?;
        moved.into_iter().try_for_each(|path| self.count(store.remove_name(path)))?;
        outcome
    }

    fn move_at_once(&self, files: &[(Vec<u8>, PackedStat)]) -> Vec<Result<()>> {
        let outcomes: Vec<_> = files.iter().map(|_| Mutex::new(Ok(()))).collect();
        let (next, lending) = (AtomicUsize::new(0), Mutex::new(()));
        std::thread::scope(|scope| {
            for _ in 0..files.len().min(AT_ONCE) {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some((path, stat)) = files.get(number) else { return };
                        *outcomes[number].lock() = self.count(self.move_one(path, stat, &lending));
                    }
                });
            }
        });
        outcomes.into_iter().map(Mutex::into_inner).collect()
    }

    /// Promotes one file. The holder of `lending` may change a directory's permissions for a moment.
    fn move_one(&self, path: &[u8], stat: &PackedStat, lending: &Mutex<()>) -> Result<()> {
        let plain = self.plain;
        let external = external_path(stat.number);
        // Gfarm syncs only files that are open for writing.
        let content = self.container.open(&external::name(stat.number), Access::Write)?;
        give_attributes(plain, &*content, path, stat)?;
        in_writable(plain, split_path(path).0, lending, || {
            match plain.rename(&external, path, RenameMode::NoReplace) {
                Err(fault) if fault.errno == Errno::EXDEV => self.carry_over(path, stat),
                // Some file systems lack this mode of rename (GlusterFS).
                Err(fault) if fault.errno == Errno::EINVAL => {
                    plain.link(&external, path)?;
                    check_came(plain, path, &*content, &external)?;
                    self.end_other_name(stat.number, path)
                }
                renamed => renamed.and_then(|()| check_came(plain, path, &*content, &external)),
            }
        })
    }

    /// Copies a file whose path is on another file system below the shared directory.
    fn carry_over(&self, to: &[u8], stat: &PackedStat) -> Result<()> {
        let plain = self.plain;
        let aside = aside_of(to, stat.number)?;
        remove(plain, &aside)?;
        let content = self.container.open(&external::name(stat.number), Access::Read)?;
        let FileStat { size, atime, mtime, .. } = content.stat()?;
        let read = |offset: u64| {
            let mut bytes = vec![0; PACKED_BYTES_MAX];
            let count = content.read_at(&mut bytes, offset)?;
            bytes.truncate(count);
            self.count(Ok(bytes))
        };
        let copied = plain.create(&aside, 0o600).and_then(|file| {
            copy(read, size, (atime, mtime), &*file)?;
            give_attributes(plain, &*file, to, stat)?;
            Ok(file)
        });
        let named = copied.and_then(|file| {
            match plain.rename(&aside, to, RenameMode::NoReplace) {
                Err(fault) if fault.errno == Errno::EINVAL => {
                    plain.link(&aside, to)?;
                    remove(plain, &aside)?;
                }
                renamed => renamed?,
            }
            check_came(plain, to, &*file, &external_path(stat.number))
        });
        if let Err(fault) = named {
            // The external file is still there; the copy has no other name.
            let _ = plain.unlink(&aside);
            return Err(fault);
        }
        self.end_other_name(stat.number, to)
    }

    /// Removes the name in the container's directory once the new name is durable.
    fn end_other_name(&self, number: u64, to: &[u8]) -> Result<()> {
        self.plain.sync_dir(split_path(to).0)?;
        remove(self.container, &external::name(number))
    }

    /// Counts an operation, whatever its outcome.
    pub fn count<T>(&self, done: Result<T>) -> Result<T> {
        self.pieces.fetch_add(1, Ordering::Relaxed);
        done
    }
}

/// Whether a path is one of those that only the container has. Logs the path of the external file then.
fn is_apart(path: &[u8], number: u64) -> bool {
    let is_apart = path.strip_prefix(APART).is_some_and(|rest| rest.starts_with(b"/"));
    if is_apart {
        let (path, external) = (String::from_utf8_lossy(path), external_path(number));
        log::warn!(
            "the content of {path}, whose directory was removed by another program, is kept in {}",
            String::from_utf8_lossy(&external)
        );
    }
    is_apart
}

/// Whether the external file has this path as well: an interrupted incarnation has come so far.
fn has_come(plain: &dyn SharedFs, path: &[u8], content: &FileStat) -> bool {
    plain.stat(path).is_ok_and(|there| {
        let is_link = (there.device, there.inode) == (content.device, content.inode);
        let is_copy = (there.size, there.mtime) == (content.size, content.mtime);
        there.kind == FileKind::File && (is_link || is_copy)
    })
}

/// Acts in a directory. If that may not be written and this user owns it, makes it writable meanwhile.
fn in_writable(
    plain: &dyn SharedFs,
    dir: &[u8],
    lending: &Mutex<()>,
    act: impl Fn() -> Result<()>,
) -> Result<()> {
    match act() {
        Err(fault) if fault.kind() == FaultKind::Denied => {
            let _one = lending.lock();
            let mode = |mode| AttrChange { mode: Some(mode), ..AttrChange::default() };
            let was = plain.stat(dir)?.mode;
            plain.change(dir, &mode(was | 0o300)).map_err(|_| fault)?;
            let done = act();
            plain.change(dir, &mode(was)).and(done)
        }
        done => done,
    }
}

/// The group of a promoted file. In the namespace of a plain user, other groups show as the user's own, and so they do in the entry: such a
/// file keeps the group that its directory gives.
fn group_of(stat: &PackedStat, has: &FileStat, dir: &FileStat) -> u32 {
    let (user, group) = (process::user(), process::group());
    let may_be_shown = user != 0 && (stat.uid, stat.gid) == (user, group);
    let is_inherited = dir.mode & S_ISGID != 0 && has.gid == dir.gid;
    if may_be_shown && is_inherited { has.gid } else { stat.gid }
}

/// Sets permissions and owner of a file that is about to be promoted, and syncs it.
fn give_attributes(
    plain: &dyn SharedFs,
    file: &dyn SharedFile,
    path: &[u8],
    stat: &PackedStat,
) -> Result<()> {
    let (has, dir) = (file.stat()?, plain.stat(split_path(path).0)?);
    let (uid, gid) = (stat.uid, group_of(stat, &has, &dir));
    if (has.uid, has.gid) != (uid, gid) {
        let owner = AttrChange { uid: Some(uid), gid: Some(gid), ..AttrChange::default() };
        // Some file systems keep owners of their own (Gfarm). A program did not ask for this owner if it is that of a new file.
        if let Err(fault) = file.change(&owner)
            && (uid, gid) != owner_of_new(&dir, (process::user(), process::group()))
        {
            let path = String::from_utf8_lossy(path);
            log::warn!("{path} does not keep the owner {uid} and the group {gid}: {fault}");
        }
    }
    file.change(&AttrChange { mode: Some(stat.mode), ..AttrChange::default() })?;
    file.sync()
}

/// Checks that a promoted file is at its path. A user who may rename files there, or directories above, may have put another one in its
/// place.
fn check_came(plain: &dyn SharedFs, path: &[u8], file: &dyn SharedFile, content: &[u8]) -> Result<()> {
    if is_at(plain, path, file)? {
        return Ok(());
    }
    let content = String::from_utf8_lossy(content);
    let why = format!(
        "another program has put a file in its place just now; its content is in {content}: remove that file, and run `tameike recover`"
    );
    Err(Fault::new(Errno::EEXIST, why))
}
