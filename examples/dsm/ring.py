#!/usr/bin/env python3
"""Gathers the blocks of all processes in each of them: ring.c in Python.

Every process passes blocks on to the next one in a ring, by puts with a signal into a remote memory window.

Usage: ring.py PATH RANK PROCESSES
The first process prints the seconds, and whether all blocks are correct.
"""

import sys
import time

import numpy as np

from tameike import win

COUNT = 1 << 17


def main(path: str, rank: int, ranks: int) -> None:
    # A word for each block, 1 when it is there, and the blocks.
    head, size = 8 * ranks, 8 * COUNT
    with win.create(path, head + ranks * size, rank, ranks) as window:
        blocks = window.array((ranks, COUNT), float, offset=head)
        blocks[rank] = rank + np.arange(COUNT) / 2

        start = time.monotonic()
        following = (rank + 1) % ranks
        for step in range(ranks - 1):
            # The own block first, and then each that has come from the other side.
            sent = (rank - step) % ranks
            received = (sent - 1) % ranks
            window.put_signal(following, head + sent * size, blocks[sent], signal_offset=8 * sent, signal=1)
            window.wait_until(8 * received, "==", 1)
        seconds = time.monotonic() - start

        if not (blocks == np.arange(ranks)[:, None] + np.arange(COUNT) / 2).all():
            sys.exit(f"ring: blocks are wrong in process {rank}")
        window.barrier()
        if rank == 0:
            print(f"{seconds:.6f} s, {ranks} blocks of {ranks} ranks are correct")
        del blocks
        window.free()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: ring.py PATH RANK PROCESSES")
    main(sys.argv[1], *map(int, sys.argv[2:]))
