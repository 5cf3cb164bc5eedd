use super::*;

const MIB: u64 = 1 << 20;

fn setting(frames: usize) -> Setting {
    Setting {
        nodes: 3,
        frames,
        area: 1000,
        policy: Kind::Lru,
        area_policy: Kind::Lru,
        uses: Uses::Passes,
        knowledge: Knowledge::None,
        last: Last::Stays,
        rounds: 1,
    }
}

fn replay(trace: &Trace, setting: Setting) -> Outcome {
    super::super::replay(trace, setting).expect("three nodes")
}

/// A trace of units of one file that nodes read whole.
fn reads(units: &[(usize, u32)]) -> Trace {
    let line = |&(node, index): &(usize, u32)| format!("{node} 0 {} {MIB} r\n", u64::from(index) * MIB);
    Trace::parse(&units.iter().map(line).collect::<String>()).expect("a trace")
}

/// The node that is the home of a unit, and the two others.
fn nodes_of(index: u32) -> [usize; 3] {
    let trace = reads(&[]);
    let home = Cluster::new(&trace, setting(1)).expect("three nodes").home(Unit { file: 0, index });
    [home, (home + 1) % 3, (home + 2) % 3]
}

#[test]
fn a_unit_is_found_where_it_is_nearest() {
    let [home, one, other] = nodes_of(0);
    let outcome = replay(&reads(&[(one, 0), (one, 0), (other, 0), (home, 0), (home, 0)]), setting(4));
    // Its home has it on its device and does not keep it.
    assert_eq!((outcome.passes, outcome.shared, outcome.own()), (5, 1, 1));
    assert_eq!((outcome.other, outcome.own_device), (1, 2));
    let alone = replay(&reads(&[(home, 0), (home, 0), (one, 0)]), setting(4));
    assert_eq!((alone.shared, alone.own_device, alone.devices), (1, 1, 1));
    let forgetful = replay(&reads(&[(home, 0), (home, 0)]), Setting { area: 0, ..setting(4) });
    assert_eq!(forgetful.shared, 2);
}

#[test]
fn to_go_on_in_a_unit_is_no_use_of_its_own() {
    let [_, one, _] = nodes_of(0);
    let step = |offset: u64| format!("{one} 0 {offset} 4096 r\n");
    let trace = Trace::parse(&[0, 4096, 8192, 0].map(step).concat()).expect("a trace");
    assert_eq!(replay(&trace, setting(4)).passes, 2);
}

#[test]
fn what_is_written_is_in_no_other_memory() {
    let [home, one, other] = nodes_of(0);
    let line = |node, kind| format!("{node} 0 0 {MIB} {kind}\n");
    let text = [line(one, 'r'), line(other, 'r'), line(home, 'w'), line(one, 'r'), line(home, 'r')].concat();
    let outcome = replay(&Trace::parse(&text).expect("a trace"), setting(4));
    // Its home has written it, and has it in memory.
    assert_eq!((outcome.other, outcome.own(), outcome.shared), (2, 1, 1));
}

/// Unit 0 is held by two nodes, unit 3 by one: who knows lets the former go, though it was used later.
#[test]
fn a_last_copy_outlives_one_that_another_node_has() {
    let [_, one, other] = nodes_of(0);
    assert_eq!(nodes_of(3), nodes_of(0));
    let trace = reads(&[(one, 3), (other, 0), (one, 0), (one, 6), (one, 3)]);
    let found = |knowledge| {
        let outcome = replay(&trace, Setting { knowledge, ..setting(2) });
        (outcome.own(), outcome.devices)
    };
    assert_eq!(found(Knowledge::None), (0, 1));
    assert_eq!(found(Knowledge::Learned), (1, 0));
    assert_eq!(found(Knowledge::Exact), (1, 0));
}

#[test]
fn a_last_copy_moves_to_another_node() {
    let [_, one, _] = nodes_of(0);
    let trace = reads(&[(one, 0), (one, 3), (one, 0)]);
    let moves = Setting { knowledge: Knowledge::Exact, last: Last::Moves, ..setting(1) };
    let outcome = replay(&trace, moves);
    assert_eq!((outcome.moved, outcome.other, outcome.devices), (2, 1, 0));
    assert_eq!(replay(&trace, setting(1)).devices, 1);
}
