/* Containers of tameike.h in MPI programs.
 *
 * mpicc program.c $(pkg-config --cflags --libs tameike)
 *
 * All ranks of a communicator call these together. Between them each uses the container by itself.
 */

#ifndef TAMEIKE_MPI_H
#define TAMEIKE_MPI_H

#include <mpi.h>
#include <string.h>

#include "tameike.h"

// Opens a container in all ranks of a communicator, of which each writes by its own rank. `options` may be null; its rank, its size and
// whether it is collective do not count. Returns 0 in all ranks, or a negative errno: in each its own, where the first rank has failed -ECANCELED in the others.
static inline int tameike_agg_initialize_mpi(MPI_Comm comm, const char *dir, int flags,
                                             const tameike_agg_options *options, tameike_agg **container) {
  tameike_agg_options own = {0};
  int rank, size, told = 0;
  if (options) own = *options;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  own.rank = rank;
  own.size = (uint32_t)size;
  own.is_collective = 1;
  memset(own.known, 0, sizeof own.known);
  if (rank == 0) told = tameike_agg_initialize(dir, flags, &own, container);
  // Where nothing is told, the others look for themselves.
  if (rank == 0 && told == 0) tameike_agg_known(*container, &own.known);
  int first = told;
  MPI_Bcast(&first, 1, MPI_INT, 0, comm);
  MPI_Bcast(own.known, sizeof own.known, MPI_BYTE, 0, comm);
  if (rank == 0 || first < 0) return rank == 0 ? told : -125 /* ECANCELED */;
  return tameike_agg_initialize(dir, flags, &own, container);
}

// Ends the use of a container in all ranks of a communicator; the first one writes the index when all others have ended. Returns 0
// or a negative errno.
static inline int tameike_agg_finalize_mpi(MPI_Comm comm, tameike_agg *container) {
  int rank, told = 0;
  MPI_Comm_rank(comm, &rank);
  if (rank != 0) told = tameike_agg_finalize(container);
  MPI_Barrier(comm);
  if (rank == 0) told = tameike_agg_finalize(container);
  return told;
}

#endif /* TAMEIKE_MPI_H */
