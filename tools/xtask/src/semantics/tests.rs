use super::*;
use std::path::PathBuf;

const CLAIMS: &str = "\
# Semantics

- **S1a.** Within a node, a read sees every write. A second sentence
  on two lines.
- **S1b.** Unwritten bytes read as zeros.
- **S20a.** Short.

Not a claim.
";

fn file(path: &str, text: &str) -> File {
    File { path: PathBuf::from(path), text: text.to_owned() }
}

fn found(document: &str, test: &str) -> Vec<String> {
    let files = [file(DOCUMENT, document), file("crates/a/tests/b.rs", test)];
    check(&files).iter().map(ToString::to_string).collect()
}

#[test]
fn a_claim_without_a_test_is_a_finding() {
    let uncited = found(CLAIMS, "/// S1: a group cites none. S3-FIFO is no claim.\nfn a() { S1b }");
    let begins: Vec<&str> = uncited.iter().filter_map(|line| line.split(" (").next()).collect();
    let expected = [
        "SEMANTICS.md:3: no test cites S1a",
        "SEMANTICS.md:5: no test cites S1b",
        "SEMANTICS.md:6: no test cites S20a",
    ];
    assert_eq!(begins, expected);
    assert!(uncited[0].contains("A second sentence on two lines."), "{}", uncited[0]);
    assert_eq!(found(CLAIMS, "//! S1a, S20a: by hand.\n    // (S1b)\n"), Vec::<String>::new());
}

#[test]
fn a_citation_of_a_missing_claim_is_a_finding() {
    let stale = found(CLAIMS, "/// S1a, S1b, S20a, S1c; S2.\nfn a() {}");
    assert_eq!(stale.len(), 2, "{stale:?}");
    assert!(stale[0].starts_with("crates/a/tests/b.rs:1: SEMANTICS.md has no claim S1c"), "{}", stale[0]);
    assert!(stale[1].starts_with("crates/a/tests/b.rs:1: SEMANTICS.md has no claim S2:"), "{}", stale[1]);
}

#[test]
fn long_claims_and_invalid_or_duplicate_ids_are_findings() {
    let about = |document: &str, text: &str| {
        let found = found(document, "// S1a\n");
        assert!(found.iter().any(|line| line.contains(text)), "{found:?}");
    };
    about("- **S1a.** One. Two. Three.\n", "S1a has 3 sentences");
    about("- **S1.** One.\n", "S1 is not an ID");
    about("- **S1ab.** One.\n", "S1ab is not an ID");
    about("- **S1a.** One.\n- **S1a.** Two.\n", "S1a is used twice");
}

#[test]
fn only_citations_in_tests_count() {
    let citing = "/// S2a.\nfn a() {}";
    let files = [file(DOCUMENT, "- **S2a.** Short.\n"), file("crates/a/src/b.rs", citing)];
    assert_eq!(check(&files).len(), 1);
    let inline = format!("//! S9z.\nfn b() {{}}\n#[cfg(test)]\nmod tests {{\n{citing}\n}}\n");
    for (path, text) in [("crates/a/src/b/tests.rs", citing), ("crates/a/src/b.rs", &inline)] {
        let files = [file(DOCUMENT, "- **S2a.** Short.\n"), file(path, text)];
        assert_eq!(check(&files), [], "{path}");
    }
    let python = [file(DOCUMENT, "- **S2a.** Short.\n"), file("python/tests/test_a.py", "x = 1  # S2a\n")];
    assert_eq!(check(&python), []);
}
