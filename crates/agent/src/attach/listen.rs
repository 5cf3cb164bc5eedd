//! The listening side: accepts mounts, and serves each on threads of its own.
//!
//! A client that is slow or silent occupies one thread for at most [`REQUEST_TIME`], and counts as an attachment meanwhile. The number of
//! attachments is limited, and for users other than root and the owner of the volume also that of each user.

use super::peer::Peer;
use super::view::AttachedView;
use super::{Answer, MESSAGE_SIZE_MAX, NodeAddress, REQUEST_TIME, Request, VERSION, line};
use crate::arbiter::{ATTRIBUTES_LINGER, Arbiter, Mounts, OneMount};
use crate::fuse::{self, FuseFrontend, Serving, THREADS_PER_VIEW};
use crate::views::Views;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tameike_client::shared::SharedView;
use tameike_core::{Errno, Fault, Result};
use tameike_io::Runtime;
use tameike_io::os::{mount, process, socket};

/// Largest number of attachments of an agent, with those that are being made.
const ATTACHMENTS_MAX: usize = 256;
/// Of these, the largest number of one user other than root and the owner.
const ATTACHMENTS_PER_USER_MAX: usize = 64;
/// Threads that read requests of an attachment of such a user: each has a buffer of the size of a request.
const THREADS_OF_OTHERS: usize = 2;
/// Divisor of the view's frames: the part that threads of attachments may hold for writes which have not arrived yet.
const FRAMES_PART: usize = 8;
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The attachments of an agent.
pub struct Attachments(Arc<Listener>);

struct Listener {
    runtime: Runtime,
    views: Arc<Views>,
    address: NodeAddress,
    socket: UnixListener,
    is_stopped: AtomicBool,
    /// Attachments of each user.
    users: Mutex<BTreeMap<u32, usize>>,
    /// Mounts that the agent serves.
    mounts: Arc<Mounts>,
    /// Attachments whose threads may hold frames.
    framed: AtomicUsize,
}

/// Counts an attachment of a user.
struct Place {
    listener: Arc<Listener>,
    user: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut users = self.listener.users.lock();
        if let Some(count) = users.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                users.remove(&self.user);
            }
        }
    }
}

/// Counts an attachment whose threads may hold frames.
struct Framed(Arc<Listener>);

impl Drop for Framed {
    fn drop(&mut self) {
        self.0.framed.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A mount that is served.
struct Attachment {
    view: Arc<AttachedView<SharedView>>,
    frontend: FuseFrontend<AttachedView<SharedView>>,
    in_flight: Arc<fuse::InFlight>,
    threads: usize,
    mount: Arc<OneMount>,
    framed: Option<Framed>,
}

impl Attachments {
    /// Accepts mounts of the job-shared view from now on, until [`Self::stop`]. The agent has neither a ring nor a mount of its own for this
    /// view: they would not learn what the attachments change.
    ///
    /// # Errors
    /// `EADDRINUSE` if another process has the socket of this agent.
    pub fn listen(runtime: &Runtime, views: &Arc<Views>, address: NodeAddress) -> Result<Self> {
        let socket = UnixListener::bind_addr(&address.socket_address()?).map_err(|error| {
            let name = address.socket_name();
            let fault = Fault::from_os(format_args!("creating the socket {name} for mounts"), &error);
            let hint = format!("{fault}; `ss -lxp src @{name}` shows the process that has it");
            if error.kind() == ErrorKind::AddrInUse { Fault::new(fault.errno, hint) } else { fault }
        })?;
        let listener = Arc::new(Listener {
            runtime: runtime.clone(),
            views: views.clone(),
            address,
            socket,
            is_stopped: AtomicBool::new(false),
            users: Mutex::default(),
            mounts: Arc::default(),
            framed: AtomicUsize::new(0),
        });
        let accepting = listener.clone();
        process::start_thread("tameike-attach", move || accepting.accept_all())?;
        Ok(Self(listener))
    }

    /// The number of attachments, with those that are being made.
    pub fn count(&self) -> usize {
        self.0.users.lock().values().sum()
    }

    /// Accepts no more mounts. The others are served until their unmounts.
    pub fn stop(&self) {
        self.0.is_stopped.store(true, Ordering::SeqCst);
        socket::stop_listening(&self.0.socket);
    }
}

impl Drop for Attachments {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Listener {
    fn accept_all(self: Arc<Self>) {
        while !self.is_stopped.load(Ordering::SeqCst) {
            match self.socket.accept() {
                Ok((socket, _)) => self.accepted(socket),
                Err(_) if self.is_stopped.load(Ordering::SeqCst) => return,
                Err(error) => {
                    log::warn!("accepting a mount: {error}");
                    pollster::block_on(self.runtime.sleep(ACCEPT_PAUSE));
                }
            }
        }
    }

    /// Serves a connection on a thread of its own, if the user may have one.
    fn accepted(self: &Arc<Self>, socket: UnixStream) {
        let admitted =
            self.peer(&socket).and_then(|(user, peer)| Ok((self.place(user, peer.is_checked())?, peer)));
        match admitted {
            Ok((place, peer)) => {
                let listener = self.clone();
                let serve = move || listener.serve(&socket, peer, place);
                if let Err(fault) = process::start_thread("tameike-mount", serve) {
                    log::error!("a mount is refused: {fault}");
                }
            }
            Err(fault) => {
                log::info!("a mount is refused: {fault}");
                answer(&socket, &Answer::Refused(fault));
            }
        }
    }

    /// The user at the other end of a connection.
    fn peer(&self, socket: &UnixStream) -> Result<(u32, Peer)> {
        let found = socket::peer(socket)?;
        if process::may_be_any_user(found.user) {
            let message =
                "the agent runs in a user namespace in which your user has no number: mount as its owner";
            return Err(Fault::new(Errno::EPERM, message));
        }
        let mut groups = socket::peer_groups(socket)?;
        groups.retain(|&group| !process::may_be_any_user(group));
        let peer = Peer::new((found.user, found.group), groups, self.address.volume.owner);
        Ok((found.user, peer))
    }

    /// Counts a new attachment, unless there are too many.
    fn place(self: &Arc<Self>, user: u32, is_other: bool) -> Result<Place> {
        let mut users = self.users.lock();
        let full = |what: &str, max: usize| {
            let message = format!("{what} has {max} mounts of the volume on this node already: unmount one");
            Err(Fault::new(Errno::EMFILE, message))
        };
        if users.values().sum::<usize>() >= ATTACHMENTS_MAX {
            return full("the agent", ATTACHMENTS_MAX);
        }
        let own = users.entry(user).or_default();
        if is_other && *own >= ATTACHMENTS_PER_USER_MAX {
            return full("your user", ATTACHMENTS_PER_USER_MAX);
        }
        *own += 1;
        Ok(Place { listener: self.clone(), user })
    }

    /// Serves one mount, until it is unmounted.
    fn serve(self: &Arc<Self>, socket: &UnixStream, peer: Peer, place: Place) {
        let sees_threads = socket::peer(socket).is_ok_and(|peer| peer.shares_process_numbers());
        let user = peer.user();
        let begun = receive(socket).and_then(|fuse| {
            let mut attachment = self.attachment(peer);
            attachment.frontend.sees_threads = sees_threads;
            Ok((self.begin(&attachment, fuse)?, attachment))
        });
        let (session, attachment) = match begun {
            Ok(begun) => begun,
            Err(fault) => {
                log::info!("a mount of user {user} is refused: {fault}");
                return answer(socket, &Answer::Refused(fault));
            }
        };
        answer(socket, &Answer::Attached);
        let Attachment { view, frontend, in_flight, framed, .. } = attachment;
        if let Err(fault) = session.run(frontend) {
            log::error!("a mount of user {user}: {fault}");
        }
        // The unmount is not announced, and the kernel sends nothing more: neither releases nor unlocks.
        view.end();
        self.runtime.spawn(async move {
            in_flight.ended().await;
            view.close_all().await;
            drop((framed, place));
        });
    }

    /// Answers the kernel's first request.
    fn begin(&self, attachment: &Attachment, fuse: OwnedFd) -> Result<tameike_fuse::Session> {
        if !mount::has_request(fuse.as_fd(), REQUEST_TIME) {
            let message = "the kernel has sent no request: the descriptor must be that of a new mount";
            return Err(Fault::new(Errno::ETIMEDOUT, message));
        }
        if !attachment.mount.is_alone() {
            // What other mounts may cache longer while they are alone has expired then.
            pollster::block_on(self.runtime.sleep(ATTRIBUTES_LINGER));
        }
        let serving = Serving { threads: attachment.threads, rings: None, checks_permissions: true };
        fuse::begin(&attachment.frontend, fuse, serving)
    }

    fn attachment(self: &Arc<Self>, peer: Peer) -> Attachment {
        let threads = if peer.is_checked() { THREADS_OF_OTHERS } else { THREADS_PER_VIEW };
        let framed = if peer.is_checked() { None } else { self.framed(threads) };
        let mount = Arc::new(OneMount::new(self.runtime.clone(), self.mounts.clone()));
        let shared = self.views.shared().clone();
        let view = Arc::new(AttachedView::new(shared, peer, mount.clone(), framed.is_some()));
        let arbiter = Arbiter::of_one_mount(self.runtime.clone(), mount.clone());
        let mut frontend = self.views.mount_frontend(view.clone(), (arbiter, threads / 2));
        let in_flight = frontend.count_requests();
        Attachment { view, frontend, in_flight, threads, mount, framed }
    }

    /// Lets the threads of one more attachment hold a frame each, if there are enough.
    fn framed(self: &Arc<Self>, threads: usize) -> Option<Framed> {
        let before = self.framed.fetch_add(1, Ordering::SeqCst);
        let framed = Framed(self.clone());
        let frames_max = self.views.frames() as usize / FRAMES_PART;
        ((before + 1) * threads <= frames_max).then_some(framed)
    }
}

/// Receives a request with the descriptor of a mount.
fn receive(socket: &UnixStream) -> Result<OwnedFd> {
    let failed = |error: std::io::Error| Fault::from_os("receiving a mount", &error);
    socket.set_read_timeout(Some(REQUEST_TIME)).map_err(failed)?;
    let mut bytes = [0; MESSAGE_SIZE_MAX];
    // A client sends the request at once, so that one call receives all of it.
    let (size, mut files) = socket::receive_now(socket, &mut bytes).map_err(failed)?;
    let request: Request = serde_json::from_slice(&bytes[..size])
        .map_err(|error| Fault::new(Errno::EPROTO, format!("the request is malformed: {error}")))?;
    if request.version != VERSION {
        let message = format!(
            "the agent speaks version {VERSION} of the protocol, and not {}: use the program that started the volume",
            request.version
        );
        return Err(Fault::new(Errno::EPROTO, message));
    }
    match (files.pop(), files.is_empty()) {
        (Some(fuse), true) if mount::is_fuse_device(fuse.as_fd()) => Ok(fuse),
        _ => Err(Fault::new(Errno::EINVAL, format!("the request needs one open {}", mount::FUSE_DEVICE))),
    }
}

/// Sends an answer to a client that may be gone.
fn answer(mut socket: &UnixStream, answer: &Answer) {
    let sent = socket.set_write_timeout(Some(REQUEST_TIME)).and_then(|()| socket.write_all(&line(answer)));
    if let Err(error) = sent {
        log::debug!("a client does not take the answer to its mount: {error}");
    }
}
