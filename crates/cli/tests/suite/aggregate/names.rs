//! Quoting of names, paths that are too long for a container, and summaries of faults of many files.

use super::{Dirs, FAILED, INCOMPLETE, agg, inside};
use crate::support::{Run, assert_contains, binary, err, out, shown, succeed};
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
    let dirs = Dirs::new();
    let (source, container) = (&dirs.source, &dirs.container);
    for name in ODD {
        fs::write(source.join(OsStr::from_bytes(name)), "x").expect("written");
    }
    symlink("a\nb", source.join("link")).expect("a link");
    dirs.pack();
    let text = out(&agg(&[&"ls", container]).exits(0));
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
    let text = out(&agg(&[&"ls", &"-l", container, &"link"]).exits(0));
    assert!(text.starts_with('l') && text.ends_with(" link -> 'a'$'\\n''b'\n"), "{text}");
    let raw = agg(&[&"ls", &"--null", container]).exits(0);
    let mut names: Vec<_> = raw.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    let mut expected = [&ODD[..], &[b"link"]].concat();
    expected.sort_unstable();
    assert_eq!(names, expected);
    let missing = agg(&[&"ls", container, &"no\n"]).exits(FAILED);
    assert_contains(&err(&missing), &[r"'no'$'\n'"]);
}

/// The message contained the whole path.
#[test]
fn a_path_that_is_too_long_is_skipped_and_reported_shortened() {
    let dirs = Dirs::new();
    let script = r#"
        cd source; echo x >file
        name=$(printf %0250d 0)
        for _ in $(seq 20); do mkdir $name; cd $name; echo x >file; done"#;
    succeed(Command::new("bash").args(["-euc", script]).current_dir(dirs.base.path()));
    let container = &dirs.container;
    let messages = err(&agg(&[&"create", &dirs.source, container]).exits(INCOMPLETE));
    assert!(messages.contains("bytes)") && messages.lines().all(|line| line.len() < 500), "{messages}");
    let listed = agg(&[&"ls", &"-r", &"-0", container]).exits(0);
    let paths: Vec<_> = listed.stdout.split(|byte| *byte == 0).filter(|path| !path.is_empty()).collect();
    assert_eq!(paths.iter().filter(|path| path.ends_with(b"file")).count(), 17);
    assert!(paths.iter().all(|path| path.len() <= 4096));
    let too_long = inside(container, &"x".repeat(5000));
    let refused = agg(&[&"cp", &dirs.source.join("file"), &too_long]).output().expect("it starts");
    assert_ne!(refused.status.code(), Some(0));
    assert!(refused.stderr.len() < 1000, "{}", shown(&refused));
    succeed(Command::new("rm").arg("-rf").arg(&dirs.source));
}

/// There was a message for each file.
#[test]
fn a_full_disk_is_reported_once() {
    let dirs = Dirs::new();
    let full = dirs.at("full");
    fs::create_dir(&full).expect("a directory");
    dirs.fill(0..300, 20_000);
    dirs.pack();
    let script = r#"mount -t tmpfs -o size=1m none "$1" && exec "$0" agg extract "$2" "$1/back""#;
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .args([Path::new(binary()), &full, &dirs.container])
        .exits(INCOMPLETE);
    let messages = err(&output);
    assert_contains(&messages, &["; the same for 2", " more paths"]);
    assert_eq!(messages.lines().count(), 3, "{messages}");
}

#[test]
fn a_container_has_a_readme() {
    let dirs = Dirs::new();
    let container = &dirs.container;
    fs::write(dirs.source.join("file"), "x").expect("written");
    dirs.pack();
    let readme = container.join("README-tameike.txt");
    let text = fs::read_to_string(&readme).expect("there");
    assert_contains(&text, &["Tameike container", "tameike agg extract"]);
    for action in ["verify", "compact", "verify"] {
        agg(&[&action, container]).exits(0);
    }
    assert_eq!(agg(&[&"ls", container]).exits(0).stdout, b"file\n");
    assert_eq!(fs::read_to_string(&readme).expect("there"), text, "it stays");
    // Its removal is harmless.
    fs::remove_file(readme).expect("removed");
    agg(&[&"verify", container]).exits(0);
    agg(&[&"create", &dirs.source, container]).exits(FAILED);
}
