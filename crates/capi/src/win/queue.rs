//! The C functions for message queues in the memory of a window.

use super::Window;
use super::window::QueueAt;
use crate::abi::{check_memory, counted, deref, done};
use crate::request::{Memory, Request};
use libc::ssize_t;
use std::ffi::{c_int, c_uint, c_void};
use tameike_dsm::window::queue_size;

/// Returns the size of a message queue in bytes, or 0 if it is too large.
#[unsafe(no_mangle)]
pub extern "C" fn tameike_win_queue_size(slots: u64, message_size: u64) -> u64 {
    queue_size(slots, message_size).unwrap_or(0)
}

/// Creates an empty message queue at `offset` in the own memory, a multiple of 8, for `slots` messages of up to `message_size` bytes. It takes
/// tameike_win_queue_size() bytes. Others may send after a barrier, or another sign that it is there. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_queue_init(
    win: *mut Window,
    offset: u64,
    slots: u64,
    message_size: u64,
) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { deref(win)? }.create_queue(offset, slots, message_size))
}

/// Appends a message to the queue at `queue` in the memory of a rank, and waits while it is full; a negative time waits without limit. Any
/// number of processes and threads may send. Messages of one thread arrive in their order. Returns 0 or a negative errno: -EAGAIN if the
/// queue is full after this time; -EINVAL if there is no queue; -EMSGSIZE if the message is too large, or above 1 MiB for a rank of another
/// node; and the errors of tameike_win_wait_until(). After -EHOSTDOWN the message may have arrived.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_send(
    win: *mut Window,
    rank: c_uint,
    queue: u64,
    message: *const c_void,
    size: usize,
    milliseconds: c_int,
) -> c_int {
    done(|| {
        check_memory(message, size)?;
        // SAFETY: by the contract of the function.
        let (win, bytes) = unsafe { (deref(win)?, Memory::From(message.cast()).from(size)) };
        win.send(QueueAt { rank, offset: queue }, bytes, Request::until(milliseconds))
    })
}

/// Takes the oldest message from the queue at `queue` in the own memory, and waits while it is empty; a negative time waits without limit.
/// Returns the size of the message, or a negative errno: -EAGAIN if the queue is empty after this time; -EMSGSIZE if the message is larger than
/// `capacity`: it stays in the queue; and the errors of tameike_win_wait_until(), when the queue is empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_receive(
    win: *mut Window,
    queue: u64,
    memory: *mut c_void,
    capacity: usize,
    milliseconds: c_int,
) -> ssize_t {
    counted(|| {
        check_memory(memory, capacity)?;
        // SAFETY: by the contract of the function.
        let (win, into) = unsafe { (deref(win)?, Memory::Into(memory.cast()).into(capacity)) };
        win.receive(queue, into, Request::until(milliseconds))
    })
}
