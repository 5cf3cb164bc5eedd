use super::*;

#[test]
fn a_path_is_on_a_view_by_whole_names() {
    assert_eq!(below(b"/job/shared/a/b", b"/job/shared"), Some(&b"a/b"[..]));
    assert_eq!(below(b"/job/shared//a", b"/job/shared"), Some(&b"a"[..]));
    for other in [&b"/job/shared"[..], b"/job/shared/", b"/job/shared//", b"/job/shared2/a", b"/job", b"/"] {
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

#[test]
fn links_of_descriptors_are_known_under_all_their_names() {
    let own = format!("/proc/{}/fd/12", kernel::process());
    for path in
        ["/proc/self/fd/12", "/proc/thread-self/fd/12", "/dev/fd/12", "/proc/self/task/77/fd/12", &own]
    {
        assert_eq!(descriptor_of_link(path.as_bytes()), Some(12), "{path}");
    }
    assert_eq!(descriptor_of_link(b"/proc/self/fd/12/name"), Some(12));
    assert_eq!(descriptor_of_link(b"/dev/stdout"), Some(1));
    for path in [
        "/proc/1/fd/12",
        "/proc/self/fdinfo/12",
        "/proc/self/fd",
        "/proc/self/fd/",
        "/dev/fd/x",
        "/dev/null",
        "/proc",
    ] {
        assert_eq!(descriptor_of_link(path.as_bytes()), None, "{path}");
    }
}
