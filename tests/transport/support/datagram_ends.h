// Ends of datagram channels, and messages of kDatagramBytes between them, as NCCL's calls make them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "transport/datagram/engine.h"
#include "transport/datagram/meeting.h"
#include "transport/support/connection.h"
#include "transport/support/host.h"

namespace verbena::transport {

inline constexpr size_t kDatagramBytes = 100'000;

// Returns the end that `poll` makes; null if it fails.
template <typename End>
std::unique_ptr<End> await_end(const auto& poll) {
  std::unique_ptr<End> end;
  EXPECT_TRUE(poll_until([&] {
    auto polled = poll();
    EXPECT_TRUE(polled);
    if (polled) end = std::move(*polled);
    return !polled || end != nullptr;
  }));
  return end;
}

// A channel between two engines of this process. Null ends: the polls of `failed` have failed.
struct DatagramChannel {
  std::unique_ptr<datagram::SendEnd> sending;
  std::unique_ptr<datagram::ReceiveEnd> receiving;
  bool has_failed_to_connect = false, has_failed_to_accept = false;
};
inline DatagramChannel connect_here(const std::shared_ptr<datagram::Engine>& from,
                                    const std::shared_ptr<datagram::Engine>& to) {
  protocol::datagram::DatagramHandle handle{};
  auto listener = take(datagram::Listener::open(to, &handle), "a listener");
  const auto connector = take(datagram::Connector::start(from, handle), "a connector");
  DatagramChannel channel;
  EXPECT_TRUE(poll_until([&] {
    if (listener != nullptr && channel.receiving == nullptr) {
      auto accepted = listener->poll(false, 0);
      if (accepted) channel.receiving = std::move(*accepted);
      if (!accepted) channel.has_failed_to_accept = true;
      if (!accepted) listener.reset();  // as NCCL does
    }
    if (channel.sending == nullptr && !channel.has_failed_to_connect) {
      auto connected = connector->poll();
      if (connected) channel.sending = std::move(*connected);
      channel.has_failed_to_connect = !connected;
    }
    const bool is_open = channel.sending != nullptr && channel.receiving != nullptr;
    return is_open || channel.has_failed_to_connect;
  }));
  return channel;
}

inline Request* post_receive(datagram::ReceiveEnd& end, Memory& memory) {
  std::ranges::fill(memory.bytes(), std::byte{0});
  Request* request = nullptr;
  EXPECT_TRUE(end.post(memory.bytes().data(), kDatagramBytes, memory.registration(), ReceiveClass::kNoSlot,
                       &request, 0));
  return request;
}

inline Request* post_send(datagram::SendEnd& end, Memory& memory) {
  std::ranges::fill(memory.bytes(), std::byte{0x5A});
  Request* request = nullptr;
  EXPECT_TRUE(poll_until([&] {
    return !end.post(memory.bytes().data(), kDatagramBytes, memory.registration(), false, &request, 0) ||
           request != nullptr;
  }));
  return request;
}

inline void receive(datagram::ReceiveEnd& end, Memory& memory, Request* request = nullptr) {
  if (request == nullptr) request = post_receive(end, memory);
  ASSERT_NE(request, nullptr);
  int is_done = 0;
  int length_bytes = 0;
  ASSERT_TRUE(poll_until([&] { return !end.test(*request, &is_done, &length_bytes) || is_done; }));
  EXPECT_EQ(static_cast<size_t>(length_bytes), kDatagramBytes);
  EXPECT_TRUE(std::ranges::all_of(memory.bytes(), [](std::byte byte) { return byte == std::byte{0x5A}; }));
}

inline void send(datagram::SendEnd& end, Memory& memory) {
  Request* const request = post_send(end, memory);
  ASSERT_NE(request, nullptr);
  int is_done = 0;
  ASSERT_TRUE(poll_until([&] { return !end.test(*request, &is_done, nullptr) || is_done; }));
  EXPECT_TRUE(is_done);
}

// A message over both ends in this thread.
inline void transfer(DatagramChannel& channel, Memory& source, Memory& target) {
  Request* const receiving = post_receive(*channel.receiving, target);
  Request* const sending = post_send(*channel.sending, source);
  ASSERT_NE(sending, nullptr);
  receive(*channel.receiving, target, receiving);
  int is_done = 0;
  ASSERT_TRUE(poll_until([&] { return !channel.sending->test(*sending, &is_done, nullptr) || is_done; }));
}

}  // namespace verbena::transport
