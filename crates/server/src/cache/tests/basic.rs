//! Files written, flushed, drained and recovered on one or several nodes.

use super::bed::{Bed, bytes, checksum};
use super::client::open_request;
use std::time::Duration;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::receipt::FileOutcome;
use tameike_core::wire::cache::{CacheReply, CacheRequest};
use tameike_core::{Errno, NodeId, UnitId};

const UNIT: usize = UNIT_SIZE;

#[test]
fn another_node_reads_a_closed_file_and_the_drain_verifies_it() {
    let bed = Bed::new(1, 3);
    let content = bytes(1, 3 * UNIT + UNIT / 2);
    bed.create("file", &content);
    assert_eq!(bed.read(1, "file"), content);
    assert_eq!(bed.run(bed.client(1).size(b"file")), Ok(content.len() as u64));
    assert_eq!(bed.shared_content("file"), b"", "nothing goes to the shared directory before a flush");
    let receipt = bed.drain_completely(true);
    assert_eq!(bed.shared_content("file"), content);
    let [file] = receipt.files.as_slice() else { panic!("{receipt:?}") };
    assert_eq!((file.path.as_str(), file.size), ("file", content.len() as u64));
    assert_eq!((&file.outcome, &file.checksum), (&FileOutcome::Verified, &checksum(&content)));
    assert_eq!(file.written, content.len() as u64);
    assert_eq!(file.note, "");
}

#[test]
fn receipts_of_whole_files_have_the_blake3_checksum() {
    let bed = Bed::new(2, 2);
    for size in [0, 1, 1024, UNIT - 1, UNIT, UNIT + 1, 2 * UNIT] {
        bed.create(&format!("f{size}"), &bytes(size as u64, size));
    }
    let receipt = bed.drain(false);
    for file in &receipt.files {
        assert_eq!(file.outcome, FileOutcome::Synced);
        let content = bytes(file.size, file.size as usize);
        assert_eq!(file.checksum, checksum(&content), "{}", file.path);
        assert_eq!(bed.shared_content(&file.path), content);
    }
    assert_eq!(receipt.files.len(), 7);
}

#[test]
fn a_unit_is_fetched_once_from_the_shared_file_system() {
    let bed = Bed::new(3, 2);
    let content = bytes(4, 2 * UNIT + 100);
    bed.write_shared("input", &content);
    let (one, two) = (bed.client(0), bed.client(1));
    let both = bed.run(futures_util::future::join(one.read(b"input"), two.read(b"input")));
    assert_eq!(both, (Ok(content.clone()), Ok(content.clone())));
    // Stored units are read without the shared file system.
    bed.control.set(super::faulty::Plan::From(0, Errno::EIO));
    let reads = bed.control.reads();
    assert_eq!(bed.read(0, "input"), content);
    assert_eq!(bed.control.reads(), reads);
    assert!(reads <= 3, "{reads} reads of 3 units by two nodes");
}

#[test]
fn a_sequential_read_opens_the_shared_file_once_and_again_after_a_change() {
    let bed = Bed::new(3, 1);
    let mut content = bytes(4, 5 * UNIT);
    bed.write_shared("file", &content);
    let read = |expected: &[u8]| {
        let before = bed.control.opens();
        assert!(bed.read(0, "file") == expected);
        bed.control.opens() - before
    };
    assert_eq!(read(&content), 1);
    // Another program changes the file, and the coordinator detects that: all units have a new generation.
    content[3 * UNIT] ^= 1;
    bed.write_shared("file", &content);
    assert_eq!(read(&content), 1);
    // After the sequential read the node closes the shared file, so that it can be removed.
    bed.machine.rest(Duration::from_secs(1));
    assert_eq!(open_files(&bed.root), 0);
    assert_eq!(read(&content), 0);
    bed.run(bed.client(0).unlink(b"file")).expect("removed");
}

/// Counts the open files of this process below a directory, unlinked ones included.
fn open_files(dir: &std::path::Path) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
    let below = |path: std::path::PathBuf| path.starts_with(dir) && path != dir;
    open.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(below)).count()
}

#[test]
fn partial_writes_keep_the_bytes_around_them_and_only_dirty_bytes_are_written() {
    let bed = Bed::new(4, 2);
    let mut content = bytes(5, 2 * UNIT + 1000);
    bed.write_shared("file", &content);
    for (start, piece) in [(10, &b"abc"[..]), (UNIT - 2, b"wxyz")] {
        bed.run(bed.client(1).write(b"file", start as u64, piece)).expect("write");
        content[start..start + piece.len()].copy_from_slice(piece);
    }
    assert_eq!(bed.read(0, "file"), content);
    let receipt = bed.drain(true);
    assert_eq!(bed.shared_content("file"), content);
    assert_eq!(receipt.files[0].written, 7);
    assert!(receipt.files[0].checksum.starts_with("units:"), "unit 2 was never written");
    assert_eq!(receipt.files[0].outcome, FileOutcome::Verified);
}

#[test]
fn an_idle_node_flushes_in_the_background_and_a_busy_one_does_not() {
    let bed = Bed::new(5, 2);
    bed.start_flushers();
    let busy = [bed.keep_busy(NodeId(0)), bed.keep_busy(NodeId(1))];
    let content = bytes(6, UNIT + 7);
    bed.create("file", &content);
    bed.machine.rest(Duration::from_secs(20));
    assert_eq!(bed.shared_content("file"), b"");
    drop(busy);
    bed.machine.rest(Duration::from_secs(20));
    assert_eq!(bed.shared_content("file"), content);
    let receipt = bed.drain(true);
    assert_eq!((receipt.files.len(), &receipt.files[0].outcome), (1, &FileOutcome::Verified));
    assert_eq!(bed.run(bed.client(0).size(b"file")), Ok(content.len() as u64));
}

#[test]
fn a_change_by_another_program_is_visible_at_the_next_open() {
    let bed = Bed::new(6, 2);
    bed.write_shared("file", &bytes(1, UNIT));
    assert_eq!(bed.read(0, "file"), bytes(1, UNIT));
    bed.write_shared("file", &bytes(2, UNIT));
    let later = std::time::UNIX_EPOCH + Duration::from_secs(2_000_000_000);
    std::fs::File::open(bed.root.join("file")).expect("open").set_modified(later).expect("a newer time");
    assert_eq!(bed.read(1, "file"), bytes(2, UNIT));
}

#[test]
fn dirty_data_survives_a_change_by_another_program_and_the_receipt_notes_it() {
    let bed = Bed::new(7, 2);
    bed.write_shared("file", &bytes(1, 1000));
    bed.write("file", 10, b"ours");
    bed.write_shared("file", &bytes(2, 2000));
    let mut expected = bytes(2, 2000);
    expected[10..14].copy_from_slice(b"ours");
    assert_eq!(bed.read(1, "file"), expected);
    let receipt = bed.drain(true);
    assert_eq!(bed.shared_content("file"), expected);
    assert!(receipt.files[0].note.contains("another program"), "{receipt:?}");
}

/// Regression: another program replaced a file that the job had written and flushed, and the job then wrote to the new content. The receipt
/// compared the file with the old content and reported it missing for good.
#[test]
fn a_file_that_another_program_replaced_after_the_flush_has_the_new_content() {
    for dirty in [false, true] {
        let bed = Bed::new(7, 2);
        bed.create("file", &bytes(1, UNIT + 10));
        bed.drain_completely(true);
        let mut expected = bytes(2, UNIT + 20);
        bed.write_shared("file", &expected);
        assert_eq!(bed.read(1, "file"), expected);
        if dirty {
            bed.write("file", 5, b"ours");
            expected[5..9].copy_from_slice(b"ours");
        }
        let receipt = bed.drain(true);
        let file = &receipt.files[0];
        assert!(receipt.is_complete() && file.note.contains("another program"), "{receipt:?}");
        assert_eq!(file.outcome, if dirty { FileOutcome::Verified } else { FileOutcome::Synced });
        assert_eq!(bed.shared_content("file"), expected);
    }
}

#[test]
fn a_flush_that_completes_after_its_timeout_is_not_a_change_by_another_program() {
    let bed = Bed::new(7, 3);
    bed.create("file", &bytes(1, 6 * UNIT));
    let late = Duration::from_millis(100);
    for node in 0..3 {
        bed.delay_flush_replies(NodeId(node), Some(late));
        bed.run(bed.client(0).write_back(b"file")).expect_err("a node does not answer");
        bed.machine.rest(2 * late);
        bed.delay_flush_replies(NodeId(node), None);
    }
    let receipt = bed.drain(true);
    assert_eq!(bed.shared_content("file"), bytes(1, 6 * UNIT));
    let file = &receipt.files[0];
    assert_eq!((&file.outcome, file.note.as_str()), (&FileOutcome::Verified, ""), "{receipt:?}");
}

#[test]
fn truncated_dirty_and_clean_bytes_do_not_reappear() {
    let bed = Bed::new(8, 3);
    let content = bytes(3, 3 * UNIT);
    bed.write_shared("file", &content);
    let client = bed.client(0);
    bed.run(async {
        assert_eq!(client.read(b"file").await.expect("read"), content);
        client.write(b"file", 3 * UNIT as u64, b"tail").await.expect("write");
        client.truncate(b"file", UNIT as u64 + 5).await.expect("truncate");
        client.truncate(b"file", 2 * UNIT as u64).await.expect("grow");
        client.write(b"file", 2 * UNIT as u64 + 3, b"end").await.expect("write");
    });
    let mut expected = content[..UNIT + 5].to_vec();
    expected.resize(2 * UNIT + 3, 0);
    expected.extend_from_slice(b"end");
    assert_eq!(bed.read(2, "file"), expected);
    bed.drain_completely(true);
    assert_eq!(bed.shared_content("file"), expected);
}

#[test]
fn renamed_files_and_directories_are_flushed_to_their_new_paths() {
    let bed = Bed::new(9, 3);
    std::fs::create_dir(bed.root.join("dir")).expect("mkdir");
    let client = bed.client(0);
    bed.run(async move {
        client.create(b"dir/a", b"content of a").await.expect("write");
        client.create(b"b", b"content of b").await.expect("write");
        client.create(b"c", b"to be replaced").await.expect("write");
        client.rename(b"dir/a", b"dir/a2").await.expect("rename");
        client.rename(b"b", b"c").await.expect("rename over");
        client.rename(b"dir", b"moved").await.expect("rename a directory");
    });
    let receipt = bed.drain_completely(true);
    let paths: Vec<_> = receipt.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["c", "moved/a2"]);
    assert_eq!(bed.shared_content("c"), b"content of b");
    assert_eq!(bed.shared_content("moved/a2"), b"content of a");
}

/// Regression: the file was reported as missing, because only the old path of its directory was known.
#[test]
fn files_of_directories_that_are_being_renamed_are_flushed_to_their_new_paths() {
    let bed = Bed::new(23, 3);
    std::fs::create_dir_all(bed.root.join("above/dir")).expect("mkdir");
    let client = bed.client(0);
    bed.run(async move {
        client.create(b"above/dir/early", b"early").await.expect("write");
        // Two nodes rename at the same time, and a third one creates a file before that.
        client.announce_rename(b"above", b"moved").await.expect("reported");
        client.announce_rename(b"above/dir", b"above/other").await.expect("reported");
        client.create(b"above/dir/late", b"late").await.expect("write");
    });
    std::fs::rename(bed.root.join("above/dir"), bed.root.join("above/other")).expect("renamed");
    std::fs::rename(bed.root.join("above"), bed.root.join("moved")).expect("renamed");
    let receipt = bed.drain_completely(true);
    let paths: Vec<_> = receipt.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["moved/other/early", "moved/other/late"]);
    assert_eq!(bed.shared_content("moved/other/late"), b"late");
}

/// Regression: the rename of a directory read every record of the job.
#[test]
fn the_rename_of_a_directory_reads_only_the_records_below_it() {
    let bed = Bed::new(17, 2);
    for dir in ["dir", "dir/sub", "dir.x", "dir0"] {
        std::fs::create_dir(bed.root.join(dir)).expect("mkdir");
    }
    for path in ["dir/a", "dir/sub/b", "dir.x/c", "dir0/d", "dirt"] {
        bed.create(path, path.as_bytes());
    }
    for number in 0..100 {
        bed.create(&format!("other{number}"), b"x");
    }
    bed.crash();
    assert_eq!(bed.files_in_memory(), 0);
    for (from, to) in [("dir", "moved"), ("moved/sub", "dir0/sub")] {
        bed.run(bed.client(1).rename(from.as_bytes(), to.as_bytes())).expect("rename");
        assert_eq!(bed.files_in_memory(), 2);
    }
    let receipt = bed.drain_completely(true);
    for (path, content) in
        [("moved/a", "dir/a"), ("dir0/sub/b", "dir/sub/b"), ("dir.x/c", "dir.x/c"), ("dir0/d", "dir0/d")]
    {
        assert_eq!(bed.shared_content(path), content.as_bytes());
        assert!(receipt.files.iter().any(|file| file.path == path), "{path}: {receipt:?}");
    }
    assert!(receipt.files.iter().any(|file| file.path == "dirt"));
}

#[test]
fn an_announced_rename_that_did_not_happen_loses_no_data() {
    let bed = Bed::new(10, 2);
    let client = bed.client(0);
    bed.run(async move {
        client.create(b"file", b"content").await.expect("write");
        let (inode, _) = client.identity(b"file");
        let request =
            CacheRequest::Renamed { inode: Some(inode), from: b"file".to_vec(), to: b"gone".to_vec() };
        client.request(inode, request).await.expect("request");
    });
    bed.drain_completely(true);
    assert_eq!(bed.shared_content("file"), b"content");
}

#[test]
fn removed_files_leave_no_data_and_no_receipt() {
    let bed = Bed::new(11, 2);
    let client = bed.client(0);
    bed.run(async move {
        client.create(b"file", &bytes(1, 2 * UNIT)).await.expect("write");
        let file = client.open(b"file", true).await.expect("open");
        client.unlink(b"file").await.expect("unlink");
        // Another node may still write through its open file.
        client.write_uncommitted(file, 5, b"late").await.expect("write");
        client.close(file, 9).await.expect("close");
        assert_eq!(client.unflushed_files(file.inode).await, 0);
    });
    assert_eq!(bed.drain_completely(true).files, []);
    assert!(!bed.root.join("file").exists());
}

/// Regression: a node looked up a file, and another node removed it before the coordinator received the open. The coordinator took the
/// inode number for that of a new file, and replied with an empty one.
#[test]
fn the_open_of_a_file_removed_after_its_lookup_fails_with_estale() {
    let bed = Bed::new(14, 2);
    let client = bed.client(0);
    bed.run(async move {
        client.create(b"file", b"content").await.expect("write");
        client.create(b"other", b"other content").await.expect("write");
        let (inode, stamp) = client.identity(b"file");
        client.unlink(b"file").await.expect("unlink");
        let open = || client.request(inode, open_request(inode, b"file", stamp));
        assert_eq!(open().await.expect_err("the file is removed").errno, Errno::ESTALE);
        client.rename(b"other", b"file").await.expect("rename");
        assert_eq!(open().await.expect_err("another file").errno, Errno::ESTALE);
        assert_eq!(client.read(b"file").await.expect("read"), b"other content");
    });
}

/// Regression: if the coordinator could not log a removal, it counted as in progress for a minute. The next file with the inode number was
/// written directly to the shared file system, and was in no receipt.
#[test]
fn a_removal_that_could_not_be_logged_still_ends() {
    let bed = Bed::new(15, 1);
    let (client, faults) = (bed.client(0), bed.device_faults(0));
    let state = bed.run(async move {
        client.create(b"file", b"content").await.expect("write");
        let (inode, stamp) = client.identity(b"file");
        client.request(inode, CacheRequest::Removing { inode }).await.expect("the file is not open");
        faults.after(0);
        let removed = client.request(inode, CacheRequest::Removed { inode }).await;
        assert_eq!(removed.expect_err("the log fails").errno, Errno::EIO);
        faults.none();
        client.request(inode, open_request(inode, b"file", stamp)).await
    });
    let Ok(CacheReply::Opened { state, .. }) = state else { panic!("{state:?}") };
    assert!(!state.removing, "{state:?}");
}

#[test]
fn appends_from_two_nodes_do_not_overlap() {
    let bed = Bed::new(12, 2);
    bed.create("log", b"start;");
    let append = async |node: u32, text: &[u8]| {
        let client = bed.client(node);
        for _ in 0..5 {
            let file = client.open(b"log", true).await.expect("open");
            let length = text.len() as u64;
            let (offset, _) = client.reserve(file.inode, length).await.expect("reserve");
            client.write_uncommitted(file, offset, text).await.expect("write");
            client.close(file, offset + length).await.expect("close");
        }
    };
    bed.run(futures_util::future::join(append(0, b"one;"), append(1, b"two;")));
    bed.drain_completely(true);
    let text = String::from_utf8(bed.shared_content("log")).expect("text");
    assert_eq!(text.matches("one;").count(), 5, "{text}");
    assert_eq!(text.matches("two;").count(), 5, "{text}");
    assert_eq!(text.len(), 6 + 10 * 4);
}

#[test]
fn a_size_above_the_largest_file_size_is_refused() {
    let bed = Bed::new(13, 1);
    let client = bed.client(0);
    bed.run(async move {
        client.create(b"file", b"12345").await.expect("write");
        let inode = client.open(b"file", true).await.expect("open").inode;
        let now = tameike_core::Timestamp::default();
        for request in [
            CacheRequest::Reserve { inode, length: u64::MAX, now },
            CacheRequest::Reserve { inode, length: i64::MAX as u64, now },
            CacheRequest::Commit { inode, end: u64::MAX, sparse: false, now },
        ] {
            let refused = client.request(inode, request).await.err().map(|fault| fault.errno);
            assert_eq!(refused, Some(Errno::EFBIG));
        }
        assert_eq!(client.size(b"file").await, Ok(5));
    });
    bed.drain_completely(true);
}

#[test]
fn writers_wait_for_the_flush_when_the_cache_is_full() {
    let bed = Bed::with_capacity(13, 2, 6 << 20);
    for count in 0..20 {
        bed.create(&format!("f{count}"), &bytes(count, UNIT));
    }
    assert_eq!(bed.drain_completely(true).files.len(), 20);
    for count in 0..20 {
        assert_eq!(bed.shared_content(&format!("f{count}")), bytes(count, UNIT));
    }
}

/// Regression: a write waited at its home for the flush, and held a frame of the home. When such writes held all frames, the messages of
/// the flush waited behind further writes on the connection, and the job hung.
#[test]
fn a_write_without_space_fails_with_enospc_and_holds_no_frame() {
    let bed = Bed::with_capacity(15, 1, 4 << 20);
    let client = bed.client(0);
    bed.run(async move {
        client.create(b"file", b"").await.expect("create");
        let file = client.open(b"file", true).await.expect("open");
        let mut end = 0;
        let refused = loop {
            match client.send_write(file, end, &bytes(end, UNIT)).await {
                Ok(()) => end += UNIT as u64,
                Err(fault) => break fault,
            }
            assert!(end < 20 * UNIT as u64, "the home accepted more than its capacity");
        };
        assert_eq!(refused.errno, Errno::ENOSPC, "{refused}");
        client.close(file, end).await.expect("close");
        let unit = UnitId { inode: file.inode, index: end / UNIT as u64 };
        client.wait_for_space(unit, 0).await.expect("the flush frees space");
        client.send_write(file, end, &bytes(end, UNIT)).await.expect("space is available");
        client.close(file, end + UNIT as u64).await.expect("close");
    });
    bed.drain_completely(true);
}

#[test]
fn a_full_cache_with_a_full_shared_file_system_returns_enospc() {
    let bed = Bed::with_capacity(14, 1, 4 << 20);
    bed.control.set(super::faulty::Plan::From(0, Errno::ENOSPC));
    let client = bed.client(0);
    let create = async |count| client.create(format!("f{count}").as_bytes(), &bytes(count, UNIT)).await;
    let refused = (0..20).find_map(|count| Some((count, bed.run(create(count)).err()?)));
    let (written, fault) = refused.expect("the home accepted more than its capacity");
    assert_eq!(fault.errno, Errno::ENOSPC, "{fault}");
    bed.control.set(super::faulty::Plan::Good);
    bed.drain_completely(true);
    for count in 0..written {
        assert_eq!(bed.shared_content(&format!("f{count}")), bytes(count, UNIT));
    }
}

#[test]
fn an_mtime_set_by_a_program_is_kept() {
    let bed = Bed::new(15, 2);
    let client = bed.client(0);
    let mtime = tameike_core::Timestamp { seconds: 1_000_000_000, nanoseconds: 5 };
    bed.run(async move {
        client.create(b"file", b"content").await.expect("write");
        let (inode, _) = client.identity(b"file");
        let to = tameike_core::attr::SetTime::To(mtime);
        let change = tameike_core::attr::AttrChange { mtime: Some(to), ..Default::default() };
        client.shared.change(b"file", &change).expect("utimens");
        client.request(inode, CacheRequest::SetMtime { inode, mtime }).await.expect("request");
    });
    let receipt = bed.drain(true);
    assert_eq!(bed.shared.stat(b"file").expect("stat").mtime, mtime);
    assert_eq!(receipt.files[0].note, "", "the job's own utimens is not a change by another program");
}

#[test]
fn the_receipt_reports_a_failed_node_and_a_file_changed_by_another_program() {
    let bed = Bed::new(16, 3);
    bed.create("file", &bytes(1, 3 * UNIT));
    bed.create("other", b"12345");
    bed.run(bed.client(0).write_back(b"other")).expect("flush");
    let (inode, _) = bed.client(0).identity(b"file");
    bed.write_shared("other", b"67890");
    let home = bed.cluster.primary(bed.cluster.inode_home(inode));
    let victim = bed.cluster.device_nodes().iter().copied().find(|&node| node != home).expect("another");
    bed.stop(victim);
    let receipt = bed.drain(true);
    assert!(!receipt.is_complete());
    let file = receipt.files.iter().find(|file| file.path == "file").expect("the coordinator runs");
    assert!(matches!(&file.outcome, FileOutcome::Missing(why) if why.contains("down")), "{file:?}");
    assert!(!receipt.faults.is_empty());
    bed.start(victim);
    let receipt = bed.drain(true);
    let file = receipt.files.iter().find(|file| file.path == "file").expect("the coordinator runs");
    assert_eq!(file.checksum, checksum(&bytes(1, 3 * UNIT)));
    assert_eq!(bed.shared_content("file"), bytes(1, 3 * UNIT));
    let other = receipt.files.iter().find(|file| file.path == "other").expect("the receipt lists it");
    assert!(
        matches!(&other.outcome, FileOutcome::Missing(why) if why.contains("another program")),
        "{other:?}"
    );
}
