use super::*;
use clap::ValueEnum;
use std::os::unix::fs::FileExt;

fn sites(workload: Workload, directory: &Path) -> [Site; 2] {
    let plan = Plan {
        workload,
        steps: workload.steps().to_vec(),
        in_container: false,
        ranks: 2,
        seed: 5,
        size_bytes: (2 << 20) + 4096,
        files: 10,
        file_bytes: workload.file_bytes(3000),
        operations: 50,
        processor: None,
        run: "run".to_owned(),
    };
    [0, 1].map(|rank| Site::new(plan.clone(), rank, directory))
}

/// Takes the steps of both ranks in turn, until the step `last` is done.
fn take_until(sites: &[Site; 2], last: Step) -> Vec<(Step, Measured)> {
    let mut done = Vec::new();
    for &step in sites[0].plan.workload.steps() {
        for site in sites {
            done.push((step, site.take(step).expect("a sound file system")));
        }
        if step == last {
            break;
        }
    }
    done
}

/// A directory, with the sites of two ranks that have taken the steps to `last`.
fn taken(workload: Workload, last: Step) -> (tempfile::TempDir, [Site; 2]) {
    let directory = tempfile::tempdir().expect("a directory");
    let pair = sites(workload, directory.path());
    take_until(&pair, last);
    (directory, pair)
}

fn damage(path: &Path, offset: u64) {
    let file = File::options().read(true).write(true).open(path).expect("open");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("read");
    file.write_all_at(&[byte[0] ^ 0x40], offset).expect("write");
}

#[test]
fn every_workload_passes_on_a_plain_directory_and_cleans_up() {
    for workload in Workload::value_variants() {
        let directory = tempfile::tempdir().expect("a directory");
        let done = take_until(&sites(*workload, directory.path()), Step::RemoveAll);
        for (step, Measured { work, latencies }) in
            done.iter().filter(|(step, _)| step.unit().is_some() && !step.ends_ranks())
        {
            assert!(work.operations > 0 && work.seconds > 0.0, "{workload:?} {step:?} {work:?}");
            assert!(latencies.percentiles().is_some(), "{workload:?} {step:?}");
        }
        let left = std::fs::read_dir(directory.path()).expect("list").count();
        assert_eq!(left, 0, "{workload:?} left something behind");
    }
}

#[test]
fn one_damaged_byte_fails_the_read() {
    let (_directory, pair) = taken(Workload::Sequential, Step::Write);
    damage(&pair[1].large_file(1), (1 << 20) + 77);
    for (site, step) in [(&pair[1], Step::ReadOwn), (&pair[0], Step::ReadOther)] {
        let message = site.take(step).expect_err("the damage is seen");
        assert!(message.contains("WRONG DATA") && message.contains("at byte 1048653"), "{message}");
    }
    assert!(pair[0].take(Step::ReadOwn).is_ok());
}

#[test]
fn a_file_too_long_or_too_short_fails_the_read() {
    let (_directory, pair) = taken(Workload::Sequential, Step::Write);
    let file = File::options().write(true).open(pair[0].large_file(0)).expect("open");
    for size in [pair[0].plan.size_bytes + 1, pair[0].plan.size_bytes - 1] {
        file.set_len(size).expect("a new length");
        assert!(pair[0].take(Step::ReadOwn).is_err());
    }
}

#[test]
fn a_block_that_was_not_overwritten_fails_the_random_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut pair = sites(Workload::Random, directory.path());
    for site in &mut pair {
        site.plan.operations = 2000;
    }
    take_until(&pair, Step::Fill);
    let message = pair[0].take(Step::RandomRead).expect_err("old content is seen");
    assert!(message.contains("WRONG DATA"), "{message}");
}

#[test]
fn small_files_are_checked_too() {
    let (_directory, pair) = taken(Workload::Small, Step::Create);
    damage(&pair[1].file(1, 3), 3900);
    assert!(pair[0].take(Step::OpenOther).expect_err("damage").contains("at byte 3900"));
    damage(&pair[1].file(1, 3), 3900);
    assert!(pair[0].take(Step::OpenOther).is_ok());
    let file = File::options().write(true).open(pair[1].file(1, 3)).expect("open");
    file.set_len(4000).expect("a new length");
    assert!(pair[0].take(Step::OpenOther).expect_err("too long").contains("WRONG SIZE"));
}

#[test]
fn records_of_all_ranks_make_one_whole_file_and_are_checked() {
    for (workload, bytes_of_both) in [(Workload::Interleaved, 88 * 47_008), (Workload::Shared, 2 * 2_101_248)]
    {
        let (_directory, pair) = taken(workload, Step::Write);
        let path = pair[0].large_file(0);
        assert_eq!(path, pair[1].large_file(1));
        assert_eq!(std::fs::metadata(&path).expect("the file").len(), bytes_of_both, "{workload:?}");
        assert!(pair.iter().all(|site| site.take(Step::ReadOther).is_ok()), "{workload:?}");
        // In the last record, or part, which is the second rank's.
        damage(&path, bytes_of_both - 3);
        assert!(pair[1].take(Step::ReadOther).is_ok(), "{workload:?}");
        let message = pair[0].take(Step::ReadOther).expect_err("the damage is seen");
        assert!(message.contains(&format!("WRONG DATA in {} at byte", path.display())), "{message}");
    }
}

#[test]
fn one_process_writes_as_much_as_four() {
    let directory = tempfile::tempdir().expect("a directory");
    let bytes = |workload: Workload| {
        let [mut first, _] = sites(workload, directory.path());
        first.plan.ranks = workload.ranks(2);
        first.take(Step::MakeDirectories).expect("directories");
        let work = first.take(Step::Write).expect("written").work;
        first.take(Step::RemoveAll).expect("removed");
        work.bytes * u64::from(first.plan.ranks)
    };
    assert_eq!(bytes(Workload::OneProcess), bytes(Workload::FourProcesses));
}

#[test]
fn metadata_is_checked_too() {
    let (_directory, pair) = taken(Workload::MetadataShared, Step::Create);
    std::fs::write(pair[1].file(1, 2), "not empty").expect("write");
    assert!(pair[0].take(Step::StatOther).expect_err("not empty").contains("WRONG ATTRIBUTES"));
    std::fs::write(pair[0].file(0, 99), "one too many").expect("write");
    assert!(pair[0].take(Step::Unlink).expect_err("still listed").contains("WRONG LISTING"));
    assert!(pair[0].take(Step::Unlink).is_err(), "a file can be unlinked once only");
}
