//! Asking for what can be had elsewhere, too: nobody is waited for long, and who was silent once is not asked for a while.

use super::{Answer, Rpc};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tameike_core::wire::Request;
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_io::os::runtime::Runtime;
use tameike_io::slab::Frame;

/// How long who has not answered is not asked. Then one request finds out whether it does again.
const SILENCE: Duration = Duration::from_secs(10);

/// What is known of who answers in time.
pub struct Patience {
    runtime: Runtime,
    limit: Duration,
    /// Nodes that have not answered, and until when they are not asked.
    silent: Mutex<BTreeMap<NodeId, Duration>>,
}

impl Patience {
    /// Each request may take so long.
    pub fn new(runtime: Runtime, limit: Duration) -> Self {
        Self { runtime, limit, silent: Mutex::default() }
    }

    /// Whether a node has not answered lately.
    pub fn is_silent(&self, node: NodeId) -> bool {
        let until = self.silent.lock().get(&node).copied();
        until.is_some_and(|until| self.runtime.clock.monotonic() < until)
    }

    /// Asks a node.
    ///
    /// # Errors
    /// `ETIMEDOUT` when it has not answered in time, and those of [`Rpc::call`].
    pub async fn call(
        &self,
        rpc: &dyn Rpc,
        node: NodeId,
        request: Request,
        into: Option<Frame>,
    ) -> Result<Answer> {
        let later = || self.runtime.clock.monotonic() + SILENCE;
        if let Some(until) = self.silent.lock().get_mut(&node) {
            // Others do not wait with this one.
            *until = later();
        }
        let answer = self.runtime.timeout(self.limit, rpc.call(node, request, None, into)).await;
        let late =
            || Fault::new(Errno::ETIMEDOUT, format!("{node} has not answered within {:?}", self.limit));
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
    use futures_util::future::{BoxFuture, FutureExt};
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use tameike_core::wire::Reply;
    use tameike_core::wire::admin::{AdminReply, AdminRequest, Space};
    use tameike_io::os::simulated::Simulation;

    const LIMIT: Duration = Duration::from_millis(500);
    const NODE: NodeId = NodeId(1);

    struct OneNode {
        runtime: Runtime,
        is_stuck: AtomicBool,
        asked: AtomicU32,
    }

    impl Rpc for OneNode {
        fn local(&self) -> NodeId {
            NodeId(0)
        }

        fn call(
            &self,
            _: NodeId,
            _: Request,
            _: Option<tameike_io::slab::Payload>,
            _: Option<Frame>,
        ) -> BoxFuture<'static, Result<Answer>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
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
    fn who_was_silent_is_not_asked_for_a_while_and_then_by_one() {
        let simulation = Simulation::new(5);
        let runtime = simulation.runtime();
        let (is_stuck, asked) = Default::default();
        let rpc = OneNode { runtime: runtime.clone(), is_stuck, asked };
        let patience = Patience::new(runtime.clone(), LIMIT);
        let ask = || patience.call(&rpc, NODE, Request::Admin(AdminRequest::Status), None);
        simulation.run(async {
            assert!(ask().await.is_ok() && !patience.is_silent(NODE));
            rpc.is_stuck.store(true, Ordering::Relaxed);
            let before = runtime.clock.monotonic();
            assert_eq!(ask().await.err().map(|fault| fault.errno), Some(Errno::ETIMEDOUT));
            assert_eq!(runtime.clock.monotonic() - before, LIMIT);
            assert!(patience.is_silent(NODE) && !patience.is_silent(NodeId(2)));
            runtime.sleep(SILENCE).await;
            assert!(!patience.is_silent(NODE), "it may answer again");
            rpc.is_stuck.store(false, Ordering::Relaxed);
            let mut again = std::pin::pin!(ask());
            assert!(again.as_mut().now_or_never().is_none());
            assert!(patience.is_silent(NODE), "somebody finds out");
            assert!(again.await.is_ok() && !patience.is_silent(NODE));
            assert_eq!(rpc.asked.load(Ordering::Relaxed), 3);
        });
    }
}
