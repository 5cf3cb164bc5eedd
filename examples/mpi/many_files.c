/* Ranks that write many small files into one container: many_files CONTAINER [FILES]
 *
 * Each rank writes its own files; then each reads those of the next rank, and compares them.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tameike_mpi.h>

enum { FILE_SIZE = 4000 };

static int rank, size;

static void check(int is_right, const char *doing) {
    if (is_right) return;
    fprintf(stderr, "many_files: rank %d: %s: %s\n", rank, doing, tameike_agg_message());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void fill(char *bytes, int of_rank, int number) {
    for (int at = 0; at < FILE_SIZE; at++) bytes[at] = (char)(of_rank * 31 + number * 7 + at);
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (count < 2) return fprintf(stderr, "usage: many_files CONTAINER [FILES]\n"), 2;
    int files = count > 2 ? atoi(arguments[2]) : 100;
    char path[64], bytes[FILE_SIZE], found[FILE_SIZE];
    tameike_agg *container;
    tameike_agg_file *file;

    int opened = tameike_agg_initialize_mpi(MPI_COMM_WORLD, arguments[1], O_RDWR | O_CREAT, NULL, &container);
    check(opened == 0, "open the container");
    for (int number = 0; number < files; number++) {
        snprintf(path, sizeof path, "rank-%d/%d", rank, number);
        fill(bytes, rank, number);
        check(tameike_agg_create(container, path, 0644, &file) == 0, path);
        check(tameike_agg_write(file, bytes, FILE_SIZE) == FILE_SIZE, path);
        check(tameike_agg_close(file) == 0, path);
    }
    /* When this returns in rank 0, all files are durable and in the index. */
    check(tameike_agg_finalize_mpi(MPI_COMM_WORLD, container) == 0, "end");
    MPI_Barrier(MPI_COMM_WORLD);

    int next = (rank + 1) % size;
    opened = tameike_agg_initialize_mpi(MPI_COMM_WORLD, arguments[1], O_RDONLY, NULL, &container);
    check(opened == 0, "open the container again");
    for (int number = 0; number < files; number++) {
        snprintf(path, sizeof path, "rank-%d/%d", next, number);
        fill(bytes, next, number);
        check(tameike_agg_open(container, path, O_RDONLY, 0, &file) == 0, path);
        check(tameike_agg_read(file, found, FILE_SIZE) == FILE_SIZE, path);
        check(memcmp(found, bytes, FILE_SIZE) == 0, path);
        check(tameike_agg_close(file) == 0, path);
    }
    check(tameike_agg_finalize_mpi(MPI_COMM_WORLD, container) == 0, "end");
    if (rank == 0) printf("%d files of %d ranks are correct\n", size * files, size);
    MPI_Finalize();
    return 0;
}
