/* Containers of tameike.h in MPI programs.
 *
 * mpicc program.c $(pkg-config --cflags --libs tameike)
 *
 * All ranks of a communicator call these together. Between them each uses the container by itself.
 */

#ifndef TAMEIKE_MPI_H
#define TAMEIKE_MPI_H

#include <mpi.h>
#include <stdlib.h>

#include "tameike.h"

// What tameike_agg_known() tells, to be freed, and its size; null and 0 where it tells nothing.
static inline void *tameike_agg_known_all(tameike_agg *container, unsigned long long *size) {
  ssize_t told = tameike_agg_known(container, NULL, 0);
  void *known = told > 0 ? malloc((size_t)told) : NULL;
  if (known && tameike_agg_known(container, known, (size_t)told) != told) free(known), known = NULL;
  *size = known ? (unsigned long long)told : 0;
  return known;
}

// Opens a container in all ranks of a communicator, of which each writes by its own rank. `options` may be null; its rank, its size and
// whether it is collective do not count. Returns 0 in all ranks, or a negative errno: in each its own, where the first rank has failed -ECANCELED in the others.
static inline int tameike_agg_initialize_mpi(MPI_Comm comm, const char *dir, int flags,
                                             const tameike_agg_options *options, tameike_agg **container) {
  tameike_agg_options own = {0};
  int rank, size, told = 0;
  unsigned long long known_size = 0;
  void *known = NULL;
  if (options) own = *options;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  own.rank = rank;
  own.size = (uint32_t)size;
  own.is_collective = 1;
  own.known = NULL;
  own.known_size = 0;
  if (rank == 0) told = tameike_agg_initialize(dir, flags, &own, container);
  // Where nothing is told, the others look for themselves.
  if (rank == 0 && told == 0) known = tameike_agg_known_all(*container, &known_size);
  int first = told;
  MPI_Bcast(&first, 1, MPI_INT, 0, comm);
  MPI_Bcast(&known_size, 1, MPI_UNSIGNED_LONG_LONG, 0, comm);
  if (rank != 0 && known_size > 0) known = malloc(known_size);
  for (unsigned long long at = 0; at < known_size;) {
    // Who has no memory for it takes part all the same.
    char piece[1 << 14];
    unsigned long long left = known_size - at;
    int count = left < sizeof piece ? (int)left : (int)sizeof piece;
    MPI_Bcast(known ? (char *)known + at : piece, count, MPI_BYTE, 0, comm);
    at += (unsigned long long)count;
  }
  if (known) own.known = known, own.known_size = known_size;
  if (rank != 0) told = first < 0 ? -125 /* ECANCELED */ : tameike_agg_initialize(dir, flags, &own, container);
  free(known);
  return told;
}

// Ends the use of a container in all ranks of a communicator; the first one writes the index when all others have ended. What a rank has written is
// safe when this has returned there; all ranks' is, and the index has it, when it has returned in the first one. Returns 0 or a negative errno.
static inline int tameike_agg_finalize_mpi(MPI_Comm comm, tameike_agg *container) {
  int rank, size, told = 0;
  void *report = NULL;
  size_t report_size = 0;
  MPI_Comm own;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  if (rank != 0) told = tameike_agg_finalize_reporting(container, &report, &report_size);
  // The program may wait for messages of any kind on its own; and this waits for all ranks, which have ended before.
  if (MPI_Comm_dup(comm, &own) != MPI_SUCCESS) {
    free(report);
    return rank == 0 ? tameike_agg_finalize(container) : told;
  }
  // A report for which there is no memory is lost, and looked for.
  MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
  if (rank != 0) MPI_Send(report, (int)report_size, MPI_BYTE, 0, 0, own);
  free(report);
  for (int other = 1; rank == 0 && other < size; other++) {
    MPI_Status status;
    int count = 0;
    if (MPI_Probe(other, 0, own, &status) != MPI_SUCCESS) break;
    MPI_Get_count(&status, MPI_BYTE, &count);
    report = malloc((size_t)count + 1);
    int is_here = MPI_Recv(report, report ? count : 0, MPI_BYTE, other, 0, own, MPI_STATUS_IGNORE) == MPI_SUCCESS;
    if (is_here && report && count > 0) tameike_agg_take_report(container, report, (size_t)count);
    free(report);
  }
  MPI_Comm_free(&own);
  if (rank == 0) told = tameike_agg_finalize(container);
  return told;
}

#endif /* TAMEIKE_MPI_H */
