use super::*;

fn list() -> Vec<Banned> {
    read_list("# words\nby chance => random\n\nroom => crate\n").expect("a list")
}

fn file(path: &str, text: &str) -> [File; 1] {
    [File { path: path.into(), text: text.to_owned() }]
}

fn phrases(path: &str, text: &str) -> Vec<usize> {
    check(&file(path, text), &list()).into_iter().map(|finding| finding.line).collect()
}

fn sentences(path: &str, text: &str) -> Vec<usize> {
    check_sentences(&file(path, text)).into_iter().map(|finding| finding.line).collect()
}

#[test]
fn banned_phrases_are_found_in_documents_outside_of_code() {
    let text = "A read By chance.\n`by chance`\n```\nby chance\n```\nIn this room, rooms and mushrooms.\n[x](room/a.md)\n";
    assert_eq!(phrases("docs/a.md", text), [1, 6]);
}

#[test]
fn banned_phrases_are_found_in_comments_and_messages_of_code() {
    let text = "//! This room.\nlet room = 1; // not by chance\nfail(\"no room here\");\nfail(\"room\");\nlet room = 2;\n";
    assert_eq!(phrases("crates/a/src/b.rs", text), [1, 2, 3]);
    assert!(phrases("bench/runs/a/report.md", "By chance.").is_empty());
    assert_eq!(phrases("scripts/a.sh", "room=1 # by chance\nroom=2\n"), [1]);
}

#[test]
fn banned_phrases_are_found_in_comments_of_other_languages() {
    let c = "/* This room.\n * By chance. */ int room; /* room */\nchar *url = \"http://room\"; int room;\nroom(); // by chance\n";
    assert_eq!(phrases("examples/a.c", c), [1, 2, 2, 4]);
    assert_eq!(phrases("crates/a/a.h", c), [1, 2, 2, 4]);
    assert_eq!(phrases("examples/a.f90", "integer :: room ! by chance\nroom = 2\n"), [1]);
    assert_eq!(phrases("a/Cargo.toml", "room = 1 # by chance\n"), [1]);
    assert_eq!(phrases("Makefile", "room: # by chance\n\tmake room\n"), [1]);
    let python = "def room():\n    \"\"\"This ``room`` is no\n\n    room.\"\"\"\n    room = 1\n";
    assert_eq!(phrases("python/a.py", python), [4]);
    let script = "let script = r#\"room=1\n    # This room.\n    room=2  # by chance\n    \"#;\n";
    assert_eq!(phrases("crates/a/tests/a.rs", script), [2, 3]);
}

#[test]
fn a_line_of_the_list_without_a_replacement_is_refused() {
    assert!(read_list("by chance\n").is_err());
}

#[test]
fn long_sentences_of_documents_are_reported_with_their_first_line() {
    let long = format!("# A heading\n\n{}It begins\n{}.\n", "Short. ".repeat(9), "word ".repeat(WORDS_MAX));
    assert_eq!(sentences("README.md", &long), [3]);
    assert_eq!(sentences("docs/other.md", &long), [3]);
    assert_eq!(sentences("bench/runs/a/report.md", &long), Vec::<usize>::new());
    assert_eq!(sentences("crates/a/src/lib.rs", &long), Vec::<usize>::new());
    let list: String = (0..WORDS_MAX).map(|number| format!("- item {number} of a list\n")).collect();
    assert_eq!(sentences("README.md", &list), Vec::<usize>::new());
}

#[test]
fn the_mean_of_measured_documents_is_bounded() {
    let sentence = format!("{}end.\n", "word ".repeat(WORDS_MEAN_MAX));
    assert_eq!(sentences("SEMANTICS.md", &sentence), [1]);
    assert_eq!(sentences("docs/other.md", &sentence), Vec::<usize>::new());
    let files = file("SEMANTICS.md", &format!("{sentence}One.\n"));
    let means = means(&files);
    assert!((means[0].1 - 12.0).abs() < 0.01, "{means:?}");
}
