//! Finds the view of a path.
//!
//! It compares the bytes of absolute paths with mount points, and uses the start directory of relative ones. Paths that reach a view
//! otherwise (through a symbolic link or `..`) go through the kernel.

use crate::{connection, kernel, session, table, upgrade, views};
use rustix::io::Errno;
use tameike_core::limits::PATH_SIZE_MAX;
use tameike_ring::client::Start;
use tameike_ring::client::path::{ROOT, below, is_plain, without_dots};

#[cfg(test)]
mod tests;

/// A path in a view.
#[derive(Clone, Copy, Debug)]
pub struct ViewPath<'a> {
    /// Number of the view in this library.
    pub view: usize,
    /// Start directory of the path.
    pub start: Start,
    /// Path from the start directory; not empty.
    pub path: &'a [u8],
}

/// Finds the view of `path`, relative to `directory`; `None` leaves it to the kernel.
pub fn find(directory: i32, path: &[u8]) -> Option<ViewPath<'_>> {
    find_for(session::for_path, directory, path)
}

/// As [`find`], for a modifying call.
pub fn find_to_change(directory: i32, path: &[u8]) -> Option<ViewPath<'_>> {
    find_for(session::for_change, directory, path)
}

fn find_for(is_answered: fn() -> bool, directory: i32, path: &[u8]) -> Option<ViewPath<'_>> {
    if !connection::is_enabled() || path.len() >= PATH_SIZE_MAX {
        return None;
    }
    let (view, dir, path) = if path.first() == Some(&b'/') {
        let below = |(number, view): (usize, &views::View)| {
            Some((number, below(path, view.mount()?.to_bytes()).filter(|rest| is_plain(rest))?))
        };
        let (view, rest) = views::all().iter().enumerate().find_map(below)?;
        (view, ROOT, rest)
    } else {
        let path = without_dots(path);
        let (view, dir) = Some(path).filter(|path| is_plain(path)).and_then(|_| directory_of(directory))?;
        (view, dir, path)
    };
    // The view has an index once the library has connected.
    let index = views::by_number(view).filter(|_| is_answered())?.index()?;
    Some(ViewPath { view, start: Start { view: index, dir }, path })
}

/// Returns the view and `st_ino` of the start directory of a relative path.
fn directory_of(directory: i32) -> Option<(usize, u64)> {
    if directory == libc::AT_FDCWD {
        return views::working_directory();
    }
    // The kernel would report a ring descriptor as its view's root.
    table::entry(directory).filter(|entry| entry.is_free())?;
    let found = kernel::identity(directory, c"").ok().filter(|found| found.is_directory)?;
    views::on_device(found.device).map(|(view, _)| (view, found.inode))
}

/// Upgrades the descriptor that `path` names (`/proc/self/fd/3`).
pub fn upgrade_link(path: &[u8]) -> Result<(), Errno> {
    descriptor_of_link(path).map_or(Ok(()), upgrade::one)
}

/// Returns the descriptor of this process that `path` names.
fn descriptor_of_link(path: &[u8]) -> Option<i32> {
    let name = if let Some(rest) = path.strip_prefix(b"/dev/") {
        match rest {
            b"stdin" => return Some(0),
            b"stdout" => return Some(1),
            b"stderr" => return Some(2),
            _ => rest.strip_prefix(b"fd/")?,
        }
    } else {
        let rest = path.strip_prefix(b"/proc/")?;
        let end = rest.iter().position(|byte| *byte == b'/')?;
        let (process, rest) = rest.split_at_checked(end)?;
        let own = || number(process).is_some_and(|process| process.cast_unsigned() == kernel::process());
        if process != b"self" && process != b"thread-self" && !own() {
            return None;
        }
        let rest = rest.strip_prefix(b"/")?;
        match rest.strip_prefix(b"task/") {
            Some(rest) => {
                rest.get(rest.iter().position(|byte| *byte == b'/')? + 1..)?.strip_prefix(b"fd/")?
            }
            None => rest.strip_prefix(b"fd/")?,
        }
    };
    let end = name.iter().position(|byte| *byte == b'/').unwrap_or(name.len());
    number(name.get(..end)?)
}

fn number(digits: &[u8]) -> Option<i32> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}
