//! Keeps the spool's variables in the environment of executed programs.
//!
//! A program that executes another one with a new environment (`env -i`) would start it without this library, and its files would not be
//! packed. An environment in which `TAMEIKE_SPOOL` is different or empty is not changed.
//!
//! [`completed`] does not allocate, as a child of `vfork` and a signal handler may call it.

use rustix::io::Errno;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use tameike_core::spool::protocol::{CONTAINER_VARIABLE, NAME_VARIABLE, RUN_VARIABLE, SPOOL_VARIABLE};
use tameike_interpose::arguments::Text;
use tameike_interpose::lists::{List, strings, with_list};

/// Libraries that the loader preloads.
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
/// Largest size of the loader's variable, with its name, if a program has set it.
const PRELOAD_SIZE_MAX: usize = 4096;

unsafe extern "C" {
    static environ: List;
}

/// The spool's part of the environment at the start of the process.
struct Kept {
    /// Variables, as `NAME=VALUE`.
    variables: Vec<CString>,
    /// The loader's variable with this library only.
    preload: CString,
}

static KEPT: OnceLock<Kept> = OnceLock::new();

/// Records the variables of the process. `inside` is any address in this library.
pub fn keep(inside: *const c_void) {
    let names = [SPOOL_VARIABLE, RUN_VARIABLE, CONTAINER_VARIABLE, NAME_VARIABLE];
    let variables = names.iter().filter_map(|name| {
        let value = std::env::var_os(name)?;
        CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok()
    });
    let Some(library) = path_of_library(inside) else { return };
    let preload = CString::new([PRELOAD_VARIABLE.as_bytes(), b"=", &library].concat());
    if let Ok(preload) = preload {
        let _ = KEPT.set(Kept { variables: variables.collect(), preload });
    }
}

/// Returns the path from which the loader has loaded this library.
fn path_of_library(inside: *const c_void) -> Option<Vec<u8>> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: `dladdr` fills in the structure if it returns a value other than 0.
    let name =
        unsafe { (libc::dladdr(inside, found.as_mut_ptr()) != 0).then(|| found.assume_init().dli_fname) };
    super::bytes_at(name?).map(<[u8]>::to_vec)
}

/// Returns the environment of the process.
pub fn own() -> List {
    // SAFETY: a program that changes it while another thread executes one has the same race without this library.
    unsafe { environ }
}

/// Calls `call` with `given` plus the variables that this library needs. Fails with `E2BIG` if the environment is too large.
pub fn completed<T>(given: List, call: impl FnOnce(List) -> T) -> Result<T, Errno> {
    let Some(kept) = KEPT.get().filter(|kept| kept.is_wanted(given)) else { return Ok(call(given)) };
    let mut buffer = [0; PRELOAD_SIZE_MAX];
    let preload = kept.preload(given, &mut buffer)?;
    if preload.is_none() && kept.missing(given).next().is_none() {
        return Ok(call(given));
    }
    let stays = |text: &Text| preload.is_none() || value(bytes(*text), PRELOAD_VARIABLE).is_none();
    let added = kept.missing(given).chain(preload).map(Text::of);
    with_list(strings(given).filter(stays).chain(added), call)
}

/// Returns the variables that the environment of the process lacks, as `NAME=VALUE`. Fails like [`completed`].
pub fn lacking() -> Result<Vec<CString>, Errno> {
    let given = own();
    let Some(kept) = KEPT.get().filter(|kept| kept.is_wanted(given)) else { return Ok(Vec::new()) };
    let mut buffer = [0; PRELOAD_SIZE_MAX];
    let preload = kept.preload(given, &mut buffer)?;
    Ok(kept.missing(given).chain(preload).map(CStr::to_owned).collect())
}

impl Kept {
    /// Returns whether programs with this environment should use this spool.
    fn is_wanted(&self, given: List) -> bool {
        let own = self.variables.iter().find_map(|variable| value(variable.to_bytes(), SPOOL_VARIABLE));
        last(given, SPOOL_VARIABLE).is_none_or(|spool| Some(spool) == own)
    }

    /// Returns the variables that an environment lacks.
    fn missing(&self, given: List) -> impl Iterator<Item = &CStr> + Clone {
        let is_there = move |name: &[u8]| strings(given).any(|text| name_of(bytes(text)) == name);
        let variables = self.variables.iter().map(CString::as_c_str);
        variables.filter(move |variable| !is_there(name_of(variable.to_bytes())))
    }

    /// Returns the loader's variable with this library added, if an environment has it without.
    fn preload<'a>(
        &'a self,
        given: List,
        buffer: &'a mut [u8; PRELOAD_SIZE_MAX],
    ) -> Result<Option<&'a CStr>, Errno> {
        let library = value(self.preload.to_bytes(), PRELOAD_VARIABLE).unwrap_or_default();
        let Some(before) = last(given, PRELOAD_VARIABLE).filter(|before| !before.is_empty()) else {
            return Ok(Some(&self.preload));
        };
        if before.split(|byte| matches!(byte, b':' | b' ')).any(|part| part == library) {
            return Ok(None);
        }
        let parts = [PRELOAD_VARIABLE.as_bytes(), b"=", before, b":", library, b"\0"];
        let mut end = 0;
        for part in parts {
            let slot = buffer.get_mut(end..end + part.len()).ok_or(Errno::TOOBIG)?;
            slot.copy_from_slice(part);
            end += part.len();
        }
        CStr::from_bytes_with_nul(&buffer[..end]).map(Some).map_err(|_| Errno::INVAL)
    }
}

fn name_of(variable: &[u8]) -> &[u8] {
    variable.split(|byte| *byte == b'=').next().unwrap_or_default()
}

fn bytes<'a>(text: Text) -> &'a [u8] {
    text.bytes().unwrap_or_default()
}

fn value<'a>(variable: &'a [u8], name: &str) -> Option<&'a [u8]> {
    variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

fn last<'a>(given: List, name: &str) -> Option<&'a [u8]> {
    strings(given).filter_map(|text| value(bytes(text), name)).last()
}
