//! Locates units on devices of this host, so that programs can read the devices directly.
//!
//! Nothing pins the bytes at a location. The program checks the device's clock ([`tameike_io::disk::FreeClock`]) and the checksums after it
//! has read, and reads through the agent if the location was stale.

use super::file::FileData;
use super::file::{LocationPlan, LocationRequest};
use super::homes::HomeClient;
use super::split;
use event_listener::listener;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::wire::unit::{UnitLocation, UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{MapEpoch, NodeId};
use tameike_fabric::Destination;
use tameike_io::disk::HostDevice;

/// Requests for locations per read: in a file that is being written, answers may already be stale when they arrive.
const REQUESTS_MAX: u32 = 2;

/// Bytes of a unit, and where a program of this host can read them.
#[derive(Clone, Debug)]
pub struct Located {
    /// The device that stores the unit.
    pub device: Arc<HostDevice>,
    /// The location of the unit on the device.
    pub location: Arc<UnitLocation>,
    /// The bytes within the unit.
    pub range: Range<u32>,
}

/// Locates units.
pub(super) struct Locator {
    homes: Arc<HomeClient>,
}

impl Locator {
    pub(super) fn new(homes: Arc<HomeClient>) -> Self {
        Self { homes }
    }

    /// As [`DataEngine::locate`](super::DataEngine::locate). The caller passes `is_sequential` if it has already checked for a sequential
    /// reader.
    pub(super) async fn locate(
        self: &Arc<Self>,
        file: &Arc<FileData>,
        offset: u64,
        length: u32,
        is_sequential: Option<bool>,
    ) -> Option<Located> {
        let mut parts = split(offset, length.into());
        let (Some((index, start, count)), None) = (parts.next(), parts.next()) else { return None };
        let node = self.homes.node_of_unit(file, index);
        let device = self.homes.rpc().device_of(node)?;
        let mut requests = 0;
        loop {
            listener!(file.changed() => ended);
            let request = match file.plan_location(index, (offset, length), is_sequential) {
                LocationPlan::Read => return None,
                LocationPlan::Wait => {
                    ended.await;
                    continue;
                }
                LocationPlan::Known(location, others) => {
                    self.ask_homes(others, None);
                    return Some(Located { device, location, range: start..start + count });
                }
                LocationPlan::Request(_) if requests == REQUESTS_MAX => return None,
                LocationPlan::Request(request) => request,
            };
            requests += 1;
            if let Some(asking) = self.ask_homes(request, Some(node)) {
                asking.await;
            }
        }
    }

    /// Requests the locations from the units' homes; all requests but one run in the background.
    fn ask_homes(
        self: &Arc<Self>,
        mut request: LocationRequest,
        first: Option<NodeId>,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let file = request.file().clone();
        let map = self.homes.cluster().map();
        let node_of = |index| map.primary(self.homes.of_unit(&file, index));
        let nodes: BTreeSet<NodeId> = request.units().iter().map(|&index| node_of(index)).collect();
        let mut awaited = None;
        for node in nodes {
            let part = request.split_off(|index| node_of(index) == node);
            let ask = self.clone().ask_node(node, map.epoch, part);
            if first == Some(node) {
                awaited = Some(ask);
            } else {
                self.homes.runtime.spawn(ask);
            }
        }
        awaited
    }

    async fn ask_node(self: Arc<Self>, node: NodeId, epoch: MapEpoch, request: LocationRequest) {
        if self.homes.rpc().device_of(node).is_none() {
            return request.learn(Vec::new());
        }
        let (inode, generation, units) =
            (request.file().inode, request.generation(), request.units().to_vec());
        let locations = Request::Unit(UnitRequest::Locations { inode, units, generation });
        match self.homes.ask(Destination::Primary(node, epoch), locations).await.map(|answer| answer.reply) {
            Ok(Reply::Unit(UnitReply::Locations(locations))) => request.learn(locations),
            // The fallback read through the home reports the failure. It also follows a change of the home map.
            Ok(_) | Err(_) => request.learn(Vec::new()),
        }
    }
}
