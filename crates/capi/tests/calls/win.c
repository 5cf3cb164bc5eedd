/* A remote memory window: `win TASK PATH ...`, see the functions. Returns 0 if all is as expected. */
#define _GNU_SOURCE
#include "tameike.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SECOND = 1000, PATIENCE = 60 * SECOND, WORDS = 4096, HEAD = WORDS * 8 };

static int fail(const char *what, long found) {
    printf("not so: %s: %ld\n", what, found);
    return 1;
}

#define EQUAL(call, expected)                                       \
    do {                                                            \
        long result = (call);                                       \
        if (result != (long)(expected)) return fail(#call, result); \
    } while (0)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* The byte at a place, of a writer in a round. */
static unsigned char value(size_t at, int writer, int round) {
    return (unsigned char)(at * 7 + at / 4096 + (size_t)writer * 31 + (size_t)round * 57 + 1);
}

static void fill(unsigned char *bytes, size_t size, int writer, int round) {
    for (size_t at = 0; at < size; at++) bytes[at] = value(at, writer, round);
}

static long wrong(const volatile unsigned char *bytes, size_t size, int writer, int round) {
    long count = 0;
    for (size_t at = 0; at < size; at++) count += bytes[at] != value(at, writer, round);
    return count;
}

/* Puts and gets of some sizes between all ranks. */
static int move_bytes(tameike_win *win, int rank, int ranks, size_t part) {
    unsigned char *bytes = malloc(part);
    volatile unsigned char *own = tameike_win_address(win, (unsigned)rank);
    if (bytes == NULL || own == NULL) return fail("memory", errno);
    for (size_t at = 0; at < tameike_win_size(win); at++)
        if (own[at] != 0) return fail("the memory is not zero", (long)at);
    EQUAL(tameike_win_barrier(win), 0);
    for (int other = 0; other < ranks; other++) {
        fill(bytes, part, rank, other);
        EQUAL(tameike_win_put(win, (unsigned)other, HEAD + part * (size_t)rank, bytes, part), 0);
        /* The source may be reused. */
        memset(bytes, 0xee, part);
    }
    EQUAL(tameike_win_barrier(win), 0);
    for (int other = 0; other < ranks; other++) {
        size_t at = HEAD + part * (size_t)other;
        EQUAL(wrong(own + at, part, other, rank), 0);
        for (int owner = 0; owner < ranks; owner++) {
            EQUAL(tameike_win_get(win, (unsigned)owner, at, bytes, part), 0);
            EQUAL(wrong(bytes, part, other, owner), 0);
        }
    }
    EQUAL(tameike_win_barrier(win), 0);
    /* Bytes at any address, and only these. */
    static const unsigned char zeros[128];
    for (int other = 0; other < ranks; other++)
        for (size_t size = 0; size < 40; size++) {
            size_t at = HEAD + part * (size_t)rank, start = 8 + size % 11;
            unsigned char found[128];
            EQUAL(tameike_win_put(win, (unsigned)other, at, zeros, sizeof zeros), 0);
            EQUAL(tameike_win_quiet(win), 0);
            fill(bytes, size, rank, other);
            EQUAL(tameike_win_put(win, (unsigned)other, at + start, bytes, size), 0);
            EQUAL(tameike_win_quiet(win), 0);
            EQUAL(tameike_win_get(win, (unsigned)other, at, found, sizeof found), 0);
            EQUAL(wrong(found + start, size, rank, other), 0);
            EQUAL(memcmp(found, zeros, start), 0);
            EQUAL(memcmp(found + start + size, zeros, sizeof found - start - size), 0);
        }
    free(bytes);
    return -tameike_win_barrier(win);
}

/* Elements with gaps between them. */
static int move_elements(tameike_win *win, int rank, int ranks, size_t part, size_t size, size_t stride, size_t own_stride) {
    size_t count = part / (size * stride), own_size = count * size * own_stride, start = HEAD + part * (size_t)rank;
    unsigned char *source = malloc(own_size), *found = malloc(own_size), *all = malloc(part);
    if (source == NULL || found == NULL || all == NULL) return fail("memory", errno);
    for (int other = 0; other < ranks; other++) {
        memset(all, 0, part);
        EQUAL(tameike_win_put(win, (unsigned)other, start, all, part), 0);
        EQUAL(tameike_win_fence(win), 0);
        fill(source, own_size, rank, other);
        EQUAL(tameike_win_iput(win, (unsigned)other, start, stride, source, own_stride, size, count), 0);
        EQUAL(tameike_win_quiet(win), 0);
        EQUAL(tameike_win_get(win, (unsigned)other, start, all, part), 0);
        for (size_t at = 0; at < count * size * stride; at++) {
            size_t number = at / (size * stride), within = at % (size * stride);
            unsigned char expected = within < size ? source[number * size * own_stride + within] : 0;
            if (all[at] != expected) return fail("a byte of an element", (long)at);
        }
        memset(found, 0x77, own_size);
        EQUAL(tameike_win_iget(win, (unsigned)other, start, stride, found, own_stride, size, count), 0);
        for (size_t at = 0; at < own_size; at++) {
            unsigned char expected = at % (size * own_stride) < size ? source[at] : 0x77;
            if (found[at] != expected) return fail("a byte of a fetched element", (long)at);
        }
    }
    free(source), free(found), free(all);
    return -tameike_win_barrier(win);
}

/* Words 0 to 3 of rank 0: a sum, a sum by compare-and-swap, a chain of swaps, and the sum of its links. */
static int change_words(tameike_win *win, int rank, int ranks) {
    enum { COUNT = 500 };
    uint64_t before, last = (uint64_t)rank + 1, sum = 0;
    for (int round = 0; round < COUNT; round++) {
        EQUAL(tameike_win_fetch_add(win, 0, 0, 3, &before), 0);
        if (before % 3 != 0 || before >= 3u * COUNT * (unsigned)ranks) return fail("a sum before", (long)before);
        uint64_t seen, expected;
        EQUAL(tameike_win_fetch(win, 0, 8, &seen), 0);
        do {
            expected = seen;
            EQUAL(tameike_win_compare_swap(win, 0, 8, expected, expected + 1, &seen), 0);
        } while (seen != expected);
        EQUAL(tameike_win_swap(win, 0, 16, last, &last), 0);
        EQUAL(tameike_win_fetch_add(win, (unsigned)(round % ranks), 32, 1, NULL), 0);
    }
    /* Each value is with one rank, or in the word. */
    EQUAL(tameike_win_fetch_add(win, 0, 24, last, NULL), 0);
    EQUAL(tameike_win_barrier(win), 0);
    EQUAL(tameike_win_fetch(win, 0, 0, &sum), 0);
    EQUAL(sum, 3 * COUNT * ranks);
    EQUAL(tameike_win_fetch(win, 0, 8, &sum), 0);
    EQUAL(sum, COUNT * ranks);
    EQUAL(tameike_win_fetch(win, 0, 16, &last), 0);
    EQUAL(tameike_win_fetch(win, 0, 24, &sum), 0);
    EQUAL(sum + last, ranks * (ranks + 1) / 2);
    uint64_t total = 0;
    for (int other = 0; other < ranks; other++) {
        EQUAL(tameike_win_fetch(win, (unsigned)other, 32, &sum), 0);
        total += sum;
    }
    EQUAL(total, COUNT * ranks);
    return -tameike_win_barrier(win);
}

static int signal_each_other(tameike_win *win, int rank, int ranks) {
    static const int comparisons[] = {TAMEIKE_WIN_EQ, TAMEIKE_WIN_NE, TAMEIKE_WIN_GT,
                                      TAMEIKE_WIN_GE, TAMEIKE_WIN_LT, TAMEIKE_WIN_LE};
    for (int value = 4; value <= 6; value++)
        for (int at = 0; at < 6; at++) {
            int holds[] = {value == 5, value != 5, value > 5, value >= 5, value < 5, value <= 5};
            uint64_t word = (uint64_t)value;
            EQUAL(tameike_win_put(win, (unsigned)rank, 80, &word, 8), 0);
            EQUAL(tameike_win_test(win, 80, comparisons[at], 5), holds[at]);
            EQUAL(tameike_win_wait_until(win, 80, comparisons[at], 5, 0), holds[at] ? 0 : -EAGAIN);
        }
    EQUAL(tameike_win_barrier(win), 0);
    for (int other = 0; other < ranks; other++) {
        uint64_t number = (uint64_t)rank + 1;
        uint64_t offset = 128 + 8 * (uint64_t)rank;
        EQUAL(tameike_win_put_signal(win, (unsigned)other, offset, &number, 8, 88, 1, TAMEIKE_WIN_ADD), 0);
    }
    EQUAL(tameike_win_wait_until(win, 88, TAMEIKE_WIN_EQ, (uint64_t)ranks, PATIENCE), 0);
    const volatile uint64_t *words = tameike_win_address(win, (unsigned)rank);
    for (int other = 0; other < ranks; other++) EQUAL(words[16 + other], other + 1);
    int next = (rank + 1) % ranks;
    EQUAL(tameike_win_put_signal(win, (unsigned)next, 0, NULL, 0, 96, UINT64_MAX, TAMEIKE_WIN_SET), 0);
    EQUAL(tameike_win_wait_until(win, 96, TAMEIKE_WIN_EQ, UINT64_MAX, -1), 0);
    return -tameike_win_barrier(win);
}

static int use_wrongly(tameike_win *win, int rank, int ranks) {
    uint64_t size = tameike_win_size(win), word = 0;
    for (int other = 0; other < ranks; other++) {
        unsigned at = (unsigned)other;
        EQUAL(tameike_win_put(win, at, size - 7, &word, 8), -EINVAL);
        EQUAL(tameike_win_put(win, at, UINT64_MAX, &word, 8), -EINVAL);
        EQUAL(tameike_win_put(win, at, size, &word, 0), 0);
        EQUAL(tameike_win_get(win, at, size - 7, &word, 8), -EINVAL);
        EQUAL(tameike_win_iput(win, at, size - 16, 2, &word, 1, 8, 2), -EINVAL);
        EQUAL(tameike_win_iget(win, at, 0, 0, &word, 1, 8, 1), -EINVAL);
        EQUAL(tameike_win_put_signal(win, at, 0, &word, 8, 4, 1, TAMEIKE_WIN_SET), -EINVAL);
        EQUAL(tameike_win_put_signal(win, at, 0, &word, 8, 8, 1, 2), -EINVAL);
        EQUAL(tameike_win_fetch_add(win, at, 12, 1, &word), -EINVAL);
        EQUAL(tameike_win_fetch(win, at, size, &word), -EINVAL);
        EQUAL(tameike_win_fetch(win, at, 0, NULL), -EFAULT);
        EQUAL(tameike_win_send(win, at, 64, &word, 8, 0), -EINVAL);
    }
    EQUAL(tameike_win_put(win, (unsigned)ranks, 0, &word, 8), -EINVAL);
    EQUAL(tameike_win_put(NULL, 0, 0, &word, 8), -EFAULT);
    EQUAL(tameike_win_put(win, 0, 0, NULL, 8), -EFAULT);
    EQUAL(tameike_win_address(win, (unsigned)ranks) == NULL, 1);
    EQUAL(tameike_win_test(win, 0, 6, 0), -EINVAL);
    EQUAL(tameike_win_wait_until(win, 4, TAMEIKE_WIN_EQ, 0, 0), -EINVAL);
    EQUAL(tameike_win_receive(win, 64, &word, 8, 0), -EINVAL);
    EQUAL(tameike_win_queue_init(win, 4, 1, 8), -EINVAL);
    EQUAL(tameike_win_queue_init(win, 0, 1, size), -EINVAL);
    EQUAL(tameike_win_queue_size(UINT64_MAX, 8), 0);
    (void)rank;
    return -tameike_win_barrier(win);
}

/* Each rank sends to each other. */
static int send_messages(tameike_win *win, int rank, int ranks) {
    enum { QUEUE = 1024, SLOTS = 8, SIZE = 100, COUNT = 50 };
    unsigned char message[SIZE];
    EQUAL(tameike_win_queue_size(SLOTS, SIZE) <= HEAD - QUEUE, 1);
    EQUAL(tameike_win_queue_init(win, QUEUE, SLOTS, SIZE), 0);
    EQUAL(tameike_win_barrier(win), 0);
    EQUAL(tameike_win_receive(win, QUEUE, message, SIZE, 0), -EAGAIN);
    for (int other = 0; other < ranks; other++) EQUAL(tameike_win_send(win, (unsigned)other, QUEUE, message, SIZE + 1, 0), -EMSGSIZE);
    EQUAL(tameike_win_barrier(win), 0);
    for (int round = 0; round < COUNT; round++) {
        for (int step = 0; step < ranks; step++) {
            int other = (rank + step) % ranks;
            size_t size = (size_t)(round * 7 + rank) % (SIZE - 1) + 1;
            message[0] = (unsigned char)rank;
            for (size_t at = 1; at < size; at++) message[at] = value(at, rank, round);
            EQUAL(tameike_win_send(win, (unsigned)other, QUEUE, message, size, PATIENCE), 0);
        }
        for (int step = 0; step < ranks; step++) {
            long size = tameike_win_receive(win, QUEUE, message, SIZE, PATIENCE);
            EQUAL(size, (round * 7 + message[0]) % (SIZE - 1) + 1);
            for (size_t at = 1; at < (size_t)size; at++) EQUAL(message[at], value(at, message[0], round));
        }
        EQUAL(tameike_win_barrier(win), 0);
    }
    /* A full queue, and a message that does not fit the memory. */
    int next = (rank + 1) % ranks;
    for (int slot = 0; slot < SLOTS; slot++) EQUAL(tameike_win_send(win, (unsigned)next, QUEUE, message, 9, 0), 0);
    EQUAL(tameike_win_send(win, (unsigned)next, QUEUE, message, 9, 0), -EAGAIN);
    EQUAL(tameike_win_send(win, (unsigned)next, QUEUE, message, 9, 100), -EAGAIN);
    EQUAL(tameike_win_barrier(win), 0);
    EQUAL(tameike_win_receive(win, QUEUE, message, 8, PATIENCE), -EMSGSIZE);
    for (int slot = 0; slot < SLOTS; slot++) EQUAL(tameike_win_receive(win, QUEUE, message, SIZE, PATIENCE), 9);
    return -tameike_win_barrier(win);
}

/* `calls PATH RANK RANKS NEAR`: all calls, between ranks of which NEAR are on this node. */
static int calls(char **arguments) {
    enum { PART = (2 << 20) + 12345 };
    int rank = atoi(arguments[1]), ranks = atoi(arguments[2]), near = 0;
    tameike_win *win;
    uint64_t size = HEAD + (uint64_t)ranks * PART;
    EQUAL(tameike_win_create(arguments[0], size, (unsigned)rank, (unsigned)ranks, 0, &win), 0);
    EQUAL(tameike_win_size(win), size);
    EQUAL(tameike_win_rank(win), rank);
    EQUAL(tameike_win_ranks(win), ranks);
    for (int other = 0; other < ranks; other++) near += tameike_win_address(win, (unsigned)other) != NULL;
    EQUAL(near, atoi(arguments[3]));
    int failed = move_bytes(win, rank, ranks, PART) || move_elements(win, rank, ranks, PART, 8, 3, 2) ||
                 move_elements(win, rank, ranks, PART, 8, 1, 1) || move_elements(win, rank, ranks, 50000, 3, 5, 7) ||
                 move_elements(win, rank, ranks, PART, (1 << 20) + 5, 2, 1) || change_words(win, rank, ranks) ||
                 signal_each_other(win, rank, ranks) || use_wrongly(win, rank, ranks) || send_messages(win, rank, ranks);
    if (failed) return 1;
    EQUAL(tameike_win_free(win), 0);
    EQUAL(access(arguments[0], F_OK), -1);
    return 0;
}

struct flood {
    tameike_win *win;
    int rank, ranks;
    volatile int ends;
    int failed;
};

/* Puts of all sizes to all ranks, behind the memory of the others. */
static void *flood(void *argument) {
    enum { SIZE = 1 << 16 };
    struct flood *flood = argument;
    static unsigned char bytes[SIZE];
    for (int round = 0; !flood->ends && !flood->failed; round++)
        for (int other = 0; other < flood->ranks; other++) {
            size_t size = (size_t)(round * 997) % SIZE;
            uint64_t at = tameike_win_size(flood->win) - SIZE;
            flood->failed |= tameike_win_put(flood->win, (unsigned)other, at, bytes, size);
        }
    return NULL;
}

/* `order PATH RANK RANKS ROUNDS`: a rank that sees a signal sees the bytes before it, while other puts are in flight. */
static int order(char **arguments) {
    enum { SIZE = (1 << 20) + 4321, SIGNAL = 0, SEEN = 8, FLAG = 16, DATA = HEAD };
    int rank = atoi(arguments[1]), ranks = atoi(arguments[2]), rounds = atoi(arguments[3]);
    unsigned next = (unsigned)((rank + 1) % ranks), last = (unsigned)((rank + ranks - 1) % ranks);
    static unsigned char bytes[SIZE];
    tameike_win *win;
    EQUAL(tameike_win_create(arguments[0], DATA + SIZE + (1 << 16), (unsigned)rank, (unsigned)ranks, 0, &win), 0);
    volatile unsigned char *own = tameike_win_address(win, (unsigned)rank);
    struct flood others = {win, rank, ranks, 0, 0};
    pthread_t thread;
    if (pthread_create(&thread, NULL, flood, &others) != 0) abort();
    for (int round = 1; round <= rounds; round++) {
        /* Of one message, and of several. */
        size_t size = round % 4 == 0 ? SIZE : (size_t)(round * 4099) % 60000 + 1;
        fill(bytes, size, rank, round);
        if (round % 2 == 0) {
            EQUAL(tameike_win_put_signal(win, next, DATA, bytes, size, SIGNAL, (uint64_t)round, TAMEIKE_WIN_SET), 0);
        } else {
            uint64_t flag = (uint64_t)round;
            EQUAL(tameike_win_put(win, next, DATA, bytes, size), 0);
            EQUAL(tameike_win_fence(win), 0);
            EQUAL(tameike_win_put(win, next, SIGNAL, &flag, 8), 0);
        }
        EQUAL(tameike_win_wait_until(win, SIGNAL, TAMEIKE_WIN_EQ, (uint64_t)round, PATIENCE), 0);
        EQUAL(wrong(own + DATA, size, (int)last, round), 0);
        EQUAL(tameike_win_put_signal(win, last, 0, NULL, 0, SEEN, (uint64_t)round, TAMEIKE_WIN_SET), 0);
        EQUAL(tameike_win_wait_until(win, SEEN, TAMEIKE_WIN_EQ, (uint64_t)round, PATIENCE), 0);
    }
    others.ends = 1;
    pthread_join(thread, NULL);
    EQUAL(others.failed, 0);
    return -tameike_win_free(win);
}

/* `queue PATH RANK RANKS MESSAGES`: rank 0 receives messages of all others, in the order of each. */
static int queue(char **arguments) {
    enum { SLOTS = 64, RANKS_MAX = 16 };
    int rank = atoi(arguments[1]), ranks = atoi(arguments[2]), messages = atoi(arguments[3]);
    tameike_win *win;
    uint64_t message[2], next[RANKS_MAX] = {0};
    EQUAL(tameike_win_create(arguments[0], 8192, (unsigned)rank, (unsigned)ranks, 0, &win), 0);
    if (rank == 0) EQUAL(tameike_win_queue_init(win, 0, SLOTS, sizeof message), 0);
    EQUAL(tameike_win_barrier(win), 0);
    for (int number = 0; rank > 0 && number < messages; number++) {
        message[0] = (uint64_t)rank, message[1] = (uint64_t)number;
        EQUAL(tameike_win_send(win, 0, 0, message, sizeof message, PATIENCE), 0);
    }
    for (int number = 0; rank == 0 && number < messages * (ranks - 1); number++) {
        EQUAL(tameike_win_receive(win, 0, message, sizeof message, PATIENCE), sizeof message);
        if (message[0] >= (uint64_t)ranks) return fail("a sender", (long)message[0]);
        EQUAL(message[1], next[message[0]]++);
    }
    if (rank == 0) EQUAL(tameike_win_receive(win, 0, message, sizeof message, 0), -EAGAIN);
    return -tameike_win_free(win);
}

/* `left PATH RANK RANKS HOW`: the last rank ends as HOW says, while the others wait, each in another call. */
static int left(char **arguments) {
    int rank = atoi(arguments[1]), ranks = atoi(arguments[2]), kills = strcmp(arguments[3], "kill") == 0;
    tameike_win *win;
    uint64_t word = 7;
    EQUAL(tameike_win_create(arguments[0], 8192, (unsigned)rank, (unsigned)ranks, 0, &win), 0);
    /* With one message, all queues are full. */
    EQUAL(tameike_win_queue_init(win, 64, 1, 8), 0);
    EQUAL(tameike_win_barrier(win), 0);
    int next = (rank + 1) % ranks;
    if (rank % 2 == 0) EQUAL(tameike_win_send(win, (unsigned)next, 64, &word, 8, 0), 0);
    EQUAL(tameike_win_barrier(win), 0);
    if (rank == ranks - 1) {
        /* The others wait by then, most probably. */
        sleep(1);
        if (kills) raise(SIGKILL);
        return -tameike_win_detach(win);
    }
    double begun = now();
    int time = kills ? -1 : 3 * SECOND, expected = kills ? -EOWNERDEAD : -EAGAIN;
    switch (rank) {
    case 0: EQUAL(tameike_win_wait_until(win, 0, TAMEIKE_WIN_EQ, 1, time), expected); break;
    case 1: EQUAL(tameike_win_receive(win, 64, &word, 8, 0), 8); EQUAL(tameike_win_receive(win, 64, &word, 8, time), expected); break;
    case 2: EQUAL(tameike_win_send(win, 3, 64, &word, 8, time), expected); break;
    default: EQUAL(tameike_win_barrier(win), kills ? -EOWNERDEAD : -EPIPE); break;
    }
    if (now() - begun > 10) return fail("it takes long", (long)(now() - begun));
    EQUAL(tameike_win_barrier(win), kills ? -EOWNERDEAD : -EPIPE);
    /* The memory of the rank that has left cannot be reached from another node. */
    unsigned gone = (unsigned)ranks - 1;
    if (tameike_win_address(win, gone) == NULL) {
        int put = tameike_win_put(win, gone, 0, &word, 8), quiet = tameike_win_quiet(win);
        EQUAL(put != 0 ? put : quiet, -EPIPE);
        EQUAL(tameike_win_quiet(win), 0);
        EQUAL(tameike_win_fetch(win, gone, 0, &word), -EPIPE);
    }
    /* That of the others can. */
    EQUAL(tameike_win_fetch_add(win, (unsigned)(rank + 1) % (unsigned)(ranks - 1), 24, 1, NULL), 0);
    /* No process detaches before all others have done the same. */
    for (unsigned other = 0; other < gone; other++) EQUAL(tameike_win_fetch_add(win, other, 32, 1, NULL), 0);
    volatile uint64_t *ended = (uint64_t *)((char *)tameike_win_address(win, (unsigned)rank) + 32);
    for (int turns = 0; *ended < gone; turns++) {
        if (turns == 30000) return fail("ranks that have not ended", (long)(gone - *ended));
        usleep(1000);
    }
    return -tameike_win_detach(win);
}

/* `lost PATH RANK READY`: the agent of rank 1 fails, while both wait. */
static int lost(char **arguments) {
    int rank = atoi(arguments[1]);
    char ready[4096];
    tameike_win *win;
    uint64_t word = 7;
    EQUAL(tameike_win_create(arguments[0], 8192, (unsigned)rank, 2, 0, &win), 0);
    EQUAL(tameike_win_put(win, (unsigned)(1 - rank), 0, &word, 8), 0);
    EQUAL(tameike_win_barrier(win), 0);
    snprintf(ready, sizeof ready, "%s.%d", arguments[2], rank);
    EQUAL(close(open(ready, O_WRONLY | O_CREAT, 0600)), 0);
    double begun = now();
    int failed = tameike_win_wait_until(win, 8, TAMEIKE_WIN_EQ, 1, -1);
    if (rank == 1) EQUAL(failed, -EIO);
    if (rank == 0 && failed != -EOWNERDEAD && failed != -EHOSTDOWN) return fail("a wait", failed);
    if (now() - begun > 20) return fail("it takes long", (long)(now() - begun));
    int put = tameike_win_put(win, (unsigned)(1 - rank), 0, &word, 8), quiet = tameike_win_quiet(win);
    EQUAL(put != 0 ? put : quiet, rank == 1 ? -EIO : -EHOSTDOWN);
    EQUAL(tameike_win_fetch(win, (unsigned)(1 - rank), 0, &word), rank == 1 ? -EIO : -EHOSTDOWN);
    EQUAL(tameike_win_barrier(win) < 0, 1);
    /* It fails where the agent has failed, or the coordinator was. */
    int detached = tameike_win_detach(win);
    return rank == 1 && detached == 0 ? fail("detach", detached) : 0;
}

struct creation {
    const char *path;
    unsigned rank;
    int result;
    tameike_win *win;
};

static void *create(void *argument) {
    struct creation *creation = argument;
    creation->result = tameike_win_create(creation->path, 8192, creation->rank, 2, 0, &creation->win);
    return NULL;
}

/* `errors PATH OTHER`: what cannot be created. OTHER is no path of the job-shared view. */
static int errors(char **arguments) {
    const char *path = arguments[0];
    tameike_win *win;
    EQUAL(tameike_win_create(path, 0, 0, 1, 0, &win), -EINVAL);
    EQUAL(tameike_win_create(path, 8, 1, 1, 0, &win), -EINVAL);
    EQUAL(tameike_win_create(path, 8, 0, 1, 1, &win), -EINVAL);
    EQUAL(tameike_win_create(path, 8, 0, 1, 0, NULL), -EFAULT);
    EQUAL(tameike_win_create(NULL, 8, 0, 1, 0, &win), -EFAULT);
    EQUAL(tameike_win_create(path, UINT64_MAX, 0, 1, 0, &win), -ENOMEM);
    /* Less than addresses, and more than memory. */
    EQUAL(tameike_win_create(path, 1ull << 44, 0, 1, 0, &win), -ENOMEM);
    EQUAL(tameike_win_create(arguments[1], 8, 0, 1, 0, &win), -EOPNOTSUPP);
    /* Two threads as the same rank: one of them waits for rank 1. */
    struct creation creations[3] = {{path, 0, 1, NULL}, {path, 0, 1, NULL}, {path, 1, 1, NULL}};
    pthread_t threads[3];
    for (int at = 0; at < 2; at++)
        if (pthread_create(&threads[at], NULL, create, &creations[at]) != 0) abort();
    volatile struct creation *seen = creations;
    while (seen[0].result == 1 && seen[1].result == 1) usleep(1000);
    int refused = seen[0].result == 1;
    EQUAL(seen[refused].result, -EEXIST);
    EQUAL(tameike_win_create(path, 4096, 1, 2, 0, &win), -EINVAL);
    EQUAL(tameike_win_create(path, 8192, 1, 3, 0, &win), -EINVAL);
    if (pthread_create(&threads[2], NULL, create, &creations[2]) != 0) abort();
    for (int at = 0; at < 3; at++) pthread_join(threads[at], NULL);
    EQUAL(creations[!refused].result, 0);
    EQUAL(creations[2].result, 0);
    EQUAL(tameike_win_detach(creations[2].win), 0);
    EQUAL(tameike_win_barrier(creations[!refused].win), -EPIPE);
    EQUAL(tameike_win_free(creations[!refused].win), -EPIPE);
    EQUAL(access(path, F_OK), -1);
    /* A window in place of the one that is gone, alone. */
    EQUAL(tameike_win_create(path, 8, 0, 0, 0, &win), 0);
    EQUAL(tameike_win_ranks(win), 1);
    EQUAL(tameike_win_detach(win), 0);
    tameike_dsm *region;
    EQUAL(tameike_dsm_create(path, 4096, 1, 0, &region), 0);
    EQUAL(tameike_dsm_detach(region), 0);
    EQUAL(tameike_win_create(path, 8, 0, 1, 0, &win), -EEXIST);
    return unlink(path);
}

/* `child PATH`: a child does not have the window. */
static int child(char **arguments) {
    tameike_win *win;
    uint64_t word = 7;
    EQUAL(tameike_win_create(arguments[0], 8192, 0, 1, 0, &win), 0);
    EQUAL(tameike_win_queue_init(win, 0, 4, 8), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int failed = tameike_win_put(win, 0, 4096, &word, 8) != -EIO || tameike_win_get(win, 0, 4096, &word, 8) != -EIO;
        failed |= tameike_win_address(win, 0) != NULL || tameike_win_receive(win, 0, &word, 8, 0) != -EIO;
        failed |= tameike_win_send(win, 0, 0, &word, 8, 0) != -EIO || tameike_win_fetch(win, 0, 0, &word) != -EIO;
        failed |= tameike_win_wait_until(win, 4096, TAMEIKE_WIN_EQ, 0, 0) != -EIO || tameike_win_quiet(win) != -EIO;
        failed |= tameike_win_barrier(win) != -EIO || tameike_win_free(win) != -EIO;
        _exit(failed);
    }
    int status;
    EQUAL(waitpid(pid, &status, 0), pid);
    EQUAL(status, 0);
    EQUAL(access(arguments[0], F_OK), 0);
    EQUAL(tameike_win_fetch(win, 0, 4096, &word), 0);
    EQUAL(word, 0);
    return -tameike_win_free(win);
}

/* `unavailable PATH`: there is no agent. */
static int unavailable(char **arguments) {
    tameike_win *win;
    EQUAL(tameike_win_create(arguments[0], 8192, 0, 1, 0, &win), -EOPNOTSUPP);
    return 0;
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        int arguments;
        int (*run)(char **);
    } tasks[] = {{"calls", 4, calls}, {"order", 4, order},   {"queue", 4, queue}, {"left", 4, left}, {"lost", 3, lost},
                 {"errors", 2, errors}, {"child", 1, child}, {"unavailable", 1, unavailable}};
    for (size_t task = 0; task < sizeof tasks / sizeof *tasks; task++)
        if (count > 1 && strcmp(arguments[1], tasks[task].name) == 0 && count == 2 + tasks[task].arguments)
            return tasks[task].run(arguments + 2);
    return 2;
}
