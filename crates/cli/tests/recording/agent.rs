//! `tameike` with an agent that serves no file system. It mounts views and replies to its driver like the real one, and takes
//! its "dirty data" from a file `dirty` in the device directory, so that tests can make a drain succeed, fail or hang.
//!
//! Names in the shared directory control it:
//! - `slow-drain`: a drain lasts until `stop`.
//! - `wait-drain-K`: a drain of node K creates `draining-K`, and lasts as long as the name is there.
//! - `fail-drain`: the drained file is missing.
//! - `fail-start-K`, `hang-start-K`: node K fails to start, or never becomes ready.
//! - `cut-K-J`: node K reports that it does not reach node J.
//! - `slow-stop-K`: node K stops slowly, and creates a file `ended`.

use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tameike_agent::control::{
    AgentControl, AgentStart, LeaseAnswer, LeaseMessage, Progress, StartInput, Undrained, ViewFrontend,
};
use tameike_agent::files::{FileLine, FileSelection};
use tameike_core::receipt::{FileOutcome, FileReceipt, Receipt};
use tameike_core::wire::admin::{NodeStatus, Space, Warmed};
use tameike_core::wire::measure::{Order, Outcome};
use tameike_core::{Fault, HomeMap, MapEpoch, NodeId, NodeInfo, Result};

struct Recording {
    start: AgentStart,
    /// Open FUSE connections: programs in the mounts wait as for a busy agent.
    _frontends: Vec<ViewFrontend>,
    peers: Mutex<Vec<NodeInfo>>,
    /// The epoch of the home map.
    epoch: Mutex<MapEpoch>,
    /// Dropped at `stop`, which ends a slow drain.
    stopper: Mutex<Option<Sender<()>>>,
    stopped: Mutex<Option<Receiver<()>>>,
}

impl Recording {
    fn is_requested(&self, name: &str) -> bool {
        self.start.shared_dir.as_ref().is_some_and(|dir| dir.join(name).exists())
    }

    fn dirty(&self) -> Option<PathBuf> {
        self.start.device.as_ref().map(|device| device.dir.join("dirty"))
    }
}

fn left_in(device_dir: &Path) -> Undrained {
    match std::fs::read(device_dir.join("dirty")) {
        Ok(bytes) => Undrained { files: 1, bytes: bytes.len() as u64, named: 1, names: 0, open: 0 },
        Err(_) => Undrained::default(),
    }
}

impl AgentControl for Recording {
    fn start(input: StartInput) -> Result<Self> {
        let (sender, receiver) = channel();
        let agent = Self {
            start: input.start,
            _frontends: input.frontends,
            peers: Mutex::default(),
            epoch: Mutex::new(MapEpoch(1)),
            stopper: Mutex::new(Some(sender)),
            stopped: Mutex::new(Some(receiver)),
        };
        let node = agent.start.node.0;
        if agent.is_requested(&format!("fail-start-{node}")) {
            return Err(Fault::io("requested failure"));
        }
        if agent.is_requested(&format!("hang-start-{node}")) {
            std::thread::park();
        }
        Ok(agent)
    }

    fn address(&self) -> String {
        self.start.listen.replace(":0", &format!(":{}", 10_000 + self.start.node.0))
    }

    fn join(&self, nodes: Vec<NodeInfo>, map: Option<HomeMap>) -> Result<()> {
        *self.peers.lock() = nodes;
        map.into_iter().for_each(|map| *self.epoch.lock() = map.epoch);
        Ok(())
    }

    fn renew_lease(&self, message: LeaseMessage) -> Result<LeaseAnswer> {
        let mut epoch = self.epoch.lock();
        message.map.into_iter().for_each(|map| *epoch = map.epoch);
        let peers = self.peers.lock();
        let is_cut = |peer: &NodeId| self.is_requested(&format!("cut-{}-{}", self.start.node.0, peer.0));
        Ok(LeaseAnswer {
            number: message.number,
            epoch: *epoch,
            unreachable: peers.iter().map(|info| info.id).filter(is_cut).collect(),
            store_failed: self.is_requested(&format!("store-failed-{}", self.start.node.0)),
            ..LeaseAnswer::default()
        })
    }

    fn drain(&self, _verify: bool, progress: &mut dyn FnMut(Progress)) -> Receipt {
        progress(Progress { files_left: 1, bytes_left: 10, bytes_flushed: 0 });
        if self.is_requested("slow-drain") {
            let receiver = self.stopped.lock().take();
            let _ = receiver.map(|receiver| receiver.recv());
            return Receipt { faults: vec!["text to stop".into()], ..Receipt::default() };
        }
        let (Some(dirty), Some(shared)) = (self.dirty(), &self.start.shared_dir) else {
            return Receipt::default();
        };
        let waits = format!("wait-drain-{}", self.start.node.0);
        if self.is_requested(&waits) {
            let begun = shared.join(format!("draining-{}", self.start.node.0));
            std::fs::write(begun, "").expect("the test's own file");
        }
        while self.is_requested(&waits) {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        let Ok(bytes) = std::fs::read(&dirty) else { return Receipt::default() };
        let path = format!("from-node-{}", self.start.node.0);
        let outcome = if self.is_requested("fail-drain") {
            FileOutcome::Missing("requested failure".into())
        } else {
            std::fs::write(shared.join(&path), &bytes).expect("the test's own file");
            std::fs::remove_file(&dirty).expect("the test's own file");
            FileOutcome::Synced
        };
        let size = bytes.len() as u64;
        let files = vec![FileReceipt {
            path,
            size,
            written: size,
            checksum: "0".repeat(64),
            outcome,
            note: String::new(),
        }];
        Receipt { files, ..Receipt::default() }
    }

    fn undrained(&self) -> Receipt {
        let Some(bytes) = self.dirty().and_then(|dirty| std::fs::read(dirty).ok()) else {
            return Receipt::default();
        };
        let file = FileReceipt {
            path: format!("from-node-{}", self.start.node.0),
            size: bytes.len() as u64,
            written: 0,
            checksum: String::new(),
            outcome: FileOutcome::Missing("text to be slow".into()),
            note: String::new(),
        };
        Receipt { files: vec![file], ..Receipt::default() }
    }

    fn status(&self) -> Result<NodeStatus> {
        let space = self.start.capacity.map(|capacity| Space { capacity, ..Space::default() });
        Ok(NodeStatus {
            node: self.start.node,
            pid: std::process::id(),
            space,
            resident_bytes: self.start.memory,
            cores: self.start.cores.clone(),
            frames: (0, self.peers.lock().len() as u32),
            unreachable: Vec::new(),
            counters: Vec::new(),
            storms: Vec::new(),
        })
    }

    fn warm(
        &self,
        paths: Vec<Vec<u8>>,
        _progress: &mut dyn FnMut(Warmed) -> ControlFlow<()>,
    ) -> Result<Warmed> {
        Ok(Warmed { files: paths.len() as u64, ..Warmed::default() })
    }

    fn files(&self, _asked: FileSelection) -> Result<Vec<FileLine>> {
        Ok(Vec::new())
    }

    fn measure(&self, order: Order) -> Result<Outcome> {
        let Order { quantity, size, window, .. } = order;
        Ok(Outcome { quantity, size, window, repetitions: Vec::new(), one_way: None })
    }

    fn stop(
        &self,
        _grace: Duration,
        _drained: bool,
        _packer: Option<NodeId>,
        stopping: &mut dyn FnMut(),
    ) -> Result<Undrained> {
        drop(self.stopper.lock().take());
        if self.is_requested(&format!("slow-stop-{}", self.start.node.0)) {
            // Longer than the limit without progress messages.
            for _ in 0..34 {
                std::thread::park_timeout(Duration::from_secs(1));
                stopping();
            }
            let shared = self.start.shared_dir.as_ref().expect("the file that requests it is there");
            std::fs::write(shared.join("ended"), "").expect("the test's own file");
        }
        Ok(self.start.device.as_ref().map_or_else(Undrained::default, |device| left_in(&device.dir)))
    }

    fn inspect(device_dir: &Path) -> Result<Undrained> {
        Ok(left_in(device_dir))
    }
}

fn main() -> ExitCode {
    tameike::main::<Recording>()
}
