//! The ring of an agent: listens at a path, and serves programs until it is stopped.

use super::RingDoor;
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

/// The ring of an agent that listens.
pub(crate) struct Ring {
    server: Arc<Server<RingDoor>>,
    door: Arc<RingDoor>,
}

impl Ring {
    /// Listens at `path` for programs of this user. They find the views `served`, at their mounts, through the door that `make_door`
    /// returns, and may read the frames of `lent`.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub(crate) fn open(
        system: &System,
        path: &Path,
        served: Vec<(View, PathBuf)>,
        lent: Option<Arc<FrameTable>>,
        make_door: impl FnOnce(&[View], Arc<NameTable>) -> RingDoor,
    ) -> Result<Self> {
        let failed = |error| Fault::from_os(format_args!("making the socket {}", path.display()), &error);
        let names = NameTable::new().map_err(|error| Fault::from_os("making memory for names", &error))?;
        let views: Vec<View> = served.iter().map(|(view, _)| *view).collect();
        let door = Arc::new(make_door(&views, names.clone()));
        let mounts = served.iter().map(|(_, mount)| mount.as_os_str().as_bytes().to_vec()).collect();
        let server = Server::new(door.clone(), mounts, process::user(), (names, lent))?;
        let listener = UnixListener::bind(path).map_err(failed)?;
        set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
        server.listen(system, listener)?;
        Ok(Self { server, door })
    }

    /// What it has done, for who asks for the state of the agent.
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

    /// Waits until the files of all programs that have ended by now are closed.
    pub(crate) fn settle(&self) {
        self.server.settle();
        pollster::block_on(self.door.settled());
    }

    /// Ends the connections of programs, and waits for their files to be closed.
    pub(crate) fn stop(&self, runtime: &Runtime, limit: Duration) {
        self.server.stop();
        if pollster::block_on(runtime.timeout(limit, self.door.settled())).is_none() {
            log::warn!("files of programs were not closed in time");
        }
    }
}
