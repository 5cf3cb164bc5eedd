/* Queries of the Wisconsin benchmark on tables in a shared memory region: each process scans its blocks of the tables.
 *
 * Usage: wisconsin [OPTION...] PATH RANK PROCESSES    the tables are in the region of the file PATH
 *        wisconsin [OPTION...] --file PATH            one process reads the tables from the file PATH with pread, from a cold cache
 *
 *   --rows N           tuples of tables A and B; C has a tenth of them (default 100000)
 *   --queries LIST     of Q1, Q3, Q4, Q6, Q7 (default: all)
 *   --repetitions N    of each query (default 1)
 *   --reuse            the tables are in PATH already, from a run with the same rows
 *   --direct           with --file: read with O_DIRECT
 *
 * Prints one line for each repetition: query, processes, seconds, and whether all processes have found the expected result.
 *
 * Tables and queries are those of D. DeWitt, "The Wisconsin Benchmark: Past, Present, and Future" (1993), with the numbers of the
 * benchmark's first version. unique2 is the order of a table, unique1 a permutation.
 *   Q1  range selection without an index: tuples of A with unique2 < rows / 100
 *   Q3  selection of one tuple of A by unique2 through the clustered index, which is the order of the table
 *   Q4  JoinAselB: tuples of A and B with equal unique2 < rows / 10
 *   Q6  JoinCselAselB: tuples of C and A, for which B has a tuple too, with equal unique2 < rows / 10
 *   Q7  minimum of unique2 in A without an index
 * Q1, Q3, Q4 and Q6 write their tuples into a result table. */
#define _GNU_SOURCE
#include "tameike.h"
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    uint32_t unique1, unique2, two, four, ten, twenty, one_percent, ten_percent, twenty_percent, fifty_percent, unique3;
    uint32_t even_one_percent, odd_one_percent;
    char stringu1[52], stringu2[52], string4[52];
} tuple;

typedef struct {
    tuple left, right;
} pair;

/* A key, and the row that has it. */
typedef struct {
    uint32_t key, row;
} reference;

enum { PAGE = 4096, MOST_PROCESSES = 1024, NOBODY = UINT32_MAX };
/* 256 tuples fill 13 pages, so that no page and no direct read has tuples of two blocks. */
enum { SMALLEST_BLOCK = 256, LARGEST_BLOCK = 4096 };
_Static_assert(sizeof(tuple) == 208 && SMALLEST_BLOCK * sizeof(tuple) % PAGE == 0, "tuples as published, blocks of whole pages");

enum { A, B, C, TABLES };
/* What processes append to: the result, and the keys of B and C that all of them join with. */
enum { RESULT, KEYS_B, KEYS_C, LISTS };

typedef struct {
    uint64_t lengths[LISTS];
    char padding[PAGE - LISTS * sizeof(uint64_t)];
    /* Each process writes its own. */
    struct {
        uint64_t minimum, scanned, is_wrong;
    } parts[MOST_PROCESSES];
} header;

typedef struct {
    size_t rank, processes, rows, block;
    tameike_dsm *region;
    /* The region, or without one the memory of header and lists of keys. */
    char *memory;
    header *header;
    /* Without a region: tables and result. `reading` may be direct. */
    int file, reading;
    size_t tables[TABLES], lists[LISTS], size;
    size_t capacities[LISTS];
    tuple *buffers[TABLES];
    size_t buffered[TABLES];
    /* For checks: unique1 of the rows below rows / 10, and of the row of Q3. */
    uint32_t *unique1[TABLES], point_unique1;
    pair *matches;
} store;

static void fail(const char *what, int error)
{
    fprintf(stderr, "wisconsin: %s: %s\n", what, strerror(error));
    exit(1);
}

static void check(int result, const char *what)
{
    if (result < 0)
        fail(what, -result);
}

static void *allocate(size_t size)
{
    void *memory = aligned_alloc(PAGE, (size + PAGE) / PAGE * PAGE);
    if (!memory)
        fail("memory", ENOMEM);
    return memory;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void barrier(store *store)
{
    if (store->region)
        check(tameike_dsm_barrier(store->region), "barrier");
}

/* ---- Tuples ---- */

static void name(char string[52], uint32_t number)
{
    memset(string, 'x', 52);
    for (int at = 6; at >= 0; at--, number /= 26)
        string[at] = (char)('A' + number % 26);
}

static tuple make(uint32_t unique1, uint32_t unique2)
{
    tuple made = {unique1, unique2, unique1 % 2, unique1 % 4, unique1 % 10, unique1 % 20, unique1 % 100, unique1 % 10, unique1 % 5,
                  unique1 % 2, unique1, unique1 % 100 * 2, unique1 % 100 * 2 + 1, "", "", ""};
    name(made.stringu1, unique1);
    name(made.stringu2, unique2);
    memset(made.string4, 'x', 52);
    memset(made.string4, "AHOV"[unique2 % 4], 4);
    return made;
}

/* The published generator of a permutation: powers of a primitive root modulo a prime, without those above the number of rows. */
typedef struct {
    uint64_t rows, prime, root, power;
} permutation;

static permutation permute(size_t rows, int table)
{
    static const struct {
        uint64_t rows, prime, root;
    } sizes[] = {{1000, 1009, 279}, {10000, 10007, 2969}, {100000, 100003, 21395}, {1000000, 1000003, 2107},
                 {10000000, 10000019, 211}, {100000000, 100000007, 21}};
    size_t at = 0;
    while (sizes[at].rows < rows)
        at++;
    /* Tables begin at different powers, so that only joined rows are equal in unique2. */
    return (permutation){rows, sizes[at].prime, sizes[at].root, (uint64_t)table + 1};
}

static uint32_t next(permutation *of)
{
    do
        of->power = of->power * of->root % of->prime;
    while (of->power > of->rows);
    return (uint32_t)of->power - 1;
}

/* ---- Tables in the region, or in a file ---- */

static size_t rows_of(const store *store, int table)
{
    return table == C ? store->rows / 10 : store->rows;
}

static size_t point_of(const store *store)
{
    return store->rows / 5 + 1;
}

/* Returns rows of a table that are in one block, until the next call for this table. */
static const tuple *rows_at(store *store, int table, size_t first)
{
    if (store->region)
        return (tuple *)(store->memory + store->tables[table]) + first;
    size_t begin = first / store->block * store->block;
    if (store->buffered[table] != begin) {
        /* The last block of a table is followed by unused space. */
        size_t wanted = store->block * sizeof(tuple);
        ssize_t count = pread(store->reading, store->buffers[table], wanted, (off_t)(store->tables[table] + begin * sizeof(tuple)));
        if (count != (ssize_t)wanted)
            fail("read", count < 0 ? errno : EIO);
        store->buffered[table] = begin;
    }
    return store->buffers[table] + (first - begin);
}

static void put(store *store, size_t offset, const void *bytes, size_t size)
{
    if (store->region) {
        memcpy(store->memory + offset, bytes, size);
        return;
    }
    ssize_t count = pwrite(store->file, bytes, size, (off_t)offset);
    if (count != (ssize_t)size)
        fail("write", count < 0 ? errno : EIO);
}

/* Appends items to a list that all processes append to. */
static void append(store *store, int list, const void *items, size_t count, size_t size)
{
    if (count == 0)
        return;
    uint64_t before;
    if (store->region) {
        size_t offset = (size_t)((char *)&store->header->lengths[list] - store->memory);
        check(tameike_dsm_fetch_add(store->region, offset, count, &before), "fetch_add");
    } else {
        before = store->header->lengths[list];
        store->header->lengths[list] += count;
    }
    if ((before + count) * size > store->capacities[list])
        fail("a query has too many results", EOVERFLOW);
    if (list == RESULT)
        put(store, store->lists[list] + before * size, items, count * size);
    else
        memcpy(store->memory + store->lists[list] + before * size, items, count * size);
}

/* Makes the lists empty, and the result zero, so that a check never accepts the result of an earlier repetition. */
static void clear(store *store)
{
    barrier(store);
    size_t pages = store->capacities[RESULT] / PAGE;
    size_t first = store->rank * pages / store->processes, last = (store->rank + 1) * pages / store->processes;
    static const char zeros[PAGE];
    for (size_t page = first; page < last; page++)
        put(store, store->lists[RESULT] + page * PAGE, zeros, PAGE);
    for (int list = 0; list < LISTS && store->rank == 0; list++) {
        uint64_t length = store->header->lengths[list];
        if (store->region)
            check(tameike_dsm_fetch_add(store->region, (uint64_t)list * sizeof length, -length, &length), "fetch_add");
        else
            store->header->lengths[list] = 0;
    }
    barrier(store);
}

/* The next query reads from the disk. */
static void cool(store *store)
{
    for (int table = 0; table < TABLES; table++)
        store->buffered[table] = NOBODY;
    if (store->region)
        return;
    if (fdatasync(store->file))
        fail("fdatasync", errno);
    int failed = posix_fadvise(store->file, 0, 0, POSIX_FADV_DONTNEED);
    if (failed)
        fail("posix_fadvise", failed);
}

/* For the loops below: the blocks of a process, and the number of tuples in one. */
#define FOR_BLOCKS(store, table, first) \
    for (size_t first = (store)->rank * (store)->block; first < rows_of(store, table); first += (store)->processes * (store)->block)

static size_t count_at(const store *store, int table, size_t first)
{
    size_t left = rows_of(store, table) - first;
    return left < store->block ? left : store->block;
}

/* Fills the tables unless they are there, and keeps what checks need. */
static void load(store *store, int reuse)
{
    tuple *block = allocate(store->block * sizeof(tuple));
    for (int table = 0; table < TABLES; table++) {
        permutation all = permute(rows_of(store, table), table);
        store->unique1[table] = allocate(store->rows / 10 * sizeof(uint32_t));
        for (size_t first = 0; first < rows_of(store, table); first += store->block) {
            int writes = !reuse && first / store->block % store->processes == store->rank;
            size_t count = count_at(store, table, first);
            for (size_t at = 0; at < count; at++) {
                uint32_t unique1 = next(&all);
                if (first + at < store->rows / 10)
                    store->unique1[table][first + at] = unique1;
                if (table == A && first + at == point_of(store))
                    store->point_unique1 = unique1;
                if (writes)
                    block[at] = make(unique1, (uint32_t)(first + at));
            }
            if (writes)
                put(store, store->tables[table] + first * sizeof(tuple), block, count * sizeof(tuple));
        }
    }
    free(block);
}

/* ---- Queries ---- */

static void select_range(store *store)
{
    tuple *matches = (tuple *)store->matches;
    FOR_BLOCKS(store, A, first) {
        const tuple *tuples = rows_at(store, A, first);
        size_t count = count_at(store, A, first), found = 0;
        for (size_t at = 0; at < count; at++)
            if (tuples[at].unique2 < store->rows / 100)
                matches[found++] = tuples[at];
        append(store, RESULT, matches, found, sizeof *matches);
    }
}

/* Searches the blocks of this process, which are ordered. */
static void select_point(store *store)
{
    size_t low = 0, high = 0;
    FOR_BLOCKS(store, A, first)
        high += count_at(store, A, first);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        size_t row = (middle / store->block * store->processes + store->rank) * store->block + middle % store->block;
        const tuple *found = rows_at(store, A, row);
        if (found->unique2 == point_of(store)) {
            append(store, RESULT, found, 1, sizeof *found);
            return;
        }
        if (found->unique2 < point_of(store))
            low = middle + 1;
        else
            high = middle;
    }
}

/* Appends the keys of a table below rows / 10, which all processes build their hash tables from. */
static void publish(store *store, int table, int list)
{
    reference *keys = (reference *)store->matches;
    FOR_BLOCKS(store, table, first) {
        const tuple *tuples = rows_at(store, table, first);
        size_t count = count_at(store, table, first), found = 0;
        for (size_t at = 0; at < count; at++)
            if (tuples[at].unique2 < store->rows / 10)
                keys[found++] = (reference){tuples[at].unique2, (uint32_t)(first + at)};
        append(store, list, keys, found, sizeof *keys);
    }
}

/* A hash table with open addressing, in the memory of the process. */
typedef struct {
    reference *slots;
    uint32_t mask;
} hash_table;

static uint32_t slot_of(const hash_table *in, uint32_t key)
{
    uint32_t slot = key * UINT32_C(2654435761) >> 7 & in->mask;
    while (in->slots[slot].row != NOBODY && in->slots[slot].key != key)
        slot = (slot + 1) & in->mask;
    return slot;
}

static hash_table build(const store *store, int list)
{
    size_t length = store->header->lengths[list], size = 16;
    while (size < 2 * length)
        size *= 2;
    hash_table built = {allocate(size * sizeof(reference)), (uint32_t)size - 1};
    memset(built.slots, 0xff, size * sizeof(reference));
    const reference *keys = (const reference *)(store->memory + store->lists[list]);
    for (size_t at = 0; at < length; at++)
        built.slots[slot_of(&built, keys[at].key)] = keys[at];
    return built;
}

static uint32_t find(const hash_table *in, uint32_t key)
{
    return in->slots[slot_of(in, key)].row;
}

static void join_a_sel_b(store *store)
{
    publish(store, B, KEYS_B);
    barrier(store);
    hash_table of_b = build(store, KEYS_B);
    FOR_BLOCKS(store, A, first) {
        const tuple *tuples = rows_at(store, A, first);
        size_t count = count_at(store, A, first), found = 0;
        for (size_t at = 0; at < count; at++) {
            uint32_t row = find(&of_b, tuples[at].unique2);
            if (row != NOBODY)
                store->matches[found++] = (pair){tuples[at], *rows_at(store, B, row)};
        }
        append(store, RESULT, store->matches, found, sizeof(pair));
    }
    free(of_b.slots);
}

static void join_c_sel_a_sel_b(store *store)
{
    publish(store, C, KEYS_C);
    publish(store, B, KEYS_B);
    barrier(store);
    hash_table of_c = build(store, KEYS_C), of_b = build(store, KEYS_B);
    FOR_BLOCKS(store, A, first) {
        const tuple *tuples = rows_at(store, A, first);
        size_t count = count_at(store, A, first), found = 0;
        for (size_t at = 0; at < count; at++) {
            if (tuples[at].unique2 >= store->rows / 10 || find(&of_b, tuples[at].unique2) == NOBODY)
                continue;
            uint32_t row = find(&of_c, tuples[at].unique2);
            if (row != NOBODY)
                store->matches[found++] = (pair){*rows_at(store, C, row), tuples[at]};
        }
        append(store, RESULT, store->matches, found, sizeof(pair));
    }
    free(of_b.slots);
    free(of_c.slots);
}

/* Each process leaves the minimum of its part in the region, and after the barrier all know that of the table. */
static void minimum(store *store)
{
    uint64_t least = NOBODY, scanned = 0;
    FOR_BLOCKS(store, A, first) {
        const tuple *tuples = rows_at(store, A, first);
        size_t count = count_at(store, A, first);
        for (size_t at = 0; at < count; at++)
            if (tuples[at].unique2 < least)
                least = tuples[at].unique2;
        scanned += count;
    }
    store->header->parts[store->rank].minimum = least;
    store->header->parts[store->rank].scanned = scanned;
}

/* ---- Checks, and the program ---- */

typedef struct {
    const char *name;
    void (*run)(store *);
    /* Tables of a result tuple; TABLES ends them. */
    int tables[2];
    /* The result has one tuple for each of rows / share rows from the start, or with 0 the tuple of Q3. */
    size_t share;
} query;

static const query queries[] = {{"Q1", select_range, {A, TABLES}, 100},
                                {"Q3", select_point, {A, TABLES}, 0},
                                {"Q4", join_a_sel_b, {A, B}, 10},
                                {"Q6", join_c_sel_a_sel_b, {C, A}, 10},
                                {"Q7", minimum, {TABLES, TABLES}, 0}};

static int is_minimum_right(const store *store)
{
    uint64_t least = NOBODY, scanned = 0;
    for (size_t process = 0; process < store->processes; process++) {
        scanned += store->header->parts[process].scanned;
        if (store->header->parts[process].minimum < least)
            least = store->header->parts[process].minimum;
    }
    return least == 0 && scanned == store->rows;
}

/* Whether the result has each expected tuple once, whatever their order, with all its bytes. */
static int is_right(store *store, const query *query)
{
    if (query->tables[0] == TABLES)
        return is_minimum_right(store);
    size_t parts = query->tables[1] == TABLES ? 1 : 2, expected = query->share ? store->rows / query->share : 1;
    size_t size = expected * parts * sizeof(tuple);
    if (store->header->lengths[RESULT] != expected)
        return 0;
    tuple *copy = NULL;
    const tuple *result = (tuple *)(store->memory + store->lists[RESULT]);
    if (!store->region) {
        result = copy = allocate(size);
        ssize_t count = pread(store->file, copy, size, (off_t)store->lists[RESULT]);
        if (count != (ssize_t)size)
            fail("read", count < 0 ? errno : EIO);
    }
    char *seen = calloc(1, store->rows);
    if (!seen)
        fail("memory", ENOMEM);
    int right = 1;
    for (size_t at = 0; at < expected && right; at++) {
        uint32_t unique2 = result[at * parts].unique2;
        right = query->share ? unique2 < expected && !seen[unique2] : unique2 == point_of(store);
        for (size_t part = 0; part < parts && right; part++) {
            uint32_t unique1 = query->share ? store->unique1[query->tables[part]][unique2] : store->point_unique1;
            tuple made = make(unique1, unique2);
            right = memcmp(&result[at * parts + part], &made, sizeof made) == 0;
        }
        if (right)
            seen[unique2] = 1;
    }
    free(seen);
    free(copy);
    return right;
}

/* Runs a query once. Returns the number of processes that have found a wrong result. */
static size_t measure(store *store, const query *query)
{
    clear(store);
    cool(store);
    store->header->parts[store->rank].minimum = store->header->parts[store->rank].scanned = 0;
    barrier(store);
    double start = now();
    query->run(store);
    barrier(store);
    double seconds = now() - start;

    store->header->parts[store->rank].is_wrong = !is_right(store, query);
    barrier(store);
    size_t wrong = 0;
    for (size_t process = 0; process < store->processes; process++)
        wrong += store->header->parts[process].is_wrong != 0;
    if (store->rank == 0) {
        printf("%s %zu %.6f %s\n", query->name, store->processes, seconds, wrong ? "WRONG" : "ok");
        fflush(stdout);
    }
    return wrong;
}

static size_t whole_pages(size_t size)
{
    return (size + PAGE - 1) / PAGE * PAGE;
}

static void lay_out(store *store)
{
    store->block = store->rows / (8 * store->processes) / SMALLEST_BLOCK * SMALLEST_BLOCK;
    if (store->block < SMALLEST_BLOCK)
        store->block = SMALLEST_BLOCK;
    if (store->block > LARGEST_BLOCK || !store->processes)
        store->block = LARGEST_BLOCK;
    store->capacities[RESULT] = whole_pages(store->rows / 10 * sizeof(pair));
    store->capacities[KEYS_B] = store->capacities[KEYS_C] = whole_pages(store->rows / 10 * sizeof(reference));
    size_t at = whole_pages(sizeof(header));
    for (int list = LISTS - 1; list >= 0; list--) {
        store->lists[list] = at;
        at += store->capacities[list];
    }
    for (int table = 0; table < TABLES; table++) {
        store->tables[table] = at;
        /* A file has space for its last block. */
        at += whole_pages((rows_of(store, table) + LARGEST_BLOCK) * sizeof(tuple));
    }
    store->size = at;
    store->matches = allocate(store->block * sizeof(pair));
}

static void open_region(store *store, const char *path)
{
    check(tameike_dsm_create(path, store->size, (unsigned)store->processes, 0, &store->region), path);
    store->memory = tameike_dsm_address(store->region);
    store->header = (header *)store->memory;
}

static void open_file(store *store, const char *path, int is_direct)
{
    store->memory = allocate(store->lists[RESULT]);
    memset(store->memory, 0, store->lists[RESULT]);
    store->header = (header *)store->memory;
    store->file = open(path, O_RDWR | O_CREAT, 0644);
    store->reading = open(path, O_RDONLY | (is_direct ? O_DIRECT : 0));
    if (store->file < 0 || store->reading < 0 || ftruncate(store->file, (off_t)store->size))
        fail(path, errno);
    for (int table = 0; table < TABLES; table++)
        store->buffers[table] = allocate(store->block * sizeof(tuple));
}

static void usage(void)
{
    fprintf(stderr, "usage: wisconsin [--rows N] [--queries LIST] [--repetitions N] [--reuse] PATH RANK PROCESSES\n"
                    "       wisconsin [--rows N] [--queries LIST] [--repetitions N] [--reuse] [--direct] --file PATH\n"
                    "N of --rows: 1000 to 100000000, a multiple of 100\n");
    exit(2);
}

static void measure_all(store *store, const char *wanted, size_t repetitions)
{
    size_t wrong = 0;
    for (size_t at = 0; at < sizeof queries / sizeof *queries; at++)
        for (size_t repetition = 0; repetition < repetitions && strstr(wanted, queries[at].name); repetition++)
            wrong += measure(store, &queries[at]);
    if (store->region) {
        /* Before the others detach, which ends barriers. */
        barrier(store);
        check(tameike_dsm_detach(store->region), "detach");
    }
    if (wrong)
        exit(1);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"rows", required_argument, NULL, 'r'}, {"queries", required_argument, NULL, 'q'},
                                            {"repetitions", required_argument, NULL, 'n'}, {"file", required_argument, NULL, 'f'},
                                            {"reuse", no_argument, NULL, 'u'}, {"direct", no_argument, NULL, 'd'}, {0}};
    store store = {.rows = 100000, .processes = 1};
    const char *wanted = "Q1,Q3,Q4,Q6,Q7", *file = NULL;
    size_t repetitions = 1;
    int reuse = 0, is_direct = 0;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'r': store.rows = strtoul(optarg, NULL, 10); break;
        case 'q': wanted = optarg; break;
        case 'n': repetitions = strtoul(optarg, NULL, 10); break;
        case 'f': file = optarg; break;
        case 'u': reuse = 1; break;
        case 'd': is_direct = 1; break;
        default: usage();
        }
    }
    if (argc - optind != (file ? 0 : 3) || (is_direct && !file))
        usage();
    if (!file) {
        store.rank = strtoul(argv[optind + 1], NULL, 10);
        store.processes = strtoul(argv[optind + 2], NULL, 10);
    }
    if (store.rows < 1000 || store.rows > 100000000 || store.rows % 100 || store.rank >= store.processes
        || store.processes > MOST_PROCESSES)
        usage();

    lay_out(&store);
    if (file)
        open_file(&store, file, is_direct);
    else
        open_region(&store, argv[optind]);
    barrier(&store);
    double start = now();
    load(&store, reuse);
    barrier(&store);
    if (store.rank == 0 && !reuse)
        printf("load %zu %.6f\n", store.processes, now() - start);
    measure_all(&store, wanted, repetitions);
    return 0;
}
