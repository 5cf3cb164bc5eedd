use super::*;

fn findings(text: &str) -> Vec<Finding> {
    let root = tempfile::tempdir().expect("a temporary directory");
    std::fs::create_dir_all(root.path().join("docs/decisions")).expect("a directory");
    std::fs::write(root.path().join("README.md"), "").expect("a file");
    check(root.path(), Path::new("docs/index.md"), text)
}

#[test]
fn links_to_existing_files_pass() {
    let text = "[up](../README.md#top) and [a directory](decisions) ![site](https://example.org/x.png)\n[at](#here)\n";
    assert_eq!(findings(text), []);
}

#[test]
fn a_broken_link_is_reported_with_its_line() {
    for text in [
        "\n\nSee [this](missing.md).\n",
        "\n\n[this]: missing.md\n",
        "\n\n[a](../README.md) [b](missing.md \"t\")\n",
    ] {
        let found = findings(text);
        assert_eq!(found.len(), 1, "{text}");
        assert_eq!((found[0].line, found[0].path.to_str()), (3, Some("docs/index.md")));
        assert!(found[0].message.contains("missing.md"), "{}", found[0]);
    }
}

#[test]
fn links_in_code_are_ignored() {
    assert_eq!(findings("```\n[this](missing.md)\n```\n    [this](missing.md)\n"), []);
}

#[test]
fn other_files_than_markdown_are_ignored() {
    assert_eq!(check(Path::new("/"), Path::new("a.rs"), "[this](missing.md)"), []);
}
