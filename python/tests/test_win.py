"""Windows of Python programs on two nodes of a job; window_worker.py is the program."""

import json
import re
import signal
import sys
from collections.abc import Iterator, Sequence

import pytest
from conftest import ROOT, library, program
from jobs import Job


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    job = Job("windows", "window_worker.py")
    yield job
    job.close()


@pytest.mark.parametrize(("nodes", "near"), [((0, 1, 0, 1), 2), ((1, 1), 2), ((0,), 1)])
def test_puts_and_gets_reach_all_ranks(job: Job, nodes: Sequence[int], near: int) -> None:
    job.run(nodes, "transfers", str(near))


@pytest.mark.parametrize("task", ["elements", "signals", "words", "messages", "numbers"])
@pytest.mark.parametrize("nodes", [(0, 1, 1, 0), (1, 1)])
def test_calls_reach_ranks_of_all_nodes(job: Job, nodes: Sequence[int], task: str) -> None:
    job.run(nodes, task)


def test_wrong_arguments_and_paths_raise(job: Job) -> None:
    job.run((1,), "errors")


@pytest.mark.parametrize("nodes", [(0, 1, 1, 0, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("how", ["signal", "detach"])
def test_waits_fail_when_a_rank_ends(job: Job, how: str, nodes: Sequence[int]) -> None:
    codes = [0] * (len(nodes) - 1) + [128 + signal.SIGKILL if how == "signal" else 0]
    job.run(nodes, "killed", how, codes=codes)


@pytest.mark.parametrize("task", ["lifetime", "many"])
def test_memory_stays_mapped_while_it_is_used(job: Job, task: str) -> None:
    job.run((0, 0, 1, 1), task)


@pytest.mark.parametrize("how", ["barrier", "exit", "free", "wait", "receive", "send", "create"])
def test_signals_interrupt_waits(job: Job, how: str) -> None:
    job.run((0, 1), "interrupt", how)


def test_a_message_that_arrives_with_a_signal_is_not_lost(job: Job) -> None:
    job.run((0,), "arrival")


def test_waits_let_other_threads_run(job: Job) -> None:
    job.run((0,), "threads")


def test_children_do_not_have_the_memory(job: Job) -> None:
    job.run((1,), "children")


def test_calls_fail_after_the_failure_of_an_agent() -> None:
    job = Job("window-lost", "window_worker.py")
    try:
        [found] = json.loads(job.tameike("status", "--job", job.name, "--json"))
        agent = found["running"]["nodes"][1]["status"]["pid"]
        outputs = job.run((0, 1), "lost", str(agent))
    finally:
        job.close(has_failed=True)
    assert outputs == ["calls have failed\n"] * 2


def test_blocks_are_gathered_around_a_ring(job: Job) -> None:
    """The example of a ring, which checks the blocks itself."""
    starts = [
        f'"$1" exec --node {rank % 2} -- "$2" "$3" "$TAMEIKE_SHARED/ring" {rank} 3 & pids="$pids $!"'
        for rank in range(3)
    ]
    script = "\n".join(["pids=", *starts, "for pid in $pids; do wait $pid || exit; done"])
    command = [
        "exec",
        "--job",
        job.name,
        "-x",
        f"TAMEIKE_LIBRARY={library()}",
        "--",
        "sh",
        "-c",
        script,
        "sh",
        program(),
    ]
    output = job.tameike(*command, sys.executable, ROOT / "examples/dsm/ring.py")
    assert re.fullmatch(r"[0-9.]+ s, 3 blocks of 3 ranks are correct\n", output), output
