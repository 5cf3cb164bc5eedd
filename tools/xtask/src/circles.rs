//! Lint: the files of a crate do not import each other in cycles, except a module and its submodules.
//!
//! The lint reads the `use` declarations and the paths in code that begin with `crate`, `self` or `super`, and follows names that
//! a module re-exports. It does not read tests, macros, or paths that begin with an imported module.

use crate::Finding;
use crate::tree::File;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// Maximum length of a chain of re-exports that the lint follows.
const REEXPORTS_MAX: usize = 8;

/// Checks the crates among `files`: directories below `crates` and `tools` with a `src`.
pub fn check(files: &[File]) -> Vec<Finding> {
    let mut crates: BTreeMap<PathBuf, Vec<(ModulePath, &File)>> = BTreeMap::new();
    for file in files {
        if let Some((root, module)) = module_of(&file.path) {
            crates.entry(root).or_default().push((module, file));
        }
    }
    crates.values().flat_map(|modules| check_crate(modules)).collect()
}

/// A module path, relative to the root of the crate.
type ModulePath = Vec<String>;

/// Returns the crate's directory and the module of a file; none for tests and files that are not modules.
fn module_of(path: &Path) -> Option<(PathBuf, ModulePath)> {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    let [group @ ("crates" | "tools"), name, "src", inner @ ..] = parts.as_slice() else { return None };
    let (last, above) = inner.split_last()?;
    let name_of_file = last.strip_suffix(".rs")?;
    let mut module: ModulePath = above.iter().map(|&part| part.to_owned()).collect();
    if !["lib", "main", "mod"].contains(&name_of_file) {
        module.push(name_of_file.to_owned());
    }
    let is_test = module.iter().any(|part| part == "tests");
    (!is_test).then(|| (Path::new(group).join(name), module))
}

struct Module<'a> {
    path: &'a Path,
    /// Imported paths, relative to the root of the crate.
    imports: Vec<ModulePath>,
    /// Re-exported names, each with its path.
    exports: BTreeMap<String, ModulePath>,
}

fn check_crate(files: &[(ModulePath, &File)]) -> Vec<Finding> {
    let known: BTreeSet<&ModulePath> = files.iter().map(|(module, _)| module).collect();
    let mut modules = BTreeMap::new();
    for (module, file) in files {
        let code = product_code(&file.text);
        let mut read = Module { path: &file.path, imports: Vec::new(), exports: BTreeMap::new() };
        let (used, code) = used_paths(&code);
        for (path, name) in used {
            if let Some(path) = resolve(&path, module, &known) {
                read.exports.insert(name, path.clone());
                read.imports.push(path);
            }
        }
        let inline = inline_paths(&code);
        read.imports.extend(inline.iter().filter_map(|path| resolve(path, module, &known)));
        // The library and the program of a crate have the same root.
        modules.entry(module.clone()).or_insert(read);
    }
    let edges: BTreeMap<&ModulePath, BTreeSet<ModulePath>> = modules
        .iter()
        .map(|(module, read)| {
            let targets = read.imports.iter().map(|path| target(path, &modules));
            // A module may use items of the modules above it.
            (module, targets.filter(|target| !module.starts_with(target)).collect())
        })
        .collect();
    circles(&edges).iter().filter_map(|circle| finding(circle, &modules)).collect()
}

fn finding(circle: &[&ModulePath], modules: &BTreeMap<ModulePath, Module<'_>>) -> Option<Finding> {
    let paths: Vec<String> =
        circle.iter().map(|module| modules[*module].path.display().to_string()).collect();
    let first = modules.get(*circle.first()?)?.path;
    let message = format!(
        "{} files import each other in a cycle: {}. Move what they share to a file below all of them",
        paths.len(),
        paths.join(", ")
    );
    Some(Finding::new(first, 1, message))
}

/// Returns the module that defines a path.
fn target(path: &ModulePath, modules: &BTreeMap<ModulePath, Module<'_>>) -> ModulePath {
    let mut path = path.clone();
    for _ in 0..REEXPORTS_MAX {
        let length = (0..=path.len()).rev().find(|&length| modules.contains_key(&path[..length]));
        let length = length.unwrap_or(0);
        let (module, rest) = path.split_at(length);
        let exported = rest.first().and_then(|name| modules.get(module)?.exports.get(name));
        match exported {
            Some(exported) => path = [exported.as_slice(), &rest[1..]].concat(),
            None => return module.to_vec(),
        }
    }
    path
}

/// Resolves a path of `module` relative to the root of the crate; none if it leads out of the crate.
fn resolve(path: &[String], module: &ModulePath, known: &BTreeSet<&ModulePath>) -> Option<ModulePath> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" => Some([module.as_slice(), rest].concat()),
        "super" => {
            let ups = path.iter().take_while(|part| *part == "super").count();
            let above = module.len().checked_sub(ups)?;
            Some([&module[..above], &path[ups..]].concat())
        }
        name => {
            let child = [module.as_slice(), &[name.to_owned()]].concat();
            known.contains(&child).then(|| [child.as_slice(), rest].concat())
        }
    }
}

/// Returns the code without comments, up to the first test module.
fn product_code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]" && lines.peek().is_some_and(|next| next.ends_with('{')) {
            break;
        }
        let line = line.split("//").next().unwrap_or_default();
        code.push_str(line);
        code.push('\n');
    }
    code
}

/// Returns the paths of `use` declarations, each with its local name, and the code without these declarations.
fn used_paths(code: &str) -> (Vec<(Vec<String>, String)>, String) {
    let (mut found, mut rest, mut last) = (Vec::new(), String::new(), 0);
    for (at, _) in code.match_indices("use ") {
        let before = code[..at].rsplit('\n').next().unwrap_or_default().trim();
        if at < last || !(before.is_empty() || before.starts_with("pub")) {
            continue;
        }
        if let Some((tree, _)) = code[at + 4..].split_once(';') {
            expand(tree, &[], &mut found);
            rest.push_str(&code[last..at]);
            last = at + 4 + tree.len();
        }
    }
    rest.push_str(&code[last..]);
    (found, rest)
}

fn expand(tree: &str, above: &[String], found: &mut Vec<(Vec<String>, String)>) {
    let tree = tree.trim();
    let (path, inner) = match tree.split_once('{') {
        Some((path, inner)) => (path, inner.rfind('}').map(|end| &inner[..end])),
        None => (tree, None),
    };
    let (path, alias) = path.split_once(" as ").map_or((path, None), |(path, alias)| (path, Some(alias)));
    let parts = path.split("::").map(str::trim).filter(|part| !part.is_empty() && *part != "*");
    let mut full = above.to_vec();
    full.extend(parts.map(str::to_owned));
    match inner {
        Some(inner) => split_top(inner).into_iter().for_each(|part| expand(part, &full, found)),
        None => {
            if full.len() > above.len() && full.len() > 1 && full.last().is_some_and(|part| part == "self") {
                full.pop();
            }
            if let Some(last) = full.last() {
                let name = alias.map_or_else(|| last.clone(), |alias| alias.trim().to_owned());
                found.push((full, name));
            }
        }
    }
}

/// Splits at the commas outside of braces.
fn split_top(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// Returns the paths in code that begin with `crate`, `self` or `super`.
fn inline_paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let is_part = |character: char| character.is_alphanumeric() || character == '_' || character == ':';
    for word in code.split(|character| !is_part(character)) {
        let first = word.split("::").next().unwrap_or_default();
        if ["crate", "self", "super"].contains(&first) && word.contains("::") {
            found.push(word.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect());
        }
    }
    found
}

/// Returns the strongly connected components of several modules, by pairwise reachability: crates are small.
fn circles<'a>(edges: &BTreeMap<&'a ModulePath, BTreeSet<ModulePath>>) -> Vec<Vec<&'a ModulePath>> {
    let reach = |from: &ModulePath| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(module) = next.pop() {
            for target in edges.get(&module).into_iter().flatten() {
                if seen.insert(target.clone()) {
                    next.push(target.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&ModulePath, BTreeSet<ModulePath>> =
        edges.keys().map(|module| (*module, reach(module))).collect();
    let (mut found, mut done) = (Vec::new(), BTreeSet::new());
    for (module, targets) in &reached {
        if done.contains(module) || !targets.contains(*module) {
            continue;
        }
        let circle: Vec<&ModulePath> = reached
            .iter()
            .filter(|(other, back)| targets.contains(**other) && back.contains(*module))
            .map(|(other, _)| *other)
            .collect();
        done.extend(circle.iter().copied());
        if circle.len() > 1 {
            found.push(circle);
        }
    }
    found
}
