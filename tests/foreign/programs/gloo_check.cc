// Gloo over its ibverbs transport: all-reduces by three algorithms, broadcasts, barriers, between processes
// that this one forks; every number is compared.
//
//   gloo_check RANKS GID_INDEX FOLDER
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace {

std::unique_ptr<gloo::Algorithm> make_all_reduce(int kind, const std::shared_ptr<gloo::Context>& context,
                                                 const std::vector<float*>& data, int count) {
  if (kind == 0) return std::make_unique<gloo::AllreduceRingChunked<float>>(context, data, count);
  if (kind == 1) return std::make_unique<gloo::AllreduceRing<float>>(context, data, count);
  return std::make_unique<gloo::AllreduceHalvingDoubling<float>>(context, data, count);
}

long run_rank(int rank, int ranks, int gid_index, const char* folder) {
  auto device = gloo::transport::ibverbs::CreateDevice({"softverbs0", 1, gid_index});
  gloo::rendezvous::FileStore store(folder);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  context->setTimeout(std::chrono::seconds(60));
  context->connectFullMesh(store, device);
  long wrong = 0;
  for (const int count : {1, 1000, 500'000}) {
    for (int kind = 0; kind < 3; ++kind) {
      std::vector<float> data(static_cast<size_t>(count));
      for (int i = 0; i < count; ++i) data[i] = static_cast<float>(i % 1000 + rank + kind);
      const auto sum = make_all_reduce(kind, context, {data.data()}, count);
      sum->run();
      for (int i = 0; i < count; ++i)
        wrong += data[i] != static_cast<float>(ranks * (i % 1000 + kind) + ranks * (ranks - 1) / 2);
      std::vector<int> text(static_cast<size_t>(count), rank == kind % ranks ? 7 + kind : -1);
      gloo::BroadcastOneToAll<int> broadcast(context, {text.data()}, count, kind % ranks);
      broadcast.run();
      for (const int value : text) wrong += value != 7 + kind;
      gloo::BarrierAllToAll barrier(context);
      barrier.run();
      // Their buffers are to live until the last sends are complete, for which Gloo does not wait.
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  return wrong;
}

}  // namespace

int main(int, char** argv) {
  const int ranks = std::atoi(argv[1]);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.push_back(fork());
    if (processes.back() != 0) continue;
    const long wrong = run_rank(rank, ranks, std::atoi(argv[2]), argv[3]);
    std::printf("rank %d: %ld wrong\n", rank, wrong);
    std::fflush(stdout);
    _exit(wrong == 0 ? 0 : 1);
  }
  int failed = 0;
  for (const pid_t process : processes) {
    int status = -1;
    waitpid(process, &status, 0);
    failed += status != 0;
  }
  std::printf("%d ranks, %d failed\n", ranks, failed);
  return failed != 0;
}
