/* Two-dimensional heat equation: each process updates its rows of a grid in a shared memory region, and reads the rows beside them.
 *
 * Usage: heat PATH N STEPS RANK PROCESSES [shared-pages]
 * Prints the seconds of the steps and a checksum of the grid, which does not depend on the number of processes.
 *
 * If rows are whole pages, no page has rows of two processes, and the region has the flag for that; not with "shared-pages". */
#define _POSIX_C_SOURCE 200809L
#include "tameike.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void check(int result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "heat: %s: %s\n", what, strerror(-result));
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc != 6 && (argc != 7 || strcmp(argv[6], "shared-pages") != 0)) {
        fprintf(stderr, "usage: heat PATH N STEPS RANK PROCESSES [shared-pages]\n");
        return 2;
    }
    size_t n = strtoul(argv[2], NULL, 10), steps = strtoul(argv[3], NULL, 10);
    size_t rank = strtoul(argv[4], NULL, 10), processes = strtoul(argv[5], NULL, 10);
    unsigned flags = argc == 6 && n * sizeof(double) % 4096 == 0 ? TAMEIKE_DSM_ONE_WRITER : 0;
    tameike_dsm *region;
    check(tameike_dsm_create(argv[1], 2 * n * n * sizeof(double), processes, flags, &region), argv[1]);
    double *before = tameike_dsm_address(region), *after = before + n * n;
    size_t first = rank * n / processes, last = (rank + 1) * n / processes;

    for (size_t row = first; row < last; row++)
        for (size_t column = 0; column < n; column++) {
            before[row * n + column] = row == 0 ? 100 : (double)(column % 5);
            after[row * n + column] = before[row * n + column];
        }
    check(tameike_dsm_barrier(region), "barrier");

    double start = now();
    for (size_t step = 0; step < steps; step++) {
        for (size_t row = first > 1 ? first : 1; row < last && row + 1 < n; row++)
            for (size_t column = 1; column + 1 < n; column++) {
                const double *at = before + row * n + column;
                after[row * n + column] = 0.2 * (at[0] + at[-1] + at[1] + at[-(long)n] + at[n]);
            }
        check(tameike_dsm_barrier(region), "barrier");
        double *swap = before;
        before = after;
        after = swap;
    }
    double seconds = now() - start;

    if (rank == 0) {
        double sum = 0;
        for (size_t at = 0; at < n * n; at++)
            sum += before[at] * (double)(at % 7 + 1);
        printf("%.6f %.17g\n", seconds, sum);
    }
    check(tameike_dsm_barrier(region), "barrier");
    check(tameike_dsm_detach(region), "detach");
    return 0;
}
