#include "chaos/life.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "common/clock.h"
#include "common/error.h"

namespace verbena::chaos {
namespace {

using nlohmann::json;

constexpr double kPartnerTimeoutS = 120;  // the driver gives up before
constexpr uint64_t kLaterLivesShare = 4;  // they only show that all works again
constexpr unsigned kReportStepPercent = 2;

// So that two ends and their driver get on with one core between them.
class Idler {
 public:
  void note(bool has_moved) {
    if (has_moved) {
      idle_rounds_ = 0;
    } else if (++idle_rounds_ < kYields) {
      sched_yield();
    } else {
      usleep(kNapUs);
    }
  }

 private:
  static constexpr unsigned kYields = 300;
  static constexpr unsigned kNapUs = 50;
  unsigned idle_rounds_ = 0;
};

size_t count_entries(const char* folder) {
  const std::filesystem::directory_iterator entries(folder);
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

}  // namespace

std::string Partner::make_line(unsigned life, const char* key, const json& value) {
  return json{{"life", life}, {"key", key}, {"value", value}}.dump();
}

void Partner::tell(unsigned life, const char* key, const json& value) {
  channel_.send_line(make_line(life, key, value), tools::deadline_after_s(kPartnerTimeoutS));
}

json Partner::hear(unsigned life, const char* key) {
  const int64_t deadline_ns = tools::deadline_after_s(kPartnerTimeoutS);
  for (;;) {
    const auto received = channel_.receive_line(deadline_ns);
    if (received.status == tools::LineChannel::Status::kTimeout)
      throw tools::HangError("the partner is silent");
    if (received.status == tools::LineChannel::Status::kClosed) return nullptr;
    const json line = json::parse(received.line);
    if (line["life"] != life) continue;  // of an end that is dead
    if (line["key"] == kGone) return nullptr;
    if (line["key"] == key) return line["value"];
  }
}

Life::Life(tools::NetPlugin& plugin, int device, bool unpacks, Traffic traffic, unsigned end, unsigned number,
           Partner& partner, Notice notice)
    : plugin_(plugin),
      device_(device),
      unpacks_(unpacks),
      traffic_(std::move(traffic)),
      end_(end),
      number_(number),
      partner_(partner),
      notice_(std::move(notice)),
      listeners_(traffic_.senders.size()),
      lanes_(traffic_.senders.size()) {
  if (number != 1) traffic_.messages /= kLaterLivesShare;
}

json Life::run() {
  constexpr const char* kResults[] = {"done", "left", "alone"};
  std::string result, error;
  try {
    result = kResults[static_cast<int>(spend())];
  } catch (const WrongData& caught) {
    result = "wrong";
    error = caught.what();
  } catch (const std::exception& caught) {
    result = "failed";
    error = caught.what();
  }
  const int64_t ended_ns = tools::now_ns();
  json figures = describe();
  notice_("close", 0);
  try {
    close();
  } catch (const std::exception& caught) {
    result = "failed";
    error += std::string("; closing: ") + caught.what();
  }
  figures.update({{"life", number_}, {"result", result}, {"error", error}, {"ended_ns", ended_ns}});
  figures["descriptors"] = count_entries("/proc/self/fd");
  return figures;
}

Life::End Life::spend() {
  notice_("connect", 0);
  if (!connect()) return End::kAlone;
  notice_("traffic", 0);
  const uint64_t all = traffic_.messages * lanes_.size();
  const unsigned leave = number_ == 1 ? traffic_.leave_percent[end_] : kNeverPercent;
  if (leave < kNeverPercent) {
    exchange(all * leave / 100);
    partner_.tell(number_, Partner::kGone, true);
    return End::kLeft;
  }
  exchange(all);
  // Only then does either close: NCCL's users agree on an end, too.
  notice_("agree", 100);
  partner_.tell(number_, "finished", true);
  partner_.hear(number_, "finished");
  return End::kDone;
}

// False if the partner went before it had said where it listens.
bool Life::connect() {
  std::vector<std::vector<uint8_t>> handles(lanes_.size(), std::vector<uint8_t>(abi::kHandleBytes));
  for (size_t lane = 0; lane < lanes_.size(); ++lane)
    if (!sends(lane)) listeners_[lane] = plugin_.listen(device_, handles[lane].data());
  partner_.tell(number_, "handles", handles);
  const json remote = partner_.hear(number_, "handles");
  if (remote.is_null()) return false;
  for (size_t lane = 0; lane < lanes_.size(); ++lane)
    if (sends(lane)) handles[lane] = remote[lane].get<std::vector<uint8_t>>();
  plugin_.set_attributes({});
  Idler idler;
  for (size_t missing = lanes_.size(); missing != 0;) {
    bool has_moved = false;
    for (size_t lane = 0; lane < lanes_.size(); ++lane) {
      if (lanes_[lane] != nullptr) continue;
      lanes_[lane] = try_to_meet(lane, listeners_[lane], handles[lane]);
      if (lanes_[lane] == nullptr) continue;
      has_moved = true;
      --missing;
    }
    idler.note(has_moved);
  }
  return true;
}

std::unique_ptr<Lane> Life::try_to_meet(size_t lane, void* listener, std::vector<uint8_t>& handle) {
  const MessageList list(traffic_, static_cast<unsigned>(lane), number_);
  if (sends(lane)) {
    void* const comm = plugin_.connect(device_, handle.data());
    return comm == nullptr ? nullptr : std::make_unique<Outgoing>(plugin_, comm, traffic_, list);
  }
  abi::NetDeviceHandle device_handle{abi::kDeviceUnpack, abi::kDeviceUnpackVersion, nullptr, 0, 0};
  abi::NetDeviceHandle* filled = unpacks_ ? &device_handle : nullptr;
  void* const comm = plugin_.accept(listener, &filled);
  if (comm == nullptr) return nullptr;
  auto* const unpack = unpacks_ ? static_cast<UnpackDeviceHandle*>(device_handle.handle) : nullptr;
  return std::make_unique<Incoming>(plugin_, comm, unpack, traffic_, list);
}

// Until so many messages are through, over all connections.
void Life::exchange(uint64_t goal) {
  const uint64_t all = std::max<uint64_t>(traffic_.messages * lanes_.size(), 1);
  unsigned reported_percent = 0;
  Idler idler;
  for (;;) {
    bool has_moved = false;
    uint64_t completed = 0;
    for (const auto& lane : lanes_) {
      has_moved |= lane->step();
      completed += lane->completed();
    }
    if (completed >= goal) return;
    const auto percent = static_cast<unsigned>(100 * completed / all);
    if (percent >= reported_percent + kReportStepPercent) notice_("traffic", reported_percent = percent);
    idler.note(has_moved);
  }
}

void Life::close() {
  for (const auto& lane : lanes_)
    if (lane != nullptr) lane->close();
  for (void* const listener : listeners_)
    if (listener != nullptr) plugin_.close_listen(listener);
}

json Life::describe() const {
  uint64_t messages = 0, bytes = 0, staged = 0;
  json gaps = json::array();
  for (const auto& lane : lanes_) {
    const auto* const incoming = dynamic_cast<const Incoming*>(lane.get());
    if (incoming == nullptr) continue;
    messages += incoming->completed();
    bytes += incoming->received_bytes();
    staged += incoming->staged();
    for (const Gap& gap : incoming->gaps()) gaps.push_back({gap.begin_ns, gap.end_ns});
  }
  return {{"messages", messages}, {"bytes", bytes}, {"staged", staged}, {"gaps", gaps}};
}

}  // namespace verbena::chaos
