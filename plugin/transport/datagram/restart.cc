// Peers that are there no more, or do not know that this end has given them up: told at once, not after
// VERBENA_FAILOVER_TIMEOUT_MS. A process that has ended answers nothing, and its successor does not get its
// packets: it has other queue pairs. So whoever waits asks an engine of the same host, its successor's for
// one, which sees what the kernel knows. All of this has the tags of packets.
#include <cstring>
#include <utility>
#include <vector>

#include "base/log.h"
#include "transport/datagram/engine.h"
#include "transport/datagram/meeting.h"

namespace verbena::transport::datagram {

using base::Status;
using protocol::datagram::LifeRecord;
using protocol::datagram::PacketKind;
using protocol::datagram::ProcessName;

void Engine::give_up(uint32_t id, const base::Outcome& failure) {
  peers_of_[id]->failure = failure;
  core_.mute_peer(id);
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
                         "datagrams: %s has given this end up: it heard nothing of us for its "
                         "VERBENA_FAILOVER_TIMEOUT_MS; was this process stopped, or the network down?",
                         peer.text.c_str()));
}

// Its tag is right: so is that of the answer.
void Engine::answer_given_up(uint32_t id) {
  constexpr int64_t kSpacingNs = 10'000'000;
  Peer& peer = *peers_of_[id];
  if (now_ns_ - peer.reset_ns < kSpacingNs) return;
  peer.reset_ns = now_ns_;
  post_control(id, core_.pick_control_path(core_.peer(id)), PacketKind::kReset, {}, {});
}

// A peer is quiet that should not be: has its process ended? By us where that can be seen from here, else by
// engines of its host that are heard.
void Engine::look_for_life(uint32_t id) {
  constexpr uint32_t kMostWitnesses = 2;
  const Peer& quiet = *peers_of_[id];
  if (quiet.process.space == 0) return;
  if (quiet.process.space == process_.space) {
    if (has_ended(quiet.process)) note_end(quiet.process);
    return;
  }
  // Others each time: those that were asked may be gone too.
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

// A process may end with receives that this engine has posted and will hear nothing of. They are back a few
// looks later: what it has sent over a socket is here by then.
void Engine::note_pages_of(uint32_t id) {
  Peer& ended = *peers_of_[id];
  if (ended.process.space != process_.space || !nic_.rails[0]->is_softverbs()) return;
  if (!std::exchange(ended.has_ended, true)) ended_.push_back({id, 0});
}

// Those that nobody waits for are looked at in turn.
void Engine::look_for_ended() {
  constexpr uint32_t kLooks = 4;
  if (!peers_of_.empty()) {
    const uint32_t id = ended_turn_++ % static_cast<uint32_t>(peers_of_.size());
    const Peer& next = *peers_of_[id];
    const bool may_have_ended = next.is_met && !next.has_ended && process_.space != 0;
    if (may_have_ended && next.process.space == process_.space && has_ended(next.process)) note_pages_of(id);
  }
  for (size_t i = 0; i < ended_.size(); ++i)
    if (++ended_[i].looks == kLooks) take_back_pages(ended_[i].peer);
  std::erase_if(ended_, [](const Ended& ended) { return ended.looks >= kLooks; });
}

void Engine::note_end(const ProcessName& process) {
  for (uint32_t id = 0; id < peers_of_.size(); ++id) {
    Peer& ended = *peers_of_[id];
    if (ended.process != process) continue;
    ended.is_dead = true;
    if (ended.is_met) note_pages_of(id);
    if (ended.failure.has_failed()) continue;
    give_up(id, base::fail(Status::kRemote, "datagrams: %s: its process has ended; look at its log",
                           ended.text.c_str()));
  }
}

// A peer may say of any other that its process has ended. Who is there answers a question.
void Engine::doubt(const ProcessName& process, uint32_t witness) {
  if (peers_of_[witness]->process.space != process.space) return;  // it cannot know
  for (uint32_t id = 0; id < peers_of_.size(); ++id) {
    Peer& doubted = *peers_of_[id];
    if (doubted.process != process || doubted.failure.has_failed() || doubted.doubted_ns != 0) continue;
    doubted.doubted_ns = now_ns_;
    doubted.witness = witness;
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
    give_up(id, base::fail(Status::kRemote, "datagrams: %s: its process has ended, says %s; look at its log",
                           doubted.text.c_str(), peers_of_[doubted.witness]->text.c_str()));
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
  if (record.process.space == process_.space && has_ended(record.process))
    post_life(id, {record.process, 0, 0});
}

}  // namespace verbena::transport::datagram
