//! Locks of files by programs on several nodes.

use crate::support::jobs::new_job;
use crate::support::{Run, Site, helper, is_soak, shown, utf8};

/// The prelude of all scripts. `on N FUNCTION ...` runs a function of `support/locker.py` on a node; all nodes see the
/// directory `$marks` outside of the views.
fn script(site: &Site, body: &str) -> String {
    format!(
        r#"marks={marks}; locker={locker}
           on() {{ node=$1; shift; timeout {limit} tameike exec --node $node -- python3 $locker "$@"; }}
           until_there() {{ for name; do while [ ! -e $name ]; do sleep 0.02; done; done; }}
           {body}"#,
        marks = site.plain().display(),
        locker = helper("locker.py"),
        limit = if is_soak() { 1500 } else { 100 },
    )
}

fn run(body: &str) {
    let site = Site::new();
    site.run(2, &script(&site, body));
}

/// S21a.
#[test]
fn a_lock_of_one_node_excludes_the_others() {
    run(r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE"; do for kind in flock posix ofd; do
               file=$view/file-$kind; : > $file
               on 0 hold $kind $file $marks/ready $marks/go & holder=$!
               until_there $marks/ready
               on 1 excluded $kind $file
               on 1 wait $kind $file $marks/waits & waiter=$!
               until_there $marks/waits
               # The lock is the inode's: names come and go.
               on 1 excluded $kind $file
               mv $file $file-moved; on 1 excluded $kind $file-moved
               touch $marks/go
               wait $holder; wait $waiter
               on 1 free $kind $file-moved
               rm $marks/*
           done; done"#);
}

/// S21d.
#[test]
fn increments_under_a_lock_are_not_lost() {
    run(r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE"; do for kind in flock posix mapped; do
               file=$view/number-$kind; printf %020d 0 > $file
               writers=
               for node in 0 1 0 1; do on $node count $kind $file 50 & writers="$writers $!"; done
               for writer in $writers; do wait $writer; done
               counted=$(tail -c 20 $file | sed "s/^0*//"); test $counted = 200 || { echo "$file: $counted" >&2; exit 1; }
           done; done"#);
}

/// S21c.
#[test]
fn a_flock_excludes_fcntl_locks() {
    run(r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE"; do for kinds in 'flock posix' 'posix flock'; do
               file=$view/file; : > $file
               on 0 hold ${kinds% *} $file $marks/ready $marks/go & holder=$!
               until_there $marks/ready
               on 0 excluded ${kinds#* } $file
               on 1 excluded ${kinds#* } $file
               touch $marks/go; wait $holder; rm $marks/*
               on 1 free ${kinds#* } $file
           done; done"#);
}

/// S21p. S21b.
#[test]
fn byte_ranges_split_and_merge_and_are_reported_with_their_process() {
    run(r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE"; do
               file=$view/ranges; : > $file
               tameike exec --node 0 -- sh -c 'echo $$ > '$marks'/pid; exec python3 "$@"' sh $locker ranges $file $marks/ready $marks/go & holder=$!
               until_there $marks/ready
               on 1 other_ranges $file 0
               on 0 other_ranges $file $(cat $marks/pid)
               touch $marks/go; wait $holder; rm $marks/*
               on 1 closes $file
               on 1 descriptions $file
           done"#);
}

/// S21f S21j
#[test]
fn processes_that_are_killed_leave_neither_locks_nor_waiters() {
    run(r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE"; do for kind in flock posix; do
               file=$view/killed-$kind; : > $file
               start() { mark=$1; node=$2; shift 2; tameike exec --node $node -- sh -c 'echo $$ > '$mark'; exec python3 "$@"' sh $locker "$@" || true; }
               start $marks/holder 0 hold $kind $file $marks/ready $marks/never & first=$!
               until_there $marks/ready
               on 1 interrupted $file
               start $marks/waiter 1 wait $kind $file $marks/waits & second=$!
               until_there $marks/waits; sleep 0.5
               kill -KILL $(cat $marks/waiter); wait $second
               kill -KILL $(cat $marks/holder); wait $first
               timeout 20 tameike exec --node 1 -- python3 $locker wait $kind $file $marks/again
               on 0 free $kind $file
               rm $marks/*
           done; done"#);
}

/// S21m.
#[test]
fn a_deadlock_fails_one_of_two_waiters() {
    run(r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE"; do for pair in 1 2 3 4 5 6; do
               # Files of several directories have several homes.
               mkdir $view/a$pair $view/b$pair; one=$view/a$pair/file; two=$view/b$pair/file; : > $one; : > $two
               on 0 deadlock $one $two $marks/a $marks/b $marks/text & first=$!
               on 1 deadlock $two $one $marks/b $marks/a $marks/text & second=$!
               wait $first; wait $second
               grep -qx locked $marks/text; grep -qx EDEADLK $marks/text; test $(wc -l < $marks/text) = 2
               rm $marks/*
           done; done"#);
}

/// S21n.
#[test]
fn a_deadlock_of_two_upgrades_fails_one() {
    run(r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE"; do
               file=$view/upgraded; : > $file
               on 0 upgrade $file $marks/a $marks/b $marks/text & first=$!
               on 1 upgrade $file $marks/b $marks/a $marks/text & second=$!
               wait $first; wait $second
               grep -qx locked $marks/text; grep -qx EDEADLK $marks/text; test $(wc -l < $marks/text) = 2
               rm $marks/*
           done"#);
}

/// S21g.
#[test]
fn locks_of_a_killed_agent_are_released() {
    let (site, job) = new_job("locks");
    let state = job.dir.join("node-2/node.json");
    let body = r#"for k in $(seq 1 24); do tameike exec --node $((k % 3)) -- mkdir $TAMEIKE_SHARED/$k; done
        names=$(seq -f "$TAMEIKE_SHARED/%g/file" 1 24 | paste -sd,)
        (on 2 lock_all $names $marks/ready $marks/never || true) &
        until_there $marks/ready
        on 0 excluded posix "${names%%,*}"
        kill -KILL $(python3 -c "import json; print(json.load(open('$STATE'))['record']['pid'])")
        on 0 lock_each $names > $marks/text
        sort $marks/text | uniq -c >&2
        test $(wc -l < $marks/text) = 24
        test $(grep -cx locked $marks/text) -ge 8
        test $(grep -cx EHOSTDOWN $marks/text) -ge 1
        touch $marks/passed"#
        .replace("$STATE", utf8(&state));
    let options = ["--job", &job.name, "--keep-going"];
    let output = site.job(3, &options, &script(&site, &body)).output().expect("a job");
    assert!(site.plain().join("passed").exists(), "{}", shown(&output));
    site.tameike(&["recover", "--job", &job.name]).exits(0);
}

/// Two nodes write to one database, with the rollback journal that SQLite uses by default.
#[test]
fn a_database_is_written_on_two_nodes() {
    let transactions = if is_soak() { 2000 } else { 80 };
    let all = 4 * transactions;
    run(&format!(
        r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE"; do
                   sqlite3 $view/base.db 'create table log (writer, number, count, primary key (writer, number))'
                   writers=
                   for writer in 0 1 2 3; do
                       on $((writer % 2)) database $view/base.db $writer {transactions} & writers="$writers $!"
                   done
                   for writer in $writers; do wait $writer; done
                   test "$(sqlite3 $view/base.db 'pragma integrity_check')" = ok
                   # Each transaction saw all that were before it.
                   test "$(sqlite3 $view/base.db 'select count(*), count(distinct count), max(count) from log')" = '{all}|{all}|{last}'
               done"#,
        last = all - 1,
    ));
}
