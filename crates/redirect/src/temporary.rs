//! Files and directories with names of their own: `mkstemp` and its kin, which the C library makes past this library.

use crate::kernel::Result;
use rustix::io::Errno;

/// What a template ends with, before its suffix.
const PLACES: &[u8] = b"XXXXXX";
const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
const TRIES: u32 = 1000;

/// Fills a template in until `make` finds its name free.
#[expect(
    clippy::disallowed_methods,
    reason = "names that nobody has, in a program that is nobody's to simulate"
)]
pub fn make<T>(template: &mut [u8], suffix: usize, mut make: impl FnMut(&[u8]) -> Result<T>) -> Result<T> {
    let end = template.len().checked_sub(suffix).ok_or(Errno::INVAL)?;
    let start = end.checked_sub(PLACES.len()).ok_or(Errno::INVAL)?;
    if template[start..end] != *PLACES {
        return Err(Errno::INVAL);
    }
    for _ in 0..TRIES {
        let mut random = [0; PLACES.len()];
        getrandom::fill(&mut random).map_err(|_| Errno::IO)?;
        for (place, random) in template[start..end].iter_mut().zip(random) {
            *place = LETTERS[usize::from(random) % LETTERS.len()];
        }
        match make(template) {
            Err(Errno::EXIST) => {}
            made => return made,
        }
    }
    Err(Errno::EXIST)
}
