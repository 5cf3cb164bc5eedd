//! One endpoint of libfabric with its objects.
//!
//! Limits: one caller at a time, and no thread: progress is made only in [`Endpoint::completions`]. A posted operation may access
//! its memory until it completes, or the endpoint is dropped, which ends all operations.

use super::bindings::{
    FI_AV_TABLE, FI_CQ_FORMAT_MSG, FI_WAIT_FD, FI_WAIT_NONE, fi_addr_t, fi_av_attr, fi_context2, fi_cq_attr,
    fi_cq_err_entry, fi_cq_msg_entry, fi_wait_obj, fid_av, fid_cq, fid_domain, fid_ep, fid_fabric, fid_mr,
};
use super::library::Library;
use super::object::{Object, made};
use super::offer::{
    FI_MR_ENDPOINT, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_READ, FI_RECV, FI_REMOTE_READ, FI_SEND, Info,
};
use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::ptr::{NonNull, null_mut};
use tameike_io::os::signal::SavedSignals;

// Commands of `fi_control` (rdma/fabric.h).
const FI_GETWAIT: c_int = 5;
const FI_ENABLE: c_int = 6;
const FI_EAGAIN: isize = libc::EAGAIN as isize;
const FI_EAVAIL: isize = 259;
/// Source of receives: any endpoint.
const FI_ADDR_UNSPEC: fi_addr_t = u64::MAX;
/// Longest address of an endpoint, in bytes.
const ADDRESS_SIZE_MAX: usize = 256;
/// Completions per call.
const BATCH: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    Taken,
    /// Not accepted now: retry after completions.
    Later,
}

pub(super) struct Completion {
    /// The number of the operation; `None` if the provider does not report it.
    pub(super) operation: Option<usize>,
    /// The number of bytes received, for a receive; or the error.
    pub(super) result: Result<usize, String>,
}

/// The key by which peers read this agent's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryKey {
    pub(super) key: u64,
    /// The address of its first byte.
    pub(super) address: u64,
}

pub(super) struct Endpoint {
    library: &'static Library,
    // Fields are dropped in this order: users before what they use.
    /// Memory bound to the endpoint, if the provider requires that; it must be closed first.
    _bound: Option<Object>,
    ep: Object,
    _memory: Option<Object>,
    av: Object,
    cq: Object,
    _domain: Object,
    fabric: Object,
    /// Memory for the provider while an operation is in flight.
    contexts: Box<[fi_context2]>,
    /// The descriptor of the slab for sends and receives.
    descriptor: *mut c_void,
    pub(super) memory: MemoryKey,
    pub(super) address: Vec<u8>,
    pub(super) provider: String,
    /// A file descriptor that is readable when there is work; `None` if the provider has none.
    pub(super) waitable: Option<RawFd>,
}

// SAFETY: its objects are bound to no thread, and `&mut` ensures one caller at a time (FI_THREAD_DOMAIN).
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// Opens an endpoint for so many concurrent operations. Peers may read `memory`, which contains all buffers, from now on; it
    /// must stay mapped until the endpoint is dropped.
    pub(super) fn open(
        info: &Info,
        library: &'static Library,
        memory: (NonNull<u8>, usize),
        (operations, key): (usize, u64),
    ) -> Result<Self, String> {
        let _signals = SavedSignals::save();
        let found = info.first();
        // SAFETY: a result of the library with all its parts, which live as long as `info`.
        let (fabric_attr, domain_attr) = unsafe { ((*found).fabric_attr, (*found).domain_attr) };
        let fabric: *mut fid_fabric = made(library, "opening the fabric", |place| {
            // SAFETY: the attributes are those of the result; the other pointers are to live variables.
            Some(unsafe { (library.open_fabric)(fabric_attr, place, null_mut()) })
        })?;
        let fabric_object = Object(fabric.cast());
        let domain: *mut fid_domain = made(library, "opening the device", |place| {
            // SAFETY: the fabric is open, its table lives as long; it was opened by this result.
            unsafe { (*(*fabric).ops).domain.map(|open| open(fabric, found, place, null_mut())) }
        })?;
        let domain_object = Object(domain.cast());
        let (cq, waitable) = Self::open_queue(library, domain, operations)?;
        let av = Self::open_addresses(library, domain)?;
        let ep: *mut fid_ep = made(library, "opening an endpoint", |place| {
            // SAFETY: as for the domain.
            unsafe { (*(*domain).ops).endpoint.map(|open| open(domain, found, place, null_mut())) }
        })?;
        let ep_object = Object(ep.cast());
        ep_object.bind(library, &cq, FI_SEND | FI_RECV, "binding an endpoint to its queue")?;
        ep_object.bind(library, &av, 0, "binding an endpoint to its addresses")?;
        ep_object.control(library, FI_ENABLE, null_mut(), "enabling an endpoint")?;
        // SAFETY: as above.
        let (mode, key_size) = unsafe { ((*domain_attr).mr_mode, (*domain_attr).mr_key_size) };
        let key = if key_size < size_of::<u64>() { key & ((1 << (8 * key_size)) - 1) } else { key };
        let mr = Self::register(library, domain, (memory, mode, key), &ep_object)?;
        // SAFETY: open, and of this type; its fields do not change.
        let (descriptor, key) = unsafe { ((*mr.0.cast::<fid_mr>()).mem_desc, (*mr.0.cast::<fid_mr>()).key) };
        let is_bound = mode & FI_MR_ENDPOINT != 0;
        let (bound, memory_object) = if is_bound { (Some(mr), None) } else { (None, Some(mr)) };
        let address = if mode & FI_MR_VIRT_ADDR == 0 { 0 } else { memory.0.as_ptr() as u64 };
        // SAFETY: the name of a result's provider is a C string.
        let provider = unsafe { std::ffi::CStr::from_ptr((*fabric_attr).prov_name) };
        let name = Self::own_address(library, ep)?;
        Ok(Self {
            library,
            _bound: bound,
            ep: ep_object,
            _memory: memory_object,
            av,
            cq,
            _domain: domain_object,
            fabric: fabric_object,
            contexts: (0..operations).map(|_| fi_context2 { internal: [null_mut(); 8] }).collect(),
            descriptor,
            memory: MemoryKey { key, address },
            address: name,
            provider: provider.to_string_lossy().into_owned(),
            waitable,
        })
    }

    /// Opens a completion queue, with a descriptor if the provider has one.
    fn open_queue(
        library: &Library,
        domain: *mut fid_domain,
        size: usize,
    ) -> Result<(Object, Option<RawFd>), String> {
        let open = |wait_obj: fi_wait_obj| {
            let mut attr = fi_cq_attr {
                size,
                flags: 0,
                format: FI_CQ_FORMAT_MSG,
                wait_obj,
                signaling_vector: 0,
                wait_cond: 0,
                wait_set: null_mut(),
            };
            let queue: *mut fid_cq = made(library, "opening a queue of completions", |place| {
                // SAFETY: the domain is open, its table lives as long; the attributes live beyond the call.
                unsafe { (*(*domain).ops).cq_open.map(|open| open(domain, &raw mut attr, place, null_mut())) }
            })?;
            Ok::<_, String>(Object(queue.cast()))
        };
        let Ok(queue) = open(FI_WAIT_FD) else { return Ok((open(FI_WAIT_NONE)?, None)) };
        let mut descriptor: c_int = -1;
        queue.control(
            library,
            FI_GETWAIT,
            (&raw mut descriptor).cast(),
            "getting the descriptor of a queue",
        )?;
        Ok((queue, Some(descriptor)))
    }

    fn open_addresses(library: &Library, domain: *mut fid_domain) -> Result<Object, String> {
        let mut attr = fi_av_attr {
            type_: FI_AV_TABLE,
            rx_ctx_bits: 0,
            count: 0,
            ep_per_node: 0,
            name: std::ptr::null(),
            map_addr: null_mut(),
            flags: 0,
        };
        let av: *mut fid_av = made(library, "opening a table of addresses", |place| {
            // SAFETY: as in `open_queue`.
            unsafe { (*(*domain).ops).av_open.map(|open| open(domain, &raw mut attr, place, null_mut())) }
        })?;
        Ok(Object(av.cast()))
    }

    /// Registers memory for remote reads, and for local receives and reads. No peer may write to it.
    fn register(
        library: &Library,
        domain: *mut fid_domain,
        ((start, size), mode, key): ((NonNull<u8>, usize), c_int, u64),
        ep: &Object,
    ) -> Result<Object, String> {
        let access = FI_SEND | FI_RECV | FI_READ | FI_REMOTE_READ;
        let key = if mode & FI_MR_PROV_KEY == 0 { key } else { 0 };
        let mr: *mut fid_mr =
            made(library, "registering memory (see locked memory in `tameike doctor`)", |place| {
                // SAFETY: the domain is open, its table lives as long; the memory is mapped as long as the endpoint is open.
                unsafe {
                    (*(*domain).mr).reg.map(|reg| {
                        reg(domain.cast(), start.as_ptr().cast(), size, access, 0, key, 0, place, null_mut())
                    })
                }
            })?;
        let mr = Object(mr.cast());
        if mode & FI_MR_ENDPOINT != 0 {
            mr.bind(library, ep, 0, "binding memory to an endpoint")?;
            mr.control(library, FI_ENABLE, null_mut(), "enabling memory")?;
        }
        Ok(mr)
    }

    fn own_address(library: &Library, ep: *mut fid_ep) -> Result<Vec<u8>, String> {
        let (mut name, mut size) = (vec![0_u8; ADDRESS_SIZE_MAX], ADDRESS_SIZE_MAX);
        // SAFETY: an open endpoint, whose tables live as long; at most `size` bytes are written.
        let returned = unsafe {
            (*(*ep).cm).getname.map(|getname| getname(ep.cast(), name.as_mut_ptr().cast(), &raw mut size))
        };
        library.check("getting the address of an endpoint", returned.unwrap_or(-libc::ENOSYS))?;
        name.truncate(size);
        Ok(name)
    }

    fn ep(&self) -> *mut fid_ep {
        self.ep.0.cast()
    }

    fn context(&mut self, operation: usize) -> *mut c_void {
        (&raw mut self.contexts[operation]).cast()
    }

    /// Adds the address of another endpoint.
    pub(super) fn insert(&mut self, address: &[u8]) -> Result<fi_addr_t, String> {
        let (av, mut found) = (self.av.0.cast::<fid_av>(), FI_ADDR_UNSPEC);
        // The library reads as many bytes as an address has, or a string up to its end.
        let mut padded = address.to_vec();
        padded.resize(ADDRESS_SIZE_MAX.max(address.len() + 1), 0);
        // SAFETY: an open table; the address is longer than any, and read only.
        let count = unsafe {
            (*(*av).ops)
                .insert
                .map(|insert| insert(av, padded.as_ptr().cast(), 1, &raw mut found, 0, null_mut()))
        };
        match count {
            Some(1) => Ok(found),
            Some(code) if code < 0 => Err(self.library.explain(code.into())),
            Some(_) | None => Err("the provider refuses the address".to_owned()),
        }
    }

    pub(super) fn remove(&mut self, mut address: fi_addr_t) {
        let av = self.av.0.cast::<fid_av>();
        // SAFETY: an open table, and an address that it gave.
        let returned = unsafe { (*(*av).ops).remove.map(|remove| remove(av, &raw mut address, 1, 0)) };
        if returned != Some(0) {
            log::debug!("libfabric did not remove an address: {returned:?}");
        }
    }

    fn posted(&self, returned: Option<isize>) -> Result<Posted, String> {
        match returned {
            Some(0) => Ok(Posted::Taken),
            Some(code) if -code == FI_EAGAIN => Ok(Posted::Later),
            Some(code) => Err(self.library.explain(code as i64)),
            None => Err("the provider lacks a call".to_owned()),
        }
    }

    /// Posts a receive into `buffer`.
    ///
    /// # Safety
    /// The `size` bytes at `buffer` lie in the registered memory, and are not used otherwise until the completion.
    pub(super) unsafe fn receive(
        &mut self,
        operation: usize,
        buffer: NonNull<u8>,
        size: usize,
    ) -> Result<Posted, String> {
        let (ep, context, descriptor) = (self.ep(), self.context(operation), self.descriptor);
        // SAFETY: an open endpoint, whose tables live as long; the caller guarantees the buffer, and the context belongs to `self`.
        let returned = unsafe {
            let recv = (*(*ep).msg).recv;
            recv.map(|recv| recv(ep, buffer.as_ptr().cast(), size, descriptor, FI_ADDR_UNSPEC, context))
        };
        self.posted(returned)
    }

    /// Posts a send of the `size` bytes at `buffer`.
    ///
    /// # Safety
    /// The bytes lie in the registered memory, and are not changed until the completion.
    pub(super) unsafe fn send(
        &mut self,
        operation: usize,
        (buffer, size): (NonNull<u8>, usize),
        to: fi_addr_t,
    ) -> Result<Posted, String> {
        let (ep, context, descriptor) = (self.ep(), self.context(operation), self.descriptor);
        // SAFETY: as in `receive`.
        let returned = unsafe {
            let send = (*(*ep).msg).send;
            send.map(|send| send(ep, buffer.as_ptr().cast(), size, descriptor, to, context))
        };
        self.posted(returned)
    }

    /// Posts a read of `size` bytes of a peer's memory into `buffer`.
    ///
    /// # Safety
    /// As for [`Endpoint::receive`].
    pub(super) unsafe fn read(
        &mut self,
        operation: usize,
        (buffer, size): (NonNull<u8>, usize),
        from: fi_addr_t,
        memory: MemoryKey,
    ) -> Result<Posted, String> {
        let (ep, context, descriptor) = (self.ep(), self.context(operation), self.descriptor);
        // SAFETY: as in `receive`; the peer refuses reads outside its registered memory.
        let returned = unsafe {
            let read = (*(*ep).rma).read;
            read.map(|read| {
                read(ep, buffer.as_ptr().cast(), size, descriptor, from, memory.address, memory.key, context)
            })
        };
        self.posted(returned)
    }

    /// Makes progress, and returns some completions.
    pub(super) fn completions(&mut self, found: &mut Vec<Completion>) -> Result<(), String> {
        let cq = self.cq.0.cast::<fid_cq>();
        let mut entries = [const { fi_cq_msg_entry { op_context: null_mut(), flags: 0, len: 0 } }; BATCH];
        // SAFETY: an open queue of this format, whose table lives as long; the array has that many entries.
        let count = unsafe { (*(*cq).ops).read.map(|read| read(cq, entries.as_mut_ptr().cast(), BATCH)) };
        match count {
            Some(count) if count >= 0 => {
                let entries = &entries[..count as usize];
                found.extend(entries.iter().filter_map(|entry| {
                    let operation = self.operation_of(entry.op_context)?;
                    Some(Completion { operation: Some(operation), result: Ok(entry.len) })
                }));
                Ok(())
            }
            Some(code) if -code == FI_EAGAIN => Ok(()),
            Some(code) if -code == FI_EAVAIL => {
                found.extend(self.failed()?);
                Ok(())
            }
            Some(code) => Err(self.library.explain(code as i64)),
            None => Err("the provider's queue cannot be read".to_owned()),
        }
    }

    /// The completion of a failed operation.
    fn failed(&mut self) -> Result<Option<Completion>, String> {
        let cq = self.cq.0.cast::<fid_cq>();
        // SAFETY: all fields may be zero; without a buffer the provider returns no error data.
        let mut entry: fi_cq_err_entry = unsafe { std::mem::zeroed() };
        // SAFETY: as in `completions`.
        let count = unsafe { (*(*cq).ops).readerr.map(|read| read(cq, &raw mut entry, 0)) };
        match count {
            Some(1) => {}
            Some(code) if -code == FI_EAGAIN => return Ok(None),
            other => return Err(format!("the provider does not report the failed operation ({other:?})")),
        }
        let operation = self.operation_of(entry.op_context);
        Ok(Some(Completion { operation, result: Err(self.library.explain(entry.err.into())) }))
    }

    /// The number of the operation with this context; `None` for a foreign one.
    fn operation_of(&self, context: *mut c_void) -> Option<usize> {
        let offset = (context as usize).checked_sub(self.contexts.as_ptr() as usize)?;
        let operation = offset / size_of::<fi_context2>();
        (operation < self.contexts.len()).then_some(operation)
    }

    /// True if it is safe to wait for [`Endpoint::waitable`] now.
    pub(super) fn may_wait(&mut self) -> bool {
        let fabric = self.fabric.0.cast::<fid_fabric>();
        let mut queue = self.cq.0;
        // SAFETY: open objects, and an array of one queue.
        let returned = unsafe { (*(*fabric).ops).trywait.map(|trywait| trywait(fabric, &raw mut queue, 1)) };
        // Any other error counts as safe, to avoid a busy loop.
        returned != Some(-libc::EAGAIN)
    }
}
