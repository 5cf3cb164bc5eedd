//! Which paths are below the container's directory, and where in the spool's tree they lead.
//!
//! Decided by bytes: `..` takes the last name off, whatever that leads to. A working directory, or one that a descriptor is open of, is
//! a real directory of the tree, and known by its path.

use crate::kernel;
use crate::spool::{self, Spool};

/// What a path means that the kernel would not understand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A path in the tree.
    Inside(Vec<u8>),
    /// It leads out of the tree: an absolute path of the kernel's.
    Outside(Vec<u8>),
}

/// Where `path`, which starts at `directory` when it is relative, leads; `None` leaves it to the kernel.
pub fn find(directory: i32, path: &[u8]) -> Option<(&'static Spool, Place)> {
    let spool = spool::get()?;
    if path.first() == Some(&b'/') {
        return of_absolute(spool, path).map(|inside| (spool, inside));
    }
    if path.is_empty() {
        return None;
    }
    let start = kernel::start_of(directory).ok().filter(|start| start.first() == Some(&b'/'))?;
    of_relative(spool, &start, path).map(|place| (spool, place))
}

fn of_absolute(spool: &Spool, path: &[u8]) -> Option<Place> {
    let plain = normalized(path);
    spool.inner(&plain).map(Place::Inside)
}

/// Where a symbolic link in a directory of the tree leads.
pub fn of_link(spool: &Spool, dir: &[u8], target: &[u8]) -> Place {
    let plain = match target.first() {
        Some(b'/') => normalized(target),
        _ => normalized(&[&spool.outer(dir), b"/".as_slice(), target].concat()),
    };
    spool.inner(&plain).map_or(Place::Outside(plain), Place::Inside)
}

fn of_relative(spool: &Spool, start: &[u8], path: &[u8]) -> Option<Place> {
    // In the tree, a path goes on from the container's directory, whose parent is another one.
    let inner = spool.inner_of_tree(start);
    let base = match &inner {
        Some(inner) => spool.outer(inner),
        None => start.to_vec(),
    };
    let plain = normalized(&[&base, b"/".as_slice(), path].concat());
    match (spool.inner(&plain), inner) {
        (Some(inner), _) => Some(Place::Inside(inner)),
        (None, Some(_)) => Some(Place::Outside(plain)),
        (None, None) => None,
    }
}

/// An absolute path without `.`, `..` and double slashes.
fn normalized(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    let mut plain = Vec::with_capacity(path.len() + 1);
    for name in names {
        plain.push(b'/');
        plain.extend_from_slice(name);
    }
    if plain.is_empty() { b"/".to_vec() } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spool() -> Spool {
        Spool::of(b"/dev/shm/spool", b"/lustre/me/out", b"/home/me/out")
    }

    #[test]
    fn paths_below_the_container_lead_into_the_tree() {
        let spool = spool();
        let inside = |path: &[u8]| of_absolute(&spool, path);
        assert_eq!(inside(b"/lustre/me/out/a/b"), Some(Place::Inside(b"a/b".to_vec())));
        assert_eq!(inside(b"/home/me//out/./a/"), Some(Place::Inside(b"a".to_vec())));
        assert_eq!(inside(b"/lustre/me/out"), Some(Place::Inside(Vec::new())));
        assert_eq!(inside(b"/dev/shm/spool/tree/x"), Some(Place::Inside(b"x".to_vec())));
        assert_eq!(inside(b"/lustre/me/other/../out/x"), Some(Place::Inside(b"x".to_vec())));
        for outside in [&b"/lustre/me/output"[..], b"/lustre/me", b"/", b"/lustre/me/out/../x"] {
            assert_eq!(inside(outside), None);
        }
    }

    #[test]
    fn relative_paths_start_where_the_program_is() {
        let spool = spool();
        let from = |start: &[u8], path: &[u8]| of_relative(&spool, start, path);
        assert_eq!(from(b"/lustre/me", b"out/a"), Some(Place::Inside(b"a".to_vec())));
        assert_eq!(from(b"/lustre/me", b"other/a"), None);
        assert_eq!(from(b"/dev/shm/spool/tree/d", b"a"), Some(Place::Inside(b"d/a".to_vec())));
        assert_eq!(
            from(b"/dev/shm/spool/tree/d", b"../../x"),
            Some(Place::Outside(b"/lustre/me/x".to_vec()))
        );
        assert_eq!(from(b"/dev/shm/spool/tree", b".."), Some(Place::Outside(b"/lustre/me".to_vec())));
    }
}
