//! Regressions that random seeds found, as reduced programs. The comment of each test describes the former bug.

use std::time::Duration;
use tameike_core::View;
use tameike_core::wire::lock::{LockKind, LockRange};
use tameike_core::wire::meta::RenameMode;
use tameike_sim::op::{Flags, Op};
use tameike_sim::program::{Action, Injection, Program, Step};
use tameike_sim::run::run;
use tameike_sim::world::{DiskFaults, WorldConfig};

fn cached(node: usize, op: Op) -> Step {
    Step::Together(vec![Action::Call { node, view: View::Cache, op }])
}

fn shared(node: usize, op: Op) -> Step {
    Step::Together(vec![Action::Call { node, view: View::JobShared, op }])
}

fn injection(injection: Injection) -> Step {
    Step::Together(vec![Action::Injection(0, injection)])
}

fn open(path: &str, flags: Flags) -> Op {
    Op::Open { slot: 0, path: path.to_owned(), flags: Flags { write: true, ..flags } }
}

const CREATE: Flags = Flags { write: true, create: true, append: false, truncate: false, exclusive: false };

fn create(node: usize, path: &str) -> Step {
    cached(node, open(path, CREATE))
}

fn write(node: usize) -> Step {
    cached(node, Op::Write { slot: 0, offset: 624, length: 5000, tag: 11 })
}

fn passes(steps: Vec<Step>, crashes: bool) {
    for seed in 0..20 {
        let program = Program { world: WorldConfig::plain(seed, 3), steps: steps.clone(), crashes };
        assert_eq!(run(&program), Ok(()), "seed {seed}");
    }
}

/// A write through an open descriptor on another node re-created a removed file in the coordinator's journal, and the drain
/// reported the file as missing.
#[test]
fn a_file_removed_on_one_node_and_written_on_another_is_not_missing() {
    for crashes in [false, true] {
        let unlink = cached(2, Op::Unlink { path: "y".to_owned() });
        passes(vec![create(1, "y"), unlink, write(1)], crashes);
    }
}

/// A node with a file open used its old path, even after the file was opened there again under its new one: reads of units outside
/// the pool failed.
#[test]
fn a_file_renamed_on_another_node_is_read_by_its_new_name() {
    let rename = Op::Rename { from: "a/x".to_owned(), to: "b/x".to_owned(), mode: RenameMode::Replace };
    passes(vec![create(2, "a/x"), cached(0, rename), write(2), Step::Check], false);
}

/// A small file that outgrew its inode record moved to the home of its first unit without becoming durable there: after the failure
/// of that node, synced bytes read as zeros.
#[test]
fn synced_bytes_survive_when_the_file_outgrows_its_inode_record() {
    for power in [false, true] {
        for node in 0..3 {
            let content = Op::Write { slot: 0, offset: 13, length: 100, tag: 8 };
            let grow = Op::Truncate { path: "a/y".to_owned(), size: 33_300 };
            let steps = vec![
                shared(1, open("a/y", CREATE)),
                shared(1, content),
                shared(1, Op::Fsync { slot: 0 }),
                shared(2, grow),
                injection(Injection::Kill { node, power }),
            ];
            passes(steps, false);
        }
    }
}

/// An fsync covered only the writes of its own node since the open, and not those of other nodes.
#[test]
fn an_fsync_covers_writes_of_other_nodes() {
    for power in [false, true] {
        for node in 0..3 {
            let steps = vec![
                shared(2, open("z", CREATE)),
                shared(2, Op::Write { slot: 0, offset: 0, length: 5000, tag: 3 }),
                shared(2, Op::Close { slot: 0 }),
                shared(0, open("z", Flags::default())),
                shared(0, Op::Fsync { slot: 0 }),
                injection(Injection::Kill { node, power }),
            ];
            passes(steps, false);
        }
    }
}

/// A truncation on another node may come before or after an unpublished append of this node; the model allowed only one of both.
#[test]
fn an_append_after_a_truncation_on_another_node_may_land_behind_unpublished_bytes() {
    for call in [shared, cached] {
        let write = |length, tag| call(1, Op::Write { slot: 0, offset: 0, length, tag });
        let append = open("a/x", Flags { append: true, ..CREATE });
        let cut = open("a/x", Flags { truncate: true, ..Flags::default() });
        passes(vec![call(1, append), write(70_000, 17), call(0, cut), write(5000, 21)], false);
    }
}

/// A node kept a size that a close could not send to the file's home, and returned it for the next file, to which the shared file
/// system gave the same inode number.
#[test]
fn a_new_file_does_not_inherit_the_size_of_a_failed_close() {
    for to in 0..2 {
        let write = Op::Write { slot: 0, offset: 2_097_188, length: 30, tag: 8 };
        let steps = vec![
            create(2, "b/x"),
            cached(2, write),
            injection(Injection::Partition { from: 2, to, both: false }),
            cached(2, Op::Close { slot: 0 }),
            Step::Check,
            create(2, "a/x"),
        ];
        passes(steps, false);
    }
}

/// A home counted an open whose reply was lost, and no node ever closed it: the space of the file was not freed.
#[test]
fn an_open_with_a_lost_reply_keeps_no_space() {
    for from in 1..3 {
        for after in [50, 100, 150, 200, 250] {
            let cut = Action::Injection(after, Injection::Partition { from, to: 0, both: false });
            let node_0 = Action::Call { node: 0, view: View::JobShared, op: open("z", Flags::default()) };
            let steps = vec![
                shared(1, open("z", CREATE)),
                shared(1, Op::Write { slot: 0, offset: 35_400, length: 70_000, tag: 8 }),
                shared(1, Op::Close { slot: 0 }),
                Step::Together(vec![node_0, cut]),
            ];
            passes(steps, false);
        }
    }
}

/// A flush announced a concurrent write, and sent its bytes only with the next flush, without announcing it. After a truncation on
/// another node, the drain wrote bytes that no node had seen.
#[test]
fn a_write_during_an_fsync_is_announced_with_its_bytes() {
    let call = |node, op| Action::Call { node, view: View::Cache, op };
    let write = |offset, length, tag| Op::Write { slot: 0, offset, length, tag };
    let steps = vec![
        create(2, "b/z"),
        cached(2, write(31, 70_000, 10)),
        Step::Together(vec![call(2, Op::Fsync { slot: 0 }), call(2, write(38, 3000, 11))]),
        cached(1, Op::Truncate { path: "b/z".to_owned(), size: 1014 }),
    ];
    passes(steps, false);
}

/// The simulated kernel returned EINVAL where Linux checks first whether the target exists.
#[test]
fn a_directory_is_not_renamed_over_its_parent() {
    for mode in [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange] {
        for (from, to) in [("a/c", "a"), ("a", "a/c"), ("a", "a/d")] {
            passes(vec![cached(0, Op::Rename { from: from.to_owned(), to: to.to_owned(), mode })], false);
        }
    }
}

/// A write during an fsync reached its units after the fsync had notified the file's home. After a concurrent truncation on another
/// node, no view showed the bytes, but the drain wrote them to the shared file system.
#[test]
fn the_home_learns_of_a_write_during_an_fsync_after_its_bytes_arrived() {
    let write = |offset| Op::Write { slot: 0, offset, length: 3000, tag: offset };
    let call = |op| Action::Call { node: 1, view: View::Cache, op };
    let cut = Op::Open {
        slot: 0,
        path: "a/x".to_owned(),
        flags: Flags { write: true, truncate: true, ..Flags::default() },
    };
    let steps = vec![
        create(1, "a/x"),
        cached(1, write(50)),
        Step::Together(vec![call(Op::Fsync { slot: 0 }), call(write(2_097_157))]),
        cached(2, cut),
    ];
    passes(steps, false);
}

/// A write was acknowledged and lost if the same node removed the file's last name concurrently, since the removal had just moved
/// the content to external storage for open descriptors.
#[test]
fn a_write_during_a_removal_is_kept() {
    for node in 0..3 {
        let call = |op| Action::Call { node, view: View::Cache, op };
        let flags = Flags { write: true, append: true, create: true, ..Flags::default() };
        let append = Op::Write { slot: 0, offset: 0, length: 5000, tag: 7 };
        let steps = vec![
            cached(node, Op::Open { slot: 0, path: "a/x".to_owned(), flags }),
            Step::Together(vec![call(Op::Unlink { path: "a/x".to_owned() }), call(append)]),
            cached(node, Op::Read { slot: 0, offset: 0, length: 70_000 }),
        ];
        passes(steps, false);
    }
}

/// A removal that failed because of a partition lost earlier writes of its node. A close reports that; the model did not allow a
/// read to show it sooner.
#[test]
fn writes_that_a_failed_removal_could_not_send_are_in_doubt() {
    let injection = |injection| Step::Together(vec![Action::Injection(289, injection)]);
    let steps = vec![
        create(2, "a/x"),
        write(2),
        injection(Injection::Partition { from: 1, to: 2, both: false }),
        cached(2, Op::Unlink { path: "a/x".to_owned() }),
        injection(Injection::Heal),
        cached(2, Op::Read { slot: 0, offset: 0, length: 5000 }),
    ];
    passes(steps, false);
}

/// A name survived without its inode, which another node's agent had not synced, and a unit without its file. The product does not
/// restart such a view; the model did not know of it.
#[test]
fn unsynced_names_may_be_orphans_after_an_agent_failed() {
    let together = |step: &[Action]| Step::Together(step.to_vec());
    let call = |node, op| Action::Call { node, view: View::JobShared, op };
    let crashes = |after, node| Action::Injection(after, Injection::Kill { node, power: true });
    let rename = Op::Rename { from: "x".to_owned(), to: "b/x".to_owned(), mode: RenameMode::Replace };
    let create = |slot, path: &str| Op::Open { slot, path: path.to_owned(), flags: CREATE };
    let renamed = [together(&[call(0, create(1, "x"))]), together(&[call(0, rename)])];
    let content = Op::Write { slot: 0, offset: 36_100, length: 1, tag: 7 };
    let written = [
        together(&[crashes(2536, 0)]),
        Step::Check,
        together(&[call(1, create(1, "a/x"))]),
        together(&[call(1, create(0, "a/x"))]),
        together(&[call(1, content)]),
        together(&[call(1, Op::Close { slot: 0 })]),
        together(&[call(1, Op::SyncDir { path: "b".to_owned() })]),
    ];
    for (steps, nodes, volatile) in [(renamed.to_vec(), 4, false), (written.to_vec(), 2, true)] {
        for (seed, node) in (0..20).flat_map(|seed| (0..nodes).map(move |node| (seed, node))) {
            let world = WorldConfig { volatile, ..WorldConfig::plain(seed, nodes) };
            let mut steps = steps.clone();
            steps.push(together(&[crashes(452, node)]));
            let program = Program { world, steps, crashes: false };
            assert_eq!(run(&program), Ok(()), "seed {seed}, node {node}");
        }
    }
}

/// A removal on another node proceeded although a disk fault kept the content from the shared file system: reads through an open
/// descriptor then failed with ENOENT.
///
/// S10c.
#[test]
fn a_file_whose_open_content_cannot_be_moved_is_not_removed() {
    for seed in 0..40 {
        let faults = DiskFaults { syncs: 500, ..DiskFaults::default() };
        let steps = vec![
            create(1, "a/x"),
            cached(1, Op::Write { slot: 0, offset: 43_100, length: 5000, tag: 8 }),
            injection(Injection::Disk(1, faults)),
            cached(0, Op::Unlink { path: "a/x".to_owned() }),
            cached(1, Op::Read { slot: 0, offset: 949, length: 5000 }),
        ];
        let world = WorldConfig { devices: vec![false, true], volatile: true, ..WorldConfig::plain(seed, 2) };
        assert_eq!(run(&Program { world, steps, crashes: true }), Ok(()), "seed {seed}");
    }
}

/// A descriptor of a file that another node renamed could not read units outside the pool, nor write for the first time after a
/// change of attributes: the node looked up the old path only.
#[test]
fn an_open_file_is_read_and_written_after_a_rename() {
    let open = Op::Open { slot: 0, path: "a/x".to_owned(), flags: Flags { write: true, ..Flags::default() } };
    let rename = || Op::Rename { from: "a/x".to_owned(), to: "b/x".to_owned(), mode: RenameMode::Replace };
    let read = || Op::Read { slot: 0, offset: 0, length: 5000 };
    let steps = vec![
        create(1, "a/x"),
        write(1),
        cached(1, Op::Close { slot: 0 }),
        cached(0, open),
        Step::Rest(3000),
        cached(2, Op::Chmod { path: "a/x".to_owned(), mode: 0o640 }),
        cached(2, rename()),
        cached(0, read()),
        write(0),
    ];
    passes(steps.clone(), false);
    // Concurrently, and on the same node.
    let call = |op| Action::Call { node: 1, view: View::Cache, op };
    let together = Step::Together(vec![call(rename()), call(read())]);
    passes(vec![create(1, "a/x"), write(1), Step::Rest(400), together], false);
}

/// A reply of the coordinator to a stat arrived after a later reply to a close, and set a size from before both.
#[test]
fn a_stat_during_a_close_does_not_set_an_old_size() {
    // The number of earlier directories decides the file's inode number, and thus its homes.
    for before in 0..6 {
        let mkdir = |number| cached(1, Op::Mkdir { path: format!("m{number}") });
        let mut steps: Vec<_> = (0..before).map(mkdir).collect();
        let call = |op| Action::Call { node: 0, view: View::Cache, op };
        let (close, look) = (call(Op::Close { slot: 0 }), call(Op::Stat { path: "x".to_owned() }));
        steps.extend([create(0, "x"), write(0), Step::Together(vec![close, look])]);
        passes(steps, false);
    }
}

/// Content of a small file that was fetched during a write was cached as the newer version, or as that of a unit which did not exist
/// yet: after the write reached its home, the node no longer saw it.
#[test]
fn writes_to_a_small_file_are_seen_during_writes_of_another_node() {
    let call = |node, op| Action::Call { node, view: View::JobShared, op };
    let write = |node, offset, tag| call(node, Op::Write { slot: 0, offset, length: 100, tag });
    let unlock = |node| call(node, Op::Unlock { slot: 0, range: None });
    let read = call(0, Op::Read { slot: 0, offset: 0, length: 400 });
    let steps = vec![
        Step::Together(vec![call(2, open("a/y", CREATE))]),
        Step::Together(vec![call(0, open("a/y", CREATE))]),
        Step::Together(vec![write(0, 200, 2)]),
        Step::Together(vec![unlock(0), write(2, 200, 3), write(0, 0, 4)]),
        Step::Together(vec![read, unlock(2), unlock(0)]),
    ];
    for seed in 0..2000 {
        let program = Program { world: WorldConfig::plain(seed, 3), steps: steps.clone(), crashes: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}");
    }
}

/// A check assigned the second name of a symbolic link to another link.
#[test]
fn a_rename_between_two_names_of_a_symbolic_link_does_nothing() {
    let path = |path: &str| path.to_owned();
    let rename = |from, to, mode| Op::Rename { from: path(from), to: path(to), mode };
    passes(
        vec![
            shared(2, open("a/x", CREATE)),
            shared(0, Op::Symlink { path: path("b/x"), target: path("a/c/23") }),
            shared(1, Op::Link { from: path("b/x"), to: path("x") }),
            shared(1, rename("b/x", "a/x", RenameMode::Exchange)),
            Step::Check,
            shared(2, rename("a/x", "x", RenameMode::Replace)),
        ],
        false,
    );
}

/// An unlock does not report lost writes; the next close or fsync does (S4).
#[test]
fn a_write_lost_at_an_unlock_does_not_set_the_size() {
    for node in 0..3 {
        let faults = DiskFaults { syncs: 1000, ..DiskFaults::default() };
        passes(
            vec![
                shared(node, open("a/y", CREATE)),
                shared(node, Op::Write { slot: 0, offset: 533, length: 70000, tag: 7 }),
                Step::Together(
                    (0..3).map(|node| Action::Injection(0, Injection::Disk(node, faults))).collect(),
                ),
                shared((node + 1) % 3, Op::SyncDir { path: "a".to_owned() }),
                shared((node + 1) % 3, open("z", CREATE)),
                shared((node + 1) % 3, Op::Truncate { path: "z".to_owned(), size: 0 }),
                shared(node, Op::Unlock { slot: 0, range: None }),
                shared(node, Op::Stat { path: "a/y".to_owned() }),
            ],
            true,
        );
    }
}

/// A journal without its tail listed a removed file, and applied its state to a new file with the same inode number. The product serves
/// no view on such a journal, and does not reuse the number.
#[test]
fn a_new_file_does_not_inherit_state_from_a_journal_without_its_tail() {
    let flags = Flags { append: true, ..CREATE };
    let open = |slot, path: &str, flags| Op::Open { slot, path: path.to_owned(), flags };
    let write = |slot, length, tag| Op::Write { slot, offset: 0, length, tag };
    let call = |node, op| Action::Call { node, view: View::Cache, op };
    let loses_power = |after, node| Action::Injection(after, Injection::Kill { node, power: true });
    let steps = vec![
        cached(0, open(0, "b/x", flags)),
        cached(1, open(1, "b/z", flags)),
        Step::Together(vec![call(1, write(1, 70_000, 17)), call(1, write(1, 400_000, 18))]),
        Step::Together(vec![call(0, write(0, 100, 22)), loses_power(100, 0)]),
        // The state of the file is unknown, so the check removes it.
        Step::Check,
        Step::Together(vec![loses_power(3000, 1)]),
        Step::Check,
        cached(0, open(0, "b/x", CREATE)),
        cached(0, Op::Close { slot: 0 }),
        cached(0, open(0, "a/z", CREATE)),
    ];
    for seed in 0..100 {
        let world = WorldConfig { capacity: 256 << 10, ..WorldConfig::plain(seed, 2) };
        let program = Program { world, steps: steps.clone(), crashes: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}");
    }
}

/// Closed but unsynced bytes may be lost when an agent fails: the size was lost with the file's home, and units stayed on other nodes.
#[test]
fn units_may_stay_when_the_size_is_lost_with_its_home() {
    let open = |slot, path: &str| Op::Open { slot, path: path.to_owned(), flags: CREATE };
    let symlink = Op::Symlink { path: "b/66".to_owned(), target: "a/c/y".to_owned() };
    let steps = vec![
        shared(1, open(0, "a/y")),
        shared(2, open(0, "a/z")),
        shared(2, open(2, "a/x")),
        shared(2, symlink),
        cached(1, open(0, "a/y")),
        cached(1, Op::Write { slot: 0, offset: 0, length: 100, tag: 16 }),
        shared(0, open(0, "b/x")),
        shared(0, open(2, "b/y")),
        shared(1, open(2, "b/z")),
        Step::Check,
        shared(1, Op::Write { slot: 2, offset: 559, length: 5000, tag: 22 }),
        shared(1, Op::Close { slot: 2 }),
        shared(2, Op::Lock { slot: 0, range: Some(LockRange::ALL), kind: LockKind::Exclusive, wait: true }),
        injection(Injection::Kill { node: 1, power: false }),
    ];
    for seed in 243_862..243_882 {
        let world = WorldConfig { inline_max: 3000, ..WorldConfig::plain(seed, 3) };
        let program = Program { world, steps: steps.clone(), crashes: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}");
    }
}

/// A power loss of a file's home dropped the link count of a name that another node kept. After the removal of the counted name, the
/// other one had no inode, which the model did not know.
#[test]
fn an_uncounted_name_is_an_orphan_after_the_counted_ones_are_removed() {
    let path = |path: &str| path.to_owned();
    let unlink = Op::Unlink { path: path("a/x") };
    let replace = Op::Rename { from: path("b/z"), to: path("a/x"), mode: RenameMode::Replace };
    for (removal, seed) in
        [unlink, replace].iter().flat_map(|removal| (0..20).map(move |seed| (removal, seed)))
    {
        let steps = vec![
            shared(1, open("a/x", CREATE)),
            shared(1, Op::Fsync { slot: 0 }),
            shared(1, Op::Link { from: path("a/x"), to: path("x") }),
            // Makes the kernel of the name's node cache it; that is not the node of the file.
            shared(1, Op::Link { from: path("a/x"), to: path("y") }),
            injection(Injection::Kill { node: 0, power: true }),
            Step::Check,
            shared(2, open("b/z", CREATE)),
            // The closes of the check reach the file's home.
            Step::Rest(3000),
            shared(0, removal.clone()),
            shared(1, open("x", Flags::default())),
            shared(1, Op::Stat { path: path("x") }),
            Step::Check,
        ];
        let program = Program { world: WorldConfig::plain(seed, 4), steps, crashes: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}");
    }
}

/// A stat resolved a name before its removal and read the attributes after it; the model took the file for one without any name.
#[test]
fn a_stat_during_a_removal_may_show_no_links() {
    let path = || "a/x".to_owned();
    let [remove, look] = [(2, Op::Unlink { path: path() }), (0, Op::Stat { path: path() })]
        .map(|(node, op)| Action::Call { node, view: View::Cache, op });
    let steps = vec![
        create(2, "a/x"),
        cached(2, Op::Fsync { slot: 0 }),
        cached(0, open("a/x", Flags::default())),
        cached(1, open("a/x", Flags::default())),
        Step::Together(vec![remove, look]),
    ];
    for seed in 100..200 {
        let plain = WorldConfig::plain(seed, 3);
        let slowness = vec![Duration::from_millis(6); 3];
        let world = WorldConfig { slowness, devices: vec![true, false, false], ..plain };
        let program = Program { world, steps: steps.clone(), crashes: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}");
    }
}

/// An open of a file that another node removed concurrently was left behind when the node's other descriptors moved to the shared
/// file: its reads failed with ESTALE. And an open with `O_TRUNC` that reached the file through an open handle, after the removal of
/// its name, did not truncate it.
#[test]
fn a_file_opened_during_its_removal_on_another_node_is_read() {
    let path = || "a/x".to_owned();
    let call = |node, op| Action::Call { node, view: View::Cache, op };
    let opens = |slot, truncate| {
        let flags = Flags { write: true, truncate, ..Flags::default() };
        call(1, Op::Open { slot, path: path(), flags })
    };
    let read = |slot| cached(1, Op::Read { slot, offset: 0, length: 6000 });
    for (seed, truncate) in (0..1000).map(|number| (number / 2, number % 2 == 1)) {
        let steps = vec![
            create(1, "a/x"),
            write(1),
            injection(Injection::Slow(1, 4)),
            Step::Together(vec![call(2, Op::Unlink { path: path() }), opens(1, truncate), opens(2, false)]),
            read(1),
            read(2),
            read(0),
        ];
        let program = Program { world: WorldConfig::plain(seed, 3), steps, crashes: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}, truncate {truncate}");
    }
}
