//! A second place for the shared directory: it becomes equal, whatever happens to the connection.

use crate::support::jobs::{Background, Random, new_job, seed, signal, sleep_ms, wait_for};
use crate::support::{Run, Site, assert_code, assert_contains, err, json, out, shown, succeed, utf8};
use serde_json::Value;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A directory for the mirror of a site.
fn mirror_of(site: &Site) -> PathBuf {
    site.plain().join("mirror")
}

/// The state of each file below a directory: what a mirror must have. A regular file has its content, a directory its names.
fn tree(root: &Path) -> Vec<String> {
    let (mut lines, mut dirs) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = dirs.pop() {
        lines.push(line(root, &dir));
        for entry in fs::read_dir(&dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.symlink_metadata().expect("a file").is_dir() {
                dirs.push(path);
            } else {
                lines.push(line(root, &path));
            }
        }
    }
    lines.sort();
    lines
}

fn line(root: &Path, path: &Path) -> String {
    let stat = path.symlink_metadata().expect("a file");
    let content = match stat.file_type() {
        kind if kind.is_file() => blake3::hash(&fs::read(path).expect("readable")).to_hex().to_string(),
        kind if kind.is_symlink() => format!("{:?}", fs::read_link(path).expect("a link")),
        _ => String::new(),
    };
    let size = if stat.is_file() { stat.len() } else { 0 };
    let name = path.strip_prefix(root).expect("below").to_string_lossy();
    let (mode, owner, time) = (stat.mode(), (stat.uid(), stat.gid()), (stat.mtime(), stat.mtime_nsec()));
    format!("{name:?} {mode:o} {owner:?} {size} {time:?} {:?} {content}", xattrs(path))
}

fn xattrs(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut list = vec![0; 4096];
    let size = rustix::fs::llistxattr(path, &mut list).unwrap_or(0);
    let names = list[..size].split(|&byte| byte == 0).filter(|name| name.starts_with(b"user."));
    let mut found: Vec<_> = names
        .filter(|name| *name != b"user.tameike.mirror")
        .map(|name| {
            let mut value = vec![0; 4096];
            let size =
                rustix::fs::lgetxattr(path, std::ffi::OsStr::from_bytes(name), &mut value).expect("a value");
            (String::from_utf8_lossy(name).into_owned(), value[..size].to_vec())
        })
        .collect();
    found.sort();
    found
}

#[track_caller]
fn assert_equal(source: &Path, mirror: &Path) {
    let (here, there) = (tree(source), tree(mirror));
    let only = |a: &[String], b: &[String]| {
        a.iter().filter(|line| !b.contains(line)).take(10).cloned().collect::<Vec<_>>().join("\n")
    };
    assert_eq!(
        here.len(),
        there.len(),
        "source only:\n{}\nmirror only:\n{}",
        only(&here, &there),
        only(&there, &here)
    );
    assert!(here == there, "source:\n{}\nmirror:\n{}", only(&here, &there), only(&there, &here));
}

/// Processes `tameike receive` of a directory.
fn receivers(mirror: &Path) -> Vec<u32> {
    let wanted = [b"tameike\0receive\0", mirror.as_os_str().as_bytes(), b"\0"].concat();
    let processes = fs::read_dir("/proc").expect("proc").flatten();
    processes
        .filter(|entry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            line.ends_with(&wanted)
        })
        .filter_map(|entry| entry.file_name().to_string_lossy().parse().ok())
        .collect()
}

/// `tameike mirror DIR MIRROR`
fn mirror_command(site: &Site, mirror: &Path, options: &[&str]) -> Command {
    site.tameike(&[&["mirror", utf8(site.shared()), utf8(mirror)], options].concat())
}

/// S57a. S57d.
#[test]
fn a_mirror_is_identical_after_a_job() {
    let (site, job) = new_job("mirrored");
    let mirror = mirror_of(&site);
    fs::create_dir_all(site.shared().join("before/empty")).expect("made");
    fs::write(site.shared().join("before/file"), "earlier").expect("written");
    symlink("nowhere", site.shared().join("before/link")).expect("made");
    let receipt = site.plain().join("receipt");
    let options = ["--job", &job.name, "--mirror", utf8(&mirror), "--mirror-receipt", utf8(&receipt)];
    let script = r#"cd "$TAMEIKE_CACHE"; umask 022
        mkdir -p a/b/c sealed; echo small > a/small; ln a/small a/other-name; ln -s ../small a/b/link; mkfifo a/pipe
        head -c 5000000 /dev/urandom > a/b/large; truncate -s 3M a/sparse; echo end >> a/sparse
        chmod 640 a/small; touch -d '2001-02-03 04:05:06.789' a/b/large; chmod 6750 a/b
        setfattr -n user.colour -v blue a/b/large 2>/dev/null || true
        sleep 1.2
        printf x | dd of=a/b/large bs=1 seek=4000000 conv=notrunc 2>/dev/null
        sleep 1; mv a/b moved; rm before/file; mv a/small small; rmdir before/empty; echo more >> small
        echo sealed > sealed/file; chmod 555 sealed; chmod 400 sealed/file; echo 'odd name' > "$(printf 'a/\377 \n')"
        "#;
    let output = site.job(2, &options, script).exits(0);
    assert_equal(site.shared(), &mirror);
    let text = err(&output);
    let line = format!("mirror {}: ", mirror.display());
    assert_contains(&text, &[&line, "files identical"]);
    let receipt = json(&receipt);
    assert_eq!(receipt["complete"], Value::Bool(true));
    let files = receipt["files"].as_array().expect("files");
    let large = files.iter().find(|file| file["path"] == "moved/large").expect("a file");
    let content = fs::read(mirror.join("moved/large")).expect("mirrored");
    assert_eq!(large["checksum"].as_str(), Some(blake3::hash(&content).to_hex().as_str()));
    assert_eq!((large["size"].as_u64(), large["outcome"].as_str()), (Some(5_000_000), Some("verified")));
    assert_eq!(receivers(&mirror), [0; 0]);
}

/// Changes files without an end: names, contents, attributes, of all kinds.
const CHANGER: &str = r#"
import os, random, shutil, sys, time
root, seed, stop = sys.argv[1], int(sys.argv[2]), sys.argv[3]
random.seed(seed)
os.makedirs(root, exist_ok=True)
os.chdir(root)
count = 0

def some_dir():
    dirs = [base for base, _, _ in os.walk(".")]
    return random.choice(dirs)

def some_file():
    files = [os.path.join(base, name) for base, _, names in os.walk(".") for name in names if "counter" not in name]
    return random.choice(files) if files else None

def new_name():
    global count
    count += 1
    return os.path.join(some_dir(), f"n{seed}-{count}")

def act():
    what = random.randrange(14)
    file = some_file()
    if what <= 2 or file is None:
        with open(new_name(), "wb") as made: made.write(random.randbytes(random.choice([0, 10, 5000, 300000, 2500000])))
    elif what == 3:
        made = new_name()
        os.makedirs(f"{made}/sub")
        os.symlink("target", f"{made}/sub/link")
    elif what == 4: os.symlink(random.choice(["x", "../y", "/etc"]), new_name())
    elif what == 5: os.rename(file, new_name())
    elif what == 6:
        dirs = [path for path in {some_dir() for _ in range(8)} if path != "."]
        if dirs: os.rename(dirs[0], f"{os.path.dirname(dirs[0])}/moved-{seed}-{random.randrange(10**6)}")
    elif what == 7: os.unlink(file)
    elif what == 8 and random.randrange(4) == 0:
        dirs = [path for path in {some_dir() for _ in range(4)} if path != "."]
        if dirs: shutil.rmtree(dirs[0], ignore_errors=True)
    elif what == 9: os.chmod(file, random.choice([0o600, 0o644, 0o755])) if not os.path.islink(file) else None
    elif what == 10: os.utime(file, (1, random.randrange(10**9)), follow_symlinks=False)
    elif what == 11 and not os.path.islink(file): os.truncate(file, random.randrange(100000))
    elif what == 12 and not os.path.islink(file):
        try: os.setxattr(file, "user.k", random.randbytes(4))
        except OSError: pass
    elif what == 13 and not os.path.islink(file): os.link(file, new_name())
    elif not os.path.islink(file):
        with open(file, "r+b") as changed:
            changed.seek(random.randrange(max(1, os.path.getsize(file))))
            changed.write(random.randbytes(random.choice([1, 4000, 200000])))
            if random.randrange(3) == 0: os.fsync(changed.fileno())

counter = os.open(f"counter-{seed}", os.O_RDWR | os.O_CREAT, 0o600)
turns = 0
while not os.path.exists(stop):
    turns += 1
    os.pwrite(counter, b"%012d" % turns, 0)
    if turns % 8 == 0: os.fsync(counter)
    try: act()
    except OSError: pass
    time.sleep(random.random() * 0.02)
"#;

/// A job of two nodes that changes the shared directory until the file `stop` exists, each node a directory of its own.
fn changing(site: &Site, job: &str, mirror: &Path, seed: u64, options: &[&str]) -> Command {
    let program = site.python(CHANGER);
    let stop = site.plain().join("stop");
    let script = format!(
        r#"{program} "$TAMEIKE_CACHE/0" {seed} {stop} & other=$!
           tameike exec --node 1 -- sh -c '{program} "$TAMEIKE_CACHE/1" {other_seed} {stop}'; wait $other"#,
        stop = stop.display(),
        other_seed = seed.wrapping_add(1) % (1 << 40),
    );
    let all = [&["--job", job, "--mirror", utf8(mirror)], options].concat();
    site.job(2, &all, &script)
}

/// Waits until the mirror has a file.
fn await_files(mirror: &Path) {
    wait_for("files at the mirror", || fs::read_dir(mirror).ok()?.next().map(drop));
}

/// S57b.
#[test]
fn a_mirror_is_identical_after_cuts_of_the_connection() {
    let seed = seed();
    let mut random = Random::new(seed);
    let (site, job) = new_job("cut");
    let mirror = mirror_of(&site);
    let running = Background::start(&mut changing(&site, &job.name, &mirror, seed % (1 << 40), &[]));
    await_files(&mirror);
    let mut cuts = 0;
    while cuts < 10 {
        sleep_ms(100 + random.below(900));
        for receiver in receivers(&mirror) {
            cuts += u32::from(signal(receiver, "KILL"));
        }
    }
    fs::write(site.plain().join("stop"), "").expect("written");
    let output = running.output();
    assert_code(&output, 0);
    println!("{}", err(&output));
    assert_equal(site.shared(), &mirror);
    assert_contains(&err(&output), &["not reachable", "reached again", "files identical"]);
}

/// A stub for ssh that runs the command here, unless the file `down` exists.
fn stub_ssh(site: &Site) -> (PathBuf, PathBuf) {
    let (ssh, down) = (site.plain().join("ssh"), site.plain().join("down"));
    let script = format!(
        "#!/bin/sh\n[ -e {} ] && {{ echo 'no route to host' >&2; exit 255; }}\necho 'a banner of the site'\ncd / && exec env -i \
         PATH=\"$PATH\" sh -c \"$2\"\n",
        down.display()
    );
    fs::write(&ssh, script).expect("written");
    fs::set_permissions(&ssh, PermissionsExt::from_mode(0o755)).expect("ours");
    (ssh, down)
}

/// S57c. S57f.
#[test]
fn a_mirror_that_is_unreachable_at_the_end_is_completed_later() {
    let (site, job) = new_job("away");
    let mirror = mirror_of(&site);
    let (ssh, down) = stub_ssh(&site);
    let target = format!("site:{}", mirror.display());
    let receipt = site.plain().join("receipt");
    let options =
        ["--job", &job.name, "--mirror", &target, "--grace", "1", "--mirror-receipt", utf8(&receipt)];
    let script = format!(
        r#"cd "$TAMEIKE_CACHE"; echo first > first; mkdir old; echo x > old/file
           until [ -e {down}.done ]; do sleep 0.05; done
           echo second > second; rm -r old; sleep 0.7; tameike status"#,
        down = down.display(),
    );
    let running = Background::start(site.job(1, &options, &script).env("TAMEIKE_SSH", &ssh));
    wait_for("the first files", || {
        (mirror.join("first").exists() && mirror.join("old/file").exists()).then_some(())
    });
    fs::write(&down, "").expect("written");
    receivers(&mirror).into_iter().for_each(|receiver| assert!(signal(receiver, "KILL")));
    fs::write(site.plain().join("down.done"), "").expect("written");
    let output = running.output();
    assert_code(&output, 75);
    let advice = format!("run: tameike mirror {} {target}", site.shared().display());
    assert_contains(&err(&output), &["not reachable", "no route to host", "is incomplete", &advice]);
    assert_contains(&out(&output), &[&format!("mirror {target}: not connected, lag ")]);
    assert!(mirror.join("first").exists() && mirror.join("old").exists() && !mirror.join("second").exists());
    assert_eq!(json(&receipt)["complete"], Value::Bool(false));
    let complete = |code: i32| {
        let mut command = site.tameike(&["mirror", utf8(site.shared()), &target]);
        command.env("TAMEIKE_SSH", &ssh).exits(code)
    };
    assert_contains(&err(&complete(75)), &["no route to host"]);
    fs::remove_file(&down).expect("removed");
    assert_contains(&err(&complete(0)), &["2 files equal by size and time"]);
    assert_equal(site.shared(), &mirror);
    assert_contains(&err(&complete(0)), &[", 0 differing names sent or removed"]);
}

/// S57f.
#[test]
fn a_comparison_finds_what_differs() {
    let site = Site::new();
    let mirror = mirror_of(&site);
    let shared = site.shared();
    fs::create_dir_all(shared.join("a/b")).expect("made");
    let content = vec![7_u8; 3_500_000];
    fs::write(shared.join("a/large"), &content).expect("written");
    fs::write(shared.join("a/small"), "small").expect("written");
    fs::write(shared.join("a/b/secret"), "one").expect("written");
    symlink("x", shared.join("a/link")).expect("made");
    succeed(&mut mirror_command(&site, &mirror, &[]));
    assert_equal(shared, &mirror);
    // The mirror has other names, kinds and contents.
    let time = fs::metadata(mirror.join("a/b/secret")).expect("a file").modified().expect("a time");
    fs::write(mirror.join("a/b/secret"), "two").expect("written");
    fs::File::options()
        .write(true)
        .open(mirror.join("a/b/secret"))
        .expect("open")
        .set_modified(time)
        .expect("set");
    fs::remove_file(mirror.join("a/small")).expect("removed");
    fs::create_dir_all(mirror.join("a/small/full")).expect("made");
    fs::remove_file(mirror.join("a/link")).expect("removed");
    fs::create_dir_all(mirror.join("surplus/dir")).expect("made");
    fs::write(mirror.join("surplus/dir/file"), "x").expect("written");
    let mut changed = content;
    changed[2_000_000] = 8;
    fs::write(shared.join("a/large"), &changed).expect("written");
    succeed(&mut mirror_command(&site, &mirror, &[]));
    assert_eq!(fs::read(mirror.join("a/b/secret")).expect("a file"), b"two");
    succeed(&mut mirror_command(&site, &mirror, &["--verify"]));
    assert_equal(shared, &mirror);
    let refused = mirror_command(&site, &shared.join("a"), &[]).exits(71);
    assert_contains(&err(&refused), &["must be apart"]);
}

/// S57g.
#[test]
fn names_of_others_at_the_mirror_stay() {
    let (site, job) = new_job("others");
    let mirror = mirror_of(&site);
    fs::create_dir_all(mirror.join("theirs")).expect("made");
    let options = ["--job", &job.name, "--mirror", utf8(&mirror)];
    let output = site.job(1, &options, r#"echo x > "$TAMEIKE_CACHE/file""#).exits(0);
    assert!(mirror.join("file").exists() && mirror.join("theirs").exists());
    assert_contains(&err(&output), &["1 file identical", "1 names that", "are left"]);
    succeed(&mut mirror_command(&site, &mirror, &[]));
    assert!(!mirror.join("theirs").exists());
    assert_equal(site.shared(), &mirror);
}

/// Samples of the lag.
const SAMPLES: usize = 60;

/// S57h. S57j.
#[test]
fn status_shows_the_lag_of_a_mirror() {
    let (site, job) = new_job("lag");
    let mirror = mirror_of(&site);
    let seed = seed() % (1 << 40);
    let running = Background::start(&mut changing(&site, &job.name, &mirror, seed, &[]));
    await_files(&mirror);
    sleep_ms(1000);
    let counter = format!("0/counter-{seed}");
    let count = |dir: &Path| fs::read_to_string(dir.join(&counter)).ok()?.parse::<u64>().ok();
    let mut lags = Vec::new();
    while lags.len() < SAMPLES {
        if lags.len() % 10 == 5 {
            // Files may be written while they are drained.
            site.tameike(&["drain", "--job", &job.name]).output().expect("it runs");
        }
        // A later count is not smaller.
        let there = count(&mirror);
        assert!(count(site.shared()) >= there);
        lags.push(wait_for("a connected mirror", || {
            let text = succeed(&mut site.tameike(&["status", "--job", &job.name, "--json"]));
            let status: Value = serde_json::from_str(&text).expect("JSON");
            let mirror = &status[0]["running"]["mirror"];
            (mirror["is_connected"] == true).then(|| mirror["lag_ms"].as_u64().expect("a number"))
        }));
        sleep_ms(100);
    }
    lags.sort_unstable();
    println!("lag in ms: median {}, largest {}", lags[lags.len() / 2], lags[lags.len() - 1]);
    assert!(count(&mirror) > Some(10), "{:?}", count(&mirror));
    // A host that stands still for a while makes some samples large.
    assert!(lags[lags.len() / 2] <= 5000, "{lags:?}");
    let text = succeed(&mut site.tameike(&["status", "--job", &job.name]));
    assert_contains(&text, &[&format!("mirror {}: ", mirror.display())]);
    fs::write(site.plain().join("stop"), "").expect("written");
    assert_code(&running.output(), 0);
    assert_equal(site.shared(), &mirror);
}

/// Files that the packer promotes when the job ends are mirrored too.
#[test]
fn packed_files_are_mirrored() {
    let (site, job) = new_job("packed-mirror");
    let mirror = mirror_of(&site);
    let options =
        ["--job", &job.name, "--mirror", utf8(&mirror), "--aggregate=on", "--aggregate-max", "1MiB"];
    let script = r#"cd "$TAMEIKE_CACHE"; mkdir d; for i in $(seq 200); do echo $i > d/$i; done
        head -c 3000000 /dev/urandom > d/large; sleep 1; rm d/7; echo changed > d/8; mv d/9 d/renamed"#;
    site.job(2, &options, script).exits(0);
    assert!(mirror.join(".tameike-packed").is_dir() && mirror.join("d/large").is_file());
    assert_equal(site.shared(), &mirror);
}

/// S57i.
#[test]
fn a_recovered_job_completes_its_mirror() {
    let (site, job) = new_job("recovered-mirror");
    let mirror = mirror_of(&site);
    let ready = site.plain().join("ready");
    let options = ["--job", &job.name, "--mirror", utf8(&mirror), "--device", utf8(site.disk())];
    let script = format!(
        r#"cd "$TAMEIKE_CACHE"; echo first > first; mkdir -p d/e; head -c 4000000 /dev/urandom > d/e/large; sync d/e/large
           sleep 0.7; echo last > d/last; mv d/e f; touch {}; sleep 1000"#,
        ready.display()
    );
    let running = Background::start_until(&mut site.job(1, &options, &script), &ready);
    job.kill(&site, running, 0..1);
    let output = site.tameike(&["recover", "--job", &job.name]).output().expect("it runs");
    assert_code(&output, 0);
    assert_contains(&err(&output), &["identical"]);
    assert_equal(site.shared(), &mirror);
}

/// The changes of an agent that fails are found by a comparison.
#[test]
fn a_failed_agent_loses_no_change() {
    let (site, job) = new_job("failed-mirror");
    let mirror = mirror_of(&site);
    let seed = seed() % (1 << 40);
    let program = site.python(CHANGER);
    let stop = site.plain().join("stop");
    let options = ["--job", &job.name, "--mirror", utf8(&mirror), "--replicas", "2"];
    let script = format!(r#"{program} "$TAMEIKE_CACHE" {seed} {}"#, stop.display());
    let running = Background::start(&mut site.job(3, &options, &script));
    await_files(&mirror);
    sleep_ms(1500);
    assert!(job.kill_agent(2));
    sleep_ms(4000);
    fs::write(stop, "").expect("written");
    let output = running.output();
    assert_code(&output, 0);
    assert_equal(site.shared(), &mirror);
}

/// S57a.
#[test]
fn a_background_job_shows_the_end_of_its_mirror() {
    let (site, job) = new_job("up-mirror");
    let mirror = mirror_of(&site);
    let mut up =
        site.tameike(&["up", "--job", &job.name, "--shared", utf8(site.shared()), "--mirror", utf8(&mirror)]);
    let output = up.stdout(Stdio::piped()).output().expect("it runs");
    assert!(output.status.success(), "{}", shown(&output));
    let words = ["exec", "--job", &job.name, "--", "sh", "-c", r#"echo x > "$TAMEIKE_CACHE/file""#];
    succeed(&mut site.tameike(&words));
    let text = succeed(&mut site.tameike(&["down", "--job", &job.name]));
    assert_contains(&text, &["1 file identical"]);
    assert_equal(site.shared(), &mirror);
}
