//! Quoting of names, paths that are too long for a container, and summaries of faults of many files.

use super::{FAILED, INCOMPLETE, agg, inside, path};
use crate::support::{binary, shown, succeed};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

const ODD: [&[u8]; 7] =
    [b"a\nb", b"a\\nb", b"\xff", b"\xfe", b"'a'$'\\n''b'", b"with space", "t\u{16b}kei".as_bytes()];

/// All invalid UTF-8 bytes were shown as the same character, and a newline as `\n`.
#[test]
fn different_names_are_shown_differently() {
    let base = tempfile::tempdir().expect("a directory");
    let (source, container) = (base.path().join("source"), base.path().join("container"));
    fs::create_dir(&source).expect("a directory");
    for name in ODD {
        fs::write(source.join(OsStr::from_bytes(name)), "x").expect("written");
    }
    symlink("a\nb", source.join("link")).expect("a link");
    succeed(Command::new(binary()).args(["agg", "create"]).args([&source, &container]));
    let listed = agg(&[path("ls"), &container]);
    let text = String::from_utf8(listed.stdout).expect("text");
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    let mut expected = vec![
        r"'a'$'\n''b'",
        r"a\nb",
        r"''$'\377'",
        r"''$'\376'",
        r#"''\''a'\''$'\''\n'\'''\''b'\'''"#,
        "with space",
        "t\u{16b}kei",
        "link",
    ];
    expected.sort_unstable();
    assert_eq!(lines, expected);
    let long = agg(&[path("ls"), path("-l"), &container, path("link")]);
    let text = String::from_utf8(long.stdout).expect("text");
    assert!(text.starts_with('l') && text.ends_with(" link -> 'a'$'\\n''b'\n"), "{text}");
    let raw = agg(&[path("ls"), path("--null"), &container]);
    let mut names: Vec<_> = raw.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    let mut expected = [&ODD[..], &[b"link"]].concat();
    expected.sort_unstable();
    assert_eq!(names, expected);
    let missing = agg(&[path("ls"), &container, Path::new("no\n")]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains(r"'no'$'\n'"), "{}", shown(&missing));
}

/// The message contained the whole path.
#[test]
fn a_path_that_is_too_long_is_skipped_and_reported_shortened() {
    let base = tempfile::tempdir().expect("a directory");
    let script = r#"
        mkdir source; cd source; echo x >file
        name=$(printf %0250d 0)
        for _ in $(seq 20); do mkdir $name; cd $name; echo x >file; done"#;
    succeed(Command::new("bash").args(["-euc", script]).current_dir(base.path()));
    let container = base.path().join("container");
    let packed = agg(&[path("create"), &base.path().join("source"), &container]);
    assert_eq!(packed.status.code(), Some(INCOMPLETE), "{}", shown(&packed));
    let messages = String::from_utf8_lossy(&packed.stderr).into_owned();
    assert!(messages.contains("bytes)") && messages.lines().all(|line| line.len() < 500), "{messages}");
    let listed = agg(&[path("ls"), path("-r"), path("-0"), &container]);
    let paths: Vec<_> = listed.stdout.split(|byte| *byte == 0).filter(|path| !path.is_empty()).collect();
    assert_eq!(paths.iter().filter(|path| path.ends_with(b"file")).count(), 17);
    assert!(paths.iter().all(|path| path.len() <= 4096));
    let too_long = vec![b'x'; 5000];
    let refused = agg(&[
        path("cp"),
        &base.path().join("source/file"),
        &inside(&container, std::str::from_utf8(&too_long).expect("text")),
    ]);
    assert_ne!(refused.status.code(), Some(0));
    assert!(refused.stderr.len() < 1000, "{}", shown(&refused));
    succeed(Command::new("rm").arg("-rf").arg(base.path().join("source")));
}

/// There was a message for each file.
#[test]
fn a_full_disk_is_reported_once() {
    let base = tempfile::tempdir().expect("a directory");
    let (source, container, full) =
        (base.path().join("source"), base.path().join("container"), base.path().join("full"));
    fs::create_dir(&source).expect("a directory");
    fs::create_dir(&full).expect("a directory");
    for number in 0..300 {
        fs::write(source.join(format!("{number}")), vec![1; 20_000]).expect("written");
    }
    succeed(Command::new(binary()).args(["agg", "create"]).args([&source, &container]));
    let script = r#"mount -t tmpfs -o size=1m none "$1" && exec "$0" agg extract "$2" "$1/back""#;
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .args([Path::new(binary()), &full, &container])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(INCOMPLETE), "{}", shown(&output));
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(messages.contains("; the same for 2") && messages.contains(" more paths"), "{messages}");
    assert_eq!(messages.lines().count(), 3, "{messages}");
}

#[test]
fn a_container_has_a_readme() {
    let base = tempfile::tempdir().expect("a directory");
    let (source, container) = (base.path().join("source"), base.path().join("container"));
    fs::create_dir(&source).expect("a directory");
    fs::write(source.join("file"), "x").expect("written");
    succeed(Command::new(binary()).args(["agg", "create"]).args([&source, &container]));
    let text = fs::read_to_string(container.join("README-tameike.txt")).expect("there");
    assert!(text.contains("Tameike container") && text.contains("tameike agg extract"), "{text}");
    for words in
        [&[path("verify"), &container][..], &[path("compact"), &container], &[path("verify"), &container]]
    {
        let output = agg(words);
        assert!(output.status.success(), "{}", shown(&output));
    }
    assert_eq!(agg(&[path("ls"), &container]).stdout, b"file\n");
    assert_eq!(fs::read_to_string(container.join("README-tameike.txt")).expect("there"), text, "it stays");
    // Its removal is harmless.
    fs::remove_file(container.join("README-tameike.txt")).expect("removed");
    assert!(agg(&[path("verify"), &container]).status.success());
    let again = agg(&[path("create"), &source, &container]);
    assert_eq!(again.status.code(), Some(FAILED), "{}", shown(&again));
}
