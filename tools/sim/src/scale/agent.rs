//! A small agent: the product's code that selects sources for reads, without its stores.
//!
//! The client's data engine, the cache table, and the messages are the product's. The bytes of a unit follow from its number. A home
//! reads each unit from the shared file system once, with a delay. An agent sends one reply after the other, so that an agent with
//! many requests is slow.

use super::report::Load;
use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tameike_client::data::{DataEngine, FileVersion, Home};
use tameike_client::vfs::{OpenMode, ReadBytes};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::cache::{CacheReply, CacheRequest, CacheState, Stamp};
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Cluster, Errno, Fault, Generation, InodeId, Layout, NodeId, Result, UnitId};
use tameike_fabric::{Carried, PeerEvent, RequestContext, Rpc, Service, Target};
use tameike_io::{Payload, Pool, Runtime};
use tameike_server::holders::CacheTable;

/// Service time of an open at its home.
const OPEN_TIME: Duration = Duration::from_micros(5);
/// Service time of a reply without data.
const REPLY_TIME: Duration = Duration::from_micros(2);
/// Time to send a unit, at 10 GB/s.
const UNIT_TIME: Duration = Duration::from_micros(100);
/// Time to read a unit from the shared file system.
const SHARED_TIME: Duration = Duration::from_millis(5);
/// The byte range that a read of a unit requests: in its middle, so that the client does not detect sequential access and read ahead.
const PIECE: Range<u32> = UNIT_SIZE as u32 / 2..UNIT_SIZE as u32 / 2 + 4096;

pub(super) struct Parts {
    pub cluster: Arc<Cluster>,
    pub runtime: Runtime,
    pub rpc: Arc<dyn Rpc>,
    /// The engine's frames.
    pub own: Pool,
    /// Frames for replies.
    pub answers: Pool,
}

pub(super) struct Agent {
    parts: Parts,
    engine: Arc<DataEngine>,
    table: CacheTable,
    pub load: Mutex<Load>,
    /// When it will have sent all pending replies.
    free_at: Mutex<Duration>,
    /// When each unit arrives from the shared file system.
    loaded: Mutex<BTreeMap<UnitId, Duration>>,
}

fn content(unit: UnitId) -> [u8; 16] {
    (u128::from(unit.inode.0) << 64 | u128::from(unit.index)).to_le_bytes()
}

impl Agent {
    pub fn new(parts: Parts) -> Arc<Self> {
        let Parts { cluster, runtime, rpc, own, .. } = &parts;
        let engine = DataEngine::new(runtime.clone(), cluster.clone(), rpc.clone(), own.clone(), None);
        let table = CacheTable::new();
        let (load, free_at, loaded) = Default::default();
        Arc::new(Self { parts, engine, table, load, free_at, loaded })
    }

    /// Queues work of this duration behind all earlier work, and waits until it is done.
    async fn work(&self, time: Duration) {
        let done = {
            let mut free_at = self.free_at.lock();
            *free_at = (*free_at).max(self.parts.runtime.clock.monotonic()) + time;
            *free_at
        };
        self.until(done).await;
    }

    async fn until(&self, then: Duration) {
        let now = self.parts.runtime.clock.monotonic();
        if then > now {
            self.parts.runtime.sleep(then - now).await;
        }
    }

    async fn open(&self, from: NodeId, inode: InodeId) -> (Reply, Carried) {
        self.load.lock().opens += 1;
        let holders = self.table.opened(inode, Generation(1), from);
        self.work(OPEN_TIME).await;
        let state = CacheState { generation: Generation(1), newer: None, sparse: false, removing: false };
        (Reply::Cache(CacheReply::Opened { state, holders }), Carried::Nothing)
    }

    async fn read_home(&self, unit: UnitId, (offset, length): (u32, u32)) -> (Reply, Carried) {
        let there = {
            let now = self.parts.runtime.clock.monotonic();
            *self.loaded.lock().entry(unit).or_insert_with(|| {
                self.load.lock().shared += 1;
                now + SHARED_TIME
            })
        };
        self.until(there).await;
        self.work(UNIT_TIME).await;
        self.load.lock().as_home += 1;
        let mut frame = self.parts.answers.take().await;
        let Some(at) = PIECE.start.checked_sub(offset).filter(|at| at + PIECE.len() as u32 <= length) else {
            let fault = Fault::new(Errno::EPROTO, "the read does not cover the piece");
            return (Reply::Fault(fault), Carried::Nothing);
        };
        frame[at as usize..][..16].copy_from_slice(&content(unit));
        (Reply::Unit(UnitReply::Read), Carried::Payload(Payload::new(Arc::new(frame), 0..length)))
    }

    async fn read_held(&self, unit: UnitId, range: (u32, u32), generation: Generation) -> (Reply, Carried) {
        let (reply, bytes) = self.engine.serve_peer(unit, &(range.0..range.0 + range.1), generation);
        let is_sent = matches!(reply, ClientReply::Read);
        self.load.lock().as_holder += u64::from(is_sent);
        self.load.lock().refused += u64::from(!is_sent);
        self.work(if is_sent { UNIT_TIME } else { REPLY_TIME }).await;
        (Reply::Client(reply), bytes.map_or(Carried::Nothing, Carried::Payload))
    }

    /// Opens a file, reads its units in this order, and closes it.
    pub async fn read(&self, inode: InodeId, units: &[u64], size: u64) -> Result<()> {
        let home = self.parts.cluster.inode_home(inode);
        let holder_outcomes = self.engine.reports().take(self.parts.cluster.primary(home));
        let stamp = Stamp { size, ..Stamp::default() };
        let open =
            CacheRequest::Open { inode, path: Vec::new(), stamp, holder_outcomes, holds: true, made: false };
        let answer = self.parts.rpc.call(home.into(), Request::Cache(open), None, None).await?;
        let Reply::Cache(CacheReply::Opened { state, holders }) = answer.reply else {
            return Err(Fault::new(Errno::EPROTO, "unexpected reply to an open"));
        };
        let version = FileVersion { size, generation: state.generation, holders, ..FileVersion::default() };
        let mode = OpenMode { read: true, ..OpenMode::default() };
        let behind = Home::Shared(Arc::default());
        let (file, _) = self.engine.open(inode, Layout::Striped, behind, version, mode);
        for &index in units {
            let unit = UnitId { inode, index };
            let at = unit.start() + u64::from(PIECE.start);
            let bytes = match self.engine.read(&file, at, PIECE.len() as u32).await? {
                ReadBytes::Frame(bytes) => bytes[..16].to_vec(),
                ReadBytes::Memory(bytes) => bytes[..16].to_vec(),
            };
            if bytes != content(unit) {
                return Err(Fault::io(format!("{unit:?}: the read returned wrong bytes")));
            }
        }
        self.engine.close(&file);
        Ok(())
    }
}

/// Dispatches requests to the agent, once it exists.
#[derive(Default)]
pub(super) struct Dispatcher(OnceLock<Weak<Agent>>);

impl Dispatcher {
    pub fn set(&self, agent: &Arc<Agent>) {
        // Set only once.
        let _ = self.0.set(Arc::downgrade(agent));
    }

    fn agent(&self) -> Option<Arc<Agent>> {
        self.0.get()?.upgrade()
    }
}

impl Service for Dispatcher {
    fn serve(
        &self,
        RequestContext { from, .. }: RequestContext,
        request: Request,
        _: Option<Payload>,
        _: Target,
    ) -> BoxFuture<'static, (Reply, Carried)> {
        let Some(agent) = self.agent() else {
            return async { (Reply::Fault(Errno::EAGAIN.into()), Carried::Nothing) }.boxed();
        };
        async move {
            match request {
                Request::Cache(CacheRequest::Open { inode, holder_outcomes, .. }) => {
                    agent.table.add_outcomes(&holder_outcomes);
                    agent.open(from, inode).await
                }
                Request::Unit(UnitRequest::Read { unit, offset, length, .. })
                    if length as usize <= UNIT_SIZE =>
                {
                    agent.read_home(unit, (offset, length)).await
                }
                Request::Client(ClientRequest::ReadHeld { unit, offset, length, generation }) => {
                    agent.read_held(unit, (offset, length), generation).await
                }
                _ => (Reply::Fault(Errno::EPROTO.into()), Carried::Nothing),
            }
        }
        .boxed()
    }

    fn peer(&self, peer: NodeId, event: PeerEvent) {
        if let (Some(agent), PeerEvent::Failed) = (self.agent(), event) {
            agent.table.peer_failed(peer);
        }
    }
}
