//! Requests by `/dev/fuse`: each is read, and answered by a write on any thread.

use super::abi::{self, HEADER_SIZE, OUT_HEADER_SIZE, Operation, Request, opcode};
use super::reply::{Reply, Route};
use super::sender::Sender;
use super::{FrameWrite, Service};
use rustix::io::Errno as Os;
use std::fs::OpenOptions;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use tameike_core::Errno;
use tameike_io::slab::Frame;

pub(super) const PATH: &str = tameike_io::os::mount::FUSE_DEVICE;

/// Space for the arguments before the data of a write; with it the buffer exceeds the kernel's minimum.
const HEADERS_SIZE_MAX: usize = 4096;
/// Bytes of a write request before its data.
const WRITE_HEAD_SIZE: usize = HEADER_SIZE + 40;
/// The ioctl that attaches an open device to another one's mount.
const CLONE: libc::c_ulong = 0x8004_e500;
/// The notification that invalidates attributes and pages.
const INVALIDATE_INODE: i32 = 2;

/// An open device of a mount.
#[derive(Clone)]
pub(super) struct Device(Arc<OwnedFd>);

/// Sends notifications to the kernel.
pub struct Notifier(Sender);

/// A buffer for one request; the largest is a write.
pub(super) fn buffer(request_size: u32) -> Vec<u8> {
    vec![0; request_size as usize + HEADERS_SIZE_MAX]
}

impl Device {
    pub(super) fn new(device: OwnedFd) -> Self {
        Self(Arc::new(device))
    }

    /// A descriptor of the same device for another thread.
    pub(super) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Opens a further device of the same mount, with a separate request queue in the kernel.
    pub(super) fn another(&self) -> io::Result<Self> {
        let device = OpenOptions::new().read(true).write(true).open(PATH)?;
        let source = self.0.as_raw_fd();
        // SAFETY: the call reads one number behind the pointer, which is valid while it lasts.
        let cloned = unsafe { libc::ioctl(device.as_raw_fd(), CLONE, &raw const source) };
        if cloned < 0 { Err(io::Error::last_os_error()) } else { Ok(Self::new(device.into())) }
    }

    pub(super) fn notifier(&self) -> Notifier {
        Notifier(Sender::new(self.0.clone()))
    }

    /// Sends the reply to a request.
    pub(super) fn answer(&self, unique: u64, error: i32, bytes: &[u8]) {
        Sender::new(self.0.clone()).answer(unique, error, bytes);
    }

    /// As [`Self::answer`], without an error. Fails if the kernel does not wait for this reply.
    pub(super) fn send(&self, unique: u64, bytes: &[u8]) -> io::Result<()> {
        let header = abi::out_header(OUT_HEADER_SIZE + bytes.len(), 0, unique);
        Sender::new(self.0.clone()).write(&header, bytes)
    }

    /// Reads the next request; `None` after the unmount.
    pub(super) fn receive(&self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::readv(&*self.0, parts) {
                Ok(size) => return Ok(Some(size)),
                // The request was interrupted, or this thread was.
                Err(Os::NOENT | Os::INTR | Os::AGAIN) => {}
                Err(Os::NODEV) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Serves requests until the unmount. `has_writes` is false if no writes arrive here.
    pub(super) fn serve(&self, service: &dyn Service, request_size: u32, has_writes: bool) -> io::Result<()> {
        let mut buffer = buffer(request_size);
        let mut spare: Option<Frame> = None;
        loop {
            if has_writes && spare.is_none() {
                spare = service.frame().filter(|frame| frame.len() >= request_size as usize);
            }
            // A full-size write arrives directly in a frame.
            let (head, rest) = buffer.split_at_mut(WRITE_HEAD_SIZE);
            let rest = spare.as_mut().map_or(rest, |frame| &mut **frame);
            let Some(size) = self.receive(&mut [IoSliceMut::new(head), IoSliceMut::new(rest)])? else {
                return Ok(());
            };
            self.serve_one(service, &mut buffer[..], &mut spare, size)?;
        }
    }

    /// Serves a request. If `spare` is set, it holds the bytes after `WRITE_HEAD_SIZE`.
    fn serve_one(
        &self,
        service: &dyn Service,
        buffer: &mut [u8],
        spare: &mut Option<Frame>,
        size: usize,
    ) -> io::Result<()> {
        let (header, _) =
            abi::Header::decode(&buffer[..size.min(WRITE_HEAD_SIZE)]).map_err(io::Error::other)?;
        let reply = Reply::new(Route::Device(Sender::new(self.0.clone()), header.unique));
        let carried = size.saturating_sub(WRITE_HEAD_SIZE);
        let request = match &*spare {
            Some(frame) if header.opcode == opcode::WRITE => {
                Request::from_parts(header, &buffer[HEADER_SIZE..WRITE_HEAD_SIZE], &frame[..carried])
            }
            Some(frame) => {
                buffer[size - carried..size].copy_from_slice(&frame[..carried]);
                Request::decode(&buffer[..size])
            }
            None => Request::decode(&buffer[..size]),
        };
        let Ok(request) = request else {
            reply.error(Errno::EIO);
            return Ok(());
        };
        if let Operation::Write { handle, offset, flags, data } = request.operation
            && spare.as_ref().is_some_and(|frame| frame.len() == data.len())
        {
            let frame = spare.take().expect("checked above");
            service.serve_frame(header, FrameWrite { handle, offset, flags, frame }, reply);
        } else {
            super::serve(service, request, reply);
        }
        Ok(())
    }
}

impl Notifier {
    /// Invalidates a file's attributes and `length` bytes of its pages; all pages from `offset` on if `length` is 0.
    /// An unknown node is not an error.
    pub fn invalidate(&self, node: u64, offset: i64, length: i64) -> io::Result<()> {
        let body = abi::Body::default().u64(node).u64(offset as u64).u64(length as u64);
        let header = abi::out_header(OUT_HEADER_SIZE + body.len(), INVALIDATE_INODE, 0);
        match self.0.write(&header, &body) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            written => written,
        }
    }
}
