// What observing takes of a whole message: connections that differ in nothing else, in turn, in one process
// and on one thread over softverbs. What disturbs the machine disturbs all of them, so that medians of the
// ratios within a round say more than times do. usage: observe_message_cost [ROUNDS [LENGTH_BYTES]]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/scratch_path.h"
#include "transport/support/connection.h"

namespace verbena::transport {
namespace {

constexpr int kBatch =
    50;  // messages in a row over one connection, as a job has them: its code stays in the caches
constexpr int kWarmUp = 200;      // rounds
constexpr double kSigmas = 1.96;  // of the interval that holds the true median in 95 of 100 cases

struct Way {
  std::string name;
  Settings settings;
  ConnectedPair connection;
  std::vector<double> times_ns;  // of a message, a round each
};

void move_message(ConnectedPair& connection, Memory& from, Memory& to, size_t length_bytes) {
  Request *sent = nullptr, *received = nullptr;
  Receiver& receiver = *connection.receiving.receiver;
  const auto post = [&] {
    if (received == nullptr)
      static_cast<void>(receiver.post(to.bytes().data(), length_bytes, to.registration(),
                                      ReceiveClass::kSlotOnly, &received));
    if (received != nullptr && sent == nullptr)
      static_cast<void>(
          connection.sender->post(from.bytes().data(), length_bytes, from.registration(), false, &sent));
    return sent != nullptr;
  };
  bool is_received = false, is_sent = false;
  uint64_t bytes = 0;
  const auto test = [&] {
    if (!is_received)
      static_cast<void>(receiver.test(*static_cast<ReceiveMessage*>(received), &is_received, &bytes));
    if (!is_sent) static_cast<void>(connection.sender->test(*static_cast<SendMessage*>(sent), &is_sent));
    return is_received && is_sent;
  };
  const auto deadline = base::Deadline::after_ms(kPatienceMs);
  while (!post() || !test()) {
    if (deadline.has_passed()) throw std::runtime_error("a message does not arrive");
  }
}

double measure_ns(ConnectedPair& connection, Memory& from, Memory& to, size_t length_bytes) {
  const int64_t start_ns = base::monotonic_ns();
  for (int i = 0; i < kBatch; ++i) move_message(connection, from, to, length_bytes);
  return static_cast<double>(base::monotonic_ns() - start_ns) / kBatch;
}

double find_quantile(const std::vector<double>& sorted, double share) {
  const auto last = static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<size_t>(std::clamp(share, 0.0, 1.0) * last)];
}

void print(const Way& way, const Way& first) {
  std::vector<double> times = way.times_ns, ratios;
  for (size_t r = 0; r < times.size(); ++r) ratios.push_back(way.times_ns[r] / first.times_ns[r]);
  std::ranges::sort(times);
  std::ranges::sort(ratios);
  const double half = kSigmas / 2 / std::sqrt(static_cast<double>(ratios.size()));
  std::printf("%-10s %9.0f %9.0f %9.0f   %+7.2f %% (%+.2f to %+.2f)\n", way.name.c_str(),
              find_quantile(times, 0.05), find_quantile(times, 0.25), find_quantile(times, 0.5),
              (find_quantile(ratios, 0.5) - 1) * 100, (find_quantile(ratios, 0.5 - half) - 1) * 100,
              (find_quantile(ratios, 0.5 + half) - 1) * 100);
}

void run(int rounds, size_t length_bytes) {
  const tests::ScratchPath stats("stats"), trace("trace");
  const Settings counts{{"VERBENA_STATS", stats.get()}, {"VERBENA_TRACE", ""}},
      events{{"VERBENA_STATS", ""}, {"VERBENA_TRACE", trace.get()}},
      both{{"VERBENA_STATS", stats.get()}, {"VERBENA_TRACE", trace.get()}},
      neither{{"VERBENA_STATS", ""}, {"VERBENA_TRACE", ""}};
  auto [host, nic] = OwnNic();
  Memory from(nic, length_bytes), to(nic, length_bytes);
  std::vector<Way> ways;
  for (const auto& [name, settings] : std::vector<std::pair<std::string, Settings>>{{"off", neither},
                                                                                    {"off again", neither},
                                                                                    {"counters", counts},
                                                                                    {"trace", events},
                                                                                    {"both", both}}) {
    apply_settings(settings);
    ways.push_back({name, settings, connect_here(nic, nic, false), {}});
  }
  std::mt19937 random(1);
  std::vector<size_t> order(ways.size());
  std::iota(order.begin(), order.end(), 0);
  for (int round = -kWarmUp; round < rounds; ++round) {
    std::ranges::shuffle(order, random);
    for (const size_t w : order) {
      const double time_ns = measure_ns(ways[w].connection, from, to, length_bytes);
      if (round >= 0) ways[w].times_ns.push_back(time_ns);
    }
  }
  std::printf(
      "# %zu bytes, direct, one rail, both ends on one thread; %d rounds of %d messages each, in random "
      "order\n"
      "# nanoseconds a message, both ends; the last columns: median of the ratio to `off` of the same "
      "round,\n"
      "# and where the true median is in 95 of 100 cases\n# %-8s %9s %9s %9s\n",
      length_bytes, rounds, kBatch, "", "5 %", "25 %", "median");
  for (const Way& way : ways) print(way, ways.front());
}

}  // namespace
}  // namespace verbena::transport

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20'000;
  const size_t length_bytes = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 65536;
  if (rounds < 2 || length_bytes == 0) return 2;
  try {
    verbena::transport::run(rounds, length_bytes);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "observe_message_cost: %s\n", error.what());
    return 1;
  }
}
