use super::*;

fn file(path: &str, text: &str) -> File {
    File { path: path.into(), text: text.to_owned() }
}

fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    let files: Vec<File> =
        files.iter().map(|(path, text)| file(&format!("crates/a/src/{path}"), text)).collect();
    check(&files).into_iter().map(|finding| finding.message).collect()
}

#[test]
fn files_that_import_each_other_are_a_finding() {
    let found = circles_of(&[
        ("lib.rs", "mod one;\nmod three;\nmod two;\n"),
        ("one.rs", "use super::two::{Two, other as another};\n"),
        ("two.rs", "fn f() { crate::three::act(); }\n"),
        ("three/mod.rs", "use std::fs;\nuse crate::{one::One};\n"),
    ]);
    let paths = "crates/a/src/one.rs, crates/a/src/three/mod.rs, crates/a/src/two.rs";
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("3 files") && found[0].contains(paths), "{}", found[0]);
}

#[test]
fn a_re_exported_name_leads_to_its_file() {
    let files = [
        ("lib.rs", "mod one;\nmod two;\npub use two::Two;\n"),
        ("one.rs", "use crate::Two;\npub struct One;\n"),
        ("two.rs", "use super::one::One;\n"),
    ];
    assert_eq!(circles_of(&files).len(), 1);
}

#[test]
fn a_module_and_its_submodules_may_import_each_other() {
    let files = [
        ("lib.rs", "mod one;\nuse one::One;\npub struct Lib;\n"),
        ("one/mod.rs", "mod part;\nuse crate::Lib;\nuse part::Part;\npub struct One;\n"),
        ("one/part.rs", "use super::One;\nuse crate::Lib;\n"),
    ];
    assert_eq!(circles_of(&files), Vec::<String>::new());
}

#[test]
fn an_import_counts_for_the_file_that_defines_the_name() {
    let files = [
        ("lib.rs", "mod one;\nmod two;\n"),
        ("one/mod.rs", "mod part;\nuse crate::two::Two;\npub use part::{Part, other};\n"),
        ("one/part.rs", "pub struct Part;\n"),
        ("two.rs", "use crate::one::{\n    Part, other,\n};\n"),
    ];
    assert_eq!(circles_of(&files), Vec::<String>::new());
}

#[test]
fn tests_and_comments_are_ignored() {
    let files = [
        ("lib.rs", "mod one;\nmod two;\n"),
        ("one.rs", "use super::two::Two;\n#[cfg(test)]\nmod tests {\n    use crate::three::Three;\n}\n"),
        (
            "two.rs",
            "// use super::one::One;\n#[cfg(test)]\nmod tests {\n    use super::super::one::One;\n}\n",
        ),
        ("two/tests.rs", "use crate::one::One;\n"),
    ];
    assert_eq!(circles_of(&files), Vec::<String>::new());
}
