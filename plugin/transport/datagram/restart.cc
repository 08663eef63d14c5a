// Peers that are gone, or that do not know that this end has given them up. They are detected at once, not
// after VERBENA_FAILOVER_TIMEOUT_MS. A process that has ended does not answer, and a new process does not get
// its packets because it has other queue pairs. Therefore a waiting engine asks another engine on the peer's
// host, for example the one of the new process, which can query the kernel. All of these messages have the
// tags of packets.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/log.h"
#include "transport/datagram/engine.h"
#include "transport/datagram/meeting.h"

namespace verbena::transport::datagram {

using base::Status;
using protocol::datagram::kNoObject;
using protocol::datagram::LifeRecord;
using protocol::datagram::PacketKind;
using protocol::datagram::ProcessName;

void Engine::give_up(uint32_t id, const base::Outcome& failure) {
  peers_of_[id]->failure = failure;
  core_.mute_peer(id);
  // The address of the peer's port may have changed.
  for (const verbs::AddressHandle& handle : peers_of_[id]->ways.handles) handle.stop_sharing();
  for (const auto& [nonce, listener] : listeners_) listener->forget_hello(peers_of_[id]->name.id);
  for_each_end([&](ChannelEnd& end) {
    if (end.peer() == id) end.fail(failure);
  });
}

void Engine::note_given_up(uint32_t id) {
  Peer& peer = *peers_of_[id];
  if (peer.failure.has_failed()) return;
  peer.has_given_us_up = true;
  give_up(id, base::fail(Status::kRemote,
                         "datagrams: %s closed the connection, because the peer received nothing from this "
                         "process within the peer's VERBENA_FAILOVER_TIMEOUT_MS. Check whether this process "
                         "was stopped or the network was down",
                         peer.text.c_str()));
}

// The tag of the packet is valid, so the answer has a tag too.
void Engine::answer_given_up(uint32_t id) {
  constexpr int64_t kSpacingNs = 10'000'000;
  Peer& peer = *peers_of_[id];
  if (now_ns_ - peer.reset_ns < kSpacingNs) return;
  peer.reset_ns = now_ns_;
  post_control(id, core_.pick_control_path(core_.peer(id)), PacketKind::kReset, {}, {});
}

// A peer that should answer is silent: has its process ended? Queries the kernel if the process is on this
// host; otherwise asks engines of the peer's host that have sent packets recently.
void Engine::look_for_life(uint32_t id) {
  constexpr uint32_t kMostWitnesses = 2;
  const Peer& quiet = *peers_of_[id];
  if (quiet.process.space == 0) return;
  if (quiet.process.space == process_.space) return suspect({quiet.process, true, kNoObject});
  // Asks other engines each time, because those that were asked may be gone too.
  const std::vector<uint32_t>& neighbours = peers_of_host_[quiet.process.space];
  const auto turn = static_cast<size_t>(now_ns_ / kLookNs) * kMostWitnesses;
  for (size_t i = 0; i < std::min<size_t>(kMostWitnesses, neighbours.size()); ++i) {
    const uint32_t other = neighbours[(turn + i) % neighbours.size()];
    if (peers_of_[other]->process != quiet.process && !peers_of_[other]->failure.has_failed())
      post_life(other, {quiet.process, 1, 0});
  }
}

void Engine::post_life(uint32_t id, const LifeRecord& record) {
  post_control(id, core_.pick_control_path(core_.peer(id)), PacketKind::kReset, {},
               {reinterpret_cast<const uint8_t*>(&record), sizeof(record)});
}

// Called if the process has ended or the peer has said that it ends. In the latter case, nothing is known
// about the process.
void Engine::note_gone(uint32_t id) {
  if (!std::exchange(peers_of_[id]->is_ending, true)) ended_.push_back({id, 0, {}});
}

// The peer has closed all its ends and posts nothing more. Packets that have arrived are still delivered.
void Engine::note_departure(uint32_t id) {
  Peer& peer = *peers_of_[id];
  if (std::exchange(peer.has_left, true)) return;
  for (const auto& [nonce, listener] : listeners_) listener->forget_hello(peer.name.id);
  for_each_end([&](ChannelEnd& end) {
    if (end.peer() == id) end.note_peer_closed(now_ns_);
  });
  note_gone(id);
}

// Checks the idle peers, one after the other. A process may end while it holds receives that this
// engine posted. Such receives are taken back a few checks later, because by then all data that the process
// sent over a socket has arrived.
void Engine::look_for_ended() {
  constexpr uint32_t kLooks = 4;
  if (!peers_of_.empty()) {
    const uint32_t id = ended_turn_++ % static_cast<uint32_t>(peers_of_.size());
    const Peer& next = *peers_of_[id];
    if (next.process.space != 0 && next.process.space == process_.space && !next.is_dead)
      suspect({next.process, false, kNoObject});
  }
  for (size_t i = 0; i < ended_.size(); ++i) {
    const Peer& ended = *peers_of_[ended_[i].peer];
    if (++ended_[i].looks == kLooks && ended.is_dead && ended.is_met && nic_.rails[0]->is_softverbs() &&
        ended.process.space == process_.space)
      take_back_pages(ended_[i].peer);
  }
  std::erase_if(ended_, [this](Ended& ended) { return ended.looks >= kLooks && remove_gone(ended); });
}

// Keeps the peer's address handles until the datagrams that read them were sent.
bool Engine::remove_gone(Ended& ended) {
  const uint32_t id = ended.peer;
  Peer& peer = *peers_of_[id];
  if (is_used(id)) {
    ended.added.clear();
    return false;
  }
  const bool is_first = ended.added.empty();
  if (is_first) core_.mute_peer(id);
  bool have_left = !is_first;
  for (size_t i = 0; i < rails_.size() * Rail::kPairs; ++i) {
    const auto number = static_cast<uint32_t>(i);
    const SendQueue& pair = rails_[number / Rail::kPairs]->pair(number % Rail::kPairs);
    if (is_first) ended.added.push_back(pair.added());
    have_left = have_left && pair.has_left(ended.added[i]);
  }
  if (!have_left) return false;
  for (const uint32_t channel : core_.peer(id).receive_channels)
    if (channel != kNoObject) core_.forget_receive(channel);
  for (const auto& other : peers_of_)
    if (other->former == id) other->former = kNoObject;
  if (const auto host = peers_of_host_.find(peer.process.space); host != peers_of_host_.end()) {
    std::erase(host->second, id);
    if (host->second.empty()) peers_of_host_.erase(host);
  }
  const auto known = peers_by_id_.find(peer.name.id);
  if (known != peers_by_id_.end() && known->second == id) peers_by_id_.erase(known);
  peer = Peer{};
  core_.remove_peer(id);
  return true;
}

bool Engine::is_used(uint32_t id) const {
  const auto has_end = [this](uint32_t channel) {
    return channel != kNoObject && receive_channels_[channel].end != nullptr;
  };
  return peers_of_[id]->connectors != 0 || std::ranges::any_of(core_.peer(id).receive_channels, has_end) ||
         std::ranges::any_of(core_.peer(id).send_channels,
                             [](uint32_t channel) { return channel != kNoObject; });
}

// Peers may ask about any process, also repeatedly.
void Engine::suspect(const Suspect& suspect) {
  constexpr size_t kMaxSuspects = 256;
  if (suspects_.size() == kMaxSuspects || std::ranges::find(suspects_, suspect) != suspects_.end()) return;
  suspects_.push_back(suspect);
  want();
}

// Runs on the service thread without the token, because the kernel may take long.
void Engine::look_at_suspects() {
  std::vector<Suspect> suspects = std::exchange(suspects_, {});
  leave_as_service();
  std::erase_if(suspects, [](const Suspect& suspect) { return !has_ended(suspect.process); });
  return_as_service();
  for (const Suspect& ended : suspects) {
    if (ended.asker == kNoObject)
      note_end(ended.process, ended.is_awaited);
    else
      post_life(ended.asker, {ended.process, 0, 0});
  }
}

void Engine::note_end(const ProcessName& process, bool is_awaited) {
  for (uint32_t id = 0; id < peers_of_.size(); ++id) {
    Peer& ended = *peers_of_[id];
    if (ended.process != process) continue;
    ended.is_dead = true;
    note_gone(id);
    if (!is_awaited || ended.failure.has_failed()) continue;
    give_up(id, base::fail(Status::kRemote, "datagrams: %s: the peer's process has ended. See the peer's log",
                           ended.text.c_str()));
  }
}

// A peer may falsely report that another process has ended. A live process answers a question.
void Engine::doubt(const ProcessName& process, uint32_t witness) {
  if (peers_of_[witness]->process.space != process.space) return;  // that peer cannot know
  for (uint32_t id = 0; id < peers_of_.size(); ++id) {
    Peer& doubted = *peers_of_[id];
    if (doubted.process != process || doubted.failure.has_failed() || doubted.doubted_ns != 0) continue;
    doubted.doubted_ns = now_ns_;
    doubted.witness = peers_of_[witness]->text;
    doubted.looks = 0;
    if (doubted.is_met) core_.ask(id);
  }
}

void Engine::look_at_doubt(uint32_t id) {
  constexpr uint32_t kMostLooks = 4;
  Peer& doubted = *peers_of_[id];
  if (core_.peer(id).heard_ns > doubted.doubted_ns) {
    doubted.doubted_ns = 0;
  } else if (++doubted.looks > kMostLooks) {
    give_up(id, base::fail(Status::kRemote,
                           "datagrams: %s: the peer's process has ended, as %s reports. See the log of the "
                           "process that has ended",
                           doubted.text.c_str(), doubted.witness.c_str()));
  } else if (doubted.is_met) {
    core_.ask(id);
  }
}

void Engine::take_reset(uint32_t id, std::span<const uint8_t> body) {
  LifeRecord record;
  if (body.empty()) return note_given_up(id);
  if (body.size() != sizeof(record) || peers_of_[id]->failure.has_failed()) return;
  std::memcpy(&record, body.data(), sizeof(record));
  if (record.process.space == 0) return;
  if (record.is_question == 0) return doubt(record.process, id);
  if (record.process.space == process_.space) suspect({record.process, false, id});
}

}  // namespace verbena::transport::datagram
