//! Variadic functions with arbitrary arguments: passes registers and stack on unchanged.

use super::process::upgrade_all;
use super::{Upgrade, contained};
use std::ffi::{c_int, c_void};
use tameike_interpose::next::Next;

/// Defines variadic functions. `before` runs with the first argument; then the C library's function continues.
macro_rules! tail {
    ($($name:ident, $before:ident;)*) => {$(
        const _: () = {
            extern "C" fn before(first: c_int) -> *const c_void {
                static NEXT: Next = Next::new(match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                });
                $before(first);
                NEXT.address()
            }

            // SAFETY: the name is that of the C library's function. All registers that arguments come in are saved around the call,
            // and the stack is as it was when the C library's function begins.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                std::arch::naked_asm!(
                    "push rbp",
                    "mov rbp, rsp",
                    "sub rsp, 192",
                    "mov [rsp], rdi",
                    "mov [rsp + 8], rsi",
                    "mov [rsp + 16], rdx",
                    "mov [rsp + 24], rcx",
                    "mov [rsp + 32], r8",
                    "mov [rsp + 40], r9",
                    "mov [rsp + 48], rax",
                    "movaps [rsp + 64], xmm0",
                    "movaps [rsp + 80], xmm1",
                    "movaps [rsp + 96], xmm2",
                    "movaps [rsp + 112], xmm3",
                    "movaps [rsp + 128], xmm4",
                    "movaps [rsp + 144], xmm5",
                    "movaps [rsp + 160], xmm6",
                    "movaps [rsp + 176], xmm7",
                    "call {before}",
                    "mov r11, rax",
                    "mov rdi, [rsp]",
                    "mov rsi, [rsp + 8]",
                    "mov rdx, [rsp + 16]",
                    "mov rcx, [rsp + 24]",
                    "mov r8, [rsp + 32]",
                    "mov r9, [rsp + 40]",
                    "mov rax, [rsp + 48]",
                    "movaps xmm0, [rsp + 64]",
                    "movaps xmm1, [rsp + 80]",
                    "movaps xmm2, [rsp + 96]",
                    "movaps xmm3, [rsp + 112]",
                    "movaps xmm4, [rsp + 128]",
                    "movaps xmm5, [rsp + 144]",
                    "movaps xmm6, [rsp + 160]",
                    "movaps xmm7, [rsp + 176]",
                    "leave",
                    "jmp r11",
                    before = sym before,
                );
                #[cfg(target_arch = "aarch64")]
                std::arch::naked_asm!(
                    "stp x29, x30, [sp, -208]!",
                    "stp x0, x1, [sp, 16]",
                    "stp x2, x3, [sp, 32]",
                    "stp x4, x5, [sp, 48]",
                    "stp x6, x7, [sp, 64]",
                    "stp q0, q1, [sp, 80]",
                    "stp q2, q3, [sp, 112]",
                    "stp q4, q5, [sp, 144]",
                    "stp q6, q7, [sp, 176]",
                    "bl {before}",
                    "mov x16, x0",
                    "ldp x0, x1, [sp, 16]",
                    "ldp x2, x3, [sp, 32]",
                    "ldp x4, x5, [sp, 48]",
                    "ldp x6, x7, [sp, 64]",
                    "ldp q0, q1, [sp, 80]",
                    "ldp q2, q3, [sp, 112]",
                    "ldp q4, q5, [sp, 144]",
                    "ldp q6, q7, [sp, 176]",
                    "ldp x29, x30, [sp], 208",
                    "br x16",
                    before = sym before,
                );
            }
        };
    )*};
}

tail! {
    dprintf, number;
    __dprintf_chk, number;
    execl, program;
    execlp, program;
    execle, program;
}

/// The first argument is a descriptor. A failed upgrade makes the C library's call fail.
fn number(first: c_int) {
    contained(|| {
        let _ = first.upgrade();
    });
}

/// The process executes another program.
fn program(_: c_int) {
    upgrade_all::<()>();
}
