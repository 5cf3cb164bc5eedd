"""Runs Montage modules on any node of the job, and checks their results.

Every module prints one line at its end, `[struct stat="OK", module="mAdd", ...]`. Some report OK and
exit with 0 although most of their items failed, and only count the failures. So every
failure counter in the line must be zero, and a module without such a line has failed.
"""

import concurrent.futures
import os
import re
import subprocess

RESULT = re.compile(r"^\[struct (.*)\]$", re.MULTILINE)
FIELD = re.compile(r'(\w+)=(?:"([^"]*)"|([^,\s]+))')
TROUBLE = re.compile(r"fail|missing|warning|^bad|nocorrection|^nnan$")


class Failed(Exception):
    """A module failed: names the module, its item and its output."""


class Nodes:
    """The nodes to run on: those of the Tameike job, or only this machine outside a job."""

    def __init__(self, calls_per_node):
        self.in_job = "TAMEIKE_JOB" in os.environ
        self.count = int(os.environ["TAMEIKE_NODES"]) if self.in_job else 1
        self.own = int(os.environ["TAMEIKE_NODE"]) if self.in_job else 0
        self._pools = [concurrent.futures.ThreadPoolExecutor(calls_per_node) for _ in range(self.count)]

    def run_all(self, calls, on_done):
        """Run (item, command) calls on the nodes round-robin; call `on_done(count)` after each.

        The first failure stops the calls that have not begun, and is raised.
        """
        pending = []
        for index, (item, command) in enumerate(calls):
            node = index % self.count
            pending.append(self._pools[node].submit(self.run, item, command, node))
        try:
            for count, future in enumerate(concurrent.futures.as_completed(pending), start=1):
                future.result()
                on_done(count)
        finally:
            for future in pending:
                future.cancel()

    def run(self, item, command, node=None):
        """Run one module on one item, on this node by default. Returns the fields of its result."""
        node = self.own if node is None else node
        command = [str(word) for word in command]
        what = f"{command[0]} ({item}, node {node})" if self.in_job else f"{command[0]} ({item})"
        if node != self.own:
            command = ["tameike", "exec", "--node", str(node), "--", *command]
        try:
            process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise Failed(f"{what}: no program {error.filename} on PATH (Montage's: apt-get install montage)") from None
        return check(what, process)


def check(what, process):
    """Returns the fields of a module's result. Raises Failed unless all of its items succeeded."""
    results = RESULT.findall(process.stdout)
    if not results:
        said = (process.stdout + process.stderr).strip()[-500:] or "nothing"
        raise Failed(f"{what}: exit status {process.returncode}, no result; it printed: {said}")
    fields = {name: quoted or plain for name, quoted, plain in FIELD.findall(results[-1])}
    trouble = any(TROUBLE.search(name) and value != "0" for name, value in fields.items())
    if fields.get("stat") != "OK" or trouble or process.returncode != 0:
        raise Failed(f"{what}: exit status {process.returncode}, it printed: [struct {results[-1]}]")
    return fields
