//! Tests in a child process if namespaces and a FUSE mount can be created on this host. There is no other way to know: hosts
//! refuse them in many ways, and some only after the namespace exists.

use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};
use tameike_agent::control::Isolation;
use tameike_core::{Fault, Result};
use tameike_io::os::{mount, namespace};

/// The outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The namespaces, or the reason of the failure.
    pub isolation: Result<Isolation, String>,
    /// The mount in them, or the reason of the failure.
    pub mount: Result<(), String>,
}

impl Probe {
    /// Returns the namespaces if a mount can be created in them.
    pub fn usable(self) -> Result<Isolation, String> {
        self.mount.and(self.isolation)
    }
}

/// Converts the result of [`namespace::isolate`].
pub fn isolation_of(made: namespace::Namespaces) -> Isolation {
    match made {
        namespace::Namespaces::Mount => Isolation::MountNamespace,
        namespace::Namespaces::UserAndMount => Isolation::UserNamespace,
    }
}

/// Runs the test in this process, and prints the outcome as JSON. Returns the exit code.
pub fn run() -> u8 {
    let isolation = namespace::isolate().map(isolation_of);
    let mount = match &isolation {
        // Only this process sees the mount, so any directory works.
        Ok(_) => mount::mount_fuse("tameike-probe", &std::env::temp_dir(), false).map(drop),
        Err(fault) => Err(fault.clone()),
    };
    let probe = Probe {
        isolation: isolation.map_err(|fault| fault.to_string()),
        mount: mount.map_err(|fault| fault.to_string()),
    };
    println!("{}", serde_json::to_string(&probe).expect("a probe is plain data"));
    0
}

/// Runs the test in a child process.
pub fn in_child() -> Result<Probe> {
    let failed = |error| Fault::from_os("probing namespaces and mounts of this host", &error);
    let output = Command::new("/proc/self/exe").arg("probe").stdin(Stdio::null()).output().map_err(failed)?;
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.into()))
}
