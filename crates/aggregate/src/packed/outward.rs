//! Files that have grown too large to be packed become files of the shared file system.

use super::store::Store;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::PACKED_BYTES_MAX;
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_io::shared::{Access, SharedFs, is_missing, join, split};

/// A path that no file has, where it is said which one is moved out.
const OUT: &[u8] = b".tameike-packed/out";

/// Files that are larger than `size_max` become files of the shared file system.
///
/// # Errors
/// What the file system says of the first that does not: it stays packed, with all after it.
pub fn move_out(plain: &dyn SharedFs, store: &mut Store, size_max: u64) -> Result<()> {
    for path in store.below(b"")? {
        let stat = store.stat(&path)?;
        // Of a job that was cut off nobody knows what it has written.
        if stat.size > size_max && (store.was_cut_off || store.touched.contains(&stat.number)) {
            move_out_one(plain, store, &path)
                .map_err(|fault| fault.context(format_args!("{}", String::from_utf8_lossy(&path))))?;
        }
    }
    Ok(())
}

/// Ends what another life of the packer has begun: what lies aside goes, and a file that has come to its place is packed no more.
///
/// # Errors
/// What the file system says.
pub fn end_out(plain: &dyn SharedFs, store: &mut Store) -> Result<()> {
    let Some(path) = store.noted(OUT)? else { return Ok(()) };
    remove_aside(plain, &aside_of(&path)?)?;
    if let (Ok(packed), Ok(found)) = (store.stat(&path), plain.stat(&path)) {
        // What others have made there meanwhile is none of it.
        if found.kind == FileKind::File && (found.size, found.mtime) == (packed.size, packed.mtime) {
            plain.sync_dir(split(&path).map_or(b"", |(dir, _)| dir))?;
            store.unlink(&path)?;
        }
    }
    store.note(OUT, None)
}

fn aside_of(path: &[u8]) -> Result<Vec<u8>> {
    let (dir, name) = split(path).ok_or(Errno::EINVAL)?;
    Ok(join(dir, &[&b".tameike-moved-"[..], &name[..name.len().min(200)]].concat()))
}

fn remove_aside(plain: &dyn SharedFs, aside: &[u8]) -> Result<()> {
    match plain.unlink(aside) {
        Err(fault) if !is_missing(fault.errno) => Err(fault),
        _ => Ok(()),
    }
}

/// A file becomes one of the shared file system: written aside, synced, compared, renamed; then it is packed no more. The container says
/// beforehand which one it is.
fn move_out_one(plain: &dyn SharedFs, store: &mut Store, path: &[u8]) -> Result<()> {
    let (dir, _) = split(path).ok_or(Errno::EINVAL)?;
    let aside = aside_of(path)?;
    store.note(OUT, Some(path))?;
    remove_aside(plain, &aside)?;
    let stat = store.open_file(path)?;
    let written = write_out(plain, store, stat.number, stat.size, &aside);
    let closed = store.close_file(stat.number);
    let made = written.and(closed).and_then(|()| {
        let times = SetTime::To;
        let change = AttrChange {
            mode: Some(stat.mode),
            atime: Some(times(stat.atime)),
            mtime: Some(times(stat.mtime)),
            ..Default::default()
        };
        // Gfarm syncs what is open for writing only.
        let file = plain.open(&aside, Access::Write)?;
        file.change(&change)?;
        file.sync()?;
        name_new(plain, &aside, path)?;
        plain.sync_dir(dir)
    });
    if let Err(fault) = made {
        // What is packed is still there; of what lies aside nobody knows.
        let _ = plain.unlink(&aside);
        return Err(fault);
    }
    store.unlink(path)?;
    store.note(OUT, None)
}

/// Gives a file a name that nothing has, also where the file system cannot rename so (GlusterFS).
fn name_new(plain: &dyn SharedFs, aside: &[u8], path: &[u8]) -> Result<()> {
    match plain.rename(aside, path, RenameMode::NoReplace) {
        Err(fault) if fault.errno == Errno::EINVAL => {
            plain.link(aside, path)?;
            plain.unlink(aside)
        }
        renamed => renamed,
    }
}

fn write_out(plain: &dyn SharedFs, store: &mut Store, number: u64, size: u64, aside: &[u8]) -> Result<()> {
    let file = plain.create(aside, 0o600)?;
    let pieces = || (0..size).step_by(PACKED_BYTES_MAX);
    for offset in pieces() {
        file.write_at(&store.read(number, offset, PACKED_BYTES_MAX)?.bytes()?, offset)?;
    }
    file.sync()?;
    file.forget_pages()?;
    let mut found = vec![0; PACKED_BYTES_MAX];
    for offset in pieces() {
        let bytes = store.read(number, offset, PACKED_BYTES_MAX)?.bytes()?;
        let count = file.read_at(&mut found, offset)?.min(bytes.len());
        if found[..count] != bytes[..] {
            return Err(Fault::io(format!("what was written of it reads back differently at byte {offset}")));
        }
    }
    Ok(())
}
