//! The site's libfabric, loaded on first use.
//!
//! The symbol versions are those of 1.17, which all later versions keep, so that the types in `bindings` are right. The library
//! is never unloaded, since its providers may have threads.

use super::bindings::{fi_fabric_attr, fi_info, fid_fabric};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use tameike_io::os::signal::SavedSignals;

/// The version of the interface in use: 1.17.
pub(super) const API_VERSION: u32 = (1 << 16) | 17;

type GetInfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int;
type FreeInfo = unsafe extern "C" fn(*mut fi_info);
type DupInfo = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
type OpenFabric = unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;
type StrError = unsafe extern "C" fn(c_int) -> *const c_char;
type Version = unsafe extern "C" fn() -> u32;

/// The functions that are not methods of an object.
pub(super) struct Library {
    pub(super) get_info: GetInfo,
    pub(super) free_info: FreeInfo,
    pub(super) dup_info: DupInfo,
    pub(super) open_fabric: OpenFabric,
    str_error: StrError,
    version: Version,
}

impl Library {
    /// Loads the library. The error is a message for the user.
    pub(super) fn load() -> Result<&'static Self, String> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        LIBRARY.get_or_init(Self::open).as_ref().map_err(Clone::clone)
    }

    fn open() -> Result<Self, String> {
        let _signals = SavedSignals::save();
        // SAFETY: loading runs the library's initialisers, as intended; the name is a C string.
        let library = unsafe { libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(format!("cannot load libfabric ({})", last_error()));
        }
        let find = |name: &CStr, version: &CStr| {
            // SAFETY: the handle was just opened and is never closed; both names are C strings.
            let symbol = unsafe { libc::dlvsym(library, name.as_ptr(), version.as_ptr()) };
            match symbol.is_null() {
                true => Err(format!("this libfabric is too old ({}): 1.17 is needed", last_error())),
                false => Ok(symbol),
            }
        };
        let get_info = find(c"fi_getinfo", c"FABRIC_1.3")?;
        let free_info = find(c"fi_freeinfo", c"FABRIC_1.3")?;
        let dup_info = find(c"fi_dupinfo", c"FABRIC_1.3")?;
        let open_fabric = find(c"fi_fabric", c"FABRIC_1.1")?;
        let str_error = find(c"fi_strerror", c"FABRIC_1.0")?;
        let version = find(c"fi_version", c"FABRIC_1.0")?;
        // SAFETY: the types are those of these symbols in these versions (rdma/fabric.h, rdma/fi_errno.h).
        let library = unsafe {
            Self {
                get_info: std::mem::transmute::<*mut c_void, GetInfo>(get_info),
                free_info: std::mem::transmute::<*mut c_void, FreeInfo>(free_info),
                dup_info: std::mem::transmute::<*mut c_void, DupInfo>(dup_info),
                open_fabric: std::mem::transmute::<*mut c_void, OpenFabric>(open_fabric),
                str_error: std::mem::transmute::<*mut c_void, StrError>(str_error),
                version: std::mem::transmute::<*mut c_void, Version>(version),
            }
        };
        match library.version() {
            found if found < API_VERSION => {
                Err(format!("this libfabric is {}.{}: 1.17 is needed", found >> 16, found & 0xffff))
            }
            _ => Ok(library),
        }
    }

    /// The version, with the major number in the upper 16 bits.
    pub(super) fn version(&self) -> u32 {
        // SAFETY: no arguments; returns a constant.
        unsafe { (self.version)() }
    }

    /// The message of an error code, negative as returned by calls, or positive as in completions.
    pub(super) fn explain(&self, code: i64) -> String {
        let code = c_int::try_from(code.unsigned_abs()).unwrap_or(c_int::MAX);
        // SAFETY: returns a static C string for any number.
        let text = unsafe { CStr::from_ptr((self.str_error)(code)) };
        text.to_string_lossy().into_owned()
    }

    /// `Ok` if a call returned 0.
    pub(super) fn check(&self, doing: &str, returned: c_int) -> Result<(), String> {
        match returned {
            0 => Ok(()),
            code => Err(format!("{doing}: {}", self.explain(i64::from(code)))),
        }
    }
}

fn last_error() -> String {
    // SAFETY: returns null or a C string that stays until the thread's next call of this family.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: not null, as just checked.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
