//! What POSIX and Linux offer beyond reading and writing, by small programs on two nodes of a job, in all views.

use crate::support::Site;
use std::fs;
use std::path::Path;

/// Runs a script for each of the views of two nodes: `$dir` is a new directory in it, `on N FUNCTION ...` runs a
/// function of `support/posix.py` on a node, `$far` is the other node, where the view has one.
fn in_views(views: &str, body: &str) {
    run_in_views(views, body, &["--device", "ram"], &Site::new());
}

/// The same in the node-local view on a disk: in memory the kernel serves it.
fn in_local(body: &str) {
    let site = Site::new();
    run_in_views("local", body, &["--device", site.disk().to_str().expect("plain path")], &site);
}

fn run_in_views(views: &str, body: &str, options: &[&str], site: &Site) {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/support/posix.py");
    let script = format!(
        r#"on() {{ node=$1; shift; timeout 200 tameike exec --node $node -- python3 {programs} "$@"; }}
           for view in {views}; do
               far=1; root=
               case $view in
                   shared) root=$TAMEIKE_SHARED;; cache) root=$TAMEIKE_CACHE;; local) root=$TAMEIKE_NODE_LOCAL; far=0;;
               esac
               dir=$root/$view; mkdir $dir
               {body}
           done"#,
        programs = programs.display(),
    );
    crate::support::succeed(&mut site.job(2, options, &script));
    site.assert_clean();
}

/// S28: "renameat2 takes RENAME_NOREPLACE and RENAME_EXCHANGE, across directories and nodes. A rename changes the time of
/// last change of what it renames."
#[test]
fn names_are_swapped_and_kept_from_being_replaced() {
    let body = "on 0 renames $dir; on $far renamed $dir";
    in_views("shared cache local", body);
    in_local(body);
}

/// S9: "every node finds the old file or the new one under the name, never none, and opens it whole"
///
/// The kernel opens a file by the number of an earlier look-up. The view once took an open file for it that had got the
/// inode number of the replaced one on the file system below: its content was read up to the size of the replaced one.
#[test]
fn a_replaced_file_is_not_taken_for_the_one_that_got_its_inode_number() {
    let body = "on 0 reused_number $dir";
    in_views("shared cache local", body);
    in_local(body);
}

/// S22: "mmap, private and shared, works on all views and is coherent with read and write on the same node, but for a page
/// to which a mapping and calls write at the same time."
///
/// The write-back of a dirty mapped page carries a direct handle of the file. The agent once took it for a direct write, and
/// answered only after the kernel had dropped the file's pages, which waits for their write-back: msync never returned.
#[test]
fn msync_returns_where_some_handles_are_direct() {
    let body = "on 0 store_and_sync $dir";
    in_views("shared cache local", body);
    in_local(body);
}

/// S22: "With `--coherent-mmap` it is coherent for such a page, too, but for calls through O_APPEND."
#[test]
fn with_coherent_mmap_stores_beside_writes_lose_nothing() {
    let body = "on 0 store_beside_writes $dir";
    run_in_views("shared cache local", body, &["--coherent-mmap"], &Site::new());
    let site = Site::new();
    let disk = site.disk();
    let options = ["--coherent-mmap", "--device", disk.to_str().expect("plain path")];
    run_in_views("local", body, &options, &site);
}

/// S24: "fallocate sets space aside, punches holes and (but in a node-local view in memory) zeroes ranges, with and without
/// FALLOC_FL_KEEP_SIZE; its other modes are refused with EOPNOTSUPP."
/// S27: "SEEK_DATA and SEEK_HOLE tell what was written and not punched since, to the byte in the job-shared view, and in the cache
/// view until it is flushed; else as finely as the file system below. st_blocks is the space that a file takes: holes take none, what is set
/// aside counts."
#[test]
fn holes_are_holes_on_all_nodes() {
    let body = "on 0 make_holes $dir; on $far see_holes $dir; on 0 punch_far $dir; on $far see_punched $dir";
    in_views("shared cache", body);
    in_local(body);
}

/// S27: "SEEK_DATA and SEEK_HOLE tell what was written and not punched since, to the byte in the job-shared view, and in the cache
/// view until it is flushed; else as finely as the file system below."
///
/// As lseek11 of the Linux Test Project, which two of its cases fail in: it takes the finest hole that it finds for the size of a block.
#[test]
fn no_answer_to_a_search_for_holes_is_wrong() {
    in_views("shared", "on 0 seek_everywhere $dir 1");
    in_views("cache local", "on 0 seek_everywhere $dir");
    in_local("on 0 seek_everywhere $dir");
}

/// S24: "What is set aside is there for later writes, and not for others; where that much is not left, the call fails with
/// ENOSPC."
#[test]
fn space_that_is_set_aside_is_kept() {
    let site = Site::new();
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/support/posix.py");
    let script = format!("python3 {} space_is_kept $TAMEIKE_SHARED", programs.display());
    let options = ["--capacity", "shared=16M,node-local=16M,cache=64M"];
    crate::support::succeed(&mut site.job(2, &options, &script));
    site.assert_clean();
}

/// S24: "In the cache view holes and space are made on the shared file system at once, which may refuse them."
#[test]
fn holes_of_the_cache_view_are_on_the_shared_file_system_after_the_job() {
    let site = Site::new();
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/support/posix.py");
    let script =
        format!("mkdir $TAMEIKE_CACHE/d; python3 {} make_holes $TAMEIKE_CACHE/d", programs.display());
    site.run(2, &script);
    let look = [programs.as_os_str(), "see_holes".as_ref(), site.shared().join("d").as_os_str()]
        .map(|part| part.to_owned());
    crate::support::succeed(std::process::Command::new("python3").args(look));
    site.assert_clean();
}

/// S24: "O_TMPFILE is refused with EOPNOTSUPP; programs fall back."
/// S29: "Access lists are refused with EOPNOTSUPP in the job-shared view; in the others they are those of the file system below,
/// and the kernel goes by the mode bits. In the namespace of a plain user's job the kernel refuses them wherever an agent serves."
#[test]
fn what_is_not_supported_is_refused_cleanly() {
    in_views("shared", "on 0 refusals $dir acl");
    in_views(
        "cache",
        if rustix::process::geteuid().is_root() { "on 0 refusals $dir" } else { "on 0 refusals $dir acl" },
    );
    in_views("local", "on 0 refusals $dir");
}

/// S29: "Supplementary groups count, as on local file systems."
#[test]
fn supplementary_groups_count() {
    if rustix::process::geteuid().is_root() {
        in_views("shared cache local", "on $far groups $dir");
    } else {
        println!("not tested: being another user takes root");
    }
}

/// S30: "Names are any 255 bytes but / and NUL, times are to the nanosecond, and files have up to 8 EiB in the job-shared view.
/// FIFOs, sockets and device nodes work, each on its node; copy_file_range copies."
#[test]
fn names_sizes_times_and_kinds() {
    in_views("shared cache local", "on 0 odds $dir; on $far odds_seen $dir");
}

/// S27: "SEEK_DATA and SEEK_HOLE tell what was written and not punched since", also beyond 8 TiB.
#[test]
fn files_of_more_than_8_tebibytes() {
    in_views("shared cache", "on 0 large $dir; on $far large_seen $dir");
}

/// Descriptors that only write go past the kernel's pages since there are any; the kernel then leaves it to the file system to
/// take the bits away by which a file runs as its owner. They stayed, and what another user had written ran with them.
#[test]
fn a_write_takes_away_what_a_file_gives_to_who_runs_it() {
    let body = "on 0 rights $dir";
    in_views("shared cache local", body);
    in_local(body);
}

/// S23: "Access times are as with relatime: a read of a file counts when the last access is not later than the last change, or a
/// day old. In the job-shared view such a read is seen on its node at once, on other nodes soon after the next close of the
/// file there; a time that a program sets after the read stands; reads through O_NOATIME do not count. Reads that a kernel
/// serves from its own pages are not seen: opening a file for reading counts instead where the kernel keeps pages of it.
/// Directories and symbolic links keep the access time of their birth, or the one that was set."
#[test]
fn reads_count_as_with_relatime() {
    in_views(
        "shared",
        "on 0 reads_count $dir & one=$!; on 1 reads_seen $dir; wait $one
         on 0 read_and_hold $dir & one=$!; on 1 set_back $dir; wait $one",
    );
}

/// S23: "In the other views the file system below keeps the access times: those reads count that reach it, also through
/// O_NOATIME."
#[test]
fn reads_that_reach_the_file_system_below_are_its_to_count() {
    let site = Site::new();
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/support/posix.py");
    for dir in [site.shared(), site.plain()] {
        fs::write(dir.join("found"), "text").expect("a file");
    }
    // Both directories are on one file system, which may be mounted with noatime.
    let script = format!(
        r#"counted() {{ touch -a -d 2001-02-03 $1; python3 {programs} read_there $1; }}
           cache=$(counted $TAMEIKE_CACHE/found); below=$(counted {plain}/found)
           test $cache = $below
           echo text > $TAMEIKE_NODE_LOCAL/made; echo text > /dev/shm/$TAMEIKE_JOB
           local=$(counted $TAMEIKE_NODE_LOCAL/made); below=$(counted /dev/shm/$TAMEIKE_JOB)
           rm /dev/shm/$TAMEIKE_JOB
           test $local = $below"#,
        programs = programs.display(),
        plain = site.plain().display(),
    );
    site.run(1, &script);
    site.assert_clean();
}
