//! The same calls through io_uring and through `/dev/fuse`, depending on the kernel and the agent's memory.

use crate::support::{Site, out, succeed};
use std::fs;

/// The kernel's parameter for FUSE over io_uring.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
/// Memory of an agent that suffices for rings of 27 cores, and one that does not suffice for two.
const ENOUGH: &str = "1G";
const TOO_LITTLE: &str = "48M";

/// The old value of the parameter, which is restored when this is dropped.
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

/// Runs the calls in a job with this memory per agent; returns the number of threads that served rings.
fn rings(memory: &str) -> u32 {
    let site = Site::new();
    let program = site.python(include_str!("rings/requests.py"));
    let text = succeed(&mut site.job(2, &["--memory", memory], &program));
    let count = text.lines().find_map(|line| line.strip_prefix("rings ")?.parse().ok());
    count.unwrap_or_else(|| unreachable!("the program prints it: {text}"))
}

/// Returns true if the doctor reports missing rings as a problem.
fn doctor_advises() -> bool {
    let output = Site::new().tameike(&["doctor"]).output().expect("a doctor");
    out(&output).contains(&format!("echo Y > {PARAMETER}"))
}

#[test]
fn calls_are_served_by_rings_or_the_device() {
    let Some(parameter) = Parameter::keep() else {
        println!("skipped: {PARAMETER} cannot be set");
        return;
    };
    parameter.set("N");
    assert_eq!(rings(ENOUGH), 0, "the kernel offers none");
    assert!(doctor_advises());
    parameter.set("Y");
    assert!(!doctor_advises());
    assert!(rings(ENOUGH) > 0, "the kernel offers them");
    assert_eq!(rings(TOO_LITTLE), 0, "there are too few frames");
}
