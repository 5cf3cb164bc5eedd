//! Checks by their bytes which paths the ring may handle: names of files, one below the other.

/// `st_ino` of a view's root.
pub const ROOT: u64 = 1;

/// The part of `path` below `mount`; it has at least one name.
pub fn below<'a>(path: &'a [u8], mount: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(mount)?.strip_prefix(b"/")?;
    let names = rest.iter().position(|byte| *byte != b'/')?;
    rest.get(names..)
}

/// `path` without `./` at its beginning.
pub fn without_dots(mut path: &[u8]) -> &[u8] {
    while let Some(rest) = path.strip_prefix(b"./") {
        let names = rest.iter().position(|byte| *byte != b'/').unwrap_or(rest.len());
        path = rest.get(names..).unwrap_or_default();
    }
    path
}

/// Returns true if the ring may handle `path`: it has no `.` or `..`, and does not end in a slash.
pub fn is_plain(path: &[u8]) -> bool {
    let ends = path.last().is_some_and(|last| *last != b'/');
    ends && !path.split(|byte| *byte == b'/').any(|name| name == b".." || name == b".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_matched_by_whole_names() {
        assert_eq!(below(b"/job/shared/a/b", b"/job/shared"), Some(&b"a/b"[..]));
        assert_eq!(below(b"/job/shared//a", b"/job/shared"), Some(&b"a"[..]));
        for other in
            [&b"/job/shared"[..], b"/job/shared/", b"/job/shared//", b"/job/shared2/a", b"/job", b"/"]
        {
            assert_eq!(below(other, b"/job/shared"), None, "{}", other.escape_ascii());
        }
    }

    #[test]
    fn paths_with_dots_or_a_trailing_slash_are_left_to_the_kernel() {
        for plain in [&b"a"[..], b"a/b", b"a//b", b"...", b"a.", b".a", b"a/..b"] {
            assert!(is_plain(plain), "{}", plain.escape_ascii());
        }
        for other in [&b""[..], b"..", b"a/../b", b"a/..", b".", b"a/./b", b"a/", b"/"] {
            assert!(!is_plain(other), "{}", other.escape_ascii());
        }
    }

    #[test]
    fn leading_dots_are_removed() {
        assert_eq!(without_dots(b"./a"), b"a");
        assert_eq!(without_dots(b".//././/a"), b"a");
        assert_eq!(without_dots(b"../a"), b"../a");
        assert_eq!(without_dots(b"./"), b"");
        assert_eq!(without_dots(b"."), b".");
    }
}
