//! This repository passes the house lints, and a bad repository fails them.

use std::fs;
use std::path::Path;

#[test]
fn this_repository_passes_the_lints() {
    let findings = xtask::lint(&xtask::repository_root()).expect("the repository can be read").findings;
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{} findings:\n{}", lines.len(), lines.join("\n"));
}

/// A workspace of two crates that breaks one rule of each kind.
fn bad_repository(root: &Path) {
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        fs::write(path, text).expect("a file");
    };
    let package = |name| format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n");
    write("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"core\", \"io\"]\n");
    let edge = "[dev-dependencies]\ntameike-io = { path = \"../io\" }\n";
    write("core/Cargo.toml", &(package("tameike-core") + edge));
    write("core/src/lib.rs", "//! Types.\npub mod utils;\n");
    write("core/src/utils.rs", "pub fn nothing() {}\n");
    write("io/Cargo.toml", &package("tameike-io"));
    write("io/src/lib.rs", &format!("//! Machine.\n// {}: all of it\n", concat!("TO", "DO")));
    for source in xtask::header::SOURCES {
        write(source, "//! For C.\n");
    }
    write("README.md", "[more](docs/more.md)\nReads by chance.\n");
    write("SEMANTICS.md", "- **S1a.** No test\n  cites this.\n");
    write("tools/xtask/banned.txt", "by chance => random\n");
    write("crates/b/src/lib.rs", "//! A cycle.\nmod one;\nmod two;\n");
    write("crates/b/src/one.rs", "//! One.\nuse super::two::Two;\n");
    write("crates/b/src/two.rs", "//! Two.\nuse super::one::One;\n");
    write(".gitignore", "/target\n");
    write("target/debug/build.rs", "fn main() {}\n");
}

#[test]
fn every_violation_of_a_bad_repository_is_reported() {
    let root = tempfile::tempdir().expect("a temporary directory");
    bad_repository(root.path());
    let findings = xtask::lint(root.path()).expect("the repository can be read").findings;
    let places: Vec<(String, usize)> =
        findings.iter().map(|finding| (finding.path.display().to_string(), finding.line)).collect();
    let expected = [
        ("README.md", 1),
        ("README.md", 2),
        ("SEMANTICS.md", 1),
        ("core/Cargo.toml", 6),
        ("core/src/lib.rs", 1),
        ("core/src/utils.rs", 1),
        ("core/src/utils.rs", 1),
        ("crates/b/src/one.rs", 1),
        ("crates/capi/include/tameike.h", 1),
        ("io/src/lib.rs", 2),
    ];
    assert_eq!(places, expected.map(|(path, line)| (path.to_owned(), line)), "{findings:#?}");
}
