//! The mosaic of `examples/workflow`, a workflow of unchanged programs, with packed files: all files, intermediate ones too,
//! equal those of a plain directory.

use crate::support::{Site, assert_contains, binary, preload, processes_naming, succeed};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Few enough for a test; some of their files exceed `--aggregate-max`, most do not.
const TILES: u32 = 9;
/// Without `--aggregate-max`, sizes do not matter.
const FEW_TILES: u32 = 4;
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/workflow");

/// Creates the tiles in `input` of a directory, and from them the mosaic in `output`, with intermediate files in `work`.
fn script(dir: &str, tiles: u32) -> String {
    format!(
        "export PYTHONDONTWRITEBYTECODE=1; umask 022; {EXAMPLE}/prepare.py {dir} --tiles {tiles}
         TAMEIKE_CACHE={dir} TAMEIKE_SHARED={dir}/work {EXAMPLE}/mosaic.py"
    )
}

fn made_directly(site: &Site, tiles: u32) {
    let script = script(&site.plain().display().to_string(), tiles);
    let text = succeed(Command::new("sh").args(["-euc", &script]).env_remove("TAMEIKE_JOB"));
    assert_contains(&text, &["nothing failed or missing"]);
}

/// The files are equal, and pixels are not blank.
fn assert_as_direct(site: &Site, made: &Path) {
    succeed(Command::new("diff").arg("-r").arg(site.plain()).arg(made));
    let compare = format!("{EXAMPLE}/compare.py");
    let mut compare = Command::new(compare);
    compare
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .args(["plain/output".as_ref(), made.join("output").as_path()]);
    let text = succeed(compare.current_dir(site.plain().parent().expect("it has one")));
    assert_contains(&text, &["the mosaics are the same"]);
}

/// Extracts the container's files into a directory.
fn extracted(container: &Path, into: &Path) {
    succeed(Command::new(binary()).args(["agg", "verify"]).arg(container));
    succeed(Command::new(binary()).args(["agg", "extract", "--same-permissions"]).arg(container).arg(into));
}

/// S39a.
#[test]
fn a_mosaic_without_agents_is_the_same() {
    preload::install();
    let site = Site::new();
    made_directly(&site, FEW_TILES);
    let container = site.shared().join("container");
    let run = |words: &[&str]| {
        let mut command = Command::new(binary());
        command.arg("run").arg("--aggregate-only").arg(&container).arg("--spool").arg(site.base());
        succeed(command.arg("--").args(words))
    };
    let text = run(&["sh", "-euc", &script(&container.display().to_string(), FEW_TILES)]);
    assert_contains(&text, &["nothing failed or missing"]);
    assert!(fs::read_dir(site.base()).expect("a directory").next().is_none(), "the spool is left");
    let made = site.disk().join("made");
    extracted(&container, &made);
    assert_as_direct(&site, &made);
    // A later run creates it again from packed tiles, over the existing files.
    let again = format!("TAMEIKE_CACHE={0} TAMEIKE_SHARED={0}/work {EXAMPLE}/mosaic.py", container.display());
    run(&["env", "PYTHONDONTWRITEBYTECODE=1", "sh", "-euc", &again]);
    fs::remove_dir_all(&made).expect("ours");
    extracted(&container, &made);
    assert_as_direct(&site, &made);
    assert!(processes_naming(&site.base().to_string_lossy()).is_empty());
}

/// S33a, S33b.
#[test]
fn a_mosaic_by_two_nodes_that_pack_is_the_same() {
    let site = Site::new();
    made_directly(&site, TILES);
    let options = ["--aggregate", "--verify"];
    let text = succeed(&mut site.job(2, &options, &script("$TAMEIKE_CACHE", TILES)));
    assert_contains(&text, &["on 2 nodes", "nothing failed or missing"]);
    site.assert_clean();
    let container = site.shared().join(".tameike-packed");
    let taken_out = |into: &Path| {
        extracted(&container, into);
        let large = r#"cp -a "$1"/* "$2""#;
        succeed(Command::new("sh").args(["-euc", large, "copy"]).arg(site.shared()).arg(into));
    };
    let made = site.disk().join("made");
    taken_out(&made);
    assert_as_direct(&site, &made);
    assert!(
        fs::read_dir(site.shared().join("work/mosaic/differences")).expect("a directory").next().is_none(),
        "small files are not packed"
    );
    // A later job compares the files, and creates them again over the existing ones.
    let later = format!(
        r#"export PYTHONDONTWRITEBYTECODE=1; diff -r {plain} $TAMEIKE_CACHE
           TAMEIKE_SHARED=$TAMEIKE_CACHE/work {EXAMPLE}/mosaic.py; tameike exec --node 1 -- diff -r {plain} $TAMEIKE_CACHE"#,
        plain = site.plain().display(),
    );
    succeed(&mut site.job(2, &options, &later));
    site.assert_clean();
    fs::remove_dir_all(&made).expect("ours");
    taken_out(&made);
    assert_as_direct(&site, &made);
}
