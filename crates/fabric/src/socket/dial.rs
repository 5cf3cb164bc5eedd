//! Opens and accepts connections, and authenticates both ends.

use super::Inner;
use super::connection::Side;
use super::handshake::{Channel, HandshakeError, Identity, Proven};
use super::host::{self, Exporter, Memory, Neighbour};
use futures_util::future::{Either, select};
use rustix::net::{AddressFamily, SocketFlags, SocketType, acceptfrom_with, connect, socket_with, sockopt};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::NodeId;
use tameike_io::os::reactor::Watched;

/// Time limit for one attempt to connect, and for the proof of an accepted connection.
pub(super) const ATTEMPT_LIMIT: Duration = Duration::from_secs(3);
/// Pause after a failed accept, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The reason that an attempt to connect failed.
pub(super) enum DialError {
    /// No agent of this job listens there.
    Gone(String),
    /// The peer did not answer, or the connection broke.
    Silent(String),
}

/// A new connection to an authenticated agent.
pub(super) struct NewConnection {
    pub proven: Proven,
    pub socket: Watched<OwnedFd>,
    /// Set if the agent is on this host.
    pub neighbour: Option<Neighbour>,
}

fn accept(listener: &OwnedFd) -> std::io::Result<(OwnedFd, Option<SocketAddr>)> {
    let (socket, from) = acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
    Ok((socket, from.and_then(|from| from.try_into().ok())))
}

impl Inner {
    /// Makes one attempt to connect and authenticate, within `limit`.
    pub(super) async fn open(
        &self,
        node: NodeId,
        limit: Duration,
    ) -> std::result::Result<NewConnection, DialError> {
        let address = self.address(node);
        let attempt = async {
            if let Some(new) = self.open_here(node, &address).await {
                return Ok(new);
            }
            let resolved = self.resolve(&address).await?;
            let socket = self.connect(resolved).await.map_err(|error| match error.kind() {
                std::io::ErrorKind::ConnectionRefused => DialError::Gone(error.to_string()),
                _ => DialError::Silent(error.to_string()),
            })?;
            let proven =
                self.identity(Channel::Tcp).open(&socket, node).await.map_err(|error| match error {
                    HandshakeError::Denied(why) => {
                        log::error!("cannot connect to {node} at {address}: {why}");
                        DialError::Gone(why)
                    }
                    HandshakeError::Broken(_) => DialError::Silent(error.to_string()),
                })?;
            Ok(NewConnection { proven, socket, neighbour: None })
        };
        let silent = || Err(DialError::Silent(format!("no answer from {address} for {limit:.1?}")));
        self.runtime.timeout(limit, attempt).await.unwrap_or_else(silent)
    }

    /// Connects to the local socket of an agent, if it is on this host.
    async fn open_here(&self, node: NodeId, address: &str) -> Option<NewConnection> {
        let slab = self.config.slab.as_ref()?;
        let port = address.rsplit_once(':')?.1.parse().ok()?;
        let attempt = async {
            let Some(socket) = host::connect_to(&self.config, &self.reactor, (node, port))? else {
                return Ok(None);
            };
            let proven = self.identity(Channel::Local { port }).open(&socket, node).await?;
            let theirs = host::exchange(&socket, slab, self.config.device.as_deref()).await?;
            Ok::<_, HandshakeError>(Some(NewConnection {
                proven,
                socket,
                neighbour: self.neighbour(Some(theirs)),
            }))
        };
        attempt.await.unwrap_or_else(|error| {
            log::warn!("{node} is reached by TCP, because its local socket fails: {error}");
            None
        })
    }

    fn neighbour(&self, theirs: Option<Memory>) -> Option<Neighbour> {
        let slab = self.config.slab.clone()?;
        Some(Neighbour { exporter: Exporter { slab, exports: self.exports.clone() }, theirs: theirs? })
    }

    async fn resolve(&self, address: &str) -> std::result::Result<SocketAddr, DialError> {
        if let Ok(address) = address.parse() {
            return Ok(address);
        }
        let name = address.to_owned();
        let found = self.runtime.block(move || name.to_socket_addrs().map(|mut found| found.next())).await;
        match found {
            Ok(Some(address)) => Ok(address),
            Ok(None) => Err(DialError::Silent(format!("{address} has no address"))),
            Err(error) => Err(DialError::Silent(format!("cannot look up {address}: {error}"))),
        }
    }

    async fn connect(&self, address: SocketAddr) -> std::io::Result<Watched<OwnedFd>> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let socket = self.watch(socket)?;
        socket.writable().await?;
        sockopt::socket_error(socket.get())??;
        Ok(socket)
    }

    /// Sets the options of a TCP socket. The kernel's keep-alive detects dead links of idle connections, and its user timeout
    /// those of busy ones.
    fn watch(&self, socket: OwnedFd) -> std::io::Result<Watched<OwnedFd>> {
        let limit = self.config.peer_limit;
        sockopt::set_tcp_nodelay(&socket, true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, (limit / 2).max(Duration::from_secs(1)))?;
        sockopt::set_tcp_keepintvl(&socket, Duration::from_secs(1))?;
        sockopt::set_tcp_user_timeout(&socket, limit.as_millis() as u32)?;
        Watched::new(&self.reactor, socket)
    }

    fn identity(&self, channel: Channel) -> Identity<'_> {
        let mut nonce = [0; 32];
        self.runtime.random.fill(&mut nonce);
        Identity { config: &self.config, channel, incarnation: self.incarnation, nonce }
    }

    /// Accepts agents of other hosts, or of this one (`here`).
    pub(super) async fn accept_all(self: Arc<Self>, here: bool) {
        let listener = if here { self.host_listener.as_ref() } else { Some(&self.listener) };
        let Some(listener) = listener else { return };
        loop {
            let accepted = listener.read_with(accept).await;
            if self.stopped() {
                return;
            }
            match accepted {
                Ok((socket, from)) => {
                    let from = from.map_or_else(|| "this host".to_owned(), |from| from.to_string());
                    self.runtime.spawn(self.clone().admit(socket, here, from));
                }
                Err(error) => {
                    self.refused.warn(format_args!("cannot accept a connection: {error}"));
                    self.runtime.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Authenticates an accepted connection. Until then it costs a socket and this task.
    async fn admit(self: Arc<Self>, socket: OwnedFd, here: bool, from: String) {
        // A flood on one kind of socket does not affect the other.
        let admission = &self.admission[usize::from(!here)];
        let (number, must_close) = admission.enter();
        let proof = async {
            let proving = pin!(self.prove(socket, here));
            match select(proving, must_close).await {
                Either::Left((proven, _)) => proven,
                Either::Right(((), _)) => {
                    let why = "too many newer connections arrived before it proved the secret";
                    Err(HandshakeError::Denied(why.into()))
                }
            }
        };
        match self.runtime.timeout(ATTEMPT_LIMIT, proof).await {
            Some(Ok(new)) => self.establish(new, Side::Accepted),
            Some(Err(error)) => {
                self.refused.warn(format_args!("refused a connection from {from}: {error}"));
            }
            None => {
                self.refused
                    .warn(format_args!("a connection from {from} did not prove the job's secret in time"));
            }
        }
        admission.leave(number);
    }

    async fn prove(&self, socket: OwnedFd, here: bool) -> std::result::Result<NewConnection, HandshakeError> {
        let (socket, channel) = if here {
            host::check_owner(&socket)?;
            (Watched::new(&self.reactor, socket)?, Channel::Local { port: self.port })
        } else {
            (self.watch(socket)?, Channel::Tcp)
        };
        let proven = self.identity(channel).accept(&socket).await?;
        let theirs = match self.config.slab.as_ref().filter(|_| here) {
            Some(slab) => Some(host::exchange(&socket, slab, self.config.device.as_deref()).await?),
            None => None,
        };
        // This side reads the other's device by the connection that it opens itself.
        let theirs = theirs.map(Memory::without_device);
        Ok(NewConnection { proven, socket, neighbour: self.neighbour(theirs) })
    }
}
