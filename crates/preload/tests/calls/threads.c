/* Threads, signal handlers and cancellation on shared descriptors. */
#include "show.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <sys/time.h>

enum { THREADS = 4, RECORDS = 2000, SIZE = 64 };

static int fd;
static int seen[THREADS * RECORDS];

static void *read_records(void *unused)
{
    uint32_t record[SIZE / 4];
    while (read(fd, record, SIZE) == SIZE)
        __atomic_add_fetch(&seen[record[0]], 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void *write_records(void *first)
{
    uint32_t record[SIZE / 4] = {0};
    for (uint32_t at = 0; at < RECORDS; at++) {
        record[0] = record[SIZE / 4 - 1] = (uint32_t)(uintptr_t)first * RECORDS + at;
        if (write(fd, record, SIZE) != SIZE)
            return (void *)1;
    }
    return NULL;
}

/* Upgrades the file while other threads use it. */
static void *map(void *after)
{
    usleep((useconds_t)(uintptr_t)after);
    void *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    return (void *)(long)(map == MAP_FAILED);
}

static void run(void *(*task)(void *), int takes_over)
{
    pthread_t threads[THREADS + 1];
    void *result;
    long failed = 0;
    for (uintptr_t at = 0; at < THREADS; at++)
        pthread_create(&threads[at], NULL, task, (void *)at);
    if (takes_over)
        pthread_create(&threads[THREADS], NULL, map, (void *)1500);
    for (int at = 0; at < THREADS + !!takes_over; at++) {
        pthread_join(threads[at], &result);
        failed += (long)result;
    }
    SHOW(failed);
}

/* Each record exists once and complete, in any order. */
static void check(void)
{
    uint32_t record[SIZE / 4];
    int wrong = 0;
    memset(seen, 0, sizeof seen);
    lseek(fd, 0, SEEK_SET);
    while (read(fd, record, SIZE) == SIZE) {
        wrong += record[0] != record[SIZE / 4 - 1] || record[0] >= THREADS * RECORDS;
        if (record[0] < THREADS * RECORDS)
            seen[record[0]]++;
    }
    for (int at = 0; at < THREADS * RECORDS; at++)
        wrong += seen[at] != 1;
    SHOW(wrong);
    SHOW(lseek(fd, 0, SEEK_END));
}

static void shared_offset(int takes_over, int flags)
{
    fd = open("records", O_RDWR | O_CREAT | O_TRUNC | flags, 0600);
    run(write_records, takes_over);
    check();
    close(fd);
    fd = open("records", O_RDONLY);
    memset(seen, 0, sizeof seen);
    run(read_records, takes_over);
    int wrong = 0;
    for (int at = 0; at < THREADS * RECORDS; at++)
        wrong += seen[at] != 1;
    SHOW(wrong);
    close(fd);
    unlink("records");
}

static volatile sig_atomic_t handled, refused;
static sigjmp_buf escape;
static volatile sig_atomic_t escapes;

static void on_alarm(int signal)
{
    int error = errno;
    if (write(fd, "H", 1) != 1)
        refused++;
    handled++;
    errno = error;
    if (escapes)
        siglongjmp(escape, 1);
}

/* The main program and a handler that interrupts it write through one offset: no byte is lost. */
static void signals(int jumps)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    char text[4096];
    fd = open("signals", O_RDWR | O_CREAT | O_TRUNC, 0600);
    handled = refused = 0;
    escapes = jumps;
    sigaction(SIGALRM, &action, NULL);
    volatile long written = 0, short_ones = 0;
    setitimer(ITIMER_REAL, &often, NULL);
    while (handled < 200) {
        if (jumps && sigsetjmp(escape, 1))
            continue;
        if (write(fd, "m", 1) == 1)
            written++;
        else
            short_ones++;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    signal(SIGALRM, SIG_DFL);
    long ours = 0, theirs = 0, others = 0, count;
    lseek(fd, 0, SEEK_SET);
    while ((count = read(fd, text, sizeof text)) > 0)
        for (long at = 0; at < count; at++)
            *(text[at] == 'm' ? &ours : text[at] == 'H' ? &theirs : &others) += 1;
    SHOW(short_ones + refused);
    /* A write that a handler left by a jump may or may not have happened. */
    SHOW(jumps ? ours >= written : ours == written);
    SHOW(jumps ? theirs <= handled : theirs == handled);
    SHOW(jumps || others == 0);
    /* Other calls can still use the file. */
    pthread_t thread;
    pthread_create(&thread, NULL, write_records, (void *)0);
    pthread_join(thread, NULL);
    SHOW(fsync(fd));
    SHOW(close(fd));
    unlink("signals");
    limit();
}

static int ends[2];

static int cleaned_up;

static void cleaned(void *unused) { cleaned_up = 1; }

static void *blocked(void *unused)
{
    char byte;
    pthread_cleanup_push(cleaned, NULL);
    read(ends[0], &byte, 1);
    pthread_cleanup_pop(0);
    return NULL;
}

/* A thread that is cancelled during a call unwinds through the library. */
static void cancelled(void)
{
    pthread_t thread;
    void *result;
    SHOW(pipe(ends));
    pthread_create(&thread, NULL, blocked, NULL);
    usleep(20000);
    SHOW(pthread_cancel(thread));
    pthread_join(thread, &result);
    SHOW(result == PTHREAD_CANCELED);
    SHOW(cleaned_up);
}

static int stop;

static void *read_anything(void *unused)
{
    char text[SIZE];
    long wrong = 0;
    while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
        int number = __atomic_load_n(&fd, __ATOMIC_SEQ_CST);
        ssize_t count = pread(number, text, sizeof text, 0);
        wrong += count < 0 ? errno != EBADF : count != 0 && (count != 3 || memcmp(text, "abc", 3));
    }
    return (void *)wrong;
}

/* A file is closed and reopened while another thread reads it. */
static void closed_amid(void)
{
    pthread_t thread;
    void *wrong;
    int failed = 0;
    int made = open("closed", O_RDWR | O_CREAT, 0600);
    failed += write(made, "abc", 3) != 3 || close(made) != 0;
    fd = open("closed", O_RDONLY);
    pthread_create(&thread, NULL, read_anything, NULL);
    for (int round = 0; round < 3000; round++) {
        failed += close(fd) != 0;
        int again = open("closed", O_RDONLY);
        failed += again < 0;
        __atomic_store_n(&fd, again, __ATOMIC_SEQ_CST);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    pthread_join(thread, &wrong);
    SHOW((long)wrong);
    SHOW(failed);
    SHOW(close(fd));
}

int main(void)
{
    limit();
    shared_offset(0, 0);
    shared_offset(1, 0);
    shared_offset(1, O_APPEND);
    signals(0);
    signals(1);
    cancelled();
    closed_amid();
}
