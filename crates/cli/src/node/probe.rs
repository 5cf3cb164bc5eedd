//! Tries, in a process that ends right after, whether namespaces and a FUSE mount can be made here. There is
//! no other way to know: sites refuse them in half a dozen places, and some only after the namespace exists.

use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};
use tameike_agent::control::Isolation;
use tameike_core::{Fault, Result};
use tameike_io::os::{mount, namespace};

/// What was possible.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The namespaces, or why not.
    pub isolation: Result<Isolation, String>,
    /// The mount in them, or why not.
    pub mount: Result<(), String>,
}

impl Probe {
    /// The namespaces, when a mount can be made in them.
    ///
    /// # Errors
    /// Why not.
    pub fn usable(self) -> Result<Isolation, String> {
        self.mount.and(self.isolation)
    }
}

/// Names what [`namespace::isolate`] made.
pub fn isolation_of(made: namespace::Namespaces) -> Isolation {
    match made {
        namespace::Namespaces::Mount => Isolation::MountNamespace,
        namespace::Namespaces::UserAndMount => Isolation::UserNamespace,
    }
}

/// Tries in the calling process, and prints the result as JSON. Returns the exit code.
pub fn run() -> u8 {
    let isolation = namespace::isolate().map(isolation_of);
    let mount = match &isolation {
        // The mount is seen by this process only, so any directory will do.
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

/// Tries in a child.
///
/// # Errors
/// The child could not be run.
pub fn in_child() -> Result<Probe> {
    let failed = |error| Fault::from_os("probing what this host allows", &error);
    let output = Command::new("/proc/self/exe").arg("probe").stdin(Stdio::null()).output().map_err(failed)?;
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.into()))
}
