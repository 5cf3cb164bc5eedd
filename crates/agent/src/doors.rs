//! The views of a node, behind its doors.

use crate::control::ViewDoor;
use crate::custody::Custody;
use crate::fuse::{self, FuseDoor, Tasks, WaitingRoom};
use crate::memory::Memory;
use crate::ring::{self, RingDoor, RingLender};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use tameike_client::cache::CacheView;
use tameike_client::data::{AtRest, DataEngine, FrameLender};
use tameike_client::local::LocalView;
use tameike_client::locks::FileLocks;
use tameike_client::shared::SharedView;
use tameike_client::vfs::{Locking, Vfs};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::admin::{Counter, Space};
use tameike_core::wire::client::ClientReply;
use tameike_core::wire::lock::LockOwner;
use tameike_core::{Cluster, Errno, Fault, Generation, InodeId, NodeId, Result, UnitId, View};
use tameike_fabric::{PeerEvent, Rpc};
use tameike_io::os::process;
use tameike_io::shared::{SharedFs, TreeSpace};
use tameike_io::{Payload, Pool, Runtime};
use tameike_ring::server::NameTable;
use tameike_server::cache::Activity;

/// The views of one node.
pub struct Views {
    runtime: Runtime,
    shared: Arc<SharedView>,
    local: Local,
    cache: Option<Arc<CacheView>>,
    /// What this node has in memory of files in units, and of cached ones.
    data: [Option<Arc<DataEngine>>; 2],
    shared_waiting: WaitingRoom,
    cache_waiting: WaitingRoom,
    /// Of the job-shared view.
    frames: Pool,
    activity: Option<Arc<Activity>>,
    /// In the order of [`View::ALL`].
    custody: [Arc<Custody>; 3],
}

/// A view to be served, and where.
struct Door {
    view: View,
    fuse: OwnedFd,
    path: PathBuf,
}

/// Where the files of a node-local view are.
pub enum LocalFiles {
    /// In this directory, of whose file system they may take so many bytes.
    Directory(Arc<dyn SharedFs>, u64),
    /// In a file system of the kernel's own that programs use without the agent; here it is only asked how full it is.
    Mounted(Arc<dyn SharedFs>),
    /// On the burst-buffer node of the node's group (BB-2).
    Remote,
}

enum Local {
    /// The node's own directory.
    Directory(Arc<LocalView>),
    /// A file system of its own.
    Mounted(Arc<dyn SharedFs>),
    /// A name space of its own on the burst-buffer node of its group.
    Remote(Arc<SharedView>),
}

impl Views {
    /// The views of this node. `shared` is the shared file system, if there is a cache view, and `activity` where its
    /// requests are seen.
    pub fn new(
        runtime: &Runtime,
        cluster: &Arc<Cluster>,
        rpc: &Arc<dyn Rpc>,
        memory: &Memory,
        local: LocalFiles,
        shared: Option<Arc<dyn SharedFs>>,
        activity: Option<Arc<Activity>>,
    ) -> Self {
        let lent = memory.lent.clone();
        let lender = lent.map(|table| Arc::new(RingLender(table)) as Arc<dyn FrameLender>);
        let engine = |pool: &Pool| {
            let (runtime, cluster, rpc) = (runtime.clone(), cluster.clone(), rpc.clone());
            DataEngine::new(runtime, cluster, rpc, pool.clone(), lender.clone())
        };
        let shared_engine = engine(&memory.shared_view);
        let striped = |root| {
            let (cluster, rpc, engine) = (cluster.clone(), rpc.clone(), shared_engine.clone());
            Arc::new(SharedView::new(runtime.clone(), cluster, rpc, engine, root))
        };
        let local = match local {
            LocalFiles::Directory(tree, capacity) => {
                Local::Directory(Arc::new(LocalView::new(runtime.clone(), tree, capacity)))
            }
            LocalFiles::Mounted(tree) => Local::Mounted(tree),
            LocalFiles::Remote => {
                let owner = rpc.local();
                Local::Remote(striped(InodeId::local_root(owner, cluster.device_of(owner))))
            }
        };
        let data = [Some(shared_engine.clone()), shared.is_some().then(|| engine(&memory.cache_view))];
        let cache = shared.zip(data[1].clone()).map(|(tree, engine)| {
            let (cluster, rpc) = (cluster.clone(), rpc.clone());
            Arc::new(CacheView::new(runtime.clone(), cluster, rpc, engine, tree))
        });
        let (shared_waiting, cache_waiting) = (memory.shared_waiting.clone(), memory.cache_waiting.clone());
        let (runtime, shared) = (runtime.clone(), striped(InodeId::ROOT));
        let custody = View::ALL.map(|_| Custody::new(runtime.clone()));
        let frames = memory.shared_view.clone();
        Self { runtime, shared, local, cache, data, shared_waiting, cache_waiting, frames, activity, custody }
    }

    /// The job-shared view.
    pub fn shared(&self) -> &Arc<SharedView> {
        &self.shared
    }

    /// The cache view, if there is one.
    pub fn cache(&self) -> Option<&Arc<CacheView>> {
        self.cache.as_ref()
    }

    /// Space and inodes in use in the node-local view, as far as this node's own device has them.
    pub fn local_usage(&self) -> Space {
        match &self.local {
            Local::Directory(view) => view.usage(),
            Local::Mounted(tree) => tree.space().map(mounted_usage).unwrap_or_default(),
            Local::Remote(_) => Space::default(),
        }
    }

    /// Another node has changed an inode, or its name.
    pub fn revoke(&self, inode: InodeId) {
        self.shared.revoke(inode);
        if let Local::Remote(view) = &self.local {
            view.revoke(inode);
        }
    }

    /// Another node has renamed a directory of the shared file system.
    pub fn moved(&self, dir: InodeId, from: Vec<u8>, to: Vec<u8>) -> BoxFuture<'static, ()> {
        let cache = self.cache.clone();
        async move {
            if let Some(cache) = cache {
                cache.moved(dir, &from, &to).await;
            }
        }
        .boxed()
    }

    /// A file of the shared file system is about to lose its last name by another node.
    ///
    /// # Errors
    /// When who has it open here could not go on with it.
    pub fn removing(&self, inode: InodeId) -> BoxFuture<'static, Result<()>> {
        let cache = self.cache.clone();
        async move {
            match cache {
                Some(cache) => cache.removing(inode).await,
                None => Ok(()),
            }
        }
        .boxed()
    }

    /// It has kept its name.
    pub fn kept(&self, inode: InodeId) {
        if let Some(cache) = &self.cache {
            cache.kept(inode);
        }
    }

    /// Where the bytes of reads came from, by view.
    pub fn counters(&self) -> Vec<Counter> {
        self.data.iter().flatten().flat_map(|data| data.counters()).collect()
    }

    /// Bytes of a file in memory of this node.
    pub fn bytes_in_memory(&self, inode: InodeId) -> u64 {
        let data = &self.data[usize::from(inode.is_cached())];
        data.as_ref().map_or(0, |data| data.bytes_in_memory(inode))
    }

    /// Bytes of a unit that another node asks for, if this one has them in memory in that version of the file.
    pub fn held(
        &self,
        unit: UnitId,
        (offset, length): (u32, u32),
        generation: Generation,
    ) -> (ClientReply, Option<Payload>) {
        let data = &self.data[usize::from(unit.inode.is_cached())];
        let end = offset.checked_add(length).filter(|end| *end as usize <= UNIT_SIZE);
        match (data, end) {
            (Some(data), Some(end)) => data.serve_peer(unit, &(offset..end), generation),
            (None, _) | (_, None) => (ClientReply::NotHeld, None),
        }
    }

    /// Bytes of a view's files that are in memory as their homes have them.
    pub fn at_rest(&self, view: View) -> Vec<AtRest> {
        let data = self.data[usize::from(view == View::Cache)].as_ref();
        data.map_or_else(Vec::new, |data| data.at_rest())
    }

    /// For locks of which files an owner of this node waits.
    pub fn lock_waits(&self, owner: LockOwner) -> Vec<InodeId> {
        self.locks().flat_map(|locks| locks.waits_of(owner)).collect()
    }

    /// Another node's agent has come or gone.
    pub fn peer(&self, node: NodeId, event: PeerEvent) {
        self.locks().for_each(|locks| locks.peer(node, event));
    }

    fn locks(&self) -> impl Iterator<Item = &Arc<FileLocks>> {
        [self.shared.locks(), self.cache.as_ref().and_then(|cache| cache.locks())].into_iter().flatten()
    }

    /// These views behind the ring, in this order. Programs are shown their names in a table.
    pub(crate) fn ring_door(&self, views: &[View], names: Arc<NameTable>) -> RingDoor {
        let mut door = RingDoor::new(names);
        for &view in views {
            match (view, &self.local, &self.cache) {
                (View::JobShared, ..) => self.add_to_ring(&mut door, view, &self.shared),
                (View::NodeLocal, Local::Directory(local), _) => self.add_to_ring(&mut door, view, local),
                (View::NodeLocal, Local::Remote(local), _) => self.add_to_ring(&mut door, view, local),
                (View::Cache, _, Some(cache)) => self.add_to_ring(&mut door, view, cache),
                (View::NodeLocal, Local::Mounted(_), _) | (View::Cache, _, None) => {}
            }
        }
        door
    }

    fn add_to_ring<V: Vfs>(&self, door: &mut RingDoor, view: View, vfs: &Arc<V>) {
        let tasks = self.tasks(view, ring::THREADS_LENT_MAX);
        door.add(vfs.clone(), tasks, self.waiting(view).clone(), self.custody[view.index()].clone());
    }

    /// Where writes of a view wait. The node-local view either never waits, or for the frames of the job-shared view.
    fn waiting(&self, view: View) -> &WaitingRoom {
        match view {
            View::JobShared | View::NodeLocal => &self.shared_waiting,
            View::Cache => &self.cache_waiting,
        }
    }

    fn tasks(&self, view: View, lent_max: usize) -> Tasks {
        let activity = self.activity.clone().filter(|_| view == View::Cache);
        Tasks::new(self.runtime.clone(), activity, lent_max)
    }

    /// Serves a mounted view on threads of its own, until it is unmounted, if it needs it. With `coherent_mmap` a mapping and
    /// calls may write to one page at the same time.
    ///
    /// # Errors
    /// When a thread cannot be started, or there is no such view.
    pub fn serve(&self, door: ViewDoor, coherent_mmap: bool) -> Result<()> {
        let ViewDoor { view, fuse: Some(fuse), path } = door else { return Ok(()) };
        let door = Door { view, fuse, path };
        match door.view {
            View::JobShared => self.serve_view(&self.shared, door, coherent_mmap),
            View::NodeLocal => match &self.local {
                Local::Directory(view) => self.serve_view(view, door, coherent_mmap),
                Local::Remote(view) => self.serve_view(view, door, coherent_mmap),
                Local::Mounted(_) => Err(Fault::new(Errno::EINVAL, "the node-local view is the kernel's")),
            },
            View::Cache => match &self.cache {
                Some(view) => self.serve_view(view, door, coherent_mmap),
                None => Err(Fault::new(Errno::EINVAL, "a cache view needs a shared directory")),
            },
        }
    }

    fn serve_view<V: Vfs>(&self, view: &Arc<V>, door: Door, coherent_mmap: bool) -> Result<()> {
        let tasks = self.tasks(door.view, fuse::THREADS_LENT_MAX);
        let (waiting, custody) = (self.waiting(door.view).clone(), self.custody[door.view.index()].clone());
        let mut fuse_door = FuseDoor::new(tasks, view.clone(), waiting, custody);
        fuse_door.coherent_mmap = coherent_mmap;
        // Most requests to the others are calls to a file system below, which hold up the thread: a ring has but one.
        let rings = (door.view == View::JobShared).then(|| self.frames.clone());
        let path = door.path;
        let name = format!("tameike-{}", door.view.as_str());
        process::start_thread(&name, move || {
            if let Err(fault) = fuse::serve(fuse_door, door.fuse, rings) {
                log::error!("{}: {fault}", path.display());
            }
        })
        .map(drop)
    }
}

/// What of a file system that has nothing but the files of a view is in use.
fn mounted_usage(space: TreeSpace) -> Space {
    Space {
        capacity: space.total,
        used: space.total - space.free,
        dirty: 0,
        inodes: space.inodes - space.inodes_free,
    }
}
