// The matrix product of examples/dsm/matmul.c on global memory of ArgoDSM.
//
// Usage: matmul_argo N
// Prints what matmul prints.
#include "argo.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>

static double now()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        std::fprintf(stderr, "usage: matmul_argo N\n");
        return 2;
    }
    std::size_t n = std::strtoul(argv[1], nullptr, 10), size = 3 * n * n * sizeof(double);
    // The global memory is split among the nodes. The cache holds all of it, as the memory of a region does.
    argo::init(size + (1 << 20), size + (1 << 20));
    std::size_t rank = static_cast<std::size_t>(argo::node_id()), processes = static_cast<std::size_t>(argo::number_of_nodes());
    double *memory = argo::conew_array<double>(3 * n * n);
    double *a = memory, *b = a + n * n, *c = b + n * n;
    std::size_t first = rank * n / processes, last = (rank + 1) * n / processes;

    for (std::size_t column = first; column < last; column++)
        for (std::size_t row = 0; row < n; row++) {
            a[column * n + row] = static_cast<double>((row + 2 * column) % 17);
            b[column * n + row] = static_cast<double>((3 * row + column) % 13);
        }
    argo::barrier();

    double start = now();
    for (std::size_t column = first; column < last; column++) {
        double *sums = c + column * n;
        for (std::size_t row = 0; row < n; row++)
            sums[row] = 0;
        for (std::size_t k = 0; k < n; k++) {
            double factor = b[column * n + k];
            for (std::size_t row = 0; row < n; row++)
                sums[row] += a[k * n + row] * factor;
        }
    }
    argo::barrier();
    double seconds = now() - start;

    if (rank == 0) {
        double sum = 0;
        for (std::size_t at = 0; at < n * n; at++)
            sum += c[at] * static_cast<double>(at % 7 + 1);
        std::printf("%.6f %.0f\n", seconds, sum);
    }
    argo::barrier();
    argo::codelete_array(memory);
    argo::finalize();
    return 0;
}
