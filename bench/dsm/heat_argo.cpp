// The heat equation of examples/dsm/heat.c on global memory of ArgoDSM.
//
// Usage: heat_argo N STEPS
// Prints what heat prints.
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
    if (argc != 3) {
        std::fprintf(stderr, "usage: heat_argo N STEPS\n");
        return 2;
    }
    std::size_t n = std::strtoul(argv[1], nullptr, 10), steps = std::strtoul(argv[2], nullptr, 10);
    std::size_t size = 2 * n * n * sizeof(double);
    // The global memory is split among the nodes. The cache holds all of it, as the memory of a region does.
    argo::init(size + (1 << 20), size + (1 << 20));
    std::size_t rank = static_cast<std::size_t>(argo::node_id()), processes = static_cast<std::size_t>(argo::number_of_nodes());
    double *memory = argo::conew_array<double>(2 * n * n);
    double *before = memory, *after = before + n * n;
    std::size_t first = rank * n / processes, last = (rank + 1) * n / processes;

    for (std::size_t row = first; row < last; row++)
        for (std::size_t column = 0; column < n; column++) {
            before[row * n + column] = row == 0 ? 100 : static_cast<double>(column % 5);
            after[row * n + column] = before[row * n + column];
        }
    argo::barrier();

    double start = now();
    for (std::size_t step = 0; step < steps; step++) {
        for (std::size_t row = first > 1 ? first : 1; row < last && row + 1 < n; row++)
            for (std::size_t column = 1; column + 1 < n; column++) {
                const double *at = before + row * n + column;
                after[row * n + column] = 0.2 * (at[0] + at[-1] + at[1] + at[-static_cast<long>(n)] + at[n]);
            }
        argo::barrier();
        double *swap = before;
        before = after;
        after = swap;
    }
    double seconds = now() - start;

    if (rank == 0) {
        double sum = 0;
        for (std::size_t at = 0; at < n * n; at++)
            sum += before[at] * static_cast<double>(at % 7 + 1);
        std::printf("%.6f %.17g\n", seconds, sum);
    }
    argo::barrier();
    argo::codelete_array(memory);
    argo::finalize();
    return 0;
}
