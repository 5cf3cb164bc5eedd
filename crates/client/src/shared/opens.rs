//! Reports closed files to their homes, in batches and asynchronously: close(2) does not wait.
//!
//! A home counts the nodes' opens of its files and frees a removed file at the last close. The client therefore retries each report until
//! the home answers. It also reports opens without a reply: the home closes such an open, or refuses it if it arrives later.
//! Reports to all homes of a node share messages; if a home moves, they are sorted again.

use super::leases::NameLeases;
use crate::data::{Access, HolderReports};
use event_listener::{Event, listener};
use futures_util::future::select;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tameike_core::wire::Request;
use tameike_core::wire::holders::HolderOutcome;
use tameike_core::wire::meta::{Closed, Closes, MetaRequest, OpenId, Opener};
use tameike_core::{
    Attr, Cluster, Errno, Fault, FaultKind, HomeId, InodeId, MapEpoch, NodeId, Result, Timestamp,
};
use tameike_fabric::rpc::REFUSED_TIME;
use tameike_fabric::{Destination, Rpc};
use tameike_io::Runtime;

/// Batch size at which the client stops waiting for more closes.
const BATCH_FULL: usize = 64;
/// Longest wait of a close for a batch.
const BATCH_WAIT: Duration = Duration::from_millis(20);
/// Most closes in one message.
const BATCH_MAX: usize = 1024;
/// Bounds of the exponential backoff while a home is unreachable.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Pending reports to the homes of one node.
#[derive(Default)]
struct Pending {
    /// Closed opens and their files.
    opens: Vec<(InodeId, Closed)>,
    /// Opens that were given up, with the homes that may have counted them.
    undone: Vec<(HomeId, OpenId)>,
    /// True if a task is sending reports.
    sending: bool,
    /// True if the last attempt failed.
    failed: bool,
    /// Notified when a batch is full or the node is reachable again.
    wake: Arc<Event>,
}

/// Reports of one message.
struct Batch {
    opens: Vec<(InodeId, Closed)>,
    undone: Vec<(HomeId, OpenId)>,
    holder_outcomes: Vec<HolderOutcome>,
}

/// The end of a batch.
enum Sent {
    /// The homes accepted it, or rejected it for good.
    Answered(bool),
    /// The node no longer serves all homes of the batch.
    Moved,
}

pub(super) struct Closer {
    runtime: Runtime,
    cluster: Arc<Cluster>,
    rpc: Arc<dyn Rpc>,
    /// Last open identifier.
    last: AtomicU64,
    nodes: Mutex<BTreeMap<NodeId, Pending>>,
    /// True if any report has ever failed.
    has_failed: AtomicBool,
    /// Accesses to report with closes, by file and time.
    accesses: Mutex<BTreeMap<(InodeId, Timestamp), Access>>,
    /// Its attributes lack accesses that are not reported yet.
    leases: Arc<NameLeases>,
    /// Outcomes of requests to cache holders, reported with closes.
    reports: Arc<HolderReports>,
}

impl Closer {
    pub(super) fn new(
        runtime: Runtime,
        cluster: Arc<Cluster>,
        rpc: Arc<dyn Rpc>,
        leases: Arc<NameLeases>,
        reports: Arc<HolderReports>,
    ) -> Self {
        let last = AtomicU64::new(runtime.random_u64());
        let (nodes, has_failed, accesses) = Default::default();
        Self { runtime, cluster, rpc, last, nodes, has_failed, accesses, leases, reports }
    }

    pub(super) fn opening(self: &Arc<Self>) -> Opening {
        let open = OpenId(self.last.fetch_add(1, Ordering::Relaxed));
        Opening { closer: self.clone(), open, home: None, epoch: self.cluster.epoch() }
    }

    /// Queues the report of a close and of the file's last access.
    pub(super) fn close(self: &Arc<Self>, inode: InodeId, open: OpenId, read: Option<Timestamp>) {
        let closed = Closed { open, read };
        self.add(self.cluster.inode_home(inode), |pending| pending.opens.push((inode, closed)));
    }

    /// Keeps an access visible until its report.
    pub(super) fn keep_access(&self, inode: InodeId, access: Access) {
        self.accesses.lock().insert((inode, access.time), access);
    }

    pub(super) fn show_accesses(&self, attr: &mut Attr) {
        let accesses = self.accesses.lock();
        let from = (attr.inode, Timestamp { seconds: i64::MIN, nanoseconds: 0 });
        let of_file = accesses.range(from..).take_while(|((inode, _), _)| *inode == from.0);
        of_file.for_each(|(_, access)| access.show_in(attr));
    }

    /// Drops reported accesses: the home's attributes include those that it accepted (`taken`).
    fn accesses_reported(&self, reported: &[(InodeId, Timestamp)], taken: bool) {
        for access in reported {
            // None if a program has set another time since.
            let kept = self.accesses.lock().get(access).copied();
            self.leases.accessed(access.0, kept.filter(|_| taken));
            self.accesses.lock().remove(access);
        }
    }

    /// Drops pending accesses after a change of the access time.
    pub(super) fn forget_accesses(&self, inode: InodeId) {
        self.accesses.lock().retain(|(file, _), _| *file != inode);
    }

    fn add(self: &Arc<Self>, home: HomeId, add: impl FnOnce(&mut Pending)) {
        let node = self.cluster.primary(home);
        let start = {
            let mut nodes = self.nodes.lock();
            let pending = nodes.entry(node).or_default();
            add(pending);
            if pending.opens.len() == BATCH_FULL {
                pending.wake.notify(usize::MAX);
            }
            !std::mem::replace(&mut pending.sending, true)
        };
        if start {
            self.runtime.spawn(self.clone().send_reports(node));
        }
    }

    /// Resumes reports to a node that has just answered a request to a home. So the pending closes never exceed the number of opens at the
    /// time of the failure.
    pub(super) fn reached(&self, home: HomeId) {
        if !self.has_failed.load(Ordering::Acquire) {
            return;
        }
        let node = self.cluster.primary(home);
        if let Some(pending) = self.nodes.lock().get(&node).filter(|pending| pending.failed) {
            pending.wake.notify(usize::MAX);
        }
    }

    fn set_failed(&self, node: NodeId, failed: bool) {
        if failed {
            self.has_failed.store(true, Ordering::Release);
        }
        if let Some(pending) = self.nodes.lock().get_mut(&node) {
            pending.failed = failed;
        }
    }

    /// Sends reports to a node until none is pending.
    async fn send_reports(self: Arc<Self>, node: NodeId) {
        let Some(wake) = self.nodes.lock().get(&node).map(|pending| pending.wake.clone()) else { return };
        loop {
            listener!(wake => woken);
            let is_full =
                self.nodes.lock().get(&node).is_some_and(|pending| pending.opens.len() >= BATCH_FULL);
            if !is_full {
                select(woken, self.runtime.sleep(BATCH_WAIT)).await;
            }
            let Some(batch) = self.next_batch(node) else { return };
            let sent = self.send_batch(node, &wake, &batch).await;
            self.set_failed(node, false);
            match sent {
                Sent::Answered(accepted) => {
                    let read = |(inode, closed): &(InodeId, Closed)| Some((*inode, closed.read?));
                    let accesses: Vec<_> = batch.opens.iter().filter_map(read).collect();
                    self.accesses_reported(&accesses, accepted);
                }
                Sent::Moved => self.sort_again(batch),
            }
        }
    }

    fn next_batch(&self, node: NodeId) -> Option<Batch> {
        let (opens, undone) = {
            // Allocate before taking the lock: programs close files meanwhile.
            let rest = Vec::with_capacity(2 * BATCH_FULL);
            let mut nodes = self.nodes.lock();
            let pending = nodes.get_mut(&node)?;
            if pending.opens.is_empty() && pending.undone.is_empty() {
                pending.sending = false;
                pending.opens = Vec::new();
                return None;
            }
            (first_of(&mut pending.opens, rest), first_of(&mut pending.undone, Vec::new()))
        };
        Some(Batch { opens, undone, holder_outcomes: self.reports.take(node) })
    }

    fn sort_again(self: &Arc<Self>, batch: Batch) {
        for (inode, Closed { open, read }) in batch.opens {
            self.close(inode, open, read);
        }
        for (home, open) in batch.undone {
            self.add(home, |pending| pending.undone.push((home, open)));
        }
    }

    fn by_home(&self, batch: &Batch) -> Vec<Closes> {
        let mut homes = BTreeMap::<_, (Vec<_>, Vec<_>)>::new();
        for (inode, closed) in &batch.opens {
            homes.entry(self.cluster.inode_home(*inode)).or_default().0.push(*closed);
        }
        for (home, open) in &batch.undone {
            homes.entry(*home).or_default().1.push(*open);
        }
        homes.into_iter().map(|(home, (opens, undone))| Closes { home, opens, undone }).collect()
    }

    /// Sends a batch until the node answers, or no longer serves all homes of the batch.
    async fn send_batch(&self, node: NodeId, wake: &Event, batch: &Batch) -> Sent {
        let request = Request::Meta(MetaRequest::Close {
            node: self.rpc.local(),
            homes: self.by_home(batch),
            holder_outcomes: batch.holder_outcomes.clone(),
        });
        let mut pause = PAUSE_MIN;
        loop {
            let map = self.cluster.map();
            let of_opens = batch.opens.iter().map(|(inode, _)| self.cluster.inode_home(*inode));
            if of_opens
                .chain(batch.undone.iter().map(|(home, _)| *home))
                .any(|home| map.primary(home) != node)
            {
                return Sent::Moved;
            }
            listener!(wake => reached);
            let to = Destination::Primary(node, map.epoch);
            match self.rpc.call(to, request.clone(), None, None).await {
                Ok(_) => return Sent::Answered(true),
                Err(fault) if fault.errno == Errno::EREMCHG => {
                    self.runtime.sleep(REFUSED_TIME).await;
                    continue;
                }
                Err(fault) if is_answer(&fault) => {
                    log::warn!("{node} rejected a report of closed files: {fault}");
                    return Sent::Answered(false);
                }
                Err(fault) if pause == PAUSE_MIN => {
                    log::warn!("cannot report closed files to {node}, retrying: {fault}");
                }
                Err(_) => {}
            }
            self.set_failed(node, true);
            select(pin!(reached), self.runtime.sleep(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// Takes at most [`BATCH_MAX`] elements from the start of a list; `rest` receives the others.
fn first_of<T>(pending: &mut Vec<T>, rest: Vec<T>) -> Vec<T> {
    let mut first = std::mem::replace(pending, rest);
    pending.extend(first.drain(first.len().min(BATCH_MAX)..));
    first
}

/// Returns true if the home itself returned the fault: a retry cannot change it.
fn is_answer(fault: &Fault) -> bool {
    fault.kind() != FaultKind::Unreachable && fault.errno != Errno::EAGAIN
}

/// An open in flight. If dropped before a conclusive reply, it is given up.
pub(super) struct Opening {
    closer: Arc<Closer>,
    open: OpenId,
    /// The home of the last request, which may have counted the open.
    home: Option<HomeId>,
    /// The home map before that request.
    epoch: MapEpoch,
}

impl Opening {
    /// Returns the opener for a request to `home`. The previous home has not counted the open.
    pub(super) fn ask(&mut self, home: HomeId) -> Opener {
        self.home = Some(home);
        self.epoch = self.closer.cluster.epoch();
        Opener { node: self.closer.rpc.local(), open: self.open }
    }

    /// Records the reply. A fault from the home itself means that it did not count the open.
    pub(super) fn record_reply<T>(&mut self, answer: &Result<T>) {
        if answer.as_ref().is_err_and(is_answer) {
            self.home = None;
        }
    }

    /// The number of the open, once the home has counted it.
    pub(super) fn id(&self) -> OpenId {
        self.open
    }

    /// Whether a home has got another primary since the last request. An earlier primary may then have counted the open after this node has listed
    /// its opens for the next primary.
    pub(super) fn may_be_lost(&self) -> bool {
        !self.closer.cluster.keeps_primaries_of(self.epoch)
    }

    /// Ends the opening: the home has not counted it.
    pub(super) fn end_uncounted(mut self) {
        self.home = None;
    }

    /// Ends the opening: it counts until [`Closer::close`].
    pub(super) fn done(mut self) {
        self.home = None;
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(home) = self.home {
            self.closer.add(home, |pending| pending.undone.push((home, self.open)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use std::collections::BTreeSet;
    use tameike_core::NodeId;
    use tameike_core::wire::Reply;
    use tameike_core::wire::meta::MetaReply;
    use tameike_fabric::{Answer, Destination, MapLease};
    use tameike_io::os::simulated::Simulation;
    use tameike_io::{Frame, Payload};

    /// Its slot is 3.
    const INODE: InodeId = InodeId(3 << 48 | 7);
    const HOME: HomeId = HomeId(3);

    /// A home that counts closes, behind a faulty network.
    #[derive(Default)]
    struct Home {
        closed: BTreeSet<OpenId>,
        undone: BTreeSet<OpenId>,
        /// Number of calls still to fail, and whether the home executes them all the same.
        failing: (u32, bool),
        calls: u32,
    }

    struct HomeRpc(Mutex<Home>);

    impl Rpc for HomeRpc {
        fn local(&self) -> NodeId {
            NodeId(1)
        }

        fn call(
            &self,
            to: Destination,
            request: Request,
            _: Option<Payload>,
            _: Option<Frame>,
        ) -> BoxFuture<'static, Result<Answer>> {
            assert!(matches!(to, Destination::Primary(NodeId(3), _)), "{to:?}");
            let Request::Meta(MetaRequest::Close { homes, .. }) = request else { panic!("{request:?}") };
            let [Closes { home: HOME, opens, undone }] = &homes[..] else { panic!("{homes:?}") };
            let opens = opens.iter().map(|closed| closed.open);
            let mut home = self.0.lock();
            home.calls += 1;
            let (failing, executed) = home.failing;
            if failing == 0 || executed {
                home.closed.extend(opens);
                home.undone.extend(undone);
            }
            home.failing.0 = failing.saturating_sub(1);
            let reply: Result<_> =
                if failing > 0 { Err(Errno::EHOSTDOWN.into()) } else { Ok(Reply::Meta(MetaReply::Done)) };
            async move { Ok(Answer { reply: reply?, payload: None }) }.boxed()
        }
    }

    fn bed() -> (Simulation, Arc<HomeRpc>, Arc<Closer>) {
        let simulation = Simulation::new(5);
        let rpc = Arc::new(HomeRpc(Mutex::default()));
        let (runtime, cluster) = (simulation.runtime(), fixtures::cluster(4));
        let leases = Arc::new(NameLeases::new(MapLease::unlimited(runtime.clock.clone())));
        let closer = Arc::new(Closer::new(runtime, cluster, rpc.clone(), leases, Arc::default()));
        (simulation, rpc, closer)
    }

    /// Regression: a failed report was logged and dropped, so the home counted the file as open forever.
    #[test]
    fn closes_are_reported_until_the_home_answers() {
        for executed in [false, true] {
            let (simulation, rpc, closer) = bed();
            rpc.0.lock().failing = (7, executed);
            for number in 0..3000 {
                closer.close(INODE, OpenId(number), None);
            }
            simulation.finish();
            let home = rpc.0.lock();
            assert!(home.closed.iter().map(|open| open.0).eq(0..3000), "{executed}");
            assert!(closer.nodes.lock().values().all(|pending| pending.opens.is_empty() && !pending.sending));
        }
    }

    /// Regression: if the reply to an open was lost, the home counted it forever and never freed the removed file.
    #[test]
    fn an_open_without_a_reply_is_given_up() {
        let (simulation, rpc, closer) = bed();
        let ask = |answer: Option<Result<()>>| {
            let mut opening = closer.opening();
            let opener = opening.ask(HOME);
            answer.iter().for_each(|answer| opening.record_reply(answer));
            (opening, opener.open)
        };
        let (unknown, first) = ask(Some(Err(Errno::EHOSTDOWN.into())));
        let (dropped, second) = ask(None);
        let (_, _) = ask(Some(Err(Errno::ENOENT.into())));
        ask(Some(Ok(()))).0.end_uncounted();
        let (opened, third) = ask(Some(Ok(())));
        drop((unknown, dropped));
        assert_eq!(opened.id(), third);
        opened.done();
        simulation.finish();
        let home = rpc.0.lock();
        assert_eq!((&home.undone, home.closed.len()), (&BTreeSet::from([first, second]), 0));
    }

    #[test]
    fn closes_are_batched_and_a_single_one_does_not_wait_long() {
        let (simulation, rpc, closer) = bed();
        closer.close(INODE, OpenId(1), None);
        simulation.finish();
        assert_eq!((rpc.0.lock().calls, simulation.runtime().clock.monotonic()), (1, 2 * BATCH_WAIT));
        for number in 0..BATCH_FULL as u64 {
            closer.close(INODE, OpenId(number), None);
        }
        simulation.settle();
        assert_eq!(rpc.0.lock().calls, 2, "a full batch does not wait");
        simulation.finish();
        closer.close(INODE, OpenId(2), None);
        closer.reached(HOME);
        simulation.settle();
        assert_eq!(rpc.0.lock().calls, 2, "only a reply after a failure triggers a report");
    }

    #[test]
    fn a_home_that_is_reachable_again_gets_reports_at_once() {
        let (simulation, rpc, closer) = bed();
        rpc.0.lock().failing = (5, false);
        closer.close(INODE, OpenId(1), None);
        while rpc.0.lock().failing.0 > 0 {
            assert!(simulation.step());
        }
        let before = simulation.runtime().clock.monotonic();
        closer.reached(HOME);
        simulation.settle();
        assert_eq!(rpc.0.lock().closed.len(), 1);
        assert_eq!(simulation.runtime().clock.monotonic(), before);
    }

    #[test]
    fn an_access_is_visible_until_the_home_has_it() {
        let (simulation, rpc, closer) = bed();
        rpc.0.lock().failing = (3, false);
        let at = |seconds| Timestamp { seconds, nanoseconds: 0 };
        let shown = || {
            let mut attr = Attr { atime: at(5), ..fixtures::attr(INODE) };
            closer.show_accesses(&mut attr);
            attr.atime
        };
        // The second access precedes the report of the first.
        let accesses =
            [Access { time: at(200_000), before: at(5) }, Access { time: at(400_000), before: at(200_000) }];
        for (number, access) in accesses.into_iter().enumerate() {
            closer.keep_access(INODE, access);
            closer.close(INODE, OpenId(number as u64), Some(access.time));
            assert_eq!(shown(), access.time);
        }
        simulation.finish();
        assert_eq!(rpc.0.lock().closed.len(), 2);
        assert_eq!(shown(), at(5), "the home's attribute applies");
        closer.keep_access(INODE, accesses[0]);
        closer.close(INODE, OpenId(9), Some(accesses[0].time));
        closer.forget_accesses(INODE);
        assert_eq!(shown(), at(5), "a program has set the time");
        simulation.finish();
    }

    #[test]
    fn attributes_older_than_a_reported_access_are_detected() {
        let (simulation, _, closer) = bed();
        let start = || closer.leases.start_request(Duration::ZERO);
        let at = |seconds| Timestamp { seconds, nanoseconds: 0 };
        let before = start();
        closer.keep_access(INODE, Access { time: at(9), before: at(5) });
        closer.close(INODE, OpenId(1), Some(at(9)));
        assert!(!closer.leases.is_overtaken(INODE, &before), "the client still adds the access");
        simulation.finish();
        assert!(closer.leases.is_overtaken(INODE, &before), "the client no longer adds the access");
        assert!(!closer.leases.is_overtaken(INODE, &start()));
        closer.keep_access(INODE, Access { time: at(12), before: at(9) });
        closer.forget_accesses(INODE);
        let before = start();
        closer.close(INODE, OpenId(2), Some(at(12)));
        simulation.finish();
        assert!(closer.leases.is_overtaken(INODE, &before), "only the home knows if the access counts");
    }
}
