//! Changes of names by one node, seen by processes of another node that use them; and numbers of files.

use crate::support::{Site, succeed, utf8};

/// Runs a command on another node, in the view.
const ON: &str = r#"on() { (cd "$view"; tameike exec --node 1 -- sh -euc "$*"); }
"#;

/// S26a.
#[test]
fn a_working_directory_stays_valid_when_another_node_renames_it() {
    let site = Site::new();
    let script = format!(
        r#"{ON}
        for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE"; do
            export view; cd "$view"; mkdir -p a/b; echo right > a/b/file; cd a/b
            on 'mv a c; mkdir -p a/b; echo wrong > a/b/file'
            test "$(cat file)" = right; echo more >> file; mkdir sub; cd -P sub
            test "$(cat ../file | tr '\n' ' ')" = "right more "
            # (Without -P, cd uses the path that it remembers.) To where this node has never been, and on from there.
            on 'mkdir -p far/away; mv c far/away/d; test "$(cat far/away/d/b/file | wc -l)" = 2'
            echo here > new; mv new newer; ls | grep -qx newer; test "$(cat ../file | wc -l)" = 2
            exec 7< ..
            on 'mv far near; mv near/away/d/b near/last'
            test "$(cat newer)" = here; rm newer; cd -P ..; rmdir sub; echo end >> file
            python3 -c 'import os; assert os.listdir(7) == ["file"], os.listdir(7)'
            exec 7<&-
            on 'test "$(wc -l < near/last/file)" = 3; test "$(cat a/b/file)" = wrong; rm -r a near'
        done"#
    );
    succeed(&mut site.job(2, &[], &script));
}

/// statvfs of the views reported no used inodes, and in the cache view an inode for each free block.
#[test]
fn statvfs_counts_files() {
    let site = Site::new();
    // In memory the kernel counts, and counts a hard link as a file.
    let device = ["--device", utf8(site.disk())];
    succeed(&mut site.job(2, &device, &format!("{} {}", site.python(COUNT), site.shared().display())));
}

const COUNT: &str = r#"
import os, sys
def used(view):
    space = os.statvfs(view)
    return space.f_files - space.f_ffree
for name in ("TAMEIKE_SHARED", "TAMEIKE_NODE_LOCAL"):
    view = os.environ[name]
    before = used(view)
    assert 1 <= before <= 2, before
    os.mkdir(view + "/dir")
    for number in range(30):
        open(f"{view}/dir/{number}", "w").close()
    os.symlink("x", view + "/link")
    os.link(view + "/dir/3", view + "/again")
    assert used(view) == before + 32, used(view)
    held = open(view + "/dir/4")
    for number in range(30):
        os.unlink(f"{view}/dir/{number}")
    held.close()
    os.unlink(view + "/again"); os.unlink(view + "/link"); os.rmdir(view + "/dir")
    for _ in range(200):
        if used(view) == before: break
        import time; time.sleep(0.05)
    assert used(view) == before, used(view)
    assert os.statvfs(view).f_ffree > 0
cache, below = os.statvfs(os.environ["TAMEIKE_CACHE"]), os.statvfs(sys.argv[1])
assert cache.f_files == below.f_files, (cache, below)
assert abs(cache.f_ffree - below.f_ffree) < 1000, (cache, below)
"#;

/// A program descends into directories, and uses short relative paths: depth must not matter. The views over a tree returned
/// `ENAMETOOLONG`, for example for sockets.
#[test]
fn deep_directories_work() {
    let site = Site::new();
    site.run(2, &site.python(DEEP));
}

const DEEP: &str = r#"
import os, stat
for name in ("TAMEIKE_SHARED", "TAMEIKE_NODE_LOCAL", "TAMEIKE_CACHE"):
    os.chdir(os.environ[name])
    for _ in range(40):
        os.mkdir("d" * 250); os.chdir("d" * 250)
    os.mknod("s" * 255, stat.S_IFSOCK | 0o640)
    assert stat.S_ISSOCK(os.stat("s" * 255).st_mode)
    with open("file", "w") as file: file.write("deep")
    os.rename("file", "moved")
    assert open("moved").read() == "deep" and sorted(os.listdir(".")) == ["moved", "s" * 255]
    os.unlink("s" * 255); os.unlink("moved")
    for _ in range(40):
        os.chdir(".."); os.rmdir("d" * 250)
"#;
