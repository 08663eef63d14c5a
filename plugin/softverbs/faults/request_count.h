// Decides to which requests a rule applies, by counts and by pseudo-random numbers from a seed, without a
// clock.
#pragma once

#include <atomic>
#include <cstdint>

#include "softverbs/faults/fault_plan.h"

namespace verbena::softverbs::faults {

// The requests that one rule counts: those of a rail, or of one queue pair.
struct RequestCount {
  std::atomic<uint64_t> count{0};
  std::atomic<uint64_t> strikes{0};
};

// A hash of the two numbers: the same in every run and on every machine.
inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t word = a + 0x9e3779b97f4a7c15ull * (b + 1);
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9ull;
  word = (word ^ word >> 27) * 0x94d049bb133111ebull;
  return word ^ word >> 31;
}

struct Strike {
  bool is_hit = false;
  uint64_t draw = 0;  // the request's random number, for choices that the rule leaves open
};

// Counts a request that matches the rule, and decides whether the fault occurs. `key` is the seed, mixed with
// the numbers that identify the stream.
inline Strike count(const Rule& rule, RequestCount& counted, uint64_t key) {
  const uint64_t seen = counted.count.fetch_add(1, std::memory_order_relaxed) + 1;
  if (seen <= rule.after) return {};
  const uint64_t number = seen - rule.after;
  const uint64_t draw = mix(key, number);
  bool is_hit = true;
  if (rule.trigger == Trigger::kNth) is_hit = number == rule.number;
  if (rule.trigger == Trigger::kEvery) is_hit = number % rule.number == 0;
  if (rule.trigger == Trigger::kChance) is_hit = static_cast<double>(draw >> 11) * 0x1p-53 < rule.chance;
  if (!is_hit || counted.strikes.fetch_add(1, std::memory_order_relaxed) >= rule.times) return {};
  return {true, mix(draw, 0)};
}

}  // namespace verbena::softverbs::faults
