use super::*;

fn messages(path: &str, text: &str) -> Vec<String> {
    check(Path::new(path), text).iter().map(ToString::to_string).collect()
}

fn of_lines(count: usize) -> String {
    format!("//! A module.\n{}", "// A line.\n".repeat(count - 1))
}

#[test]
fn a_clean_file_has_no_findings() {
    assert_eq!(messages("crates/store/src/extent.rs", "//! Extents.\npub fn read() {}\n"), [""; 0]);
}

#[test]
fn unfinished_work_is_reported_with_its_line() {
    for mark in UNFINISHED_WORDS {
        let found = messages("crates/store/src/extent.rs", &format!("//! A module.\n\n// {mark}: later\n"));
        assert_eq!(found, [format!("crates/store/src/extent.rs:3: {mark}: finish or remove it")]);
    }
    for call in UNFINISHED_CALLS {
        let line = format!("    {call}()");
        assert_eq!(messages("tools/bench/src/a.rs", &format!("//! A module.\n{line}\n")).len(), 1, "{call}");
    }
    let script = format!("# {}\n", UNFINISHED_WORDS[0]);
    assert_eq!(messages("scripts/install.sh", &script).len(), 1);
}

#[test]
fn words_that_contain_a_marker_pass() {
    let (word, call) = (UNFINISHED_WORDS[2], UNFINISHED_CALLS[2]);
    let template = format!("//! A module.\n// mktemp {word}{word}, my_{call}(x)\n");
    assert_eq!(messages("crates/io/src/a.rs", &template), [""; 0]);
}

#[test]
fn ids_of_requirements_are_reported_in_code_and_documents() {
    for prefix in REQUIREMENTS {
        let text = format!("//! A module.\n// Bounded ({prefix}3).\n// {prefix}x, A{prefix}1\n");
        for path in ["crates/io/src/a.rs", "docs/a.md"] {
            let found = messages(path, &text);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with(&format!("{path}:2: {prefix}3: ")), "{found:?}");
        }
    }
}

#[test]
fn a_file_without_module_documentation_is_a_finding() {
    assert_eq!(messages("crates/store/src/extent.rs", "use std::fs;\n").len(), 1);
    assert_eq!(messages("crates/store/src/extent/tests.rs", "use super::*;\n"), [""; 0]);
}

#[test]
fn documentation_of_one_word_is_a_finding_outside_of_tests() {
    let text = "//! A module.\n/// Owner.\nuid: u32,\n/// `fsync`.\n///\n/// # Errors\n/// Those\n/// of it.\nfn a() {}\n\
                /// User ID.\ngid: u32,\n#[cfg(test)]\nmod tests {\n    /// S1a.\n";
    let found = messages("crates/io/src/a.rs", text);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("crates/io/src/a.rs:2: ") && found[1].starts_with("crates/io/src/a.rs:4: "));
    assert_eq!(messages("crates/io/src/a/tests.rs", text), [""; 0]);
    assert_eq!(messages("crates/io/tests/suite/a.rs", text), [""; 0]);
}

#[test]
fn meaningless_names_are_findings() {
    for path in ["crates/io/src/utils.rs", "crates/io/src/common/mod.rs", "crates/io/src/helpers2.rs"] {
        assert_eq!(messages(path, "//! A module.\n").len(), 1, "{path}");
    }
    assert_eq!(messages("crates/io/src/commonwealth.rs", "//! A module.\n"), [""; 0]);
}

#[test]
fn long_files_get_advice_and_are_no_violations() {
    for path in ["crates/store/src/extent.rs", "crates/store/src/extent/tests.rs", "scripts/a.sh"] {
        assert_eq!(advise(Path::new(path), &of_lines(LINES_ADVISED)), None);
        let text = of_lines(LINES_ADVISED + 1);
        let advice = advise(Path::new(path), &text).expect("advice").to_string();
        assert!(advice.starts_with(&format!("{path}:701: 701 lines")), "{advice}");
        assert_eq!(messages(path, &text), [""; 0]);
    }
    assert_eq!(advise(Path::new("docs/a.md"), &of_lines(LINES_ADVISED + 1)), None);
    let generated = format!("\n{GENERATED}\n{}", of_lines(LINES_ADVISED));
    assert_eq!(advise(Path::new("crates/fabric/src/bindings.rs"), &generated), None);
}
