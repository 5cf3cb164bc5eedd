use super::*;
use tameike_io::os::simulated::Simulation;

const FILE: FileNumber = FileNumber(7);
const OTHER: FileNumber = FileNumber(8);

fn bed() -> (Simulation, Arc<Arbiter>) {
    let simulation = Simulation::new(3);
    let arbiter = Arbiter::new(simulation.runtime(), false);
    (simulation, arbiter)
}

async fn open_by_kernel(arbiter: &Arbiter, file: FileNumber) {
    arbiter.kernel_opens(file).await.expect("no kernel is attached that could refuse");
}

fn now<T>(future: impl Future<Output = T>) -> T {
    futures_util::FutureExt::now_or_never(future).expect("it need not wait")
}

#[test]
fn the_ring_is_declined_while_the_kernel_has_a_file_open() {
    let (_, arbiter) = bed();
    let gate = arbiter.open(FILE).expect("the kernel does not have it");
    assert!(gate.begin().is_some());
    now(open_by_kernel(&arbiter, FILE));
    now(open_by_kernel(&arbiter, FILE));
    assert!(arbiter.is_open_in_kernel(FILE) && gate.begin().is_none() && arbiter.open(FILE).is_none());
    assert!(arbiter.open(OTHER).is_some());
    arbiter.kernel_closed(FILE);
    assert!(gate.begin().is_none(), "it is open once more");
    arbiter.kernel_closed(FILE);
    assert!(gate.begin().is_some() && !arbiter.is_open_in_kernel(FILE));
}

/// The kernel read pages of a file while a ring write was in flight, and kept the old content.
#[test]
fn an_open_of_the_kernel_waits_for_ring_requests_in_flight() {
    let (_, arbiter) = bed();
    let gate = arbiter.open(FILE).expect("the kernel does not have it");
    let (first, second) = (gate.begin(), gate.begin());
    assert!(first.is_some() && second.is_some());
    let mut opening = Box::pin(open_by_kernel(&arbiter, FILE));
    assert_eq!(futures_util::FutureExt::now_or_never(&mut opening), None);
    assert!(gate.begin().is_none(), "no other begins");
    drop(first);
    assert_eq!(futures_util::FutureExt::now_or_never(&mut opening), None);
    drop(second);
    now(opening);
}

#[test]
fn the_number_of_gates_is_bounded() {
    let (simulation, arbiter) = bed();
    for number in 0..1000 {
        let file = FileNumber(number);
        let gate = arbiter.open(file).expect("the kernel does not have it");
        arbiter.writes(&gate);
        arbiter.release(file);
        now(open_by_kernel(&arbiter, file));
        arbiter.kernel_closed(file);
    }
    simulation.runtime().spawn(simulation.runtime().sleep(2 * ATTRIBUTES_LINGER));
    while simulation.step() {}
    arbiter.hold(FILE);
    arbiter.release(FILE);
    assert_eq!(arbiter.known(), 0, "no file is open, and none was written to lately");
}

/// A program that created a file through the ring, and then called stat on the directory, got its old times from the kernel.
#[test]
fn attributes_older_than_a_change_are_not_cached() {
    let (_, arbiter) = bed();
    let before = arbiter.changes();
    assert!(arbiter.may_cache_attributes(FILE, before), "no program has come through the ring");
    now(arbiter.names_changed(OTHER));
    assert!(!arbiter.may_cache_attributes(FILE, before), "they may be from before the change");
    assert!(arbiter.may_cache_attributes(FILE, arbiter.changes()));
}

#[test]
fn a_file_is_handed_over_by_a_secret_name() {
    let (_, arbiter) = bed();
    let name = arbiter.hand_over(FILE);
    assert!(name.len() <= tameike_ring::client::HANDOVER_NAME_SIZE);
    assert_eq!(arbiter.handed_over(FileNumber::ROOT, &name), Some(FILE));
    assert_eq!(arbiter.handed_over(OTHER, &name), None);
    assert_eq!(arbiter.handed_over(FileNumber::ROOT, b".tameike-"), None);
    assert_ne!(arbiter.hand_over(FILE), name);
    arbiter.end_handover(&name);
    assert_eq!(arbiter.handed_over(FileNumber::ROOT, &name), None);
}
