"""Programs that use HDF5 files with HDF5's locks enabled, for tests of files that nodes share."""

import errno
import os
import sys
import time

import h5py
import numpy

ROWS, COLUMNS = 64, 4001


def opened(path, mode):
    """Opens the file as soon as no other process has an excluding lock.

    HDF5 reads the file's size before it takes the lock: if another writer finishes in between, it treats the file with the
    old size as truncated, on any file system.
    """
    while True:
        try:
            return h5py.File(path, mode)
        except BlockingIOError as error:
            assert error.errno == errno.EAGAIN, error
        except OSError as error:
            if "truncated file: eof = " not in str(error):
                raise
        time.sleep(0.01)


def block(writer, number):
    return numpy.random.default_rng([int(writer), number]).integers(0, 1 << 40, (ROWS, COLUMNS))


def make(path):
    with h5py.File(path, "x") as file:
        file.create_dataset("count", data=0)
        file.create_dataset("log", (0, 3), maxshape=(None, 3), chunks=(16, 3), dtype="i8")


def work(path, writer, times):
    """Increments a counter, logs, and adds a compressed block, many times; other processes do the same."""
    for number in range(int(times)):
        with opened(path, "r+") as file:
            count = int(file["count"][()]) + 1
            file["count"][()] = count
            log = file["log"]
            log.resize(count, axis=0)
            log[count - 1] = int(writer), number, count
            file.create_dataset(f"writer-{writer}/block-{number}", data=block(writer, number), chunks=(16, 512), compression=1)


def check(path, writers, times):
    writers, times = int(writers), int(times)
    with opened(path, "r") as file:
        assert file["count"][()] == writers * times, file["count"][()]
        log = file["log"][:]
        assert sorted(log[:, 2]) == list(range(1, writers * times + 1)), log
        for writer in range(writers):
            assert list(log[log[:, 0] == writer, 1]) == list(range(times)), log
            for number in range(times):
                assert (file[f"writer-{writer}/block-{number}"][:] == block(writer, number)).all(), (writer, number)


def hold(path, mode, ready, go):
    with h5py.File(path, mode):
        open(ready, "w").close()
        while not os.path.exists(go):
            time.sleep(0.01)


def excluded(path, mode):
    try:
        h5py.File(path, mode).close()
    except BlockingIOError as error:
        assert error.errno == errno.EAGAIN, error
    else:
        raise AssertionError(f"opened with {mode} while another node has it open for writing")


def allowed(path, mode):
    h5py.File(path, mode).close()


if __name__ == "__main__":
    assert os.environ["HDF5_USE_FILE_LOCKING"] == "TRUE"
    globals()[sys.argv[1]](*sys.argv[2:])
