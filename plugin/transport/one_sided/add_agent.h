// This rank's agent, used on devices without atomics. It adds to words of this rank's memory for its peers,
// which write their requests into rings in this memory (protocol/add_ring.h). All adds to a rank's words go
// through its agent, also the rank's own adds. They are therefore atomic with each other and, in host memory,
// with atomics of the CPU. The device adds to words in GPU memory (word_loop.h).
//
// Setup creates and registers the rings. The driver's poll() makes all other calls.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "protocol/add_ring.h"
#include "transport/one_sided/lane.h"
#include "transport/one_sided/region_table.h"
#include "transport/one_sided/word_loop.h"
#include "verbs/queues.h"

namespace verbena::transport {

// The rings of all lanes to one peer, in this rank's memory, and the address of the peer's rings.
struct AddRings {
  std::unique_ptr<protocol::AddRing[]> rings;               // by lane
  std::vector<verbs::MemoryRegion> registrations;           // by local rail; destroyed before the rings
  uint64_t remote = 0;                                      // address of the peer's first ring
  std::array<uint32_t, protocol::kMaxRails> remote_keys{};  // by the peer's rail

  static base::Result<std::unique_ptr<AddRings>> create(std::span<verbs::Device* const> devices,
                                                        uint32_t lanes);
};

struct AddAgentOptions {
  std::span<verbs::Device* const> devices{};        // by rail
  std::span<verbs::CompletionQueue> completions{};  // by rail
  uint32_t lanes = 0;                               // of the endpoint, for each peer
  bool loops_all = false;                           // use the device also for adds to host memory
};

class AddAgent {
 public:
  AddAgent(const RegionTable& regions, const AddAgentOptions& options)
      : regions_(regions), options_(options), held_(options.lanes) {}

  // Executes the adds that the peer has requested on this lane. Adds to GPU memory take from begin() until a
  // later finish(). Returns false, with the cause, if a request is invalid.
  bool serve(Lane& lane, std::string* problem);
  void begin(uint32_t rail);
  // Calls `refuse(lane, problem)` if an add of this lane cannot be executed.
  template <typename Refuse>
  void finish(const Refuse& refuse);
  // Returns whether adds wait for finish().
  bool is_busy() const { return !jobs_.empty(); }
  // Takes a completion of this rail's queue pair that is connected to itself.
  void take_completion(uint32_t rail, const verbs::Completion& completion) {
    if (loop_ != nullptr) loop_->take_completion(rail, completion);
  }
  // Returns why no adds are possible any more, or an empty string.
  const std::string& failure() const { return failure_; }

 private:
  struct Job {  // an add in the batch of loop_
    Lane* lane;
    uint32_t word;
    uint64_t operand;
  };
  bool collect(Lane& lane, const LocalRegion& region, const protocol::AddEntry& entry);

  const RegionTable& regions_;
  const AddAgentOptions options_;
  std::unique_ptr<WordLoop> loop_;  // created for the first word in GPU memory
  std::vector<Job> jobs_;
  std::vector<uint32_t> held_;  // by lane: number of its adds in jobs_
  std::string failure_;
};

template <typename Refuse>
void AddAgent::finish(const Refuse& refuse) {
  if (loop_ == nullptr || !loop_->is_done()) return;
  for (const Job& job : jobs_) {
    held_[job.lane->index()] = 0;
    if (const char* const what = loop_->find_refusal(job.word); what != nullptr) {
      refuse(*job.lane, std::string("cannot add to a word in GPU memory: ") + what);
    } else {
      job.lane->answer_asked(loop_->take_value(job.word, job.operand));
    }
  }
  jobs_.clear();
  loop_->clear();
}

}  // namespace verbena::transport
