//! Who may read a container, and what is brought back of one.

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use support::{binary, succeed};

/// Runs a shell script that knows the binary as `$1` and a directory as `$2`.
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
fn a_container_is_as_open_as_the_umask_of_who_makes_it() {
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
        // Who opens or closes it later does so for good.
        script(
            base.path(),
            r#"cd "$2"; chmod 600 container/*; rm container/index container/container; "$1" agg verify --rebuild container || test $? = 1
               "$1" agg cp source/key container:more; "$1" agg compact container; test "$("$1" agg cat container more)" = secret"#,
        );
        assert_eq!(modes(&container), vec![0o600; modes(&container).len()], "umask {umask}");
        script(base.path(), r#"cd "$2"; rm -r source container"#);
    }
}
