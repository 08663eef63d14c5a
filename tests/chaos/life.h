#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "chaos/lane.h"
#include "chaos/traffic.h"
#include "common/line_channel.h"
#include "common/net_plugin.h"

namespace verbena::chaos {

// What the two ends tell each other beside the plugin. The driver speaks for an end that it has killed.
class Partner {
 public:
  explicit Partner(int descriptor) : channel_(descriptor) {}

  void tell(unsigned life, const char* key, const nlohmann::json& value);
  // Null if the partner is gone from that life.
  nlohmann::json hear(unsigned life, const char* key);
  static std::string make_line(unsigned life, const char* key, const nlohmann::json& value);

  static constexpr const char* kGone = "gone";

 private:
  tools::LineChannel channel_;
};

// All connections of one end, from listening to closing.
class Life {
 public:
  using Notice = std::function<void(const char* phase, unsigned percent)>;

  Life(tools::NetPlugin& plugin, int device, bool unpacks, Traffic traffic, unsigned end, unsigned number,
       Partner& partner, Notice notice);

  // Runs it and says in one object how it ended ("result") and what it saw. Does not throw.
  nlohmann::json run();

 private:
  enum class End { kDone, kLeft, kAlone };

  End spend();
  bool connect();
  std::unique_ptr<Lane> try_to_meet(size_t lane, void* listener, std::vector<uint8_t>& handle);
  void exchange(uint64_t goal);
  void close();
  bool sends(size_t lane) const { return traffic_.senders[lane] == end_; }
  nlohmann::json describe() const;

  tools::NetPlugin& plugin_;
  int device_;
  bool unpacks_;
  Traffic traffic_;
  unsigned end_;
  unsigned number_;
  Partner& partner_;
  Notice notice_;
  std::vector<void*> listeners_;  // by lane; null where it sends
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace verbena::chaos
