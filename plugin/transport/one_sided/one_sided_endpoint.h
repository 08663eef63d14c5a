// The endpoint (verbena/endpoint.h) over queue pairs: one port, one completion queue, a few lanes to each
// peer.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/one_sided/get_push.h"
#include "transport/one_sided/lane.h"
#include "transport/one_sided/region_table.h"
#include "verbena/endpoint.h"
#include "verbs/device.h"

namespace verbena::transport {

class OneSidedEndpoint final : public verbena::Endpoint {
 public:
  OneSidedEndpoint(const EndpointOptions& options, std::unique_ptr<verbs::Device> device,
                   verbs::CompletionQueue completions);
  // Before anything else, for a device whose writes to GPU memory are to be pushed.
  base::Outcome open_get_push();
  ~OneSidedEndpoint() override;

  std::string describe_rail() const override;
  bool bind_thread() const override;
  bool wants_dmabuf() const override { return device_->supports_dmabuf(); }
  size_t address_bytes() const override { return measure_peer_address(options_.lanes); }
  size_t region_address_bytes() const override { return measure_region_address(); }

  std::vector<std::byte> local_address(uint32_t peer, std::string* error) override;
  bool connect(uint32_t peer, std::span<const std::byte> address, std::string* error) override;
  bool add_region(uint32_t id, const EndpointMemory& memory, std::string* error) override;
  std::vector<std::byte> region_address(uint32_t id) const override;
  bool add_remote_region(uint32_t peer, uint32_t id, std::span<const std::byte> address,
                         std::string* error) override;
  void remove_region(uint32_t id) override;
  void remove_remote_regions(uint32_t id) override;

  Posting put(const Transfer& transfer, uint64_t cookie) override;
  Posting get(const Transfer& transfer, uint64_t cookie) override;
  Posting write_word(const RemoteWord& word, uint64_t value, uint64_t cookie) override;
  Posting add_word(const RemoteWord& word, uint64_t addend, uint64_t cookie) override;
  Posting read_word(const RemoteWord& word, uint64_t cookie) override;
  void fence(uint32_t peer, uint32_t lane) override;
  void ring() override;
  uint32_t poll(std::span<EndpointCompletion> out) override;
  void give_up(uint32_t peer, const std::string& cause) override;
  const std::string& error(uint32_t peer) const override { return peers_[peer].error; }
  const std::string& refusal() const override { return refusal_; }
  uint64_t count_taken(uint32_t peer, uint32_t lane) const override;

 private:
  enum class State : uint8_t { kNew, kAddressed, kConnected, kFailed };
  struct Peer {
    // kConnected publishes the lanes to the driver; kFailed is the driver's.
    std::atomic<State> state{State::kNew};
    std::vector<Lane> lanes;
    verbs::LocalAddress told;  // where the peer was told that we are
    std::string error;
  };

  // Setup, with setup_mutex_ held.
  BlobNames name_blob(uint32_t from, uint32_t to) const;
  bool make_lanes(uint32_t peer, std::string* error);
  bool connect_lanes(Peer& peer, const PeerAddress& address, std::string* error);

  // Operations.
  Lane* admit(uint32_t peer, uint32_t lane);
  Posting move(verbs::Opcode opcode, const Transfer& transfer, uint64_t cookie);
  Posting access_word(verbs::OneSidedRequest request, const RemoteWord& word, uint64_t cookie);
  // kTaken; if the device did not accept what was posted, the peer has failed.
  Posting settle(uint32_t peer, uint32_t lane, base::Outcome outcome);
  void note_pending(uint32_t peer, uint32_t lane, const Lane& of);
  __attribute__((format(printf, 2, 3))) Posting refuse(const char* format, ...);

  uint32_t index_of(uint32_t peer, uint32_t lane) const { return peer * options_.lanes + lane; }
  Lane& lane_at(uint32_t index) { return peers_[index / options_.lanes].lanes[index % options_.lanes]; }
  bool works(uint32_t peer) const {
    return peers_[peer].state.load(std::memory_order_acquire) == State::kConnected;
  }
  uint32_t index_of_push() const { return options_.count_ranks * options_.lanes; }
  uint32_t tell_failures(std::span<EndpointCompletion> out);
  uint32_t release_held(std::span<EndpointCompletion> out);
  bool tell(const verbs::Completion& completion, EndpointCompletion* out);
  bool note_push(const verbs::Completion& completion);
  void fail_peer(uint32_t peer, const std::string& cause);
  void fail_all(const std::string& cause);

  const EndpointOptions options_;
  std::unique_ptr<verbs::Device> device_;
  uint64_t max_message_bytes_;
  uint32_t outstanding_reads_;
  std::mutex setup_mutex_;  // guards lanes and regions while they are made, against each other
  verbs::CompletionQueue completions_;
  RegionTable regions_;
  std::vector<Peer> peers_;
  std::unique_ptr<GetPush> get_push_;         // null: gets need none
  std::vector<uint32_t> pending_;             // lanes with something to ring; capacity: all
  std::vector<EndpointCompletion> failures_;  // not told yet
  std::string refusal_;
};

}  // namespace verbena::transport
