//! FUSE: requests of the kernel to a file system that answers each when it can, from any thread.
//!
//! Requests come by `/dev/fuse` ([`device`]), which every kernel has, or by rings in memory ([`uring`]), one for each core,
//! where the kernel offers them. Rings are taken where all of them can be had, and the device else; nobody above sees which.
//! What needs no answer, and what the kernel is told, goes by the device always.

pub mod abi;
mod device;
mod reply;
mod uring;

pub use device::Notifier;
pub use reply::Reply;

use crate::os::process;
use abi::{Agreed, Init, InitRequest, Operation, Request};
use device::Device;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tameike_core::{Errno, Fault, Result};
use uring::Rings;

/// A file system behind FUSE.
pub trait Service: Send + Sync + 'static {
    /// Takes a request in, on the thread that it came to, which takes no other one meanwhile.
    fn serve(&self, request: Request<'_>, reply: Reply);
}

/// How a session is served.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What is wanted of the kernel.
    pub init: Init,
    /// Threads that read the device.
    pub threads: usize,
    /// Whether rings are taken where they are offered.
    pub rings: bool,
}

/// A mounted file system, agreed on with the kernel.
pub struct Session {
    device: Device,
    rings: Option<Rings>,
    agreed: Agreed,
    settings: Settings,
}

impl Session {
    /// Agrees with the kernel, which waits for that at the open device of a mount.
    ///
    /// # Errors
    /// The mount is gone, or the kernel speaks another protocol.
    pub fn start(device: OwnedFd, settings: Settings) -> Result<Self> {
        let device = Device::new(device);
        let mut buffer = device::buffer(settings.init.request_size);
        loop {
            let Some(size) = device.receive(&mut buffer).map_err(failed)? else {
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
            let wanted = settings.rings && offer.offers_rings();
            let rings = wanted.then(|| Rings::new(settings.init.request_size)).and_then(|rings| {
                rings.inspect_err(|error| log::info!("requests come by {}: {error}", device::PATH)).ok()
            });
            let agreed = offer.agree(settings.init, rings.is_some());
            device.answer(header.unique, 0, &agreed.encode());
            return Ok(Self { device, rings, agreed, settings });
        }
    }

    /// Whether the kernel maps files, too, that are open past its pages.
    pub fn maps_direct(&self) -> bool {
        self.agreed.maps_direct()
    }

    /// Whether requests come by rings.
    pub fn has_rings(&self) -> bool {
        self.rings.is_some()
    }

    /// What tells the kernel of changes.
    pub fn notifier(&self) -> Notifier {
        self.device.notifier()
    }

    /// Serves until the file system is unmounted.
    ///
    /// # Errors
    /// When threads cannot be had, or the device fails.
    pub fn run(self, service: impl Service) -> Result<()> {
        let service = Arc::new(service);
        let mut threads = Vec::new();
        let mut devices = Vec::new();
        for _ in 1..self.settings.threads {
            devices.push(self.device.another().map_err(failed)?);
        }
        if let Some(rings) = self.rings {
            rings.start(&self.device, &service);
        }
        devices.push(self.device);
        for (number, device) in devices.into_iter().enumerate() {
            let (service, size) = (service.clone(), self.settings.init.request_size);
            threads.push(process::start_thread(&format!("tameike-fuse-{number}"), move || {
                device.serve(&*service, size)
            })?);
        }
        let mut first = Ok(());
        // Each is waited for, whatever the others say.
        for thread in threads {
            let end = thread.join().expect("a thread that serves does not panic");
            first = first.and(end.map_err(failed));
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

/// The number of an error, as the kernel has it in answers.
fn libc_errno(errno: Errno) -> i32 {
    -errno.0
}

/// Has `service` serve a request; those that get no answer must not be given one.
fn serve(service: &impl Service, request: Request<'_>, reply: Reply) {
    match request.operation {
        Operation::Forget { .. } | Operation::BatchForget(_) => service.serve(request, reply.none()),
        Operation::Unknown => reply.error(Errno::ENOSYS),
        _ => service.serve(request, reply),
    }
}
