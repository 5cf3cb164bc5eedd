//! Injected bugs of shared memory regions: some announcements and lists of changed pages are lost or late.

use super::canary::{BuggyRpc, Canary};
use futures_util::future::{BoxFuture, FutureExt};
use std::time::Duration;
use tameike_core::Result;
use tameike_core::limits::{BLOCK_SIZE, BLOCKS_PER_UNIT};
use tameike_core::ranges::RangeSet;
use tameike_core::wire::client::ClientRequest;
use tameike_core::wire::region::{Changes, NodeChanges, RegionReply, RegionRequest, Release};
use tameike_core::wire::unit::UnitRequest;
use tameike_core::wire::{Reply, Request};
use tameike_fabric::{Answer, Destination};

/// Longest delay of an announcement that a flush does not await.
const LATE_MICROS: u64 = 3000;

type Call = BoxFuture<'static, Result<Answer>>;

impl BuggyRpc {
    /// Makes a call of a region with the injected bug; `None` for other calls.
    pub(super) fn region_call(&self, to: Destination, request: &Request) -> Option<Call> {
        match (self.canary, request) {
            (Canary::EarlyFlush, Request::Region(RegionRequest::Publish { .. })) => {
                let call = self.inner.call(to, request.clone(), None, None);
                let runtime = self.simulation.runtime();
                let wait = runtime.sleep(Duration::from_micros(self.simulation.draw(LATE_MICROS)));
                runtime.spawn(async move {
                    wait.await;
                    drop(call.await);
                });
                let reply = Reply::Region(RegionReply::Published(0));
                Some(async { Ok(Answer { reply, payload: None }) }.boxed())
            }
            (
                Canary::UndroppedPage,
                Request::Region(RegionRequest::Changes { .. } | RegionRequest::Arrive(_)),
            ) => {
                let call = self.inner.call(to, request.clone(), None, None);
                let simulation = self.simulation.clone();
                Some(
                    async move {
                        let mut answer = call.await?;
                        if simulation.draw(8) == 0 {
                            lose_changes(&mut answer.reply);
                        }
                        Ok(answer)
                    }
                    .boxed(),
                )
            }
            (Canary::UnannouncedSum, request) => {
                let call = self.inner.call(to, self.without_sums(request)?, None, None);
                Some(call)
            }
            _ => None,
        }
    }

    /// Removes the pages of sums from a request; `None` for other requests.
    fn without_sums(&self, request: &Request) -> Option<Request> {
        let mut sums = self.sums.lock();
        let mut request = request.clone();
        let remove = |pages: &mut RangeSet| {
            sums.iter().for_each(|&page| pages.remove(page..page + 1));
        };
        let in_all = |changes: &mut Vec<NodeChanges>| {
            changes.iter_mut().for_each(|change| remove(&mut change.pages));
        };
        match &mut request {
            Request::Unit(UnitRequest::FetchAdd { unit, offset, .. }) => {
                let page = unit.index as usize * BLOCKS_PER_UNIT + *offset as usize / BLOCK_SIZE;
                sums.insert(page as u32);
                return None;
            }
            Request::Region(RegionRequest::Publish { pages, .. }) => remove(pages),
            Request::Region(RegionRequest::Arrive(arrival))
            | Request::Client(ClientRequest::Arrive(arrival)) => in_all(&mut arrival.changes),
            _ => return None,
        }
        Some(request)
    }
}

fn lose_changes(reply: &mut Reply) {
    if let Reply::Region(
        RegionReply::Changes { changes: Changes::Pages(all), .. }
        | RegionReply::Released(Release { changes: Changes::Pages(all), .. }),
    ) = reply
    {
        all.clear();
    }
}
