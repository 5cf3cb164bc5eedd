//! One of three agents has failed: files of the cache view that do not depend on it stay usable.

use crate::support::jobs::{Background, code_of_recovery, new_job};
use crate::support::{Site, assert_code, shown, succeed};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tameike_core::{Cluster, InodeId, JobId, Layout, NodeId, NodeInfo, UnitId};

const DEAD: NodeId = NodeId(2);
/// Files that exist before the crash of the agent.
const OLD: usize = 30;
/// Files of several units that exist before the job.
const LARGE: usize = 8;

/// The role of the failed agent for a file of less than a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Nothing.
    None,
    /// It stores the content.
    Bytes,
    /// It coordinates the file.
    All,
}

fn part(number: u64) -> Part {
    let node =
        |id| NodeInfo { id: NodeId(id), host: String::new(), address: String::new(), group: 0, device: true };
    let job = JobId::new("job").expect("a name");
    let cluster = Cluster::new(job, (0..3).map(node).collect(), 1).expect("a cluster");
    // The st_dev of the shared directory itself counts as 0.
    let inode = InodeId::cached(0, number);
    match () {
        () if cluster.primary(cluster.inode_home(inode)) == DEAD => Part::All,
        () if cluster.primary(cluster.unit_home(Layout::Striped, UnitId { inode, index: 0 })) == DEAD => {
            Part::Bytes
        }
        () => Part::None,
    }
}

/// A regression: no create, fsync, truncate or removal of any file succeeded, because each sent requests to all homes.
///
/// S46a. S46b. S46c.
#[test]
fn files_that_do_not_depend_on_a_failed_agent_stay_usable() {
    let (site, job) = new_job("one-dead");
    for number in 0..LARGE {
        fs::write(site.shared().join(format!("large-{number}")), vec![7; 3 << 20]).expect("written");
    }
    let wrote = site.plain().join("wrote");
    // The next file reuses the inode number of a removed large file.
    let script = format!(
        r#"cd "$TAMEIKE_CACHE"; mkdir d; for i in $(seq -w {OLD}); do echo $i > old-$i; done
           head -c 5M /dev/zero > large; sync large; rm large; touch {0}; while test -e {0}; do sleep 0.05; done"#,
        wrote.display()
    );
    let options = ["--job", &job.name, "--keep-going"];
    let running = Background::start_until(&mut site.job(3, &options, &script), &wrote);
    let parts: BTreeMap<String, Part> = old_files(site.shared());
    assert!(job.kill_agent(DEAD.0));
    let program = format!("{} {}", site.python(CALLS), site.shared().display());
    let arguments = ["exec", "--job", &job.name, "--node", "1", "--", "sh", "-c", &program];
    let text = succeed(&mut site.tameike(&arguments));
    let mut met = BTreeMap::<String, usize>::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [call, name, number, outcome, seconds] = words[..] else { panic!("{line}") };
        let part = match parts.get(name) {
            Some(part) => *part,
            None => part(number.parse().expect("a number")),
        };
        let expected = match (part, call) {
            // The rename of a directory must reach all agents.
            (_, "rename-directory") => "EHOSTDOWN",
            (_, "list" | "statfs" | "make-directory") | (Part::None, _) => "ok",
            (Part::Bytes, "create" | "open" | "write" | "stat" | "rename" | "unlink") => "ok",
            (Part::Bytes | Part::All, _) => "EHOSTDOWN",
        };
        assert_eq!(outcome, expected, "{line}: {part:?}\n{text}");
        assert!(seconds.parse::<f64>().expect("a number") < 5.0, "{line}");
        *met.entry(format!("{part:?} {call}")).or_default() += 1;
    }
    println!("{met:#?}");
    for call in ["create", "fsync", "close", "stat", "rename", "cut", "empty", "unlink", "open"] {
        assert!(met.contains_key(&format!("None {call}")), "{call}: {met:#?}");
    }
    assert!(
        met.keys().any(|call| call.starts_with("Bytes")) && met.keys().any(|call| call.starts_with("All"))
    );
    fs::remove_file(&wrote).expect("it is there");
    assert_ne!(running.output().status.code(), Some(0));
    let recovered = site.tameike(&["recover", "--job", &job.name]).output().expect("it starts");
    assert_code(&recovered, code_of_recovery(&shown(&recovered)));
    check_shared(&site, &parts);
}

fn old_files(shared: &Path) -> BTreeMap<String, Part> {
    let names = (1..=OLD).map(|number| format!("old-{number:02}"));
    let number = |name: &String| fs::metadata(shared.join(name)).expect("names are there at once").ino();
    names.map(|name| (name.clone(), part(number(&name)))).collect()
}

/// Files from before the crash, and changes that were acknowledged after it.
fn check_shared(site: &Site, parts: &BTreeMap<String, Part>) {
    let (mut after, mut unmade) = (0, 0);
    for entry in fs::read_dir(site.shared()).expect("a directory").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("kept-") {
            assert_eq!(fs::read(entry.path()).expect("a file"), b"once more\n", "{name}");
            after += 1;
        }
        if name.starts_with("new-") {
            assert_eq!(entry.metadata().expect("a file").len(), 0, "{name}");
            unmade += 1;
        }
    }
    assert!(after > 0 && unmade > 0);
    for number in 0..LARGE {
        let path = site.shared().join(format!("large-{number}"));
        let Ok(found) = fs::metadata(&path) else {
            assert_eq!(number % 2, 1, "it was removed");
            continue;
        };
        let (bytes, mut expected) = (fs::read(&path).expect("a file"), vec![7; 3 << 20]);
        if part(found.ino()) == Part::None {
            assert_eq!(number % 2, 0, "it was not removed");
            expected[..7].copy_from_slice(b"written");
            assert!(bytes == expected, "large-{number}");
        }
        assert_eq!(bytes.len(), expected.len());
    }
    for (name, part) in parts {
        let path = site.shared().join(name);
        match part {
            Part::None => {
                assert!(!path.exists(), "{name} was renamed");
                let moved = site.shared().join(format!("moved-{name}"));
                assert_eq!(fs::read_to_string(moved).expect("a file"), format!("{}\nmore\n", &name[4..]));
            }
            Part::Bytes => assert!(!path.exists(), "{name} was removed"),
            Part::All => {
                assert_eq!(fs::read_to_string(path).expect("a file"), format!("{}\n", &name[4..]));
            }
        }
    }
}

/// Makes calls, and prints for each: call, file name, inode number, "ok" or the error, seconds.
const CALLS: &str = r#"
import errno, os, sys, time
shared = sys.argv[1]
os.chdir(os.environ["TAMEIKE_CACHE"])

def tell(call, name, function, *arguments, number=None):
    begin = time.monotonic()
    try:
        result, outcome = function(*arguments), "ok"
    except OSError as error:
        result, outcome = None, errno.errorcode[error.errno]
    seconds = time.monotonic() - begin
    if number is None:
        number = os.stat(f"{shared}/{name}").st_ino
    print(call, name, number, outcome, f"{seconds:.2f}")
    return result, outcome == "ok"

def close(file):
    try:
        os.close(file)
    except OSError:
        pass

def change(file, name, number, content):
    tell("write", name, os.write, file, content, number=number)
    if tell("fsync", name, os.fsync, file, number=number)[1]:
        tell("close", name, os.close, file, number=number)
        return True
    close(file)

def unlink_closed(name):
    # The kernel reports the close to the agent later; an open file is not removed without its bytes.
    until = time.monotonic() + 3
    while True:
        try:
            return os.unlink(name)
        except OSError as error:
            if error.errno != errno.EHOSTDOWN or time.monotonic() > until:
                raise
            time.sleep(0.01)

def write_again(name, number):
    file, opened = tell("empty", name, os.open, name, os.O_WRONLY | os.O_TRUNC, number=number)
    if opened:
        assert os.stat(name).st_size == 0
        change(file, name, number, b"once more\n")
        assert os.stat(name).st_size == 10

late = []
for i in range(40):
    name = f"new-{i}"
    file, made = tell("create", name, os.open, name, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    if not made:
        continue
    number = os.stat(f"{shared}/{name}").st_ino
    is_whole = change(file, name, number, b"x" * 100)
    if is_whole:
        assert open(name).read() == "x" * 100
    tell("stat", name, os.stat, name, number=number)
    tell("rename", name, os.rename, name, f"kept-{i}" if is_whole else f"part-{i}", number=number)
    if not is_whole:
        late.append((f"part-{i}", number))
        continue
    name = f"kept-{i}"
    tell("cut", name, os.truncate, name, 10, number=number)
    write_again(name, number)
    if i % 3 == 0:
        # What is open goes on.
        file = os.open(name, os.O_RDWR)
        tell("unlink", name, os.unlink, name, number=number)
        os.write(file, b"twice")
        assert os.pread(file, 20, 0) == b"twicemore\n"
        os.close(file)

for i in range(1, 31):
    name = f"old-{i:02}"
    number = os.stat(f"{shared}/{name}").st_ino
    if not tell("stat", name, os.stat, name)[1]:
        tell("open", name, os.open, name, os.O_RDONLY)
        tell("rename", name, os.rename, name, f"moved-{name}")
        tell("unlink", name, os.unlink, name)
        continue
    file, _ = tell("open", name, os.open, name, os.O_WRONLY | os.O_APPEND)
    if change(file, name, number, b"more\n"):
        tell("rename", name, os.rename, name, f"moved-{name}", number=number)
    else:
        tell("unlink", name, unlink_closed, name, number=number)

# Of a large file, only what is written lies on an agent.
for i in range(8):
    name = f"large-{i}"
    number = os.stat(f"{shared}/{name}").st_ino
    file, opened = tell("open", name, os.open, name, os.O_WRONLY)
    if opened and change(file, name, number, b"written") and i % 2:
        tell("unlink", name, os.unlink, name, number=number)

tell("list", ".", os.listdir, ".")
assert len([name for name in os.listdir(".") if name.startswith("moved-")]) > 0
tell("statfs", ".", os.statvfs, ".")
tell("make-directory", "made", os.mkdir, "made")
tell("rename-directory", "d", os.rename, "d", "e")
for name, number in late:
    tell("unlink", name, unlink_closed, name, number=number)
"#;
