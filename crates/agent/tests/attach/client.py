"""A program of a plain user that mounts FUSE itself, and attaches the mount to an agent.

client.py HOW SOCKET DIR [ARGUMENT ...], where HOW is one of

- helper: mount with fusermount3, without default_permissions
- mapped: mount in a user namespace in which the number ARGUMENT is this user
- forger: as helper, and keep a copy of /dev/fuse to answer requests in place of the agent
- silent: open ARGUMENT connections that send nothing, and print the answer to one more

After mounting, it executes the Python code on standard input with `root`, the path of the mount.
"""

import ctypes
import os
import socket
import struct
import subprocess
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_USER, NEW_MOUNTS, DETACH = 0x10000000, 0x20000, 2


def mount_by_helper(path):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        variables = dict(os.environ, _FUSE_COMMFD=str(theirs.fileno()))
        command = ["fusermount3", "-o", "fsname=attached,subtype=tameike,nosuid,nodev", "--", path]
        subprocess.run(command, check=True, env=variables, pass_fds=[theirs.fileno()])
        return socket.recv_fds(ours, 1, 1)[1][0]


def mount_in_namespace(path, inside):
    user, group = os.getuid(), os.getgid()
    assert LIBC.unshare(NEW_USER | NEW_MOUNTS) == 0, ctypes.get_errno()
    for name, text in [("uid_map", f"{inside} {user} 1"), ("setgroups", "deny"), ("gid_map", f"{inside} {group} 1")]:
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id={inside},group_id={inside}"
    assert LIBC.mount(b"attached", path.encode(), b"fuse.tameike", 6, options.encode()) == 0, ctypes.get_errno()
    return fuse


def connect(name):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect("\0" + name)
    return connection


def attach(connection, fuse):
    socket.send_fds(connection, [b'{"version":1}\n'], [fuse])
    answer = connection.recv(4096)
    assert answer == b'"attached"\n', answer


def refused(call):
    try:
        return call()
    except OSError as error:
        return error.strerror


def silent(name, count):
    connections = [connect(name) for _ in range(count)]
    print(connect(name).recv(4096).decode().strip())
    del connections


def main():
    how, name, path, *rest = sys.argv[1:]
    if how == "silent":
        return silent(name, int(rest[0]))
    # The owner of the agent has no number in the namespace.
    connection = connect(name)
    fuse = mount_in_namespace(path, rest[0]) if how == "mapped" else mount_by_helper(path)
    try:
        attach(connection, fuse)
        scope = {"root": path, "refused": refused, "os": os, "fuse": fuse, "struct": struct}
        if how != "forger":
            os.close(fuse)
        exec(sys.stdin.read(), scope)
    finally:
        if how == "mapped":
            LIBC.umount2(path.encode(), DETACH)
        else:
            subprocess.run(["fusermount3", "-u", "-z", "--", path], check=False)


main()
