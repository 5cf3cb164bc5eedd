//! `vfork`, whose child runs in the memory of its parent, on its stack, with descriptors of its own.
//!
//! Before the child is there, all files are the kernel's. While it is, other threads of the parent may open new ones, which the
//! child meets in the table and must not touch: [`crate::connection::is_foreign`].

use crate::{connection, upgrade};
use std::ffi::{c_int, c_long};

extern "C" fn before() {
    super::guarded::<()>(|| {
        // In this order: what is opened between stays the parent's.
        connection::lend();
        upgrade::all();
        None
    });
}

/// In the parent, with what the kernel has returned.
extern "C" fn after(outcome: c_long) -> c_int {
    connection::take_back();
    if outcome < 0 {
        tameike_interpose::set_errno(-outcome as c_int);
        return -1;
    }
    outcome as c_int
}

// SAFETY (of all): the name and the absence of arguments are the C library's. The child returns to the caller first, and has the
// stack below that frame overwritten: the return address is in a register while the parent waits, as in the C library's own.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn vfork() -> c_int {
    std::arch::naked_asm!(
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop rdi",
        "mov eax, {call}",
        "syscall",
        "push rdi",
        "test rax, rax",
        "jz 2f",
        "sub rsp, 8",
        "mov rdi, rax",
        "call {after}",
        "add rsp, 8",
        "2:",
        "ret",
        before = sym before,
        after = sym after,
        call = const libc::SYS_vfork,
    )
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn __vfork() -> c_int {
    std::arch::naked_asm!("jmp {vfork}", vfork = sym vfork)
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn __vfork() -> c_int {
    std::arch::naked_asm!("b {vfork}", vfork = sym vfork)
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn vfork() -> c_int {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, -16]!",
        "bl {before}",
        "ldp x29, x30, [sp], 16",
        "mov x0, {flags}",
        "mov x1, 0",
        "mov x2, 0",
        "mov x3, 0",
        "mov x4, 0",
        "mov x8, {call}",
        "svc 0",
        "cbz x0, 2f",
        "stp x29, x30, [sp, -16]!",
        "bl {after}",
        "ldp x29, x30, [sp], 16",
        "2:",
        "ret",
        before = sym before,
        after = sym after,
        flags = const libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
        call = const libc::SYS_clone,
    )
}
