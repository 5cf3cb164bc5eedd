//! External test suites: programs from crates.io that `scripts/install-deps.sh test` installs beside the build.

use crate::support::utf8;
use std::path::{Path, PathBuf};

/// Path of an installed program.
///
/// # Panics
/// If it is missing: a skipped suite proves nothing.
pub fn program(name: &str) -> String {
    let test = std::env::current_exe().expect("the test's own program");
    let target = test.ancestors().nth(3).expect("it is in target/PROFILE/deps");
    let path = target.join("tools/bin").join(name);
    assert!(path.exists(), "{} is missing: run scripts/install-deps.sh test", path.display());
    plain(&path)
}

/// Path of a file in this directory.
pub fn file(name: &str) -> String {
    plain(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/suite/suites").join(name))
}

fn plain(path: &Path) -> String {
    utf8(path).to_owned()
}
