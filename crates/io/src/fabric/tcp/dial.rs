//! Makes connections: calls peers, and lets those who call prove themselves.

use super::Inner;
use super::connection::Side;
use super::handshake::{HandshakeError, Identity, Proven};
use crate::os::reactor::Watched;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tameike_core::NodeId;

/// Time for one attempt to connect, and for a stranger to prove itself.
pub(super) const ATTEMPT_LIMIT: Duration = Duration::from_secs(3);
/// Strangers at one time; more are turned away.
const UNPROVEN_MAX: usize = 256;
/// Pause after a connection could not be accepted, for want of descriptors as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why an attempt to connect failed.
pub(super) enum DialError {
    /// Nobody is there who could be spoken with.
    Gone(String),
    /// Nothing was heard, or the connection broke.
    Silent(String),
}

impl Inner {
    /// One attempt to connect and to prove, which takes at most `limit`.
    pub(super) async fn open(
        &self,
        node: NodeId,
        limit: Duration,
    ) -> std::result::Result<(Proven, Watched<TcpStream>), DialError> {
        let address = self.address(node);
        let attempt = async {
            let resolved = self.resolve(&address).await?;
            let socket = self.connect(resolved).await.map_err(|error| match error.kind() {
                std::io::ErrorKind::ConnectionRefused => DialError::Gone(error.to_string()),
                _ => DialError::Silent(error.to_string()),
            })?;
            let proven = self.identity().open(&socket, node).await.map_err(|error| match error {
                HandshakeError::Denied(why) => {
                    log::error!("cannot speak with {node} at {address}: {why}");
                    DialError::Gone(why)
                }
                HandshakeError::Broken(_) => DialError::Silent(error.to_string()),
            })?;
            Ok((proven, socket))
        };
        let silent = || Err(DialError::Silent(format!("no answer from {address} for {limit:.1?}")));
        self.runtime.timeout(limit, attempt).await.unwrap_or_else(silent)
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

    async fn connect(&self, address: SocketAddr) -> std::io::Result<Watched<TcpStream>> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let socket = self.watch(TcpStream::from(socket))?;
        socket.writable().await;
        sockopt::socket_error(socket.get())??;
        Ok(socket)
    }

    /// Sets a socket's options. The kernel's keep-alive finds dead links of idle connections, its user timeout
    /// those of busy ones.
    fn watch(&self, stream: TcpStream) -> std::io::Result<Watched<TcpStream>> {
        let limit = self.config.peer_limit;
        stream.set_nonblocking(true)?;
        sockopt::set_tcp_nodelay(&stream, true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, (limit / 2).max(Duration::from_secs(1)))?;
        sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(1))?;
        sockopt::set_tcp_user_timeout(&stream, limit.as_millis() as u32)?;
        Watched::new(&self.reactor, stream)
    }

    fn identity(&self) -> Identity<'_> {
        let mut nonce = [0; 32];
        self.runtime.random.fill(&mut nonce);
        Identity { config: &self.config, incarnation: self.incarnation, nonce }
    }

    pub(super) async fn accept_all(self: Arc<Self>) {
        loop {
            let accepted = self.listener.read_with(|listener| listener.accept()).await;
            if self.stopped() {
                return;
            }
            match accepted {
                Ok((stream, from)) => self.runtime.spawn(self.clone().admit(stream, from)),
                Err(error) => {
                    log::error!("cannot accept a connection: {error}");
                    self.runtime.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Lets a stranger prove itself. Until then it costs a socket and this task.
    async fn admit(self: Arc<Self>, stream: TcpStream, from: SocketAddr) {
        if self.unproven.fetch_add(1, Ordering::Relaxed) < UNPROVEN_MAX {
            let attempt = async {
                let socket = self.watch(stream)?;
                let proven = self.identity().accept(&socket).await?;
                Ok::<_, HandshakeError>((proven, socket))
            };
            match self.runtime.timeout(ATTEMPT_LIMIT, attempt).await {
                Some(Ok((proven, socket))) => self.establish(proven, Side::Accepted, socket),
                Some(Err(error)) => log::warn!("a connection from {from} was refused: {error}"),
                None => log::warn!("a connection from {from} did not prove itself in time"),
            }
        } else {
            log::warn!("a connection from {from} was refused: too many prove themselves at this time");
        }
        self.unproven.fetch_sub(1, Ordering::Relaxed);
    }
}
