/* Ranks that write many files of their own, and read those of others: as files of the file system, or of one container.
 *
 *     aggregate direct|library|sionlib|parts write|read|random DIR WRITERS FILES SIZE SEED POOL SPOOL [COUNT ORDER]
 *
 * Each of WRITERS ranks writes FILES files of SIZE bytes; "read" reads those of the next rank in their order, "random" all files, each by one
 * rank, in an order of chance, or COUNT by each rank in the order ORDER. What is in a file is cut from the bytes in the file POOL, and every byte that is read is
 * compared. "parts" is neither: the bytes lie in 8 plain files, those of a rank in one piece, by plain calls, as no library could be faster with 8 files.
 * "sionlib" is there where this was compiled with what sionconfig says: one of SIONlib's containers, for the first file of all ranks, one for the second, and so on, of 8 files in all where that is enough.
 * Says how many seconds each part took, from a moment that all ranks have agreed on until the last one was there: `opened`, until all
 * have the container open or a directory of their own; `files`, from then on until all files are closed; `ended`, until the container is closed and,
 * after writing, the file system of SPOOL is synced, on which the server has its data. `finished` is when, by CLOCK_MONOTONIC; `most_kib` is the most memory of one. Without mpirun it is one rank.
 *
 * Ranks wait asleep, for they have few cores, which the file system's own processes need.
 */
#define _GNU_SOURCE
#include "tameike_mpi.h"

#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PARTS = 8, CALL = 4 << 20, SLEEP_MOST = 2000000, AHEAD = 50000000 };

typedef struct {
    int (*begin)(int writes);
    int (*write)(const char *path, long file);
    int (*read)(const char *path, long file);
    int (*end)(void);
} way;

static int rank = 0, ranks = 1, is_alone, is_random;
static const char *dir;
static long files, seed;
static size_t size, pool_size;
static const char *pool;
static char *memory;
static tameike_agg *container;

static int fail(const char *what, const char *path) {
    fprintf(stderr, "rank %d: %s: %s: %m (%s)\n", rank, path, what, tameike_agg_message());
    if (!is_alone) MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

#define SAY(condition, path) \
    if (!(condition)) return fail(#condition, path)

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static void until_done(MPI_Request request) {
    struct timespec pause = {0, 20000};
    for (int done = 0;;) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done) return;
        nanosleep(&pause, NULL);
        pause.tv_nsec = 2 * pause.tv_nsec < SLEEP_MOST ? 2 * pause.tv_nsec : SLEEP_MOST;
    }
}

static void barrier(void) {
    MPI_Request request;
    if (is_alone) return;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    until_done(request);
}

/* The latest of all ranks' moments. */
static double latest(double own) {
    double most = own;
    barrier();
    if (!is_alone) MPI_Allreduce(&own, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

/* A moment that all ranks begin at. */
static double begin_together(void) {
    double begun = latest(now()) + AHEAD / 1e9;
    struct timespec at = {(time_t)begun, (long)((begun - (double)(time_t)begun) * 1e9)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    return begun;
}

/* What is in a file from a multiple of CALL on, for one call. */
static const char *content(long file, size_t offset) {
    return pool + (size_t)((seed + file) * 8191 + (long)(offset / CALL) * 1000003) % (pool_size - CALL);
}

static size_t call_size(size_t offset) { return size - offset < CALL ? size - offset : CALL; }

static int direct_begin(int writes) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", dir, rank);
    SAY(!writes || mkdir(path, 0755) == 0, path);
    return 0;
}

/* Gfarm's client lets go of files some time after they were closed, and opens no more than it may have meanwhile. */
static int open_when_it_may(const char *path, int flags) {
    const struct timespec pause = {0, 1000000};
    for (;;) {
        int descriptor = open(path, flags, 0644);
        if (descriptor >= 0 || (errno != EMFILE && errno != ENFILE)) return descriptor;
        nanosleep(&pause, NULL);
    }
}

static int direct_write(const char *name, long file) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int descriptor = open_when_it_may(path, O_WRONLY | O_CREAT | O_TRUNC);
    SAY(descriptor >= 0, path);
    for (size_t at = 0; at < size; at += call_size(at))
        SAY(write(descriptor, content(file, at), call_size(at)) == (ssize_t)call_size(at), path);
    SAY(close(descriptor) == 0, path);
    return 0;
}

static int direct_read(const char *name, long file) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int descriptor = open_when_it_may(path, O_RDONLY);
    SAY(descriptor >= 0, path);
    for (size_t at = 0; at < size; at += call_size(at)) {
        size_t found = 0;
        for (ssize_t one = 1; one > 0 && found < call_size(at); found += (size_t)one) {
            one = read(descriptor, memory + found, call_size(at) - found);
            SAY(one >= 0, path);
        }
        SAY(found == call_size(at) && memcmp(memory, content(file, at), found) == 0, path);
    }
    SAY(read(descriptor, memory, 1) == 0, path);
    SAY(close(descriptor) == 0, path);
    return 0;
}

static int direct_end(void) { return 0; }

static int part_files[PARTS];

static int make_together(int writes) {
    if (writes && rank == 0) SAY(mkdir(dir, 0755) == 0, dir);
    if (writes) barrier();
    return 0;
}

static int parts_begin(int writes) {
    for (int part = 0; part < PARTS; part++) part_files[part] = -1;
    return make_together(writes);
}

/* The open file that a file's bytes are in, and where they begin. */
static int part_of(long file, size_t *start, int flags) {
    long owner = file / files;
    int part = (int)(owner % PARTS);
    *start = (size_t)(owner / PARTS * files + file % files) * size;
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", dir, part);
    if (part_files[part] < 0) part_files[part] = open_when_it_may(path, flags);
    return part_files[part];
}

static int parts_write(const char *name, long file) {
    size_t start;
    int descriptor = part_of(file, &start, O_RDWR | O_CREAT);
    SAY(descriptor >= 0, name);
    for (size_t at = 0; at < size; at += call_size(at))
        SAY(pwrite(descriptor, content(file, at), call_size(at), (off_t)(start + at)) == (ssize_t)call_size(at), name);
    return 0;
}

static int parts_read(const char *name, long file) {
    size_t start;
    int descriptor = part_of(file, &start, O_RDONLY);
    SAY(descriptor >= 0, name);
    for (size_t at = 0; at < size; at += call_size(at)) {
        size_t found = 0;
        for (ssize_t one = 1; one > 0 && found < call_size(at); found += (size_t)one) {
            one = pread(descriptor, memory + found, call_size(at) - found, (off_t)(start + at + found));
            SAY(one >= 0, name);
        }
        SAY(found == call_size(at) && memcmp(memory, content(file, at), found) == 0, name);
    }
    return 0;
}

static int parts_end(void) {
    for (int part = 0; part < PARTS; part++)
        if (part_files[part] >= 0) SAY(close(part_files[part]) == 0, dir);
    return 0;
}

/* As tameike_agg_initialize_mpi(), and below tameike_agg_finalize_mpi(), but for how ranks wait, and over the communicator of all. */
static int library_begin(int writes) {
    tameike_agg_options own = {.rank = rank, .size = (uint32_t)ranks, .is_collective = 1};
    int flags = writes ? O_RDWR | O_CREAT : O_RDONLY;
    unsigned long long known_size = 0;
    void *known = NULL;
    if (rank == 0) {
        SAY(tameike_agg_initialize(dir, flags, &own, &container) == 0, dir);
        known = tameike_agg_known_all(container, &known_size);
    }
    if (!is_alone) {
        barrier();
        MPI_Bcast(&known_size, 1, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD);
        if (rank != 0) SAY((known = malloc(known_size + 1)) != NULL, dir);
        MPI_Bcast(known, (int)known_size, MPI_BYTE, 0, MPI_COMM_WORLD);
        own.known = known;
        own.known_size = known_size;
    }
    if (rank != 0) SAY(tameike_agg_initialize(dir, flags, &own, &container) == 0, dir);
    free(known);
    return 0;
}

static int library_write(const char *path, long number) {
    tameike_agg_file *file;
    SAY(tameike_agg_create(container, path, 0644, &file) == 0, path);
    for (size_t at = 0; at < size; at += call_size(at))
        SAY(tameike_agg_write(file, content(number, at), call_size(at)) == (ssize_t)call_size(at), path);
    SAY(tameike_agg_close(file) == 0, path);
    return 0;
}

static int library_read(const char *path, long number) {
    tameike_agg_file *file;
    SAY(tameike_agg_open(container, path, O_RDONLY, 0, &file) == 0, path);
    for (size_t at = 0; at < size; at += call_size(at)) {
        SAY(tameike_agg_read(file, memory, call_size(at)) == (ssize_t)call_size(at), path);
        SAY(memcmp(memory, content(number, at), call_size(at)) == 0, path);
    }
    SAY(tameike_agg_read(file, memory, 1) == 0, path);
    SAY(tameike_agg_close(file) == 0, path);
    return 0;
}

static int library_end(void) {
    void *report = NULL;
    size_t report_size = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank != 0) {
        SAY(tameike_agg_finalize_reporting(container, &report, &report_size) == 0, dir);
        MPI_Isend(report, (int)report_size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &request);
    }
    barrier();
    for (int other = 1; rank == 0 && other < ranks; other++) {
        MPI_Status status;
        int count;
        MPI_Probe(other, 0, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &count);
        SAY((report = malloc((size_t)count + 1)) != NULL, dir);
        MPI_Recv(report, count, MPI_BYTE, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        SAY(count == 0 || tameike_agg_take_report(container, report, (size_t)count) == 0, dir);
        free(report);
        report = NULL;
    }
    if (rank == 0) SAY(tameike_agg_finalize(container) == 0, dir);
    if (!is_alone) until_done(request);
    free(report);
    return 0;
}

#ifdef SION_MPI
#include <sion.h>

/* A container has one file of each rank, and is opened and closed by all ranks together, for which they wait asleep; or by one rank, to read what one has written. */
static MPI_Comm together;

/* Who reads has the rank of the one whose files it reads. */
static int sionlib_begin(int writes) {
    MPI_Comm_split(MPI_COMM_WORLD, 0, writes ? rank : (rank + 1) % ranks, &together);
    return make_together(writes);
}

static int sionlib_open(long file, int writes) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%ld", dir, file % files);
    sion_int64 chunk = size > 0 ? (sion_int64)size : 1;
    sion_int32 block = -1;
    int subfiles = PARTS / files > 1 ? (int)(PARTS / files) : 1, owner = (int)(file / files);
    if (subfiles > ranks) subfiles = ranks;
    if (is_random) return sion_open_rank(path, "br,posix", &chunk, &block, &owner, NULL);
    MPI_Comm local = together;
    barrier();
    return sion_paropen_mpi(path, writes ? "bw,posix" : "br,posix", &subfiles, together, &local, &chunk, &block, &owner, NULL, NULL);
}

static int sionlib_close(int number, const char *path) {
    if (!is_random) barrier();
    SAY((is_random ? sion_close(number) : sion_parclose_mpi(number)) == SION_SUCCESS, path);
    return 0;
}

static int sionlib_write(const char *path, long file) {
    int number = sionlib_open(file, 1);
    SAY(number >= 0, path);
    for (size_t at = 0; at < size; at += call_size(at))
        SAY(sion_fwrite(content(file, at), 1, call_size(at), number) == call_size(at), path);
    return sionlib_close(number, path);
}

static int sionlib_read(const char *path, long file) {
    int number = sionlib_open(file, 0);
    SAY(number >= 0, path);
    for (size_t at = 0; at < size; at += call_size(at)) {
        SAY(sion_fread(memory, 1, call_size(at), number) == call_size(at), path);
        SAY(memcmp(memory, content(file, at), call_size(at)) == 0, path);
    }
    return sionlib_close(number, path);
}

static const way sionlib = {sionlib_begin, sionlib_write, sionlib_read, direct_end};
#endif

static const way direct = {direct_begin, direct_write, direct_read, direct_end};
static const way library = {library_begin, library_write, library_read, library_end};
static const way parts = {parts_begin, parts_write, parts_read, parts_end};

static const way *way_of(const char *name) {
#ifdef SION_MPI
    if (strcmp(name, "sionlib") == 0) return &sionlib;
#endif
    return strcmp(name, "direct") == 0 ? &direct : strcmp(name, "parts") == 0 ? &parts : strcmp(name, "library") == 0 ? &library : NULL;
}

static uint64_t chance(uint64_t *state) {
    uint64_t word = *state += 0x9e3779b97f4a7c15;
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
    word = (word ^ word >> 27) * 0x94d049bb133111eb;
    return word ^ word >> 31;
}

/* Numbers of all files in an order of chance, the same one in all ranks. */
static long *shuffled(long count, long number) {
    long *order = malloc((size_t)count * sizeof *order);
    uint64_t state = (uint64_t)number;
    for (long at = 0; at < count; at++) {
        long other = (long)(chance(&state) % (uint64_t)(at + 1));
        order[at] = order[other];
        order[other] = at;
    }
    return order;
}

int main(int count, char **arguments) {
    is_alone = getenv("OMPI_COMM_WORLD_SIZE") == NULL;
    if ((count != 10 && count != 12) || (!is_alone && MPI_Init(&count, &arguments) != MPI_SUCCESS)) return 2;
    if (!is_alone) {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    }
    const way *how = way_of(arguments[1]);
    SAY(how != NULL, arguments[1]);
    int writes = strcmp(arguments[2], "write") == 0;
    is_random = strcmp(arguments[2], "random") == 0;
    dir = arguments[3];
    long writers = atol(arguments[4]);
    files = atol(arguments[5]);
    size = (size_t)atoll(arguments[6]);
    seed = atol(arguments[7]);
    int descriptor = open(arguments[8], O_RDONLY);
    pool_size = (size_t)lseek(descriptor, 0, SEEK_END);
    pool = mmap(NULL, pool_size, PROT_READ, MAP_SHARED | MAP_POPULATE, descriptor, 0);
    SAY(descriptor >= 0 && pool_size > CALL && pool != MAP_FAILED, arguments[8]);
    int spool = open(arguments[9], O_RDONLY);
    SAY(spool >= 0, arguments[9]);
    memory = malloc(CALL);
    memset(memory, 1, CALL);
    long *order = is_random ? shuffled(writers * files, count == 12 ? atol(arguments[11]) : seed) : NULL;
    long turns = is_random ? (writers * files - rank + ranks - 1) / ranks : files;
    if (count == 12 && atol(arguments[10]) < turns) turns = atol(arguments[10]);

    double begun = begin_together();
    how->begin(writes);
    double opened = latest(now()) - begun;
    begun = begin_together();
    for (long turn = 0; turn < turns; turn++) {
        long owner = writes ? rank : (rank + 1) % writers;
        long file = is_random ? order[turn * ranks + rank] : owner * files + turn;
        char path[64];
        snprintf(path, sizeof path, "%ld/%ld", file / files, file % files);
        (writes ? how->write : how->read)(path, file);
    }
    double closed = latest(now());
    how->end();
    double ended = latest(now());
    if (writes && rank == 0) {
        SAY(syncfs(spool) == 0, arguments[9]);
        ended = now();
    }
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double most = latest((double)used.ru_maxrss);
    if (rank == 0)
        printf("{\"opened\": %.6f, \"files\": %.6f, \"ended\": %.6f, \"finished\": %.6f, \"most_kib\": %.0f}\n", opened, closed - begun,
               ended - closed, ended, most);
    if (!is_alone) MPI_Finalize();
    return 0;
}
