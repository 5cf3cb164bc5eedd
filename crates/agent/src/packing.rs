//! The shared directory of a node, with what is packed in it.

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
use tameike_io::shared::{PosixTree, SharedFs};
use tameike_packer::{
    CONTAINER, ContainerDir, ExternalDir, OpenContainer, PackHandler, PackedTree, Packer, PackerClient,
    PackerParts,
};

/// Serves other agents as the packer of the job.
pub struct PackService {
    runtime: Runtime,
    packer: Arc<Packer>,
}

impl PackService {
    /// Answers a request of another agent.
    pub async fn serve(&self, request: PackRequest) -> Result<PackReply> {
        let packer = self.packer.clone();
        let request = match request {
            PackRequest::Read { file, offset, length } => {
                // No answer carries more.
                PackRequest::Read { file, offset, length: length.min(PACKED_BYTES_MAX as u32) }
            }
            other => other,
        };
        self.runtime.block(move || packer.serve(request)).await
    }
}

/// What of a shared directory a node has.
pub struct Packing {
    /// The directory.
    pub tree: Arc<PackedTree>,
    /// Serves others, if this node is the packer.
    pub service: Option<Arc<PackService>>,
    packer: Option<Arc<Packer>>,
}

impl Packing {
    /// Opens the shared directory `dir`, which is `plain`, for a node.
    ///
    /// # Errors
    /// `EBUSY` when another job packs files of it, and what the file system says.
    pub fn open(
        (dir, plain): (&Path, Arc<dyn SharedFs>),
        device_dir: Option<&Path>,
        aggregate: Aggregate,
        runtime: &Runtime,
        cluster: &Cluster,
        rpc: Arc<dyn Rpc>,
    ) -> Result<Self> {
        let Aggregate { choice, size_max, by_others } = aggregate;
        // Whether a container of other users would be ignored: it may come in the place of one of this user's.
        let is_ignored = choice == AggregateChoice::Off && !by_others;
        // It may have come with the job before, by another node.
        plain.look_anew(CONTAINER);
        let container = dir.join(String::from_utf8_lossy(CONTAINER).as_ref());
        let is_shown = match plain.stat(CONTAINER) {
            Ok(_) => aggregate.why_ignored(&container).inspect(|why| log::warn!("{why}")).is_none(),
            Err(fault) if fault.errno == Errno::ENOENT => false,
            Err(fault) => return Err(fault),
        };
        // The first one with a device: it serves others.
        let node =
            cluster.device_nodes().first().copied().filter(|_| is_shown || choice != AggregateChoice::Off);
        let packer = match node {
            Some(node) if node == rpc.local() => {
                let device_dir = device_dir.ok_or_else(|| Fault::io("the packer has no device"))?;
                let parts = PackerParts {
                    plain: plain.clone(),
                    container: open_container(container.clone(), is_ignored),
                    device: Arc::new(PosixTree::open(device_dir)?),
                    packs: choice == AggregateChoice::On,
                    size_max,
                };
                Some(Arc::new(Packer::new(parts, choice == AggregateChoice::Off)?))
            }
            _ => None,
        };
        let far = |node: NodeId| PackerClient::Remote { rpc: rpc.clone(), node };
        let way = packer.clone().map(|packer| PackerClient::Local(packer)).or_else(|| node.map(far));
        let owner = (process::user(), process::group());
        let packs_storms = choice == AggregateChoice::Auto;
        let outside = ExternalDir::new(open_container(container, is_ignored), by_others);
        let plain = (plain, outside);
        let tree = Arc::new(PackedTree::new(runtime.clone(), plain, way, owner, packs_storms, size_max));
        let service = packer.clone().map(|packer| Arc::new(PackService { runtime: runtime.clone(), packer }));
        Ok(Self { tree, service, packer })
    }

    /// The job ends. With `drained`, all that it wrote is on the shared file system. Large files may take their time to come to their places:
    /// `got_on` is called now and then when some have.
    ///
    /// # Errors
    /// What could not be made safe, or stays packed though it is large.
    pub fn finish(&self, drained: bool, got_on: &mut dyn FnMut()) -> Result<()> {
        let Some(packer) = &self.packer else { return Ok(()) };
        std::thread::scope(|scope| {
            let (end, ended) = channel::<()>();
            let finishing = scope.spawn(move || {
                // Dropped at the end, whatever that is.
                let _end = end;
                packer.finish(drained)
            });
            let mut before = 0;
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(PROGRESS_INTERVAL) {
                let now = packer.pieces_moved();
                if now != before {
                    got_on();
                }
                before = now;
            }
            finishing.join().unwrap_or_else(|_| Err(Fault::io("the packer has ended with a panic")))
        })
    }
}

/// Opens the directory of the container that lies there: where `must_be_own`, only one that no other user controls.
fn open_container(container: PathBuf, must_be_own: bool) -> OpenContainer {
    Box::new(move || {
        let path = container.display();
        let (tree, why_not_own) =
            PosixTree::open_unfollowed(&container).map_err(|fault| fault.context(&path))?;
        let why_not_own = why_not_own.map(|why| format!("{path} {why}"));
        if let Some(why) = why_not_own.as_ref().filter(|_| must_be_own) {
            return Err(Fault::new(Errno::EPERM, why.clone()));
        }
        Ok(ContainerDir { fs: Arc::new(tree), why_not_own })
    })
}

/// Directories in which programs of a node have made many files fast.
pub fn storms(packing: &OnceLock<Packing>) -> Vec<Storm> {
    packing.get().map(|packing| packing.tree.storms()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// A container of this user's was looked at, and then another user has put one in its place.
    #[test]
    fn a_container_that_others_control_is_opened_on_request_alone() {
        let base = tempfile::tempdir().expect("a directory");
        let path = base.path().join("container");
        std::fs::create_dir(&path).expect("made");
        let open = |must_be_own| open_container(path.clone(), must_be_own)().map_err(|fault| fault.errno);
        assert!(open(true).is_ok_and(|dir| dir.why_not_own.is_none()));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).expect("ours");
        assert_eq!(open(true).err(), Some(Errno::EPERM));
        assert!(open(false).is_ok_and(|dir| dir.why_not_own.is_some()));
        std::fs::rename(&path, base.path().join("moved")).expect("renamed");
        symlink(base.path().join("moved"), &path).expect("made");
        assert!(open(false).is_err());
    }
}
