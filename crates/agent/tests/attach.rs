//! Mounts that other processes hand to an agent: of root, and of a user whom the agent does not trust.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tameike_agent::Agent;
use tameike_agent::attach::{self, Attachments, NodeAddress, VolumeName};
use tameike_agent::control::{AgentControl, StartInput};
use tameike_core::{Errno, NodeId, NodeInfo, View};
use tameike_io::os::{mount, namespace, process};
use tempfile::TempDir;

/// The user whom the agent does not trust. `fusermount3` needs one with a name.
const USER: u32 = 65_534;
const CLIENT: &str = include_str!("attach/client.py");
/// Gives all users access to `/dev/fuse` in a mount namespace, and continues as an unprivileged user.
const AS_USER: &str = "set -e; mkdir dev; mount -t tmpfs none dev; mknod dev/fuse c 10 229; chmod 666 dev/fuse; \
                       mount --bind dev/fuse /dev/fuse; \
                       exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"";

/// An agent of a volume of this process's user.
struct Bed {
    agent: Agent,
    attachments: Attachments,
    volume: VolumeName,
    dir: TempDir,
}

/// A mount of this process.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(fault) = mount::unmount(&self.0) {
            eprintln!("{fault}");
        }
    }
}

impl Mounted {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// An agent, unless this process is not root, and cannot mount and act as another user.
fn bed(name: &str) -> Option<Bed> {
    if process::user() != 0 {
        eprintln!("not root: cannot act as another user");
        return None;
    }
    // Other processes of the host that copy its mount namespace would keep the mounts.
    namespace::isolate().expect("root may");
    let dir = tempfile::Builder::new().prefix("tma").tempdir_in("/tmp").expect("a directory");
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("ours");
    let device = dir.path().join("device");
    fs::create_dir(&device).expect("made");
    let start = serde_json::json!({
        "version": 1, "job": "attach", "node": 0, "mode": "serve", "secret": "7".repeat(64),
        "base_dir": dir.path(), "listen": "127.0.0.1:0", "fabric": "auto", "cores": null,
        "device": { "dir": device, "ram": false }, "capacity": [1 << 20, 64 << 20, 1 << 20],
        "memory": 64 << 20, "region_memory": 0, "shared_dir": null,
    });
    let start = serde_json::from_value(start).expect("a start");
    let agent = Agent::start(StartInput { start, frontends: Vec::new(), ring: None }).expect("an agent");
    let node =
        NodeInfo { id: NodeId(0), host: "here".to_owned(), address: agent.address(), group: 0, device: true };
    agent.join(vec![node], None).expect("a job of one node");
    let volume = VolumeName { owner: 0, name: format!("{name}-{}", std::process::id()) };
    let address = NodeAddress { volume: volume.clone(), node: 3 };
    let attachments = agent.accept_mounts(address).expect("the name is free");
    Some(Bed { agent, attachments, volume, dir })
}

impl Bed {
    fn dir(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::create_dir_all(&path).expect("made");
        path
    }

    fn mount(&self, name: &str) -> Mounted {
        let path = self.dir(name);
        let fuse = mount::mount_fuse("attached", &path, false).expect("root may mount");
        let mounted = Mounted(path);
        attach::attach(&self.volume, 0, fuse).expect("the agent serves it");
        mounted
    }

    fn socket(&self) -> String {
        format!("tameike-volume-{}-{}-3", self.volume.owner, self.volume.name)
    }

    /// Runs the client as the other user. `code` uses the mount.
    fn as_user(&self, arguments: &[&str], code: &str) -> Output {
        let home = self.dir("home");
        let path = self.dir("home/mnt");
        fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("ours");
        let (how, rest) = arguments.split_first().expect("how to mount");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", AS_USER, "sh", "/usr/bin/python3", "-c", CLIENT, how]);
        command.arg(self.socket()).arg(&path).args(rest).current_dir(&home);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("unshare is installed");
        child.stdin.take().expect("piped").write_all(code.as_bytes()).expect("it reads");
        let output = child.wait_with_output().expect("it ends");
        fs::remove_dir(home.join("dev")).expect("its mount was in the namespace");
        output
    }

    /// What the code printed.
    fn said_to_user(&self, arguments: &[&str], code: &str) -> String {
        let output = self.as_user(arguments, code);
        let said = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        said
    }

    /// Waits until the agent has `count` attachments.
    fn await_count(&self, count: usize) {
        await_equal(count, || self.attachments.count());
    }
}

/// Waits until a value is as expected.
fn await_equal<T: PartialEq + Debug>(expected: T, value: impl Fn() -> T) {
    let is_so = || (value() == expected).then_some(());
    let ended = process::ask_until(Duration::from_secs(10), Duration::from_millis(10), is_so);
    assert!(ended.is_some(), "{:?} and not {expected:?}", value());
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

/// S56a.
#[test]
fn mounts_of_one_agent_see_the_changes_of_each_other() {
    let Some(bed) = bed("two") else { return };
    let (a, b) = (bed.mount("a"), bed.mount("b"));
    assert_eq!(attach::nodes_here(&bed.volume).expect("/proc is mounted"), [3]);
    assert_eq!(bed.attachments.count(), 2);
    for round in 0..5 {
        fs::create_dir_all(a.path("d/e")).expect("made");
        fs::write(a.path("d/e/f"), format!("round {round}")).expect("written");
        assert_eq!(fs::read_to_string(b.path("d/e/f")).expect("there"), format!("round {round}"));
        // The kernel of the other mount has the pages of the shorter content.
        let mut file = OpenOptions::new().append(true).open(a.path("d/e/f")).expect("there");
        file.write_all(b" and more").expect("written");
        drop(file);
        assert_eq!(fs::read_to_string(b.path("d/e/f")).expect("there"), format!("round {round} and more"));
        fs::write(b.path("d/e/f"), format!("ROUND {round} and more")).expect("written");
        assert_eq!(fs::read_to_string(a.path("d/e/f")).expect("there"), format!("ROUND {round} and more"));
        fs::rename(a.path("d"), a.path("moved")).expect("renamed");
        assert!(!b.path("d").exists() && !b.path("d/e/f").exists());
        fs::set_permissions(b.path("moved"), Permissions::from_mode(0o700 + round % 8)).expect("changed");
        assert_eq!(fs::metadata(a.path("moved")).expect("there").mode() & 0o777, 0o700 + round % 8);
        fs::rename(b.path("moved/e/f"), b.path("moved/g")).expect("renamed");
        assert_eq!(names(&a.path("moved")), ["e", "g"]);
        fs::remove_file(a.path("moved/g")).expect("removed");
        assert!(File::open(b.path("moved/g")).is_err());
        fs::remove_dir(b.path("moved/e")).expect("removed");
        fs::remove_dir(a.path("moved")).expect("removed");
        assert_eq!(names(&b.0), [] as [&str; 0]);
    }
    drop((a, b));
    bed.await_count(0);
}

/// S56b.
#[test]
fn a_lock_shows_what_another_mount_wrote_under_it() {
    let Some(bed) = bed("locks") else { return };
    let (a, b) = (bed.mount("a"), bed.mount("b"));
    fs::write(a.path("f"), "0").expect("written");
    let open =
        |mount: &Mounted| OpenOptions::new().read(true).write(true).open(mount.path("f")).expect("there");
    let files = [open(&a), open(&b)];
    let read = |file: &File| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, 0).expect("one byte");
        byte[0]
    };
    for turn in 0..20 {
        let file = &files[turn % 2];
        file.lock().expect("free");
        assert!(files[(turn + 1) % 2].try_lock().is_err());
        assert_eq!(read(file), b'0' + turn as u8);
        file.write_all_at(&[b'1' + turn as u8], 0).expect("written");
        file.unlock().expect("locked");
    }
}

fn private(path: &Path, content: &str) {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).expect("new");
    file.write_all(content.as_bytes()).expect("written");
}

/// S56c. S56d.
#[test]
fn permissions_of_another_user_do_not_depend_on_the_options_of_the_mount() {
    let Some(bed) = bed("user") else { return };
    let mount = bed.mount("root");
    private(&mount.path("private"), "secret");
    fs::set_permissions(&mount.0, Permissions::from_mode(0o1777)).expect("changed");
    fs::create_dir(mount.path("closed")).expect("made");
    fs::write(mount.path("closed/open"), "hidden").expect("written");
    fs::set_permissions(mount.path("closed"), Permissions::from_mode(0o700)).expect("changed");
    let code = "
acl = struct.pack('<I', 2) + b''.join(struct.pack('<HHI', *entry) for entry in
    [(1, 6, 2**32 - 1), (2, 4, 0), (4, 4, 2**32 - 1), (16, 4, 2**32 - 1), (32, 0, 2**32 - 1)])
def mode(name): return oct(os.stat(root + name).st_mode & 0o7777)
print(refused(lambda: open(root + '/private').read()))
print(refused(lambda: open(root + '/private', 'w')))
print(refused(lambda: open(root + '/closed/open').read()))
print(refused(lambda: os.chmod(root + '/private', 0o644)))
print(refused(lambda: os.rename(root + '/private', root + '/mine')))
print(refused(lambda: os.unlink(root + '/private')))
print(refused(lambda: os.truncate(root + '/private', 0)))
print(refused(lambda: os.link(root + '/private', root + '/linked')))
open(root + '/own', 'w').write('own')
own = os.stat(root + '/own')
print(own.st_uid, own.st_gid, open(root + '/own').read())
print(refused(lambda: os.chown(root + '/own', 0, -1)))
print(refused(lambda: os.chown(root + '/own', -1, 0)))
os.chown(root + '/own', os.getuid(), os.getgid())
os.chmod(root + '/own', 0o4640)
print(mode('/own'), refused(lambda: os.mknod(root + '/device', 0o20666, 1)))
print(refused(lambda: os.setxattr(root + '/own', 'system.posix_acl_access', acl)))
print(refused(lambda: os.getxattr(root + '/own', 'system.posix_acl_access')))
os.setxattr(root + '/own', 'user.a', b'1')
print(os.listxattr(root + '/own'), os.getxattr(root + '/own', 'user.a'))
os.mkdir(root + '/dir'); os.rename(root + '/own', root + '/dir/own'); os.symlink('own', root + '/dir/link')
print(sorted(os.listdir(root + '/dir')), os.readlink(root + '/dir/link'))
os.unlink(root + '/dir/link'); os.unlink(root + '/dir/own'); os.rmdir(root + '/dir')
os.open(root + '/last', os.O_CREAT | os.O_RDWR)
";
    let denied = "Permission denied\nPermission denied\nPermission denied\nOperation not permitted\n\
                  Operation not permitted\nOperation not permitted\nPermission denied\n\
                  Operation not permitted\n";
    let own = "65534 65534 own\nOperation not permitted\nOperation not permitted\n0o4640 Operation not permitted\n\
               Operation not supported\nNo data available\n['user.a'] b'1'\n['link', 'own'] own\n";
    assert_eq!(bed.said_to_user(&["helper"], code), format!("{denied}{own}"));
    assert_eq!(names(&mount.0), ["closed", "last", "private"]);
    assert_eq!(fs::metadata(mount.path("last")).expect("there").uid(), USER);
    bed.await_count(1);
}

/// S56c. In its namespace, the user seems to own the files of user 4242: the kernel permits everything.
#[test]
fn a_user_namespace_gives_no_access_to_files_of_others() {
    let Some(bed) = bed("mapped") else { return };
    let mount = bed.mount("root");
    let owned = |path: &Path, mode| {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("changed");
        chown(path, Some(4242), Some(4242)).expect("root may");
    };
    fs::create_dir(mount.path("theirs")).expect("made");
    owned(&mount.path("theirs"), 0o1777);
    fs::write(mount.path("theirs/private"), "secret").expect("written");
    owned(&mount.path("theirs/private"), 0o600);
    let code = "
os.chdir(root + '/theirs')
print(os.stat('private').st_uid, os.access('private', os.R_OK | os.W_OK))
print(refused(lambda: open('private').read()))
print(refused(lambda: os.chmod('private', 0o666)))
print(refused(lambda: os.unlink('private')))
print(refused(lambda: os.rename('private', 'renamed')))
print(refused(lambda: os.truncate('private', 0)))
print(refused(lambda: os.chown('private', 4242, 4242)))
open('own', 'w').write('own')
os.chdir('/')
";
    let denied = "4242 True\nPermission denied\nOperation not permitted\nOperation not permitted\n\
                  Operation not permitted\nPermission denied\nOperation not permitted\n";
    assert_eq!(bed.said_to_user(&["mapped", "4242"], code), denied);
    let own = fs::metadata(mount.path("theirs/own")).expect("there");
    assert_eq!((own.uid(), own.gid(), own.len()), (USER, USER, 3));
}

/// S56c. The user answers requests of the kernel in place of the agent, with the numbers of files and handles of others.
#[test]
fn forged_numbers_of_files_and_handles_are_refused() {
    let Some(bed) = bed("forger") else { return };
    let mount = bed.mount("root");
    fs::set_permissions(&mount.0, Permissions::from_mode(0o1777)).expect("changed");
    fs::create_dir(mount.path("closed")).expect("made");
    fs::write(mount.path("closed/open"), "hidden").expect("written");
    let inode = fs::metadata(mount.path("closed/open")).expect("there").ino();
    fs::set_permissions(mount.path("closed"), Permissions::from_mode(0o700)).expect("changed");
    let mut held = File::open(mount.path("closed/open")).expect("root may");
    let code = format!(
        "
import os, threading, time
INODE = {inode}
def attributes(node=INODE):
    mode = 0o41777 if node == 1 else 0o100666
    return struct.pack('=QQQQQQIIIIIIIIII', node, 6, 1, 0, 0, 0, 0, 0, 0, mode, 1, 65534, 65534, 0, 4096, 0)
def answer(unique, body): os.write(fuse, struct.pack('=IiQ', 16 + len(body), 0, unique) + body)
seen, got, end = [0, 0], set(), time.monotonic() + 20
def reply(request):
    size, code, unique, node = struct.unpack('=IIQQ', request[:24])
    if code == 1:
        answer(unique, struct.pack('=QQQQII', INODE, 0, 0, 0, 0, 0) + attributes()); seen[0] += 1
    elif code == 14:
        answer(unique, struct.pack('=QII', 1 + seen[1] % 8, 1, 0)); seen[1] += 1
    elif code == 3: answer(unique, struct.pack('=QII', 0, 0, 0) + attributes(node))
    elif code not in (2, 42): os.write(fuse, struct.pack('=IiQ', 16, -5, unique))
def serve():
    while True:
        try: reply(os.read(fuse, 2 << 20))
        except OSError: pass
for _ in range(8): threading.Thread(target=serve, daemon=True).start()
while min(seen) < 40 and time.monotonic() < end:
    try:
        file = os.open(root + '/forged', os.O_RDONLY)
        try: got.add(os.read(file, 100))
        finally: os.close(file)
    except OSError as error: got.add(error.strerror)
print(b'hidden' in got, min(seen) >= 40)
os._exit(0)
"
    );
    let said = bed.said_to_user(&["forger"], &code);
    assert_eq!(said, "False True\n");
    let mut text = String::new();
    held.read_to_string(&mut text).expect("still open");
    assert_eq!(text, "hidden");
}

/// S56e.
#[test]
fn a_socket_of_another_user_is_not_the_agents() {
    if process::user() != 0 {
        return;
    }
    // This process has the name of an agent of another user.
    let volume = VolumeName { owner: USER, name: format!("squatted-{}", std::process::id()) };
    let name = format!("tameike-volume-{USER}-{}-0", volume.name);
    let address = SocketAddr::from_abstract_name(&name).expect("short");
    let squatter = UnixListener::bind_addr(&address).expect("free");
    let fuse = File::open("/dev/null").expect("there");
    let fault = attach::attach(&volume, 5, fuse.into()).expect_err("an impostor");
    assert_eq!(fault.errno, Errno::EPERM, "{fault}");
    assert!(fault.to_string().contains("belongs to user 0"), "{fault}");
    let (mut connection, _) = squatter.accept().expect("it has connected");
    let mut sent = Vec::new();
    connection.read_to_end(&mut sent).expect("closed");
    assert_eq!(sent, b"", "it sends nothing before it knows the user");
}

#[test]
fn requests_without_a_new_mount_are_refused() {
    let Some(bed) = bed("refused") else { return };
    let refused = |file: OwnedFd| attach::attach(&bed.volume, 0, file).expect_err("no mount").errno;
    assert_eq!(refused(File::open("/dev/null").expect("there").into()), Errno::EINVAL);
    let unmounted = OpenOptions::new().read(true).write(true).open("/dev/fuse").expect("root may");
    assert_eq!(refused(unmounted.into()), Errno::ETIMEDOUT);
    for request in ["", "{\"version\":1}\n", "{\"version\":9}\n", "nonsense", &"x".repeat(9000)] {
        let address = SocketAddr::from_abstract_name(bed.socket()).expect("short");
        let mut connection = UnixStream::connect_addr(&address).expect("it listens");
        // It may have answered already.
        let _ = connection.write_all(request.as_bytes());
        connection.shutdown(std::net::Shutdown::Write).expect("connected");
        let mut answer = String::new();
        let _ = connection.read_to_string(&mut answer);
        assert!(answer.starts_with("{\"refused\""), "{request}: {answer}");
    }
    bed.await_count(0);
    drop(bed.mount("works"));
}

#[test]
fn silent_clients_of_one_user_neither_hinder_others_nor_exceed_a_limit() {
    let Some(bed) = bed("silent") else { return };
    let said = bed.said_to_user(&["silent", "64"], "");
    assert!(said.contains("has 64 mounts of the volume on this node already"), "{said}");
    let mount = bed.mount("root");
    fs::write(mount.path("f"), "x").expect("written");
    drop(mount);
    bed.await_count(0);
}

/// Waits until this process has the threads of `count` mounts.
fn await_threads(count: usize) {
    let of_mount = |name: &String| {
        ["tameike-mount", "tameike-fuse", "tameike-pages"].iter().any(|start| name.starts_with(start))
    };
    let running = || {
        let tasks = fs::read_dir("/proc/self/task").expect("there").flatten();
        tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok()).filter(of_mount).count()
    };
    await_equal(5 * count, running);
}

/// S56f.
#[test]
fn a_killed_client_leaves_neither_files_nor_locks_nor_threads() {
    let Some(bed) = bed("killed") else { return };
    let mount = bed.mount("root");
    // In a user namespace, the kernel permits no changes of files whose owner has no number there.
    let home = mount.path("home");
    fs::create_dir(&home).expect("made");
    let locked = File::create(home.join("waited")).expect("new");
    [&home, &home.join("waited")]
        .into_iter()
        .for_each(|path| chown(path, Some(USER), Some(USER)).expect("root may"));
    locked.lock().expect("free");
    await_threads(1);
    let code = "
import fcntl, signal, threading, time
root += '/home'
keeps = [open(root + '/removed', 'w+'), open(root + '/locked', 'w')]
keeps[0].write('x' * 3000000); keeps[0].flush(); os.unlink(root + '/removed')
fcntl.flock(keeps[1], fcntl.LOCK_EX)
keeps.append(os.open(root, os.O_RDONLY)); os.listdir(keeps[2])
def wait():
    with open(root + '/waited', 'r+') as file: fcntl.flock(file, fcntl.LOCK_EX)
threading.Thread(target=wait, daemon=True).start()
time.sleep(0.5)
os.kill(os.getpid(), signal.SIGKILL)
";
    let output = bed.as_user(&["mapped", "65534"], code);
    assert!(!output.status.success());
    bed.await_count(1);
    await_threads(1);
    File::open(home.join("locked")).expect("there").try_lock().expect("released with its owner");
    locked.unlock().expect("locked");
    File::open(home.join("waited")).expect("there").try_lock().expect("no program waits any longer");
    fs::remove_file(home.join("locked")).expect("removed");
    let used = || bed.agent.status().expect("joined").space[View::JobShared.index()].used;
    await_equal(true, || used() < 1 << 20);
}
