use super::*;
use tameike_io::os::simulated::Simulation;

const FILE: FileNumber = FileNumber(7);
const OTHER: FileNumber = FileNumber(8);

fn bed() -> (Simulation, Arc<Custody>) {
    let simulation = Simulation::new(3);
    let custody = Custody::new(simulation.runtime());
    (simulation, custody)
}

async fn open_by_kernel(custody: &Custody, file: FileNumber) {
    custody.admit(file).await.expect("no kernel is attached that could refuse");
}

fn now<T>(future: impl Future<Output = T>) -> T {
    futures_util::FutureExt::now_or_never(future).expect("it need not wait")
}

#[test]
fn a_file_is_the_kernels_while_it_has_it_open() {
    let (_, custody) = bed();
    let gate = custody.open(FILE).expect("nobody has it");
    assert!(gate.begin().is_some());
    now(open_by_kernel(&custody, FILE));
    now(open_by_kernel(&custody, FILE));
    assert!(custody.is_kernels(FILE) && gate.begin().is_none() && custody.open(FILE).is_none());
    assert!(custody.open(OTHER).is_some());
    custody.closed(FILE);
    assert!(gate.begin().is_none(), "it is open once more");
    custody.closed(FILE);
    assert!(gate.begin().is_some() && !custody.is_kernels(FILE));
}

/// The kernel read pages of a file while a write through the ring was on its way, and showed them for as long as it liked.
#[test]
fn an_open_of_the_kernel_waits_for_what_is_in_flight() {
    let (_, custody) = bed();
    let gate = custody.open(FILE).expect("nobody has it");
    let (first, second) = (gate.begin(), gate.begin());
    assert!(first.is_some() && second.is_some());
    let mut opening = Box::pin(open_by_kernel(&custody, FILE));
    assert_eq!(futures_util::FutureExt::now_or_never(&mut opening), None);
    assert!(gate.begin().is_none(), "no other begins");
    drop(first);
    assert_eq!(futures_util::FutureExt::now_or_never(&mut opening), None);
    drop(second);
    now(opening);
}

#[test]
fn what_is_remembered_is_bounded() {
    let (simulation, custody) = bed();
    for number in 0..1000 {
        let file = FileNumber(number);
        let gate = custody.open(file).expect("nobody has it");
        custody.writes(&gate);
        custody.release(file);
        now(open_by_kernel(&custody, file));
        custody.closed(file);
    }
    simulation.runtime().spawn(simulation.runtime().sleep(2 * ATTRIBUTES_LINGER));
    while simulation.step() {}
    custody.hold(FILE);
    custody.release(FILE);
    assert_eq!(custody.known(), 0, "no file is open, and none was written to lately");
}

/// The kernel keeps attributes of a directory for a while. A program that made a file through the ring and then asked the
/// kernel for the directory's times was told those of before.
#[test]
fn attributes_that_a_change_has_overtaken_are_not_kept() {
    let (_, custody) = bed();
    let before = custody.changes();
    assert!(custody.tell(FILE, before), "no program has come through the ring");
    now(custody.names_changed(OTHER));
    assert!(!custody.tell(FILE, before), "they may be from before the change");
    assert!(custody.tell(FILE, custody.changes()));
}

#[test]
fn a_file_is_handed_over_by_a_secret_name() {
    let (_, custody) = bed();
    let name = custody.hand_over(FILE);
    assert!(name.len() <= tameike_ring::client::HANDOVER_NAME_SIZE);
    assert_eq!(custody.handed(FileNumber::ROOT, &name), Some(FILE));
    assert_eq!(custody.handed(OTHER, &name), None);
    assert_eq!(custody.handed(FileNumber::ROOT, b".tameike-"), None);
    assert_ne!(custody.hand_over(FILE), name);
    custody.take_back(&name);
    assert_eq!(custody.handed(FileNumber::ROOT, &name), None);
}
