/* The matrix product of examples/dsm/matmul.c with MPI: each process holds its columns, and fetches the columns of A of the others.
 *
 * Usage: matmul_mpi two-sided|one-sided N
 * Prints what matmul prints. C stays distributed until the time has been taken. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, processes;

static size_t first_of(size_t n, int process)
{
    return (size_t)process * n / (size_t)processes;
}

static int length_of(size_t n, int process)
{
    return (int)((first_of(n, process + 1) - first_of(n, process)) * n);
}

static double *columns(size_t n, size_t count)
{
    double *memory = malloc(n * count * sizeof(double));
    if (!memory) {
        fprintf(stderr, "matmul_mpi: no memory for %zu columns\n", count);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

/* Sends this process's columns of `a` to all others, and receives theirs. */
static void exchange(double *a, size_t n)
{
    MPI_Request *requests = calloc(2 * (size_t)processes, sizeof *requests);
    int count = 0;
    for (int peer = 0; peer < processes; peer++) {
        if (peer == rank)
            continue;
        MPI_Irecv(a + first_of(n, peer) * n, length_of(n, peer), MPI_DOUBLE, peer, 0, MPI_COMM_WORLD, &requests[count++]);
        MPI_Isend(a + first_of(n, rank) * n, length_of(n, rank), MPI_DOUBLE, peer, 0, MPI_COMM_WORLD, &requests[count++]);
    }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    free(requests);
}

/* Gets the columns of all others from their windows. */
static void get(double *a, size_t n, MPI_Win window)
{
    MPI_Win_fence(MPI_MODE_NOPRECEDE, window);
    for (int peer = 0; peer < processes; peer++)
        if (peer != rank)
            MPI_Get(a + first_of(n, peer) * n, length_of(n, peer), MPI_DOUBLE, peer, 0, length_of(n, peer), MPI_DOUBLE, window);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, window);
}

static double checksum(const double *part, size_t n)
{
    int *lengths = calloc((size_t)processes, sizeof *lengths), *places = calloc((size_t)processes, sizeof *places);
    for (int process = 0; process < processes; process++) {
        lengths[process] = length_of(n, process);
        places[process] = (int)(first_of(n, process) * n);
    }
    double *c = rank == 0 ? columns(n, n) : NULL, sum = 0;
    MPI_Gatherv(part, length_of(n, rank), MPI_DOUBLE, c, lengths, places, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    for (size_t at = 0; rank == 0 && at < n * n; at++)
        sum += c[at] * (double)(at % 7 + 1);
    free(c);
    free(lengths);
    free(places);
    return sum;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &processes);
    int is_one_sided = argc == 3 && strcmp(argv[1], "one-sided") == 0;
    /* Counts of MPI are ints. */
    size_t n = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
    if (n == 0 || n > 46340 || (!is_one_sided && strcmp(argv[1], "two-sided") != 0)) {
        fprintf(stderr, "usage: matmul_mpi two-sided|one-sided N\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    size_t first = first_of(n, rank), last = first_of(n, rank + 1);
    double *a = columns(n, n), *b = columns(n, last - first), *c = columns(n, last - first);
    MPI_Win window = MPI_WIN_NULL;
    if (is_one_sided)
        MPI_Win_create(a + first * n, (MPI_Aint)((last - first) * n * sizeof(double)), sizeof(double), MPI_INFO_NULL, MPI_COMM_WORLD,
                       &window);

    for (size_t column = first; column < last; column++)
        for (size_t row = 0; row < n; row++) {
            a[column * n + row] = (double)((row + 2 * column) % 17);
            b[(column - first) * n + row] = (double)((3 * row + column) % 13);
        }
    MPI_Barrier(MPI_COMM_WORLD);

    double start = MPI_Wtime();
    if (is_one_sided)
        get(a, n, window);
    else
        exchange(a, n);
    for (size_t column = first; column < last; column++) {
        double *sums = c + (column - first) * n;
        for (size_t row = 0; row < n; row++)
            sums[row] = 0;
        for (size_t k = 0; k < n; k++) {
            double factor = b[(column - first) * n + k];
            for (size_t row = 0; row < n; row++)
                sums[row] += a[k * n + row] * factor;
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double seconds = MPI_Wtime() - start;

    double sum = checksum(c, n);
    if (rank == 0)
        printf("%.6f %.0f\n", seconds, sum);
    if (is_one_sided)
        MPI_Win_free(&window);
    free(a);
    free(b);
    free(c);
    MPI_Finalize();
    return 0;
}
