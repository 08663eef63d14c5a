// Failures of a channel, a queue pair or a rail. Only the channel whose message or memory caused the failure
// is notified. A queue pair that does not work is reset and keeps its number, so peers need not know; its
// queued packets are lost and retransmitted. If the queue pairs of a rail keep failing, the rail is given up,
// like a rail whose port is down for good. The engine fails only if no rail is left.
#include "base/clock.h"
#include "base/log.h"
#include "transport/datagram/engine.h"

namespace verbena::transport::datagram {

using base::Status;
using protocol::datagram::FarewellKind;
using protocol::datagram::kNoObject;
using protocol::datagram::make_stamp;

namespace {

constexpr uint32_t kMaxMendings = 64;  // in a row, without a sent packet

std::string name_port(const verbs::Device& device) {
  return device.name() + ":" + std::to_string(device.port_number());
}

}  // namespace

// --- Channels.

// Repeated for each further packet, because the other end may not have received the notification.
void Engine::refuse_too_long(ReceiveEnd& end, uint64_t room_bytes) {
  constexpr int64_t kSpacingNs = 1'000'000;
  if (!end.has_failed()) {
    end.fail(base::fail(
        Status::kInvalidUsage,
        "datagrams: channel %u from %s: a message is longer than the receive buffer, which has %llu bytes",
        end.wire(), peers_of_[end.peer()]->text.c_str(), static_cast<unsigned long long>(room_bytes)));
    core_.refuse_receive(end.channel());
  } else if (now_ns_ - end.refused_ns < kSpacingNs) {
    return;
  }
  end.refused_ns = now_ns_;
  post_farewell(end.peer(), {end.wire(), 0, FarewellKind::kTooLong});
}

void Engine::note_too_long(SendEnd& end) {
  if (end.has_failed()) return;
  stop(end, base::fail(Status::kInvalidUsage,
                       "datagrams: channel %u to %s: the peer reports that a message is longer than the "
                       "peer's receive buffer. The peer's log gives the length of the buffer",
                       end.wire(), peers_of_[end.peer()]->text.c_str()));
}

void Engine::stop(SendEnd& end, const base::Outcome& failure) {
  end.fail(failure);
  core_.stop_send(end.channel());
}

// Copies to GPU memory failed, because the memory changed or the device cannot access it. The copies of other
// messages start again.
void Engine::note_placement_failure(const std::string& cause) {
  const Placer::Failed failed = placer_->find_failed();
  ReceiveEnd* end = nullptr;
  if (failed.flush != nullptr) end = static_cast<ReceiveEnd*>(failed.flush->owner);
  if (failed.message != kNoObject) end = receive_channels_[core_.receive_message(failed.message).channel].end;
  const base::Outcome failure =
      base::fail(Status::kSystem, "datagrams on %s: cannot copy received data to GPU memory: %s",
                 nic_.name.c_str(), cause.c_str());
  end == nullptr ? note(failure) : end->end_for(failure);
}

void Engine::note_stuck(uint32_t id, uint32_t message) {
  const auto explain = [&](const std::string& what) {
    return base::fail(Status::kRemote,
                      "datagrams: %s%s answers, but a packet of up to %u bytes, retransmitted for %lld ms "
                      "(VERBENA_FAILOVER_TIMEOUT_MS), has not reached the peer. If the peer's log shows no "
                      "error, look for a switch whose MTU is smaller than the MTU of the ports",
                      what.c_str(), peers_of_[id]->text.c_str(),
                      core_.peer(id).data_bytes + PagePool::kLineBytes,
                      static_cast<long long>(core_.options().silence_ns / base::kNsPerMs));
  };
  if (message == kNoObject) return give_up(id, explain(""));
  if (SendEnd* const end = send_ends_[core_.send_message(message).channel]; end != nullptr)
    stop(*end, explain("channel " + std::to_string(end->wire()) + ": "));
}

// --- Queue pairs.

// Handles a failed completion of a datagram. All datagrams before it were sent, and those after it are
// flushed.
void Engine::note_send_failure(uint32_t rail, SendQueue& pair, const verbs::Completion& completion) {
  if (!pair.is_broken() && !verbs::is_flush_error(completion.error))
    base::log_warn("datagrams on %s: cannot send a datagram: %s. The plugin resets the queue pair",
                   name_port(rails_[rail]->device()).c_str(),
                   verbs::describe_completion_error(completion.error));
  pair.set_broken();
  const uint32_t message = pair.owner_of(completion.cookie);
  if (!verbs::is_request_at_fault(completion.error) || message == kNoObject || sends_of_[message] == nullptr)
    return;
  auto& end = *static_cast<SendEnd*>(sends_of_[message]->owner);
  if (end.has_failed()) return;
  stop(end,
       base::fail(Status::kSystem,
                  "datagrams: channel %u to %s: device %s cannot read the memory of a message: %s",
                  end.wire(), peers_of_[end.peer()]->text.c_str(), name_port(rails_[rail]->device()).c_str(),
                  verbs::describe_completion_error(completion.error)));
}

// The queue pair of the failed receive may not be known.
void Engine::note_receive_failure(uint32_t rail, const verbs::Completion& completion) {
  core_.count_stray();
  for (uint32_t mark = 0; mark < Rail::kPairs; ++mark) {
    SendQueue& pair = rails_[rail]->pair(mark);
    if (pair.is_broken() || pair.is_ready()) continue;
    pair.set_broken();
    base::log_warn("datagrams on %s: cannot receive a datagram: %s. The plugin resets the queue pair",
                   name_port(rails_[rail]->device()).c_str(),
                   verbs::describe_completion_error(completion.error));
  }
}

// Resets a queue pair. Its requests are flushed at once. If they are not, they are ignored, because a queue
// pair that was reset reads no memory.
void Engine::mend(uint32_t number) {
  constexpr int64_t kFlushMs = 100;
  Rail& rail = *rails_[number];
  if (rail.is_given_up()) return;
  if (++rail.mendings > kMaxMendings) return give_up_rail(number, "the rail's queue pairs keep failing");
  for (uint32_t mark = 0; mark < Rail::kPairs; ++mark) {
    SendQueue& pair = rail.pair(mark);
    if (!pair.is_broken()) continue;
    const bool stops = pair.stop().is_ok();
    const auto deadline = base::Deadline::after_ms(kFlushMs);
    while (stops && !rail.is_given_up() && !pair.is_empty() && !deadline.has_passed()) poll_sends(number);
    if (rail.is_given_up()) return;
    if (!pair.restart(make_stamp(now_ns_), [this](uint32_t message) { note_left(message); }))
      return give_up_rail(number, "a queue pair cannot be reset");
  }
}

void Engine::empty_pairs_of(uint32_t first_message, uint32_t messages) {
  for (uint32_t i = 0; i < rails_.size(); ++i) {
    for (uint32_t mark = 0; mark < Rail::kPairs; ++mark) {
      SendQueue& pair = rails_[i]->pair(mark);
      if (!pair.holds(first_message, messages)) continue;
      base::log_info(
          "datagrams on %s: queued datagrams refer to memory that was deregistered. The plugin resets the "
          "queue pair of these datagrams",
          name_port(rails_[i]->device()).c_str());
      pair.set_broken();
    }
    mend(i);
  }
}

// --- Rails.

void Engine::give_up_rail(uint32_t number, const std::string& cause) {
  Rail& rail = *rails_[number];
  if (rail.is_given_up()) return;
  rail.set_given_up();
  note_live_rails(live_rails_ & ~(1U << number));
  const bool is_last =
      std::all_of(rails_.begin(), rails_.end(), [](const auto& other) { return other->is_given_up(); });
  base::log_warn("datagrams on %s: the rail has failed and is no longer used: %s; see dmesg%s",
                 name_port(rail.device()).c_str(), cause.c_str(),
                 is_last ? "" : "; the other rails continue");
  for (uint32_t mark = 0; mark < Rail::kPairs; ++mark)
    rail.pair(mark).destroy(make_stamp(now_ns_), [this](uint32_t message) { note_left(message); });
  if (is_last)
    note(base::fail(Status::kSystem, "datagrams on %s: all rails have failed. Create new communicators",
                    nic_.name.c_str()));
}

}  // namespace verbena::transport::datagram
