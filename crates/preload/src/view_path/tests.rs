use super::*;

#[test]
fn all_names_of_descriptors_are_recognized() {
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
