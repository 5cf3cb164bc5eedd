//! The metadata services of a node, one for each home that the node serves: names and inodes of the slots of the home.
//!
//! [`MetaServices`] passes a request to the service of its home, or to those of all homes of the node. A request that concerns only one
//! home takes one logged change or one read. A change at several homes, which may be on one node, is planned (`plan`) and executed as a
//! logged operation (`operation`), which [`MetaServices::recover`] completes after a crash. Requests for a name that a pending operation
//! changes, or in a directory that is being sharded, wait for it.
//!
//! The service stores no file data: it sends truncations to the homes of units, and writes one unit when inline content outgrows the
//! inode. It does not check permissions; the frontend does, from the attributes.

mod allocation;
mod content;
mod leases;
mod operation;
mod plan;
mod query;
mod recovery;
mod repeated;
mod revocation;
mod services;
mod sharding;
mod single;
mod state;
#[cfg(test)]
pub(crate) mod tests;

pub use services::MetaServices;

use crate::holders::CacheTable;
use allocation::InodeAllocator;
use futures_util::future::BoxFuture;
use leases::Leases;
use parking_lot::Mutex;
use state::State;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tameike_core::wire::call::NumberedCall;
use tameike_core::wire::meta::{Command, EntryName, MetaReply, MetaRequest, Node};
use tameike_core::wire::unit::UnitRequest;
use tameike_core::wire::{Reply, Request};
use tameike_core::{Cluster, DirOffset, Errno, Fault, HomeId, HomeMap, InodeId, NodeId, Result, View};
use tameike_fabric::{Destination, Rpc, join_calls, under_one_map};
use tameike_io::os::runtime::Promise;
use tameike_io::{Payload, Pool, Runtime};
use tameike_store::locks::Locks;
use tameike_store::meta::record::{Intent, Share, Truncation};
use tameike_store::meta::{Applied, LogCommand, Outcome, apply, log_record, query as table};
use tameike_store::table::{HomeTable, ReadTable};
use tameike_store::{Ledger, RecordKind};

/// How long a request waits for a name that a pending operation changes.
const BUSY_TIME_LIMIT: Duration = Duration::from_secs(30);

/// Minimum pause between attempts to reach a node; it doubles up to `RETRY_TIME_MAX`.
const RETRY_TIME_MIN: Duration = Duration::from_millis(50);
const RETRY_TIME_MAX: Duration = Duration::from_secs(5);

/// The parts that the services need.
pub struct MetaParts {
    /// Clock, random numbers and tasks.
    pub runtime: Runtime,
    /// All nodes.
    pub cluster: Arc<Cluster>,
    /// This node's log and table.
    pub ledger: Arc<Ledger>,
    /// Calls to other agents. Weak, since the agent owns both.
    pub rpc: Weak<dyn Rpc>,
    /// This node.
    pub node: NodeId,
    /// Frames for inline content that moves to a unit.
    pub pool: Pool,
    /// Owner and group of the roots of the views.
    pub owner: (u32, u32),
    /// Cache holders of files, shared with the cache service.
    pub holders: Arc<CacheTable>,
}

/// The metadata service of one home.
struct MetaService {
    home: HomeId,
    parts: Arc<MetaParts>,
    /// This service, for tasks that outlive a request.
    this: Weak<Self>,
    state: Mutex<State>,
    /// First number of operations and inodes of this incarnation.
    first: u64,
    allocator: InodeAllocator,
    inodes: [AtomicU64; View::ALL.len()],
    /// Held while the content of a file moves or is truncated.
    contents: Locks<InodeId>,
    /// Pending truncations and unlinked inodes of earlier incarnations, for [`Self::recover`].
    unfinished: Mutex<Unfinished>,
}

type Unfinished = (Vec<(InodeId, Truncation)>, Vec<InodeId>);

impl MetaService {
    /// Starts the service of a home on a ledger that has replayed its log. It can serve requests at once; [`Self::recover`] must run
    /// concurrently as soon as peers are reachable.
    fn open(home: HomeId, parts: Arc<MetaParts>, leases: Leases) -> Result<Arc<Self>> {
        let incarnation = Self::start(home, &parts)?;
        let first = u64::from(incarnation) << 32;
        let mut state = State::new(first, leases);
        let (intents, unfinished, inodes) = parts.ledger.read(|names| {
            let names = &HomeTable::new(home, names);
            let unfinished = (table::truncations(names)?, table::orphans(names)?);
            Ok((table::intents(names)?, unfinished, table::count_inodes(names)?.map(AtomicU64::new)))
        })?;
        for (sequence, intent) in intents {
            state.resume(sequence);
            match intent {
                Intent::Open { busy: Some(name), .. } => state.make_busy(name),
                Intent::Shard { dir } => state.make_busy_dir(dir),
                Intent::Open { busy: None, .. } | Intent::Decided { .. } => (),
            }
        }
        Ok(Arc::new_cyclic(|this| Self {
            home,
            parts,
            this: this.clone(),
            state: Mutex::new(state),
            first,
            allocator: InodeAllocator::new(first),
            inodes,
            contents: Locks::default(),
            unfinished: Mutex::new(unfinished),
        }))
    }

    fn start(home: HomeId, parts: &MetaParts) -> Result<u16> {
        let cluster = &parts.cluster;
        let root = Some(InodeId::ROOT).filter(|&root| cluster.inode_home(root) == home);
        let nodes = cluster.nodes();
        let owners = nodes.iter().map(|info| info.id);
        let local = owners.filter(|&owner| cluster.home_at(owner) == home);
        let local = local.map(|owner| InodeId::local_root(owner, cluster.device_of(owner)));
        let roots = root.into_iter().chain(local).collect();
        let pinned = cluster.device_nodes().iter().copied();
        let pinned = pinned.filter(|&node| cluster.home_at(node) == home).collect();
        let (count, founders) = (cluster.map().count() as u32, cluster.founders());
        let share = Share { home, count, pinned, founders };
        let (uid, gid) = parts.owner;
        let command = LogCommand::Start { roots, share, uid, gid, now: parts.runtime.now() };
        match execute(&parts.ledger, home, &command)?.outcome {
            Outcome::Started { incarnation } => Ok(incarnation),
            other => Err(Fault::io(format!("unexpected result of the start record: {other:?}"))),
        }
    }

    async fn serve(
        &self,
        from: NodeId,
        call: Option<NumberedCall>,
        request: MetaRequest,
    ) -> Result<MetaReply> {
        match request {
            MetaRequest::Lookup { entry, sharded, view } => {
                self.lookup(&entry, sharded, view.then_some(from)).await
            }
            MetaRequest::GetAttr { inode } => self.get_attr(inode, from),
            MetaRequest::GetContent { inode } => self.get_content(inode),
            MetaRequest::DirStat { dir } => self.dir_stat(dir).await.map(MetaReply::DirStat),
            MetaRequest::ReadDir { dir, after, limit, sharded } => {
                self.read_dir(dir, after, limit, sharded).await
            }
            MetaRequest::Parent { inode } => self.parent(inode),
            MetaRequest::ReadLink { inode } => self.read_link(inode),
            MetaRequest::Open { inode, opener } => self.open_inode(inode, opener),
            MetaRequest::Spill { inode } => self.spill(inode).await,
            MetaRequest::GetXattr { inode, name } => self.get_xattr(inode, &name),
            MetaRequest::ListXattr { inode } => self.list_xattr(inode),
            MetaRequest::Execute(command) => {
                self.parts.ledger.wait_for_space().await?;
                let (inode, access) = (command.changes(), command.changes_access());
                let reply = match self.result_of(call, &command).await? {
                    Some(reply) => Ok(reply),
                    None => self.command(command, from, call).await,
                };
                if let Some(inode) = inode {
                    self.revoke_changed(inode, from, access, &reply).await;
                }
                reply
            }
            MetaRequest::Names { operation, sharded, now } => {
                self.parts.ledger.wait_for_space().await?;
                self.names(operation, sharded, (from, call), now).await
            }
            MetaRequest::Close { .. } | MetaRequest::Sync { .. } => Err(self.misrouted("all homes")),
        }
    }

    async fn command(&self, command: Command, from: NodeId, call: Option<NumberedCall>) -> Result<MetaReply> {
        match &command {
            Command::Create { .. } => self.create(command, from, call).await,
            &Command::SetAttr { inode, .. } => self.set_attr(inode, command, call).await,
            &Command::Reserve { inode, .. } => self.reserve(inode, command, call).await,
            Command::Commit { inode, .. } => {
                self.check_inode(*inode)?;
                let reply = self.change_inode(command, call)?;
                if let MetaReply::Node(Node { attr, .. }) = &reply
                    && !attr.inline
                {
                    self.parts.holders.changed(attr.inode, attr.generation, from);
                }
                Ok(reply)
            }
            Command::WriteInline { inode, .. }
            | Command::SetXattr { inode, .. }
            | Command::RemoveXattr { inode, .. } => {
                self.check_inode(*inode)?;
                self.change_inode(command, call)
            }
            Command::Step { .. } => self.foreign_step(command).await,
            Command::SetDirTime { .. } => self.set_dir_time(command).await,
        }
    }

    /// Logs and applies a command. The caller locks the state for commands that change names or links.
    fn execute(&self, command: &LogCommand) -> Result<Applied> {
        let applied = execute(&self.parts.ledger, self.home, command)?;
        for (count, change) in self.inodes.iter().zip(applied.inodes) {
            if change != 0 {
                count.fetch_add(change as u64, Ordering::Relaxed);
            }
        }
        Ok(applied)
    }

    /// Runs `query` on the records of the home, as [`Ledger::read`].
    fn query<T>(&self, query: impl FnOnce(&dyn ReadTable) -> Result<T>) -> Result<T> {
        self.parts.ledger.read(|table| query(&HomeTable::new(self.home, table)))
    }

    /// Starts the tasks that a change requires: truncations of units, and sharding.
    fn follow(&self, applied: &Applied) {
        for &(inode, truncation) in &applied.truncations {
            if truncation.size == 0 {
                self.parts.holders.removed(inode);
            }
            drop(self.truncate_units(inode, truncation));
        }
        if let Some((dir, entries)) = applied.grown {
            self.shard_if_crowded(dir, entries);
        }
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(&self, task: impl FnOnce(Weak<Self>) -> F) {
        self.parts.runtime.spawn(task(self.this.clone()));
    }

    /// Waits until no pending operation changes a name of `names`, then runs `change` with the state locked.
    async fn when_free<T>(
        &self,
        names: &[&EntryName],
        mut change: impl FnMut(&mut State) -> Result<T>,
    ) -> Result<T> {
        loop {
            let busy = {
                let mut state = self.state.lock();
                match names.iter().find_map(|name| state.wait_name(name)) {
                    None => return change(&mut state),
                    Some(busy) => busy,
                }
            };
            self.wait(busy).await?;
        }
    }

    async fn when_free_dir(&self, dir: InodeId) -> Result<()> {
        loop {
            let Some(busy) = self.state.lock().wait_dir(dir) else { return Ok(()) };
            self.wait(busy).await?;
        }
    }

    async fn wait(&self, busy: Promise<()>) -> Result<()> {
        self.parts.runtime.timeout(BUSY_TIME_LIMIT, busy).await.ok_or_else(|| {
            let problem = "a pending operation on the name waits for nodes that cannot be reached; retry \
                           when they are reachable";
            Fault::new(Errno::ETIMEDOUT, problem)
        })
    }

    /// The home that has an inode's record.
    fn home_of(&self, inode: InodeId) -> HomeId {
        self.parts.cluster.inode_home(inode)
    }

    fn check_inode(&self, inode: InodeId) -> Result<()> {
        if self.home_of(inode) == self.home { Ok(()) } else { Err(self.misrouted(inode)) }
    }

    /// Returns whether `dir` is sharded (`sharded`), if this home knows that the sender is wrong about it.
    fn correct_sharding(
        &self,
        dir: InodeId,
        offset: Option<DirOffset>,
        sharded: bool,
    ) -> Result<Option<bool>> {
        let cluster = &self.parts.cluster;
        let is_home = cluster.children_home(dir) == self.home;
        if is_home {
            let known = self.query(|names| table::directory(names, dir))?;
            let is_sharded = known.is_some_and(|children| children.sharded);
            if is_sharded != sharded {
                return Ok(Some(is_sharded));
            }
        }
        let right = match offset {
            Some(offset) => cluster.entry_home(dir, offset, sharded) == self.home,
            None => is_home || sharded && dir.pinned_node().is_none(),
        };
        if right { Ok(None) } else { Err(self.misrouted(format_args!("entries of directory {dir}"))) }
    }

    fn misrouted(&self, what: impl std::fmt::Display) -> Fault {
        Fault::new(Errno::EPROTO, format!("{} got a request for {what}, which it does not have", self.home))
    }

    /// Sends a request to the metadata service of a home, which may be this one, or to those of all homes of a node.
    fn ask(&self, to: impl Into<Destination>, request: MetaRequest) -> BoxFuture<'_, Result<MetaReply>> {
        let to = to.into();
        Box::pin(async move {
            match self.call(to, Request::Meta(request), None).await? {
                Reply::Meta(reply) => Ok(reply),
                other => Err(unexpected(to, &other)),
            }
        })
    }

    /// Sends a request to all homes of each node. Returns the replies of the nodes.
    async fn ask_all(&self, request: MetaRequest) -> Result<Vec<MetaReply>> {
        let ask = |map: Arc<HomeMap>| {
            let ask = |&node| self.ask(Destination::Primary(node, map.epoch), request.clone());
            join_calls(map.nodes().iter().map(ask).collect::<Vec<_>>())
        };
        under_one_map(&self.parts.cluster, ask).await
    }

    async fn ask_unit(&self, to: Destination, request: UnitRequest, payload: Option<Payload>) -> Result<()> {
        match self.call(to, Request::Unit(request), payload).await? {
            Reply::Unit(_) => Ok(()),
            other => Err(unexpected(to, &other)),
        }
    }

    async fn call(&self, to: Destination, request: Request, payload: Option<Payload>) -> Result<Reply> {
        let rpc = self.parts.rpc.upgrade();
        let rpc = rpc.ok_or_else(|| Fault::new(Errno::EHOSTDOWN, "this agent is shutting down"))?;
        Ok(rpc.call(to, request, payload, None).await?.reply)
    }
}

/// Sleeps without keeping the service alive, and doubles the pause.
async fn back_off(service: Arc<MetaService>, pause: &mut Duration) {
    let sleep = service.parts.runtime.sleep(*pause);
    drop(service);
    sleep.await;
    *pause = (*pause * 2).min(RETRY_TIME_MAX);
}

fn execute(ledger: &Ledger, home: HomeId, command: &LogCommand) -> Result<Applied> {
    let record = log_record(home, command)?;
    ledger.execute_at(home, RecordKind::Names, &record, |names| {
        apply(&mut HomeTable::new(home, names), command)
    })
}

fn unexpected(from: impl Into<Destination>, reply: &(impl std::fmt::Debug + ?Sized)) -> Fault {
    let from = from.into();
    Fault::new(Errno::EPROTO, format!("{from} sent an unexpected reply to a metadata request: {reply:?}"))
}
