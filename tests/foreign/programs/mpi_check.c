// Messages, collectives and, with an argument, one-sided traffic of MPI; every element is compared.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, size;
static long wrong;

static unsigned char pattern(int from, long index) {
  return (unsigned char)(from * 37 + index * 7 + index / 251);
}

static void check_ring(long length) {
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  unsigned char* sent = malloc((size_t)length + 1);
  unsigned char* received = calloc((size_t)length + 1, 1);
  for (long i = 0; i < length; ++i) sent[i] = pattern(rank, i);
  MPI_Request requests[2];
  MPI_Irecv(received, (int)length, MPI_BYTE, before, 5, MPI_COMM_WORLD, &requests[0]);
  MPI_Isend(sent, (int)length, MPI_BYTE, next, 5, MPI_COMM_WORLD, &requests[1]);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  for (long i = 0; i < length; ++i) wrong += received[i] != pattern(before, i);
  free(sent);
  free(received);
}

static void check_collectives(int count) {
  int* mine = malloc(sizeof(int) * (size_t)count * (size_t)size);
  int* theirs = malloc(sizeof(int) * (size_t)count * (size_t)size);
  for (int i = 0; i < count; ++i) mine[i] = i + rank;
  MPI_Allreduce(mine, theirs, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < count; ++i) wrong += theirs[i] != i * size + size * (size - 1) / 2;
  for (int i = 0; i < count * size; ++i) mine[i] = rank * 1000 + i / count;
  MPI_Alltoall(mine, count, MPI_INT, theirs, count, MPI_INT, MPI_COMM_WORLD);
  for (int i = 0; i < count * size; ++i) wrong += theirs[i] != i / count * 1000 + rank;
  free(mine);
  free(theirs);
}

static void check_windows(int count) {
  int *window = NULL, *data = malloc(sizeof(int) * (size_t)count);
  MPI_Win win;
  MPI_Win_allocate((MPI_Aint)sizeof(int) * (count + 1), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
  window[count] = 0;
  for (int i = 0; i < count; ++i) data[i] = rank * 100 + i;
  MPI_Win_fence(0, win);
  MPI_Put(data, count, MPI_INT, (rank + 1) % size, 0, count, MPI_INT, win);
  const int one = 1;
  for (int to = 0; to < size; ++to) MPI_Accumulate(&one, 1, MPI_INT, to, count, 1, MPI_INT, MPI_SUM, win);
  MPI_Win_fence(0, win);
  const int before = (rank + size - 1) % size;
  for (int i = 0; i < count; ++i) wrong += window[i] != before * 100 + i;
  wrong += window[count] != size;
  MPI_Win_fence(0, win);
  MPI_Get(data, count, MPI_INT, (rank + 1) % size, 0, count, MPI_INT, win);
  MPI_Win_fence(0, win);
  for (int i = 0; i < count; ++i) wrong += data[i] != rank * 100 + i;
  MPI_Win_free(&win);
  free(data);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const long lengths[] = {0, 1, 1000, 65543, 4 << 20};
  for (int round = 0; round < 3; ++round) {
    for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); ++i) check_ring(lengths[i]);
    check_collectives(1);
    check_collectives(100000);
  }
  if (argc > 1) check_windows(1000);
  long all = 0;
  MPI_Reduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("%d ranks, %ld wrong\n", size, all);
  MPI_Finalize();
  return wrong != 0;
}
