//! One job, end to end: the real binary, real agents, real mounts.

use crate::support::{Run, Site, assert_contains, err, out, utf8};
use std::fs;

#[test]
fn files_of_the_cache_view_are_in_the_shared_directory_at_the_end() {
    let site = Site::new();
    fs::write(site.shared().join("input"), "from before").expect("an input");
    site.run(2, r#"cat "$TAMEIKE_CACHE/input" > "$TAMEIKE_CACHE/copy"; echo more >> "$TAMEIKE_CACHE/copy""#);
    let copy = fs::read_to_string(site.shared().join("copy")).expect("the drained file");
    assert_eq!(copy, "from beforemore\n");
}

/// S15a, S15b. A time that the job has set is not a change by another program.
#[test]
fn a_file_that_the_job_has_touched_is_not_reported_as_changed_by_another_program() {
    let site = Site::new();
    let receipt = site.plain().join("receipt");
    let options = ["--receipt", utf8(&receipt)];
    let script = r#"cd "$TAMEIKE_CACHE"
        for i in $(seq 20); do echo $i > $i; touch $i; done
        sleep 1
        touch 1 2 3; touch -d 2001-02-03 4 5 6; cat 1 4 > both"#;
    site.job(2, &options, script).exits(0);
    let found = fs::read_to_string(&receipt).expect("a receipt");
    fs::remove_file(&receipt).expect("a receipt");
    assert_contains(&found, &["both"]);
    assert!(!found.contains("another program"), "{found}");
}

/// Root can set the kernel's readahead: to the size of a request.
#[test]
fn the_kernel_reads_ahead_by_whole_units_if_it_can_be_set() {
    let site = Site::new();
    let script = r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE"; do
        kib=/sys/class/bdi/$(mountpoint -d "$view")/read_ahead_kb
        [ -w $kib ] && cat $kib || echo 1024
    done"#;
    assert_eq!(site.run(1, script), "1024\n1024\n");
}

#[test]
fn the_job_has_the_exit_code_and_output_of_its_command() {
    let site = Site::new();
    let output = site.job(1, &[], "echo to stdout; echo to stderr >&2; exit 17").exits(17);
    assert_contains(&out(&output), &["to stdout"]);
    assert_contains(&err(&output), &["to stderr"]);
}

#[test]
fn the_environment_names_the_views_and_they_have_the_same_paths_on_every_node() {
    let site = Site::new();
    let script = r#"for v in JOB NODE NODES SHARED NODE_LOCAL CACHE; do eval "test -n \"\$TAMEIKE_$v\""; done
           here=$TAMEIKE_SHARED,$TAMEIKE_CACHE,$TAMEIKE_NODE_LOCAL
           tameike exec --all -- sh -c 'echo $TAMEIKE_NODE/$TAMEIKE_NODES $TAMEIKE_SHARED,$TAMEIKE_CACHE,$TAMEIKE_NODE_LOCAL' > out
           test $(grep -c "$here" out) = 3
           cat out"#;
    let text = site.run(3, &script.replace("out", utf8(&site.shared().join("out"))));
    for node in 0..3 {
        assert_contains(&text, &[&format!("[{node}] {node}/3 ")]);
    }
}

/// S8a. S2a.
#[test]
fn nodes_see_each_others_names_and_files() {
    let site = Site::new();
    site.run(
        4,
        r#"cd "$TAMEIKE_SHARED"
           mkdir dir
           for k in 0 1 2 3; do
               tameike exec --node $k -- sh -euc "seq 1 20000 > dir/from-$k; mv dir/from-$k dir/by-$k"
           done
           seq 1 20000 > expected
           for k in 0 1 2 3; do
               tameike exec --node $k -- sh -euc 'for j in 0 1 2 3; do cmp expected dir/by-$j; done; test $(ls dir | wc -l) = 4'
           done
           tameike exec --node 3 -- rm -r dir
           test ! -e dir"#,
    );
}

/// S8a.
#[test]
fn every_node_sees_changes_of_names_at_once() {
    let site = Site::new();
    site.run(
        3,
        r#"cd "$TAMEIKE_SHARED"
           for round in 1 2 3 4 5; do
               mkdir dir && echo one > dir/file && echo two > dir/other && mkdir dir/below
               test "$(cat dir/file)" = one
               tameike exec --node 1 -- sh -euc 'test -d dir/below; test "$(stat -c %s dir/file)" = 4; chmod 600 dir/file; chmod 700 dir'
               test "$(stat -c %a dir)$(stat -c %a dir/file)" = 700600
               tameike exec --node 2 -- sh -euc 'mv dir/other dir/file; mv dir/below dir/moved'
               test "$(cat dir/file)" = two
               test ! -e dir/other && test ! -e dir/below && test -d dir/moved
               tameike exec --node 1 -- sh -euc 'echo longer > dir/file; rmdir dir/moved'
               test "$(stat -c %s dir/file)" = 7 && test ! -e dir/moved
               tameike exec --node 2 -- rm -r dir
               test ! -e dir
           done"#,
    );
}

/// S6a.
#[test]
fn appends_of_all_nodes_are_atomic() {
    let site = Site::new();
    site.run(
        3,
        r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE"; do
               export log=$view/log
               tameike exec --all -- sh -euc 'i=0; while [ $i -lt 100 ]; do echo "node $TAMEIKE_NODE line $i" >> $log; i=$((i+1)); done'
               test $(wc -l < $log) = 300
               for k in 0 1 2; do test $(grep -c "^node $k line [0-9]*$" $log) = 100; done
           done"#,
    );
    assert_eq!(fs::read_to_string(site.shared().join("log")).expect("the log").lines().count(), 300);
}

/// Basic operations of a file system, in each view.
#[test]
fn every_view_supports_basic_file_system_operations() {
    let site = Site::new();
    site.run(
        2,
        r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE" "$TAMEIKE_NODE_LOCAL"; do
               cd "$view"
               mkdir -p a/b; echo one > a/b/f; ln a/b/f a/g; ln -s b/f a/s
               test "$(cat a/s)" = one; test "$(stat -c %h a/b/f)" = 2
               echo two >> a/g; test "$(cat a/b/f)" = "$(printf 'one\ntwo')"
               mv a/b/f a/h; test ! -e a/b/f; rmdir a/b
               truncate -s 3 a/h; test "$(cat a/g)" = one
               truncate -s 100000 a/h; test "$(stat -c %s a/g)" = 100000
               test "$(tr -d '\0' < a/h)" = one
               chmod 640 a/h; test "$(stat -c %a a/g)" = 640
               touch -d '2001-02-03 04:05:06.789' a/h; test "$(stat -c %y a/h | cut -c1-23)" = "2001-02-03 04:05:06.789"
               echo x > a/over; mv a/over a/h; test "$(cat a/h)" = x; test "$(stat -c %h a/g)" = 1
               mkfifo a/fifo; test -p a/fifo
               exec 3<>a/gone; echo still here >&3; rm a/gone; test "$(head -c 10 /proc/self/fd/3)" = "still here"; exec 3>&-
               ! rmdir a 2>/dev/null
               df . > /dev/null
               rm -r a; test -z "$(ls -A .)"
           done"#,
    );
}
