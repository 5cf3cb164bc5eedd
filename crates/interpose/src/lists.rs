//! Null-terminated lists of strings (`argv`, `envp`).
//!
//! Nothing here allocates, as a child of `vfork` and a signal handler may call `execve`.

use crate::arguments::Text;
use rustix::io::Errno;
use std::ffi::c_char;

/// Pointer to the first address; null is an empty list, as in the kernel.
pub type List = *const *const c_char;

/// Iterates over the strings of a list.
#[derive(Clone)]
pub struct Strings(List);

/// Iterates over a list that the caller of a C library function passed.
pub fn strings(list: List) -> Strings {
    Strings(list)
}

impl Iterator for Strings {
    type Item = Text;

    fn next(&mut self) -> Option<Text> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the list has not ended: its last pointer is null.
        let string = unsafe { *self.0 };
        if string.is_null() {
            return None;
        }
        // SAFETY: after a pointer that is not null, another one follows, or the list's end.
        self.0 = unsafe { self.0.add(1) };
        Some(Text::at(string.cast_mut().cast()))
    }
}

/// Calls `call` with a list of these strings on the stack.
///
/// # Errors
/// `E2BIG`: more strings than `execve` accepts.
pub fn with_list<T>(
    strings: impl Iterator<Item = Text> + Clone,
    call: impl FnOnce(List) -> T,
) -> Result<T, Errno> {
    Ok(match strings.clone().count() {
        0..128 => on_stack::<128, T>(strings, call),
        128..1024 => on_stack::<1024, T>(strings, call),
        1024..8192 => on_stack::<8192, T>(strings, call),
        8192..65536 => on_stack::<65536, T>(strings, call),
        _ => return Err(Errno::TOOBIG),
    })
}

/// A separate function, so that the stack usage depends on the size.
#[inline(never)]
fn on_stack<const N: usize, T>(strings: impl Iterator<Item = Text>, call: impl FnOnce(List) -> T) -> T {
    let mut list = [Text::at(std::ptr::null_mut()); N];
    // There are fewer than N strings: the last entry stays null.
    list.iter_mut().zip(strings).for_each(|(entry, string)| *entry = string);
    call(list.as_ptr().cast())
}

/// Defines replacements of functions whose arguments are a string and further strings up to a null pointer (`execl`). Each calls a
/// function with the string and the list in memory.
#[macro_export]
macro_rules! interpose_listed {
    ($(fn [$($name:ident),+] = $function:path;)*) => {
        $($($crate::interpose_listed! { @one $name = $function })+)*
    };
    (@one $name:ident = $function:path) => {
        /// Pushes arguments from registers to the stack, before those on the stack.
        // SAFETY: the name is that of the C library's function. It restores the stack and the callee-saved registers.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> std::ffi::c_int {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(
                "pop r11",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "push r11",
                "lea rsi, [rsp + 8]",
                "call {function}",
                "pop r11",
                "add rsp, 40",
                "push r11",
                "ret",
                function = sym $function,
            );
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(
                "sub sp, sp, #80",
                "stp x29, x30, [sp]",
                "str x1, [sp, #24]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "add x1, sp, #24",
                "bl {function}",
                "ldp x29, x30, [sp]",
                "add sp, sp, #80",
                "ret",
                function = sym $function,
            );
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{CStr, CString};

    fn owned(list: List) -> Vec<Vec<u8>> {
        strings(list).map(|string| string.bytes().expect("a string").to_vec()).collect()
    }

    #[test]
    fn lists_contain_all_strings_and_end_with_null() {
        assert_eq!(strings(std::ptr::null()).count(), 0);
        for count in [0, 1, 127, 128, 1023, 1024, 9000, 65535] {
            let texts: Vec<_> = (0..count).map(|n| CString::new(n.to_string()).expect("digits")).collect();
            let addresses = texts.iter().map(|text| Text::of(text));
            let found = with_list(addresses, owned).expect("it fits");
            assert_eq!(found, texts.iter().map(|text| text.to_bytes().to_vec()).collect::<Vec<_>>());
        }
        let many = std::iter::repeat_n(Text::of(c"x"), 65536);
        assert_eq!(with_list(many, |_| ()), Err(Errno::TOOBIG));
    }

    extern "C" fn listed(first: Text, rest: List) -> std::ffi::c_int {
        let all: Vec<_> =
            std::iter::once(first.bytes().expect("a string").to_vec()).chain(owned(rest)).collect();
        let expected: Vec<_> = (0..all.len()).map(|n| n.to_string().into_bytes()).collect();
        assert_eq!(all, expected);
        all.len() as std::ffi::c_int
    }

    interpose_listed! {
        fn [tameike_test_of_lists] = listed;
    }

    #[test]
    fn variadic_strings_become_a_list() {
        type Function = unsafe extern "C" fn(first: *const c_char, ...) -> std::ffi::c_int;
        // SAFETY: the function takes strings up to a null pointer.
        let call: Function = unsafe { std::mem::transmute(tameike_test_of_lists as *const ()) };
        let end = std::ptr::null::<c_char>();
        let text = |text: &'static CStr| text.as_ptr();
        let of = [c"0", c"1", c"2", c"3", c"4", c"5", c"6", c"7", c"8", c"9", c"10"].map(text);
        // SAFETY: strings, and then a null pointer.
        unsafe {
            assert_eq!(call(of[0], end), 1);
            assert_eq!(call(of[0], of[1], of[2], of[3], of[4], end), 5);
            assert_eq!(call(of[0], of[1], of[2], of[3], of[4], of[5], end), 6);
            assert_eq!(
                call(of[0], of[1], of[2], of[3], of[4], of[5], of[6], of[7], of[8], of[9], of[10], end),
                11
            );
        }
    }
}
