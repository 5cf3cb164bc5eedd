//! Functions that execute programs: resolves programs in the tree, and completes environments.

use super::environment::{completed, lacking, own};
use crate::program;
use libc::AT_FDCWD;
use rustix::io::Errno;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use tameike_interpose::arguments::Text;
use tameike_interpose::lists::{List, strings, with_list};
use tameike_interpose::{
    ErrorNumber, Outcome, Verdict, call, deliver, errno, guarded, interpose_listed, set_errno,
};

type In = *const c_void;
type Out = *mut c_int;

const SHELL: &CStr = c"/bin/sh";

/// Calls `start` with the kernel's path of a program, its arguments, and the completed environment.
fn started<T: Outcome>(
    directory: c_int,
    path: Text,
    arguments: List,
    environment: List,
    start: impl FnOnce(Text, List, List) -> T,
) -> T {
    let found = match guarded(|| program::find(directory, path.bytes()?)).transpose() {
        Ok(found) => found,
        Err(error) => return deliver(Err(error)),
    };
    let path = found.as_ref().map_or(path, |found| Text::of(&found.path));
    let start = |arguments| completed(environment, |environment| start(path, arguments, environment));
    let outcome = match found.as_ref().filter(|found| !found.first.is_empty()) {
        None => start(arguments),
        Some(found) => {
            let first = found.first.iter().map(|text| Text::of(text));
            with_list(first.chain(strings(arguments).skip(1)), start).flatten()
        }
    };
    outcome.unwrap_or_else(T::failed)
}

fn execute(path: Text, arguments: List, environment: List) -> c_int {
    started(
        AT_FDCWD,
        path,
        arguments,
        environment,
        |path, arguments, environment| call!(execve(path: Text, arguments: List, environment: List) -> c_int),
    )
}

/// Executes a file, by the shell if it has no known format.
fn execute_any(path: &CStr, arguments: List, environment: List) -> c_int {
    let outcome = execute(Text::of(path), arguments, environment);
    if errno() != libc::ENOEXEC {
        return outcome;
    }
    let first = [Text::of(SHELL), Text::of(path)].into_iter();
    let run = |arguments| execute(Text::of(SHELL), arguments, environment);
    with_list(first.chain(strings(arguments).skip(1)), run).unwrap_or_else(c_int::failed)
}

/// `execvpe`, as the C library would not search the tree.
fn execute_found(file: Text, arguments: List, environment: List) -> c_int {
    let paths = match guarded(|| found_paths(file)) {
        Some(Ok(paths)) => paths,
        Some(Err(error)) => return deliver(Err(error)),
        None => {
            return completed(
                environment,
                |environment| call!(execvpe(file: Text, arguments: List, environment: List) -> c_int),
            )
            .unwrap_or_else(c_int::failed);
        }
    };
    let mut is_denied = false;
    for path in &paths {
        execute_any(path, arguments, environment);
        match errno() {
            libc::EACCES => is_denied = true,
            libc::ENOENT | libc::ESTALE | libc::ENOTDIR | libc::ENODEV | libc::ETIMEDOUT => {}
            _ => return -1,
        }
    }
    if is_denied {
        set_errno(libc::EACCES);
    }
    -1
}

/// Returns the candidate paths of a program's name or path.
fn found_paths(file: Text) -> Verdict<Vec<CString>> {
    crate::spool::get()?;
    let name = file.bytes().filter(|name| !name.is_empty())?;
    if name.contains(&b'/') {
        return CString::new(name).ok().map(|path| Ok(vec![path]));
    }
    // SAFETY: no thread may change the variable meanwhile, as in the C library.
    let list = super::bytes_at(unsafe { libc::getenv(c"PATH".as_ptr()) });
    Some(program::candidates(name, list))
}

/// Returns the path of a program for `posix_spawnp`; `None` if there is none, so that the C library reports the error.
fn found_program(file: Text) -> Option<CString> {
    let paths = guarded(|| found_paths(file))?.ok()?;
    guarded(|| program::first(paths).map(Ok))?.ok()
}

/// Defines replacements of C library functions.
macro_rules! programs {
    ($(fn $name:ident $arguments:tt -> $result:ty = $does:expr;)*) => {
        $(programs! { @one $name $arguments -> $result = $does })*
    };
    (@one $name:ident ($($argument:ident: $type:ty),*) -> $result:ty = $does:expr) => {
        // SAFETY: the name is that of the C library's function, and so are the arguments.
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            $does
        }
    };
}

programs! {
    fn execve(path: Text, arguments: List, environment: List) -> c_int = execute(path, arguments, environment);
    fn execv(path: Text, arguments: List) -> c_int = execute(path, arguments, own());
    fn execvp(path: Text, arguments: List) -> c_int = execute_found(path, arguments, own());
    fn execvpe(path: Text, arguments: List, environment: List) -> c_int = execute_found(path, arguments, environment);
    fn fexecve(number: c_int, arguments: List, environment: List) -> c_int =
        completed(environment, |environment| call!(fexecve(number: c_int, arguments: List, environment: List) -> c_int))
            .unwrap_or_else(c_int::failed);
    fn execveat(directory: c_int, path: Text, arguments: List, environment: List, flags: c_int) -> c_int =
        started(directory, path, arguments, environment, |path, arguments, environment| {
            call!(execveat(directory: c_int, path: Text, arguments: List, environment: List, flags: c_int) -> c_int)
        });
    fn posix_spawn(process: Out, path: Text, actions: In, attributes: In, arguments: List, environment: List) -> ErrorNumber =
        spawn(process, path, actions, attributes, arguments, environment);
    fn posix_spawnp(process: Out, path: Text, actions: In, attributes: In, arguments: List, environment: List) -> ErrorNumber =
        match found_program(path) {
            Some(path) => spawn(process, Text::of(&path), actions, attributes, arguments, environment),
            None => completed(environment, |environment| {
                call!(posix_spawnp(process: Out, path: Text, actions: In, attributes: In, arguments: List, environment: List) -> ErrorNumber)
            })
            .unwrap_or_else(ErrorNumber::failed),
        };
    fn system(command: Text) -> c_int =
        commanded(command, |command| call!(system(command: Text) -> c_int));
    fn __libc_system(command: Text) -> c_int =
        commanded(command, |command| call!(__libc_system(command: Text) -> c_int));
    fn popen(command: Text, mode: *const c_char) -> *mut c_void =
        commanded(command, |command| call!(popen(command: Text, mode: *const c_char) -> *mut c_void));
    fn _IO_popen(command: Text, mode: *const c_char) -> *mut c_void =
        commanded(command, |command| call!(_IO_popen(command: Text, mode: *const c_char) -> *mut c_void));
}

fn spawn(
    process: Out,
    path: Text,
    actions: In,
    attributes: In,
    arguments: List,
    environment: List,
) -> ErrorNumber {
    started(
        AT_FDCWD,
        path,
        arguments,
        environment,
        |path, arguments, environment| call!(posix_spawn(process: Out, path: Text, actions: In, attributes: In, arguments: List, environment: List) -> ErrorNumber),
    )
}

interpose_listed! {
    fn [execl] = execute_listed;
    fn [execlp] = execute_found_listed;
    fn [execle] = execute_listed_with;
}

extern "C" fn execute_listed(path: Text, arguments: List) -> c_int {
    execute(path, arguments, own())
}

extern "C" fn execute_found_listed(path: Text, arguments: List) -> c_int {
    execute_found(path, arguments, own())
}

/// The environment follows the null pointer that ends the arguments.
extern "C" fn execute_listed_with(path: Text, arguments: List) -> c_int {
    let count = strings(arguments).count();
    // SAFETY: the caller passed one more argument after the null pointer.
    let environment = unsafe { *arguments.add(count + 1) };
    execute(path, arguments, environment.cast())
}

/// Calls `start` with a command for a shell, which the C library starts with the environment of the process. If variables are missing in it,
/// the command exports them and executes another shell.
fn commanded<T: Outcome>(command: Text, start: impl FnOnce(Text) -> T) -> T {
    let longer = guarded(|| {
        let bytes = command.bytes()?;
        match lacking() {
            Ok(lacking) if lacking.is_empty() => None,
            lacking => Some(lacking.and_then(|lacking| with_variables(&lacking, bytes))),
        }
    });
    super::with_path(command, longer, start)
}

fn with_variables(variables: &[CString], command: &[u8]) -> Result<CString, Errno> {
    let mut longer = b"export".to_vec();
    for variable in variables {
        let mut parts = variable.to_bytes().splitn(2, |byte| *byte == b'=');
        let (name, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        longer.extend([b" ", name, b"=", &quoted(value)].concat());
    }
    longer.extend([b"; exec /bin/sh -c -- ", quoted(command).as_slice(), b" sh"].concat());
    CString::new(longer).map_err(|_| Errno::INVAL)
}

/// Quotes a word for a shell.
fn quoted(text: &[u8]) -> Vec<u8> {
    let mut word = b"'".to_vec();
    for byte in text {
        match byte {
            b'\'' => word.extend_from_slice(b"'\\''"),
            byte => word.push(*byte),
        }
    }
    word.push(b'\'');
    word
}
