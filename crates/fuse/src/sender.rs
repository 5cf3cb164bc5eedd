//! Sends replies and notifications through an open device of a mount.

use super::abi::{self, OUT_HEADER_SIZE};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Sends through one device, from any thread.
#[derive(Clone)]
pub(super) struct Sender(Arc<OwnedFd>);

impl Sender {
    pub(super) fn new(device: Arc<OwnedFd>) -> Self {
        Self(device)
    }

    pub(super) fn answer(&self, unique: u64, error: i32, bytes: &[u8]) {
        let header = abi::out_header(OUT_HEADER_SIZE + bytes.len(), error, unique);
        if let Err(error) = self.write(&header, bytes) {
            // The caller was killed.
            log::debug!("the kernel rejects the reply to request {unique}: {error}");
        }
    }

    pub(super) fn write(&self, header: &[u8], bytes: &[u8]) -> io::Result<()> {
        let parts = [IoSlice::new(header), IoSlice::new(bytes)];
        let parts = if bytes.is_empty() { &parts[..1] } else { &parts };
        rustix::io::writev(&*self.0, parts)?;
        Ok(())
    }
}
