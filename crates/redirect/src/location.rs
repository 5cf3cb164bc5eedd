//! Maps paths below the container's directory to paths in the spool's tree.
//!
//! The mapping is lexical: `..` removes the last name, even that of a symbolic link. Working directories and open directories are real
//! directories of the tree, identified by their paths.

use crate::kernel;
use crate::spool::{self, Spool};

/// Location of a path that the kernel would not resolve correctly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    Inside(Vec<u8>),
    /// An absolute path outside the tree.
    Outside(Vec<u8>),
}

/// Maps `path`, relative to `directory`; `None` leaves it to the kernel.
pub fn find(directory: i32, path: &[u8]) -> Option<(&'static Spool, Location)> {
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

fn of_absolute(spool: &Spool, path: &[u8]) -> Option<Location> {
    let plain = normalized(path);
    spool.inner(&plain).map(Location::Inside)
}

/// Maps the target of a symbolic link in a directory of the tree.
pub fn of_link(spool: &Spool, dir: &[u8], target: &[u8]) -> Location {
    let plain = match target.first() {
        Some(b'/') => normalized(target),
        _ => normalized(&[&spool.outer(dir), b"/".as_slice(), target].concat()),
    };
    spool.inner(&plain).map_or(Location::Outside(plain), Location::Inside)
}

fn of_relative(spool: &Spool, start: &[u8], path: &[u8]) -> Option<Location> {
    // Resolve from the container's directory, whose parent differs from the tree's.
    let inner = spool.inner_of_tree(start);
    let base = match &inner {
        Some(inner) => spool.outer(inner),
        None => start.to_vec(),
    };
    let plain = normalized(&[&base, b"/".as_slice(), path].concat());
    match (spool.inner(&plain), inner) {
        (Some(inner), _) => Some(Location::Inside(inner)),
        (None, Some(_)) => Some(Location::Outside(plain)),
        (None, None) => None,
    }
}

/// Removes `.`, `..` and repeated slashes from an absolute path.
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
    fn paths_below_the_container_map_into_the_tree() {
        let spool = spool();
        let inside = |path: &[u8]| of_absolute(&spool, path);
        assert_eq!(inside(b"/lustre/me/out/a/b"), Some(Location::Inside(b"a/b".to_vec())));
        assert_eq!(inside(b"/home/me//out/./a/"), Some(Location::Inside(b"a".to_vec())));
        assert_eq!(inside(b"/lustre/me/out"), Some(Location::Inside(Vec::new())));
        assert_eq!(inside(b"/dev/shm/spool/tree/x"), Some(Location::Inside(b"x".to_vec())));
        assert_eq!(inside(b"/lustre/me/other/../out/x"), Some(Location::Inside(b"x".to_vec())));
        for outside in [&b"/lustre/me/output"[..], b"/lustre/me", b"/", b"/lustre/me/out/../x"] {
            assert_eq!(inside(outside), None);
        }
    }

    #[test]
    fn relative_paths_start_at_the_working_directory() {
        let spool = spool();
        let from = |start: &[u8], path: &[u8]| of_relative(&spool, start, path);
        assert_eq!(from(b"/lustre/me", b"out/a"), Some(Location::Inside(b"a".to_vec())));
        assert_eq!(from(b"/lustre/me", b"other/a"), None);
        assert_eq!(from(b"/dev/shm/spool/tree/d", b"a"), Some(Location::Inside(b"d/a".to_vec())));
        assert_eq!(
            from(b"/dev/shm/spool/tree/d", b"../../x"),
            Some(Location::Outside(b"/lustre/me/x".to_vec()))
        );
        assert_eq!(from(b"/dev/shm/spool/tree", b".."), Some(Location::Outside(b"/lustre/me".to_vec())));
    }
}
