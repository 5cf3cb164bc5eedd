"""A rank of a program that has a window: ``window_worker.py TASK PATH RANK RANKS [ARGUMENT]``.

It runs in a job of test_win.py, and ends with an exception if something is not as expected.
"""

import errno
import os
import pickle
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import window_ends
from window_ends import PATIENCE, after_detach, near_ranks
from worker import Communicator, fails, raises

from tameike import win

#: Of the memory that words and queues use.
HEAD = 4096


def values(size: int, writer: int, turn: int) -> Any:
    return (np.arange(size) * 7 + writer * 31 + turn * 57 + 1).astype("u1")


def transfers(path: str, rank: int, ranks: int, near: str) -> None:
    """Each rank puts bytes to all, and gets those of all."""
    part = (2 << 20) + 12345
    with win.create(path, HEAD + ranks * part, rank, ranks) as window:
        assert (window.rank, window.ranks, window.size) == (rank, ranks, HEAD + ranks * part)
        assert len(near_ranks(window)) == int(near) and window.is_near(rank) and repr(path) in repr(window)
        own = window.array()
        assert own.dtype == "u1" and own.size == window.size and not own.any()
        window.barrier()
        for other in range(ranks):
            data = values(part, rank, other)
            window.put(other, HEAD + part * rank, data)
            # The source may change.
            data[:] = 0xEE
        window.barrier()
        for other in range(ranks):
            at = HEAD + part * other
            np.testing.assert_array_equal(own[at : at + part], values(part, other, rank))
            assert bytes(window.memory[at : at + 9]) == values(9, other, rank).tobytes()
            for owner in range(ranks):
                found = np.zeros(part, "u1")
                window.get(owner, at, found)
                np.testing.assert_array_equal(found, values(part, other, owner))
                if window.is_near(owner):
                    seen = window.array(part, offset=at, rank=owner)
                    np.testing.assert_array_equal(seen, found)
                else:
                    with raises(ValueError, "process of another node"):
                        window.array(part, offset=at, rank=owner)
        window.barrier()
        put_and_get_buffers(window, HEAD + part * rank)
        window.barrier()
    assert "detached" in repr(window)


def put_and_get_buffers(window: win.Window, at: int) -> None:
    """All kinds of buffers, of any layout."""
    table = np.arange(60, dtype=">i4").reshape(6, 10)
    record = np.zeros(5, [("time", "M8[s]"), ("count", "i2")])
    record["count"] = range(5)
    for other in range(window.ranks):
        for data in (b"bytes\0 and more", bytearray(b"changes"), memoryview(b"0123456789")[::3], table.tobytes()):
            window.put(other, at, data)
            window.quiet()
            found = bytearray(len(bytes(data)))
            window.get(other, at, found)
            assert found == bytes(data), data
        for array in (table, table.T, table[::-2, 1::3], np.asfortranarray(table), record, table[3, 3], table[:0]):
            window.put(other, at, array)
            window.quiet()
            for into in (np.zeros_like(array, order="C"), np.asfortranarray(np.zeros_like(array))):
                if into.ndim > 0:
                    window.get(other, at, into)
                    np.testing.assert_array_equal(into, array)
        every_second = np.zeros((6, 20), ">i4")
        window.put(other, at, table)
        window.quiet()
        window.get(other, at, every_second[:, ::2])
        np.testing.assert_array_equal(every_second[:, ::2], table)
        assert not every_second[:, 1::2].any()


def elements(path: str, rank: int, ranks: int, _: str) -> None:
    """Columns of tables, and other elements with gaps."""
    rows, columns = 500, 24
    size = rows * columns * 8
    with win.create(path, HEAD + ranks * size, rank, ranks) as window:
        own = window.array((ranks, rows, columns), "f8", HEAD)
        column = np.random.default_rng(rank).random((rows, columns))
        window.barrier()
        for other in range(ranks):
            start = HEAD + size * rank
            # A column to another place, two columns, and one of a table in the other order.
            window.iput(other, start + 8 * 5, column[:, 2], columns)
            window.iput(other, start + 8 * 8, column[:, 4:6], columns // 2)
            window.iput(other, start + 8 * 11, np.asfortranarray(column)[::-1, 7], columns)
            # Elements of 24 bytes at distances that are no multiples.
            window.iput(other, start + 8 * 12, column[:, :20].reshape(-1)[: rows * 20].reshape(rows, 20)[:, 3:6], 8)
        window.barrier()
        for other in range(ranks):
            expected = np.zeros((rows, columns))
            table = np.random.default_rng(other).random((rows, columns))
            expected[:, 5], expected[:, 8:10], expected[:, 11] = table[:, 2], table[:, 4:6], table[::-1, 7]
            expected[:, 12:15] = table[:, 3:6]
            np.testing.assert_array_equal(own[other], expected)
            for owner in range(ranks):
                found = np.zeros((rows, 7))
                start = HEAD + size * other
                window.iget(owner, start + 8 * 8, found[:, 1], columns)
                window.iget(owner, start + 8 * 8, found[:, 2:4], columns // 2)
                window.iget(owner, start + 8 * 12, found[::-1, 4:7], columns // 3)
                np.testing.assert_array_equal(found[:, 1], expected[:, 8])
                np.testing.assert_array_equal(found[:, 2:4], expected[:, 8:10])
                np.testing.assert_array_equal(found[::-1, 4:7], expected[:, 12:15])
                assert not found[:, 0].any()
        window.barrier()
        end = HEAD + ranks * size
        window.iput(0, end, column[:0])
        window.iput(0, end - 8, column[:1, 1], 1000)
        for stride, offset in ((2, end - 16), (1, end - 8), (1 << 60, 0)):
            with raises(ValueError, "bytes from byte"):
                window.iput(0, offset, column[:2, 1], stride)
        with raises(ValueError, "stride is 0"):
            window.iget(0, 0, column[:, 1], 0)
        for wrong in (b"bytes", 5.0, column[0, 0], np.array(7.0)):
            with raises(TypeError, "NumPy array"):
                window.iput(0, 0, wrong)
        window.barrier()


def signals(path: str, rank: int, ranks: int, _: str) -> None:
    """A rank that sees a signal sees the data before it."""
    with win.create(path, 2 * HEAD, rank, ranks) as window:
        for value in (4, 5, 6):
            window.put(rank, 80, np.uint64(value))
            for comparison, holds in (
                ("==", value == 5),
                ("!=", value != 5),
                (">", value > 5),
                (">=", value >= 5),
                ("<", value < 5),
                ("<=", value <= 5),
            ):
                assert window.test(80, comparison, 5) == holds  # type: ignore[arg-type]
                if holds:
                    window.wait_until(80, comparison, 5, timeout=0)  # type: ignore[arg-type]
        begun = time.monotonic()
        for timeout in (0, 0.01, 0.25):
            try:
                window.wait_until(80, "==", 5, timeout)
            except TimeoutError as error:
                assert error.errno == errno.ETIMEDOUT and f"within {timeout} seconds" in str(error)
            else:
                raise AssertionError("no TimeoutError")
        assert 0.26 <= time.monotonic() - begun < 20
        window.barrier()
        for other in range(ranks):
            window.put_signal(other, 128 + 8 * rank, np.uint64(rank + 1), 88, 1, "add")
        window.wait_until(88, "==", ranks, PATIENCE)
        assert window.array(ranks, "u8", 128).tolist() == list(range(1, ranks + 1))
        following = (rank + 1) % ranks
        for turn in range(1, 51):
            data = values(turn * 37, rank, turn)
            if turn % 2:
                window.put_signal(following, HEAD, data, 96, turn)
            else:
                window.put(following, HEAD, data)
                window.fence()
                window.put(following, 96, np.uint64(turn))
            window.wait_until(96, ">=", turn)
            np.testing.assert_array_equal(
                window.array(turn * 37, offset=HEAD), values(turn * 37, (rank - 1) % ranks, turn)
            )
            window.barrier()
        window.put_signal(following, 0, b"", 96, 2**64 - 1)
        window.wait_until(96, "==", 2**64 - 1, PATIENCE)
        window.barrier()


def words(path: str, rank: int, ranks: int, _: str) -> None:
    """Atomic operations of all ranks on the same words are exact."""
    rounds = 100
    with win.create(path, HEAD, rank, ranks) as window:
        last = rank + 1
        for turn in range(rounds):
            before = window.fetch_add(0, 0, 3)
            assert before % 3 == 0 and before < 3 * rounds * ranks
            expected = window.fetch(0, 8)
            while (seen := window.compare_swap(0, 8, expected, expected + 1)) != expected:
                expected = seen
            last = window.swap(0, 16, last)
            window.fetch_add(turn % ranks, 32)
            window.fetch_add(0, 40, -1)
        # Each value is with one rank, or in the word.
        window.fetch_add(0, 24, last)
        window.barrier()
        assert window.fetch(0, 0) == 3 * rounds * ranks and window.fetch(0, 8) == rounds * ranks
        assert window.fetch(0, 16) + window.fetch(0, 24) == ranks * (ranks + 1) // 2
        assert sum(window.fetch(other, 32) for other in range(ranks)) == rounds * ranks
        assert window.fetch(0, 40) == 2**64 - rounds * ranks
        window.barrier()


def messages(path: str, rank: int, ranks: int, _: str) -> None:
    """Messages of all ranks to all arrive in the order of each sender."""
    place, slots, size, count = 1024, 8, 100, 40
    with win.create(path, 8192, rank, ranks) as window:
        assert win.queue_size(slots, size) <= 8192 - place
        own = window.create_queue(place, slots, size)
        window.barrier()
        queues = [window.queue(other, place) for other in range(ranks)]
        with raises(TimeoutError, "receive: nothing within 0 seconds"):
            own.receive(timeout=0)
        for queue in queues:
            with fails(errno.EMSGSIZE, "larger than those of the queue"):
                queue.send(bytes(size + 1), timeout=0)
        window.barrier()
        for turn in range(count):
            length = (turn * 7) % (size - 8) + 8
            for queue in queues:
                data = np.full(length, turn, "u1")
                data[0] = rank
                queue.send(data, PATIENCE)
            received = {}
            for _step in range(ranks):
                message = own.receive(PATIENCE)
                assert len(message) == length and set(message[1:]) == {turn}
                received[message[0]] = message
            assert len(received) == ranks
            window.barrier()
        following = queues[(rank + 1) % ranks]
        for number in range(slots):
            following.send(b"%d" % number)
        for timeout in (0, 0.2):
            with raises(TimeoutError, f"send: nothing within {timeout} seconds"):
                following.send(b"full", timeout)
        window.barrier()
        assert [own.receive() for _ in range(slots)] == [b"%d" % number for number in range(slots)]
        own.send(b"")
        assert own.receive(0) == b""
        receive_by_threads(window, own)
        window.barrier()


def receive_by_threads(window: win.Window, own: win.OwnQueue) -> None:
    """Other threads than the main one send and receive."""
    received: list[bytes] = []

    def work() -> None:
        for _ in range(20):
            received.append(own.receive(PATIENCE))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(40):
        own.send(b"%d" % number, PATIENCE)
    for thread in threads:
        thread.join()
    assert sorted(map(int, received)) == list(range(40))


def numbers(path: str, rank: int, ranks: int, _: str) -> None:
    """Rank and number of ranks are those of a communicator, or of the environment."""
    window = win.create(path, 8, comm=Communicator(rank, ranks))
    assert (window.rank, window.ranks) == (rank, ranks)
    window.free()
    os.environ.update(OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_SIZE=str(ranks))
    window = win.create(path, 8)
    assert (window.rank, window.ranks) == (rank, ranks)
    window.free()


def errors(path: str, rank: int, ranks: int, _: str) -> None:
    """Wrong arguments, paths and sizes."""
    for arguments, text in (
        ((0, 0, 1), "size is 0"),
        ((-1, 0, 1), "size"),
        ((1 << 64, 0, 1), "size"),
        ((8, 1, 1), "less than the number of ranks"),
        ((8, -1, 1), "rank"),
        ((8, 0, 0), "less than the number of ranks"),
        ((8, 0, None), "pass both"),
        ((8, None, 1), "pass both"),
    ):
        with raises(ValueError, text):
            win.create(path, *arguments)
    for wrong in ("1", 1.5, None):
        with raises(TypeError, ""):
            win.create(path, wrong, 0, 1)  # type: ignore[arg-type]
    with raises(ValueError, "NUL"):
        win.create(path + "\0", 8, 0, 1)
    with raises(ValueError, "`comm` gives"):
        win.create(path, 8, 0, 1, comm=Communicator())
    with fails(errno.ENOMEM, "smaller size"):
        win.create(path, 1 << 44, 0, 1)
    for directory in (os.environ["FLAGS"], os.environ["TAMEIKE_CACHE"], os.environ["TAMEIKE_NODE_LOCAL"]):
        with fails(errno.EOPNOTSUPP, "below TAMEIKE_SHARED"):
            win.create(os.path.join(directory, "window"), 8, 0, 1)
    Path(path).write_bytes(b"content")
    with fails(errno.EEXIST, "not empty"):
        win.create(path, 8, 0, 1)
    os.unlink(path)
    create_twice(path)
    window = win.create(os.fsencode(path), 8192, comm=Communicator())
    assert window.path == path and window.ranks == 1
    use_wrongly(window)
    window.free()
    assert not os.path.exists(path)
    after_detach(window, path)
    # Without numbers, those of the environment, or one rank.
    with win.create(path, 8) as window:
        assert (window.rank, window.ranks) == (0, 1)
        window.free()


def create_twice(path: str) -> None:
    """Two threads as the same rank: one of them waits for the other rank."""
    found: list[Any] = []

    def create() -> None:
        try:
            found.append(win.create(path, 8192, 0, 2))
        except OSError as error:
            found.append(error)

    threads = [threading.Thread(target=create) for _ in range(2)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + PATIENCE
    while not found:
        assert time.monotonic() < until
        time.sleep(0.01)
    with fails(errno.EEXIST, "same rank"):
        raise found.pop()
    with fails(errno.EINVAL, "same size and number of ranks"):
        win.create(path, 4096, 1, 2)
    win.create(path, 8192, 1, 2).detach()
    for thread in threads:
        thread.join()
    found.pop().detach()


def use_wrongly(window: win.Window) -> None:
    word = np.zeros(1, "u8")
    for rank in (-1, 1, 1 << 40):
        for call in (lambda at: window.put(at, 0, word), lambda at: window.fetch(at, 0), window.is_near):
            with raises(ValueError, "has 1 ranks"):
                call(rank)
        with raises(ValueError, "has 1 ranks"):
            window.array(rank=rank)
    for offset in (-8, window.size - 7, window.size, 1 << 64):
        for access in (
            lambda at: window.put(0, at, word),
            lambda at: window.get(0, at, word),
            lambda at: window.put_signal(0, at, word, 0, 1),
            lambda at: window.array(8, "u1", at),
        ):
            with raises(ValueError, ""):
                access(offset)
    window.put(0, window.size, word[:0])
    assert window.array(offset=window.size).size == 0
    for offset in (4, -8, window.size):
        for change in (
            lambda at: window.fetch_add(0, at),
            lambda at: window.wait_until(at, "==", 0),
            lambda at: window.put_signal(0, 0, word, at, 1),
            lambda at: window.create_queue(at, 1, 8),
        ):
            with raises(ValueError, "byte"):
                change(offset)
    for wrong in (-1, 1 << 64):
        for store in (
            lambda value: window.swap(0, 0, value),
            lambda value: window.compare_swap(0, 0, 0, value),
            lambda value: window.test(0, "==", value),
            lambda value: window.put_signal(0, 0, word, 0, value),
        ):
            with raises(ValueError, "at least 0"):
                store(wrong)
    with raises(ValueError, "64 bits"):
        window.fetch_add(0, 0, 1 << 64)
    with raises(ValueError, "one of == !="):
        window.test(0, "=", 0)  # type: ignore[arg-type]
    with raises(ValueError, "one of set, add"):
        window.put_signal(0, 0, word, 0, 1, "or")  # type: ignore[arg-type]
    for timeout in (-1, float("nan")):
        with raises(ValueError, "seconds, or None"):
            window.wait_until(0, "==", 1, timeout)
    for data in (5, "text", None):
        with raises(TypeError, ""):
            window.put(0, 0, data)
    with raises(ValueError, "fixed size"):
        window.put(0, 0, np.array([None]))
    word.flags.writeable = False
    for into in (word, b"bytes", memoryview(b"bytes")):
        with raises(ValueError, "read-only"):
            window.get(0, 0, into)
    with raises(ValueError, "not contiguous"):
        window.get(0, 0, memoryview(bytearray(9))[::2])
    with fails(errno.EINVAL, "no queue at this offset"):
        window.queue(0, 4096).send(b"message", 0)
    for slots, size in ((0, 8), (1 << 63, 1 << 63), (1 << 61, 8)):
        with raises(ValueError, "queue"):
            win.queue_size(slots, size)
    with raises(ValueError, "bytes from byte"):
        window.create_queue(0, 1, window.size)
    with raises(TypeError, "pass the path on"):
        pickle.dumps(window)


TASKS = [transfers, elements, signals, words, messages, numbers, errors, *window_ends.TASKS]

if __name__ == "__main__":
    task, path, rank, ranks, argument = sys.argv[1:]
    {function.__name__: function for function in TASKS}[task](path, int(rank), int(ranks), argument)
