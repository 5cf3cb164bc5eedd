/* MPI ranks that each write separate files to one container, and then read those of the next rank: `ranks DIR FILES SIZE`. */
#include "tameike_mpi.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

static int fail(const char *what) {
    fprintf(stderr, "rank %d: not so: %s (%s)\n", rank, what, tameike_agg_message());
    MPI_Abort(MPI_COMM_WORLD, 1);
    return 1;
}

#define SAY(condition) \
    if (!(condition)) return fail(#condition)

int main(int count, char **arguments) {
    if (count != 4 || MPI_Init(&count, &arguments) != MPI_SUCCESS) return 2;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int files = atoi(arguments[2]);
    size_t length = (size_t)atol(arguments[3]);
    char *bytes = malloc(2 * length + 1), path[64];
    tameike_agg *container;
    tameike_agg_file *file;
    SAY(tameike_agg_initialize_mpi(MPI_COMM_WORLD, arguments[1], O_RDWR | O_CREAT, NULL, &container) == 0);
    for (int number = 0; number < files; number++) {
        snprintf(path, sizeof path, "%d/%d", rank, number);
        memset(bytes, rank * 7 + number, length);
        SAY(tameike_agg_create(container, path, 0644, &file) == 0);
        SAY(tameike_agg_write(file, bytes, length) == (ssize_t)length && tameike_agg_close(file) == 0);
    }
    SAY(tameike_agg_finalize_mpi(MPI_COMM_WORLD, container) == 0);
    int next = (rank + 1) % size;
    MPI_Barrier(MPI_COMM_WORLD);
    SAY(tameike_agg_initialize_mpi(MPI_COMM_WORLD, arguments[1], O_RDONLY, NULL, &container) == 0);
    for (int number = 0; number < files; number++) {
        snprintf(path, sizeof path, "%d/%d", next, number);
        memset(bytes + length, next * 7 + number, length);
        SAY(tameike_agg_open(container, path, O_RDONLY, 0, &file) == 0);
        SAY(tameike_agg_read(file, bytes, length + 1) == (ssize_t)length && memcmp(bytes, bytes + length, length) == 0);
        SAY(tameike_agg_close(file) == 0);
    }
    SAY(tameike_agg_finalize_mpi(MPI_COMM_WORLD, container) == 0);
    MPI_Finalize();
    return 0;
}
