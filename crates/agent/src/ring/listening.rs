//! Listens for programs at the ring's socket, and serves them until it is stopped.

use super::RingFrontend;
use std::fs::{Permissions, set_permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tameike_core::wire::admin::Counter;
use tameike_core::{Fault, Result, View};
use tameike_io::Runtime;
use tameike_io::os::process;
use tameike_io::os::system::System;
use tameike_ring::frames::FrameTable;
use tameike_ring::server::{NameTable, Server, Usage};

/// The listening ring of an agent.
pub(crate) struct Ring {
    server: Arc<Server<RingFrontend>>,
    frontend: Arc<RingFrontend>,
}

impl Ring {
    /// Listens at `path` for programs of this user. Serves the views `served`, with their mount points, through the frontend that
    /// `make_frontend` returns. `frame_grants` shares frames with programs.
    pub(crate) fn open(
        system: &System,
        path: &Path,
        served: Vec<(View, PathBuf)>,
        frame_grants: Option<Arc<FrameTable>>,
        make_frontend: impl FnOnce(&[View], Arc<NameTable>) -> RingFrontend,
    ) -> Result<Self> {
        let failed = |error| Fault::from_os(format_args!("creating the socket {}", path.display()), &error);
        let names =
            NameTable::new().map_err(|error| Fault::from_os("creating shared memory for names", &error))?;
        let views: Vec<View> = served.iter().map(|(view, _)| *view).collect();
        let frontend = Arc::new(make_frontend(&views, names.clone()));
        let mounts = served.iter().map(|(_, mount)| mount.as_os_str().as_bytes().to_vec()).collect();
        let server = Server::new(frontend.clone(), mounts, process::user(), (names, frame_grants))?;
        let listener = UnixListener::bind(path).map_err(failed)?;
        set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
        server.listen(system, listener)?;
        Ok(Self { server, frontend })
    }

    pub(crate) fn counters(&self) -> Vec<Counter> {
        let Usage { clients, answered, declined, looked_up } = self.server.usage();
        let named = [
            ("ring_clients", clients),
            ("ring_answered", answered),
            ("ring_declined", declined),
            ("ring_looked_up", looked_up),
        ];
        named.map(|(name, value)| Counter::new(name, value)).into()
    }

    /// Waits until the files of programs that have ended are closed.
    pub(crate) fn settle(&self) {
        self.server.settle();
        pollster::block_on(self.frontend.settled());
    }

    /// Closes the connections of programs, and waits up to `limit` until their files are closed.
    pub(crate) fn stop(&self, runtime: &Runtime, limit: Duration) {
        self.server.stop();
        if pollster::block_on(runtime.timeout(limit, self.frontend.settled())).is_none() {
            log::warn!("closing the files of programs took more than {} s", limit.as_secs());
        }
    }
}
