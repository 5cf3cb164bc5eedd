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

use abi::{Agreed, Header, Init, InitRequest, Operation, Request};
use device::Device;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process;
use tameike_io::slab::{Frame, Pool};
use uring::Rings;

/// Numbers of errors that the kernel takes are smaller.
const ERRNO_END: i32 = 512;

/// A file system behind FUSE.
pub trait Service: Send + Sync + 'static {
    /// Takes a request in, on the thread that it came to, which takes no other one meanwhile.
    fn serve(&self, request: Request<'_>, reply: Reply);
    /// As `serve`, for a write of as many bytes as a frame has, in one that was given by [`Service::frame`].
    fn serve_frame(&self, header: Header, write: FrameWrite, reply: Reply);
    /// A frame for a write to arrive in, if there is one to spare.
    fn frame(&self) -> Option<Frame>;
}

/// A write of a whole frame.
pub struct FrameWrite {
    /// Of the open file.
    pub handle: u64,
    /// Where in the file.
    pub offset: u64,
    /// What the kernel says of it.
    pub flags: WriteFlags,
    /// The bytes.
    pub frame: Frame,
}

/// How a session is served.
pub struct Settings {
    /// What is wanted of the kernel.
    pub init: Init,
    /// Threads that read the device.
    pub threads: usize,
    /// Frames for rings, of which those that are taken get some; none if they are not wanted.
    pub rings: Option<Pool>,
}

/// A mounted file system, agreed on with the kernel.
pub struct Session {
    device: Device,
    rings: Option<Rings>,
    agreed: Agreed,
    request_size: u32,
    threads: usize,
}

impl Session {
    /// Agrees with the kernel, which waits for that at the open device of a mount.
    ///
    /// # Errors
    /// The mount is gone, or the kernel speaks another protocol.
    pub fn start(device: OwnedFd, settings: Settings) -> Result<Self> {
        let device = Device::new(device);
        let Settings { init, threads, rings: frames } = settings;
        let request_size = init.request_size;
        let mut buffer = device::buffer(request_size);
        loop {
            let Some(size) = device.receive(&mut [IoSliceMut::new(&mut buffer)]).map_err(failed)? else {
                return Err(Fault::new(Errno::EIO, "a view was unmounted before it was served"));
            };
            let (header, rest) = abi::Header::decode(&buffer[..size]).map_err(strange)?;
            if header.opcode != abi::opcode::INIT {
                return Err(strange(abi::Malformed));
            }
            let offer = InitRequest::decode(rest).map_err(strange)?;
            if offer.major > abi::MAJOR {
                // It asks again, by this protocol.
                device.answer(header.unique, 0, &abi::Body::default().u32(abi::MAJOR).u32(0).zeros(56));
                continue;
            }
            if offer.major < abi::MAJOR || offer.minor < abi::FIRST_MINOR {
                device.answer(header.unique, libc_errno(Errno::EPROTO), &[]);
                let message = format!("the kernel speaks FUSE {}.{} only", offer.major, offer.minor);
                return Err(Fault::new(Errno::EPROTO, message));
            }
            let frames = frames.filter(|_| offer.offers_rings());
            let rings = frames.and_then(|frames| {
                let rings = Rings::new(&device, request_size, &frames);
                rings.inspect_err(|error| log::info!("requests come by {}: {error}", device::PATH)).ok()
            });
            let agreed = offer.agree(init, rings.is_some());
            device.answer(header.unique, 0, &agreed.encode());
            return Ok(Self { device, rings, agreed, request_size, threads });
        }
    }

    /// Whether the kernel maps files, too, that are open past its pages.
    pub fn maps_direct(&self) -> bool {
        self.agreed.maps_direct()
    }

    /// What tells the kernel of changes.
    pub fn notifier(&self) -> Notifier {
        self.device.notifier()
    }

    /// Serves until the file system is unmounted, by the calling thread and others.
    ///
    /// # Errors
    /// When the device fails.
    pub fn run(self, service: impl Service) -> Result<()> {
        let (service, request_size) = (Arc::new(service), self.request_size);
        // They come by rings, where there are some.
        let has_writes = self.rings.is_none();
        let mut threads = Vec::new();
        for number in 1..self.threads {
            let service = service.clone();
            let another = self.device.another().map_err(failed).and_then(|device| {
                let job = move || device.serve(&*service, request_size, has_writes);
                process::start_thread(&format!("tameike-fuse-{number}"), job)
            });
            match another {
                Ok(thread) => threads.push(thread),
                // The kernel waits for rings by now, and this thread reads alone if need be.
                Err(fault) => log::warn!("a view is read by fewer threads: {fault}"),
            }
        }
        if let Some(rings) = &self.rings {
            rings.start(&service);
        }
        let mut first = self.device.serve(&*service, request_size, has_writes).map_err(failed);
        // Each is waited for, whatever the others say.
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

fn strange(error: abi::Malformed) -> Fault {
    Fault::new(Errno::EPROTO, error.to_string())
}

/// The number of an error, as the kernel has it in answers: it takes no others, and who asked would wait for ever.
fn libc_errno(errno: Errno) -> i32 {
    if (1..ERRNO_END).contains(&errno.0) { -errno.0 } else { -Errno::EIO.0 }
}

/// Has `service` serve a request; those that get no answer must not be given one.
fn serve(service: &dyn Service, request: Request<'_>, reply: Reply) {
    let is_answered = !matches!(request.operation, Operation::Forget { .. } | Operation::BatchForget(_));
    service.serve(request, if is_answered { reply } else { reply.none() });
}
