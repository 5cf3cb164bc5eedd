//! Unchanged programs on the cache view of jobs that pack small files: the results equal those of a plain directory.

use crate::support::programs;
use crate::support::{Site, binary, files_below, is_soak, succeed};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKED: &str = ".tameike-packed";

/// Runs a bash script in `work` of the cache view, on a node of a job of two that packs, or only reads packed files.
fn in_job(site: &Site, options: &[&str], node: u32, script: &str) -> String {
    let file = site.disk().join("script");
    fs::write(&file, script).expect("a script");
    let go = format!(
        r#"mkdir -p "$TAMEIKE_CACHE/work"; cd "$TAMEIKE_CACHE/work"; tameike exec --node {node} -- bash -eu {}"#,
        file.display()
    );
    let text = succeed(&mut site.job(2, options, &go));
    site.assert_clean();
    text
}

/// The same in `work` of a plain directory.
fn plainly(site: &Site, script: &str) -> String {
    let work = site.plain().join("work");
    fs::create_dir_all(&work).expect("a directory");
    succeed(Command::new("bash").args(["-euc", script]).current_dir(work))
}

/// The files of the jobs without a job: extracted from the container, and those beside it.
fn taken_out(site: &Site) -> PathBuf {
    let into = site.disk().join("taken-out");
    if into.exists() {
        fs::remove_dir_all(&into).expect("ours");
    }
    let container = site.shared().join(PACKED);
    succeed(Command::new(binary()).args(["agg", "verify"]).arg(&container));
    succeed(Command::new(binary()).args(["agg", "extract", "--same-permissions"]).arg(&container).arg(&into));
    let (packed, plain) = (regular_files(&into), regular_files(&site.shared().join("work")));
    // The glob does not match the container.
    succeed(Command::new("sh").args(["-euc", r#"cp -a "$1"/* "$2""#, "copy"]).arg(site.shared()).arg(&into));
    assert_eq!(regular_files(&into), packed + plain, "some are packed and beside the container, too");
    into.join("work")
}

/// Number of regular files below a directory.
fn regular_files(dir: &Path) -> usize {
    files_below(dir).iter().filter(|path| path.is_file() && !path.is_symlink()).count()
}

/// Numbers of packed and plain files of the shared directory.
fn counts(site: &Site) -> (usize, usize) {
    let mut list = Command::new(binary());
    list.args(["agg", "ls", "--long", "--recursive"]).arg(site.shared().join(PACKED));
    let packed = succeed(&mut list).lines().filter(|line| line.starts_with('-')).count();
    (packed, regular_files(&site.shared().join("work")))
}

#[track_caller]
fn assert_same(what: &str, found: &str, expected: &str) {
    let differ = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    let counts = (found.lines().count(), expected.lines().count());
    assert!(found == expected, "{what}: {differ:?}; {counts:?} lines");
}

/// S33a, S33b.
///
/// Runs a script in a plain directory and in a job that packs, and then `again` on the other node of a job that does not pack.
/// After each, the extracted files equal those of the plain directory.
fn compare(script: &str, again: &str) {
    let site = Site::new();
    let listing = programs::LISTING.replace(" %n ", " ");
    let there = |dir: &Path| succeed(Command::new("bash").args(["-euc", &listing]).current_dir(dir));
    for (options, node, script) in [(&["--aggregate", "--verify"][..], 0, script), (&["--verify"], 1, again)]
    {
        let script = format!("{script}\n{listing}");
        let expected = plainly(&site, &script);
        assert_same("what it says", &in_job(&site, options, node, &script), &expected);
        assert_same("what is packed", &there(&taken_out(&site)), &there(&site.plain().join("work")));
    }
    let (packed, plain) = counts(&site);
    assert!(packed > 0, "{packed} files are packed and {plain} are not");
}

#[test]
fn coreutils_and_the_shell() {
    // A packed file has one name.
    let script = programs::COREUTILS.replace("ln sorted hard", "cp sorted hard");
    assert_ne!(script, programs::COREUTILS);
    compare(
        &script,
        "cat part-* | cmp - numbers; cmp sorted hard; rm part-aa; mv part-ab part-aa; seq 3 >> a/b/new",
    );
}

#[test]
fn archives_and_compression() {
    compare(
        programs::ARCHIVES,
        "gzip -dc all.tar.gz | tar --extract --file - --to-stdout | md5sum; gzip -n src/file-1; rm src/file-2",
    );
}

#[test]
fn python_with_mappings_and_forks() {
    compare(programs::PYTHON, "md5sum data log; echo 50 >> log");
}

#[test]
fn many_processes_of_python() {
    compare(programs::PROCESSES, "rm -r moved/1; mv moved out; python3 many.py");
}

#[test]
fn git_repositories() {
    compare(programs::REPOSITORIES, programs::REPOSITORIES_AGAIN);
}

#[test]
fn sqlite_databases() {
    compare(programs::DATA_BASES, programs::DATA_BASES_AGAIN);
}

/// Ranks on two nodes, each of which reads data of the other node.
#[test]
fn programs_of_mpi_in_c_and_fortran() {
    let site = Site::new();
    let (mut direct, mut packed) = (String::from("umask 022\n"), String::from("umask 022\n"));
    for program in programs::of_mpi(site.disk()) {
        let program = program.display();
        direct += &format!("mpirun --allow-run-as-root --oversubscribe -np 6 {program} \"$PWD\"\n");
        packed += &format!(
            "mpirun --allow-run-as-root --mca plm rsh --mca plm_rsh_agent {agent} --leave-session-attached \
             --mca btl tcp,self --mca btl_tcp_if_include lo --mca oob_tcp_if_include lo --map-by node \
             --host node-0:3,node-1:3 -np 6 {program} \"$PWD\"\n",
            agent = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/mpi/on-node"),
        );
    }
    plainly(&site, &direct);
    in_job(&site, &["--aggregate", "--verify"], 0, &packed);
    assert_eq!(counts(&site), (6 * 20 + 6 * 10, 0));
    succeed(Command::new("diff").arg("-r").arg(site.plain().join("work")).arg(taken_out(&site)));
    // The same programs in a later job, over the existing files.
    plainly(&site, &direct);
    in_job(&site, &["--aggregate", "--verify"], 0, &packed);
    succeed(Command::new("diff").arg("-r").arg(site.plain().join("work")).arg(taken_out(&site)));
}

/// Twenty thousand in the long tests.
#[test]
fn an_archive_of_many_files() {
    let site = Site::new();
    let hundreds: u32 = if is_soak() { 200 } else { 12 };
    let files = hundreds as usize * 100;
    plainly(&site, &programs::make_archive(hundreds));
    let archive = site.plain().join("all.tar");
    let archive = archive.display();
    let unpack = format!("tar -xf {archive}; find . -type f | wc -l");
    assert_eq!(in_job(&site, &["--aggregate", "--verify"], 0, &unpack), format!("{files}\n"));
    assert_eq!(counts(&site), (files, 0));
    succeed(Command::new("diff").arg("-r").arg(site.plain().join("work")).arg(taken_out(&site)));
    in_job(&site, &[], 1, &format!("tar --compare --file {archive}"));
}
