// Ranks as processes that a test forks, each with an emulated GPU, a context and a communicator of its own.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <source_location>
#include <string>
#include <vector>

#include "verbena/ops.h"
#include "verbena/verbena.hpp"

namespace verbena {

inline constexpr size_t kCount = 1000;

template <typename Function>
Function find_in_driver(const char* name) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  return driver == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(driver, name));
}

// One rank: a GPU of its own, a context, a tensor that kernels and the test reach.
class Rank {
 public:
  Rank(const verbena_unique_id& id, uint32_t rank, uint32_t ranks)
      : rank_(choose_gpu(rank)), context_(id, rank, ranks) {
    windows_.push_back(context_.allocate(kCount * sizeof(float)));
    windows_.push_back(context_.allocate(kCount * sizeof(float)));
  }
  ~Rank() {
    static_cast<void>(verbena_ops_destroy(ops_));
    windows_.clear();
  }

  SymmetricContext& context() { return context_; }
  verbena_ops* ops() { return ops_; }
  verbena_result create(const verbena_team* team, verbena_ops_options options = {}) {
    options.packet_bytes = options.chunk_bytes = 1 << 20;
    options.blocks = 2;
    return verbena_ops_create(context_.handle(), team, &options, &ops_);
  }
  void create_for_all() { check(create(verbena_team_world(context_.handle()))); }
  float* tensor(size_t index) { return windows_[index].address<float>(); }
  verbena_result all_reduce(const verbena_ops_choice* choice = nullptr) {
    for (size_t i = 0; i < kCount; ++i) tensor(0)[i] = static_cast<float>(i + rank_);
    return verbena_ops_all_reduce(ops_, tensor(0), tensor(1), kCount, VERBENA_OPS_FLOAT32, VERBENA_OPS_SUM,
                                  choice, nullptr);
  }
  // Of those ranks, `size` with this sum.
  bool has_sum(uint32_t size, uint32_t sum) {
    if (find_in_driver<int (*)(void*)>("cuStreamSynchronize")(nullptr) != 0) return false;
    for (size_t i = 0; i < kCount; ++i)
      if (tensor(1)[i] != static_cast<float>(i * size + sum)) return false;
    return verbena_ops_get_error(ops_, nullptr, 0) == VERBENA_SUCCESS;
  }
  void synchronize() { find_in_driver<int (*)(void*)>("cuStreamSynchronize")(nullptr); }

 private:
  static uint32_t choose_gpu(uint32_t rank) {
    void* gpu = nullptr;
    find_in_driver<int (*)(unsigned)>("cuInit")(0);
    find_in_driver<int (*)(void**, int)>("cuDevicePrimaryCtxRetain")(&gpu, static_cast<int>(rank));
    find_in_driver<int (*)(void*)>("cuCtxSetCurrent")(gpu);
    return rank;
  }

  const uint32_t rank_;
  SymmetricContext context_;
  std::vector<SymmetricWindow> windows_;
  verbena_ops* ops_ = nullptr;
};

// A process for each rank, in the host that `hosts` names; what each says that is wrong.
using Body = std::function<std::string(Rank& rank, uint32_t number)>;
inline std::string run(const std::vector<int>& hosts, const Body& body) {
  // The process of the rendezvous has threads, so it is a child of its own.
  int ids[2], texts[2];
  if (pipe(ids) != 0 || pipe(texts) != 0) return "no pipe";
  const pid_t meeting = fork();
  if (meeting == 0) {
    close(texts[1]);
    verbena_unique_id id{};
    if (verbena_get_unique_id(&id) != VERBENA_SUCCESS || write(ids[1], &id, sizeof(id)) != sizeof(id))
      _exit(2);
    pause();
  }
  verbena_unique_id id{};
  if (read(ids[0], &id, sizeof(id)) != sizeof(id)) return "no id";
  std::vector<pid_t> ranks;
  for (uint32_t number = 0; number < hosts.size(); ++number) {
    ranks.push_back(fork());
    if (ranks.back() != 0) continue;
    setenv("VERBENA_HOSTID", ("host-" + std::to_string(hosts[number])).c_str(), 1);
    std::string said;
    try {
      Rank rank(id, number, static_cast<uint32_t>(hosts.size()));
      said = body(rank, number);
    } catch (const std::exception& error) {
      said = error.what();
    }
    if (!said.empty()) dprintf(texts[1], "rank %u: %s\n", number, said.c_str());
    _exit(0);
  }
  close(texts[1]);
  std::string all;
  char text[4096];
  for (ssize_t got = 0; (got = read(texts[0], text, sizeof(text))) > 0;)
    all.append(text, static_cast<size_t>(got));
  for (const pid_t rank : ranks) {
    int status = 0;
    waitpid(rank, &status, 0);
    if (status != 0) all += "a rank has died\n";
  }
  kill(meeting, SIGKILL);
  waitpid(meeting, nullptr, 0);
  for (const int end : {ids[0], ids[1], texts[0]}) close(end);
  return all;
}
// The test fails if a rank says anything.
inline void expect_run(const std::vector<int>& hosts, const Body& body,
                       const std::source_location& at = std::source_location::current()) {
  if (const std::string said = run(hosts, body); !said.empty())
    ADD_FAILURE_AT(at.file_name(), static_cast<int>(at.line())) << said << "of " << hosts.size() << " ranks";
}

}  // namespace verbena
