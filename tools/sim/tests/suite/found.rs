//! Regressions that random seeds found, as reduced programs. The comment of each test describes the former bug.

use super::programs::{CLOSE, FSYNC, cached, open, passes, passes_on, passes_with, read, shared, write};
use std::time::Duration;
use tameike_core::View;
use tameike_core::wire::lock::{LockKind, LockRange};
use tameike_core::wire::meta::RenameMode;
use tameike_sim::op::{Flags, Op};
use tameike_sim::program::{Action, Injection, Step};
use tameike_sim::world::{DiskFaults, WorldConfig};

fn create(node: usize, path: &str) -> Step {
    cached(node, open(path, Flags::CREATE))
}

fn write_some(node: usize) -> Step {
    cached(node, write(624, 5000, 11))
}

/// A call in the cache view that is concurrent with others.
fn beside(node: usize, op: Op) -> Action {
    Action::Call { node, view: View::Cache, op }
}

fn kill(node: usize, power: bool) -> Injection {
    Injection::Kill { node, power }
}

fn passes_on_three(steps: &[Step]) {
    passes_on(3, 0..20, steps);
}

/// A write through an open descriptor on another node re-created a removed file in the coordinator's journal, and the drain
/// reported the file as missing.
#[test]
fn a_file_removed_on_one_node_and_written_on_another_is_not_missing() {
    let steps = [create(1, "y"), cached(2, Op::unlink("y")), write_some(1)];
    for (seed, crashes) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
        passes_with(WorldConfig::plain(seed, 3), steps.to_vec(), crashes);
    }
}

/// A node with a file open used its old path, even after the file was opened there again under its new one: reads of units outside
/// the pool failed.
#[test]
fn a_file_renamed_on_another_node_is_read_by_its_new_name() {
    let rename = Op::rename("a/x", "b/x", RenameMode::Replace);
    passes_on_three(&[create(2, "a/x"), cached(0, rename), write_some(2), Step::Check]);
}

/// Runs a program that ends with the failure of a node, for each node.
fn passes_with_each_node_failing(steps: &[Step]) {
    for (node, power) in (0..3).flat_map(|node| [(node, false), (node, true)]) {
        passes_on_three(&[steps, &[Step::inject(kill(node, power))]].concat());
    }
}

/// A small file that outgrew its inode record moved to the home of its first unit without becoming durable there: after the failure
/// of that node, synced bytes read as zeros.
#[test]
fn synced_bytes_survive_when_the_file_outgrows_its_inode_record() {
    passes_with_each_node_failing(&[
        shared(1, open("a/y", Flags::CREATE)),
        shared(1, write(13, 100, 8)),
        shared(1, FSYNC),
        shared(2, Op::Truncate { path: "a/y".to_owned(), size: 33_300 }),
    ]);
}

/// An fsync covered only the writes of its own node since the open, and not those of other nodes.
#[test]
fn an_fsync_covers_writes_of_other_nodes() {
    passes_with_each_node_failing(&[
        shared(2, open("z", Flags::CREATE)),
        shared(2, write(0, 5000, 3)),
        shared(2, CLOSE),
        shared(0, open("z", Flags::WRITE)),
        shared(0, FSYNC),
    ]);
}

/// A truncation on another node may come before or after an unpublished append of this node; the model allowed only one of both.
#[test]
fn an_append_after_a_truncation_on_another_node_may_land_behind_unpublished_bytes() {
    for call in [shared, cached] {
        passes_on_three(&[
            call(1, open("a/x", Flags::APPEND)),
            call(1, write(0, 70_000, 17)),
            call(0, open("a/x", Flags::TRUNCATE)),
            call(1, write(0, 5000, 21)),
        ]);
    }
}

/// A node kept a size that a close could not send to the file's home, and returned it for the next file, to which the shared file
/// system gave the same inode number.
#[test]
fn a_new_file_does_not_inherit_the_size_of_a_failed_close() {
    for to in 0..2 {
        passes_on_three(&[
            create(2, "b/x"),
            cached(2, write(2_097_188, 30, 8)),
            Step::inject(Injection::Partition { from: 2, to, both: false }),
            cached(2, CLOSE),
            Step::Check,
            create(2, "a/x"),
        ]);
    }
}

/// A home counted an open whose reply was lost, and no node ever closed it: the space of the file was not freed.
#[test]
fn an_open_with_a_lost_reply_keeps_no_space() {
    for from in 1..3 {
        for after in [50, 100, 150, 200, 250] {
            let cut = Action::Injection(after, Injection::Partition { from, to: 0, both: false });
            let node_0 = Action::Call { node: 0, view: View::JobShared, op: open("z", Flags::WRITE) };
            passes_on_three(&[
                shared(1, open("z", Flags::CREATE)),
                shared(1, write(35_400, 70_000, 8)),
                shared(1, CLOSE),
                Step::Together(vec![node_0, cut]),
            ]);
        }
    }
}

/// A flush announced a concurrent write, and sent its bytes only with the next flush, without announcing it. After a truncation on
/// another node, the drain wrote bytes that no node had seen.
#[test]
fn a_write_during_an_fsync_is_announced_with_its_bytes() {
    passes_on_three(&[
        create(2, "b/z"),
        cached(2, write(31, 70_000, 10)),
        Step::Together(vec![beside(2, FSYNC), beside(2, write(38, 3000, 11))]),
        cached(1, Op::Truncate { path: "b/z".to_owned(), size: 1014 }),
    ]);
}

/// The simulated kernel returned EINVAL where Linux checks first whether the target exists.
#[test]
fn a_directory_is_not_renamed_over_its_parent() {
    for mode in [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange] {
        for (from, to) in [("a/c", "a"), ("a", "a/c"), ("a", "a/d")] {
            passes_on_three(&[cached(0, Op::rename(from, to, mode))]);
        }
    }
}

/// A write during an fsync reached its units after the fsync had notified the file's home. After a concurrent truncation on another
/// node, no view showed the bytes, but the drain wrote them to the shared file system.
#[test]
fn the_home_learns_of_a_write_during_an_fsync_after_its_bytes_arrived() {
    passes_on_three(&[
        create(1, "a/x"),
        cached(1, write(50, 3000, 50)),
        Step::Together(vec![beside(1, FSYNC), beside(1, write(2_097_157, 3000, 2_097_157))]),
        cached(2, open("a/x", Flags::TRUNCATE)),
    ]);
}

/// A write was acknowledged and lost if the same node removed the file's last name concurrently, since the removal had just moved
/// the content to external storage for open descriptors.
#[test]
fn a_write_during_a_removal_is_kept() {
    for node in 0..3 {
        passes_on_three(&[
            cached(node, open("a/x", Flags::APPEND)),
            Step::Together(vec![beside(node, Op::unlink("a/x")), beside(node, write(0, 5000, 7))]),
            cached(node, read(0, 70_000)),
        ]);
    }
}

/// A removal that failed because of a partition lost earlier writes of its node. A close reports that; the model did not allow a
/// read to show it sooner.
#[test]
fn writes_that_a_failed_removal_could_not_send_are_in_doubt() {
    let injection = |injection| Step::Together(vec![Action::Injection(289, injection)]);
    passes_on_three(&[
        create(2, "a/x"),
        write_some(2),
        injection(Injection::Partition { from: 1, to: 2, both: false }),
        cached(2, Op::unlink("a/x")),
        injection(Injection::Heal),
        cached(2, read(0, 5000)),
    ]);
}

/// A name survived without its inode, which another node's agent had not synced, and a unit without its file. The product does not
/// restart such a view; the model did not know of it.
#[test]
fn unsynced_names_may_be_orphans_after_an_agent_failed() {
    let crashes = |after, node| Step::Together(vec![Action::Injection(after, kill(node, true))]);
    let create = |slot, path: &str| Op::open(slot, path, Flags::CREATE);
    let renamed = [shared(0, create(1, "x")), shared(0, Op::rename("x", "b/x", RenameMode::Replace))];
    let written = [
        crashes(2536, 0),
        Step::Check,
        shared(1, create(1, "a/x")),
        shared(1, create(0, "a/x")),
        shared(1, write(36_100, 1, 7)),
        shared(1, CLOSE),
        shared(1, Op::SyncDir { path: "b".to_owned() }),
    ];
    for (steps, nodes, volatile) in [(&renamed[..], 4, false), (&written, 2, true)] {
        for (seed, node) in (0..20).flat_map(|seed| (0..nodes).map(move |node| (seed, node))) {
            let world = WorldConfig { volatile, ..WorldConfig::plain(seed, nodes) };
            passes(world, [steps, &[crashes(452, node)]].concat());
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
        let steps = vec![
            create(1, "a/x"),
            cached(1, write(43_100, 5000, 8)),
            Step::inject(Injection::Disk(1, DiskFaults { syncs: 500, ..DiskFaults::default() })),
            cached(0, Op::unlink("a/x")),
            cached(1, read(949, 5000)),
        ];
        let world = WorldConfig { devices: vec![false, true], volatile: true, ..WorldConfig::plain(seed, 2) };
        passes_with(world, steps, true);
    }
}

/// A descriptor of a file that another node renamed could not read units outside the pool, nor write for the first time after a
/// change of attributes: the node looked up the old path only.
#[test]
fn an_open_file_is_read_and_written_after_a_rename() {
    let rename = || Op::rename("a/x", "b/x", RenameMode::Replace);
    passes_on_three(&[
        create(1, "a/x"),
        write_some(1),
        cached(1, CLOSE),
        cached(0, open("a/x", Flags::WRITE)),
        Step::Rest(3000),
        cached(2, Op::Chmod { path: "a/x".to_owned(), mode: 0o640 }),
        cached(2, rename()),
        cached(0, read(0, 5000)),
        write_some(0),
    ]);
    // Concurrently, and on the same node.
    let together = Step::Together(vec![beside(1, rename()), beside(1, read(0, 5000))]);
    passes_on_three(&[create(1, "a/x"), write_some(1), Step::Rest(400), together]);
}

/// A reply of the coordinator to a stat arrived after a later reply to a close, and set a size from before both.
#[test]
fn a_stat_during_a_close_does_not_set_an_old_size() {
    // The number of earlier directories decides the file's inode number, and thus its homes.
    for before in 0..6 {
        let mkdir = |number| cached(1, Op::Mkdir { path: format!("m{number}") });
        let mut steps: Vec<_> = (0..before).map(mkdir).collect();
        let together = Step::Together(vec![beside(0, CLOSE), beside(0, Op::stat("x"))]);
        steps.extend([create(0, "x"), write_some(0), together]);
        passes_on_three(&steps);
    }
}

/// Content of a small file that was fetched during a write was cached as the newer version, or as that of a unit which did not exist
/// yet: after the write reached its home, the node no longer saw it.
#[test]
fn writes_to_a_small_file_are_seen_during_writes_of_another_node() {
    let call = |node, op| Action::Call { node, view: View::JobShared, op };
    let unlock = |node| call(node, Op::Unlock { slot: 0, range: None });
    let steps = [
        shared(2, open("a/y", Flags::CREATE)),
        shared(0, open("a/y", Flags::CREATE)),
        shared(0, write(200, 100, 2)),
        Step::Together(vec![unlock(0), call(2, write(200, 100, 3)), call(0, write(0, 100, 4))]),
        Step::Together(vec![call(0, read(0, 400)), unlock(2), unlock(0)]),
    ];
    passes_on(3, 0..2000, &steps);
}

/// A check assigned the second name of a symbolic link to another link.
#[test]
fn a_rename_between_two_names_of_a_symbolic_link_does_nothing() {
    let path = |path: &str| path.to_owned();
    passes_on_three(&[
        shared(2, open("a/x", Flags::CREATE)),
        shared(0, Op::Symlink { path: path("b/x"), target: path("a/c/23") }),
        shared(1, Op::Link { from: path("b/x"), to: path("x") }),
        shared(1, Op::rename("b/x", "a/x", RenameMode::Exchange)),
        Step::Check,
        shared(2, Op::rename("a/x", "x", RenameMode::Replace)),
    ]);
}

/// An unlock does not report lost writes; the next close or fsync does (S4).
#[test]
fn a_write_lost_at_an_unlock_does_not_set_the_size() {
    let faults = DiskFaults { syncs: 1000, ..DiskFaults::default() };
    let fail = |node| Action::Injection(0, Injection::Disk(node, faults));
    for (node, seed) in (0..3).flat_map(|node| (0..20).map(move |seed| (node, seed))) {
        let other = (node + 1) % 3;
        let steps = vec![
            shared(node, open("a/y", Flags::CREATE)),
            shared(node, write(533, 70_000, 7)),
            Step::Together((0..3).map(fail).collect()),
            shared(other, Op::SyncDir { path: "a".to_owned() }),
            shared(other, open("z", Flags::CREATE)),
            shared(other, Op::Truncate { path: "z".to_owned(), size: 0 }),
            shared(node, Op::Unlock { slot: 0, range: None }),
            shared(node, Op::stat("a/y")),
        ];
        passes_with(WorldConfig::plain(seed, 3), steps, true);
    }
}

/// A journal without its tail listed a removed file, and applied its state to a new file with the same inode number. The product serves
/// no view on such a journal, and does not reuse the number.
#[test]
fn a_new_file_does_not_inherit_state_from_a_journal_without_its_tail() {
    let write = |slot, length, tag| Op::Write { slot, offset: 0, length, tag };
    let loses_power = |after, node| Action::Injection(after, kill(node, true));
    let steps = [
        cached(0, open("b/x", Flags::APPEND)),
        cached(1, Op::open(1, "b/z", Flags::APPEND)),
        Step::Together(vec![beside(1, write(1, 70_000, 17)), beside(1, write(1, 400_000, 18))]),
        Step::Together(vec![beside(0, write(0, 100, 22)), loses_power(100, 0)]),
        // The state of the file is unknown, so the check removes it.
        Step::Check,
        Step::Together(vec![loses_power(3000, 1)]),
        Step::Check,
        create(0, "b/x"),
        cached(0, CLOSE),
        create(0, "a/z"),
    ];
    for seed in 0..100 {
        let world = WorldConfig { capacity: 256 << 10, ..WorldConfig::plain(seed, 2) };
        passes(world, steps.to_vec());
    }
}

/// Closed but unsynced bytes may be lost when an agent fails: the size was lost with the file's home, and units stayed on other nodes.
#[test]
fn units_may_stay_when_the_size_is_lost_with_its_home() {
    let open = |slot, path: &str| Op::open(slot, path, Flags::CREATE);
    let steps = [
        shared(1, open(0, "a/y")),
        shared(2, open(0, "a/z")),
        shared(2, open(2, "a/x")),
        shared(2, Op::Symlink { path: "b/66".to_owned(), target: "a/c/y".to_owned() }),
        cached(1, open(0, "a/y")),
        cached(1, write(0, 100, 16)),
        shared(0, open(0, "b/x")),
        shared(0, open(2, "b/y")),
        shared(1, open(2, "b/z")),
        Step::Check,
        shared(1, Op::Write { slot: 2, offset: 559, length: 5000, tag: 22 }),
        shared(1, Op::Close { slot: 2 }),
        shared(2, Op::Lock { slot: 0, range: Some(LockRange::ALL), kind: LockKind::Exclusive, wait: true }),
        Step::inject(kill(1, false)),
    ];
    for seed in 243_862..243_882 {
        let world = WorldConfig { inline_max: 3000, ..WorldConfig::plain(seed, 3) };
        passes(world, steps.to_vec());
    }
}

/// A power loss of a file's home dropped the link count of a name that another node kept. After the removal of the counted name, the
/// other one had no inode, which the model did not know.
#[test]
fn an_uncounted_name_is_an_orphan_after_the_counted_ones_are_removed() {
    let link = |to: &str| Op::Link { from: "a/x".to_owned(), to: to.to_owned() };
    for removal in [Op::unlink("a/x"), Op::rename("b/z", "a/x", RenameMode::Replace)] {
        let steps = [
            shared(1, open("a/x", Flags::CREATE)),
            shared(1, FSYNC),
            shared(1, link("x")),
            // Makes the kernel of the name's node cache it; that is not the node of the file.
            shared(1, link("y")),
            Step::inject(kill(0, true)),
            Step::Check,
            shared(2, open("b/z", Flags::CREATE)),
            // The closes of the check reach the file's home.
            Step::Rest(3000),
            shared(0, removal),
            shared(1, open("x", Flags::WRITE)),
            shared(1, Op::stat("x")),
            Step::Check,
        ];
        passes_on(4, 0..20, &steps);
    }
}

/// A stat resolved a name before its removal and read the attributes after it; the model took the file for one without any name.
#[test]
fn a_stat_during_a_removal_may_show_no_links() {
    let steps = [
        create(2, "a/x"),
        cached(2, FSYNC),
        cached(0, open("a/x", Flags::WRITE)),
        cached(1, open("a/x", Flags::WRITE)),
        Step::Together(vec![beside(2, Op::unlink("a/x")), beside(0, Op::stat("a/x"))]),
    ];
    for seed in 100..200 {
        let slowness = vec![Duration::from_millis(6); 3];
        let devices = vec![true, false, false];
        passes(WorldConfig { slowness, devices, ..WorldConfig::plain(seed, 3) }, steps.to_vec());
    }
}

/// An open of a file that another node removed concurrently was left behind when the node's other descriptors moved to the shared
/// file: its reads failed with ESTALE. And an open with `O_TRUNC` that reached the file through an open handle, after the removal of
/// its name, did not truncate it.
#[test]
fn a_file_opened_during_its_removal_on_another_node_is_read() {
    let opens = |slot, flags| beside(1, Op::open(slot, "a/x", flags));
    let read = |slot| cached(1, Op::Read { slot, offset: 0, length: 6000 });
    for flags in [Flags::WRITE, Flags::TRUNCATE] {
        let steps = [
            create(1, "a/x"),
            write_some(1),
            Step::inject(Injection::Slow(1, 4)),
            Step::Together(vec![beside(2, Op::unlink("a/x")), opens(1, flags), opens(2, Flags::WRITE)]),
            read(1),
            read(2),
            read(0),
        ];
        passes_on(3, 0..500, &steps);
    }
}
