//! Attacks by other users of the host or of the network.

use super::admission::UNAUTHENTICATED_MAX;
use super::handshake::{Channel, Identity, Proven};
use super::host::meeting_name;
use super::seal::{Stream, TAG_SIZE};
use super::tests::{SocketNetwork, impostor, sealed};
use super::*;
use crate::conformance::{A, Agent, B, Network, wait};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as LocalAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use tameike_core::limits::UNIT_SIZE;
use tameike_io::os::process::{self, start_thread};

/// A user other than that of the tests' agents.
const OTHER_USER: u32 = 65534;

/// Runs Python as another user; `None` without the permission.
fn as_other_user(script: &str, name: &str) -> Option<Child> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let mut command = Command::new("python3");
    command.args(["-c", script, name]).uid(OTHER_USER).gid(OTHER_USER).stdout(Stdio::piped());
    Some(command.spawn().expect("Python"))
}

fn one_host() -> SocketNetwork {
    let mut network = SocketNetwork::new(UNIT_SIZE, 2);
    network.one_host = true;
    // Concurrent tests have other socket names.
    static LAST: AtomicU8 = AtomicU8::new(100);
    network.secret = [LAST.fetch_add(1, Ordering::Relaxed); 32];
    network
}

/// Another user listens on the name of an agent of this host. It receives nothing, and the agents use TCP.
#[test]
fn another_users_listener_receives_nothing() {
    let network = one_host();
    let a = Agent::start(&network, A);
    // B has no local socket, so that its name is free.
    let b = network.begin(SocketConfig { slab: None, ..network.config(B) });
    let name = meeting_name(&network.config(A).secret, B, b.local_addr().port());
    let script = "
import socket, sys
s = socket.socket(socket.AF_UNIX); s.bind('\\0' + sys.argv[1]); s.listen(4)
print('ready', flush=True)
c = s.accept()[0]; c.settimeout(10)
print('received', len(c.recv(4096)), flush=True)";
    let Some(mut child) = as_other_user(script, &name) else { return };
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "ready");
    a.send(&network, B, b"over TCP");
    assert_eq!(lines.next().expect("a line").expect("text"), "received 0");
    assert!(!network.fabric(A).inner.is_neighbour(B));
    child.wait().expect("the child exits");
}

/// Another user connects to the local socket of an agent, whose name the kernel shows to all users.
#[test]
fn another_users_connection_is_closed_before_a_hello() {
    let network = one_host();
    let _a = Agent::start(&network, A);
    let name = meeting_name(&network.config(A).secret, A, network.fabric(A).local_addr().port());
    let shown = std::fs::read_to_string("/proc/net/unix").expect("the kernel's list");
    assert!(shown.contains(&name) && !shown.contains(&format!("tameike-{}", network.config(A).job)));
    let script = "
import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect('\\0' + sys.argv[1]); s.settimeout(2)
try: s.sendall(b'x' * 112); print('received', len(s.recv(4096)))
except ConnectionError: print('received', 0)";
    let Some(child) = as_other_user(script, &name) else { return };
    let output = child.wait_with_output().expect("the child exits");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "received 0\n");
}

/// Runs a handshake between an opener and an acceptor of these channels, as a relay between two sockets would.
fn relayed(opener: Channel, acceptor: Channel) -> [Option<Proven>; 2] {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let sockets = UnixStream::pair().expect("sockets");
    let [ours, theirs] = [sockets.0, sockets.1].map(|socket| {
        socket.set_nonblocking(true).expect("a socket");
        Watched::<OwnedFd>::new(network.systems[1].reactor(), socket.into()).expect("a socket")
    });
    let (a, b) = (network.config(A), network.config(B));
    wait(&network.runtime(), async move {
        let a = Identity { config: &a, channel: opener, incarnation: 1, nonce: [1; 32] };
        let b = Identity { config: &b, channel: acceptor, incarnation: 2, nonce: [2; 32] };
        let open = async {
            let proven = a.open(&ours, B).await.ok();
            drop(ours);
            proven
        };
        let (opened, accepted) = futures_util::future::join(open, b.accept(&theirs)).await;
        [opened, accepted.ok()]
    })
}

#[test]
fn a_proof_is_valid_on_its_own_channel_only() {
    let local = |port| Channel::Local { port };
    for channel in [Channel::Tcp, local(40000)] {
        let [opened, accepted] = relayed(channel, channel);
        let (opened, accepted) = (opened.expect("proven"), accepted.expect("proven"));
        assert_eq!((opened.node, accepted.node), (B, A));
        assert_eq!(opened.keys.outgoing, accepted.keys.incoming);
    }
    for (opener, acceptor) in
        [(Channel::Tcp, local(40000)), (local(40000), Channel::Tcp), (local(40000), local(40001))]
    {
        assert_eq!(relayed(opener, acceptor), [None, None], "{opener:?} {acceptor:?}");
    }
}

/// A local socket of the same user that belongs to no agent: the handshake of local sockets applies to it.
#[test]
fn a_relay_of_the_same_user_is_refused() {
    let network = one_host();
    let a = Agent::start(&network, A);
    let b = network.begin(SocketConfig { slab: None, ..network.config(B) });
    let port = b.local_addr().port();
    let name =
        LocalAddr::from_abstract_name(meeting_name(&network.config(A).secret, B, port)).expect("a name");
    let listener = UnixListener::bind_addr(&name).expect("a free name");
    let relay = start_thread("relay", move || {
        let (mut from, _) = listener.accept().expect("a connects");
        let mut to = std::net::TcpStream::connect(("127.0.0.1", port)).expect("b listens");
        let mut hello = [0; 112];
        from.read_exact(&mut hello).expect("a hello");
        to.write_all(&hello).expect("b reads");
        let mut answer = [0; 144];
        to.read_exact(&mut answer).expect("b answers");
        from.write_all(&answer).expect("a reads");
        // The proof of the opener, and then the descriptors, would follow.
        from.read(&mut [0; 64]).unwrap_or(0)
    })
    .expect("a thread");
    a.send(&network, B, b"over TCP");
    assert_eq!(relay.join().expect("the relay ends"), 0, "nothing is proven to a relay");
    assert!(!network.fabric(A).inner.is_neighbour(B));
}

/// A relay passes the handshake through, and then sends other messages. None arrives, and the connection ends.
#[test]
fn a_message_that_is_forged_repeated_dropped_or_reordered_ends_the_connection() {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let a = Agent::start(&network, A);
    let fabric = network.fabric(A);
    type Attack = fn(&mut Stream) -> Vec<Vec<u8>>;
    let attacks: [(&str, Attack); 6] = [
        ("without tags", |stream| {
            let mut bytes = sealed(stream, b"forged", b"");
            bytes.truncate(bytes.len() - TAG_SIZE);
            vec![bytes, vec![0; TAG_SIZE]]
        }),
        ("by another key", |_| vec![sealed(&mut Stream::new([9; 32]), b"forged", b"payload")]),
        ("repeated", |stream| {
            let bytes = sealed(stream, b"first", b"payload");
            vec![bytes.clone(), bytes]
        }),
        ("dropped", |stream| {
            drop(sealed(stream, b"dropped", b""));
            vec![sealed(stream, b"second", b"")]
        }),
        ("reordered", |stream| {
            let (first, second) = (sealed(stream, b"dropped", b""), sealed(stream, b"second", b""));
            vec![second, first]
        }),
        ("with the payload of another", |stream| {
            let (first, second) = (sealed(stream, b"1", b"payload"), sealed(stream, b"2", b"PAYLOAD"));
            let at = first.len() - TAG_SIZE - 7;
            vec![[&first[..at], &second[at..]].concat()]
        }),
    ];
    for (attack, bytes) in attacks {
        let (mut socket, mut stream) = impostor(&network, &fabric);
        for bytes in bytes(&mut stream) {
            // The connection may have ended already.
            let _ = socket.write_all(&bytes);
        }
        if attack == "repeated" {
            assert_eq!(a.next().body, b"first");
        }
        // The end of the stream, or a reset if bytes were left unread.
        let ended = socket.read_to_end(&mut Vec::new());
        assert!(ended.is_ok_and(|count| count == 0) || attack != "repeated", "{attack}");
        assert!(a.messages.try_recv().is_err(), "{attack}");
    }
    let (mut socket, mut stream) = impostor(&network, &fabric);
    socket.write_all(&sealed(&mut stream, b"authentic", b"")).expect("a reads");
    assert_eq!(a.next().body, b"authentic");
}

/// The largest number of unauthenticated connections, by TCP.
#[test]
fn connection_floods_on_the_network_do_not_affect_the_host() {
    let network = one_host();
    let (_a, b) = (Agent::start(&network, A), Agent::start(&network, B));
    let admission: Vec<_> =
        (0..UNAUTHENTICATED_MAX).map(|_| network.fabric(A).inner.admission[1].enter()).collect();
    b.send(&network, A, b"here");
    assert!(network.fabric(B).inner.is_neighbour(A));
    drop(admission);
}

/// The largest number of unauthenticated connections, all silent. A new one is accepted, and the oldest is closed.
#[test]
fn silent_connection_floods_keep_no_agent_out() {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let (_a, b) = (Agent::start(&network, A), Agent::start(&network, B));
    let a = network.fabric(A);
    let admission = &a.inner.admission[1];
    let mut oldest = TcpStream::connect(a.local_addr()).expect("a listens");
    let end = process::monotonic() + dial::ATTEMPT_LIMIT;
    while admission.count() == 0 {
        assert!(process::monotonic() < end, "a connection is not accepted");
        std::thread::yield_now();
    }
    let others: Vec<_> = (1..UNAUTHENTICATED_MAX).map(|_| admission.enter()).collect();
    let mut newest = TcpStream::connect(a.local_addr()).expect("a listens");
    assert_eq!(oldest.read(&mut [0]).expect("the end of the stream"), 0);
    newest.set_nonblocking(true).expect("a socket");
    let heard = newest.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(heard, Err(std::io::ErrorKind::WouldBlock), "its time limit has not expired");
    b.send(&network, A, b"by TCP");
    drop(others);
}
