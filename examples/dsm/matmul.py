#!/usr/bin/env python3
"""Matrix product in a shared memory region, with the rows divided among the processes.

Usage: matmul.py PATH N RANK PROCESSES
Prints the seconds of the product, with its barriers, and the checksum, which does not depend on the number of processes. The
memory holds the same as that of matmul.c: rows here are columns there.
"""

import sys
import time

import numpy as np

from tameike import dsm


def main(path: str, n: int, rank: int, processes: int) -> None:
    with dsm.create(path, (3, n, n), float, processes=processes) as region:
        a, b, c = region.array()
        mine = slice(rank * n // processes, (rank + 1) * n // processes)
        rows, columns = np.ogrid[mine, :n]
        a[mine] = (columns + 2 * rows) % 17
        b[mine] = (3 * columns + rows) % 13
        region.barrier()

        start = time.monotonic()
        np.matmul(b[mine], a, out=c[mine])
        region.barrier()
        seconds = time.monotonic() - start

        if rank == 0:
            weights = np.arange(n * n) % 7 + 1
            print(f"{seconds:.6f} {c.ravel() @ weights:.0f}")
        # Before the others detach, which ends barriers.
        region.barrier()


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("usage: matmul.py PATH N RANK PROCESSES")
    main(sys.argv[1], *map(int, sys.argv[2:]))
