/* A computation that writes a checkpoint every few steps: checkpoint DIR [STEPS [MEBIBYTES]]
 *
 * The program alternates between two copies of the state: while one is written, it computes on the other. Prints a line for each checkpoint,
 * and exits with status 0 if the last one reads back unchanged.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tameike.h>

enum { STEPS_PER_CHECKPOINT = 4, PIECES = 8 };

/* A checkpoint in flight. */
struct transfer {
    tameike_file *file;
    tameike_request *request;
};

static void fail(const char *doing, ssize_t error) {
    fprintf(stderr, "checkpoint: %s: %s\n", doing, strerror((int)-error));
    exit(1);
}

static void compute(uint64_t *state, const uint64_t *before, size_t count) {
    for (size_t at = 0; at < count; at++) state[at] = before[at] * 6364136223846793005u + at;
}

static struct transfer begin(const char *path, uint64_t *state, size_t size) {
    struct transfer transfer;
    tameike_piece pieces[PIECES];
    for (size_t piece = 0; piece < PIECES; piece++) {
        size_t offset = piece * (size / PIECES);
        pieces[piece] = (tameike_piece){.offset = offset, .memory = (char *)state + offset, .size = size / PIECES};
    }
    int error = tameike_open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644, &transfer.file);
    if (error < 0) fail(path, error);
    error = tameike_submit_write(transfer.file, pieces, PIECES, &transfer.request);
    if (error < 0) fail("start the transfer", error);
    return transfer;
}

/* Waits for the transfer. The checkpoint counts once it is durable. */
static void end(struct transfer transfer, size_t size) {
    ssize_t written = tameike_wait(transfer.request, -1);
    if (written != (ssize_t)size) fail("write", written < 0 ? written : -28 /* ENOSPC */);
    int error = tameike_fsync(transfer.file);
    if (error == 0) error = tameike_close(transfer.file);
    if (error < 0) fail("make the checkpoint durable", error);
}

static int is_as_written(const char *path, const uint64_t *state, size_t size) {
    tameike_file *file;
    char *found = malloc(size);
    int error = tameike_open(path, O_RDONLY, 0, &file);
    if (error < 0 || !found) fail(path, error);
    ssize_t count = tameike_read(file, found, size, 0);
    tameike_close(file);
    int is_same = count == (ssize_t)size && memcmp(found, state, size) == 0;
    free(found);
    return is_same;
}

int main(int count, char **arguments) {
    if (count < 2) return fprintf(stderr, "usage: checkpoint DIR [STEPS [MEBIBYTES]]\n"), 2;
    int steps = count > 2 ? atoi(arguments[2]) : 12;
    size_t size = (size_t)(count > 3 ? atol(arguments[3]) : 16) << 20;
    uint64_t *state[2] = {calloc(1, size), calloc(1, size)};
    if (steps < STEPS_PER_CHECKPOINT || size == 0 || !state[0] || !state[1]) return 2;
    struct transfer transfer;
    char path[4096] = "";
    int is_writing = 0, now = 0;
    for (int step = 1; step <= steps; step++) {
        compute(state[!now], state[now], size / sizeof **state);
        if (is_writing) end(transfer, size), printf("%s\n", path);
        is_writing = 0;
        now = !now;
        if (step % STEPS_PER_CHECKPOINT == 0) {
            snprintf(path, sizeof path, "%s/checkpoint-%d", arguments[1], step);
            transfer = begin(path, state[now], size);
            is_writing = 1;
        }
    }
    if (is_writing) end(transfer, size), printf("%s\n", path);
    /* The last checkpoint holds the last state only if no step came after it. */
    if (steps % STEPS_PER_CHECKPOINT == 0 && !is_as_written(path, state[now], size)) fail("read back", -5 /* EIO */);
    return 0;
}
