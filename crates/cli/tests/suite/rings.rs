//! The same calls through io_uring and through `/dev/fuse`, whichever the kernel and the agent's memory allow.

use crate::support::{Site, succeed};
use std::fs;

/// Whether the kernel offers FUSE over io_uring.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
/// Memory of an agent that is enough for rings of 27 cores, and one that is not enough for two.
const ENOUGH: &str = "1G";
const TOO_LITTLE: &str = "48M";

/// What the parameter was, which it is again when this is dropped.
struct Parameter(String);

impl Parameter {
    /// None if the kernel has none, or this user may not set it.
    fn keep() -> Option<Self> {
        let before = Self(fs::read_to_string(PARAMETER).ok()?);
        fs::write(PARAMETER, &before.0).is_ok().then_some(before)
    }

    fn set(&self, value: &str) {
        fs::write(PARAMETER, value).expect("it could be written before");
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        self.set(&self.0);
    }
}

/// Runs the calls in a job whose agents have this much memory; threads that served rings.
fn rings(memory: &str) -> u32 {
    let site = Site::new();
    let program = site.plain().join("requests.py");
    fs::write(&program, include_str!("rings/requests.py")).expect("the program");
    let script = format!("python3 {}", program.display());
    let said = succeed(&mut site.job(2, &["--memory", memory], &script));
    site.assert_clean();
    let count = said.lines().find_map(|line| line.strip_prefix("rings ")?.parse().ok());
    count.unwrap_or_else(|| unreachable!("the program says it: {said}"))
}

/// Whether the doctor takes the lack of rings for something to be mended.
fn doctor_mends() -> bool {
    let output = Site::new().tameike(&["doctor"]).output().expect("a doctor");
    String::from_utf8_lossy(&output.stdout).contains(&format!("echo Y > {PARAMETER}"))
}

#[test]
fn calls_are_served_by_rings_or_the_device() {
    let Some(parameter) = Parameter::keep() else {
        println!("skipped: {PARAMETER} cannot be set");
        return;
    };
    parameter.set("N");
    assert_eq!(rings(ENOUGH), 0, "the kernel offers none");
    assert!(doctor_mends());
    parameter.set("Y");
    assert!(!doctor_mends());
    assert!(rings(ENOUGH) > 0, "the kernel offers them");
    assert_eq!(rings(TOO_LITTLE), 0, "there are too few frames");
}
