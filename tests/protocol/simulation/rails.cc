#include "protocol/simulation/rails.h"

#include <algorithm>

namespace verbena::protocol::simulation {

namespace {

constexpr int64_t kStepNs = 250;
constexpr uint64_t kPlentyBytes = uint64_t{1} << 40;

}  // namespace

Rails::Rails(uint32_t count, const RailShare::Speeds& speed_mbps, uint64_t min_stripe_bytes, uint64_t seed)
    : count_(count), random_(seed) {
  share_.start(count, speed_mbps, random_.between(0, count - 1), min_stripe_bytes);
  for (uint32_t q = 0; q < count; ++q) rails_[q].rate = speed_mbps[q] / 8000.0;
}

Shares Rails::send(uint64_t length_bytes) {
  Shares room{};
  std::fill_n(room.begin(), count_, kPlentyBytes);
  const Shares shares = share_.split(length_bytes, kDirectAlignBytes, room, now_ns_);
  Cut cut;
  cut.start(length_bytes, 0, shares);
  const auto message = oldest_ + static_cast<uint32_t>(pieces_left_.size());
  pieces_left_.push_back(0);
  Shares given{};
  for (uint32_t q = 0; q < count_; ++q) {
    while (cut.left_bytes(q) != 0) {
      const uint64_t bytes = cut.take(q).length_bytes;
      given[q] += bytes;
      ++pieces_left_.back();
      share_.note_posted(q, bytes, now_ns_);
      rails_[q].moving.push_back({message, bytes, static_cast<double>(bytes), 0});
    }
  }
  return given;
}

Shares Rails::run(int64_t duration_ns, uint64_t length_bytes, uint32_t window) {
  Shares given{};
  for (const int64_t end_ns = now_ns_ + duration_ns; now_ns_ < end_ns;) {
    while (pieces_left_.size() < window) {
      const Shares more = send(length_bytes);
      for (uint32_t q = 0; q < count_; ++q) given[q] += more[q];
    }
    advance();
  }
  return given;
}

void Rails::advance() {
  now_ns_ += kStepNs;
  for (uint32_t q = 0; q < count_; ++q) {
    Rail& rail = rails_[q];
    double budget = rail.rate * kStepNs;
    while (!rail.moving.empty() && budget > 0) {
      Piece& piece = rail.moving.front();
      const double moved = std::min(budget, piece.left_bytes);
      piece.left_bytes -= moved;
      budget -= moved;
      if (piece.left_bytes > 0) break;
      piece.arrives_ns = now_ns_ + latency_ns_;
      rail.landing.push_back(piece);
      rail.moving.pop_front();
    }
  }
  if (now_ns_ >= next_look_ns_) look();
}

void Rails::look() {
  next_look_ns_ = now_ns_ + random_.between(0, static_cast<uint32_t>(look_ns_));
  for (uint32_t q = 0; q < count_; ++q) {
    auto& landing = rails_[q].landing;
    for (; !landing.empty() && landing.front().arrives_ns <= now_ns_; landing.pop_front()) {
      share_.note_completed(q, landing.front().bytes, now_ns_);
      done_bytes_ += landing.front().bytes;
      --pieces_left_[landing.front().message - oldest_];
    }
  }
  share_.note_looked(now_ns_);
  for (; !pieces_left_.empty() && pieces_left_.front() == 0; ++oldest_) pieces_left_.pop_front();
}

}  // namespace verbena::protocol::simulation
