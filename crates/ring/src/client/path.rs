//! Which paths are for the ring at all, by their bytes: names of files, one below the other.

/// `st_ino` of a view's root.
pub const ROOT: u64 = 1;

/// What is behind the path `mount` of `path`; it has at least one name.
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

/// Whether the ring may be asked about `path`: nothing leads upwards or is known to be a directory only.
pub fn is_plain(path: &[u8]) -> bool {
    let ends = path.last().is_some_and(|last| *last != b'/');
    ends && !path.split(|byte| *byte == b'/').any(|name| name == b".." || name == b".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_on_a_view_by_whole_names() {
        assert_eq!(below(b"/job/shared/a/b", b"/job/shared"), Some(&b"a/b"[..]));
        assert_eq!(below(b"/job/shared//a", b"/job/shared"), Some(&b"a"[..]));
        for other in
            [&b"/job/shared"[..], b"/job/shared/", b"/job/shared//", b"/job/shared2/a", b"/job", b"/"]
        {
            assert_eq!(below(other, b"/job/shared"), None, "{}", other.escape_ascii());
        }
    }

    #[test]
    fn what_leads_elsewhere_or_names_a_directory_is_for_the_kernel() {
        for plain in [&b"a"[..], b"a/b", b"a//b", b"...", b"a.", b".a", b"a/..b"] {
            assert!(is_plain(plain), "{}", plain.escape_ascii());
        }
        for other in [&b""[..], b"..", b"a/../b", b"a/..", b".", b"a/./b", b"a/", b"/"] {
            assert!(!is_plain(other), "{}", other.escape_ascii());
        }
    }

    #[test]
    fn dots_at_the_beginning_lead_nowhere() {
        assert_eq!(without_dots(b"./a"), b"a");
        assert_eq!(without_dots(b".//././/a"), b"a");
        assert_eq!(without_dots(b"../a"), b"../a");
        assert_eq!(without_dots(b"./"), b"");
        assert_eq!(without_dots(b"."), b".");
    }
}
