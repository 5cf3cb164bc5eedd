//! The cluster of a run, and what its processes share.

use super::model::Model;
use super::program::{Fault as Injected, Place, RegionProgram};
use crate::kernel::{self, Output};
use crate::op::{Flags, Op};
use crate::world::World;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tameike_client::region::{Attachment, RegionFile};
use tameike_client::vfs::HandleNumber;
use tameike_core::patch::{PAGE_SIZE, Page};
use tameike_core::region::{Terms, Tracking};
use tameike_core::{Errno, Fault, InodeId, Layout, UnitId, View};
use tameike_io::Runtime;
use tameike_io::os::runtime::{Promise, Resolver, promise};

/// The path of the file.
const PATH: &str = "region";
/// After this time a call counts as hung.
const CALL_TIME_MAX: Duration = Duration::from_secs(300);
/// The same after a fault.
const FAULT_TIME_MAX: Duration = Duration::from_secs(15);

/// Pause between two looks at what others do.
const PAUSE: Duration = Duration::from_micros(100);

/// Why a process does not go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A call or an access has an effect that is not allowed.
    Violation(String),
    /// A call failed.
    Failed(&'static str, Fault),
    /// Its node has failed.
    NodeFailed,
}

/// The fault of a round.
#[derive(Default)]
struct Strike {
    fault: Option<(u64, Injected)>,
    /// When it struck.
    at: Option<Duration>,
    begun: bool,
    waiting: Vec<Resolver<()>>,
}

pub(crate) struct Stage {
    pub world: Arc<World>,
    pub program: RegionProgram,
    pub(super) model: Mutex<Model>,
    pub file: RegionFile,
    /// The processes that hold locks, by lock.
    pub(super) holders: Mutex<BTreeMap<u32, Holder>>,
    /// Product calls in flight on running nodes.
    in_flight: Arc<AtomicUsize>,
    strike: Mutex<Strike>,
    attached: Mutex<Attached>,
}

/// A process that holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub process: usize,
    /// It has begun to release the lock.
    pub releases: bool,
}

/// Processes that have attached, or failed to.
#[derive(Default)]
struct Attached {
    tried: usize,
    /// Those that the fault leaves have attached, at least one.
    has_survivor: bool,
    /// So have those that it ends.
    has_doomed: bool,
}

impl Attached {
    fn can_strike(&self) -> bool {
        self.has_survivor && self.has_doomed
    }
}

/// A product call in flight.
struct InFlight(Arc<AtomicUsize>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn wrong(what: &str, fault: &Fault) -> String {
    format!("{what} fails: {fault}")
}

impl Stage {
    /// Creates the file of the region on a running cluster.
    pub async fn new(world: Arc<World>, program: RegionProgram) -> Result<Arc<Self>, String> {
        let inode = InodeId::ROOT;
        let file = RegionFile { inode, layout: Layout::Striped, pages: program.pages };
        let model = Mutex::new(Model::new(&program.cells));
        let (holders, in_flight, strike, attached) = Default::default();
        let mut stage = Self { world, program, model, file, holders, in_flight, strike, attached };
        stage.file.inode = stage.create().await?;
        Ok(Arc::new(stage))
    }

    /// Time and tasks that end with no node.
    pub fn runtime(&self) -> Runtime {
        self.world.runtime()
    }

    /// Simulated time.
    pub fn now(&self) -> Duration {
        self.runtime().clock.monotonic()
    }

    /// Sets the fault of the next round.
    pub fn arm(&self, fault: Option<(u64, Injected)>) {
        *self.strike.lock() = Strike { fault, ..Strike::default() };
        self.holders.lock().clear();
        *self.attached.lock() = Attached::default();
    }

    /// A process has attached, or failed to.
    pub fn tried_to_attach(&self, process: usize, has_attached: bool) {
        let mut attached = self.attached.lock();
        attached.tried += 1;
        let is_doomed = self.is_doomed(process);
        attached.has_survivor |= has_attached && !is_doomed;
        attached.has_doomed |= has_attached && is_doomed;
    }

    /// Waits until all processes have tried to attach: after the last has detached, others would attach to a new region.
    pub async fn all_tried(&self) {
        while self.attached.lock().tried < self.program.processes.len() {
            self.runtime().sleep(PAUSE).await;
        }
    }

    /// The fault of the round ends this process.
    pub fn is_doomed(&self, process: usize) -> bool {
        match self.fault() {
            Some(Injected::Ends { process: doomed, .. } | Injected::Detaches { process: doomed }) => {
                process == doomed
            }
            Some(Injected::NodeFails { node }) => self.program.processes[process].node == node,
            None => false,
        }
    }

    /// The fault of the round.
    pub fn fault(&self) -> Option<Injected> {
        self.strike.lock().fault.map(|(_, fault)| fault)
    }

    /// The fault has struck.
    pub fn has_struck(&self) -> bool {
        self.strike.lock().at.is_some()
    }

    /// A process begins its last interval: the fault strikes some time after the first one.
    pub fn begin_last_interval(self: &Arc<Self>) {
        let (after, fault) = {
            let mut strike = self.strike.lock();
            let Some(fault) = strike.fault.filter(|_| !strike.begun) else { return };
            strike.begun = true;
            fault
        };
        let (stage, wait) = (self.clone(), self.runtime().sleep(Duration::from_micros(after)));
        self.runtime().spawn(async move {
            wait.await;
            // It would have no effect on the region otherwise.
            while !stage.attached.lock().can_strike() {
                stage.runtime().sleep(PAUSE).await;
            }
            log::trace!("{fault:?}");
            let waiting = {
                let mut strike = stage.strike.lock();
                strike.at = Some(stage.now());
                std::mem::take(&mut strike.waiting)
            };
            if let Injected::NodeFails { node } = fault {
                stage.world.kill(node, false);
            }
            waiting.into_iter().for_each(|waiting| waiting.resolve(()));
        });
    }

    /// Resolved when the fault strikes.
    pub fn strikes(&self) -> Promise<()> {
        let (resolver, struck) = promise();
        let mut strike = self.strike.lock();
        match strike.at {
            None => strike.waiting.push(resolver),
            Some(_) => {
                drop(strike);
                resolver.resolve(());
            }
        }
        struck
    }

    /// A call that began at `begun` must have ended then.
    fn limit(&self, begun: Duration) -> Duration {
        match self.strike.lock().at {
            Some(at) => begun.max(at) + FAULT_TIME_MAX,
            None => begun + CALL_TIME_MAX,
        }
    }

    /// Makes a call to the agent of a node, which ends with the node.
    pub async fn call<T: Send + 'static>(
        &self,
        node: usize,
        what: &'static str,
        call: impl Future<Output = tameike_core::Result<T>> + Send + 'static,
    ) -> Result<T, Stop> {
        let Some((_, runtime)) = self.world.views(node) else { return Err(Stop::NodeFailed) };
        let ((resolver, done), (failing, failed)) = (promise(), promise());
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let in_flight = InFlight(self.in_flight.clone());
        runtime.spawn(async move {
            let result = call.await;
            drop(in_flight);
            resolver.resolve(result);
        });
        let watch = self.world.on_failure(node, failing);
        let (begun, mut either) = (self.now(), select(done, failed));
        let ended = loop {
            let struck = select(self.strikes(), self.runtime().sleep(self.limit(begun) - self.now()));
            match select(either, struck).await {
                Either::Left((Either::Left((result, _)), _)) => break Some(result),
                Either::Left((Either::Right(_), _)) => break None,
                Either::Right((_, waiting)) => either = waiting,
            }
            let struck = self.has_struck();
            if self.limit(begun) <= self.now() {
                let (since, number) = (self.now() - begun, if struck { " after a fault" } else { "" });
                return Err(Stop::Violation(format!("{what} on node {node} hangs{number}, for {since:?}")));
            }
            if struck {
                either = match self.until(either, self.limit(begun)).await {
                    Ok(Either::Left((result, _))) => break Some(result),
                    Ok(Either::Right(_)) => break None,
                    Err(waiting) => waiting,
                };
            }
        };
        self.world.cancel_on_failure(node, watch);
        match ended {
            Some(result) => result.map_err(|fault| Stop::Failed(what, fault)),
            None => Err(Stop::NodeFailed),
        }
    }

    /// Waits for a future until a time.
    async fn until<F: Future + Unpin>(&self, future: F, then: Duration) -> Result<F::Output, F> {
        match select(future, self.runtime().sleep(then.saturating_sub(self.now()))).await {
            Either::Left((output, _)) => Ok(output),
            Either::Right(((), future)) => Err(future),
        }
    }

    /// Attaches a process.
    pub async fn attach(&self, process: usize) -> Result<Arc<Attachment>, Stop> {
        let Place { node, alone } = self.program.processes[process];
        let Some((views, _)) = self.world.views(node) else { return Err(Stop::NodeFailed) };
        let (file, processes) = (self.file, self.program.processes.len() as u32);
        let tracking = if alone { Tracking::OwnTwins } else { Tracking::Twins };
        let terms = Terms { processes, one_writer: false, tracking };
        let attach = async move { views.regions().attach(file, terms).await };
        self.call(node, "attach", attach).await
    }

    /// Waits until no call is in flight on any running node.
    pub async fn settle(&self) -> Result<(), String> {
        let begun = self.now();
        while self.in_flight.load(Ordering::SeqCst) > 0 {
            if self.now() > self.limit(begun).min(begun + FAULT_TIME_MAX) {
                let count = self.in_flight.load(Ordering::SeqCst);
                return Err(format!("{count} calls of ended processes hang"));
            }
            self.runtime().sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Makes a call to the job-shared view.
    async fn file_call(&self, node: usize, op: Op, handle: Option<HandleNumber>) -> Result<Output, Stop> {
        let found = self.world.views(node).zip(self.world.caller(node, View::JobShared));
        let Some(((views, _), caller)) = found else { return Err(Stop::NodeFailed) };
        self.call(node, "a call on the file", async move { kernel::call(&views, &caller, &op, handle).await })
            .await
    }

    async fn create(&self) -> Result<InodeId, String> {
        let explain = |stop| match stop {
            Stop::Failed(what, fault) => wrong(what, &fault),
            other => format!("{other:?}"),
        };
        let slot = 0;
        let created = self.file_call(0, Op::open(slot, PATH, Flags::CREATE), None).await.map_err(explain)?;
        let Output::Opened(handle, attr) = created else {
            return Err("an open returned no handle".to_owned());
        };
        let truncate =
            Op::Truncate { path: PATH.to_owned(), size: u64::from(self.program.pages) * PAGE_SIZE as u64 };
        self.file_call(0, truncate, None).await.map_err(explain)?;
        self.file_call(0, Op::Close { slot }, Some(handle)).await.map_err(explain)?;
        Ok(attr.inode)
    }

    /// Opens the file on a node, and reads a page.
    pub async fn read(&self, node: usize, page: u32) -> Result<Page, Stop> {
        let slot = 0;
        let opened = self.file_call(node, Op::open(slot, PATH, Flags::READ), None).await?;
        let Output::Opened(handle, _) = opened else {
            return Err(Stop::Violation("an open returned no handle".to_owned()));
        };
        let (offset, length) = (u64::from(page) * PAGE_SIZE as u64, PAGE_SIZE as u32);
        let read = self.file_call(node, Op::Read { slot, offset, length }, Some(handle)).await;
        let closed = self.file_call(node, Op::Close { slot }, Some(handle)).await;
        match read? {
            Output::Bytes(bytes) if bytes.len() == PAGE_SIZE => {
                closed?;
                let mut page = [0; PAGE_SIZE];
                page.copy_from_slice(&bytes);
                Ok(page)
            }
            other => Err(Stop::Violation(format!("a read of page {page} returned {other:?}"))),
        }
    }

    /// The coordinator of the region runs.
    pub fn has_coordinator(&self) -> bool {
        let cluster = &self.world.cluster;
        self.world.is_up(cluster.primary(cluster.inode_home(self.file.inode)).0 as usize)
    }

    /// The home of a page runs.
    pub fn has_home(&self, page: u32) -> bool {
        let index = u64::from(page / tameike_dsm::control::UNIT_PAGES);
        let unit = UnitId { inode: self.file.inode, index };
        let cluster = &self.world.cluster;
        self.world.is_up(cluster.primary(cluster.unit_home(self.file.layout, unit)).0 as usize)
    }

    /// The fault of the round explains an error of a call.
    pub fn explains(&self, what: &str, errno: Errno) -> bool {
        let of_node = [Errno::EHOSTDOWN];
        let of_barrier = [Errno::EPIPE, Errno::EOWNERDEAD];
        let waits = ["barrier", "attach"].contains(&what);
        match self.fault().filter(|_| self.has_struck()) {
            None => false,
            Some(Injected::NodeFails { .. }) => {
                of_node.contains(&errno) || (waits && of_barrier.contains(&errno))
            }
            Some(Injected::Ends { .. } | Injected::Detaches { .. }) => waits && of_barrier.contains(&errno),
        }
    }
}
