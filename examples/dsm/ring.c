/* Gathers the blocks of all processes in each of them: every process passes blocks on to the next one in a ring, by puts with a signal into
 * a remote memory window.
 *
 * Usage: ring PATH RANK PROCESSES
 * The first process prints the seconds, and whether all blocks are correct. */
#define _POSIX_C_SOURCE 200809L
#include "tameike.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COUNT = 1 << 17 };

/* The memory of each process. */
struct blocks {
    /* One for each block, 1 when it is there. */
    uint64_t here[1024];
    double block[][COUNT];
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void check(int result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "ring: %s: %s\n", what, strerror(-result));
        exit(1);
    }
}

int main(int argc, char **argv)
{
    unsigned rank = argc == 4 ? (unsigned)atoi(argv[2]) : 0, ranks = argc == 4 ? (unsigned)atoi(argv[3]) : 0;
    if (ranks == 0 || ranks > 1024) {
        fprintf(stderr, "usage: ring PATH RANK PROCESSES\n");
        return 2;
    }
    tameike_win *win;
    uint64_t size = sizeof(struct blocks) + ranks * sizeof(double[COUNT]);
    check(tameike_win_create(argv[1], size, rank, ranks, 0, &win), argv[1]);
    struct blocks *own = tameike_win_address(win, rank);
    for (size_t at = 0; at < COUNT; at++)
        own->block[rank][at] = rank + at / 2.0;

    double start = now();
    unsigned next = (rank + 1) % ranks;
    for (unsigned step = 0; step + 1 < ranks; step++) {
        /* The own block first, and then each that has come from the other side. */
        unsigned sent = (rank + ranks - step) % ranks, received = (sent + ranks - 1) % ranks;
        uint64_t offset = sizeof(struct blocks) + sent * sizeof(double[COUNT]);
        check(tameike_win_put_signal(win, next, offset, own->block[sent], sizeof(double[COUNT]), 8 * sent, 1,
                                     TAMEIKE_WIN_SET), "put");
        check(tameike_win_wait_until(win, 8 * received, TAMEIKE_WIN_EQ, 1, -1), "wait");
    }
    double seconds = now() - start;

    for (unsigned block = 0; block < ranks; block++)
        for (size_t at = 0; at < COUNT; at++)
            if (own->block[block][at] != block + at / 2.0) {
                fprintf(stderr, "ring: block %u is wrong in process %u\n", block, rank);
                return 1;
            }
    check(tameike_win_barrier(win), "barrier");
    if (rank == 0)
        printf("%.6f s, %u blocks of %u ranks are correct\n", seconds, ranks, ranks);
    check(tameike_win_free(win), "free");
    return 0;
}
