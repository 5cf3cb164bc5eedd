//! When the job ends, files whose content is outside of the container become files of the shared directory.

use super::made::owner_of_new;
use super::outside::{MOVING, aside_of, copy, outside_name, outside_path, remove};
use super::store::Store;
use super::{APART, CONTAINER};
use std::collections::BTreeSet;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::{PACKED_BYTES_MAX, PackedStat};
use tameike_core::{Errno, FileKind, Result};
use tameike_io::os::process;
use tameike_io::shared::{Access, FileStat, SharedFs, join, split};

/// Files whose content is outside become files of the shared directory, which is asked to make their names safe, and are packed no more.
///
/// # Errors
/// What the file system says of the first that does not: it stays as it is.
pub fn move_out(plain: &dyn SharedFs, store: &mut Store) -> Result<()> {
    if store.outside_names()?.is_empty() {
        return Ok(());
    }
    match plain.create(&join(CONTAINER, MOVING), 0o600) {
        Err(fault) if fault.errno != Errno::EEXIST => return Err(fault),
        _ => {}
    }
    let (mut moved, mut dirs, mut stay, mut outcome) = (Vec::new(), BTreeSet::new(), BTreeSet::new(), Ok(()));
    for (path, stat) in store.outside()? {
        match move_one(plain, &path, &stat) {
            Ok(true) => {
                dirs.extend(split(&path).map(|(dir, _)| dir.to_vec()));
                moved.push(path);
            }
            Ok(false) => drop(stay.insert(outside_name(stat.number))),
            Err(fault) => {
                stay.insert(outside_name(stat.number));
                outcome = outcome.and(Err(fault.context(format_args!("{}", String::from_utf8_lossy(&path)))));
            }
        }
    }
    dirs.iter().try_for_each(|dir| plain.sync_dir(dir))?;
    moved.iter().try_for_each(|path| store.unlink(path))?;
    // What lives that were cut off have left goes, too.
    let mut needless = store.outside_names()?;
    needless.retain(|name| !stay.contains(name));
    needless.iter().try_for_each(|name| remove(plain, &join(CONTAINER, name)))?;
    outcome
}

/// Ends what another life of the packer has begun: files that have come to their places are packed no more.
///
/// # Errors
/// What the file system says.
pub fn end_out(plain: &dyn SharedFs, store: &mut Store) -> Result<()> {
    let there = store.outside_names()?;
    if there.is_empty() && !store.was_cut_off {
        return Ok(());
    }
    for (path, stat) in store.outside()? {
        if there.contains(&outside_name(stat.number)) {
            continue;
        }
        // A mount may remember the directory as it was.
        let outside = outside_path(stat.number);
        plain.look_anew(&outside);
        if plain.stat(&outside).is_err_and(|fault| fault.errno == Errno::ENOENT) {
            store.unlink(&path)?;
        }
    }
    Ok(())
}

/// Whether a file has come to its place, where that is in the shared directory.
fn move_one(plain: &dyn SharedFs, path: &[u8], stat: &PackedStat) -> Result<bool> {
    let outside = outside_path(stat.number);
    if path.strip_prefix(APART).is_some_and(|rest| rest.starts_with(b"/")) {
        let (path, outside) = (String::from_utf8_lossy(path), String::from_utf8_lossy(&outside));
        log::warn!(
            "the content of {path}, whose directory was removed by another program, is kept in {outside}"
        );
        return Ok(false);
    }
    give_attributes(plain, &outside, path, stat)?;
    match plain.rename(&outside, path, RenameMode::NoReplace) {
        // Some file systems cannot rename so (GlusterFS).
        Err(fault) if fault.errno == Errno::EINVAL => link_and_unlink(plain, &outside, path)?,
        Err(fault) if fault.errno == Errno::EXDEV => carry_over(plain, &outside, path, stat)?,
        renamed => renamed?,
    }
    Ok(true)
}

/// A file that is about to come to a path gets permissions, and the owner that it was given; these are safe then.
fn give_attributes(plain: &dyn SharedFs, file: &[u8], path: &[u8], stat: &PackedStat) -> Result<()> {
    // Gfarm syncs what is open for writing only.
    let file = plain.open(file, Access::Write)?;
    let dir = plain.stat(split(path).map_or(b"", |(dir, _)| dir))?;
    if (stat.uid, stat.gid) != owner_of_new(&dir, (process::user(), process::group())) {
        let owner = AttrChange { uid: Some(stat.uid), gid: Some(stat.gid), ..AttrChange::default() };
        if let Err(fault) = file.change(&owner) {
            let path = String::from_utf8_lossy(path);
            log::warn!("{path} does not keep the owner {} and the group {}: {fault}", stat.uid, stat.gid);
        }
    }
    file.change(&AttrChange { mode: Some(stat.mode), ..AttrChange::default() })?;
    file.sync()
}

/// Gives a file a name that nothing has but the file itself, from a life that was cut off.
fn link_and_unlink(plain: &dyn SharedFs, from: &[u8], to: &[u8]) -> Result<()> {
    match plain.link(from, to) {
        Err(fault) if fault.errno == Errno::EEXIST => {
            let number = |path: &[u8]| plain.stat(path).map(|stat| (stat.device, stat.inode));
            if number(from)? != number(to)? {
                return Err(fault);
            }
        }
        linked => linked?,
    }
    plain.unlink(from)
}

/// Where the shared directory has another file system below it, a file is copied there.
fn carry_over(plain: &dyn SharedFs, from: &[u8], to: &[u8], stat: &PackedStat) -> Result<()> {
    let content = plain.open(from, Access::Read)?;
    let FileStat { size, atime, mtime, .. } = content.stat()?;
    // A life that was cut off then may have come so far.
    let is_it = |there: FileStat| there.kind == FileKind::File && (there.size, there.mtime) == (size, mtime);
    if plain.stat(to).is_ok_and(is_it) {
        return plain.unlink(from);
    }
    let aside = aside_of(to)?;
    remove(plain, &aside)?;
    let read = |offset: u64| {
        let mut bytes = vec![0; PACKED_BYTES_MAX];
        let count = content.read_at(&mut bytes, offset)?;
        bytes.truncate(count);
        Ok(bytes)
    };
    let copied = plain.create(&aside, 0o600).and_then(|file| {
        copy(read, size, &*file)?;
        let times = SetTime::To;
        file.change(&AttrChange {
            atime: Some(times(atime)),
            mtime: Some(times(mtime)),
            ..Default::default()
        })
    });
    let named = copied.and_then(|()| give_attributes(plain, &aside, to, stat)).and_then(|()| {
        match plain.rename(&aside, to, RenameMode::NoReplace) {
            Err(fault) if fault.errno == Errno::EINVAL => link_and_unlink(plain, &aside, to),
            renamed => renamed,
        }
    });
    if let Err(fault) = named {
        // The content is still where it was; of what lies aside nobody knows.
        let _ = plain.unlink(&aside);
        return Err(fault);
    }
    plain.unlink(from)
}
