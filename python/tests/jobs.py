"""A job of two nodes on this machine, in which tests run programs."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from conftest import library, program

LIMIT_SECONDS = 120


class Job:
    """A job of two nodes; ``worker`` is the program, beside this file."""

    def __init__(self, name: str, worker: str) -> None:
        self.worker = Path(__file__).with_name(worker)
        self.name = f"python-{os.getpid()}-{name}"
        # Sockets of the job need a short path.
        self.directory = Path(tempfile.mkdtemp(prefix="tk"))
        self.environment = {**os.environ, "TMPDIR": str(self.directory), "TAMEIKE_LIBRARY": library()}
        self.environment.pop("TAMEIKE_JOB", None)
        self.runs = 0
        (self.directory / "shared").mkdir()
        self.tameike("up", "--local", "2", "--shared", self.directory / "shared", "--job", self.name)

    def tameike(self, *arguments: object, codes: Sequence[int] = (0,)) -> str:
        command = [program(), *map(str, arguments)]
        ended = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=LIMIT_SECONDS)
        assert ended.returncode in codes, f"{command}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def close(self, has_failed: bool = False) -> None:
        try:
            self.tameike("down", "--job", self.name, codes=(75,) if has_failed else (0,))
            if has_failed:
                self.tameike("recover", "--job", self.name, codes=(0, 75))
        finally:
            shutil.rmtree(self.directory)

    def run(
        self,
        nodes: Sequence[int],
        task: str,
        argument: str = "",
        mechanism: str = "userfaultfd",
        codes: Optional[Sequence[int]] = None,
        preload: bool = False,
    ) -> list[str]:
        """Runs a process on each of these nodes at the same time. Returns their output."""
        self.runs += 1
        flags = self.directory / f"flags-{self.runs}"
        flags.mkdir()
        processes = []
        for rank, node in enumerate(nodes):
            values = {"TAMEIKE_DSM": mechanism, "FLAGS": str(flags), "TAMEIKE_LIBRARY": library()}
            if preload:
                values["LD_PRELOAD"] = library("preload")
            words = [word for name, value in values.items() for word in ("-x", f"{name}={value}")]
            command = [program(), "exec", "--job", self.name, "--node", str(node), *words, "--"]
            arguments = [task, f"memory-{self.runs}", str(rank), str(len(nodes)), argument]
            script = 'path=$TAMEIKE_SHARED/$4; exec "$1" "$2" "$3" "$path" "$5" "$6" "$7"'
            # The tests may run in the background of a shell, which ignores Ctrl-C there.
            command += ["env", "--default-signal=INT"]
            command += ["sh", "-c", script, "sh", sys.executable, str(self.worker), *arguments]
            processes.append(
                subprocess.Popen(
                    command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )
        try:
            outputs = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        expected = [0] * len(nodes) if codes is None else list(codes)
        assert [process.returncode for process in processes] == expected, "\n".join(outputs)
        return outputs
