use super::*;
use std::path::PathBuf;

const PROMISES: &str = "\
# Semantics

1. Within a node, a read sees every write. A write that two lines
   tell of (in brackets.) Bytes that were never written read as zeros.
2. Short one.

Not numbered.
";

fn file(path: &str, text: &str) -> File {
    File { path: PathBuf::from(path), text: text.to_owned() }
}

fn found(test: &str) -> Vec<String> {
    let files = [file(DOCUMENT, PROMISES), file("crates/a/tests/b.rs", test)];
    check(&files).iter().map(ToString::to_string).collect()
}

#[test]
fn every_sentence_that_no_test_quotes_is_a_finding() {
    let message = |line: usize, text: &str, number: u32| {
        format!(
            "SEMANTICS.md:{line}: no test quotes \"{text}\": write one, with S{number}: \"...\" in its comment"
        )
    };
    let all = [
        message(3, "Within a node, a read sees every write.", 1),
        message(3, "A write that two lines tell of (in brackets.)", 1),
        message(4, "Bytes that were never written read as zeros.", 1),
        message(5, "Short one.", 2),
    ];
    assert_eq!(found("fn a() {}"), all);
    assert_eq!(found("/// S1: \"Within a node, a read sees\"\nfn a() {}"), all[1..]);
    assert_eq!(found("/// S1: \"read sees\"\nfn a() {}"), all, "two words are no quotation");
    let several = "//! S1: \"a read sees every write. A write that two\n//! lines tell of (in brackets.) Bytes that were never written\"\n";
    assert_eq!(found(&format!("{several}\n    // S2: \"Short one.\"\n")), Vec::<String>::new());
}

#[test]
fn a_quotation_that_is_not_there_is_a_finding() {
    let stale =
        "/// A story.\n/// S1: \"Within a node, a read sees nothing.\" S7: \"Gone for ever.\"\nfn a() {}";
    let found = found(stale);
    let about = |text: &str| {
        found.iter().filter(|line| line.starts_with("crates/a/tests/b.rs:1: ") && line.contains(text)).count()
    };
    assert_eq!(about("S1 does not say \"Within a node, a read sees nothing.\""), 1, "{found:?}");
    assert_eq!(about("S7 does not say \"Gone for ever.\""), 1, "{found:?}");
}

#[test]
fn only_tests_count() {
    let quoting = "/// S2: \"Short one.\"\nfn a() {}";
    let files = [file(DOCUMENT, "2. Short one.\n"), file("crates/a/src/b.rs", quoting)];
    assert_eq!(check(&files).len(), 1);
    let inline = format!("//! S2: \"Never said.\"\nfn b() {{}}\n#[cfg(test)]\nmod tests {{\n{quoting}\n}}\n");
    for (path, text) in [("crates/a/src/b/tests.rs", quoting), ("crates/a/src/b.rs", &inline)] {
        let files = [file(DOCUMENT, "2. Short one.\n"), file(path, text)];
        assert_eq!(check(&files), [], "{path}");
    }
}
