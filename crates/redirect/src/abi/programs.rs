//! Programs that are files of the tree.

use super::{content, redirect};
use libc::AT_FDCWD;
use std::ffi::{CString, c_int, c_void};
use tameike_interpose::arguments::Text;
use tameike_interpose::{Verdict, Wrong};

type In = *const c_void;
type Out = *mut c_int;

/// The program of a path. What has no slash is looked for elsewhere, by some.
fn program(path: Text) -> Verdict<CString> {
    path.bytes().filter(|bytes| bytes.contains(&b'/'))?;
    content(AT_FDCWD, path, true)
}

redirect! {
    fn [execve](path: Text, arguments: In, environment: In) -> c_int, [path] = program(path);
    fn [execv](path: Text, arguments: In) -> c_int, [path] = program(path);
    fn [execvp](path: Text, arguments: In) -> c_int, [path] = program(path);
    fn [execvpe](path: Text, arguments: In, environment: In) -> c_int, [path] = program(path);
    fn [posix_spawn](process: Out, path: Text, actions: In, attributes: In, arguments: In, environment: In) -> Wrong,
        [path] = program(path);
    fn [posix_spawnp](process: Out, path: Text, actions: In, attributes: In, arguments: In, environment: In) -> Wrong,
        [path] = program(path);
}
