/* Matrix product C = A * B in a shared memory region, with the columns divided among the processes.
 *
 * Usage: matmul PATH N RANK PROCESSES
 * Prints the seconds of the product, with its barriers, and the checksum of C, which does not depend on the number of processes. */
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
        fprintf(stderr, "matmul: %s: %s\n", what, strerror(-result));
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: matmul PATH N RANK PROCESSES\n");
        return 2;
    }
    size_t n = strtoul(argv[2], NULL, 10);
    size_t rank = strtoul(argv[3], NULL, 10), processes = strtoul(argv[4], NULL, 10);
    tameike_dsm *region;
    check(tameike_dsm_create(argv[1], 3 * n * n * sizeof(double), processes, 0, &region), argv[1]);
    /* Columns are contiguous: a[column * n + row]. */
    double *a = tameike_dsm_address(region), *b = a + n * n, *c = b + n * n;
    size_t first = rank * n / processes, last = (rank + 1) * n / processes;

    for (size_t column = first; column < last; column++)
        for (size_t row = 0; row < n; row++) {
            a[column * n + row] = (double)((row + 2 * column) % 17);
            b[column * n + row] = (double)((3 * row + column) % 13);
        }
    check(tameike_dsm_barrier(region), "barrier");

    double start = now();
    for (size_t column = first; column < last; column++) {
        double *sums = c + column * n;
        for (size_t row = 0; row < n; row++)
            sums[row] = 0;
        for (size_t k = 0; k < n; k++) {
            double factor = b[column * n + k];
            for (size_t row = 0; row < n; row++)
                sums[row] += a[k * n + row] * factor;
        }
    }
    check(tameike_dsm_barrier(region), "barrier");
    double seconds = now() - start;

    if (rank == 0) {
        double sum = 0;
        for (size_t at = 0; at < n * n; at++)
            sum += c[at] * (double)(at % 7 + 1);
        printf("%.6f %.0f\n", seconds, sum);
    }
    /* Before the others detach, which ends barriers. */
    check(tameike_dsm_barrier(region), "barrier");
    check(tameike_dsm_detach(region), "detach");
    return 0;
}
