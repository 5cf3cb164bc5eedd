//! `vfork`, whose child runs in the memory and on the stack of its parent, with separate descriptors.
//!
//! The parent upgrades all files before. Meanwhile, its other threads may open new ones, which the child sees in the table but must not
//! use: [`crate::connection::is_vfork_child`].

use crate::{connection, upgrade};
use std::ffi::{c_int, c_long};

extern "C" fn before() {
    super::contained(|| {
        // In this order, so that files opened in between are not taken for the child's.
        connection::begin_vfork();
        upgrade::all();
    });
}

/// Runs in the parent, with the kernel's result.
extern "C" fn after(outcome: c_long) -> c_int {
    connection::end_vfork();
    if outcome < 0 {
        tameike_interpose::set_errno(-outcome as c_int);
        return -1;
    }
    outcome as c_int
}

// SAFETY (of all): name and arguments are those of the C library's function. The child returns first, and overwrites the stack below the
// caller's frame: while the parent waits, the return address is in a register, as in the C library.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn vfork() -> c_int {
    #[cfg(target_arch = "x86_64")]
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
    );
    #[cfg(target_arch = "aarch64")]
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
    );
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn __vfork() -> c_int {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!("jmp {vfork}", vfork = sym vfork);
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!("b {vfork}", vfork = sym vfork);
}
