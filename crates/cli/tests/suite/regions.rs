//! Shared memory regions of C programs on several nodes.

use crate::kit::Kit;
use crate::support::jobs::{Background, Random, code_of_recovery, new_job, seed, signal, sleep_ms, wait_for};
use crate::support::{Site, assert_code, is_soak, out, shown, succeed, utf8};
use std::fs;
use std::path::Path;

/// Mechanisms by which a process detects accesses to pages that several nodes write to.
const MECHANISMS: [&str; 2] = ["userfaultfd", "mprotect"];
/// All mechanisms.
const ALL_MECHANISMS: [&str; 3] = ["userfaultfd", "mprotect", "one-writer"];

/// Transports between nodes: shared memory within a host, TCP, and providers of libfabric.
pub(crate) const TRANSPORTS: [&str; 4] = ["auto", "tcp", "ofi:tcp", "ofi:shm"];

/// Memory of a node for a region.
#[derive(Clone, Copy)]
enum Memory {
    Enough,
    /// Less than the region needs.
    Little,
}

/// A script that runs a program for each rank on its node at the same time, with `arguments` after its rank; all must succeed. The path of
/// the region is `$region`.
pub(crate) fn on_nodes(program: &Path, task: &str, nodes: &[u32], arguments: &str) -> String {
    let start = |(rank, node)| {
        let program = program.display();
        format!(
            "tameike exec --node {node} -- {program} {task} \"$region\" {rank} {arguments} & pids=\"$pids $!\"\n"
        )
    };
    let starts: String = (0..).zip(nodes).map(start).collect();
    format!("region=$TAMEIKE_SHARED/region\npids=\n{starts}for pid in $pids; do wait $pid; done\n")
}

/// Alternate bytes of all pages, or with one writer per page alternate pages, are written by different processes. The processes, and readers of the file on all nodes, see all bytes.
fn share(nodes: &[u32], mechanism: &str, pages: u32, memory: Memory) {
    share_over("auto", nodes, mechanism, pages, memory);
}

fn share_over(fabric: &str, nodes: &[u32], mechanism: &str, pages: u32, memory: Memory) {
    let kit = Kit::new();
    let program = kit.build("dsm");
    let site = Site::new();
    let (ranks, copies) = (nodes.len(), site.plain().display());
    let mut options = vec!["--fabric", fabric];
    let memory = match memory {
        Memory::Enough => "enough",
        Memory::Little => {
            options.extend(["--region-memory", "2MiB"]);
            "little"
        }
    };
    let arguments = format!("{ranks} {mechanism} {pages} 4 {copies}/$rank {memory}");
    let mut script = String::new();
    for (rank, line) in on_nodes(&program, "share", nodes, &arguments).lines().enumerate() {
        // Two lines are before the first rank.
        script.push_str(&line.replace("$rank", &rank.wrapping_sub(2).to_string()));
        script.push('\n');
    }
    script.push_str(&format!(
        "for copy in {copies}/*; do
            for node in 0 1; do tameike exec --node $node -- cmp \"$region\" $copy; done
        done
        test $(stat -c %s-%a \"$region\") = {}-600",
        pages * 4096
    ));
    succeed(&mut site.job(2, &options, &script));
}

/// S47b. S47c. S47d.
#[test]
fn processes_on_two_nodes_share_all_bytes_of_a_page() {
    for mechanism in MECHANISMS {
        share(&[0, 1], mechanism, 300, Memory::Enough);
    }
}

#[test]
fn regions_are_shared_over_all_transports() {
    for fabric in TRANSPORTS {
        share_over(fabric, &[0, 1, 0], "userfaultfd", 700, Memory::Little);
        share_over(fabric, &[0, 1], "one-writer", 300, Memory::Enough);
    }
}

#[test]
fn a_region_of_one_page_is_shared() {
    for mechanism in MECHANISMS {
        share(&[0, 1], mechanism, 1, Memory::Enough);
    }
}

/// S47a.
#[test]
fn processes_of_one_node_share_a_region() {
    for mechanism in MECHANISMS {
        share(&[0, 0], mechanism, 20, Memory::Enough);
        share(&[1, 0, 1, 0, 1], mechanism, 20, Memory::Enough);
    }
}

/// The content that processes on two nodes have written reaches the shared file system as a file of the cache view, with a receipt.
#[test]
fn a_region_is_drained_through_the_cache_view() {
    let kit = Kit::new();
    let program = kit.build("dsm");
    let site = Site::new();
    let (plain, receipt) = (site.plain().display(), site.plain().join("receipt.json"));
    let arguments = format!("2 userfaultfd 700 3 {plain}/seen enough");
    let script = on_nodes(&program, "share", &[0, 1], &arguments);
    let script = format!("{script}cp \"$region\" \"$TAMEIKE_CACHE/kept\"");
    succeed(&mut site.job(2, &["--verify", "--receipt", utf8(&receipt)], &script));
    let seen = fs::read(site.plain().join("seen")).expect("a copy of what a process saw");
    assert!(fs::read(site.shared().join("kept")).expect("a drained file") == seen);
    let receipt: serde_json::Value =
        serde_json::from_slice(&fs::read(receipt).expect("a receipt")).expect("a JSON document");
    let [file] = receipt["files"].as_array().expect("files").as_slice() else { panic!("{receipt}") };
    assert_eq!(file["checksum"], blake3::hash(&seen).to_string(), "{file}");
}

/// S47h.
#[test]
fn with_one_writer_per_page_all_processes_see_the_pages_of_the_others() {
    share(&[0, 1], "one-writer", 300, Memory::Enough);
    share(&[0, 1], "one-writer", 1, Memory::Enough);
    share(&[1, 0, 1, 0, 1], "one-writer", 600, Memory::Enough);
}

/// S49d.
#[test]
fn a_region_may_be_larger_than_the_memory_for_it() {
    share(&[0, 1], "userfaultfd", 1500, Memory::Little);
    share(&[0, 1, 0, 1], "userfaultfd", 1000, Memory::Little);
}

/// S48a.
#[test]
fn a_process_that_ends_makes_barriers_of_the_others_fail() {
    let kit = Kit::new();
    let program = kit.build("dsm");
    for how in ["exit", "detach"] {
        for nodes in [[0, 1], [1, 1]] {
            let site = Site::new();
            succeed(&mut site.job(2, &[], &on_nodes(&program, "left", &nodes, how)));
        }
    }
    for nodes in [[0, 1], [1, 1]] {
        let site = Site::new();
        let script = on_nodes(&program, "left", &nodes, "kill");
        // The exit code of the killed process is not that of the other.
        let script = script.replace("for pid in $pids", "set -- $pids; for pid in $1");
        succeed(&mut site.job(2, &[], &script));
    }
}

/// S49a.
#[test]
fn calls_on_regions_fail_with_the_documented_errors() {
    let kit = Kit::new();
    let site = Site::new();
    let program = kit.build("dsm");
    let script = format!(
        r#"for node in 0 1; do
            for other in "$TAMEIKE_CACHE/other" "$TAMEIKE_NODE_LOCAL/other" {0}/other; do
                tameike exec --node $node -- {1} errors "$TAMEIKE_SHARED/region" "$other"
                tameike exec --node $node --cwd "$TAMEIKE_SHARED" -- {1} errors ./region "$other"
            done
        done
        mkdir "$TAMEIKE_SHARED/dir"; ln -s dir "$TAMEIKE_SHARED/link"
        {1} errors "$TAMEIKE_SHARED/link/../link/region" /dev/null
        test "$(ls "$TAMEIKE_SHARED")" = "$(printf 'dir\nlink')""#,
        site.plain().display(),
        program.display()
    );
    succeed(&mut site.job(2, &[], &script));
}

#[test]
fn regions_need_a_ring() {
    let kit = Kit::new();
    let site = Site::new();
    let program = kit.build("dsm");
    let script = format!("{} unavailable \"$TAMEIKE_SHARED/region\"", program.display());
    succeed(&mut site.job(1, &["--no-ring"], &script));
}

#[test]
fn programs_in_fortran_use_regions() {
    let kit = Kit::new();
    let source = kit.source("regions").with_extension("f90");
    let program = kit.compile_fortran(&source, "regions");
    let script = format!("{} \"$TAMEIKE_SHARED/region\"", program.display());
    succeed(&mut Site::new().job(1, &[], &script));
}

/// S49b.
#[test]
fn a_child_attaches_itself() {
    let kit = Kit::new();
    let site = Site::new();
    let program = kit.build("dsm");
    let script = format!(
        r#"for mechanism in userfaultfd mprotect; do
            TAMEIKE_DSM=$mechanism {} fork "$TAMEIKE_SHARED/region"
        done"#,
        program.display()
    );
    succeed(&mut site.job(2, &[], &script));
}

#[test]
fn transfers_of_files_use_memory_of_a_region() {
    let kit = Kit::new();
    let site = Site::new();
    let program = kit.build("dsm");
    let script = format!(
        r#"for mechanism in userfaultfd mprotect; do
            TAMEIKE_DSM=$mechanism {} transfers "$TAMEIKE_SHARED/region" "$TAMEIKE_SHARED/file"
        done"#,
        program.display()
    );
    succeed(&mut site.job(2, &[], &script));
}

/// S49c.
#[test]
fn system_calls_use_absent_pages_if_preloaded_or_touched() {
    let kit = Kit::new();
    let program = kit.build("dsm");
    for (options, how) in [(&["--preload"][..], "preloaded"), (&[], "touched")] {
        let site = Site::new();
        let script = format!(
            r#"for mechanism in userfaultfd mprotect; do
                TAMEIKE_DSM=$mechanism {} calls "$TAMEIKE_SHARED/region" {how}
            done"#,
            program.display()
        );
        succeed(&mut site.job(2, options, &script));
    }
}

#[test]
fn a_handler_between_two_regions_gets_other_faults_once() {
    let kit = Kit::new();
    let program = kit.build("dsm");
    for mechanism in MECHANISMS {
        let script = format!("{} reported \"$TAMEIKE_SHARED/region\"", program.display());
        succeed(&mut Site::new().job(1, &[], &format!("export TAMEIKE_DSM={mechanism}\n{script}")));
    }
}

#[test]
fn the_first_store_to_a_page_is_found_in_all_processes_of_a_node() {
    let kit = Kit::new();
    let program = kit.build("dsm");
    for mechanism in MECHANISMS {
        let script = on_nodes(&program, "again", &[0, 0, 1], "20");
        let script = format!("export TAMEIKE_DSM={mechanism}\n{script}");
        succeed(&mut Site::new().job(2, &[], &script));
    }
}

#[test]
fn stores_to_pages_that_were_unchanged_for_long_are_found() {
    let kit = Kit::new();
    let program = kit.build("dsm");
    for mechanism in MECHANISMS {
        let script = on_nodes(&program, "quiet", &[0, 0, 1], "3 4");
        let script = format!("export TAMEIKE_DSM={mechanism}\n{script}");
        succeed(&mut Site::new().job(2, &[], &script));
    }
}

/// S47e. S47f.
#[test]
fn locks_and_additions_hold_on_all_nodes() {
    let kit = Kit::new();
    let program = kit.build("dsm");
    for mechanism in MECHANISMS {
        let script = on_nodes(&program, "locked", &[0, 1, 0, 1], "4 50");
        let script = format!("export TAMEIKE_DSM={mechanism}\n{script}");
        succeed(&mut Site::new().job(2, &[], &script));
    }
}

/// S47g.
#[test]
fn processes_of_all_nodes_allocate_and_free_blocks() {
    let kit = Kit::new();
    let program = kit.build("dsm");
    succeed(&mut Site::new().job(2, &[], &on_nodes(&program, "blocks", &[0, 1, 0, 1], "4")));
}

/// S48b.
#[test]
fn a_lock_of_a_killed_process_passes_on() {
    let kit = Kit::new();
    let program = kit.build("dsm");
    for nodes in [[0, 1], [1, 1]] {
        let script = on_nodes(&program, "owner", &nodes, "");
        let script = script.replace("for pid in $pids", "set -- $pids; for pid in $1");
        succeed(&mut Site::new().job(2, &[], &script));
    }
}

/// S48c. S48d.
#[test]
fn calls_and_accesses_fail_after_the_failure_of_an_agent() {
    let kit = Kit::new();
    let program = kit.build("dsm");
    let (site, job) = new_job("region-lost");
    let ready = site.plain().join("ready");
    let script = on_nodes(&program, "lost", &[0, 1], utf8(&ready));
    let script = script.replace("done\n", "done; echo both ended\n");
    let options = ["--job", &job.name, "--keep-going"];
    let both = site.plain().join("ready.1");
    let running = Background::start_until(&mut site.job(2, &options, &script), &both);
    wait_for("the other process", || site.plain().join("ready.0").exists().then_some(()));
    assert!(job.kill_agent(1));
    let output = running.output();
    assert!(out(&output).contains("both ended"), "{}", shown(&output));
    let recovered = site.tameike(&["recover", "--job", &job.name]).output().expect("it starts");
    assert_code(&recovered, code_of_recovery(&shown(&recovered)));
}

/// Kills a process, or the agent of a node, while two processes share a region. The other one sees only right bytes, and an error soon.
fn kill_at(moment: u64, kills_agent: bool) {
    let kit = Kit::new();
    let program = kit.build("dsm");
    let (site, job) = new_job("killed");
    let (dir, mechanism) = (utf8(site.plain()), ALL_MECHANISMS[moment as usize % 3]);
    let start = |rank| {
        let run = format!("{} survive $TAMEIKE_SHARED/region {rank} {mechanism} {dir}", program.display());
        format!("tameike exec --node {rank} -- sh -c '{run}; echo $? > {dir}/ended.{rank}' &\n")
    };
    let script = format!("{}{}wait", start(0), start(1));
    let ready = |rank| site.plain().join(format!("ready.{rank}"));
    let options = ["--job", &job.name, "--keep-going"];
    let running = Background::start_until(&mut site.job(2, &options, &script), &ready(0));
    let text =
        wait_for("a process", || fs::read_to_string(ready(1)).ok().filter(|text| text.ends_with('\n')));
    sleep_ms(moment);
    let killed =
        if kills_agent { job.kill_agent(1) } else { signal(text.trim().parse().expect("a number"), "KILL") };
    assert!(killed);
    let ended = |rank| {
        let path = site.plain().join(format!("ended.{rank}"));
        wait_for("the end of a process", || {
            fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n'))
        })
    };
    assert_eq!(ended(0).trim(), "0", "{mechanism}, {moment} ms");
    assert_eq!(ended(1).trim(), if kills_agent { "0" } else { "137" }, "{mechanism}, {moment} ms");
    let output = running.output();
    if kills_agent {
        let recovered = site.tameike(&["recover", "--job", &job.name]).output().expect("it starts");
        assert_code(&recovered, code_of_recovery(&shown(&recovered)));
    } else {
        assert_code(&output, 0);
    }
}

/// S48a. S48c. S48d.
#[test]
fn survivors_of_a_kill_at_any_moment_see_right_bytes_and_do_not_hang() {
    let mut random = Random::new(seed());
    for round in 0..if is_soak() { 50 } else { 6 } {
        kill_at(random.below(300), round % 2 == 1);
    }
}
