//! Lint: the dependencies between crates, and the crates that may hold `unsafe`.
//!
//! The edges are those of `ARCHITECTURE.md`, compared with `cargo metadata`, including dependencies of tests and build scripts.

use crate::Finding;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[cfg(test)]
mod tests;

/// The crates in dependency order, each with its direct dependencies. Indirect dependencies are allowed, too.
pub const EDGES: [(&str, &[&str]); 22] = [
    ("tameike-core", &[]),
    ("tameike-io", &["tameike-core"]),
    ("tameike-fabric", &["tameike-io"]),
    ("tameike-fuse", &["tameike-io"]),
    ("tameike-interpose", &[]),
    ("tameike-redirect", &["tameike-core", "tameike-interpose"]),
    ("tameike-store", &["tameike-io"]),
    ("tameike-container", &["tameike-io"]),
    ("tameike-packer", &["tameike-container", "tameike-fabric"]),
    ("tameike-spool", &["tameike-container"]),
    ("tameike-server", &["tameike-store", "tameike-fabric"]),
    ("tameike-dsm", &["tameike-io"]),
    ("tameike-client", &["tameike-fabric", "tameike-dsm"]),
    ("tameike-ring", &["tameike-io"]),
    ("tameike-preload", &["tameike-ring", "tameike-interpose"]),
    ("tameike-capi", &["tameike-ring", "tameike-container", "tameike-dsm"]),
    (
        "tameike-agent",
        &["tameike-server", "tameike-client", "tameike-ring", "tameike-fuse", "tameike-packer"],
    ),
    ("tameike", &["tameike-agent", "tameike-spool", "tameike-preload", "tameike-redirect", "tameike-capi"]),
    ("tameike-sim", &["tameike-agent"]),
    ("tameike-fuzz", &["tameike"]),
    ("tameike-bench", &["tameike-container"]),
    ("xtask", &[]),
];

/// The crates that may hold `unsafe`: they call the operating system or libfabric, or C programs call them.
pub const UNSAFE_CRATES: [&str; 7] = [
    "tameike-io",
    "tameike-fabric",
    "tameike-fuse",
    "tameike-interpose",
    "tameike-preload",
    "tameike-redirect",
    "tameike-capi",
];

/// Checks the crates of the workspace at `root`.
pub fn check(root: &Path) -> Result<Vec<Finding>, String> {
    let packages = packages(root)?;
    let members: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let mut findings = Vec::new();
    for package in &packages {
        let manifest = package.manifest.strip_prefix(root).unwrap_or(&package.manifest);
        let text = read(&package.manifest)?;
        findings.extend(check_edges(package, manifest, &text, &members));
        for target in &package.roots {
            let path = target.strip_prefix(root).unwrap_or(target);
            findings.extend(check_unsafe(&package.name, path, &read(target)?));
        }
    }
    Ok(findings)
}

/// A member of the workspace.
#[derive(Debug)]
struct Package {
    name: String,
    manifest: PathBuf,
    depends_on: Vec<String>,
    /// The root files of its library and programs.
    roots: Vec<PathBuf>,
}

/// Returns all crates that `name` may depend on, or `None` if the table lacks it.
fn allowed(name: &str) -> Option<BTreeSet<&'static str>> {
    let (_, direct) = EDGES.iter().find(|(known, _)| *known == name)?;
    let mut all: BTreeSet<&str> = direct.iter().copied().collect();
    for below in *direct {
        all.extend(allowed(below).unwrap_or_default());
    }
    Some(all)
}

fn check_edges(package: &Package, manifest: &Path, text: &str, members: &BTreeSet<&str>) -> Vec<Finding> {
    let name = &package.name;
    let Some(allowed) = allowed(name) else {
        let message =
            format!("crate {name} is unknown: add it with its dependencies to EDGES in xtask's crates.rs");
        return vec![Finding::new(manifest, 1, message)];
    };
    let wrong = |dependency: &&String| {
        members.contains(dependency.as_str()) && !allowed.contains(dependency.as_str())
    };
    let finding = |dependency: &String| {
        let line = text.lines().position(|line| line.starts_with(dependency.as_str())).map_or(1, |at| at + 1);
        let may: Vec<&str> = allowed.iter().copied().collect();
        let may = if may.is_empty() { "no crate of this workspace".to_owned() } else { may.join(", ") };
        let message =
            format!("{name} must not depend on {dependency} (it may on {may}): move what it needs down");
        Finding::new(manifest, line, message)
    };
    package.depends_on.iter().filter(wrong).map(finding).collect()
}

fn check_unsafe(name: &str, path: &Path, text: &str) -> Option<Finding> {
    let forbids = text.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]");
    if forbids || UNSAFE_CRATES.contains(&name) {
        return None;
    }
    Some(Finding::new(
        path,
        1,
        "add `#![forbid(unsafe_code)]` below the opening `//!`, or add the crate to UNSAFE_CRATES",
    ))
}

fn packages(root: &Path) -> Result<Vec<Package>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--no-deps"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("xtask: cannot start cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("xtask: cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("xtask: cargo metadata printed no JSON: {error}"))?;
    Ok(list(&metadata["packages"]).iter().map(package).collect())
}

fn package(value: &Value) -> Package {
    let is_root = |target: &&Value| {
        list(&target["kind"])
            .iter()
            .any(|kind| ["lib", "bin", "cdylib", "proc-macro"].iter().any(|k| kind == k))
    };
    Package {
        name: string(&value["name"]),
        manifest: string(&value["manifest_path"]).into(),
        depends_on: list(&value["dependencies"]).iter().map(|edge| string(&edge["name"])).collect(),
        roots: list(&value["targets"])
            .iter()
            .filter(is_root)
            .map(|target| string(&target["src_path"]).into())
            .collect(),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("xtask: cannot read {}: {error}", path.display()))
}
