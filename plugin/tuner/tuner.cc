#include "tuner/tuner.h"

#include <strings.h>

#include <cinttypes>
#include <cstdio>

#include "tuner/calibration_file.h"

namespace verbena::tuner {
namespace {

// For sizes without a measurement: NCCL's own model also leaves LL at this size, for a ring on few nodes.
constexpr uint64_t kLongestLlBytes = 65536;

// The protocol that the user's NCCL_PROTO names, if it names exactly one.
std::optional<Protocol> parse_user_protocol(const std::string& text) {
  for (int p = 0; p < kProtocolCount; ++p) {
    const auto protocol = static_cast<Protocol>(p);
    if (strcasecmp(text.c_str(), std::string(name_of(protocol)).c_str()) == 0) return protocol;
  }
  return std::nullopt;
}

bool is_function(int function) {
  return function >= 0 && function < kFunctionCount;
}

}  // namespace

Tuner::Tuner(Shape shape, Offer offer, std::shared_ptr<const Calibration> calibration)
    : shape_(shape), guard_(shape, offer) {
  if (!offer.is_in_use || calibration == nullptr) return;
  calibration_ = std::move(calibration);
  model_ = CostModel(*calibration_, shape);
}

bool Tuner::adjust(int function, uint64_t bytes, const CostTable& table, int* channels) const {
  const bool had_choice = table.has_choice();
  guard_.apply(table);
  if (had_choice && !table.has_choice()) return false;
  if (is_function(function)) model_.apply(static_cast<Function>(function), bytes, table, channels);
  return true;
}

std::optional<Choice> Tuner::choose_without_costs(int function, uint64_t bytes,
                                                  const UserChoice& user) const {
  if (!guard_.is_active() || function != number_of(Function::kAllReduce)) return std::nullopt;
  if (!user.algorithm.empty()) return std::nullopt;
  if (const auto named = parse_user_protocol(user.protocol)) return Choice{Algorithm::kRing, *named};
  if (!user.protocol.empty()) return Choice{Algorithm::kRing, Protocol::kSimple};
  const auto measured = model_.find_fastest(Function::kAllReduce, Algorithm::kRing, bytes);
  return Choice{Algorithm::kRing,
                measured.value_or(bytes <= kLongestLlBytes ? Protocol::kLl : Protocol::kSimple)};
}

std::string Tuner::describe() const {
  char text[160];
  std::snprintf(text, sizeof text, "%zu ranks on %zu nodes: ", shape_.ranks, shape_.nodes);
  std::string line = text + guard_.describe();
  if (calibration_ == nullptr) return line + "; costs: NCCL's own";
  std::snprintf(text, sizeof text, "; costs: %zu of %zu curves are for %s (fingerprint %016" PRIx64 ")",
                model_.curve_count(), calibration_->collectives.size(),
                model_.is_borrowed() ? "a similar number of ranks, so only the number of channels is used"
                                     : "this shape",
                compute_fingerprint(*calibration_));
  return line + text;
}

}  // namespace verbena::tuner
