//! The shared directory of a node merged with its packed files, and the packer if this node is it.

use crate::control::{Aggregate, AggregateChoice, PROGRESS_INTERVAL};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use tameike_core::wire::admin::Storm;
use tameike_core::wire::pack::{PACKED_BYTES_MAX, PackReply, PackRequest};
use tameike_core::{Cluster, Errno, Fault, NodeId, Result};
use tameike_fabric::Rpc;
use tameike_io::Runtime;
use tameike_io::os::process;
use tameike_io::shared::{ChangeLog, PosixTree, Recorded, SharedFs};
use tameike_packer::{
    CONTAINER, ContainerDir, ExternalDir, OpenContainer, PackHandler, PackedTree, Packer, PackerClient,
    PackerParts,
};

/// Serves packer requests of other agents.
pub struct PackService {
    runtime: Runtime,
    packer: Arc<Packer>,
}

impl PackService {
    /// Serves a request of another agent.
    pub async fn serve(&self, request: PackRequest) -> Result<PackReply> {
        let packer = self.packer.clone();
        let request = match request {
            PackRequest::Read { file, offset, length } => {
                // The largest payload of a reply.
                PackRequest::Read { file, offset, length: length.min(PACKED_BYTES_MAX as u32) }
            }
            other => other,
        };
        self.runtime.block(move || packer.serve(request)).await
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

/// The shared directory of a node.
pub struct Packing {
    /// The directory with its packed files.
    pub tree: Arc<PackedTree>,
    /// Serves other agents, if this node is the packer.
    pub service: Option<Arc<PackService>>,
    packer: Option<Arc<Packer>>,
}

impl Packing {
    /// Opens the shared directory for a node.
    ///
    /// # Errors
    /// `EBUSY` if another job packs files of the directory; errors of the file system.
    pub fn open(
        Plain { dir, tree: plain, change_log }: Plain<'_>,
        device_dir: Option<&Path>,
        aggregate: Aggregate,
        runtime: &Runtime,
        cluster: &Cluster,
        rpc: Arc<dyn Rpc>,
    ) -> Result<Self> {
        let Aggregate { choice, size_max, by_others } = aggregate;
        // Checked again when it is opened: another user may have replaced a container of this user.
        let must_be_own = choice == AggregateChoice::Off && !by_others;
        // Another node may have created it in an earlier job.
        plain.revalidate(CONTAINER);
        let container = dir.join(String::from_utf8_lossy(CONTAINER).as_ref());
        let is_shown = match plain.stat(CONTAINER) {
            Ok(_) => aggregate.why_ignored(&container).inspect(|why| log::warn!("{why}")).is_none(),
            Err(fault) if fault.errno == Errno::ENOENT => false,
            Err(fault) => return Err(fault),
        };
        // The first node with a device is the packer.
        let node =
            cluster.device_nodes().first().copied().filter(|_| is_shown || choice != AggregateChoice::Off);
        let packer = match node {
            Some(node) if node == rpc.local() => {
                let device_dir = device_dir.ok_or_else(|| Fault::io("the packer has no device"))?;
                let parts = PackerParts {
                    plain: plain.clone(),
                    container: open_container(container.clone(), must_be_own, change_log.clone()),
                    device: Arc::new(PosixTree::open(device_dir)?),
                    packs: choice == AggregateChoice::On,
                    size_max,
                };
                Some(Arc::new(Packer::new(parts, choice == AggregateChoice::Off)?))
            }
            _ => None,
        };
        let remote = |node: NodeId| PackerClient::Remote { rpc: rpc.clone(), node };
        let client = packer.clone().map(|packer| PackerClient::Local(packer)).or_else(|| node.map(remote));
        let owner = (process::user(), process::group());
        let packs_storms = choice == AggregateChoice::Auto;
        let external = ExternalDir::new(open_container(container, must_be_own, change_log), by_others);
        let plain = (plain, external);
        let tree = Arc::new(PackedTree::new(runtime.clone(), plain, client, owner, packs_storms, size_max));
        let service = packer.clone().map(|packer| Arc::new(PackService { runtime: runtime.clone(), packer }));
        Ok(Self { tree, service, packer })
    }

    /// Ends packing with the job: makes the container durable, and promotes large files, which may take long. `drained` means that all
    /// data is on the shared file system. Calls `progress` as files are promoted.
    ///
    /// # Errors
    /// Names files that could not be made durable, or were not promoted.
    pub fn finish(&self, drained: bool, progress: &mut dyn FnMut()) -> Result<()> {
        let Some(packer) = &self.packer else { return Ok(()) };
        std::thread::scope(|scope| {
            let (end, ended) = channel::<()>();
            let finishing = scope.spawn(move || {
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
