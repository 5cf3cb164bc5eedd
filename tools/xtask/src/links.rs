//! Lint: every relative link in Markdown must lead to an existing file. Does not check other sites, nor the part after `#`.

use crate::Finding;
use std::path::Path;

#[cfg(test)]
mod tests;

/// Checks the links of a file, if it is Markdown. `path` is relative to `root`.
pub fn check(root: &Path, path: &Path, text: &str) -> Vec<Finding> {
    if path.extension().is_none_or(|extension| extension != "md") {
        return Vec::new();
    }
    let directory = root.join(path.parent().unwrap_or(Path::new("")));
    let mut findings = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code && !line.starts_with("    ") {
            for link in links(line).filter(|link| is_relative(link)) {
                let file = link.split(['#', '?']).next().unwrap_or(link);
                if !directory.join(file).exists() {
                    let message = format!("the link to `{link}` has no target: correct it, or add the file");
                    findings.push(Finding::new(path, index + 1, message));
                }
            }
        }
    }
    findings
}

/// Iterates over the targets of `[text](target)`, `[text](target "title")` and `[name]: target` in a line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let named = line.starts_with('[').then(|| line.split_once("]: ")).flatten().map(|(_, target)| target);
    inline.chain(named).filter_map(|target| target.split_whitespace().next())
}

fn is_relative(link: &str) -> bool {
    !(link.starts_with('#') || link.contains("://") || link.starts_with("mailto:"))
}
