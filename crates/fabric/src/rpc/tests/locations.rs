//! Payloads that the caller reads from the server's device.

use super::*;
use std::fs::File;
use std::os::unix::fs::FileExt;
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::wire::call::{ExtentLocation, Run};
use tameike_io::disk::{DiskMemory, FreeClock};
use tameike_io::slab::BlockSums;

const BLOCK: u32 = BLOCK_SIZE as u32;

/// Serves two runs of a device, swapped, as a location if the caller allows it.
struct DeviceServer {
    device: Arc<File>,
    runs: Vec<Run>,
    digest: u32,
    time: u64,
    pool: Pool,
    /// Whether each request allowed a location.
    allowed: Mutex<Vec<bool>>,
    /// Returns a location even if the caller does not allow it.
    ignores_permission: bool,
}

const RUNS: [Run; 2] = [
    Run { at: 9 * BLOCK_SIZE as u64, length: 40 * BLOCK },
    Run { at: 2 * BLOCK_SIZE as u64, length: 3 * BLOCK },
];
const LENGTH: u32 = 43 * BLOCK;

impl DeviceServer {
    fn new(network: &SocketNetwork, device: Arc<File>) -> Self {
        let (pool, allowed) = (network.pool(network.frames), Mutex::default());
        let mut server = Self {
            device,
            runs: RUNS.to_vec(),
            digest: 0,
            time: 0,
            pool,
            allowed,
            ignores_permission: false,
        };
        server.digest = BlockSums::of(&server.content()).digest();
        server
    }

    fn content(&self) -> Vec<u8> {
        let read = |run: &Run| {
            let mut bytes = vec![0; run.length as usize];
            self.device.read_exact_at(&mut bytes, run.at).expect("the bytes are readable");
            bytes
        };
        RUNS.iter().flat_map(read).collect()
    }
}

struct DeviceService(Arc<DeviceServer>);

impl Service for DeviceService {
    fn serve(
        &self,
        _context: RequestContext,
        _request: Request,
        _payload: Option<Payload>,
        target: Target,
    ) -> ServeFuture {
        let server = &self.0;
        let is_allowed = matches!(target, Target::AnyOrLocation);
        server.allowed.lock().push(is_allowed);
        let carried = if is_allowed || server.ignores_permission {
            Carried::Location(ExtentLocation {
                runs: server.runs.clone(),
                digest: server.digest,
                time: server.time,
            })
        } else {
            let mut frame = server.pool.try_take().expect("a frame");
            let content = server.content();
            frame[..content.len()].copy_from_slice(&content);
            Carried::Payload(Payload::new(Arc::new(frame), 0..LENGTH))
        };
        Box::pin(async move { (Reply::Unit(UnitReply::Read), carried) })
    }

    fn peer(&self, _: NodeId, _: PeerEvent) {}
}

fn device() -> Arc<File> {
    let device = tempfile::tempfile_in("/dev/shm").expect("memory");
    let bytes: Vec<u8> = (0..64 * BLOCK).map(|place| (place / 7) as u8 ^ (place / BLOCK) as u8).collect();
    device.write_all_at(&bytes, 0).expect("memory");
    Arc::new(device)
}

struct Bed {
    network: SocketNetwork,
    caller: Node,
    _rpc: RpcNode,
    server: Arc<DeviceServer>,
    clock: FreeClock,
}

fn bed(mut network: SocketNetwork, change: impl Fn(&mut DeviceServer)) -> Bed {
    let device = device();
    let clock = FreeClock::create(1 << 20).expect("memory");
    let bytes = device.try_clone().expect("a descriptor").into();
    let memory = DiskMemory { bytes, clock: clock.memory().expect("a descriptor") };
    network.device = Some(Arc::new(HostDevice::new(memory)));
    let caller = node(&network, A, |fabric| fabric);
    let fabric = network.begin(network.config(B));
    let rpc = RpcNode::new(fabric, network.systems[1].runtime().clone(), network.pool(2));
    let mut server = DeviceServer::new(&network, device);
    change(&mut server);
    let server = Arc::new(server);
    rpc.attach(Arc::new(DeviceService(server.clone())), cluster(2));
    // The first call exchanges the device descriptors.
    drop(wait(&network.runtime(), caller.rpc.call(B.into(), read(0, LENGTH), None, None)));
    server.allowed.lock().clear();
    Bed { network, caller, _rpc: rpc, server, clock }
}

impl Bed {
    fn read(&self) -> Result<Payload> {
        let into = self.network.frames().try_take();
        assert!(into.is_some());
        let answer =
            wait(&self.network.runtime(), self.caller.rpc.call(B.into(), read(0, LENGTH), None, into))?;
        Ok(answer.payload.expect("bytes"))
    }
}

#[test]
fn a_payload_is_read_from_the_device_on_the_same_host_only() {
    for network in SocketNetwork::both(UNIT_SIZE, 2) {
        let one_host = network.one_host;
        let bed = bed(network, |_| {});
        let found = bed.read().expect("the bytes are readable");
        assert!(found[..] == bed.server.content()[..]);
        assert_eq!(found.sums().digest(), bed.server.digest);
        assert_eq!(*bed.server.allowed.lock(), [one_host]);
        // Without a frame of the caller, the server sends the bytes.
        let sent = bed.caller.rpc.call(B.into(), read(0, LENGTH), None, None);
        wait(&bed.network.runtime(), sent).expect("the bytes are readable");
        assert_eq!(*bed.server.allowed.lock(), [one_host, false]);
    }
}

#[test]
fn a_stale_location_repeats_the_call() {
    let [_, network] = SocketNetwork::both(UNIT_SIZE, 2);
    let bed = bed(network, |_| {});
    bed.server.device.write_all_at(b"other bytes", RUNS[1].at + 5000).expect("memory");
    let found = bed.read().expect("the server reads its device");
    assert!(found[..] == bed.server.content()[..]);
    assert_eq!(*bed.server.allowed.lock(), [true, false]);
}

#[test]
fn a_possibly_stale_location_repeats_the_call() {
    let [_, network] = SocketNetwork::both(UNIT_SIZE, 2);
    let bed = bed(network, |_| {});
    bed.clock.freed(&(0..4096));
    let found = bed.read().expect("the server reads its device");
    assert!(found[..] == bed.server.content()[..]);
    assert_eq!(*bed.server.allowed.lock(), [true, false]);
}

#[test]
fn an_unrequested_or_invalid_location_is_refused() {
    for run in [RUNS[0], Run { at: u64::MAX - 4095, length: BLOCK }, Run { at: 0, length: u32::MAX }] {
        let [_, network] = SocketNetwork::both(UNIT_SIZE, 2);
        let bed = bed(network, |server| (server.runs, server.ignores_permission) = (vec![run], true));
        let fault = bed.read().err().expect("no bytes");
        assert_eq!(fault.errno, Errno::EPROTO);
        assert_eq!(*bed.server.allowed.lock(), [true, false]);
        assert_eq!(frames_left(&bed.network), bed.network.frames().share(), "no frame leaks");
    }
}

fn frames_left(network: &SocketNetwork) -> u32 {
    let frames = network.frames();
    let all: Vec<_> = (0..frames.share()).map_while(|_| frames.try_take()).collect();
    all.len() as u32
}
