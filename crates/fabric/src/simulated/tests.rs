use super::*;
use crate::conformance::{Network, TESTS};
use futures_util::future::BoxFuture;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use tameike_io::os::runtime::Executor;
use tameike_io::slab::Slab;

type Task = BoxFuture<'static, ()>;

/// Passes tasks from the threads of the tests to the thread that runs the simulation.
struct Handing {
    simulation: Simulation,
    tasks: Mutex<Sender<Task>>,
}

impl Executor for Handing {
    fn spawn(&self, task: Task) {
        self.tasks.lock().send(task).expect("the simulation runs");
    }

    fn sleep(&self, time: Duration) -> Task {
        // Called on a thread of the test while simulated time advances: the sleep starts at its first poll.
        let simulation = self.simulation.clone();
        async move { simulation.sleep(time).await }.boxed()
    }

    fn block(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }
}

/// Two nodes on simulated time, which advances until the network is dropped.
struct Simulated {
    network: SimulatedNetwork,
    runtime: Runtime,
    slab: Arc<Slab>,
    own: Pool,
    inline_max: usize,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Simulated {
    fn new(seed: u64, inline_max: usize) -> Self {
        let simulation = Simulation::shuffled(seed);
        let slab = Slab::new(128).expect("memory");
        let (sender, tasks) = channel::<Task>();
        let handing = Arc::new(Handing { simulation: simulation.clone(), tasks: Mutex::new(sender) });
        let parts = simulation.runtime();
        let runtime = Runtime { clock: parts.clock.clone(), random: parts.random.clone(), executor: handing };
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, stepped) = (stop.clone(), simulation.clone());
        let run = move || {
            while !stopped.load(Ordering::SeqCst) {
                tasks.try_iter().for_each(|task| parts.executor.spawn(task));
                if stepped.step() {
                    continue;
                }
                match tasks.recv_timeout(Duration::from_millis(1)) {
                    Ok(task) => parts.executor.spawn(task),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        let thread = std::thread::Builder::new().spawn(run).expect("a thread");
        let network = SimulatedNetwork::new(simulation, NetworkFaults::NONE);
        let own = slab.pool(60);
        Self { network, runtime, slab, own, inline_max, stop, thread: Some(thread) }
    }
}

impl Network for Simulated {
    fn start(&self, node: NodeId, receiver: Arc<dyn Receiver>) -> Arc<dyn Fabric> {
        let fabric = self.network.start(SimulatedConfig {
            node,
            runtime: self.runtime.clone(),
            inline_max: self.inline_max,
            peer_limit: Duration::from_secs(10),
            request_frames: self.slab.pool(4),
            reply_frames: self.slab.pool(4),
        });
        fabric.attach(receiver);
        fabric
    }

    fn kill(&self, node: NodeId) {
        self.network.kill(node);
    }

    fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    fn frames(&self) -> Pool {
        self.own.clone()
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the simulation runs without panics");
        }
    }
}

#[test]
fn the_simulation_passes_the_conformance_tests() {
    for inline_max in [UNIT_SIZE, 3000] {
        for (seed, (name, test)) in TESTS.into_iter().enumerate() {
            println!("{name} (inline_max {inline_max})");
            test(&Simulated::new(seed as u64, inline_max));
        }
    }
}
