"""Other servers on the slow server's disk (slow_server.py): GlusterFS and MooseFS, each with four daemons that keep data, and one client. It runs
nothing by itself.

They have an address that is reserved for documentation, as neither takes one of the loopback's, in the name spaces that slow_server.py has
made, and end with them. Needs Debian's glusterfs-server and glusterfs-client; moosefs-master, moosefs-chunkserver and moosefs-client
(`scripts/install-deps.sh bench`).
"""

import os, re, socket, subprocess
from pathlib import Path

from slow_server import SERVER, Spool, output, start, until, within

DAEMONS = 4
# Of GlusterFS: nobody else is in the name space of the network.
GLUSTER_PORT, FIRST_BRICK_PORT = 24007, 49152
MOOSE_PORT, FIRST_CHUNK_PORT = 9421, 9500
VOLUME = "bench"
# MooseFS's daemons as started by hand: no other user, no precedence over programs.
AS_STARTED = "WORKING_USER = root\nWORKING_GROUP = root\nNICE_LEVEL = 0\n"
REMOVE_SOON = "CHUNKS_LOOP_MIN_TIME = 60\nCHUNKS_SOFT_DEL_LIMIT = 1000\nCHUNKS_HARD_DEL_LIMIT = 1000\n"


def listens(port):
    with socket.socket() as one:
        return one.connect_ex((SERVER, port)) == 0


class Peer(Spool):
    """A file system whose daemons keep data on `spool`, behind a mount of FUSE."""

    def __init__(self, place, spool, memory, clients):
        super().__init__(spool)
        self.place, self.memory, self.mount = place, memory, place / "mount"
        self.mount.mkdir()
        output(["ip", "address", "add", f"{SERVER}/32", "dev", "lo"])
        self.serve()
        self.mount_again()

    def daemon(self, name, command, is_ready, keeps_data=True):
        """Of those that keep data, the memory is bounded: their pages are in it."""
        process = start(within(self.memory, command) if keeps_data else command, self.place / f"{name}.log")
        until(f"{name}, see its log", lambda: process.poll() is None and is_ready())
        return process

    def unmount(self):
        output(["umount", self.mount])
        self.client.wait(30)

    def mount_again(self):
        self.client = start([*self.client_command(), self.mount], self.place / "client.log")
        until("the mount", lambda: str(self.mount) in Path("/proc/self/mounts").read_text())
        until("the file system", self.is_whole)

    def is_whole(self):
        return True

    def node(self, number):
        return ["env"]

    def user(self, number):
        return ["env"]


class Gluster(Peer):
    """A distributed volume. Its management daemon lays it out as for anybody, and ends; bricks and client are started from its volume files."""

    name = "glusterfs"

    def program(self, name, log):
        return [name, "--no-daemon", "--log-file", self.place / f"{log}.said"]

    def serve(self):
        place, run = self.place, self.place / "run"
        self.work = place / "work"
        for directory in [self.work, run]:
            directory.mkdir()
        (place / "glusterd.vol").write_text(
            f"volume management\n    type mgmt/glusterd\n    option working-directory {self.work}\n    option run-directory {run}\n"
            f"    option glusterd-sockfile {run}/socket\n    option transport-type socket\n    option transport.address-family inet\n"
            f"    option transport.socket.listen-port {GLUSTER_PORT}\nend-volume\n")
        gluster = ["gluster", "--mode=script", f"--glusterd-sock={run}/socket", f"--log-file={place}/gluster.said"]
        is_ready = lambda: (run / "socket").exists() and subprocess.run([*gluster, "pool", "list"], capture_output=True).returncode == 0
        glusterd = self.daemon("glusterd", [*self.program("glusterd", "glusterd"), "-f", place / "glusterd.vol"], is_ready, keeps_data=False)
        bricks = [self.spool / f"brick-{number}" for number in range(DAEMONS)]
        for brick in bricks:
            brick.mkdir()
        output([*gluster, "volume", "create", VOLUME, *[f"{SERVER}:{brick}" for brick in bricks], "force"])
        [uuid] = [line[5:] for line in (self.work / "glusterd.info").read_text().splitlines() if line.startswith("UUID=")]
        glusterd.terminate()
        glusterd.wait(30)
        for number, brick in enumerate(bricks):
            port = FIRST_BRICK_PORT + number
            layout = self.work / f"vols/{VOLUME}/{VOLUME}.{SERVER}.{str(brick)[1:].replace('/', '-')}.vol"
            self.daemon(brick.name, [*self.program("glusterfsd", brick.name), "-f", layout, "--process-name", "brick", "--brick-name", brick,
                                     "--xlator-option", f"{VOLUME}-server.listen-port={port}",
                                     "--xlator-option", f"*-posix.glusterd-uuid={uuid}"], lambda port=port: listens(port))

    def client_command(self):
        command = [*self.program("glusterfs", "client"), "-f", self.work / f"vols/{VOLUME}/trusted-{VOLUME}.tcp-fuse.vol"]
        for brick in range(DAEMONS):
            for setting in [f"remote-host={SERVER}", f"remote-port={FIRST_BRICK_PORT + brick}"]:
                command += ["--xlator-option", f"{VOLUME}-client-{brick}.{setting}"]
        return command

    def mount_again(self):
        self.said.unlink(missing_ok=True)
        super().mount_again()

    def is_whole(self):
        """A client that has not met all bricks yet finds names missing."""
        met = re.findall(rf"{VOLUME}-client-(\d+): Connected", self.said.read_text()) if self.said.exists() else []
        return len(set(met)) == DAEMONS

    @property
    def said(self):
        return self.place / "client.said"

    def version(self):
        return "GlusterFS " + output(["dpkg-query", "--show", "--showformat=${Version}", "glusterfs-server"])


class Moose(Peer):
    """A master and chunk servers. One copy is kept, and no trash. A chunk that was written is locked for two minutes, and then removed in one of
    the rounds that begin every minute: so long all that is written needs its room. A client that finds none waits, and tries again."""

    name = "moosefs"
    removed_mib = 24 << 10

    def serve(self):
        place = self.place
        data = place / "master"
        data.mkdir()
        (data / "metadata.mfs").write_text("MFSM NEW")
        (place / "exports.cfg").write_text("* / rw,alldirs,admin,maproot=0:0\n")
        (place / "topology.cfg").write_text("")
        (place / "master.cfg").write_text(f"{AS_STARTED}{REMOVE_SOON}DATA_PATH = {data}\nEXPORTS_FILENAME = {place}/exports.cfg\n"
                                          f"TOPOLOGY_FILENAME = {place}/topology.cfg\n")
        self.daemon("master", ["mfsmaster", "-f", "-c", place / "master.cfg", "start"], lambda: listens(MOOSE_PORT), keeps_data=False)
        for number in range(DAEMONS):
            name, port = f"server-{number}", FIRST_CHUNK_PORT + number
            for directory in [place / name, self.spool / f"chunks-{number}"]:
                directory.mkdir()
            (place / f"{name}.disks").write_text(f"{self.spool}/chunks-{number}\n")
            (place / f"{name}.cfg").write_text(f"{AS_STARTED}DATA_PATH = {place}/{name}\nHDD_CONF_FILENAME = {place}/{name}.disks\n"
                                               f"MASTER_HOST = {SERVER}\nMASTER_RECONNECTION_DELAY = 1\nCSSERV_LISTEN_PORT = {port}\n")
            self.daemon(name, ["mfschunkserver", "-f", "-c", place / f"{name}.cfg", "start"], lambda port=port: listens(port))

    def client_command(self):
        return ["mfsmount", "-f", "-H", SERVER, "-o", "mfsnice=0"]

    def mount_again(self):
        super().mount_again()
        for tool, figure in [("mfssetgoal", "1"), ("mfssettrashtime", "0")]:
            output([tool, figure, self.mount])

    def is_whole(self):
        """Each chunk server offers the space of the disk: more than those of all but one is that of all."""
        size = lambda found: found.f_blocks * found.f_frsize
        return size(os.statvfs(self.mount)) > (DAEMONS - 1) * size(os.statvfs(self.spool))

    def version(self):
        return "MooseFS " + output(["dpkg-query", "--show", "--showformat=${Version}", "moosefs-master"])


BASES = {base.name: base for base in [Gluster, Moose]}
