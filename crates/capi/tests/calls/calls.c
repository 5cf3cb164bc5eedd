/* Makes every call of the library in the working directory, and prints the results, which must be the same with and without an agent. */
#define _GNU_SOURCE
#include "tameike.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define RECORD 47008
#define RECORDS 60
#define LARGE (5 * 1024 * 1024 + 123)
#define THREADS 4

static void show(const char *what, long long result) {
    printf("%s: %lld\n", what, result);
    fflush(stdout);
}

static void need(bool is_so, const char *what) {
    if (!is_so) {
        printf("not so: %s\n", what);
        exit(1);
    }
}

static tameike_file *opened(const char *path, int flags) {
    tameike_file *file = NULL;
    int result = tameike_open(path, flags, 0666, &file);
    if (result != 0) {
        printf("%s: open: %d\n", path, result);
        exit(1);
    }
    return file;
}

/* Bytes that depend on their offset in a file. */
static void fill(unsigned char *bytes, size_t size, uint64_t offset) {
    for (size_t at = 0; at < size; at++) bytes[at] = (unsigned char)((offset + at) * 131 + (offset + at) / 4099);
}

static bool is_filled(const unsigned char *bytes, size_t size, uint64_t offset) {
    for (size_t at = 0; at < size; at++)
        if (bytes[at] != (unsigned char)((offset + at) * 131 + (offset + at) / 4099)) return false;
    return true;
}

static void refusals(void) {
    tameike_file *file = NULL;
    tameike_status status;
    char byte = 0;
    show("open what is not there", tameike_open("none", O_RDONLY, 0, &file));
    show("open nothing", tameike_open(NULL, O_RDONLY, 0, &file));
    show("open an empty path", tameike_open("", O_RDONLY, 0, &file));
    show("open to nowhere", tameike_open("none", O_RDONLY, 0, NULL));
    show("close nothing", tameike_close(NULL));
    show("stat what is not there", tameike_stat("none", &status));
    show("unlink what is not there", tameike_unlink("none"));
    show("wait for nothing", tameike_wait(NULL, 0));
    tameike_file *writer = opened("once", O_WRONLY | O_CREAT | O_EXCL);
    show("make it again", tameike_open("once", O_WRONLY | O_CREAT | O_EXCL, 0666, &file));
    show("read what is for writing", tameike_read(writer, &byte, 1, 0));
    show("read nothing of it", tameike_read(writer, NULL, 0, 0));
    show("write from nowhere", tameike_write(writer, NULL, 1, 0));
    show("write nothing", tameike_write(writer, NULL, 0, 0));
    tameike_file *reader = opened("once", O_RDONLY);
    show("write what is for reading", tameike_write(reader, &byte, 1, 0));
    show("cut what is for reading", tameike_ftruncate(reader, 0));
    show("stat to nowhere", tameike_fstat(reader, NULL));
    tameike_piece piece = {0, &byte, 1};
    show("a list from nowhere", tameike_read_list(reader, NULL, 1));
    show("a list of nothing", tameike_read_list(reader, &piece, 0));
    show("a list of too much", tameike_read_list(reader, &piece, SIZE_MAX / 2));
    show("a list at the end", tameike_read_list(reader, &piece, 1));
    show("a list of what is for writing", tameike_read_list(writer, &piece, 1));
    show("close", tameike_close(reader));
    show("close", tameike_close(writer));
}

static void names(void) {
    tameike_status status;
    umask(027);
    show("close", tameike_close(opened("masked", O_RDWR | O_CREAT)));
    show("stat", tameike_stat("masked", &status));
    show("mode", status.mode);
    umask(022);
    show("mkdir", tameike_mkdir("directory", 0777));
    show("mkdir", tameike_mkdir("directory", 0777));
    show("stat", tameike_stat("./directory", &status));
    show("mode", status.mode);
    show("rename", tameike_rename("masked", "directory/new", 0));
    show("rename", tameike_rename("masked", "directory/new", 0));
    show("stat", tameike_stat("directory/../directory/new", &status));
    show("rename to what is there", tameike_rename("once", "directory/new", 1 /* RENAME_NOREPLACE */));
    show("link", symlink("directory/new", "link"));
    show("stat of a link", tameike_stat("link", &status));
    show("is a file", S_ISREG(status.mode));
    show("lstat of a link", tameike_lstat("link", &status));
    show("is a link", S_ISLNK(status.mode));
    show("open by a link", tameike_close(opened("link", O_RDONLY)));
    show("not by a link", tameike_open("link", O_RDONLY | O_NOFOLLOW, 0, &(tameike_file *){NULL}));
    show("unlink", tameike_unlink("link"));
    show("unlink a directory", tameike_unlink("directory") < 0);
    char *directory = getcwd(NULL, 0), *path = NULL;
    need(asprintf(&path, "%s//directory/new", directory) > 0, "a path");
    show("stat by an absolute path", tameike_stat(path, &status));
    free(path);
    free(directory);
    show("stat outside", tameike_stat("/", &status));
}

static void contents(void) {
    unsigned char *bytes = malloc(LARGE), *found = calloc(1, LARGE + 100);
    tameike_status status;
    fill(bytes, LARGE, 0);
    tameike_file *file = opened("large", O_RDWR | O_CREAT);
    show("write", tameike_write(file, bytes, 1000, 0));
    show("write", tameike_write(file, bytes, LARGE, 0));
    show("read", tameike_read(file, found, LARGE + 100, 0));
    need(is_filled(found, LARGE, 0), "what was read was written");
    show("read the end", tameike_read(file, found, 4096, LARGE - 77));
    need(is_filled(found, 77, LARGE - 77), "what was read was written");
    show("read beyond", tameike_read(file, found, 10, LARGE + 5));
    show("fsync", tameike_fsync(file));
    show("fstat", tameike_fstat(file, &status));
    show("size", (long long)status.size);
    show("names", status.nlink);
    show("truncate", tameike_ftruncate(file, 3000));
    show("extend", tameike_ftruncate(file, 5000));
    show("read", tameike_read(file, found, 8000, 2000));
    need(is_filled(found, 1000, 2000) && found[1000] == 0 && found[2999] == 0, "cut and extended");
    show("unlink", tameike_unlink("large"));
    show("fstat", tameike_fstat(file, &status));
    show("names", status.nlink);
    show("read", tameike_read(file, found, 8000, 0));
    show("close", tameike_close(file));
    tameike_file *first = opened("log", O_WRONLY | O_CREAT | O_APPEND), *second = opened("log", O_WRONLY | O_APPEND);
    show("append", tameike_write(first, "one ", 4, 999));
    show("append", tameike_write(second, "two ", 4, 0));
    show("append much", tameike_write(first, bytes, LARGE, 0));
    tameike_piece pieces[] = {{0, "three ", 6}, {0, "four", 4}};
    show("append a list", tameike_write_list(second, pieces, 2));
    show("close", tameike_close(first));
    show("close", tameike_close(second));
    file = opened("log", O_RDONLY);
    show("read", tameike_read(file, found, 18, LARGE + 8 - 8));
    need(memcmp(found + 8, "three four", 10) == 0, "appended in order");
    show("close", tameike_close(file));
    free(bytes);
    free(found);
}

/* Interleaved records of two ranks, as lists and asynchronously. */
static void lists(void) {
    unsigned char *bytes = malloc(RECORDS * RECORD), *found = calloc(RECORDS, RECORD);
    tameike_piece pieces[RECORDS];
    fill(bytes, RECORDS * RECORD, 0);
    for (int rank = 0; rank < 2; rank++) {
        tameike_file *file = opened("records", O_RDWR | O_CREAT);
        int count = 0;
        for (int record = rank; record < RECORDS; record += 2)
            pieces[count++] = (tameike_piece){(uint64_t)record * RECORD, bytes + record * RECORD, RECORD};
        show("write a list", tameike_write_list(file, pieces, count));
        show("close", tameike_close(file));
    }
    tameike_file *file = opened("records", O_RDWR);
    for (int record = 0; record < RECORDS; record++) {
        int from = RECORDS - 1 - record;
        pieces[record] = (tameike_piece){(uint64_t)from * RECORD, found + from * RECORD, RECORD};
    }
    show("read a list", tameike_read_list(file, pieces, RECORDS));
    need(is_filled(found, RECORDS * RECORD, 0), "each record is in its place");
    /* The third piece is short. */
    tameike_piece beyond[] = {{0, found, 10}, {20, found + 20, 0}, {RECORDS * RECORD - 5, found + 40, 10}, {0, found, 10}};
    show("read a list beyond the end", tameike_read_list(file, beyond, 4));
    memset(found, 0, RECORDS * RECORD);
    tameike_request *requests[6];
    for (int number = 0; number < 6; number++)
        show("submit", tameike_submit_read(file, pieces + 10 * number, 10, &requests[number]));
    for (int number = 5; number >= 0; number--) {
        ssize_t result;
        while ((result = tameike_wait(requests[number], number % 2 == 0 ? 0 : 100)) == -EINPROGRESS) {}
        show("wait", result);
    }
    need(is_filled(found, RECORDS * RECORD, 0), "each record is in its place");
    for (int record = 0; record < RECORDS; record++) pieces[record].memory = bytes + record * RECORD;
    tameike_request *request;
    show("submit", tameike_submit_write(file, pieces, RECORDS, &request));
    show("close what is in use", tameike_close(file));
    show("wait", tameike_wait(request, -1));
    for (int record = 0; record < RECORDS; record++) {
        need(tameike_read(file, found, RECORD, pieces[record].offset) == RECORD, "a whole record");
        need(memcmp(found, bytes + record * RECORD, RECORD) == 0, "the record that was written there");
    }
    show("a request of what is for reading", tameike_close(file));
    file = opened("records", O_RDONLY);
    show("submit", tameike_submit_write(file, pieces, 2, &request));
    show("wait", tameike_wait(request, -1));
    show("close", tameike_close(file));
    free(bytes);
    free(found);
}

static void the_kernels(void) {
    tameike_file *file = opened("mapped", O_RDWR | O_CREAT);
    show("write", tameike_write(file, "by the ring", 11, 0));
    int number = tameike_descriptor(file);
    need(number >= 0, "a descriptor");
    need(fcntl(number, F_GETFD) == FD_CLOEXEC, "close-on-exec");
    char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, number, 0);
    need(memory != MAP_FAILED && memcmp(memory, "by the ring", 11) == 0, "the same bytes");
    memcpy(memory, "BY", 2);
    char found[12] = {0};
    show("read", tameike_read(file, found, 11, 0));
    show(found, tameike_descriptor(file) == number);
    munmap(memory, 4096);
    show("write", tameike_write(file, "again", 5, 11));
    show("close", tameike_close(file));
}

static void *work(void *shared) {
    static int last;
    tameike_file *file = shared;
    uint64_t start = (uint64_t)__atomic_fetch_add(&last, 1, __ATOMIC_SEQ_CST) * 40 * 10000;
    unsigned char bytes[4][10000], found[4][10000];
    for (int round = 0; round < 10; round++) {
        tameike_piece out[4], in[4];
        for (int piece = 0; piece < 4; piece++) {
            uint64_t offset = start + (uint64_t)(4 * round + piece) * 10000;
            fill(bytes[piece], 10000, offset);
            out[piece] = (tameike_piece){offset, bytes[piece], 10000};
            in[piece] = (tameike_piece){offset, found[piece], 10000};
        }
        tameike_request *request;
        need(tameike_submit_write(file, out, 4, &request) == 0, "submitted");
        need(tameike_wait(request, -1) == 40000, "written");
        need(tameike_submit_read(file, in, 4, &request) == 0, "submitted");
        need(tameike_wait(request, -1) == 40000, "read");
        need(memcmp(bytes, found, sizeof bytes) == 0, "what was written");
    }
    return NULL;
}

static void threads(void) {
    tameike_file *file = opened("threads", O_RDWR | O_CREAT);
    pthread_t running[THREADS];
    for (int thread = 0; thread < THREADS; thread++)
        need(pthread_create(&running[thread], NULL, work, file) == 0, "a thread");
    for (int thread = 0; thread < THREADS; thread++) pthread_join(running[thread], NULL);
    show("close", tameike_close(file));
}

int main(void) {
    refusals();
    names();
    contents();
    lists();
    the_kernels();
    threads();
    return 0;
}
