//! Unchanged programs on the job-shared and the cache view, distributed over two nodes.
//!
//! Each script runs in an empty directory of each view, and in a plain directory without Tameike. The shared directory must
//! equal the plain one after the job.

use crate::support::{Site, files_below, is_soak, shown, succeed};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Runs a command on a node of the job, in the same directory.
const ON_NODES: &str = r#"on() { node=$1; shift; tameike exec --node "$node" -- sh -euc "$*"; }
"#;
/// The same without a job.
const ON_NO_NODES: &str = r#"on() { shift; sh -euc "$*"; }
"#;

/// Runs the script in `work` of each of these views, in a job of two nodes.
fn run_in_views(views: &[&str], script: &str) -> Site {
    let site = Site::new();
    for view in views {
        site.run(2, &format!(r#"{ON_NODES} cd "$TAMEIKE_{view}"; mkdir work; cd work; {script}"#));
    }
    site
}

/// Runs the script in `work` of each view and of a plain directory.
fn run_everywhere(script: &str) -> Site {
    let site = run_in_views(&["SHARED", "CACHE"], script);
    let work = site.plain().join("work");
    fs::create_dir(&work).expect("a directory");
    succeed(Command::new("sh").args(["-euc", &format!("{ON_NO_NODES}{script}")]).current_dir(work));
    site
}

/// Type, mode, links, size and content of everything below a directory, one line each.
fn listing(dir: &Path) -> String {
    let mut lines: Vec<_> = files_below(dir).iter().map(|path| described(dir, path)).collect();
    lines.sort();
    lines.join("\n")
}

fn described(dir: &Path, path: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let name = path.strip_prefix(dir).expect("below the directory");
    let stat = fs::symlink_metadata(path).expect("an entry that stays");
    let content = if stat.is_file() {
        blake3_of(path)
    } else if stat.is_symlink() {
        format!("-> {}", fs::read_link(path).expect("a link").display())
    } else {
        String::new()
    };
    let size = if stat.is_dir() { 0 } else { stat.size() };
    let links = if stat.is_dir() { 0 } else { stat.nlink() };
    format!("{name:?} {:o} links {links} size {size} {content}", stat.mode())
}

fn blake3_of(path: &Path) -> String {
    blake3::hash(&fs::read(path).expect("a readable file")).to_string()
}

fn assert_as_plain(site: &Site) {
    let (drained, plain) = (listing(&site.shared().join("work")), listing(&site.plain().join("work")));
    for (ours, theirs) in drained.lines().zip(plain.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(drained.lines().count(), plain.lines().count());
    assert!(!plain.is_empty(), "the script left nothing to compare");
}

#[test]
fn a_git_repository_stays_intact() {
    let script = r#"
        export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        export GIT_AUTHOR_DATE=2001-02-03T04:05:06Z GIT_COMMITTER_DATE=2001-02-03T04:05:06Z
        export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
        # A flush changes the ctime (S14c).
        export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=core.trustctime GIT_CONFIG_VALUE_0=false
        git init --quiet --initial-branch=main repo
        for i in $(seq 60); do mkdir -p repo/d$((i % 7)); seq $((i * 100)) > repo/d$((i % 7))/f$i; done
        (cd repo; git add .; git commit --quiet --message=first)
        on 1 'git clone --quiet repo clone; cd clone; for i in 1 2 3; do seq $i 5000 > new$i; git add new$i; git commit --quiet --message="commit $i"; done'
        on 0 'cd clone; git mv d1 moved; git rm --quiet -r d2; git commit --quiet --all --message=moved; git push --quiet origin HEAD:side'
        on 1 'cd repo; git merge --quiet side; git gc --quiet; git fsck --full --strict; git diff --exit-code HEAD; test -z "$(git status --porcelain)"'
        (cd repo; git fsck --full; test -z "$(git status --porcelain)"; git rev-parse HEAD HEAD^{tree} > ../head)
        on 1 'cd clone; git fsck --full; test "$(git rev-parse HEAD)" = "$(head -n 1 ../head)"'
    "#;
    let site = run_everywhere(script);
    let drained = site.shared().join("work");
    for repository in ["repo", "clone"] {
        let words =
            succeed(Command::new("git").args(["fsck", "--full"]).current_dir(drained.join(repository)));
        assert!(!words.contains("error"), "{words}");
    }
    let head = |dir: &Path| fs::read_to_string(dir.join("work/head")).expect("the head");
    assert_eq!(head(site.shared()), head(site.plain()));
}

/// Ten thousand in the long tests.
#[test]
fn tar_extracts_many_small_files() {
    let outside = TempDir::with_prefix("tk").expect("a temporary directory");
    let make = format!(
        "files={}\n{}",
        if is_soak() { 10_000 } else { 2_000 },
        r#"
        python3 - $files <<'END'
import os, sys
files = int(sys.argv[1])
for i in range(files):
    place = f"in/{i * 10 // files}/{i // 100}"
    os.makedirs(place, exist_ok=True)
    with open(f"{place}/{i}", "wb") as file:
        file.write(bytes((i * 7 + j) % 251 for j in range(i % 97 * 11)))
END
        find in -type f -print0 | sort -z | xargs -0 sha256sum > sums; test $(wc -l < sums) = $files
        tar --sort=name --format=gnu -cf all.tar in"#
    );
    succeed(Command::new("sh").args(["-euc", &make]).current_dir(outside.path()));
    let site = run_everywhere(&format!(
        "outside={}\nexport outside\n{}",
        outside.path().display(),
        r#"
        on 0 'tar -xf $outside/all.tar'
        on 1 'sha256sum --quiet -c $outside/sums; tar --sort=name --format=gnu -cf all.tar in; cmp all.tar $outside/all.tar'
        on 0 'cmp all.tar $outside/all.tar; rm -r in/1 in/2; tar --compare -f all.tar in/3 in/9'"#
    ));
    assert_as_plain(&site);
}

/// A tree with all metadata that a copy can lose.
const TREE: &str = r#"
    mkdir -p tree/a/b tree/empty; seq 1000 > tree/a/one; ln tree/a/one tree/a/b/hard
    head -c 3000000 /dev/zero | tr '\0' x > tree/a/large; : > tree/none
    ln -s ../a/one tree/a/soft; ln -s /nowhere/at/all tree/dangling; mkfifo tree/pipe
    chmod 4755 tree/a/one; chmod 600 tree/a/large; chmod 1777 tree/empty; chmod 2750 tree/a/b
    touch -d '2001-02-03 04:05:06.123456789' tree/a/large; touch -d '1969-12-31 23:00:00.5 UTC' tree/none
    touch -h -d '2002-03-04 05:06:07' tree/a/soft tree/dangling; touch -d '2003-04-05 06:07:08' tree/pipe tree/a/one
    chown 12:34 tree/a/large 2>/dev/null || true
    touch -d '2010-01-01' tree/a/b tree/a tree/empty tree
    show() { (cd "$1"; find . -printf '%P %y %m %n %U:%G %T@ %l ' \( ! -type f -o -printf '%s' \) -printf '\n' | sed -E 's/^([^ ]* d [0-9]+) [0-9]+/\1/' | sort); }
"#;

#[test]
fn cp_and_rsync_preserve_metadata() {
    let site = run_everywhere(&format!(
        r#"{TREE}
        show tree > before
        on 0 'cp -a tree copy'
        on 1 'rsync -aH --numeric-ids tree/ synced/'
        on 1 'rsync -aH --numeric-ids --checksum --itemize-changes tree/ copy/ > changed; test ! -s changed || {{ cat changed; exit 1; }}'
        for made in tree copy synced; do show $made > after; cmp before after || {{ diff before after; exit 1; }}; done
        on 1 'cmp tree/a/one copy/a/b/hard; diff -r --no-dereference tree/a synced/a'
        rm changed"#
    ));
    assert_as_plain(&site);
}

/// In both views in the long tests.
#[test]
fn a_c_project_builds() {
    let views: &[&str] = if is_soak() { &["SHARED", "CACHE"] } else { &["CACHE"] };
    run_in_views(
        views,
        r#"
        on 0 'tar -xf /usr/src/binutils/binutils-*.tar.xz --wildcards "binutils-*/libiberty" "binutils-*/include" "binutils-*/config*" "binutils-*/install-sh" "binutils-*/ltmain.sh" "binutils-*/move-if-change"'
        on 1 'mkdir build; cd build; ../binutils-*/libiberty/configure --quiet >words 2>&1 || { tail words; exit 1; }'
        on 0 'cd build; make -s -j2 >words 2>&1 || { tail words; exit 1; }'
        on 1 'cd build; make -s check >words 2>&1 || { tail words; exit 1; }; ! grep FAIL words; grep -q PASS words; stat -c %y libiberty.a > built; make -s >words 2>&1; stat -c %y libiberty.a | cmp - built'
        on 0 'cd build; make -s clean; test ! -e libiberty.a; cd ..; rm -r build binutils-*; test -z "$(ls -A)"'"#,
    );
}

#[test]
fn an_sqlite_database_stays_intact() {
    let site = run_everywhere(
        r#"
        for mode in delete wal; do
            on 0 "sqlite3 $mode.db 'pragma journal_mode=$mode; create table t(a integer primary key, b text); begin; with recursive c(x) as (select 1 union all select x+1 from c where x<20000) insert into t select x, hex(zeroblob(x%50)) from c; commit; create index i on t(b); delete from t where a%3=0; vacuum; pragma integrity_check;' > $mode.words"
            on 1 "sqlite3 $mode.db 'select count(*), sum(length(b)) from t; pragma integrity_check;' > $mode.words"
            on 1 "sqlite3 $mode.db 'update t set b=b||a where a%5=0;'"
            on 0 "sqlite3 $mode.db 'select count(*), sum(length(b)) from t; pragma integrity_check;' >> $mode.words; grep -q ok $mode.words"
        done
        sqlite3 wal.db 'pragma journal_mode=delete;' > /dev/null"#,
    );
    assert_as_plain(&site);
}

/// S22a.
#[test]
fn mappings_are_coherent_with_the_file() {
    let site = run_everywhere(
        r#"
        cat > map.py <<'END'
import ctypes, mmap, os
size = 3 * 1024 * 1024 + 123
with open("mapped", "wb") as file:
    file.truncate(size)
file = os.open("mapped", os.O_RDWR)
shared = mmap.mmap(file, size)
shared[1000:1010] = b"0123456789"
shared[size - 5:] = b"tail!"
shared.flush()
assert os.pread(file, 10, 1000) == b"0123456789"
assert os.pwrite(file, b"written", 2 * 1024 * 1024 - 3) == 7
assert shared[2 * 1024 * 1024 - 3:2 * 1024 * 1024 + 4] == b"written"
private = mmap.mmap(file, size, access=mmap.ACCESS_COPY)
assert private[1000:1010] == b"0123456789"
private[1000:1010] = b"xxxxxxxxxx"
assert os.pread(file, 10, 1000) == b"0123456789"
os.close(file)
shared[5000:5004] = b"late"
shared.close()
# A mapping that outlives all descriptors, as they come without Python's own copy of one.
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
file = os.open("mapped", os.O_RDWR)
place = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
os.close(file)
ctypes.memmove(place + 6000, b"later", 5)
assert libc.munmap(place, size) == 0
END
        on 0 'python3 map.py'
        # No call waits for what a mapping writes after the last close; it is written all the same.
        cat > check.py <<'END'
import time
for _ in range(200):
    with open("mapped", "rb") as file: data = file.read()
    if data[6000:6005] == b"later": break
    time.sleep(0.05)
pieces = {1000: b"0123456789", 5000: b"late", 6000: b"later", 2 * 1024 * 1024 - 3: b"written", len(data) - 5: b"tail!"}
expected = bytearray(3 * 1024 * 1024 + 123)
for place, piece in pieces.items(): expected[place:place + len(piece)] = piece
assert data == expected, {place: data[place:place + len(piece)] for place, piece in pieces.items()}
END
        on 1 'python3 check.py'"#,
    );
    assert_as_plain(&site);
}

/// S5a.
#[test]
fn odd_sizes_holes_and_truncations_are_correct() {
    let site = run_everywhere(
        r#"
        for size in 1 511 4095 4096 4097 65537 1048575 1048576 1048577 3333333; do
            head -c $size /dev/zero | tr '\0' "$(printf '\\%o' $((size % 90 + 33)))" > source
            on 0 "dd if=source of=odd-$size bs=7919 status=none"
            on 1 "cmp source odd-$size; dd if=source of=odd-$size bs=1013 seek=3 conv=notrunc status=none"
            on 0 "test \$(stat -c %s odd-$size) = $((size + 3039))"
        done
        on 0 'dd if=/dev/urandom of=random bs=1M count=5 iflag=fullblock status=none; truncate -s 12345678 holes; dd if=random of=holes bs=1000 count=1 seek=5000 conv=notrunc status=none; dd if=random of=holes bs=1000 count=1 seek=1048 conv=notrunc status=none'
        on 1 'test $(stat -c %s holes) = 12345678; tr -d "\0" < holes | wc -c > kept; dd if=holes bs=1000 skip=5000 count=1 status=none > piece; dd if=random bs=1000 count=1 status=none | cmp - piece'
        on 1 'truncate -s 5000500 holes; truncate -s 9000000 holes'
        on 0 'dd if=holes bs=500 skip=10000 count=2 status=none > piece; head -c 500 random > wanted; head -c 500 /dev/zero >> wanted; cmp piece wanted'
        on 0 'dd if=holes of=sparse bs=64K conv=sparse status=none; cmp holes sparse; cp --sparse=always holes again; cmp holes again'
        on 1 'truncate -s 0 holes; truncate -s 3000000 holes; test "$(tr -d "\0" < holes | wc -c)" = 0'
        rm random source kept piece wanted sparse again"#,
    );
    assert_as_plain(&site);
}

/// A regression: truncated bytes reappeared when the file grew again, if they had been written since the last close.
#[test]
fn alternating_random_operations_of_two_nodes_match_a_model() {
    let program = TempDir::with_prefix("tk").expect("a temporary directory");
    fs::write(program.path().join("model.py"), include_str!("support/model.py")).expect("the program");
    let seeds = if is_soak() { 40 } else { 1 };
    let site = run_in_views(
        &["SHARED", "CACHE"],
        &format!(
            r#"for seed in $(seq {seeds}); do for turn in 0 1 2 3 4 5; do
            on $((turn % 2)) "python3 {}/model.py file-$seed $seed $turn"
        done; done"#,
            program.path().display()
        ),
    );
    for seed in 1..=seeds {
        let drained = |name: String| fs::read(site.shared().join("work").join(name)).expect("a drained file");
        assert!(
            drained(format!("file-{seed}")) == drained(format!("file-{seed}.model")),
            "file-{seed} differs"
        );
    }
}

#[test]
fn long_and_odd_names_and_deep_directories_work() {
    let site = run_everywhere(
        r#"
        cat > names.py <<'END'
import os, sys
names = [bytes([i]) * 255 for i in (1, 10, 32, 92, 127, 128, 255)]
names += [b"new\nline", b" ", b"-rf", b"\xff\xfe\xfd", "\u6e9c\u3081\u6c60".encode() * 28, b"*?[]{}$`'\"", b"..."]
if sys.argv[1] == "make":
    for name in names:
        with open(b"names/" + name, "wb") as file: file.write(name)
else:
    assert sorted(os.listdir(b"names")) == sorted(names), sorted(os.listdir(b"names"))
    for name in names:
        assert open(b"names/" + name, "rb").read() == name
    os.rename(b"names/" + names[0], b"names/" + b"z" * 255)
    try: open(b"names/" + b"y" * 256, "wb")
    except OSError as error: assert error.errno == 36, error
    else: raise AssertionError("a name of 256 bytes")
END
        mkdir names
        on 0 'python3 names.py make'
        on 1 'python3 names.py check'
        deep=.; for i in $(seq 120); do deep=$deep/directory-$i; done
        export deep
        on 0 'mkdir -p $deep; echo bottom > $deep/file'
        on 1 'test "$(cat $deep/file)" = bottom; mv directory-1/directory-2 moved; test "$(find moved -name file | wc -l)" = 1; test ! -e $deep'
        on 0 'test "$(find . -name file -exec cat {} +)" = bottom; mv moved directory-1/directory-2; cat $deep/file > bottom; rm -r directory-1'"#,
    );
    assert_as_plain(&site);
}

#[test]
fn a_directory_is_sharded_while_both_nodes_use_it() {
    let site = run_everywhere(
        r#"
        mkdir wide
        (on 0 'cd wide; python3 -c "
for i in range(2500): open(f\"zero-{i}\", \"w\").write(str(i))"') & one=$!
        (on 1 'cd wide; python3 -c "
for i in range(2500): open(f\"one-{i}\", \"w\").write(str(i))"') & two=$!
        wait $one; wait $two
        on 0 'test $(ls -f wide | wc -l) = 5002; test $(ls wide | sort -u | wc -l) = 5000; test "$(cat wide/one-1234)" = 1234'
        on 1 'test $(ls wide | wc -l) = 5000; cd wide; for i in $(seq 0 99); do mv zero-$i renamed-$i; done; mv one-0 ../out; ! rmdir ../wide 2>/dev/null'
        on 0 'cd wide; test "$(cat renamed-77)" = 77; test ! -e zero-77; test $(ls | wc -l) = 4999; rm one-*; test $(ls | wc -l) = 2500'
        on 1 'mv wide moved; test $(ls moved | wc -l) = 2500; cat moved/* | cksum > sum; test "$(cat out)" = 0'
        on 0 'rm -r moved; test ! -e moved; mkdir wide; test -z "$(ls -A wide)"; rmdir wide'"#,
    );
    assert_as_plain(&site);
}

#[test]
fn fio_verifies_its_writes() {
    run_everywhere(
        r#"
        cat > job.fio <<'END'
[global]
ioengine=psync
verify=crc32c
verify_fatal=1
do_verify=1
size=12m
fallocate=none
[random]
rw=randwrite
bsrange=512-128k
blockalign=512
filename=random
end_fsync=1
[sequential]
rw=write
bs=256k
filename=sequential
[mapped]
ioengine=mmap
rw=randwrite
bs=4k
size=4m
filename=mapped
END
        on 1 'fio --minimal job.fio > words || { cat words; exit 1; }'
        on 0 'fio --minimal --verify_only job.fio > words || { cat words; exit 1; }'
        rm -f words"#,
    );
}

#[test]
fn attributes_and_layouts_are_stored() {
    let site = Site::new();
    site.run(
        2,
        &format!(
            r#"{ON_NODES}
            for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE"; do
                cd "$view"; mkdir a; echo x > a/f
                on 0 'setfattr -n user.one -v 1 a/f; setfattr -n user.two -v "$(head -c 2000 /dev/zero | tr "\0" v)" a/f; setfattr -n user.dir -v d a'
                on 1 'test "$(getfattr --only-values -n user.one a/f)" = 1; test $(getfattr --only-values -n user.two a/f | wc -c) = 2000
                      test "$(getfattr --only-values -n user.dir a)" = d
                      setfattr -n user.one -v changed a/f; setfattr -x user.two a/f; ! getfattr -n user.two a/f 2>/dev/null'
                on 0 'test "$(getfattr --only-values -n user.one a/f)" = changed; test $(getfattr a/f | grep -c "^user.one") = 1; ! getfattr a/f | grep user.two; mv a/f a/g; test "$(getfattr --only-values -n user.one a/g)" = changed'
            done
            cd "$TAMEIKE_SHARED"
            mkdir near; on 1 'tameike layout set local near; mkdir near/sub; seq 100000 > near/sub/f'
            on 0 'for f in near near/sub near/sub/f .; do tameike layout get $f; done > layouts; getfattr --only-values -n user.tameike.layout near/sub >> layouts; seq 100000 | cmp - near/sub/f'
            cat layouts > "$TAMEIKE_CACHE/layouts"
            on 0 'tameike layout set striped near; ! tameike layout set nonsense near 2>/dev/null; seq 100000 | cmp - near/sub/f'"#
        ),
    );
    let layouts = fs::read_to_string(site.shared().join("layouts")).expect("the layouts");
    assert_eq!(layouts, "local\nlocal\nnode:1\nstriped\nlocal");
    let value = Command::new("getfattr")
        .args(["--only-values", "-n", "user.one"])
        .arg(site.shared().join("a/g"))
        .output()
        .expect("it starts");
    assert_eq!(value.stdout, b"changed", "{}", shown(&value));
}
