//! The views of a node, and the frontends that serve them.

use crate::arbiter::Arbiter;
use crate::control::ViewFrontend;
use crate::fuse::{self, FuseFrontend, Tasks, WriteBacklog};
use crate::memory::Memory;
use crate::ring::{self, RingFrameGrants, RingFrontend};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use tameike_client::cache::CacheView;
use tameike_client::data::{AtRest, DataEngine, FrameGranter};
use tameike_client::local::LocalView;
use tameike_client::locks::FileLocks;
use tameike_client::region::Regions;
use tameike_client::shared::SharedView;
use tameike_client::vfs::{Locking, Vfs};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::admin::{Counter, Space};
use tameike_core::wire::client::ClientReply;
use tameike_core::wire::lock::{FileLock, LockOwner};
use tameike_core::wire::reclaim::Reclaim;
use tameike_core::{Cluster, Errno, Fault, Generation, HomeId, InodeId, NodeId, Result, UnitId, View};
use tameike_fabric::{MapLease, PeerEvent, Rpc};
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
    /// Shared memory regions in files of the job-shared view.
    regions: Arc<Regions>,
    /// Cached data of the job-shared view (with remote node-local files) and of the cache view.
    data: [Option<Arc<DataEngine>>; 2],
    shared_backlog: WriteBacklog,
    cache_backlog: WriteBacklog,
    /// Frames of the job-shared view.
    frames: Pool,
    activity: Option<Arc<Activity>>,
    /// In the order of [`View::ALL`].
    arbiters: [Arc<Arbiter>; 3],
}

/// A mounted view with its FUSE device.
struct FuseMount {
    view: View,
    fuse: OwnedFd,
    path: PathBuf,
}

/// Location of the files of a node-local view.
pub enum LocalFiles {
    /// A directory, and its capacity in bytes.
    Directory(Arc<dyn SharedFs>, u64),
    /// A tmpfs that programs use without the agent, which only reads its usage.
    Mounted(Arc<dyn SharedFs>),
    /// The burst-buffer node of the node's group.
    Remote,
}

/// The node-local view; variants as in [`LocalFiles`].
enum Local {
    Directory(Arc<LocalView>),
    Mounted(Arc<dyn SharedFs>),
    /// A separate name space on the burst-buffer node.
    Remote(Arc<SharedView>),
}

impl Views {
    /// Creates the views. `lease` is the lease of the home map; `shared` is the shared file system, if there is a cache view; `activity` counts requests to that view.
    pub fn new(
        runtime: &Runtime,
        (cluster, lease): (&Arc<Cluster>, &Arc<MapLease>),
        rpc: &Arc<dyn Rpc>,
        memory: &Memory,
        local: LocalFiles,
        shared: Option<Arc<dyn SharedFs>>,
        activity: Option<Arc<Activity>>,
    ) -> Self {
        let frame_grants = memory.frame_grants.clone();
        let granter = frame_grants.map(|table| Arc::new(RingFrameGrants(table)) as Arc<dyn FrameGranter>);
        let engine = |pool: &Pool| {
            let (runtime, cluster, rpc) = (runtime.clone(), cluster.clone(), rpc.clone());
            DataEngine::new(runtime, cluster, rpc, pool.clone(), granter.clone())
        };
        let shared_engine = engine(&memory.shared_view);
        let striped = |root| {
            let (cluster, rpc, engine) = (cluster.clone(), rpc.clone(), shared_engine.clone());
            Arc::new(SharedView::new(runtime.clone(), cluster, rpc, engine, root, lease.clone()))
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
        let (shared_backlog, cache_backlog) = (memory.shared_backlog.clone(), memory.cache_backlog.clone());
        let (runtime, shared) = (runtime.clone(), striped(InodeId::ROOT));
        let locks = shared.locks().expect("programs on all nodes lock files of the job-shared view").clone();
        let (cluster, rpc, frames) = (cluster.clone(), rpc.clone(), shared_engine.clone());
        let regions = Regions::new(runtime.clone(), cluster, rpc, frames, locks, memory.regions);
        let arbiters = View::ALL.map(|_| Arbiter::new(runtime.clone(), false));
        let frames = memory.shared_view.clone();
        Self {
            runtime,
            shared,
            local,
            cache,
            regions,
            data,
            shared_backlog,
            cache_backlog,
            frames,
            activity,
            arbiters,
        }
    }

    /// Returns the job-shared view.
    pub fn shared(&self) -> &Arc<SharedView> {
        &self.shared
    }

    /// Returns the shared memory regions.
    pub fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    /// Returns the cache view, if the job has one.
    pub fn cache(&self) -> Option<&Arc<CacheView>> {
        self.cache.as_ref()
    }

    /// Returns space and inodes of the node-local view on this node's device.
    pub fn local_usage(&self) -> Space {
        match &self.local {
            Local::Directory(view) => view.usage(),
            Local::Mounted(tree) => tree.space().map(mounted_usage).unwrap_or_default(),
            Local::Remote(_) => Space::default(),
        }
    }

    /// Revokes leases on an inode that another node has changed or renamed.
    pub fn revoke(&self, inode: InodeId) {
        self.striped().for_each(|view| view.revoke(inode));
    }

    /// Hides from programs what this node could show them under its lease of the home map, which has ended before its time.
    pub fn lease_ended(&self) {
        self.striped().for_each(|view| view.hide_names());
    }

    /// Lets programs use what they see under this node's lease of the home map, which was renewed. `continues` is false if the node did not
    /// have the lease.
    pub fn lease_renewed(&self, continues: bool) {
        self.striped().for_each(|view| view.lease_renewed(continues));
    }

    /// The views whose names are at the homes.
    fn striped(&self) -> impl Iterator<Item = &Arc<SharedView>> {
        let local = match &self.local {
            Local::Remote(view) => Some(view),
            Local::Directory(_) | Local::Mounted(_) => None,
        };
        std::iter::once(&self.shared).chain(local)
    }

    /// Drops what programs and views have cached of names at homes that have moved to other nodes. Call it before [`Self::reclaim`]: the next
    /// primary does not know of the leases of the earlier one.
    pub fn homes_moved(&self, moved: &dyn Fn(HomeId) -> bool) {
        self.striped().for_each(|view| view.homes_moved(moved));
    }

    /// What programs of this node have open and locked at homes that are `wanted`, in messages that name no home as complete. Call it after the
    /// home map has changed.
    pub fn reclaim(&self, wanted: &dyn Fn(HomeId) -> bool) -> Vec<Reclaim> {
        let opens = self.striped().flat_map(|view| view.opens(wanted)).collect();
        let files = self.cache.as_ref().map_or_else(Vec::new, |cache| cache.open_files(wanted));
        let locks = self.locks().flat_map(|locks| locks.held(wanted)).collect();
        Reclaim { complete: Vec::new(), opens, files, locks }.into_parts()
    }

    /// Records that the next primary of a home has given locks of this node to another one.
    pub fn lost_locks(&self, lost: &[(InodeId, FileLock)]) {
        self.locks().for_each(|locks| locks.lost(lost));
    }

    /// Handles a rename of a directory of the shared file system by another node.
    pub fn moved(&self, dir: InodeId, from: Vec<u8>, to: Vec<u8>) -> BoxFuture<'static, ()> {
        let cache = self.cache.clone();
        async move {
            if let Some(cache) = cache {
                cache.moved(dir, &from, &to).await;
            }
        }
        .boxed()
    }

    /// Prepares for the removal of a file's last name on the shared file system by another node. Fails if programs of this node that
    /// have the file open could not continue to use it.
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

    /// Ends a removal that did not take place.
    pub fn kept(&self, inode: InodeId) {
        if let Some(cache) = &self.cache {
            cache.kept(inode);
        }
    }

    /// Returns counters of the sources of read data.
    pub fn counters(&self) -> Vec<Counter> {
        self.data.iter().flatten().flat_map(|data| data.counters()).collect()
    }

    /// Returns the bytes of a file that this node holds in memory.
    pub fn bytes_in_memory(&self, inode: InodeId) -> u64 {
        let data = &self.data[usize::from(inode.is_cached())];
        data.as_ref().map_or(0, |data| data.bytes_in_memory(inode))
    }

    /// Serves a peer read: returns a range of a unit if it is in memory in that generation.
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

    /// Returns the clean data of a view in memory.
    pub fn at_rest(&self, view: View) -> Vec<AtRest> {
        let data = self.data[usize::from(view == View::Cache)].as_ref();
        data.map_or_else(Vec::new, |data| data.at_rest())
    }

    /// Returns the files whose locks a lock owner of this node waits for.
    pub fn lock_waits(&self, owner: LockOwner) -> Vec<InodeId> {
        self.locks().flat_map(|locks| locks.waits_of(owner)).collect()
    }

    /// Reports a state change of another node to the lock clients and the regions.
    pub fn peer(&self, node: NodeId, event: PeerEvent) {
        self.locks().for_each(|locks| locks.peer(node, event));
        self.regions.peer(node, event);
    }

    fn locks(&self) -> impl Iterator<Item = &Arc<FileLocks>> {
        [self.shared.locks(), self.cache.as_ref().and_then(|cache| cache.locks())].into_iter().flatten()
    }

    /// Creates the ring frontend for `views`, in this order; `names` shares their names with programs.
    pub(crate) fn ring_frontend(&self, views: &[View], names: Arc<NameTable>) -> RingFrontend {
        let mut frontend = RingFrontend::new(names);
        for &view in views {
            match (view, &self.local, &self.cache) {
                (View::JobShared, ..) => {
                    frontend.set_regions(self.regions.clone(), self.tasks(view, ring::THREADS_BLOCKED_MAX));
                    self.add_to_ring(&mut frontend, view, &self.shared);
                }
                (View::NodeLocal, Local::Directory(local), _) => self.add_to_ring(&mut frontend, view, local),
                (View::NodeLocal, Local::Remote(local), _) => self.add_to_ring(&mut frontend, view, local),
                (View::Cache, _, Some(cache)) => self.add_to_ring(&mut frontend, view, cache),
                (View::NodeLocal, Local::Mounted(_), _) | (View::Cache, _, None) => {}
            }
        }
        frontend
    }

    fn add_to_ring<V: Vfs>(&self, frontend: &mut RingFrontend, view: View, vfs: &Arc<V>) {
        let tasks = self.tasks(view, ring::THREADS_BLOCKED_MAX);
        frontend.add(vfs.clone(), tasks, self.backlog(view).clone(), self.arbiters[view.index()].clone());
    }

    /// Returns the backlog of a view. Writes to the node-local view never wait, or for frames of the job-shared view.
    fn backlog(&self, view: View) -> &WriteBacklog {
        match view {
            View::JobShared | View::NodeLocal => &self.shared_backlog,
            View::Cache => &self.cache_backlog,
        }
    }

    /// Only requests to the cache view count as activity here: services see those of the other views.
    fn tasks(&self, view: View, blocked_max: usize) -> Tasks {
        let activity = self.activity.clone().filter(|_| view == View::Cache);
        Tasks::new(self.runtime.clone(), activity, blocked_max)
    }

    /// Starts threads that serve a mounted view until it is unmounted. Does nothing for a view without a FUSE device. With
    /// `coherent_mmap`, mappings and calls may write to one page at the same time.
    pub fn serve(&self, frontend: ViewFrontend, coherent_mmap: bool) -> Result<()> {
        let ViewFrontend { view, fuse: Some(fuse), path } = frontend else { return Ok(()) };
        let mount = FuseMount { view, fuse, path };
        match mount.view {
            View::JobShared => self.serve_view(&self.shared, mount, coherent_mmap),
            View::NodeLocal => match &self.local {
                Local::Directory(view) => self.serve_view(view, mount, coherent_mmap),
                Local::Remote(view) => self.serve_view(view, mount, coherent_mmap),
                Local::Mounted(_) => {
                    Err(Fault::new(Errno::EINVAL, "the kernel serves the node-local view in memory"))
                }
            },
            View::Cache => match &self.cache {
                Some(view) => self.serve_view(view, mount, coherent_mmap),
                None => Err(Fault::new(Errno::EINVAL, "a cache view needs a shared directory")),
            },
        }
    }

    /// Creates a frontend of the job-shared view for one of several mounts. `view` shows it to the programs of the mount.
    pub(crate) fn mount_frontend<V: Vfs>(
        &self,
        view: Arc<V>,
        (arbiter, blocked_max): (Arc<Arbiter>, usize),
    ) -> FuseFrontend<V> {
        let tasks = self.tasks(View::JobShared, blocked_max);
        FuseFrontend::new(tasks, view, self.shared_backlog.clone(), arbiter)
    }

    /// Number of frames of the job-shared view.
    pub(crate) fn frames(&self) -> u32 {
        self.frames.share()
    }

    fn serve_view<V: Vfs>(&self, view: &Arc<V>, mount: FuseMount, coherent_mmap: bool) -> Result<()> {
        let tasks = self.tasks(mount.view, fuse::THREADS_BLOCKED_MAX);
        let (backlog, arbiter) =
            (self.backlog(mount.view).clone(), self.arbiters[mount.view.index()].clone());
        let mut frontend = FuseFrontend::new(tasks, view.clone(), backlog, arbiter);
        frontend.coherent_mmap = coherent_mmap;
        // io_uring has one thread per core. Requests to the other views mostly block it in calls to the file system below.
        let rings = (mount.view == View::JobShared).then(|| self.frames.clone());
        let path = mount.path;
        let name = format!("tameike-{}", mount.view.as_str());
        process::start_thread(&name, move || {
            if let Err(fault) = fuse::serve(frontend, mount.fuse, rings) {
                log::error!("{}: {fault}", path.display());
            }
        })
        .map(drop)
    }
}

/// Returns the usage of a file system that holds only the files of a view.
fn mounted_usage(space: TreeSpace) -> Space {
    Space {
        capacity: space.total,
        used: space.total - space.free,
        dirty: 0,
        inodes: space.inodes - space.inodes_free,
    }
}
