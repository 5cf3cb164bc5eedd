//! Programs that the simulated cluster found, and that failed when it did; made smaller.

use std::time::Duration;
use tameike_core::View;
use tameike_core::wire::lock::{LockKind, LockRange};
use tameike_core::wire::meta::RenameMode;
use tameike_sim::op::{Flags, Op};
use tameike_sim::program::{Action, Program, Step, Trouble};
use tameike_sim::run::run;
use tameike_sim::world::{DiskFaults, WorldConfig};

fn cached(node: usize, op: Op) -> Step {
    Step::Together(vec![Action::Call { node, view: View::Cache, op }])
}

fn shared(node: usize, op: Op) -> Step {
    Step::Together(vec![Action::Call { node, view: View::JobShared, op }])
}

fn trouble(trouble: Trouble) -> Step {
    Step::Together(vec![Action::Trouble(0, trouble)])
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

fn passes(steps: Vec<Step>, dies: bool) {
    for seed in 0..20 {
        let program = Program { world: WorldConfig::plain(seed, 3), steps: steps.clone(), dies };
        assert_eq!(run(&program), Ok(()), "seed {seed}");
    }
}

/// The write of a node that still had it open brought a removed file back to life in the coordinator's journal: the
/// drain ended with the file missing, though the job itself had removed it.
#[test]
fn a_file_that_one_node_removes_and_another_writes_is_not_missing() {
    for dies in [false, true] {
        let unlink = cached(2, Op::Unlink { path: "y".to_owned() });
        passes(vec![create(1, "y"), unlink, write(1)], dies);
    }
}

/// A node that had a file open knew it by its old path for good, also when it was opened there anew by its new one:
/// what the pool did not hold could not be read.
#[test]
fn a_file_that_another_node_renames_is_read_by_its_new_name() {
    let rename = Op::Rename { from: "a/x".to_owned(), to: "b/x".to_owned(), mode: RenameMode::Replace };
    passes(vec![create(2, "a/x"), cached(0, rename), write(2), Step::Check], false);
}

/// A small file that outgrew its inode record was moved to the home of its first unit, and not made safe there: when that
/// node died, what an fsync had covered before read as zeros.
#[test]
fn what_was_synced_survives_that_the_file_outgrows_its_inode_record() {
    for power in [false, true] {
        for node in 0..3 {
            let content = Op::Write { slot: 0, offset: 13, length: 100, tag: 8 };
            let grow = Op::Truncate { path: "a/y".to_owned(), size: 33_300 };
            let steps = vec![
                shared(1, open("a/y", CREATE)),
                shared(1, content),
                shared(1, Op::Fsync { slot: 0 }),
                shared(2, grow),
                trouble(Trouble::Kill { node, power }),
            ];
            passes(steps, false);
        }
    }
}

/// An fsync made safe what its own node had written since it had the file open, and left what others had written to them.
#[test]
fn an_fsync_covers_what_other_nodes_have_written() {
    for power in [false, true] {
        for node in 0..3 {
            let steps = vec![
                shared(2, open("z", CREATE)),
                shared(2, Op::Write { slot: 0, offset: 0, length: 5000, tag: 3 }),
                shared(2, Op::Close { slot: 0 }),
                shared(0, open("z", Flags::default())),
                shared(0, Op::Fsync { slot: 0 }),
                trouble(Trouble::Kill { node, power }),
            ];
            passes(steps, false);
        }
    }
}

/// Another node's cut came before what this node had appended, and not published, or after it: the model knew of one end
/// only.
#[test]
fn an_append_after_the_cut_of_another_node_may_land_behind_what_was_not_published() {
    for call in [shared, cached] {
        let write = |length, tag| call(1, Op::Write { slot: 0, offset: 0, length, tag });
        let append = open("a/x", Flags { append: true, ..CREATE });
        let cut = open("a/x", Flags { truncate: true, ..Flags::default() });
        passes(vec![call(1, append), write(70_000, 17), call(0, cut), write(5000, 21)], false);
    }
}

/// A node showed for good the size that a close could not tell the file's home: here as that of the next file, which the
/// shared file system had given the number of the first.
#[test]
fn a_new_file_has_not_the_size_that_a_close_could_not_tell_of_the_one_before() {
    for to in 0..2 {
        let write = Op::Write { slot: 0, offset: 2_097_188, length: 30, tag: 8 };
        let steps = vec![
            create(2, "b/x"),
            cached(2, write),
            trouble(Trouble::Cut { from: 2, to, both: false }),
            cached(2, Op::Close { slot: 0 }),
            Step::Check,
            create(2, "a/x"),
        ];
        passes(steps, false);
    }
}

/// A home counted an open whose answer was lost, and nobody ever closed it: the space of the file was not given back.
#[test]
fn an_open_whose_answer_is_lost_keeps_no_space() {
    for from in 1..3 {
        for after in [50, 100, 150, 200, 250] {
            let cut = Action::Trouble(after, Trouble::Cut { from, to: 0, both: false });
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

/// A flush told of a write that had come meanwhile, and sent its bytes only the next time, when nobody was told: after the cut
/// of another node the drain wrote what no node had seen.
#[test]
fn a_write_during_an_fsync_is_told_with_its_bytes() {
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

/// The kernel of the simulation told EINVAL where Linux looks first whether the target is there.
#[test]
fn a_directory_is_not_renamed_over_the_one_it_lies_in() {
    for mode in [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange] {
        for (from, to) in [("a/c", "a"), ("a", "a/c"), ("a", "a/d")] {
            passes(vec![cached(0, Op::Rename { from: from.to_owned(), to: to.to_owned(), mode })], false);
        }
    }
}

/// What was written while an fsync was under way came to its units after the file's home had been told of it. Cut by
/// another node in between, it was in no view, and yet the drain wrote it to the shared file system.
#[test]
fn what_is_written_during_an_fsync_is_told_to_the_home_when_it_has_come_there() {
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

/// What was written while the same node removed the file, by its last name, was acknowledged and gone: the content of the
/// file had just been moved to where its open descriptors go on.
#[test]
fn what_is_written_while_the_file_is_removed_is_there() {
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

/// A removal that failed, as a link was cut, had lost on its way what its node had written before: a close tells of that,
/// and the model did not know that a read may show it sooner.
#[test]
fn what_a_failed_removal_could_not_send_is_in_doubt() {
    let trouble = |trouble| Step::Together(vec![Action::Trouble(289, trouble)]);
    let steps = vec![
        create(2, "a/x"),
        write(2),
        trouble(Trouble::Cut { from: 1, to: 2, both: false }),
        cached(2, Op::Unlink { path: "a/x".to_owned() }),
        trouble(Trouble::Mend),
        cached(2, Op::Read { slot: 0, offset: 0, length: 5000 }),
    ];
    passes(steps, false);
}

/// A name outlived the inode that another node's agent had not made safe, and a unit its file: what is left of a view that
/// the product does not start again, of which the model knew nothing.
#[test]
fn what_was_not_safe_may_hang_in_the_air_when_its_agent_has_died() {
    let together = |step: &[Action]| Step::Together(step.to_vec());
    let call = |node, op| Action::Call { node, view: View::JobShared, op };
    let dies = |after, node| Action::Trouble(after, Trouble::Kill { node, power: true });
    let rename = Op::Rename { from: "x".to_owned(), to: "b/x".to_owned(), mode: RenameMode::Replace };
    let create = |slot, path: &str| Op::Open { slot, path: path.to_owned(), flags: CREATE };
    let renamed = [together(&[call(0, create(1, "x"))]), together(&[call(0, rename)])];
    let content = Op::Write { slot: 0, offset: 36_100, length: 1, tag: 7 };
    let written = [
        together(&[dies(2536, 0)]),
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
            steps.push(together(&[dies(452, node)]));
            let program = Program { world, steps, dies: false };
            assert_eq!(run(&program), Ok(()), "seed {seed}, node {node}");
        }
    }
}

/// What a node had open was gone when another removed the file, and a disk failed so that its content could not be brought to
/// the shared file system: the removal went on all the same, and a read was told that there is no such file.
///
/// S10c.
#[test]
fn a_file_whose_open_content_cannot_be_moved_is_not_removed() {
    for seed in 0..40 {
        let faults = DiskFaults { syncs: 500, ..DiskFaults::default() };
        let steps = vec![
            create(1, "a/x"),
            cached(1, Op::Write { slot: 0, offset: 43_100, length: 5000, tag: 8 }),
            trouble(Trouble::Disk(1, faults)),
            cached(0, Op::Unlink { path: "a/x".to_owned() }),
            cached(1, Op::Read { slot: 0, offset: 949, length: 5000 }),
        ];
        let world = WorldConfig { devices: vec![false, true], volatile: true, ..WorldConfig::plain(seed, 2) };
        assert_eq!(run(&Program { world, steps, dies: true }), Ok(()), "seed {seed}");
    }
}

/// Who had a file open that another node renamed could not read what the pool did not hold, nor write for the first time
/// after its attributes had changed: it was looked for at its old path only.
#[test]
fn a_file_that_is_renamed_while_it_is_open_is_read_and_written() {
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
    // At the same time, and by the same node.
    let call = |op| Action::Call { node: 1, view: View::Cache, op };
    let together = Step::Together(vec![call(rename()), call(read())]);
    passes(vec![create(1, "a/x"), write(1), Step::Rest(400), together], false);
}

/// The coordinator's answer to a stat, given before that to a close but come after it, showed a size from before both.
#[test]
fn a_file_that_is_looked_at_while_it_is_closed_has_its_size() {
    // The directories made before decide the file's number, and so which nodes its homes are.
    for before in 0..6 {
        let mkdir = |number| cached(1, Op::Mkdir { path: format!("m{number}") });
        let mut steps: Vec<_> = (0..before).map(mkdir).collect();
        let call = |op| Action::Call { node: 0, view: View::Cache, op };
        let (close, look) = (call(Op::Close { slot: 0 }), call(Op::Stat { path: "x".to_owned() }));
        steps.extend([create(0, "x"), write(0), Step::Together(vec![close, look])]);
        passes(steps, false);
    }
}

/// Content of a small file that was fetched while it was written was taken for what it was then, or for that of a unit which was
/// not there yet: once what had been written was at its home, it was not seen any more.
#[test]
fn what_is_written_to_a_small_file_is_seen_while_another_node_writes_there_too() {
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
        let program = Program { world: WorldConfig::plain(seed, 3), steps: steps.clone(), dies: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}");
    }
}

/// A check gave the second name of a symbolic link to another one.
#[test]
fn a_name_of_a_link_is_not_renamed_over_another_one_of_it() {
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

/// Who gives a lock back is not told what has become of its writes: the next close or fsync says it (S4).
#[test]
fn a_file_has_not_the_size_of_a_write_that_was_lost_when_a_lock_was_given_back() {
    for node in 0..3 {
        let faults = DiskFaults { syncs: 1000, ..DiskFaults::default() };
        passes(
            vec![
                shared(node, open("a/y", CREATE)),
                shared(node, Op::Write { slot: 0, offset: 533, length: 70000, tag: 7 }),
                Step::Together((0..3).map(|node| Action::Trouble(0, Trouble::Disk(node, faults))).collect()),
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

/// A journal that had lost its end knew a file again that was removed: a new one was given its inode number, and what it had held. No
/// product serves a view on such a journal, and the number is not given again.
#[test]
fn a_new_file_is_not_what_a_journal_without_its_end_knows_under_its_number() {
    let flags = Flags { append: true, ..CREATE };
    let open = |slot, path: &str, flags| Op::Open { slot, path: path.to_owned(), flags };
    let write = |slot, length, tag| Op::Write { slot, offset: 0, length, tag };
    let call = |node, op| Action::Call { node, view: View::Cache, op };
    let loses_power = |after, node| Action::Trouble(after, Trouble::Kill { node, power: true });
    let steps = vec![
        cached(0, open(0, "b/x", flags)),
        cached(1, open(1, "b/z", flags)),
        Step::Together(vec![call(1, write(1, 70_000, 17)), call(1, write(1, 400_000, 18))]),
        Step::Together(vec![call(0, write(0, 100, 22)), loses_power(100, 0)]),
        // What has become of the file is not known: it is removed.
        Step::Check,
        Step::Together(vec![loses_power(3000, 1)]),
        Step::Check,
        cached(0, open(0, "b/x", CREATE)),
        cached(0, Op::Close { slot: 0 }),
        cached(0, open(0, "a/z", CREATE)),
    ];
    for seed in 0..100 {
        let world = WorldConfig { capacity: 256 << 10, ..WorldConfig::plain(seed, 2) };
        let program = Program { world, steps: steps.clone(), dies: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}");
    }
}

/// What was closed and not synced is nobody's promise when an agent dies: the size went with the file's home, and its units
/// stayed with others.
#[test]
fn units_of_a_file_whose_size_died_with_its_home_may_stay_until_the_job_ends() {
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
        trouble(Trouble::Kill { node: 1, power: false }),
    ];
    for seed in 243_862..243_882 {
        let world = WorldConfig { inline_max: 3000, ..WorldConfig::plain(seed, 3) };
        let program = Program { world, steps: steps.clone(), dies: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}");
    }
}

/// The power of a file's home took the count of a name that another node kept: when the name that was counted went, nothing was left
/// behind the other, of which the model knew nothing.
#[test]
fn a_name_that_its_file_does_not_count_hangs_in_the_air_without_the_others() {
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
            // Hands the name to the kernel of its node, which is not that of the file.
            shared(1, Op::Link { from: path("a/x"), to: path("y") }),
            trouble(Trouble::Kill { node: 0, power: true }),
            Step::Check,
            shared(2, open("b/z", CREATE)),
            // What the check has opened is closed at its home.
            Step::Rest(3000),
            shared(0, removal.clone()),
            shared(1, open("x", Flags::default())),
            shared(1, Op::Stat { path: path("x") }),
            Step::Check,
        ];
        let program = Program { world: WorldConfig::plain(seed, 4), steps, dies: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}");
    }
}

/// Who had found a name looked at the file when that had lost it: the model took it for a file without a name from the start.
#[test]
fn a_file_may_be_seen_without_a_name_by_who_looks_while_it_is_removed() {
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
        let program = Program { world, steps: steps.clone(), dies: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}");
    }
}

/// Who opened a file that others of its node had open, while another node removed it, was left behind when these went on with the
/// shared file: what it read then was told that the file is stale. And an open with `O_TRUNC` that came to the file by an open
/// handle, after its name was gone, did not truncate it.
#[test]
fn a_file_that_is_opened_while_another_node_removes_it_is_read() {
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
            trouble(Trouble::Slow(1, 4)),
            Step::Together(vec![call(2, Op::Unlink { path: path() }), opens(1, truncate), opens(2, false)]),
            read(1),
            read(2),
            read(0),
        ];
        let program = Program { world: WorldConfig::plain(seed, 3), steps, dies: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}, truncate {truncate}");
    }
}
