//! The packer's files on its device, which the backups of its home keep as well: a later packer finds there what an earlier one has journaled.

use super::tenure::TenureParts;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tameike_core::wire::pack::{KeptPart, PACKED_BYTES_MAX, PACKER_HOME, PackReply, PackRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, HomeMap, NodeId, Result};
use tameike_fabric::{Destination, Rpc};
use tameike_io::shared::{Access, Hooks, SharedFs, Written};
use tameike_packer::DEVICE_FILES;

/// Pause before a backup that did not answer is asked again.
const RETRY_TIME: Duration = Duration::from_millis(20);

/// Brings the packer's files to the backups.
pub struct KeptFiles {
    parts: TenureParts,
    rpc: Arc<dyn Rpc>,
    /// The directory on the device.
    dir: Arc<dyn SharedFs>,
    /// The nodes that have the files. Locked while a change is sent, so that changes arrive in their order.
    complete: Mutex<BTreeSet<NodeId>>,
    is_sending: AtomicBool,
}

impl KeptFiles {
    /// No node has the files of this directory yet.
    pub fn new(parts: TenureParts, rpc: Arc<dyn Rpc>, dir: Arc<dyn SharedFs>) -> Arc<Self> {
        let (complete, is_sending) = Default::default();
        Arc::new(Self { parts, rpc, dir, complete, is_sending })
    }

    /// Whether changes are sent from now on: not before the other agents have joined the job, and not when they stop.
    pub fn set_sending(&self, is_sending: bool) {
        self.is_sending.store(is_sending, Ordering::Release);
    }

    /// Sends a change, and before that all files to nodes that lack them; blocks.
    ///
    /// # Errors
    /// `EREMCHG` if another node is the packer; those of the disks.
    pub fn send(&self, change: &[KeptPart]) -> Result<()> {
        let (mut complete, mut done) = (self.complete.lock(), BTreeSet::new());
        loop {
            let map = self.parts.cluster.map();
            if !self.is_sending.load(Ordering::Acquire) {
                return Ok(());
            }
            if map.primary(PACKER_HOME) != self.parts.node {
                return Err(Errno::EREMCHG.into());
            }
            let backups = map.backups(PACKER_HOME).iter().copied().chain(map.joining(PACKER_HOME));
            let backups: BTreeSet<_> = backups.collect();
            complete.retain(|node| backups.contains(node));
            done.retain(|node| complete.contains(node));
            let Some(&backup) = backups.difference(&done).next() else { return Ok(()) };
            let whole = if complete.contains(&backup) { None } else { Some(self.whole()?) };
            // The files have the change.
            let sent =
                whole.as_deref().unwrap_or(change).iter().try_for_each(|part| self.ask(&map, backup, part));
            match sent {
                Ok(()) => {
                    complete.insert(backup);
                    done.insert(backup);
                }
                Err(fault) if is_repeated(&fault) => {
                    complete.remove(&backup);
                    pollster::block_on(self.parts.runtime.sleep(RETRY_TIME));
                }
                Err(fault) => return Err(fault.context(format_args!("the packer's journal on {backup}"))),
            }
        }
    }

    fn ask(&self, map: &HomeMap, backup: NodeId, part: &KeptPart) -> Result<()> {
        let request = Request::Pack(PackRequest::Keep(part.clone()));
        let to = Destination::Backup(backup, map.epoch);
        match pollster::block_on(self.rpc.call(to, request, None, None))?.reply {
            Reply::Pack(PackReply::Done) => Ok(()),
            other => Err(Fault::new(Errno::EPROTO, format!("{backup} answered the packer with {other:?}"))),
        }
    }

    /// All files, in parts.
    fn whole(&self) -> Result<Vec<KeptPart>> {
        let mut parts = Vec::new();
        for name in DEVICE_FILES {
            parts.push(KeptPart { name: name.to_vec(), truncate: Some(0), offset: 0, bytes: Vec::new() });
            let file = match self.dir.open(name, Access::Read) {
                Err(fault) if fault.errno == Errno::ENOENT => continue,
                opened => opened?,
            };
            let mut bytes = vec![0; file.stat()?.size as usize];
            let size = file.read_at(&mut bytes, 0)?;
            parts.extend(parts_of(name, &bytes[..size], 0));
        }
        Ok(parts)
    }
}

impl Hooks for KeptFiles {
    fn changed(&self, path: &[u8], part: Written<'_>) -> Result<()> {
        let change = match part {
            Written::Bytes(bytes, offset) => parts_of(path, bytes, offset).collect(),
            Written::Size(size) => {
                vec![KeptPart { name: path.to_vec(), truncate: Some(size), offset: size, bytes: Vec::new() }]
            }
        };
        self.send(&change)
    }
}

fn parts_of<'a>(name: &'a [u8], bytes: &'a [u8], offset: u64) -> impl Iterator<Item = KeptPart> + 'a {
    bytes.chunks(PACKED_BYTES_MAX).enumerate().map(move |(number, bytes)| KeptPart {
        name: name.to_vec(),
        truncate: None,
        offset: offset + (number * PACKED_BYTES_MAX) as u64,
        bytes: bytes.to_vec(),
    })
}

/// Whether the backup may take the files later, or there will be another map.
fn is_repeated(fault: &Fault) -> bool {
    let errnos = [Errno::EREMCHG, Errno::EHOSTDOWN, Errno::EAGAIN, Errno::ECONNRESET, Errno::ETIMEDOUT];
    errnos.contains(&fault.errno)
}

/// Keeps a part of a file of another node, which is the packer, in a directory of this node's device.
///
/// # Errors
/// `EPROTO` if the packer has no such file; those of the disk.
pub fn keep(dir: &dyn SharedFs, part: &KeptPart) -> Result<()> {
    let KeptPart { name, truncate, offset, bytes } = part;
    if !DEVICE_FILES.contains(&&name[..]) {
        return Err(Fault::new(Errno::EPROTO, "the packer has no such file"));
    }
    let file = match dir.open(name, Access::Write) {
        Err(fault) if fault.errno == Errno::ENOENT => dir.create(name, 0o600)?,
        opened => opened?,
    };
    truncate.map_or(Ok(()), |size| file.truncate(size))?;
    if bytes.is_empty() { Ok(()) } else { file.write_at(bytes, *offset) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tameike_core::{Cluster, JobId, NodeInfo};
    use tameike_fabric::{Answer, CallFuture, MapLease};
    use tameike_io::os::system::System;
    use tameike_io::shared::{Hooked, PosixTree};
    use tameike_io::{Frame, Payload};
    use tempfile::TempDir;

    /// Backups that do not answer every seventh call.
    struct Backups {
        devices: BTreeMap<NodeId, (TempDir, PosixTree)>,
        calls: Mutex<u64>,
    }

    impl Rpc for Backups {
        fn local(&self) -> NodeId {
            NodeId(0)
        }

        fn call(
            &self,
            to: Destination,
            request: Request,
            _: Option<Payload>,
            _: Option<Frame>,
        ) -> CallFuture {
            let Destination::Backup(node, _) = to else { unreachable!("a backup") };
            let Request::Pack(PackRequest::Keep(part)) = request else { unreachable!("a part") };
            let mut calls = self.calls.lock();
            *calls += 1;
            let kept = match *calls % 7 {
                0 => Err(Errno::EHOSTDOWN.into()),
                _ => keep(&self.devices[&node].1, &part),
            };
            let answer = kept.map(|()| Answer { reply: Reply::Pack(PackReply::Done), payload: None });
            Box::pin(std::future::ready(answer))
        }
    }

    fn tree() -> (TempDir, PosixTree) {
        let dir = tempfile::tempdir().expect("a directory");
        let tree = PosixTree::open(dir.path()).expect("a tree");
        (dir, tree)
    }

    fn content(dir: &TempDir) -> BTreeMap<String, Vec<u8>> {
        let files =
            std::fs::read_dir(dir.path()).expect("a directory").map(|file| file.expect("a file").path());
        let named =
            files.map(|path| (path.file_name().expect("a name").to_string_lossy().into_owned(), path));
        named.map(|(name, path)| (name, std::fs::read(path).expect("read"))).collect()
    }

    #[test]
    fn backups_have_each_write_and_new_ones_all_before() {
        let system = System::start(1).expect("a thread");
        let node = |id| NodeInfo {
            id: NodeId(id),
            host: format!("host{id}"),
            address: String::new(),
            group: 0,
            device: true,
        };
        let job = JobId::new("job").expect("a name");
        let cluster = Arc::new(Cluster::new(job, (0..3).map(node).collect(), 2).expect("enough nodes"));
        let (runtime, first) = (system.runtime().clone(), cluster.map().backups(PACKER_HOME)[0]);
        let lease = MapLease::new(runtime.clock.clone());
        let parts = TenureParts { runtime, cluster: cluster.clone(), node: NodeId(0), lease };
        let devices = [1, 2].map(|node| (NodeId(node), tree())).into();
        let backups = Arc::new(Backups { devices, calls: Mutex::new(0) });
        let (own, tree) = tree();
        let tree: Arc<dyn SharedFs> = Arc::new(tree);
        let kept = KeptFiles::new(parts, backups.clone(), tree.clone());
        let hooked = Hooked::new(tree, kept.clone());
        let of = |node: NodeId| content(&backups.devices[&node].0);
        let file = hooked.create(DEVICE_FILES[0], 0o600).expect("created");
        file.write_at(b"before the others have joined", 0).expect("written");
        assert!(of(first).is_empty());
        kept.set_sending(true);
        let is_kept =
            |node: NodeId| content(&own).into_iter().all(|(name, bytes)| of(node).get(&name) == Some(&bytes));
        file.write_at(&vec![7; 3 * PACKED_BYTES_MAX / 2], 5).expect("written");
        hooked.create(DEVICE_FILES[2], 0o600).expect("created").write_at(b"12345678", 0).expect("written");
        assert!(is_kept(first));
        file.truncate(9).expect("truncated");
        assert!(is_kept(first));
        let other = NodeId(3 - first.0);
        assert!(of(other).is_empty());
        assert!(cluster.replace_map(cluster.map().copying(PACKER_HOME, other)));
        kept.send(&[]).expect("sent");
        assert!(is_kept(other));
        assert!(cluster.replace_map(cluster.map().excluding(NodeId(0))));
        assert_eq!(file.write_at(b"late", 0).err().map(|fault| fault.errno), Some(Errno::EREMCHG));
        let unknown = KeptPart { name: b"table".to_vec(), truncate: None, offset: 0, bytes: Vec::new() };
        assert!(keep(&backups.devices[&other].1, &unknown).is_err_and(|fault| fault.errno == Errno::EPROTO));
    }
}
