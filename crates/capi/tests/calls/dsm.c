/* A shared memory region: `dsm TASK PATH ...`, see the functions. Returns 0 if all is as expected. */
#define _GNU_SOURCE
#include "tameike.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, THREADS = 4, SURVIVED_PAGES = 64 };

static int fail(const char *what, long found) {
    printf("not so: %s: %ld\n", what, found);
    return 1;
}

#define EQUAL(call, expected)                                    \
    do {                                                         \
        long found = (call);                                     \
        if (found != (long)(expected)) return fail(#call, found); \
    } while (0)

static unsigned mechanism(const char *name) {
    if (strcmp(name, "one-writer") == 0) return TAMEIKE_DSM_ONE_WRITER;
    return strcmp(name, "mprotect") == 0 ? TAMEIKE_DSM_MPROTECT : 0;
}

/* The byte at a place after a round. */
static unsigned char value(size_t at, int round) {
    return (unsigned char)(at * 7 + at / PAGE + (size_t)round * 31 + 1);
}

struct part {
    volatile unsigned char *bytes;
    size_t size;
    int thread, rank, ranks, round;
    long wrong;
};

/* Writes all bytes of each `ranks`th page, in the pages of a thread. */
static void *store_pages(void *argument) {
    struct part *part = argument;
    for (size_t page = (size_t)part->thread; page < part->size / PAGE; page += THREADS)
        for (size_t at = page * PAGE; at < (page + 1) * PAGE; at++)
            if ((page + (size_t)part->round) % (size_t)part->ranks == (size_t)part->rank)
                part->bytes[at] = value(at, part->round);
    return NULL;
}

/* Writes each `ranks`th byte, in the pages of a thread. */
static void *store(void *argument) {
    struct part *part = argument;
    for (size_t page = (size_t)part->thread; page < part->size / PAGE; page += THREADS)
        for (size_t at = page * PAGE + (size_t)part->rank; at < (page + 1) * PAGE; at += (size_t)part->ranks)
            part->bytes[at] = value(at, part->round);
    return NULL;
}

/* Counts wrong bytes. */
static void *check(void *argument) {
    struct part *part = argument;
    for (size_t page = (size_t)part->thread; page < part->size / PAGE; page += THREADS)
        for (size_t at = page * PAGE; at < (page + 1) * PAGE; at++) part->wrong += part->bytes[at] != value(at, part->round);
    return NULL;
}

static long in_threads(void *(*task)(void *), struct part part) {
    pthread_t threads[THREADS];
    struct part parts[THREADS];
    long wrong = 0;
    for (int thread = 0; thread < THREADS; thread++) {
        parts[thread] = part;
        parts[thread].thread = thread;
        if (pthread_create(&threads[thread], NULL, task, &parts[thread]) != 0) abort();
    }
    for (int thread = 0; thread < THREADS; thread++) {
        pthread_join(threads[thread], NULL);
        wrong += parts[thread].wrong;
    }
    return wrong;
}

/* Writes the content of a region to a file by system calls. */
static int copy_to(const char *path, tameike_dsm *region) {
    const char *bytes = tameike_dsm_address(region);
    int copy = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (size_t at = 0; at < tameike_dsm_size(region); at += PAGE) {
        ssize_t written;
        do {
            EQUAL(tameike_dsm_touch(region, at, PAGE, 0), 0);
            /* The page may be evicted in between. */
            written = write(copy, bytes + at, PAGE);
        } while (written == -1 && errno == EFAULT);
        EQUAL(written, PAGE);
    }
    EQUAL(close(copy), 0);
    return 0;
}

/* `share PATH RANK RANKS MECHANISM PAGES ROUNDS COPY MEMORY`: every process writes its bytes of all pages, or with one writer per page all
 * bytes of its pages, and checks those of all. `COPY` gets the region's content by system calls. Pages are evicted if `MEMORY` is
 * "little". */
static int share(char **arguments) {
    int rank = atoi(arguments[1]), ranks = atoi(arguments[2]), rounds = atoi(arguments[5]);
    unsigned flags = mechanism(arguments[3]);
    size_t size = (size_t)atol(arguments[4]) * PAGE;
    tameike_dsm *region;
    tameike_dsm_counters stats;
    /* Not a whole page: it is rounded up. */
    EQUAL(tameike_dsm_create(arguments[0], size - 100, (unsigned)ranks, flags, &region), 0);
    EQUAL(tameike_dsm_size(region), size);
    unsigned char *bytes = tameike_dsm_address(region);
    for (int round = 0; round < rounds; round++) {
        struct part part = {bytes, size, 0, rank, ranks, round, 0};
        in_threads(flags == TAMEIKE_DSM_ONE_WRITER ? store_pages : store, part);
        EQUAL(tameike_dsm_barrier(region), 0);
        EQUAL(in_threads(check, part), 0);
        EQUAL(tameike_dsm_barrier(region), 0);
    }
    EQUAL(tameike_dsm_stats(region, &stats), 0);
    EQUAL(stats.pages, size / PAGE);
    if (flags != 0) EQUAL(stats.mechanism, flags);
    EQUAL(stats.barriers > 0 && stats.read_faults > 0 && stats.bytes_flushed > 0, 1);
    EQUAL(stats.write_faults > 0, flags != TAMEIKE_DSM_ONE_WRITER);
    EQUAL(stats.pages_evicted > 0, strcmp(arguments[7], "little") == 0);
    EQUAL(copy_to(arguments[6], region), 0);
    return -tameike_dsm_detach(region);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* `left PATH RANK HOW`: rank 1 ends after a barrier as HOW says, in its next barrier or before, and that of rank 0 fails. */
static int left(char **arguments) {
    int rank = atoi(arguments[1]);
    const char *how = arguments[2];
    tameike_dsm *region;
    EQUAL(tameike_dsm_create(arguments[0], 10 * PAGE, 2, 0, &region), 0);
    volatile unsigned char *bytes = tameike_dsm_address(region);
    bytes[rank] = (unsigned char)(rank + 1);
    EQUAL(tameike_dsm_barrier(region), 0);
    EQUAL(bytes[1 - rank], 2 - rank);
    if (rank == 1) {
        bytes[PAGE] = 77;
        if (strcmp(how, "exit") == 0) exit(0);
        if (strcmp(how, "kill") == 0) raise(SIGKILL);
        return -tameike_dsm_detach(region);
    }
    double begun = now();
    int ended = tameike_dsm_barrier(region);
    EQUAL(ended, strcmp(how, "kill") == 0 ? -EOWNERDEAD : -EPIPE);
    if (now() - begun > 10) return fail("it takes long", (long)(now() - begun));
    EQUAL(tameike_dsm_barrier(region) < 0, 1);
    if (strcmp(how, "kill") != 0) {
        EQUAL(tameike_dsm_update(region), 0);
        EQUAL(bytes[PAGE], 77);
    }
    return -tameike_dsm_detach(region);
}

static sigjmp_buf back;

static void on_fault(int number) {
    siglongjmp(back, number);
}

static int no_access(volatile char *address) {
    int number = sigsetjmp(back, 1);
    if (number == 0) return *address == 0 ? 0 : -1;
    return number;
}

/* `errors PATH OTHER`: calls that fail; OTHER is a path outside the job-shared view. */
static int errors(char **arguments) {
    const char *path = arguments[0], *other = arguments[1];
    char long_path[5000];
    tameike_dsm *region, *again;
    memset(long_path, 'x', sizeof long_path);
    long_path[sizeof long_path - 1] = 0;
    signal(SIGSEGV, on_fault);
    EQUAL(tameike_dsm_attach(path, 1, 0, &region), -ENOENT);
    EQUAL(tameike_dsm_create(path, 0, 1, 0, &region), -EINVAL);
    EQUAL(tameike_dsm_create(path, UINT64_MAX, 1, 0, &region), -EINVAL);
    EQUAL(tameike_dsm_create(path, (uint64_t)PAGE << 32, 1, 0, &region), -EINVAL);
    EQUAL(tameike_dsm_create(path, PAGE, 1, 4, &region), -EINVAL);
    EQUAL(tameike_dsm_create(path, PAGE, 1, 0, NULL), -EFAULT);
    EQUAL(tameike_dsm_create(NULL, PAGE, 1, 0, &region), -EFAULT);
    EQUAL(tameike_dsm_create("", PAGE, 1, 0, &region), -ENOENT);
    EQUAL(tameike_dsm_create(long_path, PAGE, 1, 0, &region), -ENAMETOOLONG);
    EQUAL(tameike_dsm_create(other, PAGE, 1, 0, &region), -EOPNOTSUPP);
    EQUAL(access(other, F_OK), strcmp(other, "/dev/null") == 0 ? 0 : -1);
    EQUAL(tameike_dsm_attach("/dev/null", 1, 0, &region), -EOPNOTSUPP);
    EQUAL(access(path, F_OK), -1);
    EQUAL(tameike_dsm_create(path, (uint64_t)1 << 40, 1, 0, &region), -ENOSPC);
    EQUAL(access(path, F_OK), -1);
    EQUAL(tameike_dsm_create(path, 3 * PAGE, 1, 0, &region), 0);
    EQUAL(tameike_dsm_create(path, 4 * PAGE, 1, 0, &again), -EEXIST);
    EQUAL(tameike_dsm_attach(path, 2, 0, &again), -EINVAL);
    EQUAL(tameike_dsm_attach(path, 1, TAMEIKE_DSM_ONE_WRITER, &again), -EINVAL);
    EQUAL(tameike_dsm_attach(path, 1, 4, &again), -EINVAL);
    EQUAL(tameike_dsm_touch(region, 0, 3 * PAGE + 1, 0), -EINVAL);
    EQUAL(tameike_dsm_touch(region, UINT64_MAX, 2, 0), -EINVAL);
    EQUAL(tameike_dsm_touch(region, 3 * PAGE, 0, 0), 0);
    EQUAL(tameike_dsm_touch(region, PAGE - 1, 2, 1), 0);
    EQUAL(tameike_dsm_stats(region, NULL), -EFAULT);
    EQUAL(tameike_dsm_detach(NULL), -EFAULT);
    EQUAL(tameike_dsm_address(NULL) == NULL && tameike_dsm_size(NULL) == 0, 1);
    char *bytes = tameike_dsm_address(region);
    memcpy(bytes + 2 * PAGE - 2, "word", 4);
    EQUAL(no_access(NULL), SIGSEGV);
    EQUAL(no_access(bytes + 2 * PAGE + 2), 0);
    EQUAL(tameike_dsm_flush(region), 0);
    EQUAL(tameike_dsm_update(region), 0);
    EQUAL(tameike_dsm_barrier(region), 0);
    EQUAL(tameike_dsm_detach(region), 0);
    EQUAL(no_access(bytes), SIGSEGV);
    EQUAL(tameike_dsm_attach(path, 1, TAMEIKE_DSM_MPROTECT, &region), 0);
    bytes = tameike_dsm_address(region);
    EQUAL(memcmp(bytes + 2 * PAGE - 3, "\0word\0", 6), 0);
    EQUAL(tameike_dsm_free(region), 0);
    EQUAL(access(path, F_OK), -1);
    return 0;
}

static int child(tameike_dsm *region, char *bytes, const char *path) {
    tameike_dsm *own;
    EQUAL(tameike_dsm_address(region) == NULL, 1);
    EQUAL(tameike_dsm_flush(region), -EIO);
    EQUAL(tameike_dsm_update(region), -EIO);
    EQUAL(tameike_dsm_barrier(region), -EIO);
    EQUAL(tameike_dsm_touch(region, 0, 1, 0), -EIO);
    EQUAL(no_access(bytes), SIGBUS);
    /* Other memory may have taken the place: it must stay. */
    char *taken = mmap(bytes, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    EQUAL(taken == bytes, 1);
    *taken = 9;
    EQUAL(tameike_dsm_detach(region), -EIO);
    EQUAL(*taken, 9);
    EQUAL(tameike_dsm_attach(path, 1, 0, &own), -EINVAL);
    EQUAL(tameike_dsm_attach(path, 2, 0, &own), 0);
    char *again = tameike_dsm_address(own);
    EQUAL(again[5], 5);
    again[6] = 6;
    return -tameike_dsm_detach(own);
}

/* `fork PATH`: a child cannot use the region of its parent, but attaches itself. */
static int in_child(char **arguments) {
    tameike_dsm *region;
    signal(SIGSEGV, on_fault);
    signal(SIGBUS, on_fault);
    EQUAL(tameike_dsm_create(arguments[0], 2 * PAGE, 2, 0, &region), 0);
    char *bytes = tameike_dsm_address(region);
    bytes[5] = 5;
    EQUAL(tameike_dsm_flush(region), 0);
    fflush(stdout);
    pid_t made = fork();
    if (made == 0) {
        int ended = child(region, bytes, arguments[0]);
        fflush(stdout);
        exit(ended);
    }
    int status;
    EQUAL(waitpid(made, &status, 0), made);
    EQUAL(status, 0);
    EQUAL(bytes[5], 5);
    EQUAL(tameike_dsm_update(region), 0);
    EQUAL(bytes[6], 6);
    bytes[7] = 7;
    EQUAL(tameike_dsm_flush(region), 0);
    return -tameike_dsm_free(region);
}

struct transfer {
    tameike_file *file;
    char *memory;
    size_t size;
    uint64_t offset;
    ssize_t written, read;
};

static void *transfer(void *argument) {
    struct transfer *transfer = argument;
    transfer->written = tameike_write(transfer->file, transfer->memory, transfer->size, transfer->offset);
    transfer->read = tameike_read(transfer->file, transfer->memory + transfer->size, transfer->size, transfer->offset);
    return NULL;
}

/* `transfers PATH FILE`: more threads than the ring has slots write a region's absent pages to a file, and read it into others. */
static int transfers(char **arguments) {
    enum { COUNT = 40 };
    const size_t size = 64 * PAGE;
    tameike_dsm *region;
    tameike_file *file;
    pthread_t threads[COUNT];
    struct transfer all[COUNT];
    EQUAL(tameike_dsm_create(arguments[0], 2 * COUNT * size, 1, 0, &region), 0);
    EQUAL(tameike_open(arguments[1], O_RDWR | O_CREAT, 0600, &file), 0);
    char *bytes = tameike_dsm_address(region);
    for (int at = 0; at < COUNT; at++) memset(bytes + 2 * (size_t)at * size, at + 1, size);
    EQUAL(tameike_dsm_detach(region), 0);
    EQUAL(tameike_dsm_attach(arguments[0], 1, 0, &region), 0);
    bytes = tameike_dsm_address(region);
    for (int at = 0; at < COUNT; at++) {
        all[at] = (struct transfer){file, bytes + 2 * (size_t)at * size, size, (uint64_t)at * size, 0, 0};
        if (pthread_create(&threads[at], NULL, transfer, &all[at]) != 0) abort();
    }
    for (int at = 0; at < COUNT; at++) {
        pthread_join(threads[at], NULL);
        EQUAL(all[at].written, size);
        EQUAL(all[at].read, size);
        EQUAL(memcmp(all[at].memory, all[at].memory + size, size), 0);
        EQUAL(all[at].memory[size], at + 1);
    }
    EQUAL(tameike_close(file), 0);
    return -tameike_dsm_free(region);
}

/* `again PATH RANK ROUNDS`: pages that were dropped come back by a fetch of rank 0; the first stores of rank 1, on the same node, to them
 * must be found. Rank 2, on another node, changes all pages in each round. */
static int again(char **arguments) {
    enum { PAGES = 40 };
    int rank = atoi(arguments[1]), rounds = atoi(arguments[2]);
    tameike_dsm *region;
    EQUAL(tameike_dsm_create(arguments[0], PAGES * PAGE, 3, 0, &region), 0);
    volatile unsigned char *bytes = tameike_dsm_address(region);
    for (int round = 1; round <= rounds; round++) {
        /* Each round has pages of its own that rank 1 stores to, so that its store is the first one to the page. */
        int first = (round - 1) % (PAGES / 2) * 2;
        for (int page = 0; page < PAGES && rank < 2; page++) EQUAL(bytes[page * PAGE] <= round, 1);
        EQUAL(tameike_dsm_barrier(region), 0);
        for (int page = 0; page < PAGES && rank == 2; page++) bytes[page * PAGE] = (unsigned char)round;
        EQUAL(tameike_dsm_barrier(region), 0);
        for (int page = 0; page < PAGES && rank == 0; page++) EQUAL(bytes[page * PAGE], round);
        EQUAL(tameike_dsm_barrier(region), 0);
        if (rank == 1) bytes[first * PAGE + 9] = (unsigned char)(round + 100);
        EQUAL(tameike_dsm_barrier(region), 0);
        EQUAL(bytes[first * PAGE + 9], round + 100);
        EQUAL(bytes[first * PAGE], round);
        EQUAL(tameike_dsm_barrier(region), 0);
    }
    return -tameike_dsm_free(region);
}

/* `quiet PATH RANK RANKS ROUNDS`: stores to pages that were not changed for many flushes are found, in all processes of a node. */
static int quiet(char **arguments) {
    enum { PAGES = 300 };
    int rank = atoi(arguments[1]), ranks = atoi(arguments[2]), rounds = atoi(arguments[3]);
    tameike_dsm *region;
    tameike_dsm_counters before, after;
    EQUAL(tameike_dsm_create(arguments[0], PAGES * PAGE, (unsigned)ranks, 0, &region), 0);
    volatile unsigned char *bytes = tameike_dsm_address(region);
    for (int round = 1; round <= rounds; round++) {
        EQUAL(tameike_dsm_stats(region, &before), 0);
        EQUAL(tameike_dsm_barrier(region), 0);
        for (int page = 0; page < PAGES; page++) bytes[page * PAGE + rank] = (unsigned char)round;
        EQUAL(tameike_dsm_barrier(region), 0);
        for (int page = 0; page < PAGES; page++)
            for (int other = 0; other < ranks; other++) EQUAL(bytes[page * PAGE + other], round);
        for (int flush = 0; flush < 10; flush++) EQUAL(tameike_dsm_flush(region), 0);
        EQUAL(tameike_dsm_barrier(region), 0);
        EQUAL(tameike_dsm_stats(region, &after), 0);
        if (after.mechanism == 0) EQUAL(after.write_faults > before.write_faults, 1);
    }
    return -tameike_dsm_detach(region);
}

/* `locked PATH RANK RANKS ROUNDS`: a number that all processes raise under a lock, and one that they add to, are exact. */
static int locked(char **arguments) {
    int rank = atoi(arguments[1]), ranks = atoi(arguments[2]), rounds = atoi(arguments[3]);
    tameike_dsm *region;
    uint64_t previous, last = 0;
    EQUAL(tameike_dsm_create(arguments[0], 3 * PAGE, (unsigned)ranks, 0, &region), 0);
    volatile uint64_t *numbers = tameike_dsm_address(region);
    EQUAL(tameike_dsm_unlock(region, 7), -EPERM);
    EQUAL(tameike_dsm_fetch_add(region, 12, 1, &previous), -EINVAL);
    EQUAL(tameike_dsm_fetch_add(region, 3 * PAGE, 1, &previous), -EINVAL);
    for (int round = 0; round < rounds; round++) {
        EQUAL(tameike_dsm_lock(region, 7), 0);
        numbers[PAGE / 8]++;
        EQUAL(tameike_dsm_unlock(region, 7), 0);
        EQUAL(tameike_dsm_fetch_add(region, 8, (uint64_t)rank + 1, &previous), 0);
        if (round > 0 && previous <= last) return fail("previous", (long)previous);
        last = previous;
    }
    EQUAL(tameike_dsm_barrier(region), 0);
    EQUAL(numbers[PAGE / 8], ranks * rounds);
    EQUAL(numbers[1], rounds * ranks * (ranks + 1) / 2);
    EQUAL(tameike_dsm_barrier(region), 0);
    return -tameike_dsm_detach(region);
}

/* `blocks PATH RANK RANKS`: each process fills blocks that it allocates, and the next one checks and frees them. */
static int blocks(char **arguments) {
    enum { BLOCKS = 50, SIZE = 1000, REGION = 64 * PAGE };
    int rank = atoi(arguments[1]), ranks = atoi(arguments[2]), other = (rank + 1) % ranks;
    tameike_dsm *region;
    uint64_t table = 0, whole;
    EQUAL(tameike_dsm_create(arguments[0], REGION, (unsigned)ranks, 0, &region), 0);
    char *bytes = tameike_dsm_address(region);
    EQUAL(tameike_dsm_deallocate(region, 0), -EINVAL);
    EQUAL(tameike_dsm_allocate(region, 0, 16, &whole), -EINVAL);
    EQUAL(tameike_dsm_allocate(region, 10, 24, &whole), -EINVAL);
    EQUAL(tameike_dsm_barrier(region), 0);
    if (rank == 0) EQUAL(tameike_dsm_allocate(region, (size_t)ranks * BLOCKS * sizeof(uint64_t), 4096, &table), 0);
    EQUAL(table, 0);
    EQUAL(tameike_dsm_barrier(region), 0);
    volatile uint64_t *offsets = (uint64_t *)bytes;
    for (int block = 0; block < BLOCKS; block++) {
        uint64_t offset;
        EQUAL(tameike_dsm_allocate(region, SIZE, 64, &offset), 0);
        EQUAL(offset % 64, 0);
        memset(bytes + offset, rank * BLOCKS + block, SIZE);
        offsets[rank * BLOCKS + block] = offset;
    }
    EQUAL(tameike_dsm_allocate(region, REGION, 16, &whole), -ENOMEM);
    EQUAL(tameike_dsm_barrier(region), 0);
    for (int block = other * BLOCKS; block < (other + 1) * BLOCKS; block++) {
        for (int at = 0; at < SIZE; at++) EQUAL((unsigned char)bytes[offsets[block] + at], (unsigned char)block);
        EQUAL(tameike_dsm_deallocate(region, offsets[block]), 0);
        EQUAL(tameike_dsm_deallocate(region, offsets[block]), -EINVAL);
    }
    EQUAL(tameike_dsm_barrier(region), 0);
    if (rank == 0) {
        EQUAL(tameike_dsm_deallocate(region, table), 0);
        EQUAL(tameike_dsm_allocate(region, REGION, 16, &whole), 0);
        EQUAL(whole, 0);
    }
    EQUAL(tameike_dsm_barrier(region), 0);
    return -tameike_dsm_detach(region);
}

/* `owner PATH RANK`: rank 1 is killed while it holds a lock. */
static int owner(char **arguments) {
    tameike_dsm *region;
    EQUAL(tameike_dsm_create(arguments[0], PAGE, 2, 0, &region), 0);
    if (atoi(arguments[1]) == 1) {
        EQUAL(tameike_dsm_lock(region, 0), 0);
        EQUAL(tameike_dsm_barrier(region), 0);
        raise(SIGKILL);
    }
    EQUAL(tameike_dsm_barrier(region), 0);
    EQUAL(tameike_dsm_lock(region, 0), -EOWNERDEAD);
    EQUAL(tameike_dsm_unlock(region, 0), 0);
    return -tameike_dsm_detach(region);
}

static sigjmp_buf before_access;

static void jump(int signal) {
    (void)signal;
    siglongjmp(before_access, 1);
}

/* `lost PATH RANK READY`: after both processes have created READY.RANK, the agent of node 1 fails. */
static int lost(char **arguments) {
    enum { UNIT = 1 << 20, UNITS = 6 };
    int rank = atoi(arguments[1]);
    char ready[4096];
    struct sigaction action = {.sa_handler = jump};
    EQUAL(sigaction(SIGBUS, &action, NULL), 0);
    tameike_dsm *region;
    EQUAL(tameike_dsm_create(arguments[0], UNITS * UNIT, 2, TAMEIKE_DSM_MPROTECT * (unsigned)rank, &region), 0);
    volatile unsigned char *bytes = tameike_dsm_address(region);
    EQUAL(tameike_dsm_barrier(region), 0);
    for (int unit = 0; unit < UNITS; unit++) bytes[unit * UNIT + rank] = 1;
    snprintf(ready, sizeof ready, "%s.%d", arguments[2], rank);
    EQUAL(close(open(ready, O_WRONLY | O_CREAT, 0600)), 0);
    double begun = now();
    /* Rank 1 arrives late, so that its agent fails first. */
    if (rank == 1) sleep(3);
    EQUAL(tameike_dsm_barrier(region) < 0, 1);
    if (now() - begun > 20) return fail("it takes long", (long)(now() - begun));
    for (int unit = 0; unit < UNITS; unit++) bytes[unit * UNIT + rank] = 2;
    EQUAL(tameike_dsm_flush(region) < 0, 1);
    volatile int failed = 0;
    for (volatile int unit = 0; unit < UNITS; unit++) {
        if (sigsetjmp(before_access, 1) == 0)
            bytes[unit * UNIT + 50 * PAGE];
        else
            failed++;
    }
    /* All of them at the node that failed, and those of the failed home at the other. */
    return failed == (rank == 1 ? UNITS : UNITS / 2) ? 0 : fail("failed accesses", failed);
}

static char *volatile first_byte;

/* The end of a process that has accessed a page whose home or agent has failed. */
static void end(int signal, siginfo_t *fault, void *context) {
    (void)signal, (void)context;
    ptrdiff_t at = (char *)fault->si_addr - first_byte;
    _exit(at >= 0 && at < SURVIVED_PAGES * PAGE ? 0 : 3);
}

/* `survive PATH RANK MECHANISM DIR`: two processes share a region until the other one or an agent fails. DIR/ready.RANK gets the number of
 * the process. It ends with 0 if no byte was wrong until then, and no call took 10 seconds. */
static int survive(char **arguments) {
    int rank = atoi(arguments[1]);
    unsigned flags = mechanism(arguments[2]);
    char ready[4096];
    struct sigaction action = {.sa_sigaction = end, .sa_flags = SA_SIGINFO};
    EQUAL(sigaction(SIGBUS, &action, NULL), 0);
    tameike_dsm *region;
    EQUAL(tameike_dsm_create(arguments[0], SURVIVED_PAGES * PAGE, 2, flags, &region), 0);
    first_byte = tameike_dsm_address(region);
    snprintf(ready, sizeof ready, "%s/ready.%d", arguments[3], rank);
    for (int round = 0;; round++) {
        struct part part = {(unsigned char *)first_byte, SURVIVED_PAGES * PAGE, 0, rank, 2, round, 0};
        alarm(10);
        in_threads(flags == TAMEIKE_DSM_ONE_WRITER ? store_pages : store, part);
        int failed = tameike_dsm_barrier(region);
        if (failed == 0) {
            EQUAL(in_threads(check, part), 0);
            failed = tameike_dsm_barrier(region);
        }
        if (failed != 0) {
            EQUAL(failed == -EOWNERDEAD || failed == -EHOSTDOWN || failed == -EIO || failed == -EPIPE, 1);
            alarm(10);
            tameike_dsm_detach(region);
            return 0;
        }
        if (round == 0) {
            FILE *file = fopen(ready, "w");
            EQUAL(file != NULL && fprintf(file, "%d\n", getpid()) > 0 && fclose(file) == 0, 1);
        }
    }
}

/* Moves bytes between absent pages of a region and the kernel by calls of all kinds; returns the number of calls that failed. */
static int move_by_calls(char *bytes) {
    enum { SIZE = 2 * PAGE };
    int failed = 0, ends[2], sockets[2];
    if (pipe(ends) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) abort();
    char *at = bytes;
    /* From pages that hold the number of the page, to pages behind. */
    failed += write(ends[1], at, SIZE) != SIZE || read(ends[0], at + 2 * SIZE, SIZE) != SIZE;
    at += SIZE;
    struct iovec from = {at, SIZE}, into = {at + 2 * SIZE, SIZE};
    failed += writev(ends[1], &from, 1) != SIZE || readv(ends[0], &into, 1) != SIZE;
    at = bytes + 4 * SIZE;
    failed += send(sockets[0], at, SIZE, 0) != SIZE || recv(sockets[1], at + 2 * SIZE, SIZE, MSG_WAITALL) != SIZE;
    at += SIZE;
    failed += sendto(sockets[0], at, SIZE, 0, NULL, 0) != SIZE ||
              recvfrom(sockets[1], at + 2 * SIZE, SIZE, MSG_WAITALL, NULL, NULL) != SIZE;
    at = bytes + 8 * SIZE;
    FILE *file = tmpfile();
    if (file == NULL) abort();
    failed += fwrite(at, SIZE, 1, file) != 1 || fflush(file) != 0;
    rewind(file);
    failed += fread(at + 2 * SIZE, SIZE, 1, file) != 1;
    fclose(file);
    for (int end = 0; end < 2; end++) close(ends[end]), close(sockets[end]);
    return failed;
}

/* `calls PATH HOW`: system calls use absent pages. HOW is "preloaded", or "touched" if the program must touch them. */
static int calls(char **arguments) {
    enum { COUNT = 24 };
    tameike_dsm *region;
    EQUAL(tameike_dsm_create(arguments[0], COUNT * PAGE, 1, 0, &region), 0);
    char *bytes = tameike_dsm_address(region);
    for (int page = 0; page < COUNT; page++) memset(bytes + page * PAGE, page + 1, PAGE);
    EQUAL(tameike_dsm_detach(region), 0);
    EQUAL(tameike_dsm_attach(arguments[0], 1, 0, &region), 0);
    bytes = tameike_dsm_address(region);
    int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    if (strcmp(arguments[1], "touched") == 0) {
        EQUAL(read(zero, bytes, PAGE), -1);
        EQUAL(errno, EFAULT);
        EQUAL(tameike_dsm_touch(region, 0, COUNT * PAGE, 1), 0);
    }
    EQUAL(move_by_calls(bytes), 0);
    for (int page = 0; page < COUNT; page++) {
        /* Of each 8 pages, the last 4 have the bytes of the first 4; the third group has 2 of each. */
        int source = page % 8 < 4 || page >= 22 ? page : page - 4;
        EQUAL(bytes[page * PAGE + 5], source + 1);
    }
    EQUAL(close(zero), 0);
    return -tameike_dsm_free(region);
}

static int reports;
static struct sigaction before_report;

/* As handlers do that report the end of a process. */
static void report(int signal) {
    if (write(reports, "!", 1) != 1) _exit(3);
    sigaction(signal, &before_report, NULL);
    raise(signal);
}

static int end_by_fault(const char *path) {
    char second[4096];
    tameike_dsm *regions[2];
    struct sigaction action = {.sa_handler = report};
    snprintf(second, sizeof second, "%s-2", path);
    /* Ends an endless exchange of signals. */
    alarm(20);
    EQUAL(tameike_dsm_create(path, PAGE, 1, 0, &regions[0]), 0);
    EQUAL(sigaction(SIGSEGV, &action, &before_report), 0);
    EQUAL(tameike_dsm_create(second, PAGE, 1, 0, &regions[1]), 0);
    for (int at = 0; at < 2; at++) *(volatile char *)tameike_dsm_address(regions[at]) = 1;
    return *(volatile char *)PAGE;
}

/* `reported PATH`: a handler that is installed between two regions gets a fault of another address, once. */
static int reported(char **arguments) {
    int ends[2], status;
    char marks[9];
    EQUAL(pipe(ends), 0);
    reports = ends[1];
    pid_t made = fork();
    if (made == 0) _exit(end_by_fault(arguments[0]) == 0 ? 4 : 5);
    EQUAL(close(ends[1]), 0);
    EQUAL(waitpid(made, &status, 0), made);
    EQUAL(WIFSIGNALED(status) ? WTERMSIG(status) : -1, SIGSEGV);
    EQUAL(read(ends[0], marks, sizeof marks), 1);
    return 0;
}

/* `unavailable PATH`: there is no agent, or no region. */
static int unavailable(char **arguments) {
    tameike_dsm *region;
    EQUAL(tameike_dsm_create(arguments[0], PAGE, 1, 0, &region), -EOPNOTSUPP);
    EQUAL(tameike_dsm_attach(arguments[0], 1, 0, &region), -ENOENT);
    return 0;
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        int arguments;
        int (*run)(char **);
    } tasks[] = {{"share", 8, share},     {"left", 3, left},           {"errors", 2, errors},
                 {"fork", 1, in_child},   {"transfers", 2, transfers}, {"unavailable", 1, unavailable},
                 {"calls", 2, calls},     {"again", 3, again},         {"reported", 1, reported},
                 {"blocks", 3, blocks},   {"quiet", 4, quiet},
                 {"locked", 4, locked},   {"owner", 2, owner},         {"lost", 3, lost},
                 {"survive", 4, survive}};
    for (size_t task = 0; task < sizeof tasks / sizeof *tasks; task++)
        if (count > 1 && strcmp(arguments[1], tasks[task].name) == 0 && count == 2 + tasks[task].arguments)
            return tasks[task].run(arguments + 2);
    return 2;
}
