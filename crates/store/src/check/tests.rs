mod bed;
mod records;

use super::check;
use bed::{Bed, CACHED, Plain};
use proptest::prelude::*;
use tameike_core::{Errno, UnitId};

const DIRTY: UnitId = UnitId { inode: CACHED, index: 0 };
const CLEAN: UnitId = UnitId { inode: CACHED, index: 2 };

/// Offset of the first block of the extents file that begins with `byte`.
fn block_of(bytes: &[u8], byte: u8) -> usize {
    bytes.chunks(4096).position(|block| block[0] == byte).expect("a block") * 4096
}

#[test]
fn an_intact_store_has_no_findings() {
    for moved in [false, true] {
        let bed = Bed::new(moved);
        assert_eq!(bed.found(), Vec::<String>::new(), "moved: {moved}");
        let counts = bed.check(false).counts;
        assert_eq!((counts.inodes, counts.names, counts.units), (5, 4, 3));
        assert_eq!((counts.bytes, counts.dirty_files, counts.dirty_bytes), (9 * 4096, 1, 10_000));
        assert!((counts.log_records > 0) != moved);
    }
}

#[test]
fn a_torn_last_log_record_is_no_damage() {
    let bed = Bed::new(false);
    bed.edit("log.0", |log| log.extend_from_within(0..10));
    let report = bed.check(true);
    let message: Vec<_> = report.findings.iter().map(|finding| finding.message.as_str()).collect();
    assert!(
        matches!(message.as_slice(), [message] if message.contains("10 bytes that are no whole record")),
        "{message:?}"
    );
    assert!(!report.repaired);
    bed.reopen(|store| assert_eq!(bed.read(store, DIRTY), [Some(9); 10_000]));
}

#[test]
fn a_damaged_log_record_is_reported_and_the_others_survive() {
    let bed = Bed::new(false);
    bed.edit("log.0", |log| {
        // The record of the first write to the cache view begins with the key of the unit.
        let key = [&b"u"[..], &CACHED.0.to_be_bytes(), &0u64.to_be_bytes()].concat();
        let place = log.windows(key.len()).position(|bytes| bytes == key).expect("the record");
        log[place + 20] ^= 1;
    });
    assert_eq!(bed.found(), ["lost records 9 to 9 of the log are missing or broken"]);
    bed.reopen(|store| {
        assert_eq!(bed.read(store, DIRTY), [None; 10_000]);
        assert_eq!(bed.read(store, CLEAN), [Some(5); 10_000]);
        assert_eq!(store.damage, ["records 9 to 9 of the log are missing or broken"]);
    });
    assert!(bed.path("lost+found/log.0").is_file());
}

#[test]
fn a_damaged_last_log_record_differs_from_a_torn_one() {
    let bed = Bed::new(false);
    bed.edit("log.0", |log| {
        let last = log.len() - 1;
        log[last] ^= 1;
    });
    let Err(refused) = bed.open() else { panic!("a store with a broken record was opened") };
    assert!(
        refused.to_string().contains("record 10 is missing or broken (the checksum at byte"),
        "{refused}"
    );
    let found = bed.found();
    assert!(
        matches!(found.as_slice(), [one] if one.contains("record 10, the last of the log, is broken")),
        "{found:?}"
    );
    bed.reopen(|store| assert_eq!(bed.read(store, DIRTY), [Some(9); 10_000]));
}

#[test]
fn a_damaged_table_is_saved() {
    let bed = Bed::new(true);
    bed.edit("table", |table| {
        let place = table.windows(5).position(|bytes| bytes == b"hello").expect("the content");
        table[place] ^= 1;
    });
    let found = bed.found();
    assert!(matches!(found.as_slice(), [one] if one.starts_with("lost the table is damaged")), "{found:?}");
    assert!(bed.path("lost+found/table").is_file());
    bed.reopen(|store| assert_eq!(store.damage.len(), 1));
}

#[test]
fn missing_files_of_a_store_are_reported() {
    for (name, message) in [
        ("table", "lost the table is missing"),
        ("log.1", "lost log.1 is missing"),
        ("lock", "wrong the file lock is missing"),
        ("format", "wrong the file format is missing"),
    ] {
        let bed = Bed::new(true);
        std::fs::remove_file(bed.path(name)).unwrap();
        let found = bed.found();
        assert!(found.iter().any(|found| found.starts_with(message)), "{name}: {found:?}");
        bed.reopen(|_| ());
    }
}

#[test]
fn lost_bytes_are_reported_and_their_neighbours_survive() {
    let bed = Bed::new(true);
    bed.edit("extents", |extents| {
        for byte in [9, 5, 7] {
            let place = block_of(extents, byte);
            extents[place + 4096] ^= 1;
        }
    });
    let found = bed.found();
    let starts = [
        "lost bytes 1052672 to 1056767 of shared:/data are lost: blocks ",
        "lost bytes 4096 to 8191 of out/result are lost: blocks ",
        "wrong blocks ",
    ];
    assert_eq!(found.len(), starts.len(), "{found:?}");
    for (found, start) in found.iter().zip(starts) {
        assert!(found.starts_with(start) && found.contains("do not match their checksums"), "{found}");
    }
    assert!(found[2].ends_with("clean bytes of out/result, which the shared file system has"), "{found:?}");
    bed.reopen(|store| {
        for (unit, byte) in [(DIRTY, 9), (CLEAN, 5), (UnitId { inode: bed.data, index: 1 }, 7)] {
            let whole = |at: usize| if (4096..8192).contains(&at) { None } else { Some(byte) };
            assert_eq!(bed.read(store, unit), (0..10_000).map(whole).collect::<Vec<_>>());
        }
        assert_eq!(store.damage, [found[1].strip_prefix("lost ").unwrap()], "only losses of the cache view");
    });
    let aside = std::fs::read(bed.path(&format!("lost+found/{:016x}", bed.data.0))).unwrap();
    assert_eq!((aside.len(), aside[1_052_672], aside[1_052_673]), (1_056_768, 7 ^ 1, 7));
    let listed = std::fs::read_to_string(bed.path("lost+found/lost.txt")).unwrap();
    assert_eq!(listed.lines().count(), 2);
}

#[test]
fn a_truncated_or_missing_extents_file_loses_its_units() {
    let bed = Bed::new(true);
    bed.edit("extents", |extents| {
        let place = block_of(extents, 9);
        extents.truncate(place + 100);
    });
    let found = bed.found();
    assert!(found.iter().any(|found| found.starts_with("lost bytes 0 to 9999 of out/result")), "{found:?}");
    bed.reopen(|store| assert_eq!(bed.read(store, DIRTY), [None; 10_000]));
    let bed = Bed::new(true);
    std::fs::remove_file(bed.path("extents")).unwrap();
    assert_eq!(bed.found().len(), 3);
}

#[test]
fn checks_of_running_stores_and_other_directories_fail() {
    let refused = |path: &std::path::Path| check(path, &Plain, true, &mut |_, _| {}).unwrap_err();
    let bed = Bed::new(false);
    let above = refused(bed.home.path().parent().unwrap());
    assert_eq!(above.errno, Errno::EINVAL);
    assert!(
        above.to_string().contains(&bed.home.path().display().to_string()),
        "it names the stores in it: {above}"
    );
    assert!(refused(&bed.path("table")).to_string().contains("is not a directory"));
    assert_eq!(refused(&bed.path("nothing")).errno, Errno::ENOENT);
    let store = bed.open().unwrap();
    let busy = refused(bed.home.path());
    assert_eq!(busy.errno, Errno::EBUSY);
    assert!(busy.to_string().contains("end it first"), "{busy}");
    drop(store);
    std::fs::write(bed.path("format"), "tameike-store 9 x\n").unwrap();
    assert!(refused(bed.home.path()).to_string().contains("with the version that created it"));
    std::fs::write(bed.path("format"), "tameike-st\u{1}re 1 x\n").unwrap();
    assert!(bed.found().iter().any(|found| found.starts_with("wrong the file format is damaged")));
    bed.reopen(|_| ());
}

#[test]
fn records_that_were_not_durable_before_a_reboot_are_no_damage() {
    let bed = Bed::new(false);
    std::fs::write(bed.path("format"), "tameike-store 2 another-boot\n").unwrap();
    bed.edit("extents", |extents| {
        let place = block_of(extents, 5);
        extents[place..place + 4096].fill(0);
    });
    let report = bed.check(true);
    let message: Vec<_> = report.findings.iter().map(|finding| finding.message.as_str()).collect();
    assert!(message.iter().any(|message| message.contains("dropped from record 10 on")), "{message:?}");
    assert!(!report.repaired);
    bed.reopen(|store| assert_eq!(bed.read(store, CLEAN), [None; 10_000]));
}

/// Environment variable with the store of [`repairs_a_store_for_another_test`].
const STORE: &str = "TAMEIKE_TEST_STORE";
const BEGINS: &str = "the repair begins";

#[test]
#[ignore = "a process that another test kills"]
fn repairs_a_store_for_another_test() {
    let dir = std::env::var_os(STORE).expect("a store");
    println!("{BEGINS}");
    check(std::path::Path::new(&dir), &Plain, true, &mut |_, _| {}).unwrap();
}

/// Repairs the store in a process that is killed after `delay_ms`. Returns true if it had exited before.
fn killed_after(bed: &Bed, delay_ms: u32) -> bool {
    use std::io::BufRead;
    use std::process::{Command, Stdio};
    let mut child = bed::start(
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "check::tests::repairs_a_store_for_another_test", "--ignored", "--nocapture"])
            .env(STORE, bed.home.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null()),
    );
    let mut said = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains(BEGINS)));
    let delay = format!("{}.{:03}", delay_ms / 1000, delay_ms % 1000);
    assert!(bed::start(Command::new("sleep").arg(delay)).wait().unwrap().success());
    let ended = child.try_wait().unwrap().is_some();
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert!(!ended || status.success());
    ended
}

#[test]
fn a_killed_repair_can_be_repeated() {
    let break_log = |bed: &Bed| {
        bed.edit("log.0", |log| {
            let middle = log.len() / 2;
            log[middle] ^= 1;
        });
    };
    let break_table = |bed: &Bed| {
        bed.edit("table", |table| {
            let place = table.windows(5).position(|bytes| bytes == b"hello").unwrap();
            table[place] ^= 1;
        });
    };
    let break_extents = |bed: &Bed| {
        bed.edit("extents", |extents| {
            let place = block_of(extents, 9);
            extents[place + 4096] ^= 1;
        });
        std::fs::remove_file(bed.path("log.1")).unwrap();
    };
    let damage = |kind: usize, bed: &Bed| match kind {
        0 => break_log(bed),
        1 => break_table(bed),
        _ => break_extents(bed),
    };
    for kind in 0..3 {
        let mut delay_ms = 0;
        loop {
            let bed = Bed::new(kind > 0);
            damage(kind, &bed);
            let ended = killed_after(&bed, delay_ms);
            let found = bed.found();
            assert!(!ended || found.is_empty(), "{found:?}");
            bed.reopen(|store| assert!(!store.damage.is_empty(), "losses stay listed"));
            if ended {
                break;
            }
            delay_ms += 1 + delay_ms / 4;
        }
    }
}

#[test]
fn a_check_reads_node_local_files() {
    let bed = Bed::new(true);
    std::fs::create_dir_all(bed.path("local/deep/er")).unwrap();
    std::fs::write(bed.path("local/deep/er/one"), [1; 5000]).unwrap();
    std::fs::write(bed.path("local/two"), [2; 7]).unwrap();
    std::os::unix::fs::symlink("/nowhere", bed.path("local/link")).unwrap();
    assert_eq!(bed.found(), Vec::<String>::new());
    let counts = bed.check(false).counts;
    assert_eq!((counts.local_files, counts.local_bytes), (2, 5007));
    // A file that the disk cannot read.
    let read = |path: &std::path::Path| match path.ends_with("local/two") {
        true => Err(std::io::Error::from_raw_os_error(Errno::EIO.0)),
        false => super::local::read_file(path),
    };
    let check =
        |repair| super::check_reading(bed.home.path(), &Plain, repair, &mut |_, _| {}, &read).unwrap();
    for repair in [false, true] {
        let report = check(repair);
        let message: Vec<_> = report.findings.iter().map(|finding| finding.message.as_str()).collect();
        assert!(
            matches!(message.as_slice(), [message] if message.starts_with("node-local:/two cannot be read (")),
            "{message:?}"
        );
        assert_eq!((report.counts.local_files, report.counts.local_bytes), (1, 5000));
    }
    assert!(check(false).findings.is_empty(), "the repair moved it");
    assert_eq!(std::fs::read(bed.path("lost+found/local-two")).unwrap(), [2; 7]);
    bed.reopen(|store| assert_eq!(store.damage, Vec::<String>::new(), "no loss of the cache view"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 16))]

    /// A check finds the same with and without repair; a repaired store has no findings, and opens.
    #[test]
    fn any_damage_can_be_repaired(
        moved in any::<bool>(),
        flips in prop::collection::vec((0usize..5, any::<prop::sample::Index>(), 1u8..=255), 1..4),
    ) {
        let bed = Bed::new(moved);
        for (file, place, bits) in flips {
            let name = ["log.0", "log.1", "table", "extents", "format"][file];
            bed.edit(name, |bytes| {
                // The used part of the extents.
                let length = bytes.len().min(64 << 10);
                if length > 0 {
                    let place = place.index(length);
                    bytes[place] ^= bits;
                }
            });
        }
        match bed.try_check(false) {
            // Damage that looks like another version stops a check.
            Err(fault) => prop_assert!(fault.to_string().contains("with the version that created it"), "{}", fault),
            Ok(_) => {
                bed.found();
                bed.reopen(|_| ());
            }
        }
    }
}
