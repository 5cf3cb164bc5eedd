//! The library that is preloaded into programs: where it is, and how they come to it.

use crate::place::base::{node_dir, ring_socket};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tameike_core::{Errno, Fault, Result};

/// The library's file.
const LIBRARY: &str = "libtameike_preload.so";
/// Where it is beside the directory of this program, when not in that itself.
const LIBRARY_DIR: &str = "../lib/tameike";
/// Names the socket at which programs reach the agent.
pub const RING_VARIABLE: &str = "TAMEIKE_RING";
/// What the system's loader preloads.
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// The variables by which a program on this node finds its agent, and with which it is preloaded when that is `wanted`, or it
/// would be already, in another node perhaps.
///
/// # Errors
/// It is to be preloaded, and the library is not there, or the agent takes no such programs.
pub fn variables(wanted: bool, job_dir: &Path, node: u32) -> Result<Vec<(&'static str, OsString)>> {
    let socket = ring_socket(&node_dir(job_dir, node));
    let before = std::env::var_os(PRELOAD_VARIABLE);
    if !wanted && !before.as_deref().is_some_and(is_preloaded) {
        // None rather than another node's.
        let socket = if socket.exists() { socket.into() } else { OsString::new() };
        return Ok(vec![(RING_VARIABLE, socket)]);
    }
    if !socket.exists() {
        let log = node_dir(job_dir, node).join("agent.log");
        let message = format!("the agent takes no preloaded programs; its log, {}, says why", log.display());
        return Err(Fault::new(Errno::EOPNOTSUPP, message));
    }
    Ok(vec![(RING_VARIABLE, socket.into()), with(&find(LIBRARY, "--preload")?)?])
}

/// The variable by which a program loads a library beside those that it would load already.
///
/// # Errors
/// The library's path cannot stand in it.
pub fn with(library: &Path) -> Result<(&'static str, OsString)> {
    Ok((PRELOAD_VARIABLE, preloaded(std::env::var_os(PRELOAD_VARIABLE), library)?))
}

/// The library of this name that belongs to this program, for an `option` that needs it.
///
/// # Errors
/// It is not there.
pub fn find(name: &str, option: &str) -> Result<PathBuf> {
    let program = std::env::current_exe().map_err(|error| Fault::from_os("finding this program", &error))?;
    find_beside(&program, name, option)
}

/// Whether the library is among those that the system's loader preloads.
fn is_preloaded(variable: &OsStr) -> bool {
    let mut parts = variable.as_bytes().split(separates);
    parts.any(|part| Path::new(OsStr::from_bytes(part)).file_name() == Some(OsStr::new(LIBRARY)))
}

/// What is between the names in the loader's variable.
fn separates(byte: &u8) -> bool {
    matches!(byte, b':' | b' ')
}

fn find_beside(program: &Path, name: &str, option: &str) -> Result<PathBuf> {
    let dir = program.parent().unwrap_or(Path::new("/"));
    let places = [dir.join(name), dir.join(LIBRARY_DIR).join(name)];
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        let [beside, below] = places.each_ref().map(|place| place.display());
        let message = format!(
            "{option} needs {name}, which is neither {beside} nor {below}; install it there, or go without"
        );
        Fault::new(Errno::ENOENT, message)
    })
}

/// What is preloaded with the library: first what was before.
fn preloaded(before: Option<OsString>, library: &Path) -> Result<OsString> {
    if library.as_os_str().as_bytes().iter().any(separates) {
        let message = format!("{} cannot be preloaded: its path has a colon or a blank", library.display());
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
    fn what_was_preloaded_before_stays() {
        let library = Path::new("/lib/it.so");
        let with = |before: &str| preloaded(Some(before.into()), library).expect("a plain path");
        assert_eq!(preloaded(None, library), Ok("/lib/it.so".into()));
        assert_eq!((with(""), with("/a.so b.so")), ("/lib/it.so".into(), "/a.so b.so:/lib/it.so".into()));
        assert_eq!(with("/a.so:/lib/it.so"), "/a.so:/lib/it.so");
        assert!(preloaded(None, Path::new("/a b/it.so")).is_err());
    }
}
