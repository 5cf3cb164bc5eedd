//! Calls with a short time limit, for data that is available elsewhere too. A node that timed out is skipped for a while.

use super::{Answer, Rpc};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tameike_core::wire::Request;
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_io::os::runtime::Runtime;
use tameike_io::slab::Frame;

/// Time for which callers skip a node that timed out. After it, a single request tests the node again.
const SILENCE: Duration = Duration::from_secs(10);

/// Limits the time of calls, and remembers the nodes that timed out.
pub struct TimeLimitedCalls {
    runtime: Runtime,
    limit: Duration,
    /// Nodes that timed out, and the time until which callers skip them.
    silent: Mutex<BTreeMap<NodeId, Duration>>,
}

impl TimeLimitedCalls {
    /// `limit` is the time limit of each call.
    pub fn new(runtime: Runtime, limit: Duration) -> Self {
        Self { runtime, limit, silent: Mutex::default() }
    }

    /// True if the node timed out less than 10 seconds ago.
    pub fn is_silent(&self, node: NodeId) -> bool {
        let until = self.silent.lock().get(&node).copied();
        until.is_some_and(|until| self.runtime.clock.monotonic() < until)
    }

    /// Calls a node.
    ///
    /// # Errors
    /// `ETIMEDOUT` if the node does not reply in time, and the errors of [`Rpc::call`].
    pub async fn call(
        &self,
        rpc: &dyn Rpc,
        node: NodeId,
        request: Request,
        into: Option<Frame>,
    ) -> Result<Answer> {
        let later = || self.runtime.clock.monotonic() + SILENCE;
        if let Some(until) = self.silent.lock().get_mut(&node) {
            // Concurrent callers skip the node while this call tests it.
            *until = later();
        }
        let answer = self.runtime.timeout(self.limit, rpc.call(node.into(), request, None, into)).await;
        let late = || Fault::new(Errno::ETIMEDOUT, format!("{node} did not reply within {:?}", self.limit));
        let answer = answer.ok_or_else(late).flatten();
        match &answer {
            Ok(_) => drop(self.silent.lock().remove(&node)),
            Err(_) => drop(self.silent.lock().insert(node, later())),
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CallFuture;
    use futures_util::future::FutureExt;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use tameike_core::wire::Reply;
    use tameike_core::wire::admin::{AdminReply, AdminRequest, Space};
    use tameike_io::os::simulated::Simulation;

    const LIMIT: Duration = Duration::from_millis(500);
    const NODE: NodeId = NodeId(1);

    struct OneNode {
        runtime: Runtime,
        is_stuck: AtomicBool,
        attempts: AtomicU32,
    }

    impl Rpc for OneNode {
        fn local(&self) -> NodeId {
            NodeId(0)
        }

        fn call(
            &self,
            _: crate::Destination,
            _: Request,
            _: Option<tameike_io::slab::Payload>,
            _: Option<Frame>,
        ) -> CallFuture {
            self.attempts.fetch_add(1, Ordering::Relaxed);
            let time = if self.is_stuck.load(Ordering::Relaxed) { 100 * LIMIT } else { LIMIT / 2 };
            let wait = self.runtime.sleep(time);
            async move {
                wait.await;
                Ok(Answer { reply: Reply::Admin(AdminReply::Space(Space::default())), payload: None })
            }
            .boxed()
        }
    }

    #[test]
    fn a_silent_node_is_skipped_and_then_tested_by_one_caller() {
        let simulation = Simulation::new(5);
        let runtime = simulation.runtime();
        let (is_stuck, attempts) = Default::default();
        let rpc = OneNode { runtime: runtime.clone(), is_stuck, attempts };
        let calls = TimeLimitedCalls::new(runtime.clone(), LIMIT);
        let call = || calls.call(&rpc, NODE, Request::Admin(AdminRequest::Status), None);
        simulation.run(async {
            assert!(call().await.is_ok() && !calls.is_silent(NODE));
            rpc.is_stuck.store(true, Ordering::Relaxed);
            let before = runtime.clock.monotonic();
            assert_eq!(call().await.err().map(|fault| fault.errno), Some(Errno::ETIMEDOUT));
            assert_eq!(runtime.clock.monotonic() - before, LIMIT);
            assert!(calls.is_silent(NODE) && !calls.is_silent(NodeId(2)));
            runtime.sleep(SILENCE).await;
            assert!(!calls.is_silent(NODE), "the time is over");
            rpc.is_stuck.store(false, Ordering::Relaxed);
            let mut again = std::pin::pin!(call());
            assert!(again.as_mut().now_or_never().is_none());
            assert!(calls.is_silent(NODE), "a caller is testing the node");
            assert!(again.await.is_ok() && !calls.is_silent(NODE));
            assert_eq!(rpc.attempts.load(Ordering::Relaxed), 3);
        });
    }
}
