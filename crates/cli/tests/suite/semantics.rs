//! Claims of SEMANTICS.md that no other test covers, in jobs of two nodes. `cargo xtask lint` checks that tests cite every
//! claim.

use crate::support::jobs::new_job;
use crate::support::{Run, Site, helper, json, shown, succeed, utf8};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const MIB: usize = 1 << 20;

/// The prelude of all scripts. `on N COMMAND` runs a command on a node, `nodes N FUNCTION ...` a function of
/// `support/nodes.py`; all nodes see the directory `$marks` outside of the views; `$both` are the two shared views.
fn script(site: &Site, body: &str) -> String {
    format!(
        r#"marks={marks}
           both="$TAMEIKE_SHARED $TAMEIKE_CACHE"
           on() {{ node=$1; shift; timeout 100 tameike exec --node $node -- "$@"; }}
           nodes() {{ node=$1; shift; on $node python3 {program} "$@"; }}
           until_there() {{ while [ ! -e $1 ]; do sleep 0.02; done; }}
           {body}"#,
        marks = site.plain().display(),
        program = helper("nodes.py"),
    )
}

fn run(body: &str) {
    let site = Site::new();
    site.run(2, &script(&site, body));
}

/// S1a.
#[test]
fn processes_of_a_node_see_each_others_writes() {
    run("for view in $both $TAMEIKE_NODE_LOCAL; do nodes 0 within $view/file; done");
    let site = Site::new();
    let device = ["--device", &site.disk().display().to_string()];
    succeed(&mut site.job(1, &device, &script(&site, "nodes 0 within $TAMEIKE_NODE_LOCAL/file")));
}

/// S1a.
#[test]
fn writes_that_bypass_the_page_cache_are_seen_through_it() {
    run("for view in $both $TAMEIKE_NODE_LOCAL; do nodes 0 past_pages $view/file; done");
}

/// S2b.
#[test]
fn an_fsync_shows_synced_writes_of_other_nodes() {
    run(r#"for view in $both; do
               : > $view/file
               nodes 0 follow $view/file $marks/ready 10 & follower=$!
               nodes 1 lead $view/file $marks/ready 10
               wait $follower
               rm $marks/*
           done"#);
}

/// S14c.
#[test]
fn a_flush_changes_the_ctime_only() {
    for options in [&[][..], &["--aggregate"]] {
        let site = Site::new();
        // The background flush may come first.
        let body = r#"cd $TAMEIKE_CACHE
            for try in $(seq 50); do
                echo $try > file; mtime=$(stat -c %.9Y file); ctime=$(stat -c %.9Z file)
                tameike drain 2> /dev/null
                test $mtime = $(stat -c %.9Y file)
                test $ctime = $(stat -c %.9Z file) || exit 0
            done; exit 1"#;
        succeed(&mut site.job(2, options, body));
    }
}

/// S7a.
#[test]
fn synced_data_survives_a_crash_of_all_agents() {
    let (site, job) = new_job("synced");
    let size = 3 * MIB + 17;
    let body = format!(
        r#"pid() {{ python3 -c "import json; print(json.load(open('{dir}/node-$1/node.json'))['record']['pid'])"; }}
           nodes 0 synced $TAMEIKE_CACHE/file {size} $(pid 0) $(pid 1)"#,
        dir = job.dir.display(),
    );
    let output = site.job(2, &["--job", &job.name], &script(&site, &body)).output().expect("a job");
    assert!(!output.status.success(), "{}", shown(&output));
    let recovered = site.tameike(&["recover", "--job", &job.name]).exits(0);
    let expected = format!("import random, sys; sys.stdout.buffer.write(random.Random(7).randbytes({size}))");
    let expected = std::process::Command::new("python3").args(["-c", &expected]).output().expect("python");
    assert!(
        fs::read(site.shared().join("file")).expect("the file") == expected.stdout,
        "{}",
        shown(&recovered)
    );
}

/// S8b.
#[test]
fn a_removed_directory_disappears_within_the_limit() {
    run(r#"cd $TAMEIKE_CACHE
           for round in 1 2 3 4 5; do
               mkdir -p one two; test -d one -a -d two
               on 1 sh -c 'mv one three; rmdir two'
               test -d three
               sleep 0.2
               test ! -e one; test ! -e two
               rmdir three
           done"#);
}

/// S9a.
#[test]
fn a_name_that_is_replaced_is_never_missing() {
    run(r#"for view in $both; do
               echo 0-0 > $view/file
               nodes 0 look $view/file $marks/ended & first=$!
               nodes 1 look $view/file $marks/ended & second=$!
               until [ "$(ls $marks | wc -l)" = 2 ]; do sleep 0.01; done
               # Others want the processors, too: then calls meet each other half-way.
               for _ in 1 2 3 4; do (while [ ! -e $marks/ended ]; do :; done) & done
               nodes 0 replace $view/file 200 0 & third=$!
               nodes 1 replace $view/file 200 1
               wait $third
               touch $marks/ended; wait $first; wait $second
               rm $marks/*
           done"#);
}

/// S10a, S10b.
#[test]
fn a_file_that_is_removed_while_open_stays_usable() {
    run(r#"for view in $both; do
           for remover in 0 1; do
               free=$(nodes 0 print_free $view)
               head -c 3000000 /dev/urandom > $view/file
               nodes 1 use_removed $view/file $marks/ready $marks/removed & user=$!
               until_there $marks/ready
               on $remover rm $view/file
               touch $marks/removed
               wait $user
               # The cache view shows the space of the shared file system, which other programs use too.
               test $view = $TAMEIKE_CACHE || nodes 0 await_free $view $free
               rm $marks/*
           done; done"#);
}

/// S11a, S11b, S11c.
#[test]
fn attributes_of_directories_are_seen_within_the_limit() {
    run(r#"for view in $both; do
               cd $view; mkdir dir
               for round in 1 2 3 4 5; do
                   stat dir > $marks/words
                   on 1 sh -c "chmod 7$round$round dir; mkdir dir/$round; touch -d 2001-02-03T04:05:0$round dir"
                   test $view = $TAMEIKE_SHARED || sleep 0.2
                   test $(stat -c %a dir) = 7$round$round
                   sleep 0.2
                   test $(stat -c %h dir) = $((round + 2))
                   test "$(stat -c %y dir | cut -c1-19)" = "2001-02-03 04:05:0$round"
               done
               test $(id -u) != 0 || {
                   on 1 chown 12:34 dir
                   test $view = $TAMEIKE_SHARED || sleep 0.2
                   test $(stat -c %u:%g dir) = 12:34
               }
           done"#);
}

/// S12a, S12b.
#[test]
fn attributes_of_files_are_seen_within_the_limit() {
    run(r#"for view in $both; do
               cd $view; echo one > file; ln -s there link
               for round in 1 2 3 4 5; do
                   stat file link > $marks/words
                   on 1 sh -c "chmod 6$round$round file; echo more >> file; ln -snf there-$round link; ln file name-$round"
                   test "$(stat -c '%a %s %h' file)" = "6$round$round $((4 + 5 * round)) $((1 + round))"
                   test "$(readlink link)" = there-$round
               done
               nodes 0 watch file $marks/ready $marks/changed 0.1 & watcher=$!
               until_there $marks/ready
               on 1 sh -c 'chmod 640 file; echo more >> file'
               touch $marks/changed
               wait $watcher
               rm $marks/*
           done"#);
}

/// S13a.
#[test]
fn names_and_attributes_are_in_the_shared_directory_at_once() {
    let site = Site::new();
    let body = format!(
        r#"real={shared}; cd $TAMEIKE_CACHE
           mkdir -m 750 dir; test "$(stat -c %a $real/dir)" = 750
           on 1 touch dir/file; test -f $real/dir/file
           on 1 mv dir/file moved; test -f $real/moved; test ! -e $real/dir/file
           ln moved hard; test $(stat -c %h $real/moved) = 2; test $(stat -c %i $real/moved) = $(stat -c %i $real/hard)
           ln -s moved soft; test "$(readlink $real/soft)" = moved
           on 1 chmod 604 moved; test $(stat -c %a $real/hard) = 604
           test $(id -u) != 0 || {{ chown 12:34 moved; test $(stat -c %u:%g $real/hard) = 12:34; }}
           touch -d '2001-02-03 04:05:06.789' moved; test "$(stat -c %y $real/moved | cut -c1-23)" = "2001-02-03 04:05:06.789"
           on 1 rm hard soft; test ! -e $real/hard -a ! -h $real/soft
           rmdir dir; test ! -e $real/dir"#,
        shared = site.shared().display(),
    );
    site.run(2, &script(&site, &body));
}

/// S14a, S14b.
#[test]
fn sizes_and_times_are_correct_before_the_flush() {
    run(r#"cd $TAMEIKE_CACHE
           for size in 1 5000 1048577 7000000; do
               head -c $size /dev/urandom > file
               sum=$(sha256sum < file); words=$(stat -c '%s %y' file)
               test "${words%% *}" = $size
               test "$(on 1 stat -c '%s %y' file)" = "$words"
               test "$(on 1 sha256sum < file)" = "$sum"
               on 1 sh -c 'echo more >> file'
               test $(stat -c %s file) = $((size + 5))
               test "$(stat -c %y file)" = "$(on 1 stat -c %y file)"
           done"#);
}

/// Checksums of a receipt by path.
fn checksums(receipt: &Path) -> BTreeMap<String, String> {
    let receipt = json(receipt);
    let files = receipt["files"].as_array().expect("files").iter();
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    files.map(|file| (text(&file["path"]), text(&file["checksum"]))).collect()
}

/// S17a S17b.
#[test]
fn a_receipt_covers_exactly_what_the_job_wrote() {
    let site = Site::new();
    // Files from before the job: equal in the second MiB, except one.
    for (name, first, second) in [("one", 1, 5), ("two", 2, 5), ("three", 1, 6)] {
        let content = [vec![first; MIB], vec![second; MIB], vec![first; 100]].concat();
        fs::write(site.shared().join(name), content).expect("a file");
    }
    let receipt = site.plain().join("receipt.json");
    let body = r#"cd $TAMEIKE_CACHE
        for name in one two three; do printf x | dd of=$name bs=1 seek=1500000 conv=notrunc status=none; done
        head -c 2500000 /dev/zero | tr '\0' w > whole
        on 1 sh -c 'printf x | dd of=sparse bs=1 seek=1500000 status=none; echo small > small; : > empty'"#;
    let options = ["--receipt", utf8(&receipt)];
    let output = site.job(2, &options, &script(&site, body)).exits(0);
    let sums = checksums(&receipt);
    let names: Vec<_> = sums.keys().map(String::as_str).collect();
    assert_eq!(names, ["one", "small", "sparse", "three", "two", "whole"], "{}", shown(&output));
    for name in ["whole", "small"] {
        let content = fs::read(site.shared().join(name)).expect("the file");
        assert_eq!(sums[name], blake3::hash(&content).to_string(), "{name}");
    }
    for name in ["one", "two", "three", "sparse"] {
        assert!(sums[name].starts_with("units:"), "{name}: {}", sums[name]);
    }
    assert_eq!(sums["one"], sums["two"], "the checksum does not cover the first MiB");
    assert_ne!(sums["one"], sums["three"], "the checksum covers the second MiB");
}

/// S20a, S20b.
#[test]
fn calls_that_need_a_failed_agent_return_an_error() {
    let (site, job) = new_job("dead");
    let body = format!(
        r#"names=; for k in $(seq 1 24); do mkdir $TAMEIKE_SHARED/$k; names=$names,$TAMEIKE_SHARED/$k/file; done
           kill -KILL $(python3 -c "import json; print(json.load(open('{dir}/node-1/node.json'))['record']['pid'])")
           nodes 0 use_each ${{names#,}} > $marks/words
           test $(wc -l < $marks/words) = 24
           test $(grep -cx done $marks/words) -ge 3
           test $(grep -cx EHOSTDOWN $marks/words) -ge 3
           ! grep -vxE 'done|EHOSTDOWN' $marks/words
           touch $marks/passed"#,
        dir = job.dir.display(),
    );
    let options = ["--job", &job.name, "--keep-going"];
    let output = site.job(2, &options, &script(&site, &body)).output().expect("a job");
    let words = fs::read_to_string(site.plain().join("words")).unwrap_or_default();
    assert!(site.plain().join("passed").exists(), "{words}{}", shown(&output));
    site.tameike(&["recover", "--job", &job.name]).exits(0);
}

/// S24d.
#[test]
fn unsupported_calls_return_errors() {
    run(r#"for view in $both; do
               cd $view
               TMPDIR=$view python3 -c "
import errno, os, tempfile
try: os.open('.', os.O_TMPFILE | os.O_RDWR)
except OSError as error: assert error.errno == errno.EOPNOTSUPP, error
else: raise AssertionError('O_TMPFILE')
with tempfile.TemporaryFile() as file: file.write(b'x')"
           done"#);
}
