// Measures how fast one queue pair completes its requests. Has no clock: the caller passes the time in
// monotonic nanoseconds. Rates are bytes per nanosecond, which is GB/s. Reading a clock costs too much for a
// short message; if only short messages are outstanding, the time may be unknown (kUnknownNs).
#pragma once

#include <algorithm>
#include <cstdint>

namespace verbena::protocol {

inline constexpr int64_t kUnknownNs = 0;

class RailRate {
 public:
  // A shorter piece measures latency, not the rate.
  static constexpr uint64_t kSampleBytes = 16384;
  // See is_done_soon.
  static constexpr double kSoonNs = 5000;

  // Sets the rate of the link, which is the maximum.
  void set_link(double rate) {
    link_ = rate;
    note_rate();
  }
  double link() const { return link_; }
  uint64_t outstanding_bytes() const { return outstanding_bytes_; }

  // Forgets the outstanding requests, which were lost with the queue pair. The measurements stay valid.
  void forget_outstanding() {
    outstanding_bytes_ = 0;
    measured_until_ns_ = kUnknownNs;
  }

  void note_posted(uint64_t bytes, int64_t now_ns) {
    if (outstanding_bytes_ == 0 || measured_until_ns_ == kUnknownNs)
      progress_ns_ = measured_until_ns_ = now_ns;
    outstanding_bytes_ += bytes;
    if (bytes >= kSampleBytes) used_ns_ = now_ns;
  }
  // A request waits. The outstanding requests count as started at `now_ns` at the latest.
  void note_waiting(int64_t now_ns) {
    if (progress_ns_ == kUnknownNs) progress_ns_ = measured_until_ns_ = now_ns;
  }

  // Called in the order of posting. The completion was found at `now_ns`; the previous poll, at `unseen_ns`,
  // had not found it. It counts as if it had come right after the previous poll, so that rare polling does
  // not reduce the rate. A completion that comes too soon to be measured counts as having the speed of the
  // link.
  void note_completed(uint64_t bytes, int64_t unseen_ns, int64_t now_ns) {
    outstanding_bytes_ -= bytes;
    progress_ns_ = now_ns;
    if (now_ns == kUnknownNs) {
      measured_until_ns_ = kUnknownNs;
      return;
    }
    const int64_t until_ns = std::max(unseen_ns, measured_until_ns_);
    if (bytes >= kSampleBytes) sample(bytes, until_ns - measured_until_ns_, now_ns);
    measured_until_ns_ = until_ns;
  }

  // Returns whether this many more bytes will certainly be done within kSoonNs, without reading a clock.
  bool is_done_soon(uint64_t bytes) const {
    const bool may_be_late = outstanding_bytes_ != 0 && progress_ns_ != kUnknownNs;
    return !may_be_late && outstanding_bytes_ + bytes <= soon_bytes_;
  }

  // Returns how long no request has completed although one should have.
  int64_t overdue_ns(int64_t now_ns) const {
    if (outstanding_bytes_ == 0 || progress_ns_ == kUnknownNs) return 0;
    return std::max<int64_t>(0, now_ns - progress_ns_ - kPatienceNs);
  }

  // Returns the measured rate. A stalled rail counts as no faster than the outstanding bytes divided by the
  // time since, even before it completes anything again. `least_bytes` prevents that one delayed short
  // message looks like a slow link.
  double estimate(uint64_t least_bytes, int64_t now_ns) const {
    const double measured = measured_rate();
    const int64_t overdue = overdue_ns(now_ns);
    if (overdue == 0) return measured;
    const uint64_t bytes = std::max(outstanding_bytes_, least_bytes);
    return std::min(measured, static_cast<double>(bytes) / static_cast<double>(overdue));
  }

  // A rail that is known to be slow gets no data. It is tested again after this time: rarely enough that the
  // test costs almost nothing, and often enough that a recovered rail is used again within a second.
  bool is_probe_due(uint64_t probe_bytes, int64_t now_ns) const {
    if (outstanding_bytes_ != 0 || measured_rate() * 2 > link_) return false;
    const double lasts_ns = static_cast<double>(probe_bytes) / measured_rate();
    const double wait_ns = std::clamp(lasts_ns * kProbeSpacing, kShortestProbeWaitNs, kLongestProbeWaitNs);
    return static_cast<double>(now_ns - used_ns_) >= wait_ns;
  }

 private:
  static constexpr double kMemoryNs = 1e6, kForgottenNs = 8e6;  // older samples count less, or not at all
  static constexpr int64_t kPatienceNs = 20'000;  // time without a completion after which a rail is suspected
  static constexpr double kProbeSpacing = 50, kShortestProbeWaitNs = 1e7, kLongestProbeWaitNs = 1e9;

  double measured_rate() const {
    return sampled_ns_ * link_ <= sampled_bytes_ ? link_ : sampled_bytes_ / sampled_ns_;
  }

  void sample(uint64_t bytes, int64_t busy_ns, int64_t now_ns) {
    const double age_ns = static_cast<double>(now_ns - sampled_at_ns_);
    const double keep = age_ns > kForgottenNs ? 0 : kMemoryNs / (kMemoryNs + age_ns);
    sampled_bytes_ = sampled_bytes_ * keep + static_cast<double>(bytes);
    sampled_ns_ = sampled_ns_ * keep + static_cast<double>(busy_ns);
    sampled_at_ns_ = now_ns;
    note_rate();
  }
  void note_rate() { soon_bytes_ = static_cast<uint64_t>(kSoonNs * measured_rate()); }

  double link_ = 1;
  // Completed bytes, and the time for which they kept the queue pair busy.
  double sampled_bytes_ = 0, sampled_ns_ = 0;
  uint64_t outstanding_bytes_ = 0;
  uint64_t soon_bytes_ = static_cast<uint64_t>(kSoonNs);  // kSoonNs * measured_rate(), updated by note_rate()
  int64_t progress_ns_ = 0;        // time of the last completion, or of posting the first outstanding request
  int64_t measured_until_ns_ = 0;  // earlier time is covered by a sample
  int64_t sampled_at_ns_ = 0, used_ns_ = 0;
};

}  // namespace verbena::protocol
