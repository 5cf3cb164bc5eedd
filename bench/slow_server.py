"""A slow server for benchmarks, its clients, and a job on these: what the programs beside this file share. It runs nothing by itself.

Its disk is an XFS on a loop device that a cgroup slows down to --rate and, if told, to --iops, reads and writes. With --base gfarm an I/O
server of Gfarm, with all its pages, has --server-memory; clients reach it over a network of their own, each by a mount of its own, which
is all that the job's nodes see of it. With --base xfs there is no server: the programs that use it directly share --server-memory. Agents
speak with each other through memory, as they would over RDMA, or over TCP (--fabric tcp). All of it lives in name spaces of its own, and
goes with them.

Needs root, Debian's gfmd, gfsd, gfarm2fs and gfarm-client (`scripts/install-deps.sh bench`), and `cargo build --release -p tameike -p
tameike-bench -p tameike-preload`.
"""

import argparse, json, os, platform, shlex, signal, subprocess, sys, time
from contextlib import ExitStack, closing
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "bench/runs"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
MIB = 1 << 20
GROUPS = Path("/sys/fs/cgroup")
# Reserved for documentation: they stand for no host.
SERVER, CLIENT, PORT = "192.0.2.1", "192.0.2.2", 601
INSIDE = "TAMEIKE_BENCH_INSIDE"


def output(command, **options):
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    return done.stdout


def until(what, ready):
    for _ in range(600):
        if ready():
            return
        time.sleep(0.05)
    sys.exit(f"{what}: not there after 30 s")


def start(command, log):
    """A process that ends with the name space of processes."""
    with open(log, "wb") as file:
        return subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=file, stderr=file)


class Disk:
    """A loop device that is no faster than `rate`, in MB/s, and does no more than `iops` operations a second, as a disk that has to seek."""

    def __init__(self, image, mib, rate, iops):
        with open(image, "wb") as file:
            file.truncate(mib * MIB)
        try:
            output(["mkfs.xfs", "-q", image])
            self.loop = output(["losetup", "--find", "--show", "--direct-io=on", image]).strip()
        finally:
            # The loop device has it.
            image.unlink()
        self.slow_down(rate, iops)

    @property
    def number(self):
        number = os.stat(self.loop).st_rdev
        return f"{os.major(number)}:{os.minor(number)}"

    def slow_down(self, rate, iops):
        # On the root, as most of what is written back belongs to no other cgroup. 0 is no limit.
        for what in ["read", "write"]:
            for kind, limit in [("bps", rate * 1_000_000), ("iops", iops)]:
                (GROUPS / f"blkio/blkio.throttle.{what}_{kind}_device").write_text(f"{self.number} {limit}\n")

    def keep_dirty(self, mib):
        """Has what is not written yet bounded, as a server of so much memory would: a memory cgroup of the first version does not."""
        limits = Path(f"/sys/class/bdi/{self.number}")
        (limits / "strict_limit").write_text(f"{0 if mib is None else 1}\n")
        for name, value in [("max_ratio", 100)] if mib is None else [("max_bytes", mib * MIB)]:
            (limits / name).write_text(f"{value}\n")

    def close(self):
        self.slow_down(0, 0)
        self.keep_dirty(None)
        output(["losetup", "--detach", self.loop])


class Group:
    """A cgroup."""

    def __init__(self, path):
        self.path = path
        path.mkdir()

    def close(self):
        until("the end of its processes", lambda: not (self.path / "cgroup.procs").read_text())
        self.path.rmdir()


class Memory(Group):
    """A cgroup whose processes and pages share so much memory."""

    def __init__(self, path, mib):
        super().__init__(path)
        if mib:
            (path / "memory.limit_in_bytes").write_text(f"{mib * MIB}\n")


def within(group, command):
    """`command`, to be started in a cgroup."""
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *command]


class Spool:
    """Where the disk's file system is mounted."""

    # What is removed, but has its room on the disk for a while.
    removed_mib = 0

    def __init__(self, spool):
        self.spool = spool

    def forget(self):
        """Has the server's memory forget what is on the disk."""
        os.sync()
        for path in self.spool.rglob("*"):
            if path.is_file():
                with open(path, "rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def renew(self):
        """Has all kernels forget what is on the disk, the clients' among them."""
        self.unmount()
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
        self.mount_again()


class Gfarm(Spool):
    """A metadata server, one I/O server on `spool`, and a mount for each client, which lies at the same place of its own name space."""

    name = "gfarm"

    def __init__(self, place, spool, memory, clients):
        super().__init__(spool)
        self.place, self.mount = place, place / "mount"
        self.mount.mkdir()
        self.network()
        self.configure(memory, spool)
        self.holders = [self.client(client) for client in range(clients)]

    def network(self):
        self.server = start(["unshare", "--net", "sleep", "infinity"], self.place / "network.log").pid
        until("a network", lambda: os.readlink(f"/proc/{self.server}/ns/net") != os.readlink("/proc/self/ns/net"))
        output(["ip", "link", "add", "client", "type", "veth", "peer", "name", "server", "netns", str(self.server)])
        output(["ip", "address", "add", f"{CLIENT}/24", "dev", "client"])
        output(["ip", "link", "set", "client", "up"])
        for words in ["link set lo up", f"address add {SERVER}/24 dev server", "link set server up"]:
            output(self.at_server(["ip", *words.split()]))
        hosts = self.place / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{SERVER} server\n{CLIENT} client\n")
        output(["mount", "--bind", hosts, "/etc/hosts"])

    def at_server(self, command):
        return ["nsenter", f"--net=/proc/{self.server}/ns/net", "--", *command]

    def configure(self, memory, spool):
        place = self.place
        output(["config-gfarm", "--prefix", place, "-N", "-b", "none", "-h", "server", "-A", "root", "-a", "sharedsecret", "-m", PORT])
        (place / "var/gfarm-metadata/journal").mkdir(parents=True, exist_ok=True)
        os.environ["GFARM_CONFIG_FILE"] = str(place / "etc/gfarm2.conf")
        # Gfarm looks for the keys of users at their homes.
        homes = {user: place / f"home-{user}" for user in ["root", "_gfarmfs"]}
        users = [line.split(":") for line in Path("/etc/passwd").read_text().splitlines()]
        lines = [":".join([*fields[:5], str(homes.get(fields[0], fields[5])), *fields[6:]]) for fields in users]
        (place / "passwd").write_text("\n".join(lines) + "\n")
        output(["mount", "--bind", place / "passwd", "/etc/passwd"])
        for home in homes.values():
            home.mkdir()
        output(["gfkey", "-f", "-p", "864000"])
        output(["install", "-m", "600", "-o", "_gfarmfs", homes["root"] / ".gfarm_shared_key", homes["_gfarmfs"]])
        output(["chown", "_gfarmfs", homes["_gfarmfs"], spool])
        start(self.at_server(["gfmd", "-f", place / "etc/gfmd.conf", "-d"]), place / "gfmd.log")
        until("gfmd", lambda: subprocess.run(["gfls", "/"], capture_output=True).returncode == 0)
        output(["gfuser", "-c", "_gfarmfs", "_gfarmfs", homes["_gfarmfs"], ""])
        output(["gfhost", "-c", "-a", "x86_64-linux", "-n", "1", "-p", PORT - 1, "server"])
        (place / "etc/gfsd.conf").write_text(
            f"metadb_server_host server\nmetadb_server_port {PORT}\nauth enable sharedsecret *\nspool {spool}\n"
            f"spool_server_listen_address {SERVER}\nspool_server_cred_type host\n")
        start(within(memory, self.at_server(["gfsd", "-f", place / "etc/gfsd.conf", "-h", "server", "-r", spool, "-d"])), place / "gfsd.log")
        until("gfsd", lambda: SERVER in subprocess.run(["gfhost", "-l"], capture_output=True, text=True).stdout)

    def client(self, number):
        log = self.place / f"client-{number}.log"
        holder = start(["unshare", "--mount", "sh", "-c", f"gfarm2fs -f {self.mount} & exec sleep infinity"], log).pid
        mounted = lambda: str(self.mount) in Path(f"/proc/{holder}/mounts").read_text()
        until(f"the mount of client {number}, see {log}", mounted)
        return holder

    def unmount(self):
        for number, holder in enumerate(self.holders):
            output([*self.node(number), "umount", self.mount])
            os.kill(holder, signal.SIGTERM)

    def mount_again(self):
        self.holders = [self.client(client) for client in range(len(self.holders))]

    def node(self, number):
        """What starts a program on a node of the job."""
        return ["nsenter", f"--mount=/proc/{self.holders[number]}/ns/mnt", "--"]

    def user(self, number):
        """What starts a program that uses it directly."""
        return self.node(number)

    def version(self):
        return "Gfarm " + output(["dpkg-query", "--show", "--showformat=${Version}", "gfsd"])


class Plain(Spool):
    """The disk itself, for programs that share the memory."""

    name = "xfs"

    def __init__(self, place, spool, memory, clients):
        super().__init__(spool)
        self.mount, self.memory = spool, memory

    def unmount(self):
        output(["umount", self.mount])

    def mount_again(self):
        loop, *_ = os.environ[INSIDE].split()
        output(["mount", loop, self.mount])

    def node(self, number):
        return ["env"]

    def user(self, number):
        return within(self.memory, [])

    def version(self):
        return "XFS of Linux"


class InMemory(Plain):
    """A directory in memory, which costs nothing below: the disk is not used."""

    name = "tmpfs"

    def __init__(self, place, spool, memory, clients):
        super().__init__(place, spool, memory, clients)
        self.mount = place / "memory"
        self.mount.mkdir()

    def unmount(self):
        pass

    def mount_again(self):
        pass

    def version(self):
        return "tmpfs of Linux"


BASES = {base.name: base for base in [Gfarm, Plain, InMemory]}


class Job:
    """A job of a node per client on `base`, whose nodes are reached as hosts are."""

    def __init__(self, place, base, options):
        self.place, self.environment = place, os.environ | {"TAMEIKE_SSH": str(place / "ssh")}
        nodes = range(options.clients)
        self.script("enter", [(node, f'exec {shlex.join(base.user(node))} "$@"') for node in nodes])
        self.script("ssh", [(f"node{node}", f'exec {shlex.join(base.node(node))} sh -c "$1"') for node in nodes])
        (place / "hostfile").write_text("".join(f"node{node} address=127.0.0.1\n" for node in nodes))
        self.options = ["--hostfile", str(place / "hostfile"), "--shared", str(base.mount), "--device", "ram", "--fabric", options.fabric,
                        "--memory", "256MiB", "--capacity", f"cache={options.capacity}MiB"]

    def script(self, name, ways):
        """A program that does what belongs to its first argument with the others."""
        cases = "".join(f"{argument}) {way} ;;\n" for argument, way in ways)
        (self.place / name).write_text(f'#!/bin/sh\nwhere=$1\nshift\ncase $where in\n{cases}esac\n')
        (self.place / name).chmod(0o755)

    def call(self, *words):
        return output([TARGET / "tameike", *words], env=self.environment)

    def counters(self):
        """What the agents have counted, of all nodes together."""
        [job] = json.loads(self.call("cache", "stat", "--job", "pool", "--json"))
        counters = [counter for line in job["running"]["nodes"] for counter in line["status"]["counters"]]
        return {name: sum(one["value"] for one in counters if one["name"] == name) for name in {one["name"] for one in counters}}

    def on_node(self, node, *options):
        """What starts a program on a node of the job that is up."""
        return [str(TARGET / "tameike"), "exec", "--job", "pool", "--node", str(node), *options, "--"]


def options(text, **defaults):
    """What all of these programs are told."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where the image of the server's disk lies")
    parser.add_argument("name", help="of the run: DATE-NAME")
    parser.add_argument("--base", choices=BASES, default="gfarm")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--server-memory", type=int, default=192, help="MiB; 0 for all that there is")
    parser.add_argument("--rate", type=int, default=150, help="MB/s of the disk")
    parser.add_argument("--iops", type=int, default=0, help="operations a second of the disk, reads and writes each; 0 for no limit")
    parser.add_argument("--capacity", type=int, default=2048, help="MiB that each node keeps of the cache view")
    parser.add_argument("--fabric", default="auto", help="as of tameike run")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--runs", type=Path, default=RUNS, help="where the run's directory is made")
    parser.set_defaults(**defaults)
    return parser


def run(options, disk_mib, title, measure):
    """Has `measure(job, base, out)` called with a server and a place for figures; it returns raw figures and the text of the report."""
    if INSIDE in os.environ:
        inside(options, title, measure)
        return
    (options.runs / options.name).mkdir()
    # What is owed is done also when the program is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    name = f"tameike-bench-{os.getpid()}"
    with ExitStack() as owed:
        disk_mib += BASES[options.base].removed_mib
        disk = owed.enter_context(closing(Disk(options.directory / f"{name}.image", disk_mib, options.rate, options.iops)))
        # Linux keeps a fifth of the memory for it, unless told otherwise.
        disk.keep_dirty((options.server_memory or 1024) // 5)
        memory = owed.enter_context(closing(Memory(GROUPS / "memory" / name, options.server_memory)))
        processors = owed.enter_context(closing(Group(GROUPS / "cpuacct" / name)))
        spaces = ["unshare", "--mount", "--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        environment = os.environ | {INSIDE: f"{disk.loop} {memory.path} {processors.path}"}
        code = subprocess.run(within(processors.path, [*spaces, sys.executable, *sys.argv]), env=environment).returncode
    sys.exit(code)


def processor_seconds():
    """What all processes in here have taken, the server's and a job's among them, but for work that the kernel does in its own name."""
    *_, group = os.environ[INSIDE].split()
    return int(Path(group, "cpuacct.usage").read_text()) / 1e9


def command(options):
    """How it was called; where its image and its figures lay is this machine's."""
    places = {str(options.directory): "DIRECTORY", str(options.runs): "RUNS"}
    words = [places.get(word, word) for word in sys.argv[1:]]
    return shlex.join(["bench/" + Path(sys.argv[0]).name, *words])


def inside(options, title, measure):
    """In name spaces of its own, whose processes and mounts go with this one."""
    output(["mount", "--make-rprivate", "/"])
    output(["ip", "link", "set", "lo", "up"])
    place, out = Path("/tmp/bench"), options.runs / options.name
    for directory in ["/tmp", "/dev/shm"]:
        output(["mount", "-t", "tmpfs", "-o", "size=100%", "tmpfs", directory])
    place.mkdir()
    # Gfarm's servers run as a user of their own.
    for directory in [Path("/tmp"), place]:
        directory.chmod(0o777)
    loop, memory, _ = os.environ[INSIDE].split()
    (place / "spool").mkdir()
    output(["mount", loop, place / "spool"])
    base = BASES[options.base](place, place / "spool", memory, options.clients)
    figures, report = measure(Job(place, base, options), base, out)
    about = {"commit": output(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]).strip(), "kernel": platform.release(),
             "processors": os.cpu_count(), "load": os.getloadavg(), "base": base.version(), "command": command(options)}
    about |= {name: value for name, value in vars(options).items() if name not in ["directory", "name", "base", "runs"]}
    (out / "result.json").write_text(json.dumps({"about": about, **figures}, indent=1) + "\n")
    told = ", ".join(f"{name} {value}" for name, value in about.items())
    (out / "report.md").write_text(f"# {title}, over {base.version()}\n\n{told}; medians.\n\n{report}\n")
    print((out / "report.md").read_text())
