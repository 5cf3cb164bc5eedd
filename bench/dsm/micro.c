/* Costs of single operations on shared memory regions and remote memory windows, and of the same accesses to ordinary shared memory.
 *
 * Usage: micro PATH PAGES ROUNDS RANK PROCESSES
 * All processes run it; process 0 measures, and the others wait in barriers. Prints for each operation and round a line
 * "OPERATION,ROUND,MICROSECONDS": the median of single accesses, or the mean of a loop per page or call. All data is checked. */
#define _GNU_SOURCE
#include "tameike.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, SINGLE = 512, CALLS = 10000, BARRIERS = 1000 };

static size_t pages;
static unsigned long round_number;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void check(int result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "micro: %s: %s\n", what, strerror(-result));
        exit(1);
    }
}

static void expect(int is_right, const char *what)
{
    if (!is_right) {
        fprintf(stderr, "micro: wrong data after %s\n", what);
        exit(1);
    }
}

static void report(const char *operation, double microseconds)
{
    printf("%s,%lu,%.3f\n", operation, round_number, microseconds);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare);
    return values[count / 2];
}

/* The page of step `step`: all pages in an order without sequences. */
static size_t shuffled(size_t step)
{
    return step * 7919 % pages;
}

/* The byte that a page has at first, everywhere. */
static unsigned char content(size_t page)
{
    return (unsigned char)(page * 31 + 7);
}

/* The median time of a load, or a store, for SINGLE pages in shuffled order. */
static double single(volatile unsigned char *memory, int is_store)
{
    static double times[SINGLE];
    for (size_t step = 0; step < SINGLE; step++) {
        volatile unsigned char *at = memory + shuffled(step) * PAGE + 8;
        double start = now();
        if (is_store)
            *at = (unsigned char)step;
        else
            (void)*at;
        times[step] = now() - start;
    }
    return median(times, SINGLE);
}

/* The mean time per page of a loop over all pages that loads, or stores `bytes` bytes. */
static double sequential(unsigned char *memory, size_t bytes, unsigned char value)
{
    unsigned long sum = 0;
    double start = now();
    for (size_t page = 0; page < pages; page++) {
        if (bytes == 0)
            sum += ((volatile unsigned char *)memory)[page * PAGE];
        else if (bytes == 1)
            ((volatile unsigned char *)memory)[page * PAGE] = value;
        else
            memset(memory + page * PAGE, value, bytes);
    }
    double mean = (now() - start) / (double)pages;
    if (bytes == 0) {
        unsigned long expected = 0;
        for (size_t page = 0; page < pages; page++)
            expected += value ? value : content(page);
        expect(sum == expected, "a loop of loads");
    }
    return mean;
}

static tameike_dsm *attach(const char *path, unsigned processes)
{
    tameike_dsm *region;
    check(tameike_dsm_create(path, pages * PAGE, processes, 0, &region), path);
    return region;
}

static double timed_flush(tameike_dsm *region, size_t changed)
{
    double start = now();
    check(tameike_dsm_flush(region), "flush");
    return (now() - start) / (double)changed;
}

/* Attaches again, so that all pages are absent. The others join, and wait until process 0 has measured. */
static void region_accesses(const char *path, unsigned processes, int measures)
{
    tameike_dsm *region = attach(path, processes);
    unsigned char *memory = tameike_dsm_address(region);
    if (measures) {
        report("read-fault", single(memory, 0));
        report("write-fault", single(memory, 1));
        report("flush-few-bytes", timed_flush(region, SINGLE));
        for (size_t step = 0; step < SINGLE; step++)
            memset(memory + shuffled(step) * PAGE, (int)step + 1, PAGE);
        report("flush-few-pages", timed_flush(region, SINGLE));
        for (size_t step = 0; step < SINGLE; step++)
            memset(memory + shuffled(step) * PAGE, content(shuffled(step)), PAGE);
    }
    check(tameike_dsm_barrier(region), "barrier");
    check(tameike_dsm_detach(region), "detach");

    region = attach(path, processes);
    memory = tameike_dsm_address(region);
    if (measures) {
        report("sequential-reads", sequential(memory, 0, 0));
        report("sequential-writes", sequential(memory, 1, 3));
        report("flush-bytes", timed_flush(region, pages));
        sequential(memory, PAGE, 5);
        report("flush-pages", timed_flush(region, pages));
        expect(memory[pages * PAGE - 1] == 5, "a flush");
    }
    check(tameike_dsm_barrier(region), "barrier");
    check(tameike_dsm_detach(region), "detach");

    region = attach(path, processes);
    memory = tameike_dsm_address(region);
    check(tameike_dsm_barrier(region), "barrier");
    double start = now();
    for (int count = 0; count < BARRIERS; count++)
        check(tameike_dsm_barrier(region), "barrier");
    if (measures) {
        report("barrier", (now() - start) / BARRIERS);
        report("sequential-first-writes", sequential(memory, PAGE, 9));
        for (size_t page = 0; page < pages; page++)
            memset(memory + page * PAGE, content(page), PAGE);
    }
    check(tameike_dsm_barrier(region), "barrier");
    check(tameike_dsm_detach(region), "detach");
}

static void ordinary_accesses(void)
{
    for (int turn = 0; turn < 3; turn++) {
        unsigned char *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        expect(memory != MAP_FAILED, "mmap");
        if (turn == 0)
            report("ordinary-fault", single(memory, 1));
        else if (turn == 1)
            report("ordinary-sequential-first-writes", sequential(memory, PAGE, 9));
        else
            report("ordinary-sequential-touch", sequential(memory, 1, 3));
        munmap(memory, pages * PAGE);
    }
}

/* Process 0 accesses the memory of the last process. */
static void window_accesses(const char *path, unsigned rank, unsigned processes)
{
    tameike_win *window;
    unsigned last = processes - 1;
    check(tameike_win_create(path, 1 << 16, rank, processes, 0, &window), path);
    if (rank == 0) {
        double start = now();
        for (uint64_t count = 0; count < CALLS; count++)
            check(tameike_win_put(window, last, count % 1024 * 8, &count, sizeof count), "put");
        report("put-8", (now() - start) / CALLS);
        check(tameike_win_quiet(window), "quiet");
        uint64_t value = 0, sum = 0;
        start = now();
        for (size_t count = 0; count < CALLS; count++) {
            check(tameike_win_get(window, last, count % 1024 * 8, &value, sizeof value), "get");
            sum += value;
        }
        report("get-8", (now() - start) / CALLS);
        uint64_t expected = 0;
        for (uint64_t count = 0; count < CALLS; count++)
            expected += (CALLS - 1 - count % 1024) / 1024 * 1024 + count % 1024;
        expect(sum == expected, "puts");
    }
    check(tameike_win_barrier(window), "barrier");
    double start = now();
    for (int count = 0; count < BARRIERS; count++)
        check(tameike_win_barrier(window), "barrier");
    if (rank == 0)
        report("window-barrier", (now() - start) / BARRIERS);
    check(tameike_win_detach(window), "detach");
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: micro PATH PAGES ROUNDS RANK PROCESSES\n");
        return 2;
    }
    const char *path = argv[1];
    pages = strtoul(argv[2], NULL, 10);
    unsigned long rounds = strtoul(argv[3], NULL, 10);
    unsigned rank = (unsigned)strtoul(argv[4], NULL, 10), processes = (unsigned)strtoul(argv[5], NULL, 10);
    char window[4096];
    if (pages < SINGLE || pages % 7919 == 0
        || (size_t)snprintf(window, sizeof window, "%s-window", path) >= sizeof window) {
        fprintf(stderr, "micro: needs at least %d pages, not a multiple of 7919, and a shorter path\n", SINGLE);
        return 2;
    }
    tameike_dsm *region = attach(path, processes);
    if (rank == 0)
        for (size_t page = 0; page < pages; page++)
            memset((unsigned char *)tameike_dsm_address(region) + page * PAGE, content(page), PAGE);
    check(tameike_dsm_barrier(region), "barrier");
    check(tameike_dsm_detach(region), "detach");
    for (round_number = 1; round_number <= rounds; round_number++) {
        if (rank == 0)
            ordinary_accesses();
        region_accesses(path, processes, rank == 0);
        window_accesses(window, rank, processes);
    }
    return 0;
}
