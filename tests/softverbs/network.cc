#include "network.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

namespace verbena::softverbs_test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kPacketBytes = 65536;
constexpr int kLateUs = 3000;  // how much later an overtaken packet comes

struct Packet {
  std::vector<char> bytes;
  Clock::time_point due;
};

int open_tun() {
  const int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  memcpy(request.ifr_name, "rail0", sizeof("rail0"));
  if (fd >= 0 && ioctl(fd, TUNSETIFF, &request) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

bool run(const std::string& command) {
  return system((command + " >/dev/null 2>&1").c_str()) == 0;
}

}  // namespace

std::string Network::get_address(int host) {
  return "10.77.0." + std::to_string(host + 1);
}
std::string Network::get_address_v6(int host) {
  return "fd77::" + std::to_string(host + 1);
}

Network::Network() {
  original_ = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  for (int host = 0; host < 2 && problem_.empty(); ++host) {
    if (!open_host(host))
      problem_ = std::string("no network namespace with a TUN device: ") + strerror(errno);
  }
  setns(original_, CLONE_NEWNET);
}

Network::~Network() {
  is_over_.store(true);
  if (carrier_.joinable()) carrier_.join();
  setns(original_, CLONE_NEWNET);
  for (const int fd : {original_, namespaces_[0], namespaces_[1], devices_[0], devices_[1]}) {
    if (fd >= 0) close(fd);
  }
}

void Network::connect() {
  carrier_ = std::thread([this] { carry(); });
}

bool Network::open_host(int host) {
  if (unshare(CLONE_NEWNET) != 0) return false;
  namespaces_[host] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  devices_[host] = open_tun();
  if (devices_[host] < 0) return false;
  return run("ip link set lo up") && run("ip link set rail0 mtu 1500 txqueuelen 2000 up") &&
         run("ip addr add " + get_address(host) + "/24 dev rail0") &&
         run("ip -6 addr add " + get_address_v6(host) + "/64 dev rail0 nodad || true");
}

bool Network::enter(int host) const {
  return setns(namespaces_[host], CLONE_NEWNET) == 0;
}

void Network::set_weather(const Weather& weather) {
  loss_permille_.store(weather.loss_permille);
  late_permille_.store(weather.late_permille);
  delay_us_.store(weather.delay_us);
}

void Network::carry() {
  std::mt19937 random(7);
  std::uniform_int_distribution<uint32_t> dice(0, 999);
  std::deque<Packet> ways[2];  // towards each host
  std::vector<char> packet(kPacketBytes);
  while (!is_over_.load()) {
    const bool is_waiting = !ways[0].empty() || !ways[1].empty();
    pollfd ready[] = {{devices_[0], POLLIN, 0}, {devices_[1], POLLIN, 0}};
    const timespec patience{0, is_waiting ? 100'000 : 20'000'000};
    ppoll(ready, 2, &patience, nullptr);
    for (int host = 0; host < 2; ++host) {
      constexpr int kBatch = 64;
      for (int i = 0; i < kBatch; ++i) {
        const ssize_t bytes = read(devices_[host], packet.data(), packet.size());
        if (bytes <= 0) break;
        if (is_cut_.load() || dice(random) < loss_permille_.load()) continue;
        const int late_us = dice(random) < late_permille_.load() ? kLateUs : 0;
        const auto due =
            Clock::now() + std::chrono::microseconds(delay_us_.load() + static_cast<uint32_t>(late_us));
        ways[1 - host].push_back({{packet.begin(), packet.begin() + bytes}, due});
      }
    }
    for (int host = 0; host < 2; ++host) {
      std::deque<Packet> kept;
      for (Packet& at : ways[host]) {
        if (at.due > Clock::now()) {
          kept.push_back(std::move(at));
        } else if (!is_cut_.load() && write(devices_[host], at.bytes.data(), at.bytes.size()) < 0) {
          continue;  // a full device loses packets too
        }
      }
      ways[host].swap(kept);
    }
  }
}

}  // namespace verbena::softverbs_test
