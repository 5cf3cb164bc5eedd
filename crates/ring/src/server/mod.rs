//! The end of the agent.
//!
//! Knows nothing of views: a [`Handler`] is given decoded requests and answers them. Programs of one user are served, a
//! bounded number of them, by two threads that are started with the first, and by pinned servers of programs that have polled in vain
//! ([`pinned_server`]). While nobody asks all of it sleeps.

mod connection;
mod guests;
mod names;
mod pinned_server;
mod pinned_state;
mod threads;
pub(crate) mod watch;

pub use connection::{Asked, Window};
pub use names::NameTable;
pub use tameike_io::os::socket::Peer;

use crate::frames::FrameTable;
use crate::spin::Spin;
use connection::{Connection, Counts};
use guests::Guest;
use parking_lot::{Mutex, RwLock};
use pinned_server::PinnedServers;
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tameike_core::{Fault, Result};
use tameike_io::os::process::start_thread;
use tameike_io::os::reactor::Watched;
use tameike_io::os::runtime::Runtime;
use tameike_io::os::seldom::Seldom;
use tameike_io::os::system::System;
use watch::Watch;

/// Programs that are served at the same time.
pub const CLIENTS_MAX: usize = 256;
/// Threads that serve them.
pub const THREADS: usize = 2;
/// How long a thread looks for a request before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// How long to wait before programs are accepted again, when the system could not.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers requests.
pub trait Handler: Send + Sync + Sized + 'static {
    /// What is kept of one program.
    type Session: Send + Sync;

    /// A program has connected. Is called with a lock held: must neither wait nor call back.
    fn begin(&self, peer: &Peer) -> Self::Session;

    /// Serves a request, or has it served: it is answered when `asked` is. Requests of one program come from several
    /// threads at once.
    fn serve(&self, asked: Asked<Self>);

    /// A program has closed a file, and waits for no answer.
    fn left(&self, session: &Self::Session, handle: u64);

    /// The program is gone; requests of it may be under way yet. Is called as [`Self::begin`] is, before
    /// [`Server::settle`] knows of it.
    fn leaves(&self, session: &Self::Session);

    /// With the program, all its requests are gone. Must not wait.
    fn ended(&self, session: &Self::Session);
}

struct Inner<H: Handler> {
    handler: Arc<H>,
    /// Mount points of the views, told to programs.
    views: Vec<Vec<u8>>,
    /// Who is served.
    user: u32,
    /// Frames that they may read, if any.
    lent: Option<Arc<FrameTable>>,
    names: Arc<NameTable>,
    watch: Watch,
    spin: Spin,
    epoll: OwnedFd,
    wakeup: OwnedFd,
    /// All that are connected, by number.
    guests: Mutex<Guests<H>>,
    /// Those that can ask.
    connections: RwLock<Vec<Arc<Connection<H>>>>,
    pinned_servers: PinnedServers<H>,
    /// Whose turn it is.
    next: AtomicUsize,
    stopping: AtomicBool,
    counts: Arc<Counts>,
}

/// What a server has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Programs that are connected.
    pub clients: u64,
    /// Requests that were answered here.
    pub answered: u64,
    /// Requests that were left to the kernel.
    pub declined: u64,
    /// Names that programs have looked up by themselves, as they say.
    pub looked_up: u64,
}

struct Guests<H: Handler> {
    guests: BTreeMap<u64, Guest<H>>,
    last: u64,
}

/// Serves programs through their arenas. Dropped, it stops.
pub struct Server<H: Handler> {
    inner: Arc<Inner<H>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    refused: Seldom,
}

impl<H: Handler> Server<H> {
    /// A server of the programs of `user`, which are told the mount points `views`, shown names in a table, and may read the frames
    /// of another, if there is one.
    ///
    /// # Errors
    /// What the system refuses: descriptors or memory.
    pub fn new(
        handler: Arc<H>,
        views: Vec<Vec<u8>>,
        user: u32,
        (names, lent): (Arc<NameTable>, Option<Arc<FrameTable>>),
    ) -> Result<Arc<Self>> {
        let failed = |error| Fault::from_os("preparing the ring", &error);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| failed(error.into()))?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &wakeup, epoll::EventData::new_u64(guests::WAKEUP), flags)
            .map_err(|error| failed(error.into()))?;
        let inner = Arc::new(Inner {
            handler,
            views,
            user,
            lent,
            watch: Watch::new(names.notice().clone()),
            names,
            spin: Spin::new(SPIN),
            epoll,
            wakeup,
            guests: Mutex::new(Guests { guests: BTreeMap::new(), last: 0 }),
            connections: RwLock::default(),
            pinned_servers: PinnedServers::default(),
            next: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            counts: Arc::default(),
        });
        Ok(Arc::new(Self { inner, threads: Mutex::default(), refused: Seldom::default() }))
    }

    /// Takes in programs that come to `listener`, from now on.
    ///
    /// # Errors
    /// When it cannot be watched.
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
                self.refused.warn(format_args!("cannot take in a program: {error}"));
                runtime.sleep(ACCEPT_PAUSE).await;
            }
        }
    }

    /// Takes in a program that has connected. The first one finds threads started.
    ///
    /// # Errors
    /// Why it could not be taken in.
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

    /// Takes note of all programs that have ended by now.
    pub fn settle(&self) {
        self.inner.settle();
    }

    /// What it has done.
    pub fn usage(&self) -> Usage {
        let Counts { answered, declined, looked_up } = &*self.inner.counts;
        // With this lock held, nobody is being welcomed who is not yet among them.
        let guests = &self.inner.guests.lock().guests;
        let by_guests = guests.values().fold(0_u64, |sum, guest| match guest {
            Guest::New(..) => sum,
            Guest::Served(connection) => sum.wrapping_add(connection.looked_up()),
        });
        let looked_up = looked_up.load(Ordering::Relaxed).wrapping_add(by_guests);
        Usage {
            looked_up,
            clients: guests.len() as u64,
            answered: answered.load(Ordering::Relaxed),
            declined: declined.load(Ordering::Relaxed),
        }
    }

    /// Ends all connections and threads; what is under way is still answered. Nobody is taken in any more.
    pub fn stop(&self) {
        let threads = {
            let mut threads = self.threads.lock();
            self.inner.stopping.store(true, Ordering::SeqCst);
            std::mem::take(&mut *threads)
        };
        self.inner.wake();
        for thread in threads {
            if thread.join().is_err() {
                log::error!("a serving thread of the ring ended in a panic");
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
