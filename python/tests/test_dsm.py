"""Regions of Python programs on two nodes of a job; region_worker.py is the program."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, library, program
from jobs import Job

#: Mechanisms by which a process detects accesses.
MECHANISMS = ("userfaultfd", "mprotect")


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    job = Job("regions", "region_worker.py")
    yield job
    job.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("nodes", [(0, 1, 0, 1), (1, 1)])
def test_processes_share_all_bytes_of_a_page(job: Job, nodes: Sequence[int], mechanism: str) -> None:
    job.run(nodes, "share", mechanism=mechanism)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_store_is_visible_after_flush_and_update(job: Job, mechanism: str) -> None:
    job.run((0, 1), "flush", mechanism=mechanism)


def test_arrays_have_any_shape_and_dtype(job: Job) -> None:
    job.run((1,), "layouts")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_locks_and_additions_are_exact(job: Job, mechanism: str) -> None:
    job.run((0, 1, 0, 1), "locked", mechanism=mechanism)


def test_processes_of_all_nodes_allocate_blocks(job: Job) -> None:
    job.run((0, 1, 0, 1), "blocks")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("how", ["signal", "exit", "return"])
def test_barriers_fail_when_a_process_ends(job: Job, how: str, mechanism: str) -> None:
    codes = (0, 0, 128 + signal.SIGKILL if how == "signal" else 0)
    job.run((0, 1, 1), "killed", how, mechanism, codes)


def test_wrong_arguments_and_paths_raise(job: Job) -> None:
    job.run((1,), "errors")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("task", ["lifetime", "many"])
def test_memory_stays_mapped_while_it_is_used(job: Job, task: str, mechanism: str) -> None:
    job.run((1,), task, mechanism=mechanism)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("how", ["touched", "preloaded"])
def test_system_calls_use_the_memory(job: Job, how: str, mechanism: str) -> None:
    job.run((1,), "calls", how, mechanism, preload=how == "preloaded")


@pytest.mark.parametrize("how", ["barrier", "lock", "exit"])
def test_signals_interrupt_waits(job: Job, how: str) -> None:
    job.run((0, 1), "interrupt", how)


def test_waits_let_other_threads_run(job: Job) -> None:
    job.run((0,), "threads")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("how", ["before", "twice"])
def test_fault_handlers_of_python_show_other_faults(job: Job, how: str, mechanism: str) -> None:
    [output] = job.run((0,), "faults", how, mechanism, [128 + signal.SIGSEGV])
    assert output.startswith("no fault yet\n"), output
    assert output.count("Fatal Python error: Segmentation fault") == 1 and "in faults" in output, output


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_attach_themselves(job: Job, method: str) -> None:
    job.run((1,), "workers", method)


def test_calls_and_accesses_fail_after_the_failure_of_an_agent() -> None:
    job = Job("lost", "region_worker.py")
    try:
        [found] = json.loads(job.tameike("status", "--job", job.name, "--json"))
        agent = found["running"]["nodes"][1]["status"]["pid"]
        outputs = job.run((0, 1), "lost", str(agent), codes=(0, 128 + signal.SIGBUS))
    finally:
        job.close(has_failed=True)
    assert outputs[0] == "the barrier has failed\n"
    assert outputs[1].startswith("calls have failed\nFatal Python error: Bus error") and "in lost" in outputs[1]


def outside_a_job(code: str, **variables: str) -> str:
    """The error of a program outside a job."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TAMEIKE")}
    environment = {**environment, "PATH": "/usr/bin:/bin", **variables}
    command = [
        sys.executable,
        "-c",
        f"from tameike import dsm\ntry: {code}\nexcept OSError as error: print(repr(error))",
    ]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.so").touch()
    code = "dsm.create('/tmp/region', 1)"
    for variables, text in (
        ({}, "cannot load libtameike.so.0: install Tameike, or name the library in TAMEIKE_LIBRARY"),
        ({"TAMEIKE_LIBRARY": "/no/such.so"}, "/no/such.so: cannot open"),
        ({"TAMEIKE_LIBRARY": str(tmp_path / "empty.so")}, "file too short"),
    ):
        error = outside_a_job(code, **variables)
        assert error.startswith(f"OSError({errno.ELIBACC}, ") and text in error, error
    error = outside_a_job(code, TAMEIKE_LIBRARY="libm.so.6")
    assert error.startswith(f"OSError({errno.ELIBBAD}, ") and "no function tameike_dsm_create" in error, error


def test_the_library_is_found_beside_the_program(tmp_path: Path) -> None:
    for path in ("bin", "lib", "link"):
        (tmp_path / path).mkdir()
    (tmp_path / "bin/tameike").touch(0o755)
    (tmp_path / "link/tameike").symlink_to(tmp_path / "bin/tameike")
    (tmp_path / "lib/libtameike.so.0").symlink_to(library())
    for directory in ("bin", "link"):
        error = outside_a_job("dsm.attach('/tmp')", PATH=f"{tmp_path / directory}")
        assert error.startswith(f"OSError({errno.EOPNOTSUPP}, ") and "not in a job" in error, error


def test_the_package_needs_no_numpy(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('no NumPy')")
    error = outside_a_job("dsm.create('/tmp/region', 1)", TAMEIKE_LIBRARY=library(), PYTHONPATH=str(tmp_path))
    assert "not in a job" in error, error


def test_matrices_are_multiplied_by_two_processes(job: Job) -> None:
    """The example of a product of matrices; its checksum is that of all examples."""
    size = 60
    at = np.arange(size)
    a = (at[None, :] + 2 * at[:, None]) % 17
    b = (3 * at[None, :] + at[:, None]) % 13
    expected = int(((b @ a).ravel() * (np.arange(size * size) % 7 + 1)).sum())
    example = ROOT / "examples/dsm/matmul.py"
    for processes in (1, 2):
        path = f"$TAMEIKE_SHARED/matrices-{processes}"
        starts = [
            f'"$1" exec --node {rank} -- "$2" "$3" {path} {size} {rank} {processes} & pids="$pids $!"'
            for rank in range(processes)
        ]
        script = "\n".join(["pids=", *starts, "for pid in $pids; do wait $pid || exit; done"])
        variable = f"TAMEIKE_LIBRARY={library()}"
        command = ["exec", "--job", job.name, "-x", variable, "--", "sh", "-c", script, "sh", program()]
        output = job.tameike(*command, sys.executable, example)
        assert re.fullmatch(rf"[0-9.]+ {expected}\n", output), output
