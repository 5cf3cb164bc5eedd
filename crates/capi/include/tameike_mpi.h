/* Containers of tameike.h in MPI programs.
 *
 * mpicc program.c $(pkg-config --cflags --libs tameike)
 *
 * The functions are collective over a communicator. Between them, each rank uses the container independently.
 */

#ifndef TAMEIKE_MPI_H
#define TAMEIKE_MPI_H

#include <mpi.h>
#include <stdlib.h>

#include "tameike.h"

// Returns the result of tameike_agg_known(), to be freed, and its size; null and 0 if there is none.
static inline void *tameike_agg_known_all(tameike_agg *container, unsigned long long *size) {
  ssize_t needed = tameike_agg_known(container, NULL, 0);
  void *known = needed > 0 ? malloc((size_t)needed) : NULL;
  if (known && tameike_agg_known(container, known, (size_t)needed) != needed) free(known), known = NULL;
  *size = known ? (unsigned long long)needed : 0;
  return known;
}

// Opens a container in all ranks of a communicator. `options` may be null; its fields rank, size and is_collective are ignored. Returns 0 or
// a negative errno, which may differ between ranks: if rank 0 fails, all others return -ECANCELED.
static inline int tameike_agg_initialize_mpi(MPI_Comm comm, const char *dir, int flags,
                                             const tameike_agg_options *options, tameike_agg **container) {
  tameike_agg_options own = {0};
  int rank, size, result = 0;
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
  if (rank == 0) result = tameike_agg_initialize(dir, flags, &own, container);
  // Without it, the other ranks read the container themselves.
  if (rank == 0 && result == 0) known = tameike_agg_known_all(*container, &known_size);
  int first = result;
  MPI_Bcast(&first, 1, MPI_INT, 0, comm);
  MPI_Bcast(&known_size, 1, MPI_UNSIGNED_LONG_LONG, 0, comm);
  if (rank != 0 && known_size > 0) known = malloc(known_size);
  for (unsigned long long at = 0; at < known_size;) {
    // A rank without memory for it must still take part in the broadcast.
    char piece[1 << 14];
    unsigned long long left = known_size - at;
    int count = left < sizeof piece ? (int)left : (int)sizeof piece;
    MPI_Bcast(known ? (char *)known + at : piece, count, MPI_BYTE, 0, comm);
    at += (unsigned long long)count;
  }
  if (known) own.known = known, own.known_size = known_size;
  if (rank != 0) result = first < 0 ? -125 /* ECANCELED */ : tameike_agg_initialize(dir, flags, &own, container);
  free(known);
  return result;
}

// Closes a container in all ranks of a communicator. Rank 0 writes the index after all others have finished. When the call returns on a rank,
// that rank's data is durable; when it returns on rank 0, the data of all ranks is durable and indexed. Returns 0 or a negative errno.
static inline int tameike_agg_finalize_mpi(MPI_Comm comm, tameike_agg *container) {
  int rank, size, result = 0;
  void *report = NULL;
  size_t report_size = 0;
  MPI_Comm own;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  if (rank != 0) result = tameike_agg_finalize_reporting(container, &report, &report_size);
  // A separate communicator, as the program may wait for any message on its own. This call waits for all ranks to finish.
  if (MPI_Comm_dup(comm, &own) != MPI_SUCCESS) {
    free(report);
    return rank == 0 ? tameike_agg_finalize(container) : result;
  }
  // A report is lost if there is no memory for it; the index is then built from the container.
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
  if (rank == 0) result = tameike_agg_finalize(container);
  return result;
}

#endif /* TAMEIKE_MPI_H */
