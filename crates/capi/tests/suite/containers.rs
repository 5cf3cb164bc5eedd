//! C programs that write containers.

use crate::kit::Kit;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tameike_container::Container;
use tameike_io::os::process::{ask_until, random_bytes};
use tameike_io::shared::PosixTree;

/// Number of writers that are killed, in total and per container.
const KILLS: u32 = 200;
const KILLS_OF_CONTAINER: u32 = 25;

fn run(kit: &Kit, dir: &Path, what: &str) {
    let mut program = Command::new(kit.build("containers"));
    assert_eq!(crate::directory::run(program.arg(dir).arg(what)), "exit status: 0");
}

fn open(dir: &Path) -> Container {
    Container::open(Arc::new(PosixTree::open(dir).expect("a tree"))).expect("it opens")
}

#[test]
fn all_calls_on_containers_work_as_documented() {
    let kit = Kit::new();
    run(&kit, &kit.place().join("container"), "calls");
}

#[test]
fn a_child_opens_a_container_for_itself() {
    let kit = Kit::new();
    for what in ["child", "lone-child"] {
        let dir = kit.place().join(what);
        run(&kit, &dir, what);
        assert!(open(&dir).is_indexed());
    }
}

#[test]
fn a_failed_write_leaves_no_damage() {
    let kit = Kit::new();
    let dir = kit.place().join("full");
    run(&kit, &dir, "full");
    let container =
        Container::open_by_records(Arc::new(PosixTree::open(&dir).expect("a tree"))).expect("it opens");
    assert_eq!(container.damage(), &[]);
}

/// Returns the content of a file of `containers DIR storm`.
fn content(number: u32) -> Vec<u8> {
    (0..number.wrapping_mul(7919) % 60_000).map(|at| ((number * 31 + at) % 251) as u8).collect()
}

fn read(container: &Container, path: &str) -> Vec<u8> {
    let mut file = container.file(path.as_bytes()).expect(path);
    let mut bytes = vec![0; 60_001];
    let count = file.read_at(&mut bytes, 0).expect(path);
    bytes.truncate(count);
    bytes
}

#[test]
fn synced_files_survive_killed_writers() {
    let kit = Kit::new();
    let program = kit.build("containers");
    for round in 0..KILLS / KILLS_OF_CONTAINER {
        let dir = kit.place().join(format!("container{round}"));
        let mut synced = BTreeMap::new();
        for kill in 0..KILLS_OF_CONTAINER {
            // Two concurrent writers, killed one after the other.
            let names = [format!("{kill}a"), format!("{kill}b")];
            let mut writers = names.clone().map(|name| {
                let mut writer = Command::new(&program);
                writer.arg(&dir).args(["storm", &name]).stdout(Stdio::piped()).stderr(Stdio::null());
                writer.spawn().expect("it starts")
            });
            for (writer, name) in writers.iter_mut().zip(&names) {
                let moment = u32::from_le_bytes(random_bytes().expect("random")) % 40_000;
                let moment = Duration::from_micros(2_000 + u64::from(moment));
                assert!(ask_until(moment, moment, || None::<()>).is_none());
                writer.kill().expect("it runs");
                writer.wait().expect("it ends");
                let mut output = String::new();
                writer.stdout.take().expect("a pipe").read_to_string(&mut output).expect("text");
                assert!(!output.contains("not so"), "{output}");
                // The last line may be truncated.
                let last = output.rsplit_once('\n').and_then(|(lines, _)| lines.lines().last()?.parse().ok());
                synced.insert(name.clone(), last.map_or(0, |last: u32| last + 1));
            }
        }
        let container = open(&dir);
        let mut found = BTreeMap::<String, u32>::new();
        for entry in container.walk().expect("a walk") {
            let path = String::from_utf8(entry.expect("an entry").path).expect("a name");
            let Some((name, number)) = path.split_once('/') else { continue };
            // Visible files have the right content, synced or not.
            assert!(read(&container, &path) == content(number.parse().expect("a number")), "{path}");
            *found.entry(name.to_owned()).or_default() += 1;
        }
        for (name, count) in &synced {
            assert!(found.get(name).copied().unwrap_or(0) >= *count, "{name}: {found:?} of {synced:?}");
            (0..*count).for_each(|number| drop(read(&container, &format!("{name}/{number}"))));
        }
        assert!(synced.values().sum::<u32>() > 0, "no writer has written anything");
    }
}

/// Runs `ranks` MPI ranks, each of which writes `files` files of `size` bytes to a container and reads those of the next rank.
fn run_ranks(kit: &Kit, dir: &Path, ranks: usize, (files, size): (usize, usize)) {
    let program = kit.compile_with("mpicc", &kit.source("ranks"), "ranks");
    let mut launcher = Command::new("mpirun");
    launcher.args(["--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,vader", "-np"]);
    launcher.arg(ranks.to_string()).arg(&program).arg(dir).args([files.to_string(), size.to_string()]);
    let output = launcher.output().expect("mpirun");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let container = open(dir);
    assert!(container.is_indexed());
    assert_eq!(container.walk().expect("a walk").count(), ranks + ranks * files);
}

#[test]
fn ranks_of_an_mpi_program_share_a_container() {
    let kit = Kit::new();
    for (round, written) in [(16, 3_000), (4, 1_000_000)].into_iter().enumerate() {
        run_ranks(&kit, &kit.place().join(format!("container{round}")), 6, written);
    }
}

#[test]
fn a_single_rank_writes_to_several_subfiles() {
    let kit = Kit::new();
    let dir = kit.place().join("container");
    run_ranks(&kit, &dir, 1, (40, 1_000_000));
    let names = std::fs::read_dir(&dir).expect("a container").map(|name| name.expect("a name").path());
    let subfiles = names.filter(|path| path.extension().is_some_and(|extension| extension == "data")).count();
    assert!((2..=5).contains(&subfiles), "{subfiles}");
}
