//! fsx on each view: random operations on a file, with a comparison of every byte that it reads.

use crate::support::jobs::seed;
use crate::support::{Run, Site, is_soak, out, preload, shown};
use std::fs;

/// Operations of one round on a view. fsx keeps its read mappings, and the kernel allows a process
/// 65,530 mappings, so many operations need many runs.
fn small_operations() -> u64 {
    if is_soak() { 45_000 } else { 6_000 }
}

/// The same in the larger file.
fn large_operations() -> u64 {
    if is_soak() { 5_000 } else { 1_000 }
}

/// The prelude of scripts: `fsx CONFIG ARGUMENT...` runs fsx and prints only failures.
fn script(site: &Site, seed: u64, body: &str) -> String {
    format!(
        r#"marks={marks}; seed={seed}; small={small}; large={large}; ring={ring}; program={program}
           on() {{ node=$1; shift; tameike exec --node $node -- "$@"; }}
           fsx() {{
               node=$1; name=$2; shift 2
               on $node $program -P $marks "$@" > $marks/text-$name 2>&1 || {{ echo "$name: $*" >&2; tail -n 60 $marks/text-$name >&2; exit 1; }}
               grep -q A-OK $marks/text-$name
           }}
           {body}"#,
        marks = site.plain().display(),
        small = crate::suites::file("fsx.toml"),
        large = crate::suites::file("fsx-large.toml"),
        ring = crate::suites::file("fsx-ring.toml"),
        program = crate::suites::program("fsx"),
    )
}

fn run(site: &Site, seed: u64, options: &[&str], body: &str) {
    site.job(2, options, &script(site, seed, body)).exits(0);
}

/// Runs on all these views (a word and a variable each) in parallel.
fn work_on(views: &[(&str, &str)], options: &[&str]) {
    let rounds = if is_soak() { 20 } else { 1 };
    let (small, large) = (small_operations(), large_operations());
    let mut body = format!(
        r#"work() {{
               for round in $(seq {rounds}); do
                   fsx 0 $1 -f $small -S $((seed + round)) -N {small} $2/small
                   fsx 0 $1 -f $large -S $((seed + round)) -N {large} $2/large
               done
           }}
           workers="#
    );
    for (word, view) in views {
        body += &format!("\nwork {word} $TAMEIKE_{view} & workers=\"$workers $!\"");
    }
    body += "\nfor worker in $workers; do wait $worker; done";
    run(&Site::new(), seed(), options, &body);
}

/// S22a.
#[test]
fn random_operations_on_the_striped_views_read_what_was_written() {
    work_on(&[("shared", "SHARED"), ("cache", "CACHE")], &[]);
}

/// On a disk, the agent serves the node-local view too.
#[test]
fn random_operations_on_a_node_local_view_read_what_was_written() {
    let disk = Site::new();
    work_on(&[("local", "NODE_LOCAL")], &["--device", disk.disk().to_str().expect("plain path")]);
}

/// S31a.
#[test]
fn random_operations_through_the_ring_read_what_was_written() {
    let (rounds, seed, operations) = (if is_soak() { 20 } else { 1 }, seed(), small_operations());
    let body = format!(
        r#"for round in $(seq {rounds}); do
               fsx 0 shared -f $ring -S $((seed + round)) -N {operations} $TAMEIKE_SHARED/file & one=$!
               fsx 0 cache -f $ring -S $((seed + round)) -N {operations} $TAMEIKE_CACHE/file & other=$!
               wait $one; wait $other
           done
           tameike status --json"#
    );
    let site = Site::new();
    let output = site.job(2, &["--preload"], &script(&site, seed, &body)).exits(0);
    let answered = preload::answered(&out(&output));
    assert!(answered > operations, "requests went through the kernel: {answered}");
}

/// Two nodes alternate on the same file, and each compares the content of the other node with the result of the same
/// operations in a plain directory. (In `workloads`, nodes continue with each other's content.)
///
/// S2a.
#[test]
fn a_node_reads_the_results_of_the_other() {
    let (turns, operations) = if is_soak() { (40, 5_000) } else { (4, 1_000) };
    run(
        &Site::new(),
        seed(),
        &[],
        &format!(
            r#"for turn in $(seq {turns}); do
                   node=$((turn % 2)); other=$((1 - node)); config=$small; test $((turn % 3)) != 0 || config=$large
                   work="-f $config -S $((seed + turn)) -N {operations}"
                   fsx 0 plain $work $marks/file
                   for view in $TAMEIKE_SHARED $TAMEIKE_CACHE; do
                       fsx $node turns $work $view/file
                       on $other cmp $view/file $marks/file
                   done
               done"#
        ),
    );
}

/// A self-test: fsx detects a wrong byte.
#[test]
fn fsx_detects_a_lost_write() {
    let site = Site::new();
    let file = site.plain().join("file");
    let mut command = std::process::Command::new(crate::suites::program("fsx"));
    command.args(["-f", &crate::suites::file("fsx.toml"), "-S", "2", "-N", "1000", "--inject", "13", "-P"]);
    let output = command.arg(site.plain()).arg(&file).output().expect("fsx");
    assert!(!output.status.success(), "{}", shown(&output));
    assert!(fs::exists(&file).expect("a look"), "fsx did nothing: {}", shown(&output));
}
