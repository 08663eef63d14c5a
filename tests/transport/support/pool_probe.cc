#include "transport/support/pool_probe.h"

#include <gtest/gtest.h>

namespace verbena::transport {

namespace {

constexpr uint32_t kAnchorPages = 8;
constexpr size_t kPageBytes = 4096;
constexpr int64_t kStuckMs = 5000;

Transfer make_transfer(uint32_t messages, size_t pages) {
  Transfer transfer;
  transfer.messages.assign(messages, {.length_bytes = pages * kPageBytes});
  transfer.sends_ahead = messages;
  return transfer;
}

}  // namespace

Settings PoolProbe::make_settings(uint32_t window_pages) {
  return {{"VERBENA_BOUNCE_BYTES", std::to_string(kPages * kPageBytes)},
          {"VERBENA_PAGE_BYTES", std::to_string(kPageBytes)},
          {"VERBENA_UNPACK_THRESHOLD", "unlimited"},
          {"VERBENA_WINDOW_PAGES", std::to_string(window_pages)}};
}

PoolProbe::PoolProbe(const Nic& nic) : nic_(nic) {
  apply_settings(make_settings(kAnchorPages));
  anchor_ = connect_here(nic, nic, true);
}

void PoolProbe::expect_whole() {
  apply_settings(make_settings(kPages - kAnchorPages));
  ConnectedPair rest = connect_here(nic_, nic_, true);
  // A receiver may keep less than a quarter of the window to itself: only a new connection has all of it.
  anchor_ = {};
  apply_settings(make_settings(kAnchorPages));
  anchor_ = connect_here(nic_, nic_, true);
  // A message takes at most half of its window.
  const Transfer few = make_transfer(kAnchorPages, 1), many = make_transfer(2, (kPages - kAnchorPages) / 2);
  ReceivingSide few_received(anchor_.receiving, nic_, few), many_received(rest.receiving, nic_, many);
  SendingSide few_sent(*anchor_.sender, nic_, few), many_sent(*rest.sender, nic_, many);
  EXPECT_TRUE(poll_until(
      [&] { return (static_cast<int>(few_sent.step()) & static_cast<int>(many_sent.step())) != 0; },
      kStuckMs))
      << "pages are lost: " << few_sent.finished() << " of " << few.messages.size() << " and "
      << many_sent.finished() << " of " << many.messages.size() << " messages found one";
  EXPECT_TRUE(poll_until(
      [&] { return (static_cast<int>(few_received.step()) & static_cast<int>(many_received.step())) != 0; },
      kStuckMs));
  EXPECT_EQ(few_received.problem() + many_received.problem(), "");
}

}  // namespace verbena::transport
