//! `mkstemp` and its variants, whose internal calls in the C library bypass this library.

use crate::kernel::Result;
use rustix::io::Errno;

/// End of a template, before its suffix.
const PLACEHOLDER: &[u8] = b"XXXXXX";
const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
const TRIES: u32 = 1000;

/// Fills in a template, until `make` finds the name free.
#[expect(clippy::disallowed_methods, reason = "unpredictable names, in a program that no simulation runs")]
pub fn make<T>(template: &mut [u8], suffix: usize, mut make: impl FnMut(&[u8]) -> Result<T>) -> Result<T> {
    let end = template.len().checked_sub(suffix).ok_or(Errno::INVAL)?;
    let start = end.checked_sub(PLACEHOLDER.len()).ok_or(Errno::INVAL)?;
    if template[start..end] != *PLACEHOLDER {
        return Err(Errno::INVAL);
    }
    for _ in 0..TRIES {
        let mut random = [0; PLACEHOLDER.len()];
        getrandom::fill(&mut random).map_err(|_| Errno::IO)?;
        for (byte, random) in template[start..end].iter_mut().zip(random) {
            *byte = LETTERS[usize::from(random) % LETTERS.len()];
        }
        match make(template) {
            Err(Errno::EXIST) => {}
            made => return made,
        }
    }
    Err(Errno::EXIST)
}
