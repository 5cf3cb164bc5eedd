//! FUSE transport: reads kernel requests and sends replies, in any order and from any thread.
//!
//! Requests arrive through `/dev/fuse` ([`device`]), which every kernel has, or through io_uring queues ([`uring`]), one per
//! core, where the kernel offers them. A session uses the queues only if it can create all of them, and the device otherwise;
//! the [`Service`] does not see which. Requests without a reply and notifications to the kernel always use the device.

pub mod abi;
mod device;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod reply;
mod sender;
#[cfg(test)]
mod tests;
mod uring;

pub use abi::WriteFlags;
pub use device::Notifier;
pub use reply::Reply;

use abi::{Header, Init, InitRequest, Negotiated, Operation, Request};
use device::Device;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process;
use tameike_io::slab::{Frame, Pool};
use uring::Rings;

/// Bound on the error numbers that the kernel accepts.
const ERRNO_END: i32 = 512;

/// A file system served over FUSE.
pub trait Service: Send + Sync + 'static {
    /// Serves a request, on the thread that received it, which is busy meanwhile.
    fn serve(&self, request: Request<'_>, reply: Reply);
    /// As `serve`, for a write of exactly a frame's size, in a frame from [`Service::frame`].
    fn serve_frame(&self, header: Header, write: FrameWrite, reply: Reply);
    /// A frame for incoming writes, if one is free.
    fn frame(&self) -> Option<Frame>;
}

/// A write whose data fills a frame.
pub struct FrameWrite {
    /// The open file.
    pub handle: u64,
    /// The offset in the file.
    pub offset: u64,
    /// The flags of the write.
    pub flags: WriteFlags,
    /// The data.
    pub frame: Frame,
}

/// The configuration of a session.
pub struct Settings {
    /// The features requested from the kernel.
    pub init: Init,
    /// Threads that read the device.
    pub threads: usize,
    /// Frames for io_uring queues, which use a part of them; `None` disables the queues.
    pub rings: Option<Pool>,
}

/// A mounted file system after the negotiation with the kernel.
pub struct Session {
    device: Device,
    rings: Option<Rings>,
    negotiated: Negotiated,
    request_size: u32,
    threads: usize,
}

impl Session {
    /// Answers the kernel's INIT request, which waits at the open device of a new mount.
    ///
    /// # Errors
    /// The file system was unmounted, the kernel's protocol version is not supported, or the kernel does not accept the answer, because another
    /// process has given one.
    pub fn start(device: OwnedFd, settings: Settings) -> Result<Self> {
        let device = Device::new(device);
        let Settings { init, threads, rings: frames } = settings;
        let request_size = init.request_size;
        let mut buffer = device::buffer(request_size);
        loop {
            let Some(size) = device.receive(&mut [IoSliceMut::new(&mut buffer)]).map_err(failed)? else {
                return Err(Fault::new(Errno::EIO, "a view was unmounted before it was served"));
            };
            let (header, rest) = abi::Header::decode(&buffer[..size]).map_err(unexpected)?;
            if header.opcode != abi::opcode::INIT {
                return Err(unexpected(abi::Malformed));
            }
            let offer = InitRequest::decode(rest).map_err(unexpected)?;
            if offer.major > abi::MAJOR {
                // It repeats INIT with this version.
                device.answer(header.unique, 0, &abi::Body::default().u32(abi::MAJOR).u32(0).zeros(56));
                continue;
            }
            if offer.major < abi::MAJOR || offer.minor < abi::FIRST_MINOR {
                device.answer(header.unique, libc_errno(Errno::EPROTO), &[]);
                let message = format!("the kernel supports only FUSE {}.{}", offer.major, offer.minor);
                return Err(Fault::new(Errno::EPROTO, message));
            }
            if init.checks_permissions && !offer.offers_permission_checks() {
                device.answer(header.unique, libc_errno(Errno::EPROTO), &[]);
                return Err(Fault::new(Errno::EPROTO, "the kernel cannot check permissions for this mount"));
            }
            let frames = frames.filter(|_| offer.offers_rings());
            let rings = frames.and_then(|frames| {
                let rings = Rings::new(&device, request_size, &frames);
                rings
                    .inspect_err(|error| log::info!("requests arrive through {}: {error}", device::PATH))
                    .ok()
            });
            let negotiated = offer.negotiate(init, rings.is_some());
            device.send(header.unique, &negotiated.encode()).map_err(|error| {
                Fault::from_os("answering the first request of a mount, which only its server may do", &error)
            })?;
            return Ok(Self { device, rings, negotiated, request_size, threads });
        }
    }

    /// True if the kernel can map files that are open with direct I/O.
    pub fn maps_direct(&self) -> bool {
        self.negotiated.maps_direct()
    }

    /// The sender of notifications to the kernel.
    pub fn notifier(&self) -> Notifier {
        self.device.notifier()
    }

    /// Serves until the unmount, on the calling thread and others.
    pub fn run(self, service: impl Service) -> Result<()> {
        let (service, request_size) = (Arc::new(service), self.request_size);
        // With queues, writes arrive only there.
        let has_writes = self.rings.is_none();
        let mut threads = Vec::new();
        for number in 1..self.threads {
            let service = service.clone();
            // A user may serve a mount without access to the device file. Then all threads share one request queue.
            let device = self.device.another().unwrap_or_else(|_| self.device.clone());
            let job = move || device.serve(&*service, request_size, has_writes);
            match process::start_thread(&format!("tameike-fuse-{number}"), job) {
                Ok(thread) => threads.push(thread),
                // The kernel already waits for the queues, so continue with fewer threads, or with this one alone.
                Err(fault) => log::warn!("fewer threads serve a view: {fault}"),
            }
        }
        if let Some(rings) = &self.rings {
            rings.start(&service);
        }
        let mut first = self.device.serve(&*service, request_size, has_writes).map_err(failed);
        // Joins all threads, whatever their results are.
        for thread in threads {
            let end = thread.join().expect("a thread that serves does not panic");
            first = first.and(end.map_err(failed));
        }
        if let Some(rings) = self.rings {
            rings.join();
        }
        first
    }
}

fn failed(error: std::io::Error) -> Fault {
    Fault::from_os("serving a view through FUSE", &error)
}

fn unexpected(error: abi::Malformed) -> Fault {
    Fault::new(Errno::EPROTO, error.to_string())
}

/// The error number for the kernel. The kernel rejects replies with other numbers, so the caller would wait forever.
fn libc_errno(errno: Errno) -> i32 {
    if (1..ERRNO_END).contains(&errno.0) { -errno.0 } else { -Errno::EIO.0 }
}

/// Serves a request. Forgets must not get a reply.
fn serve(service: &dyn Service, request: Request<'_>, reply: Reply) {
    let is_answered = !matches!(request.operation, Operation::Forget { .. } | Operation::BatchForget(_));
    service.serve(request, if is_answered { reply } else { reply.none() });
}
