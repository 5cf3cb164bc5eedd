//! Programs that are started: those that are files of the tree, and the environment of all.

use super::environment::{completed, lacking, own};
use super::content;
use libc::AT_FDCWD;
use rustix::io::Errno;
use std::ffi::{CString, c_char, c_int, c_void};
use tameike_interpose::arguments::Text;
use tameike_interpose::lists::{List, strings};
use tameike_interpose::{Outcome, Verdict, Wrong, call, deliver, guarded, interpose_listed};

type In = *const c_void;
type Out = *mut c_int;

/// The program of a path. What has no slash is looked for elsewhere, by some.
fn program(directory: c_int, path: Text) -> Verdict<CString> {
    path.bytes().filter(|bytes| bytes.contains(&b'/') || directory != AT_FDCWD)?;
    content(directory, path, true)
}

/// Calls `start` with the path by which the kernel finds a program, and with an environment that has what this library needs.
fn started<T: Outcome>(
    directory: c_int,
    path: Text,
    environment: List,
    start: impl FnOnce(Text, List) -> T,
) -> T {
    let real = guarded(|| program(directory, path));
    let path = match &real {
        Some(Ok(real)) => Text::of(real),
        Some(Err(error)) => return deliver(Err(*error)),
        None => path,
    };
    completed(environment, |environment| start(path, environment)).unwrap_or_else(T::failed)
}

fn execute(path: Text, arguments: List, environment: List) -> c_int {
    started(AT_FDCWD, path, environment, |path, environment| {
        call!(execve(path: Text, arguments: List, environment: List) -> c_int)
    })
}

fn execute_found(path: Text, arguments: List, environment: List) -> c_int {
    started(AT_FDCWD, path, environment, |path, environment| {
        call!(execvpe(path: Text, arguments: List, environment: List) -> c_int)
    })
}

/// Defines functions of the C library by what they do.
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
        started(directory, path, environment, |path, environment| {
            call!(execveat(directory: c_int, path: Text, arguments: List, environment: List, flags: c_int) -> c_int)
        });
    fn posix_spawn(process: Out, path: Text, actions: In, attributes: In, arguments: List, environment: List) -> Wrong =
        started(AT_FDCWD, path, environment, |path, environment| {
            call!(posix_spawn(process: Out, path: Text, actions: In, attributes: In, arguments: List, environment: List) -> Wrong)
        });
    fn posix_spawnp(process: Out, path: Text, actions: In, attributes: In, arguments: List, environment: List) -> Wrong =
        started(AT_FDCWD, path, environment, |path, environment| {
            call!(posix_spawnp(process: Out, path: Text, actions: In, attributes: In, arguments: List, environment: List) -> Wrong)
        });
    fn system(command: Text) -> c_int =
        commanded(command, |command| call!(system(command: Text) -> c_int));
    fn __libc_system(command: Text) -> c_int =
        commanded(command, |command| call!(__libc_system(command: Text) -> c_int));
    fn popen(command: Text, mode: *const c_char) -> *mut c_void =
        commanded(command, |command| call!(popen(command: Text, mode: *const c_char) -> *mut c_void));
    fn _IO_popen(command: Text, mode: *const c_char) -> *mut c_void =
        commanded(command, |command| call!(_IO_popen(command: Text, mode: *const c_char) -> *mut c_void));
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

/// The environment comes behind the null pointer that ends the arguments.
extern "C" fn execute_listed_with(path: Text, arguments: List) -> c_int {
    let count = strings(arguments).count();
    // SAFETY: the caller gave one more argument behind the null pointer.
    let environment = unsafe { *arguments.add(count + 1) };
    execute(path, arguments, environment.cast())
}

/// Calls `start` with the command for a shell that the C library starts with the environment of the process. Where that lacks something,
/// the shell makes itself another one, with it.
fn commanded<T: Outcome>(command: Text, start: impl FnOnce(Text) -> T) -> T {
    let longer = guarded(|| {
        let bytes = command.bytes()?;
        match lacking() {
            Ok(lacking) if lacking.is_empty() => None,
            lacking => Some(lacking.and_then(|lacking| with_variables(&lacking, bytes))),
        }
    });
    match longer {
        Some(Ok(longer)) => start(Text::of(&longer)),
        Some(Err(error)) => deliver(Err(error)),
        None => start(command),
    }
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

/// As a word for a shell.
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
