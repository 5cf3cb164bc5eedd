//! The shared directory of a node merged with its packed files, and the packer if this node is it.
//!
//! The packer is the node that serves [`PACKER_HOME`]. If homes have replicas, another node may become it while the job runs, and opens the
//! container at the first request.

mod kept;
mod tenure;

use crate::control::{Aggregate, AggregateChoice, PROGRESS_INTERVAL};
use kept::KeptFiles;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use tameike_core::wire::admin::Storm;
use tameike_core::wire::pack::{KeptPart, PACKED_BYTES_MAX, PACKER_HOME, PackReply, PackRequest};
use tameike_core::{Cluster, Errno, Fault, NodeId, Result};
use tameike_fabric::{Destination, MapLease, Rpc};
use tameike_io::Runtime;
use tameike_io::os::process;
use tameike_io::os::runtime::promise;
use tameike_io::shared::{ChangeLog, Hooked, PosixTree, Recorded, SharedFs};
use tameike_packer::{
    CONTAINER, ContainerDir, ExternalDir, OpenContainer, PackHandler, PackedTree, Packer, PackerClient,
    PackerParts,
};
use tenure::{CurrentTenure, Tenure, TenureParts};

/// What the packers of a node need.
struct ServiceParts {
    tenure: TenureParts,
    rpc: Arc<dyn Rpc>,
    plain: Arc<dyn SharedFs>,
    container: PathBuf,
    change_log: Option<Arc<ChangeLog>>,
    /// The directory on the node's device.
    device: Arc<dyn SharedFs>,
    aggregate: Aggregate,
}

/// When a packer is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// When the job begins: no node has a lease, and no agent answers.
    First,
    /// When another node was the packer.
    Next,
    /// The same when the job ends: there are no leases any more, and agents stop.
    Last,
}

/// The packer of this node, from its first request until another node is the packer.
struct Opened {
    packer: Arc<Packer>,
    tenure: Arc<Tenure>,
    kept: Option<Arc<KeptFiles>>,
}

type Job = Box<dyn FnOnce() + Send>;

/// Serves packer requests.
pub struct PackService {
    parts: ServiceParts,
    opened: Mutex<Option<Opened>>,
    current: CurrentTenure,
    /// The thread that keeps files of another packer. Threads for blocking calls may all wait for that packer, which waits for this node.
    keeper: OnceLock<Mutex<Sender<Job>>>,
}

impl PackService {
    fn new(parts: ServiceParts) -> Arc<Self> {
        let (opened, current, keeper) = Default::default();
        let service = Arc::new(Self { parts, opened, current, keeper });
        let weak = Arc::downgrade(&service);
        service.parts.tenure.cluster.watch(move || {
            if let Some(service) = weak.upgrade() {
                service.map_changed();
            }
        });
        service
    }

    fn map_changed(self: Arc<Self>) {
        if !self.parts.tenure.is_packer() {
            self.current.end();
        }
        let runtime = self.parts.tenure.runtime.clone();
        runtime.spawn(async move {
            let runtime = self.parts.tenure.runtime.clone();
            runtime.block(move || self.follow_map()).await;
        });
    }

    /// Drops the packer of a tenure that is over. Otherwise new backups get the packer's files.
    fn follow_map(&self) {
        let ended = self.opened.lock().take_if(|opened| opened.tenure.is_over());
        if let Some(Opened { kept: Some(kept), .. }) = &ended {
            kept.set_sending(false);
        }
        drop(ended);
        let kept = self.opened.lock().as_ref().and_then(|opened| opened.kept.clone());
        match kept.map_or(Ok(()), |kept| kept.send(&[])) {
            Err(fault) if fault.errno != Errno::EREMCHG => {
                log::warn!("a copy of the packer's journal: {fault}")
            }
            _ => {}
        }
    }

    fn open(&self, opening: Opening) -> Result<Opened> {
        let ServiceParts { tenure, rpc, plain, container, change_log, device, aggregate } = &self.parts;
        let (choice, size_max) = (aggregate.choice, aggregate.size_max);
        let is_replicated = tenure.cluster.is_replicated();
        let kept = is_replicated.then(|| KeptFiles::new(tenure.clone(), rpc.clone(), device.clone()));
        let of_tenure = Tenure::begin(tenure.clone(), opening == Opening::Next);
        let container = open_container(container.clone(), must_be_own(*aggregate), change_log.clone());
        let parts = PackerParts {
            plain: plain.clone(),
            container,
            device: device.clone(),
            packs: choice == AggregateChoice::On,
            size_max,
            job: None,
        };
        let parts = match &kept {
            None => parts,
            Some(kept) => {
                self.current.set(&of_tenure);
                // The map may have changed before.
                if opening == Opening::Next && !tenure.is_packer() {
                    return Err(Errno::EREMCHG.into());
                }
                let (hooks, open) = (of_tenure.clone(), parts.container);
                PackerParts {
                    plain: Arc::new(Hooked::new(plain.clone(), of_tenure.clone())),
                    container: Box::new(move || {
                        let ContainerDir { fs, why_not_own } = open()?;
                        Ok(ContainerDir { fs: Arc::new(Hooked::new(fs, hooks.clone())), why_not_own })
                    }),
                    device: Arc::new(Hooked::new(device.clone(), kept.clone())),
                    job: Some(tenure.cluster.job.to_string()),
                    ..parts
                }
            }
        };
        kept.iter().for_each(|kept| kept.set_sending(opening == Opening::Next));
        let takes_over = opening != Opening::First;
        let packer = Arc::new(Packer::new(parts, choice == AggregateChoice::Off, takes_over)?);
        if opening == Opening::First && is_replicated {
            of_tenure.set_needs_lease(true);
            kept.iter().for_each(|kept| kept.set_sending(true));
        }
        Ok(Opened { packer, tenure: of_tenure, kept })
    }

    /// The packer of this node.
    ///
    /// # Errors
    /// `EREMCHG` if another node is the packer; those of the file system.
    fn packer(&self) -> Result<Arc<Packer>> {
        let opened = &mut *self.opened.lock();
        if !self.parts.tenure.is_packer() {
            return Err(Errno::EREMCHG.into());
        }
        if let Some(known) = opened.as_ref().filter(|known| !known.tenure.is_over()) {
            return Ok(known.packer.clone());
        }
        // First: the lock of its lane is free then.
        *opened = None;
        let new = self.open(Opening::Next)?;
        log::info!("this node is the packer now");
        Ok(opened.insert(new).packer.clone())
    }

    /// Serves a request of an agent. Those of this one block the thread that polls, as it waits for the reply: so no thread of a pool waits for
    /// another of the same pool.
    pub async fn serve(self: Arc<Self>, from: NodeId, request: PackRequest) -> Result<PackReply> {
        let TenureParts { runtime, node, .. } = self.parts.tenure.clone();
        let request = match request {
            PackRequest::Keep(part) => return self.keep(from, part).await,
            PackRequest::Read { file, offset, length } => {
                // The largest payload of a reply.
                PackRequest::Read { file, offset, length: length.min(PACKED_BYTES_MAX as u32) }
            }
            other => other,
        };
        let serve = move || self.packer()?.serve(request);
        if from == node { serve() } else { runtime.block(serve).await }
    }

    /// Keeps a part of a file of the packer, of whose home this node has a copy, or gets one.
    async fn keep(self: Arc<Self>, from: NodeId, part: KeptPart) -> Result<PackReply> {
        let (resolver, kept) = promise();
        let service = self.clone();
        let job = move || {
            // A packer of this node reads the files under the lock.
            let _opened = service.opened.lock();
            let is_packer = service.parts.tenure.cluster.primary(PACKER_HOME) == from;
            resolver.resolve(match is_packer {
                true => kept::keep(&*service.parts.device, &part).map(|()| PackReply::Done),
                false => Err(Errno::EREMCHG.into()),
            });
        };
        self.keeper()?
            .lock()
            .send(Box::new(job))
            .map_err(|_| Fault::io("the thread of the journal has ended"))?;
        kept.await
    }

    fn keeper(&self) -> Result<&Mutex<Sender<Job>>> {
        if let Some(keeper) = self.keeper.get() {
            return Ok(keeper);
        }
        let (sender, jobs) = channel::<Job>();
        process::start_thread("keeper", move || jobs.into_iter().for_each(|job| job()))?;
        Ok(self.keeper.get_or_init(|| Mutex::new(sender)))
    }

    /// The packer at the end of the job, which needs no lease any more.
    fn last(&self) -> Result<Arc<Packer>> {
        let opened = &mut *self.opened.lock();
        let last = match opened.take().filter(|known| !known.tenure.is_over()) {
            Some(known) => known,
            None => self.open(Opening::Last)?,
        };
        last.tenure.set_needs_lease(false);
        last.kept.iter().for_each(|kept| kept.set_sending(false));
        Ok(opened.insert(last).packer.clone())
    }
}

/// The shared directory without its packed files.
pub struct Plain<'a> {
    /// Its path.
    pub dir: &'a Path,
    /// Its files.
    pub tree: Arc<dyn SharedFs>,
    /// The log of its changes, if the job has a mirror.
    pub change_log: Option<Arc<ChangeLog>>,
}

/// The node of a [`Packing`].
pub struct OfNode<'a> {
    /// Clock and tasks.
    pub runtime: &'a Runtime,
    /// All nodes of the job.
    pub cluster: &'a Arc<Cluster>,
    /// Calls to other agents.
    pub rpc: Arc<dyn Rpc>,
    /// The lease of the home map.
    pub lease: &'a Arc<MapLease>,
    /// The directory on its device.
    pub device_dir: Option<&'a Path>,
}

/// The shared directory of a node.
pub struct Packing {
    /// The directory with its packed files.
    pub tree: Arc<PackedTree>,
    /// Serves requests, if this node is the packer or may become it.
    pub service: Option<Arc<PackService>>,
}

impl Packing {
    /// Opens the shared directory for a node.
    ///
    /// # Errors
    /// `EBUSY` if another job packs files of the directory; errors of the file system.
    pub fn open(
        Plain { dir, tree: plain, change_log }: Plain<'_>,
        aggregate: Aggregate,
        OfNode { runtime, cluster, rpc, lease, device_dir }: OfNode<'_>,
    ) -> Result<Self> {
        let Aggregate { choice, size_max, by_others } = aggregate;
        // Another node may have created it in an earlier job.
        plain.revalidate(CONTAINER);
        let container = dir.join(String::from_utf8_lossy(CONTAINER).as_ref());
        let is_shown = match plain.stat(CONTAINER) {
            Ok(_) => aggregate.why_ignored(&container).inspect(|why| log::warn!("{why}")).is_none(),
            Err(fault) if fault.errno == Errno::ENOENT => false,
            Err(fault) => return Err(fault),
        };
        let packs = is_shown || choice != AggregateChoice::Off;
        let (node, may_move) = (cluster.primary(PACKER_HOME), cluster.is_replicated());
        let is_packer = node == rpc.local();
        let service = match device_dir.filter(|_| packs && (is_packer || may_move)) {
            Some(device_dir) => {
                let (runtime, cluster, lease) = (runtime.clone(), cluster.clone(), lease.clone());
                let service = PackService::new(ServiceParts {
                    tenure: TenureParts { runtime, cluster, node: rpc.local(), lease },
                    rpc: rpc.clone(),
                    plain: plain.clone(),
                    container: container.clone(),
                    change_log: change_log.clone(),
                    device: Arc::new(PosixTree::open(device_dir)?),
                    aggregate,
                });
                if is_packer {
                    *service.opened.lock() = Some(service.open(Opening::First)?);
                }
                Some(service)
            }
            None => None,
        };
        let opened =
            service.as_ref().and_then(|service| Some(service.opened.lock().as_ref()?.packer.clone()));
        let client = match opened {
            _ if !packs => None,
            _ if may_move => Some(PackerClient::Remote { rpc, to: Destination::Home(PACKER_HOME) }),
            Some(packer) => Some(PackerClient::Local(packer)),
            None => Some(PackerClient::Remote { rpc, to: node.into() }),
        };
        let owner = (process::user(), process::group());
        let packs_storms = choice == AggregateChoice::Auto;
        // Checked again when it is opened: another user may have replaced a container of this user.
        let open = open_container(container, must_be_own(aggregate), change_log);
        let plain = (plain, ExternalDir::new(open, by_others));
        let tree = Arc::new(PackedTree::new(runtime.clone(), plain, client, owner, packs_storms, size_max));
        Ok(Self { tree, service })
    }

    /// Ends packing with the job, on the packer: makes the container durable, and promotes large files, which may take long. `drained` means
    /// that all data is on the shared file system. Calls `progress` as files are promoted. With replicas, `packer` is the packer by the map of
    /// the driver, which grants no leases any more.
    ///
    /// # Errors
    /// Names files that could not be made durable, or were not promoted.
    pub fn finish(&self, drained: bool, packer: Option<NodeId>, progress: &mut dyn FnMut()) -> Result<()> {
        let Some(service) = &self.service else { return Ok(()) };
        let TenureParts { cluster, node, .. } = &service.parts.tenure;
        if cluster.is_replicated() && packer != Some(*node) {
            return Ok(());
        }
        let packer = service.last()?;
        std::thread::scope(|scope| {
            let (end, ended) = channel::<()>();
            let finishing = scope.spawn(|| {
                // Dropped also after an error or a panic.
                let _end = end;
                packer.finish(drained)
            });
            let mut before = 0;
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(PROGRESS_INTERVAL) {
                let now = packer.pieces_moved();
                if now != before {
                    progress();
                }
                before = now;
            }
            finishing.join().unwrap_or_else(|_| Err(Fault::io("the packer panicked at the end of the job")))
        })
    }
}

/// Whether a job opens only a container that no other user controls.
fn must_be_own(Aggregate { choice, by_others, .. }: Aggregate) -> bool {
    choice == AggregateChoice::Off && !by_others
}

/// Opens the directory of a container; if `must_be_own`, only one that no other user controls.
fn open_container(
    container: PathBuf,
    must_be_own: bool,
    change_log: Option<Arc<ChangeLog>>,
) -> OpenContainer {
    Box::new(move || {
        let path = container.display();
        let (tree, why_not_own) =
            PosixTree::open_unfollowed(&container).map_err(|fault| fault.context(&path))?;
        let why_not_own = why_not_own.map(|why| format!("{path} {why}"));
        if let Some(why) = why_not_own.as_ref().filter(|_| must_be_own) {
            return Err(Fault::new(Errno::EPERM, why.clone()));
        }
        let tree: Arc<dyn SharedFs> = Arc::new(tree);
        let fs = match &change_log {
            Some(log) => Arc::new(Recorded::new(tree, log.clone(), CONTAINER)),
            None => tree,
        };
        Ok(ContainerDir { fs, why_not_own })
    })
}

/// Returns directories in which programs of a node have created many files within seconds.
pub fn storms(packing: &OnceLock<Packing>) -> Vec<Storm> {
    packing.get().map(|packing| packing.tree.storms()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// Another user replaced a container of this user between its check and its open.
    #[test]
    fn a_container_that_others_control_is_opened_only_on_request() {
        let base = tempfile::tempdir().expect("a directory");
        let path = base.path().join("container");
        std::fs::create_dir(&path).expect("created");
        let open =
            |must_be_own| open_container(path.clone(), must_be_own, None)().map_err(|fault| fault.errno);
        assert!(open(true).is_ok_and(|dir| dir.why_not_own.is_none()));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).expect("permissions");
        assert_eq!(open(true).err(), Some(Errno::EPERM));
        assert!(open(false).is_ok_and(|dir| dir.why_not_own.is_some()));
        std::fs::rename(&path, base.path().join("moved")).expect("renamed");
        symlink(base.path().join("moved"), &path).expect("created");
        assert!(open(false).is_err());
    }
}
