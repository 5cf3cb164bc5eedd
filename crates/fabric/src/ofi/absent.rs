//! Stands in for libfabric in a build without it: no endpoint can be opened.

use super::{Arrivals, Offers, OfiConfig, Remote, RouteId};
use std::sync::Arc;
use std::time::Duration;
use tameike_core::{Fault, Result};
use tameike_io::Runtime;
use tameike_io::os::reactor::Reactor;
use tameike_io::os::runtime::{Promise, Resolver};
use tameike_io::slab::Frame;

const ABSENT: &str = "tameike was built without libfabric (the cargo feature `libfabric`)";

/// Reports that this build has no libfabric.
pub fn offers() -> std::result::Result<Offers, String> {
    Err(ABSENT.to_owned())
}

/// An endpoint, of which there is none.
pub(crate) enum Transport {}

impl Transport {
    pub(crate) fn open(
        _config: &OfiConfig,
        _endpoint: (&str, &str),
        _limit: Duration,
        _drivers: (&Runtime, &Arc<Reactor>),
    ) -> std::result::Result<Arc<Self>, String> {
        Err(ABSENT.to_owned())
    }

    pub(crate) fn attach(&self, _arrivals: Box<dyn Arrivals>) {
        match *self {}
    }

    pub(crate) fn provider(&self) -> &str {
        match *self {}
    }

    pub(crate) fn address(&self) -> &[u8] {
        match *self {}
    }

    pub(crate) fn memory(&self) -> Remote {
        match *self {}
    }

    pub(crate) fn carried(&self) -> (u64, u64) {
        match *self {}
    }

    pub(crate) fn needs_bell(&self) -> bool {
        match *self {}
    }

    pub(crate) fn connect(&self, _address: &[u8]) -> std::result::Result<RouteId, String> {
        match *self {}
    }

    pub(crate) fn disconnect(&self, _route: RouteId, _fault: &Fault) {
        match *self {}
    }

    pub(crate) fn send(&self, _route: RouteId, _packet: Vec<u8>, _done: Option<Resolver<Result<()>>>) {
        match *self {}
    }

    pub(crate) fn read(
        &self,
        _route: RouteId,
        _from: Remote,
        _frame: Frame,
        _length: u32,
    ) -> Promise<(Frame, Result<()>)> {
        match *self {}
    }

    pub(crate) fn drop_waiting(&self, _route: RouteId, _fault: &Fault) {
        match *self {}
    }

    pub(crate) fn is_busy(&self, _route: RouteId) -> bool {
        match *self {}
    }

    pub(crate) fn bell(&self) {
        match *self {}
    }

    pub(crate) fn poll_for(&self, _time: Duration) {
        match *self {}
    }

    pub(crate) fn close(&self, _why: &str) {
        match *self {}
    }
}
