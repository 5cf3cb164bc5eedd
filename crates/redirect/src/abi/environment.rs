//! The environment of programs that are started: the variables of the spool stay in it, whatever a program has made of it.
//!
//! A program that gives another one an environment of its own (`env -i`) would start it without this library, whose files would go
//! beside the container. An environment in which `TAMEIKE_SPOOL` is another one, or empty, is left as it is.
//!
//! [`completed`] does not allocate: a child of `vfork` and a signal handler may call it.

use rustix::io::Errno;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use tameike_core::spool::protocol::{CONTAINER_VARIABLE, NAME_VARIABLE, RUN_VARIABLE, SPOOL_VARIABLE};
use tameike_interpose::arguments::Text;
use tameike_interpose::lists::{List, strings, with_list};

/// What the loader preloads.
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
/// Bytes of the loader's variable, with its name, where a program has one of its own.
const PRELOAD_SIZE_MAX: usize = 4096;

unsafe extern "C" {
    /// That of the process.
    static environ: List;
}

/// What a process has of the spool in its environment at its beginning.
struct Kept {
    /// Names and values of variables, as they stand in an environment.
    variables: Vec<CString>,
    /// The loader's variable with this library alone.
    preload: CString,
}

static KEPT: OnceLock<Kept> = OnceLock::new();

/// Keeps the variables of the process. `inside` is something in this library.
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

/// Where the loader has found this library.
fn path_of_library(inside: *const c_void) -> Option<Vec<u8>> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: the C library fills in what it has found, and says whether it has.
    let name =
        unsafe { (libc::dladdr(inside, found.as_mut_ptr()) != 0).then(|| found.assume_init().dli_fname) };
    super::bytes_at(name?).map(<[u8]>::to_vec)
}

/// The environment of the process.
pub fn own() -> List {
    // SAFETY: whoever changes it while another thread starts a program has a race without this library, too.
    unsafe { environ }
}

/// Calls `call` with an environment that has what this library needs, made of the one that the caller gives.
///
/// # Errors
/// `E2BIG`: there is no room for it.
pub fn completed<T>(given: List, call: impl FnOnce(List) -> T) -> Result<T, Errno> {
    let Some(kept) = KEPT.get().filter(|kept| kept.is_wanted(given)) else { return Ok(call(given)) };
    let mut room = [0; PRELOAD_SIZE_MAX];
    let preload = kept.preload(given, &mut room)?;
    if preload.is_none() && kept.missing(given).next().is_none() {
        return Ok(call(given));
    }
    let stays = |text: &Text| preload.is_none() || value(bytes(*text), PRELOAD_VARIABLE).is_none();
    let added = kept.missing(given).chain(preload).map(Text::of);
    with_list(strings(given).filter(stays).chain(added), call)
}

/// What the environment of the process lacks: names and values.
///
/// # Errors
/// `E2BIG`, as for [`completed`].
pub fn lacking() -> Result<Vec<CString>, Errno> {
    let given = own();
    let Some(kept) = KEPT.get().filter(|kept| kept.is_wanted(given)) else { return Ok(Vec::new()) };
    let mut room = [0; PRELOAD_SIZE_MAX];
    let preload = kept.preload(given, &mut room)?;
    Ok(kept.missing(given).chain(preload).map(CStr::to_owned).collect())
}

impl Kept {
    /// Whether an environment is one for programs in this spool.
    fn is_wanted(&self, given: List) -> bool {
        let own = self.variables.iter().find_map(|variable| value(variable.to_bytes(), SPOOL_VARIABLE));
        last(given, SPOOL_VARIABLE).is_none_or(|spool| Some(spool) == own)
    }

    /// Variables that an environment lacks.
    fn missing(&self, given: List) -> impl Iterator<Item = &CStr> + Clone {
        let is_there = move |name: &[u8]| strings(given).any(|text| name_of(bytes(text)) == name);
        let variables = self.variables.iter().map(CString::as_c_str);
        variables.filter(move |variable| !is_there(name_of(variable.to_bytes())))
    }

    /// The loader's variable with this library, where an environment has it without.
    fn preload<'a>(
        &'a self,
        given: List,
        room: &'a mut [u8; PRELOAD_SIZE_MAX],
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
            let place = room.get_mut(end..end + part.len()).ok_or(Errno::TOOBIG)?;
            place.copy_from_slice(part);
            end += part.len();
        }
        CStr::from_bytes_with_nul(&room[..end]).map(Some).map_err(|_| Errno::INVAL)
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
