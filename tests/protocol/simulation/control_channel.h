// One direction of the control socket: records in order, nothing lost, but late; it may end at any time.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "protocol/recovery_record.h"

namespace verbena::protocol::simulation {

class ControlChannel {
 public:
  struct Message {
    RecoveryRecord record;
    std::unique_ptr<ArrivedRecord> arrived;  // of a kArrived
  };

  void send(const RecoveryRecord& record, const ArrivedRecord* arrived = nullptr) {
    if (is_broken_) return;
    under_way_.push_back({record, arrived == nullptr ? nullptr : std::make_unique<ArrivedRecord>(*arrived)});
  }
  // The writer has left: what is under way still comes, and then the end. `is_reset`: nothing more comes.
  void close(bool is_reset) {
    is_broken_ = true;
    if (is_reset) under_way_.clear();
  }
  bool is_quiet() const { return under_way_.empty() && is_broken_ == is_closed_; }

  // The network's: one thing arrives. False: nothing is under way.
  bool deliver() {
    if (is_quiet()) return false;
    if (under_way_.empty()) {
      is_closed_ = true;
    } else {
      here_.push_back(std::move(under_way_.front()));
      under_way_.pop_front();
    }
    is_new_ = true;
    return true;
  }

  // The reader's.
  bool is_wanted() const { return is_new_; }
  void note_attended() { is_new_ = false; }
  bool is_closed() const { return is_closed_; }
  std::optional<Message> receive() {
    if (here_.empty()) return std::nullopt;
    Message message = std::move(here_.front());
    here_.pop_front();
    return message;
  }

 private:
  std::deque<Message> under_way_, here_;
  bool is_broken_ = false, is_closed_ = false, is_new_ = false;
};

}  // namespace verbena::protocol::simulation
