// An endpoint that moves nothing: it writes down what it is asked for, and completes, fills up and fails when
// a test says so. For one thread.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "verbena/endpoint.h"

namespace verbena::device_test {

// The members of an endpoint for its setup, which the tests do not use.
class UnconnectedEndpoint : public Endpoint {
 public:
  std::string describe_rail() const override { return "fake"; }
  bool bind_thread() const override { return false; }
  bool wants_dmabuf() const override { return false; }
  size_t address_bytes() const override { return 0; }
  size_t region_address_bytes() const override { return 0; }
  std::vector<std::byte> local_address(uint32_t, std::string*) override { return {}; }
  bool connect(uint32_t, std::span<const std::byte>, std::string*) override { return false; }
  bool add_region(uint32_t, const EndpointMemory&, std::string*) override { return false; }
  std::vector<std::byte> region_address(uint32_t) const override { return {}; }
  bool add_remote_region(uint32_t, uint32_t, std::span<const std::byte>, std::string*) override {
    return false;
  }
  void remove_region(uint32_t) override {}
  void remove_remote_regions(uint32_t) override {}
};

class FakeEndpoint final : public UnconnectedEndpoint {
 public:
  // `put 1:0 3+16 4+32 8`: rank and lane, region and offset here, at the peer, bytes; `#` before a cookie.
  std::vector<std::string> asked;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> room;  // of a lane; without an entry there is always some
  std::string refuses;                                     // everything, for this reason
  bool swaps = true;
  std::map<uint32_t, std::string> errors;       // of peers
  std::vector<EndpointCompletion> completions;  // to be told in the next poll

  // Tells that so many operations of the lane are done.
  void complete(uint32_t peer, uint32_t lane, uint64_t count, uint64_t cookie = 0, uint64_t value = 0) {
    completions.push_back({peer, lane, false, count, cookie, value});
  }
  std::vector<std::string> take_asked() { return std::exchange(asked, {}); }

  Posting put(const Transfer& transfer, uint64_t) override { return copy("put", transfer); }
  Posting get(const Transfer& transfer, uint64_t) override { return copy("get", transfer); }
  Posting write_word(const RemoteWord& word, uint64_t value, uint64_t) override {
    return access("write", word, " " + std::to_string(static_cast<int64_t>(value)));
  }
  Posting add_word(const RemoteWord& word, uint64_t addend, uint64_t cookie) override {
    return access("add", word, " " + std::to_string(addend) + name_cookie(cookie));
  }
  bool swaps_words() const override { return swaps; }
  Posting compare_swap_word(const RemoteWord& word, uint64_t expected, uint64_t desired,
                            uint64_t cookie) override {
    return access("swap", word,
                  " " + std::to_string(expected) + ">" + std::to_string(desired) + name_cookie(cookie));
  }
  Posting read_word(const RemoteWord& word, uint64_t cookie) override {
    return access("read", word, name_cookie(cookie));
  }
  void fence(uint32_t peer, uint32_t lane) override { asked.push_back("fence " + name(peer, lane)); }
  void ring() override {}
  uint32_t poll(std::span<EndpointCompletion> out) override {
    const size_t count = std::min(out.size(), completions.size());
    std::copy_n(completions.begin(), count, out.begin());
    completions.erase(completions.begin(), completions.begin() + static_cast<ptrdiff_t>(count));
    return static_cast<uint32_t>(count);
  }
  void give_up(uint32_t peer, const std::string& cause) override {
    errors[peer] = "rank " + std::to_string(peer) + ": " + cause;
    completions.push_back({peer, 0, true, 0, 0, 0});
  }
  const std::string& error(uint32_t peer) const override {
    const auto found = errors.find(peer);
    return found == errors.end() ? none_ : found->second;
  }
  const std::string& refusal() const override { return refuses; }
  uint64_t count_taken(uint32_t peer, uint32_t lane) const override {
    const auto found = taken_.find({peer, lane});
    return found == taken_.end() ? 0 : found->second;
  }

 private:
  static std::string name(uint32_t peer, uint32_t lane) {
    return std::to_string(peer) + ":" + std::to_string(lane);
  }
  static std::string name_cookie(uint64_t cookie) { return cookie == 0 ? "" : " #" + std::to_string(cookie); }
  static std::string place(uint32_t region, uint64_t offset) {
    return " " + std::to_string(region) + "+" + std::to_string(offset);
  }
  Posting copy(const char* what, const Transfer& of) {
    return take(of.peer, of.lane,
                what + (" " + name(of.peer, of.lane)) + place(of.local_region, of.local_offset) +
                    place(of.remote_region, of.remote_offset) + " " + std::to_string(of.bytes));
  }
  Posting access(const char* what, const RemoteWord& of, const std::string& value) {
    return take(of.peer, of.lane,
                what + (" " + name(of.peer, of.lane)) + place(of.region, of.offset) + value);
  }
  Posting take(uint32_t peer, uint32_t lane, const std::string& what) {
    if (!refuses.empty()) return Posting::kRefused;
    const auto limit = room.find({peer, lane});
    if (limit != room.end() && limit->second == 0) return Posting::kFull;
    if (limit != room.end()) --limit->second;
    asked.push_back(what);
    ++taken_[{peer, lane}];
    return Posting::kTaken;
  }

  std::map<std::pair<uint32_t, uint32_t>, uint64_t> taken_;
  std::string none_;
};

}  // namespace verbena::device_test
