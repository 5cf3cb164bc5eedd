//! The providers that libfabric offers on this machine, and the reasons why others are not available.

use super::bindings::{FI_EP_RDM, FI_RM_ENABLED, FI_THREAD_DOMAIN, fi_info};
use super::library::{API_VERSION, Library};
use super::{Offers, Provider};
use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};
use tameike_io::os::signal::SavedSignals;

// Of rdma/fabric.h.
pub(super) const FI_MSG: u64 = 1 << 1;
const FI_RMA: u64 = 1 << 2;
pub(super) const FI_READ: u64 = 1 << 8;
pub(super) const FI_RECV: u64 = 1 << 10;
pub(super) const FI_SEND: u64 = 1 << 11;
pub(super) const FI_REMOTE_READ: u64 = 1 << 12;
const FI_CONTEXT2: u64 = 1 << 52;
const FI_SOURCE: u64 = 1 << 57;
const FI_CONTEXT: u64 = 1 << 59;
const FI_MR_LOCAL: i32 = 1 << 2;
pub(super) const FI_MR_VIRT_ADDR: i32 = 1 << 4;
const FI_MR_ALLOCATED: i32 = 1 << 5;
pub(super) const FI_MR_PROV_KEY: i32 = 1 << 6;
pub(super) const FI_MR_ENDPOINT: i32 = 1 << 9;
const FI_ENODATA: i32 = libc::ENODATA;

/// One or a list of the library's `fi_info`, freed on drop.
pub(super) struct Info {
    library: &'static Library,
    first: *mut fi_info,
}

// SAFETY: the list is bound to no thread, and is not modified after its creation.
unsafe impl Send for Info {}

impl Info {
    /// The requirements on a provider: reliable datagrams, messages, reads of remote memory.
    fn wanted(library: &'static Library, provider: Option<&str>) -> Result<Self, String> {
        // SAFETY: a null pointer requests an empty info with all its parts.
        let first = unsafe { (library.dup_info)(null()) };
        let info = Self { library, first };
        if first.is_null() {
            return Err("libfabric ran out of memory".to_owned());
        }
        // SAFETY: just created, with all its parts, and not shared.
        unsafe {
            (*first).caps = FI_MSG | FI_RMA | FI_READ | FI_REMOTE_READ;
            (*first).mode = FI_CONTEXT | FI_CONTEXT2;
            (*(*first).ep_attr).type_ = FI_EP_RDM;
            let domain = &mut *(*first).domain_attr;
            domain.threading = FI_THREAD_DOMAIN;
            domain.resource_mgmt = FI_RM_ENABLED;
            domain.mr_mode =
                FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
            if let Some(provider) = provider {
                let name = CString::new(provider).map_err(|error| error.to_string())?;
                // The library frees it with the info.
                (*(*first).fabric_attr).prov_name = libc::strdup(name.as_ptr());
            }
        }
        Ok(info)
    }

    /// The best match of a provider for the local address `source`, or for any address if the provider does not know such
    /// addresses.
    pub(super) fn find(library: &'static Library, provider: &str, source: &str) -> Result<Self, String> {
        let wanted = Self::wanted(library, Some(provider))?;
        let source = CString::new(source).map_err(|error| error.to_string())?;
        let from_source = wanted.query(Some(&source));
        from_source.or_else(|_| wanted.query(None)).map_err(|code| match code {
            FI_ENODATA => explain_absence(library, provider),
            code => library.explain(i64::from(code)),
        })
    }

    /// The matches of these requirements, or the error code.
    fn query(&self, source: Option<&CStr>) -> Result<Self, i32> {
        let (name, flags) = source.map_or((null(), 0), |name| (name.as_ptr(), FI_SOURCE));
        let mut first = null_mut();
        let _signals = SavedSignals::save();
        // SAFETY: all pointers are to live objects of the right types; the result is freed on drop.
        let code =
            unsafe { (self.library.get_info)(API_VERSION, name, null(), flags, self.first, &raw mut first) };
        match code {
            0 => Ok(Self { library: self.library, first }),
            code => Err(-code),
        }
    }

    pub(super) fn first(&self) -> *mut fi_info {
        self.first
    }

    /// The distinct providers of the list.
    fn providers(&self) -> Vec<String> {
        let (mut names, mut next) = (Vec::new(), self.first);
        // SAFETY: a list of the library, which lives as long as `self`.
        while let Some(info) = unsafe { next.as_ref() } {
            // SAFETY: a result of the library has all its parts, and the name is a C string.
            let name = unsafe { CStr::from_ptr((*info.fabric_attr).prov_name) };
            let name = name.to_string_lossy().into_owned();
            if !names.contains(&name) {
                names.push(name);
            }
            next = info.next;
        }
        names
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: allocated by the library, and freed once.
        unsafe { (self.library.free_info)(self.first) };
    }
}

/// The reason why a provider is not available.
fn explain_absence(library: &'static Library, provider: &str) -> String {
    let any = Info::wanted(library, Some(provider)).and_then(|wanted| {
        // SAFETY: as in `wanted`: it is not shared.
        unsafe {
            ((*wanted.first).caps, (*(*wanted.first).ep_attr).type_) = (0, 0);
        }
        wanted.query(None).map_err(|code| library.explain(i64::from(code)))
    });
    match any {
        Ok(_) => "it has no reliable datagrams with remote reads here".to_owned(),
        Err(_) => "this machine has no device for it, or libfabric was built without it".to_owned(),
    }
}

/// Lists the providers of libfabric on this machine.
pub fn offers() -> Result<Offers, String> {
    let library = Library::load()?;
    let version = library.version();
    let found = Info::wanted(library, None)?.query(None).map(|info| info.providers()).unwrap_or_default();
    let state = |provider: Provider| {
        let is_there = found.iter().any(|name| provider.is_called(name));
        let state = if is_there { Ok(()) } else { Err(explain_absence(library, provider.name())) };
        (provider, state)
    };
    let providers = Provider::ALL.into_iter().map(state).collect();
    Ok(Offers { version: format!("{}.{}", version >> 16, version & 0xffff), providers })
}

pub(super) fn best() -> Result<Provider, String> {
    let offers = offers()?;
    let found = offers.providers.into_iter().find(|(_, state)| state.is_ok());
    found.map(|(provider, _)| provider).ok_or_else(|| "libfabric offers no usable provider here".to_owned())
}

impl Provider {
    /// True if a name of libfabric denotes this provider. Names of layered providers follow it, as in `verbs;ofi_rxm`.
    pub(super) fn is_called(self, name: &str) -> bool {
        name.split(';').next() == Some(self.name())
    }
}
