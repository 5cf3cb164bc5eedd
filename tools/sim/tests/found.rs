//! Programs that the simulated cluster found, and that failed when it did; made smaller.

use tameike_core::View;
use tameike_core::wire::meta::RenameMode;
use tameike_sim::program::{Action, Flags, Op, Program, Step};
use tameike_sim::run::run;
use tameike_sim::world::WorldConfig;

fn call(node: usize, view: View, op: Op) -> Step {
    Step::Together(vec![Action::Call { node, view, op }])
}

fn cached(node: usize, op: Op) -> Step {
    call(node, View::Cache, op)
}

fn create(node: usize, path: &str) -> Step {
    let flags = Flags { write: true, create: true, ..Flags::default() };
    cached(node, Op::Open { slot: 0, path: path.to_owned(), flags })
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

/// An append of a node that has not closed the file yet, when another has cut it meanwhile: the first append may have
/// come before the cut or after, and the model believed that it knew.
#[test]
fn an_append_after_the_cut_of_another_node_lands_at_one_of_two_ends() {
    for view in [View::JobShared, View::Cache] {
        let append = |tag| call(2, view, Op::Write { slot: 1, offset: 0, length: 3000, tag });
        let path = || "a/x".to_owned();
        let flags = Flags { write: true, append: true, create: true, ..Flags::default() };
        let steps = vec![
            call(2, view, Op::Open { slot: 1, path: path(), flags }),
            append(1),
            call(1, view, Op::Truncate { path: path(), size: 0 }),
            append(2),
        ];
        passes(steps, false);
    }
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
