//! Calls on sets of descriptors, and on descriptors in messages.

use super::arguments::{Array, Pointer};
use super::{Upgrade, upgrade};
use crate::table;
use rustix::io::Errno;
use std::ffi::{c_int, c_long, c_uint, c_void};

type Out = *mut c_void;

struct Polled(Array<libc::pollfd>, libc::nfds_t);

/// A ring descriptor would never be ready, as its `O_PATH` duplicate; a regular file always is.
impl Upgrade for Polled {
    fn upgrade(&self) -> Result<(), Errno> {
        let polled = usize::try_from(self.1).ok().and_then(|count| self.0.values(count).ok());
        polled.unwrap_or_default().iter().try_for_each(|polled| polled.fd.upgrade())
    }
}

/// Descriptor set of `select`: a bit for each.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Set(Array<u64>);

/// Descriptors of a set below a number.
struct Chosen(Set, c_int);

impl Upgrade for Chosen {
    fn upgrade(&self) -> Result<(), Errno> {
        let count = usize::try_from(self.1).unwrap_or(0);
        // Null is an empty set; the kernel reports bad pointers.
        let words = self.0.0.values(count.div_ceil(64)).unwrap_or_default();
        let chosen = |number: &c_int| {
            let at = number.cast_unsigned() as usize;
            words.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
        };
        (0..self.1.min(table::numbers().end)).filter(chosen).try_for_each(|number| number.upgrade())
    }
}

/// A message that may carry descriptors.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Message(Pointer<libc::msghdr>);

impl Upgrade for Message {
    fn upgrade(&self) -> Result<(), Errno> {
        super::region::bring_message(self.0, false);
        match self.0.get() {
            Some(message) if message.msg_controllen > 0 => upgrade_sent(&message),
            _ => Ok(()),
        }
    }
}

fn upgrade_sent(message: &libc::msghdr) -> Result<(), Errno> {
    // SAFETY: the caller's message has as many bytes of control data as it states.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const *message) };
    while !header.is_null() {
        // SAFETY: the C library's macros found the header inside the caller's control data.
        let (level, kind, size, data) = unsafe {
            ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len, libc::CMSG_DATA(header))
        };
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            let bytes = size.saturating_sub(size_of::<libc::cmsghdr>());
            for at in 0..bytes / size_of::<c_int>() {
                // SAFETY: the header's length states that these numbers follow it.
                unsafe { data.cast::<c_int>().add(at).read_unaligned() }.upgrade()?;
            }
        }
        // SAFETY: as above; the message is the one that the header was found in.
        header = unsafe { libc::CMSG_NXTHDR(&raw const *message, header) };
    }
    Ok(())
}

struct Messages(Array<libc::mmsghdr>, c_uint);

impl Upgrade for Messages {
    fn upgrade(&self) -> Result<(), Errno> {
        let messages = self.0.values(self.1 as usize).unwrap_or_default();
        let mut with_more = messages.iter().filter(|message| message.msg_hdr.msg_controllen > 0);
        with_more.try_for_each(|message| upgrade_sent(&message.msg_hdr))
    }
}

/// An asynchronous call, which threads of the C library execute without this library.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Asynchronous(Pointer<libc::aiocb>);

impl Upgrade for Asynchronous {
    fn upgrade(&self) -> Result<(), Errno> {
        // The structure begins with the descriptor.
        self.0.cast::<c_int>().get().map_or(Ok(()), |number| number.upgrade())
    }
}

struct List(Array<Pointer<libc::aiocb>>, c_int);

impl Upgrade for List {
    fn upgrade(&self) -> Result<(), Errno> {
        let list = usize::try_from(self.1).ok().and_then(|count| self.0.values(count).ok());
        list.unwrap_or_default().iter().try_for_each(|one| Asynchronous(*one).upgrade())
    }
}

super::interpose! {
    fn [poll, __poll](polled: Array<libc::pollfd>, count: libc::nfds_t, timeout: c_int) -> c_int =
        super::upgrade_first(&[&Polled(polled, count)]);
    fn [__poll_chk](polled: Array<libc::pollfd>, count: libc::nfds_t, timeout: c_int, size: usize) -> c_int =
        super::upgrade_first(&[&Polled(polled, count)]);
    fn [ppoll](polled: Array<libc::pollfd>, count: libc::nfds_t, timeout: Out, mask: Out) -> c_int =
        super::upgrade_first(&[&Polled(polled, count)]);
    fn [__ppoll_chk](
        polled: Array<libc::pollfd>, count: libc::nfds_t, timeout: Out, mask: Out, size: usize
    ) -> c_int = super::upgrade_first(&[&Polled(polled, count)]);
    fn [select, __select](count: c_int, read: Set, write: Set, other: Set, timeout: Out) -> c_int =
        super::upgrade_first(&[&Chosen(read, count), &Chosen(write, count), &Chosen(other, count)]);
    fn [pselect](count: c_int, read: Set, write: Set, other: Set, timeout: Out, mask: Out) -> c_int =
        super::upgrade_first(&[&Chosen(read, count), &Chosen(write, count), &Chosen(other, count)]);
    fn [sendmmsg, __sendmmsg](number: c_int, messages: Array<libc::mmsghdr>, count: c_uint, flags: c_int) -> c_int =
        super::upgrade_first(&[&number, &Messages(messages, count)]);
    fn [lio_listio, lio_listio64](mode: c_int, list: Array<Pointer<libc::aiocb>>, count: c_int, event: Out) -> c_int =
        super::upgrade_first(&[&List(list, count)]);
}

upgrade! {
    fn [sendmsg](number: c_int, message: Message, flags: c_int) -> isize [number, message];
    fn [aio_read, aio_read64](call: Asynchronous) -> c_int [call];
    fn [aio_write, aio_write64](call: Asynchronous) -> c_int [call];
    fn [aio_fsync, aio_fsync64](operation: c_int, call: Asynchronous) -> c_int [call];
    fn [aio_cancel, aio_cancel64](number: c_int, call: Out) -> c_int [number];
}

// Sets of `select` consist of words of this size.
const _: () = assert!(size_of::<c_long>() == size_of::<u64>());
