//! Comments of languages other than Rust, line by line with their numbers.
//!
//! No parser: a marker within a string literal begins a comment as well.

/// Returns the comments of C and C++.
pub(super) fn of_c(text: &str) -> Vec<(usize, String)> {
    let (mut comments, mut in_block) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        let (mut rest, mut comment) = (line, String::new());
        loop {
            if in_block {
                let (inner, after) = rest.split_once("*/").unwrap_or((rest, ""));
                in_block = !rest.contains("*/");
                comment.push_str(inner);
                rest = after;
            }
            let block = rest.find("/*").unwrap_or(rest.len());
            match rest.split_once("//") {
                // `//` after a scheme is part of a URL.
                Some((code, inner)) if code.len() < block && !code.ends_with(':') => {
                    comment.push_str(inner);
                    break;
                }
                _ if block < rest.len() => (rest, in_block) = (&rest[block + 2..], true),
                _ => break,
            }
        }
        if !comment.is_empty() {
            comments.push((index + 1, comment));
        }
    }
    comments
}

/// Returns what follows `marker` in each line.
pub(super) fn behind(text: &str, marker: &str) -> Vec<(usize, String)> {
    let comments = text
        .lines()
        .enumerate()
        .filter_map(|(index, line)| Some((index + 1, line.split_once(marker)?.1.to_owned())));
    comments.collect()
}

/// Returns comments and documentation of Python.
pub(super) fn of_python(text: &str) -> Vec<(usize, String)> {
    let (mut comments, mut in_text) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        let quotes = line.matches("\"\"\"").count();
        if in_text || quotes > 0 {
            comments.push((index + 1, line.replace("``", "`").split('`').step_by(2).collect()));
        } else if let Some((_, comment)) = line.split_once("# ") {
            comments.push((index + 1, comment.to_owned()));
        }
        in_text ^= quotes % 2 == 1;
    }
    comments
}

/// Returns the comment of a line of a script that a Rust literal holds.
pub(super) fn of_script(line: &str) -> Option<&str> {
    let (code, comment) = line.split_once("# ")?;
    let is_literal = code.matches('"').count() % 2 == 1;
    let is_rust = code.contains("//");
    (!is_literal && !is_rust && (code.trim().is_empty() || code.ends_with("  "))).then_some(comment)
}
