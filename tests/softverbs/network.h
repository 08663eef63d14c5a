#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

namespace verbena::softverbs_test {

// How a network treats packets.
struct Weather {
  uint32_t loss_permille = 0;
  uint32_t late_permille = 0;  // packets that others overtake
  uint32_t delay_us = 0;
};

// Two network namespaces joined by a cable that this process holds in its hands: a TUN device at both ends,
// and a thread that carries packets between them. Needs the right to make namespaces.
class Network {
 public:
  Network();
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // Why there is none; empty when there is.
  const std::string& problem() const { return problem_; }
  // From here on packets pass; a process that has forked will not miss the thread.
  void connect();
  // The calling thread, and what it starts from then on, is on host 0 or 1. False on failure.
  bool enter(int host) const;
  static std::string get_address(int host);  // IPv4
  static std::string get_address_v6(int host);
  void set_weather(const Weather& weather);
  void pull_cable(bool is_out) { is_cut_.store(is_out); }

 private:
  bool open_host(int host);
  void carry();

  std::string problem_;
  int original_ = -1, namespaces_[2] = {-1, -1}, devices_[2] = {-1, -1};
  std::atomic<bool> is_cut_{false}, is_over_{false};
  std::atomic<uint32_t> loss_permille_{0}, late_permille_{0}, delay_us_{0};
  std::thread carrier_;
};

}  // namespace verbena::softverbs_test
