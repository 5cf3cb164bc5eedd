//! Calls of POSIX and Linux beyond read and write, by small programs on two nodes of a job, in all views.

use crate::support::{Site, helper, is_root, succeed, utf8};
use std::fs;
use std::process::Command;

/// Runs a script for each view of two nodes: `$dir` is a new directory in it, `on N FUNCTION ...` runs a function of
/// `support/posix.py` on a node, `$far` is the other node if the view has one.
fn in_views(views: &str, body: &str) {
    run_in_views(views, body, &["--device", "ram"], &Site::new());
}

/// The same in the node-local view on a disk, which the agent serves.
fn in_local(body: &str) {
    let site = Site::new();
    run_in_views("local", body, &["--device", utf8(site.disk())], &site);
}

fn run_in_views(views: &str, body: &str, options: &[&str], site: &Site) {
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
        programs = helper("posix.py"),
    );
    succeed(&mut site.job(2, options, &script));
}

/// S28a, S28b.
#[test]
fn renameat2_exchanges_and_does_not_replace() {
    let body = "on 0 renames $dir; on $far renamed $dir";
    in_views("shared cache local", body);
    in_local(body);
}

/// S9a.
///
/// The kernel opens a file by the node id of an earlier lookup. A regression: the view used another open file that had got the
/// inode number of the replaced one on the underlying file system, and read it up to the size of the replaced one.
#[test]
fn a_replaced_file_is_not_confused_with_the_one_that_got_its_inode_number() {
    let body = "on 0 reused_number $dir";
    in_views("shared cache local", body);
    in_local(body);
}

/// S22a.
///
/// The write-back of a dirty mapped page carries a direct handle of the file. A regression: the agent treated it as a direct
/// write, and replied only after the kernel had dropped the file's pages, which waits for the write-back: msync never returned.
#[test]
fn msync_returns_if_some_handles_are_direct() {
    let body = "on 0 store_and_sync $dir";
    in_views("shared cache local", body);
    in_local(body);
}

/// S22b.
#[test]
fn with_coherent_mmap_stores_beside_writes_lose_nothing() {
    let body = "on 0 store_beside_writes $dir";
    run_in_views("shared cache local", body, &["--coherent-mmap"], &Site::new());
    let site = Site::new();
    let options = ["--coherent-mmap", "--device", utf8(site.disk())];
    run_in_views("local", body, &options, &site);
}

/// S24a. S27a, S27b.
#[test]
fn holes_are_holes_on_all_nodes() {
    let body = "on 0 make_holes $dir; on $far see_holes $dir; on 0 punch_far $dir; on $far see_punched $dir";
    in_views("shared cache", body);
    in_local(body);
}

/// S27a.
///
/// Like lseek11 of the Linux Test Project, two of whose cases fail: it assumes that the finest hole is the block size.
#[test]
fn seek_hole_and_seek_data_are_never_wrong() {
    in_views("shared", "on 0 seek_everywhere $dir 1");
    in_views("cache local", "on 0 seek_everywhere $dir");
    in_local("on 0 seek_everywhere $dir");
}

/// S24b.
#[test]
fn fallocate_reserves_space() {
    let site = Site::new();
    let script = format!("python3 {} space_is_kept $TAMEIKE_SHARED", helper("posix.py"));
    let options = ["--capacity", "shared=16M,node-local=16M,cache=64M"];
    succeed(&mut site.job(2, &options, &script));
}

/// S24c.
#[test]
fn holes_of_the_cache_view_are_on_the_shared_file_system_after_the_job() {
    let site = Site::new();
    let programs = helper("posix.py");
    site.run(2, &format!("mkdir $TAMEIKE_CACHE/d; python3 {programs} make_holes $TAMEIKE_CACHE/d"));
    succeed(Command::new("python3").args([&programs, "see_holes"]).arg(site.shared().join("d")));
}

/// S24d. S29b, S29c, S29d.
#[test]
fn unsupported_calls_are_refused() {
    in_views("shared", "on 0 refusals $dir acl");
    in_views(
        "cache",
        if rustix::process::geteuid().is_root() { "on 0 refusals $dir" } else { "on 0 refusals $dir acl" },
    );
    in_views("local", "on 0 refusals $dir");
}

/// S29a.
#[test]
fn supplementary_groups_give_access() {
    if is_root() {
        in_views("shared cache local", "on $far groups $dir");
    }
}

/// S30a, S30b.
#[test]
fn names_sizes_times_and_kinds() {
    in_views("shared cache local", "on 0 odds $dir; on $far odds_seen $dir");
}

/// S27a, also beyond 8 TiB.
#[test]
fn files_of_more_than_8_tebibytes() {
    in_views("shared cache", "on 0 large $dir; on $far large_seen $dir");
}

/// Write-only descriptors bypass the page cache; then the file system must clear the set-user-ID and set-group-ID bits. A
/// regression: they stayed, and content of another user ran with them.
#[test]
fn a_write_clears_set_user_id_bits_and_capabilities() {
    let body = "on 0 rights $dir";
    in_views("shared cache local", body);
    in_local(body);
}

/// S23a, S23b, S23c, S23d, S23e.
#[test]
fn reads_update_access_times_like_relatime() {
    in_views(
        "shared",
        "on 0 reads_count $dir & one=$!; on 1 reads_seen $dir; wait $one
         on 0 read_and_hold $dir & one=$!; on 1 set_back $dir; wait $one",
    );
}

/// S23f.
#[test]
fn access_times_of_pass_through_reads_are_those_of_the_underlying_file_system() {
    let site = Site::new();
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
        programs = helper("posix.py"),
        plain = site.plain().display(),
    );
    site.run(1, &script);
}
