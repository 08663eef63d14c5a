#include "report.h"

#include <cstdio>
#include <map>

namespace verbena::emulator {

namespace {

std::string describe_doing(const Fiber& fiber) {
  if (fiber.state == Fiber::State::kDone) return "ended";
  if (fiber.doing[0] == '\0') return "has not begun";
  char text[160];
  const char* verb = fiber.state == Fiber::State::kWaiting ? "waits in " : "";
  if (fiber.where != nullptr) {
    snprintf(text, sizeof text, "%s%s at %p", verb, fiber.doing, fiber.where);
  } else if (fiber.detail != kNoDetail) {
    snprintf(text, sizeof text, "%s%s 0x%llx", verb, fiber.doing, static_cast<long long>(fiber.detail));
  } else {
    snprintf(text, sizeof text, "%s%s", verb, fiber.doing);
  }
  std::string out = text;
  if (fiber.block == nullptr || fiber.state != Fiber::State::kWaiting) return out;
  for (const Gathering& barrier : fiber.block->barriers) {
    const auto number = &barrier - fiber.block->barriers.data();
    if (barrier.arrived == 0 || number != fiber.detail || std::string(fiber.doing) != "barrier") continue;
    out += " (" + std::to_string(barrier.arrived) + " of " + std::to_string(barrier.expected) + " came)";
  }
  return out;
}

// 0,1,2,5 -> "0-2,5"
std::string describe_ranges(const std::vector<uint32_t>& threads) {
  std::string out;
  for (size_t i = 0; i < threads.size();) {
    size_t last = i;
    while (last + 1 < threads.size() && threads[last + 1] == threads[last] + 1) ++last;
    if (!out.empty()) out += ',';
    out += std::to_string(threads[i]);
    if (last > i) out += '-' + std::to_string(threads[last]);
    i = last + 1;
  }
  return out;
}

}  // namespace

std::string describe_place(const Fiber& fiber) {
  if (fiber.block == nullptr) return "host " + std::to_string(fiber.index.thread);
  return "gpu " + std::to_string(fiber.block->gpu) + " block " + std::to_string(fiber.block->number) +
         " thread " + std::to_string(fiber.index.thread);
}

std::string describe_fibers(const std::vector<std::unique_ptr<Fiber>>& fibers, const Fiber* running) {
  constexpr size_t kMaxLines = 40;
  std::string out;
  std::map<std::pair<const Block*, std::string>, std::vector<uint32_t>> groups;
  for (const auto& fiber : fibers) {
    const Block* block = fiber->block;
    if (block == nullptr) {
      out += "  host " + std::to_string(fiber->index.thread) + ": " + describe_doing(*fiber) + "\n";
    } else {
      groups[{block, describe_doing(*fiber)}].push_back(fiber->index.thread);
    }
  }
  size_t lines = 0;
  for (const auto& [key, threads] : groups) {
    if (++lines > kMaxLines) {
      out += "  and " + std::to_string(groups.size() - kMaxLines) + " more\n";
      break;
    }
    out += "  gpu " + std::to_string(key.first->gpu) + " block " + std::to_string(key.first->number) +
           " threads " + describe_ranges(threads) + ": " + key.second + "\n";
  }
  if (running != nullptr) out += "  seen while " + describe_place(*running) + " ran\n";
  return out;
}

}  // namespace verbena::emulator
