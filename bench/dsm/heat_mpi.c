/* The heat equation of examples/dsm/heat.c with MPI: each process holds its rows, and copies of the rows beside them.
 *
 * Usage: heat_mpi two-sided|one-sided N STEPS
 * Prints what heat prints. The grid stays distributed until the time has been taken. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, processes;
static size_t n;

static size_t first_of(int process)
{
    return (size_t)process * n / (size_t)processes;
}

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (!memory) {
        fprintf(stderr, "heat_mpi: no memory\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

/* Rows of a process: the copy of the row above, its own, the copy of the row below. */
static size_t rows_of(int process)
{
    return first_of(process + 1) - first_of(process) + 2;
}

/* The process that has the next row in a direction (-1 or 1), as a process may have none; or MPI_PROC_NULL. */
static int beside(int direction)
{
    int process = rank + direction;
    while (process >= 0 && process < processes && rows_of(process) == 2)
        process += direction;
    return process < 0 || process >= processes || rows_of(rank) == 2 ? MPI_PROC_NULL : process;
}

static void exchange(double *grid, int above, int below)
{
    size_t own = rows_of(rank) - 2;
    int length = (int)n;
    MPI_Sendrecv(grid + n, length, MPI_DOUBLE, above, 0, grid + (own + 1) * n, length, MPI_DOUBLE, below, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(grid + own * n, length, MPI_DOUBLE, below, 1, grid, length, MPI_DOUBLE, above, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* Puts the outer rows of this process into the copies of its neighbours. */
static void put(const double *grid, int above, int below, MPI_Win window)
{
    size_t own = rows_of(rank) - 2;
    int length = (int)n;
    MPI_Win_fence(0, window);
    if (above != MPI_PROC_NULL)
        MPI_Put(grid + n, length, MPI_DOUBLE, above, (MPI_Aint)((rows_of(above) - 1) * n), length, MPI_DOUBLE, window);
    if (below != MPI_PROC_NULL)
        MPI_Put(grid + own * n, length, MPI_DOUBLE, below, 0, length, MPI_DOUBLE, window);
    MPI_Win_fence(0, window);
}

static double checksum(const double *grid)
{
    int *lengths = allocate((size_t)processes, sizeof *lengths), *places = allocate((size_t)processes, sizeof *places);
    for (int process = 0; process < processes; process++) {
        lengths[process] = (int)((rows_of(process) - 2) * n);
        places[process] = (int)(first_of(process) * n);
    }
    double *all = rank == 0 ? allocate(n * n, sizeof *all) : NULL, sum = 0;
    MPI_Gatherv(grid + n, lengths[rank], MPI_DOUBLE, all, lengths, places, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    for (size_t at = 0; rank == 0 && at < n * n; at++)
        sum += all[at] * (double)(at % 7 + 1);
    free(all);
    free(lengths);
    free(places);
    return sum;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &processes);
    int is_one_sided = argc == 4 && strcmp(argv[1], "one-sided") == 0;
    n = argc == 4 ? strtoul(argv[2], NULL, 10) : 0;
    /* Counts of MPI are ints. */
    if (n == 0 || n > 46340 || (!is_one_sided && strcmp(argv[1], "two-sided") != 0)) {
        fprintf(stderr, "usage: heat_mpi two-sided|one-sided N STEPS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    size_t steps = strtoul(argv[3], NULL, 10), first = first_of(rank), last = first_of(rank + 1), size = rows_of(rank) * n;
    double *before = allocate(size, sizeof *before), *after = allocate(size, sizeof *after);
    int above = beside(-1), below = beside(1);
    MPI_Win of_before = MPI_WIN_NULL, of_after = MPI_WIN_NULL;
    if (is_one_sided) {
        MPI_Aint bytes = (MPI_Aint)(size * sizeof(double));
        MPI_Win_create(before, bytes, sizeof(double), MPI_INFO_NULL, MPI_COMM_WORLD, &of_before);
        MPI_Win_create(after, bytes, sizeof(double), MPI_INFO_NULL, MPI_COMM_WORLD, &of_after);
    }

    for (size_t row = first; row < last; row++)
        for (size_t column = 0; column < n; column++) {
            size_t at = (row - first + 1) * n + column;
            before[at] = row == 0 ? 100 : (double)(column % 5);
            after[at] = before[at];
        }
    MPI_Barrier(MPI_COMM_WORLD);

    double start = MPI_Wtime();
    for (size_t step = 0; step < steps; step++) {
        if (is_one_sided)
            put(before, above, below, of_before);
        else
            exchange(before, above, below);
        for (size_t row = first > 1 ? first : 1; row < last && row + 1 < n; row++)
            for (size_t column = 1; column + 1 < n; column++) {
                const double *at = before + (row - first + 1) * n + column;
                after[(row - first + 1) * n + column] = 0.2 * (at[0] + at[-1] + at[1] + at[-(long)n] + at[n]);
            }
        double *swap = before;
        before = after;
        after = swap;
        MPI_Win other = of_before;
        of_before = of_after;
        of_after = other;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double seconds = MPI_Wtime() - start;

    double sum = checksum(before);
    if (rank == 0)
        printf("%.6f %.17g\n", seconds, sum);
    if (is_one_sided) {
        MPI_Win_free(&of_before);
        MPI_Win_free(&of_after);
    }
    free(before);
    free(after);
    MPI_Finalize();
    return 0;
}
