"""Records of all MPI ranks, interleaved in one file: records.py FILE ROUNDS. Run by mpirun.

Each way of writing fills its own file: rank r writes records r, r + n, r + 2n, ... Then every rank reads the
records of other ranks, each with another way of reading, and compares every byte.
"""

import random
import sys

from mpi4py import MPI

RECORD = 47_008
ranks = MPI.COMM_WORLD
name, rounds = sys.argv[1], int(sys.argv[2])


def record(way, number):
    """The bytes of a record, which depend on the write mode and the number of the record."""
    return random.Random(f"{way.__name__} {number}").randbytes(RECORD)


def own_numbers(rank):
    return [round_ * ranks.size + rank for round_ in range(rounds)]


def interleaved(file, rank):
    """A file view with only a rank's records."""
    piece = MPI.BYTE.Create_contiguous(RECORD)
    every = piece.Create_resized(0, RECORD * ranks.size)
    every.Commit()
    file.Set_view(rank * RECORD, MPI.BYTE, every)


def write_collective(file, records):
    interleaved(file, ranks.rank)
    file.Write_all(b"".join(records))


def write_collective_at(file, records):
    for number, data in zip(own_numbers(ranks.rank), records):
        file.Write_at_all(number * RECORD, data)


def write_independent(file, records):
    for number, data in zip(own_numbers(ranks.rank), records):
        file.Write_at(number * RECORD, data)


def write_strided(file, records):
    interleaved(file, ranks.rank)
    file.Write(b"".join(records))


def write_atomic(file, records):
    file.Set_atomicity(True)
    write_independent(file, records)


def read_collective(file, rank):
    interleaved(file, rank)
    data = bytearray(RECORD * rounds)
    file.Read_all(data)
    return data


def read_independent(file, rank):
    data = bytearray()
    for number in own_numbers(rank):
        piece = bytearray(RECORD)
        file.Read_at(number * RECORD, piece)
        data += piece
    return data


def check(way, file, read):
    for step in range(1, ranks.size):
        rank = (ranks.rank + step) % ranks.size
        data = read(file, rank)
        for place, number in enumerate(own_numbers(rank)):
            got = bytes(data[place * RECORD:(place + 1) * RECORD])
            if got != record(way, number):
                wrong = next(at for at in range(RECORD) if got[at:at + 1] != record(way, number)[at:at + 1])
                print(f"{way.__name__}: rank {ranks.rank} read record {number} of rank {rank} wrong from byte {wrong}", flush=True)
                ranks.Abort(1)
        file.Set_view(0, MPI.BYTE, MPI.BYTE)


for way in write_collective, write_collective_at, write_independent, write_strided, write_atomic:
    path = f"{name}-{way.__name__}"
    file = MPI.File.Open(ranks, path, MPI.MODE_CREATE | MPI.MODE_RDWR)
    way(file, [record(way, number) for number in own_numbers(ranks.rank)])
    file.Close()
    ranks.Barrier()
    for read in read_collective, read_independent:
        file = MPI.File.Open(ranks, path, MPI.MODE_RDONLY)
        assert file.Get_size() == RECORD * ranks.size * rounds, file.Get_size()
        check(way, file, read)
        file.Close()


def in_place():
    """MPI's sync-barrier-sync: ranks read through the same open file what other ranks have just written."""
    file = MPI.File.Open(ranks, f"{name}-in-place", MPI.MODE_CREATE | MPI.MODE_RDWR)
    for round_ in range(rounds):
        own = random.Random(f"{round_} {ranks.rank}").randbytes(RECORD)
        file.Write_at(ranks.rank * RECORD, own)
        file.Sync()
        ranks.Barrier()
        file.Sync()
        for rank in range(ranks.size):
            piece = bytearray(RECORD)
            file.Read_at(rank * RECORD, piece)
            if piece != random.Random(f"{round_} {rank}").randbytes(RECORD):
                print(f"round {round_}: rank {ranks.rank} read an old record of rank {rank}", flush=True)
                ranks.Abort(1)
        ranks.Barrier()
    file.Close()


in_place()
ranks.Barrier()
if ranks.rank == 0:
    print(f"exact on {ranks.size} ranks")
