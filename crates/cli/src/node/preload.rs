//! Finds the library that is preloaded into programs, and sets the variables that load it.

use crate::place::base::{node_dir, ring_socket};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tameike_core::{Errno, Fault, Result};

/// File name of the library.
const LIBRARY: &str = "libtameike_preload.so";
/// Its directory relative to that of this program, if it is not in the same.
const LIBRARY_DIR: &str = "../lib/tameike";
/// Variable with the agent's socket for programs.
pub const RING_VARIABLE: &str = "TAMEIKE_RING";
/// The loader's variable.
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// Returns the variables by which a program on this node finds its agent. They preload the library if `wanted`, or if it is
/// preloaded already, for example in another node.
pub fn variables(wanted: bool, job_dir: &Path, node: u32) -> Result<Vec<(&'static str, OsString)>> {
    let socket = ring_socket(&node_dir(job_dir, node));
    let before = std::env::var_os(PRELOAD_VARIABLE);
    if !wanted && !before.as_deref().is_some_and(is_preloaded) {
        // An empty value replaces the socket of another node.
        let socket = if socket.exists() { socket.into() } else { OsString::new() };
        return Ok(vec![(RING_VARIABLE, socket)]);
    }
    if !socket.exists() {
        let log = node_dir(job_dir, node).join("agent.log");
        let message = format!(
            "the agent does not support preloaded programs; its log has the reason: {}",
            log.display()
        );
        return Err(Fault::new(Errno::EOPNOTSUPP, message));
    }
    Ok(vec![(RING_VARIABLE, socket.into()), with(&find(LIBRARY, "--preload")?)?])
}

/// Returns the variable that preloads a library in addition to the present ones.
pub fn with(library: &Path) -> Result<(&'static str, OsString)> {
    Ok((PRELOAD_VARIABLE, preloaded(std::env::var_os(PRELOAD_VARIABLE), library)?))
}

/// Returns the library of this name that is installed with this program; `option` is for the error message. Fails with `ENOENT` if it is missing.
pub fn find(name: &str, option: &str) -> Result<PathBuf> {
    let program = std::env::current_exe().map_err(|error| Fault::from_os("finding this program", &error))?;
    find_beside(&program, name, option)
}

/// Returns true if the loader's variable contains the library.
fn is_preloaded(variable: &OsStr) -> bool {
    let mut parts = variable.as_bytes().split(separates);
    parts.any(|part| Path::new(OsStr::from_bytes(part)).file_name() == Some(OsStr::new(LIBRARY)))
}

/// Returns true for separators of the loader's variable.
fn separates(byte: &u8) -> bool {
    matches!(byte, b':' | b' ')
}

fn find_beside(program: &Path, name: &str, option: &str) -> Result<PathBuf> {
    let dir = program.parent().unwrap_or(Path::new("/"));
    let places = [dir.join(name), dir.join(LIBRARY_DIR).join(name)];
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        let [beside, below] = places.each_ref().map(|place| place.display());
        let message = format!(
            "{option} needs {name}, which is neither {beside} nor {below}; install it there, or omit {option}"
        );
        Fault::new(Errno::ENOENT, message)
    })
}

/// Appends the library to the value of the loader's variable.
fn preloaded(before: Option<OsString>, library: &Path) -> Result<OsString> {
    if library.as_os_str().as_bytes().iter().any(separates) {
        let message =
            format!("{} cannot be preloaded: its path contains a colon or a space", library.display());
        return Err(Fault::new(Errno::EINVAL, message));
    }
    let before = before.unwrap_or_default();
    let mut parts = before.as_bytes().split(separates);
    if before.is_empty() || parts.any(|part| part == library.as_os_str().as_bytes()) {
        return Ok(if before.is_empty() { library.into() } else { before });
    }
    let mut preload = before.clone();
    preload.push(":");
    preload.push(library);
    Ok(preload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    #[test]
    fn the_library_is_beside_the_program_or_below_lib() {
        let dir = tempfile::tempdir().expect("a directory");
        let program = dir.path().join("bin/tameike");
        create_dir_all(dir.path().join("bin")).expect("a directory");
        create_dir_all(dir.path().join("lib/tameike")).expect("a directory");
        let fault = find_beside(&program, LIBRARY, "--preload").expect_err("it is not there");
        assert!(fault.to_string().contains(LIBRARY) && fault.to_string().contains("lib/tameike"), "{fault}");
        let below = dir.path().join("lib/tameike").join(LIBRARY);
        write(&below, "").expect("a file");
        assert_eq!(
            find_beside(&program, LIBRARY, "--preload").expect("it is there").canonicalize().ok(),
            below.canonicalize().ok()
        );
        let beside = dir.path().join("bin").join(LIBRARY);
        write(&beside, "").expect("a file");
        assert_eq!(find_beside(&program, LIBRARY, "--preload"), Ok(beside));
    }

    #[test]
    fn libraries_that_are_preloaded_already_stay() {
        let library = Path::new("/lib/it.so");
        let with = |before: &str| preloaded(Some(before.into()), library).expect("a plain path");
        assert_eq!(preloaded(None, library), Ok("/lib/it.so".into()));
        assert_eq!((with(""), with("/a.so b.so")), ("/lib/it.so".into(), "/a.so b.so:/lib/it.so".into()));
        assert_eq!(with("/a.so:/lib/it.so"), "/a.so:/lib/it.so");
        assert!(preloaded(None, Path::new("/a b/it.so")).is_err());
    }
}
