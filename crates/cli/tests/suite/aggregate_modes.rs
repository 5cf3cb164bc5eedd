//! Permissions of containers, and of files that are extracted from them.

use crate::support::{assert_contains, binary, succeed};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// Runs a shell script with the binary as `$1` and a directory as `$2`.
fn script(base: &Path, words: &str) -> String {
    succeed(Command::new("sh").args(["-euc", words, "script", binary()]).arg(base))
}

/// Permission bits of all files of a container.
fn modes(container: &Path) -> Vec<u32> {
    let names = fs::read_dir(container).expect("a container");
    let mode =
        |name: std::io::Result<fs::DirEntry>| name.expect("a name").metadata().expect("it is there").mode();
    names.map(|name| mode(name) & 0o7777).collect()
}

#[test]
fn the_umask_of_its_creator_limits_access_to_a_container() {
    let base = tempfile::tempdir().expect("a directory");
    let container = base.path().join("container");
    for (umask, mode) in [("077", 0o600), ("022", 0o644), ("027", 0o640)] {
        script(
            base.path(),
            &format!(
                r#"cd "$2"; mkdir source container; echo secret > source/key; umask {umask}; "$1" agg create source container
                   umask 022; "$1" agg cp source/key container:again; "$1" agg compact container; "$1" agg verify container"#
            ),
        );
        assert_eq!(modes(&container), vec![mode; modes(&container).len()], "umask {umask}");
        // A later chmod is permanent.
        script(
            base.path(),
            r#"cd "$2"; chmod 600 container/*; rm container/index container/container; "$1" agg verify --rebuild container || test $? = 1
               "$1" agg cp source/key container:more; "$1" agg compact container; test "$("$1" agg cat container more)" = secret"#,
        );
        assert_eq!(modes(&container), vec![0o600; modes(&container).len()], "umask {umask}");
        script(base.path(), r#"cd "$2"; rm -r source container"#);
    }
}

/// The creator of a container may be untrusted.
#[test]
fn extracted_files_get_only_requested_permissions() {
    let base = tempfile::tempdir().expect("a directory");
    script(
        base.path(),
        r#"cd "$2"; umask 000; mkdir -p source/d; chmod 2777 source/d; echo program > source/program; chmod 6777 source/program
           python3 -c 'import os; os.setxattr("source/d", "user.kept", b"yes"); os.setxattr("source/program", "user.kept", b"yes")'
           python3 -c 'import os, struct
entry = lambda tag, bits, who=0xffffffff: struct.pack("<HHI", tag, bits, who)
acl = struct.pack("<I", 2) + entry(1, 7) + entry(2, 7, 12002) + entry(4, 7) + entry(16, 7) + entry(32, 7)
os.setxattr("source/d", "system.posix_acl_default", acl)'
           "$1" agg create source container; mkdir shared; chmod 2755 shared; umask 027
           "$1" agg extract container out; "$1" agg cp -r container:program container:d shared
           "$1" agg extract --same-permissions container all; "$1" agg cp -rp container:d container:program ."#,
    );
    let mode = |name: &str| fs::metadata(base.path().join(name)).expect("it is there").mode() & 0o7777;
    let names = ["out/program", "out/d", "shared/program", "shared/d"];
    assert_eq!(names.map(mode), [0o750, 0o750, 0o750, 0o2750]);
    assert_eq!(["all/program", "all/d", "program", "d"].map(mode), [0o6777, 0o2777, 0o6777, 0o2777]);
    let attributes = |name: &str| {
        let list = "import os, sys; print(*sorted(os.listxattr(sys.argv[1])))";
        succeed(Command::new("python3").args(["-c", list]).arg(base.path().join(name)))
    };
    for name in names {
        assert_eq!(attributes(name).trim(), "user.kept", "{name}");
    }
    for name in ["all/d", "d"] {
        assert_eq!(attributes(name).trim(), "system.posix_acl_default user.kept", "{name}");
    }
}

/// Root lost the capabilities of other users' programs at extraction, because chown clears them.
#[test]
fn programs_of_other_users_are_extracted_with_their_capabilities() {
    let base = tempfile::tempdir().expect("a directory");
    let text = script(
        base.path(),
        r#"test "$(id -u)" = 0 || { echo skipped; exit; }
           cd "$2"; mkdir source; echo program > source/program; chmod 555 source/program; chown 12001:12002 source/program
           python3 -c 'import os, struct; os.setxattr("source/program", "security.capability", struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0))'
           "$1" agg create source container; "$1" agg extract -p container out; "$1" agg extract container safe
           stat -c "%u:%g %a" out/program safe/program; python3 -c 'import os; print(os.listxattr("out/program"), os.listxattr("safe/program"))'"#,
    );
    let found = "12001:12002 555\n12001:12002 555\n['security.capability'] []";
    assert!(text.ends_with(&format!("{found}\n")) || text.contains("skipped"), "{text}");
}

#[test]
fn error_messages_escape_control_characters_of_names() {
    let base = tempfile::tempdir().expect("a directory");
    let text = script(
        base.path(),
        r#"cd "$2"; mkdir source; touch "$(printf 'source/x\033]0;title\007')"; "$1" agg create source container
           "$1" agg extract container out; "$1" agg extract container out 2>&1 || test $? = 75
           "$1" agg cat container "$(printf 'y\033[2J')" 2>&1 || test $? = 71"#,
    );
    assert_contains(&text, &["title", "[2J"]);
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
}
