#!/usr/bin/env python3
"""Messages and collectives of mpi4py, of buffers and of objects; every element is compared."""
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()


def pattern(rank, length):
    return bytes((rank * 37 + i * 7) & 0xFF for i in range(251)) * (length // 251 + 1)


def main():
    wrong = 0
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for length in (0, 1, 1000, 65543, 3 << 20):
        received = bytearray(length)
        WORLD.Sendrecv(pattern(RANK, length)[:length], after, recvbuf=received, source=before)
        wrong += bytes(received) != pattern(before, length)[:length]
    wrong += WORLD.allgather({"rank": RANK}) != [{"rank": rank} for rank in range(SIZE)]
    wrong += WORLD.allreduce(RANK + 1) != SIZE * (SIZE + 1) // 2
    wrong += WORLD.bcast(["text", RANK] if RANK == 0 else None) != ["text", 0]
    all_wrong = WORLD.reduce(int(wrong))
    if RANK == 0:
        print(f"{SIZE} ranks, {all_wrong} wrong", flush=True)


if __name__ == "__main__":
    main()
