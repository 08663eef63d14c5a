// What one process of a test has: settings, the devices of softverbs, registered memory.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/link/nic.h"
#include "transport/memory/registration.h"

namespace verbena::transport {

using Settings = std::vector<std::pair<std::string, std::string>>;

// Reads the parameters anew: the tests' own defaults, then `settings`. For connections made from now on.
void apply_settings(const Settings& settings);

class Host {
 public:
  explicit Host(const Settings& settings = {});

  // The device that joins this many rails, from the `first` one on.
  const Nic& nic(int rails = 1, int first = 0);

 private:
  std::unique_ptr<NicRegistry> registry_;
};

// A host and its device of this many rails.
struct OwnNic {
  explicit OwnNic(int rails = 1, const Settings& settings = {}) : host(settings), nic(host.nic(rails)) {}

  Host host;
  const Nic& nic;
};

// Page-aligned memory, registered with every rail of a device.
class Memory {
 public:
  Memory(const Nic& nic, size_t length_bytes);
  Memory(const Memory&) = delete;

  std::span<std::byte> bytes() { return {start_, length_bytes_}; }
  const Registration* registration() const { return registration_.get(); }

 private:
  std::unique_ptr<std::byte[]> storage_;
  std::byte* start_;
  size_t length_bytes_;
  std::unique_ptr<Registration> registration_;
};

// For what a test cannot go on without.
template <typename T>
T take(base::Result<T> result, const char* what) {
  if (!result) throw std::runtime_error(std::string("cannot make ") + what);
  return std::move(*result);
}

}  // namespace verbena::transport
