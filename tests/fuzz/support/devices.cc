#include "support/devices.h"

#include <stdlib.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <numeric>
#include <vector>

#include "base/log.h"
#include "base/parameters.h"
#include "support/message.h"
#include "transport/memory/bounce_pool.h"

namespace verbena::fuzz {
namespace {

struct Devices {
  Devices() {
    setenv("VERBENA_IBVERBS_LIB", FUZZ_IBVERBS, 1);
    setenv("NULL_IBVERBS_DEVICES", "4", 1);
    setenv("VERBENA_PAGE_BYTES", "4k", 1);
    setenv("VERBENA_BOUNCE_BYTES", "8m", 1);
    setenv("VERBENA_PEER_GRACE_MS", "0", 1);
    base::set_log_sink([](base::LogLevel, const char*, int, const char*) {});
    require(static_cast<bool>(base::load_parameters()));
    auto found = transport::NicRegistry::discover();
    require(found && (*found)->size() == kMaxRails);
    registry = std::move(*found);
    scratch.resize(kScratchBytes);
    for (int rails = 1; rails <= kMaxRails; ++rails) {
      std::vector<int> members(static_cast<size_t>(rails));
      std::iota(members.begin(), members.end(), 0);
      const auto index = registry->add_virtual(members);
      require(static_cast<bool>(index));
      auto& nic = nics[static_cast<size_t>(rails)];
      nic = registry->find(*index);
      auto registered = transport::register_on_rails(*nic, scratch.data(), scratch.size(), false, -1, 0);
      require(static_cast<bool>(registered));
      registrations[static_cast<size_t>(rails)] = std::move(*registered);
    }
    using transport::BouncePool;
    for (const auto kind : {BouncePool::Kind::kHostPages, BouncePool::Kind::kBareEntries}) {
      auto pool = BouncePool::acquire(kind);
      require(static_cast<bool>(pool));
      for (verbs::Device* device : nics[kMaxRails]->rails)
        require(static_cast<bool>((*pool)->reserve(*device, {}, 0)));
      pools.push_back(std::move(*pool));
    }
  }

  std::unique_ptr<transport::NicRegistry> registry;
  std::vector<uint8_t> scratch;
  std::vector<std::shared_ptr<transport::BouncePool>> pools;  // making one takes longer than a run
  std::array<const transport::Nic*, kMaxRails + 1> nics{};
  std::array<std::unique_ptr<transport::Registration>, kMaxRails + 1> registrations;
};

Devices& get_devices() {
  static auto* const devices = new Devices;  // outlives every thread
  return *devices;
}

}  // namespace

const transport::Nic& find_nic(int rails) {
  return *get_devices().nics[static_cast<size_t>(rails)];
}

std::span<uint8_t> find_scratch() {
  return get_devices().scratch;
}

const transport::Registration* find_registration(int rails) {
  return get_devices().registrations[static_cast<size_t>(rails)].get();
}

SocketPair make_sockets() {
  int ends[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  const base::SocketAddress nobody{};
  return {base::Socket(base::FileDescriptor(ends[0]), nobody),
          base::Socket(base::FileDescriptor(ends[1]), nobody)};
}

}  // namespace verbena::fuzz
