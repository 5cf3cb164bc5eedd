//! Functions that only the kernel can serve: their arguments are upgraded first.

use super::arguments::Text;
use super::upgrade;
use super::{ErrorNumber, Mapping};
use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

type In = *const c_void;
type Out = *mut c_void;

// Descriptors.
upgrade! {
    fn [flock](number: c_int, operation: c_int) -> c_int [number];
    fn [lockf, lockf64](number: c_int, command: c_int, size: i64) -> c_int [number];
    fn [fallocate, fallocate64](number: c_int, mode: c_int, offset: i64, size: i64) -> c_int [number];
    fn [posix_fallocate, posix_fallocate64](number: c_int, offset: i64, size: i64) -> ErrorNumber [number];
    fn [sync_file_range](number: c_int, offset: i64, size: i64, flags: c_uint) -> c_int [number];
    fn [syncfs](number: c_int) -> c_int [number];
    fn [mmap, mmap64, __mmap](
        address: Out, size: usize, protection: c_int, flags: c_int, number: c_int, offset: i64
    ) -> Mapping [number];
    fn [sendfile, sendfile64](out: c_int, number: c_int, offset: Out, count: usize) -> isize [out, number];
    fn [copy_file_range](
        from: c_int, from_offset: Out, to: c_int, to_offset: Out, size: usize, flags: c_uint
    ) -> isize [from, to];
    fn [splice](
        from: c_int, from_offset: Out, to: c_int, to_offset: Out, size: usize, flags: c_uint
    ) -> isize [from, to];
    fn [tee](from: c_int, to: c_int, size: usize, flags: c_uint) -> isize [from, to];
    fn [vmsplice](number: c_int, vector: In, count: usize, flags: c_uint) -> isize [number];
    fn [fchmod](number: c_int, mode: c_uint) -> c_int [number];
    fn [fchown](number: c_int, owner: c_uint, group: c_uint) -> c_int [number];
    fn [fchflags](number: c_int, flags: c_int) -> c_int [number];
    fn [futimens](number: c_int, times: In) -> c_int [number];
    fn [futimes](number: c_int, times: In) -> c_int [number];
    fn [fstatfs, fstatfs64](number: c_int, out: Out) -> c_int [number];
    fn [fstatvfs, fstatvfs64](number: c_int, out: Out) -> c_int [number];
    fn [fpathconf](number: c_int, name: c_int) -> c_long [number];
    fn [fgetxattr](number: c_int, name: In, value: Out, size: usize) -> isize [number];
    fn [fsetxattr](number: c_int, name: In, value: In, size: usize, flags: c_int) -> c_int [number];
    fn [flistxattr](number: c_int, list: Out, size: usize) -> isize [number];
    fn [fremovexattr](number: c_int, name: In) -> c_int [number];
    fn [fdopendir](number: c_int) -> *mut c_void [number];
    fn [getdents64](number: c_int, buffer: Out, size: usize) -> isize [number];
    fn [vdprintf](number: c_int, format: In, arguments: Out) -> c_int [number];
    fn [__vdprintf_chk](number: c_int, flag: c_int, format: In, arguments: Out) -> c_int [number];
    fn [backtrace_symbols_fd, __backtrace_symbols_fd](frames: In, count: c_int, number: c_int) -> () [number];
    fn [tcgetattr](number: c_int, out: Out) -> c_int [number];
    fn [tcsetattr](number: c_int, actions: c_int, settings: In) -> c_int [number];
    fn [tcgetpgrp](number: c_int) -> c_int [number];
    fn [ttyname](number: c_int) -> *mut c_char [number];
    fn [isfdtype](number: c_int, kind: c_int) -> c_int [number];
    fn [getpeername](number: c_int, address: Out, size: Out) -> c_int [number];
    fn [getsockname](number: c_int, address: Out, size: Out) -> c_int [number];
    fn [getsockopt](number: c_int, level: c_int, name: c_int, value: Out, size: Out) -> c_int [number];
    fn [epoll_ctl](queue: c_int, operation: c_int, number: c_int, event: Out) -> c_int [number];
}

// Paths, and descriptors of directories (a ring file fails with the kernel's error).
upgrade! {
    fn [chmod](path: Text, mode: c_uint) -> c_int [path];
    fn [fchmodat](directory: c_int, path: Text, mode: c_uint, flags: c_int) -> c_int [directory, path];
    fn [chown](path: Text, owner: c_uint, group: c_uint) -> c_int [path];
    fn [fchownat](directory: c_int, path: Text, owner: c_uint, group: c_uint, flags: c_int) -> c_int [directory, path];
    fn [link](from: Text, to: Text) -> c_int [from];
    fn [linkat](from: c_int, source: Text, to: c_int, target: Text, flags: c_int) -> c_int [from, source, to];
    fn [symlinkat](content: In, directory: c_int, path: Text) -> c_int [directory];
    fn [mkfifoat](directory: c_int, path: Text, mode: c_uint) -> c_int [directory];
    fn [mknodat](directory: c_int, path: Text, mode: c_uint, device: u64) -> c_int [directory];
    fn [readlink](path: Text, buffer: Out, size: usize) -> isize [path];
    fn [readlinkat](directory: c_int, path: Text, buffer: Out, size: usize) -> isize [directory, path];
    fn [__readlink_chk](path: Text, buffer: Out, size: usize, room: usize) -> isize [path];
    fn [__readlinkat_chk](directory: c_int, path: Text, buffer: Out, size: usize, room: usize) -> isize [directory, path];
    fn [realpath](path: Text, resolved: Out) -> *mut c_char [path];
    fn [__realpath_chk](path: Text, resolved: Out, room: usize) -> *mut c_char [path];
    fn [canonicalize_file_name](path: Text) -> *mut c_char [path];
    fn [truncate, truncate64](path: Text, size: i64) -> c_int [path];
    fn [utime](path: Text, times: In) -> c_int [path];
    fn [utimes](path: Text, times: In) -> c_int [path];
    fn [futimesat](directory: c_int, path: Text, times: In) -> c_int [directory, path];
    fn [utimensat](directory: c_int, path: Text, times: In, flags: c_int) -> c_int [directory, path];
    fn [statfs, statfs64, __statfs](path: Text, out: Out) -> c_int [path];
    fn [statvfs, statvfs64](path: Text, out: Out) -> c_int [path];
    fn [pathconf](path: Text, name: c_int) -> c_long [path];
    fn [getxattr](path: Text, name: In, value: Out, size: usize) -> isize [path];
    fn [setxattr](path: Text, name: In, value: In, size: usize, flags: c_int) -> c_int [path];
    fn [listxattr](path: Text, list: Out, size: usize) -> isize [path];
    fn [removexattr](path: Text, name: In) -> c_int [path];
    fn [scandirat, scandirat64](directory: c_int, path: Text, list: Out, select: In, order: In) -> c_int [directory];
    fn [name_to_handle_at](directory: c_int, path: Text, handle: Out, mount: Out, flags: c_int) -> c_int [directory, path];
    fn [inotify_add_watch](queue: c_int, path: Text, mask: c_uint) -> c_int [path];
    fn [fanotify_mark](queue: c_int, flags: c_uint, mask: u64, directory: c_int, path: Text) -> c_int [directory, path];
}
