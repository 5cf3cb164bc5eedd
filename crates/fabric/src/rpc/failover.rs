//! Calls to homes whose primary fails: they end at the failed node, and wait for the next one.

use super::Inner;
use event_listener::EventListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tameike_core::limits::FAILOVER_TIME_MAX;
use tameike_core::wire::Request;
use tameike_core::wire::call::{CallId, Scope};
use tameike_core::wire::unit::UnitRequest;
use tameike_core::{Errno, Fault, NodeId, Result};

/// Pause before a node that could not be reached is tried again, unless the map changes before.
const RETRY_TIME: Duration = Duration::from_millis(500);
/// Pause before a request is repeated that a node has refused under the map that both have: it gets another map soon, or takes the home over.
pub const REFUSED_TIME: Duration = Duration::from_millis(20);

/// The time at which a call first failed to reach its node.
#[derive(Default)]
pub(super) struct Patience(Option<Duration>);

/// Whether the caller must know that a node may have served a request before: a failed fsync is reported to the first request only.
fn may_hide_fsync(request: &Request) -> bool {
    matches!(request, Request::Unit(UnitRequest::Flush { .. }))
}

/// Whether a request has the same effect if a failed primary has executed it before, perhaps because of its number. What regions keep in
/// the memory of their home is lost with it.
fn may_be_repeated(request: &Request) -> bool {
    !matches!(request, Request::Region(_) | Request::Unit(UnitRequest::FetchAdd { .. }))
}

impl Inner {
    pub(super) fn is_current(&self, scope: Scope) -> bool {
        let current = self.attached().ok().map(|attached| attached.cluster.epoch());
        scope.epoch() == current
    }

    /// Waits until the map of a request has been replaced, but not for long.
    pub(super) async fn wait_for_map(&self, scope: Scope, new_map: EventListener) {
        if self.is_current(scope) {
            self.runtime.timeout(REFUSED_TIME, new_map).await;
        }
    }

    /// After a node could not be reached: waits until a call to it can be repeated, there or at another primary.
    ///
    /// # Errors
    /// - `fault`, if no other node can serve the request.
    /// - `EREMCHG`, if only the caller can repeat it.
    pub(super) async fn wait_for_primary(
        &self,
        (node, scope): (NodeId, Scope),
        request: &Request,
        new_map: EventListener,
        patience: &mut Patience,
        fault: Fault,
    ) -> Result<()> {
        let map = self.attached()?.cluster.map();
        let now = self.runtime.clock.monotonic();
        let since = *patience.0.get_or_insert(now);
        let is_unreached = [Errno::EHOSTDOWN, Errno::ECONNRESET, Errno::ETIMEDOUT].contains(&fault.errno);
        let may_move = map.is_replicated()
            && scope != Scope::Node
            && is_unreached
            && may_be_repeated(request)
            && now < since + FAILOVER_TIME_MAX;
        let is_moved = scope.epoch() != Some(map.epoch);
        // An excluded node has the only copy of the homes that it still serves. If this node is excluded, it may reach the others again.
        let has_ended = self.is_ending.load(Ordering::Acquire) && map.excludes(self.fabric.local());
        if !may_move || !is_moved && (map.excludes(node) || has_ended) {
            return Err(fault);
        }
        if !is_moved {
            self.runtime.timeout(RETRY_TIME, new_map).await;
        }
        if may_hide_fsync(request) { Err(Errno::EREMCHG.into()) } else { Ok(()) }
    }

    /// Ends the waits of an excluded node from now on.
    pub(super) fn end_waits(&self) {
        self.is_ending.store(true, Ordering::Release);
        self.new_map.notify(usize::MAX);
    }

    /// Ends all waits, and fails all calls from now on.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.new_map.notify(usize::MAX);
    }

    /// Checks that the agent has not stopped.
    ///
    /// # Errors
    /// `EHOSTDOWN` if it has.
    pub(super) fn check_open(&self) -> Result<()> {
        match self.is_closed.load(Ordering::Acquire) {
            true => Err(Fault::new(Errno::EHOSTDOWN, "this agent has stopped")),
            false => Ok(()),
        }
    }

    /// Whether the current map has moved what a request concerns away from an excluded node.
    pub(super) fn is_moved(&self, to: NodeId, scope: Scope) -> bool {
        let Ok(attached) = self.attached() else { return false };
        let map = attached.cluster.map();
        map.excludes(to)
            && match scope {
                Scope::Node => false,
                Scope::Homes(epoch) => epoch != map.epoch,
                Scope::Home(home, _) => map.primary(home) != to,
            }
    }

    pub(super) fn end_moved(&self, to: NodeId, id: CallId) {
        let fault = Fault::new(Errno::EHOSTDOWN, format!("{to} is excluded from the job's nodes"));
        self.finish(to, id, Err(fault));
    }

    /// Ends the calls to excluded nodes, for homes that other nodes serve now.
    pub(super) fn map_changed(self: &Arc<Self>) {
        let Ok(attached) = self.attached() else { return };
        for &node in attached.cluster.map().excluded() {
            for (id, scope) in self.calls.scopes_to(node) {
                if self.is_moved(node, scope) {
                    self.end_moved(node, id);
                }
            }
        }
        self.new_map.notify(usize::MAX);
    }
}
