#!/usr/bin/env python3
"""Reads all files of a container in random order, epoch by epoch: epochs.py CONTAINER [--epochs N] [--workers N]"""

import argparse
import multiprocessing
import random
import time

import tameike


def read(work):
    """Bytes of these files, read by one worker."""
    container, paths = work
    return sum(len(container.read_bytes(path)) for path in paths)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("container")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    container = tameike.Container(options.container)
    paths = [entry.path for entry in container.walk() if entry.is_file()]
    with multiprocessing.Pool(options.workers) as pool:
        for epoch in range(options.epochs):
            random.Random(epoch).shuffle(paths)
            begin = time.monotonic()
            parts = [(container, paths[worker :: options.workers]) for worker in range(options.workers)]
            size = sum(pool.map(read, parts))
            rate = size / 2**20 / (time.monotonic() - begin)
            print(f"epoch {epoch}: {len(paths)} files, {size} bytes, {rate:.0f} MiB/s")


if __name__ == "__main__":
    main()
