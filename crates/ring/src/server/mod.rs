//! The agent's side of the ring.
//!
//! It knows nothing of views: a [`Handler`] gets decoded requests and answers them. It serves a limited number of programs of one user by two
//! threads, which are started with the first program, and by pinned servers of programs that have polled in vain ([`pinned_server`]). All
//! threads sleep while there are no requests.

mod connection;
mod names;
mod pinned_server;
mod pinned_state;
mod programs;
mod threads;
pub(crate) mod watch;

pub use connection::{Call, Window};
pub use names::NameTable;
pub use tameike_io::os::socket::Peer;

use crate::frames::FrameTable;
use crate::spin::Spin;
use connection::{Connection, Counts};
use parking_lot::{Mutex, RwLock};
use pinned_server::PinnedServer;
use programs::Program;
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tameike_core::{Fault, Result};
use tameike_io::os::log_limit::RateLimited;
use tameike_io::os::process::start_thread;
use tameike_io::os::reactor::Watched;
use tameike_io::os::runtime::Runtime;
use tameike_io::os::system::System;
use watch::Watch;

/// Maximum number of connected programs.
pub const CLIENTS_MAX: usize = 256;
/// Number of serving threads.
pub const THREADS: usize = 2;
/// Maximum polling time of a thread before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers requests.
pub trait Handler: Send + Sync + Sized + 'static {
    /// State per program.
    type Session: Send + Sync;

    /// A program has connected. Called with a lock held: must neither block nor call the server.
    fn begin(&self, peer: &Peer) -> Self::Session;

    /// Serves a request, now or later: the reply is sent through `call`. Requests of one program may come from several threads at the same
    /// time.
    fn serve(&self, call: Call<Self>);

    /// A program has closed a file, and waits for no reply.
    fn left(&self, session: &Self::Session, handle: u64);

    /// A program has disconnected; its requests may still be in flight. Called like [`Self::begin`], before [`Server::settle`] returns.
    fn leaves(&self, session: &Self::Session);

    /// A program has disconnected, and all its requests have ended. Must not block.
    fn ended(&self, session: &Self::Session);
}

struct Inner<H: Handler> {
    handler: Arc<H>,
    /// Mount points of the views, for the welcome.
    views: Vec<Vec<u8>>,
    /// User whose programs are served.
    user: u32,
    /// Table of granted frames, if there is one.
    granted: Option<Arc<FrameTable>>,
    names: Arc<NameTable>,
    watch: Watch,
    spin: Spin,
    epoll: OwnedFd,
    wakeup: Arc<OwnedFd>,
    /// All connections, by number.
    programs: Mutex<Programs<H>>,
    /// Programs that have been welcomed.
    connections: RwLock<Vec<Arc<Connection<H>>>>,
    pinned_servers: Mutex<Vec<PinnedServer<H>>>,
    /// Index of the program to serve next.
    next: AtomicUsize,
    stopping: AtomicBool,
    counts: Arc<Counts>,
}

/// Counters of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Connected programs.
    pub clients: u64,
    /// Requests answered by the agent.
    pub answered: u64,
    /// Requests declined, and left to the kernel.
    pub declined: u64,
    /// Names that programs have looked up without a request, as they report.
    pub looked_up: u64,
}

struct Programs<H: Handler> {
    programs: BTreeMap<u64, Program<H>>,
    last: u64,
}

/// Serves programs through their arenas. Dropping it stops it.
pub struct Server<H: Handler> {
    inner: Arc<Inner<H>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    refused: RateLimited,
}

impl<H: Handler> Server<H> {
    /// A server for programs of `user`, with the mount points `views`, a table of published names and, optionally, one of granted frames.
    pub fn new(
        handler: Arc<H>,
        views: Vec<Vec<u8>>,
        user: u32,
        (names, granted): (Arc<NameTable>, Option<Arc<FrameTable>>),
    ) -> Result<Arc<Self>> {
        let failed = |error| Fault::from_os("creating the ring", &error);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| failed(error.into()))?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &wakeup, epoll::EventData::new_u64(programs::WAKEUP), flags)
            .map_err(|error| failed(error.into()))?;
        let inner = Arc::new(Inner {
            handler,
            views,
            user,
            granted,
            watch: Watch::new(names.notice().clone()),
            names,
            spin: Spin::of_agent(SPIN),
            epoll,
            wakeup: Arc::new(wakeup),
            programs: Mutex::new(Programs { programs: BTreeMap::new(), last: 0 }),
            connections: RwLock::default(),
            pinned_servers: Mutex::default(),
            next: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            counts: Arc::default(),
        });
        Ok(Arc::new(Self { inner, threads: Mutex::default(), refused: RateLimited::default() }))
    }

    /// Accepts programs at `listener` from now on.
    pub fn listen(self: &Arc<Self>, system: &System, listener: UnixListener) -> Result<()> {
        let failed = |error| Fault::from_os("listening for programs", &error);
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = Watched::new(system.reactor(), listener).map_err(failed)?;
        let (server, runtime) = (Arc::downgrade(self), system.runtime().clone());
        system.runtime().spawn(async move {
            loop {
                let accepted = listener.read_with(|listener| listener.accept()).await;
                let Some(server) = server.upgrade() else { return };
                server.accepted(accepted.map(|(socket, _)| socket), &runtime).await;
            }
        });
        Ok(())
    }

    async fn accepted(&self, socket: std::io::Result<UnixStream>, runtime: &Runtime) {
        match socket {
            Ok(socket) => {
                if let Err(fault) = self.admit(socket) {
                    self.refused.warn(format_args!("{fault}"));
                }
            }
            Err(error) => {
                self.refused.warn(format_args!("cannot accept a program: {error}"));
                runtime.sleep(ACCEPT_PAUSE).await;
            }
        }
    }

    /// Accepts a connected program. The first one starts the threads.
    pub fn admit(&self, socket: UnixStream) -> Result<()> {
        let mut threads = self.threads.lock();
        if self.inner.stopping.load(Ordering::SeqCst) {
            return Ok(());
        }
        while threads.len() < THREADS {
            let inner = self.inner.clone();
            threads.push(start_thread("tameike-ring", move || inner.serve())?);
        }
        self.inner.admit(socket)
    }

    /// Processes the end of all programs that have ended by now.
    pub fn settle(&self) {
        self.inner.settle();
    }

    /// Current counters.
    pub fn usage(&self) -> Usage {
        let Counts { answered, declined, looked_up } = &*self.inner.counts;
        // The lock excludes programs that are welcomed but not yet in the map.
        let programs = &self.inner.programs.lock().programs;
        let connected = programs.values().fold(0_u64, |sum, program| match program {
            Program::New(..) => sum,
            Program::Served(connection) => sum.wrapping_add(connection.looked_up()),
        });
        let looked_up = looked_up.load(Ordering::Relaxed).wrapping_add(connected);
        Usage {
            looked_up,
            clients: programs.len() as u64,
            answered: answered.load(Ordering::Relaxed),
            declined: declined.load(Ordering::Relaxed),
        }
    }

    /// Ends all connections and threads, after the requests in flight. No program is accepted any more.
    pub fn stop(&self) {
        let threads = {
            let mut threads = self.threads.lock();
            self.inner.stopping.store(true, Ordering::SeqCst);
            std::mem::take(&mut *threads)
        };
        self.inner.wake();
        for thread in threads {
            if thread.join().is_err() {
                log::error!("a serving thread of the ring panicked");
            }
        }
        self.inner.end_all();
        self.inner.end_pinned_servers();
    }
}

impl<H: Handler> Drop for Server<H> {
    fn drop(&mut self) {
        self.stop();
    }
}
