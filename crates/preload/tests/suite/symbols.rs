//! Each function of this machine's C library is either replaced by the library, or listed in `symbols.txt` with a reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

const TABLE: &str = include_str!("symbols.txt");

/// Returns the functions that `library` exports, without versions.
fn functions(library: &Path) -> BTreeSet<String> {
    let output = Command::new("nm").args(["--dynamic", "--defined-only"]).arg(library).output().expect("nm");
    let listed = String::from_utf8(output.stdout).expect("text");
    let functions = listed.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_function = words.next().is_some_and(|kind| ["T", "W", "i"].contains(&kind));
        let name = words.next()?.split('@').next()?;
        (is_function && !name.starts_with("GLIBC")).then(|| name.to_owned())
    });
    functions.collect()
}

/// Returns the path of this program's C library.
fn c_library() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let mut paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let found = paths.find(|path| path.contains("/libc.so") || path.contains("/libc-2"));
    found.expect("a C library").to_owned()
}

/// Returns reasons with their name patterns, in order.
fn reasons() -> Vec<Reason> {
    let mut reasons: Vec<Reason> = Vec::new();
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        if let Some(reason) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            reasons.push((reason, Vec::new()));
        } else if let Some((_, patterns)) = reasons.last_mut() {
            patterns.extend(line.split_whitespace());
        }
    }
    reasons
}

/// Matches `name` with `pattern`, in which each `*` matches any text.
fn fits(name: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|left| {
            (0..=left.len()).filter(|at| left.is_char_boundary(*at)).any(|at| fits(&left[at..], rest))
        }),
    }
}

type Reason = (&'static str, Vec<&'static str>);

fn reason(reasons: &[Reason], name: &str) -> Option<&'static str> {
    let known = reasons.iter().find(|(_, patterns)| patterns.iter().any(|pattern| fits(name, pattern)));
    known.map(|(reason, _)| *reason)
}

#[test]
fn every_function_of_the_c_library_is_replaced_or_has_a_reason() {
    let (ours, theirs) = (functions(&crate::directory::library()), functions(Path::new(&c_library())));
    assert!(theirs.len() > 2000 && ours.contains("read"), "nm has listed {} functions", theirs.len());
    let reasons = reasons();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut unknown = Vec::new();
    for name in theirs.difference(&ours) {
        match reason(&reasons, name) {
            Some(reason) => *counts.entry(reason).or_default() += 1,
            None => unknown.push(name),
        }
    }
    println!("{} functions, {} of them replaced", theirs.len(), theirs.intersection(&ours).count());
    counts.iter().for_each(|(reason, count)| println!("{count:5} {reason}"));
    assert!(unknown.is_empty(), "replace these, or list them in symbols.txt with a reason: {unknown:?}");
}

/// A function with a misspelt name would replace nothing.
#[test]
fn every_function_of_the_library_is_in_the_c_library_or_has_a_reason() {
    let (ours, theirs) = (functions(&crate::directory::library()), functions(Path::new(&c_library())));
    let reasons = reasons();
    let unknown: Vec<_> = ours.difference(&theirs).filter(|name| reason(&reasons, name).is_none()).collect();
    assert!(unknown.is_empty(), "the C library does not have these: {unknown:?}");
}

#[test]
fn unknown_functions_are_detected() {
    assert_eq!(reason(&reasons(), "read_everything_at_once"), None);
    assert!(fits("fts_set", "fts_set") && fits("strlen", "str*") && fits("srand48_r", "*rand48*"));
    assert!(!fits("fts_sets", "fts_set") && !fits("xstr", "str*"));
}
