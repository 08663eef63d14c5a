// This rank's agent on devices without atomics: adds to words of its memory for its peers, which write what
// to add into rings here (protocol/add_ring.h). All adds to a rank's words go through its agent, its own adds
// too, so they are atomic with each other, and, in host memory, with the CPU's atomics. Words in memory of
// GPUs are changed by the device (word_loop.h).
//
// Setup makes and registers the rings; the rest is the driver's, in its poll().
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

// The rings of all lanes to one peer, in this rank's memory, and where the peer has its own.
struct AddRings {
  std::unique_ptr<protocol::AddRing[]> rings;               // by lane
  std::vector<verbs::MemoryRegion> registrations;           // by our rail; go before the rings
  uint64_t remote = 0;                                      // address of the peer's first ring
  std::array<uint32_t, protocol::kMaxRails> remote_keys{};  // by the peer's rail

  static base::Result<std::unique_ptr<AddRings>> create(std::span<verbs::Device* const> devices,
                                                        uint32_t lanes);
};

struct AddAgentOptions {
  std::span<verbs::Device* const> devices{};        // by rail
  std::span<verbs::CompletionQueue> completions{};  // the same
  uint32_t lanes = 0;                               // of the endpoint, to all peers
  bool loops_all = false;                           // adds to all memory as to that of GPUs
};

class AddAgent {
 public:
  AddAgent(const RegionTable& regions, const AddAgentOptions& options)
      : regions_(regions), options_(options), held_(options.lanes) {}

  // Carries out the adds that the peer has asked for on this lane; those to memory of GPUs from begin() to a
  // finish() later. False, with the cause: one of them makes no sense.
  bool serve(Lane& lane, std::string* problem);
  void begin(uint32_t rail);
  // `refuse(lane, problem)`: an add of this lane cannot be carried out.
  template <typename Refuse>
  void finish(const Refuse& refuse);
  // Whether adds wait for finish().
  bool is_busy() const { return !jobs_.empty(); }
  // Of the queue pair of this rail to itself.
  void take_completion(uint32_t rail, const verbs::Completion& completion) {
    if (loop_ != nullptr) loop_->take_completion(rail, completion);
  }
  // Why nothing can be added any more; empty: it can.
  const std::string& failure() const { return failure_; }

 private:
  struct Job {  // in the batch of loop_
    Lane* lane;
    uint32_t word;
    uint64_t operand;
  };
  bool collect(Lane& lane, const LocalRegion& region, const protocol::AddEntry& entry);

  const RegionTable& regions_;
  const AddAgentOptions options_;
  std::unique_ptr<WordLoop> loop_;  // made for the first word in memory of a GPU
  std::vector<Job> jobs_;
  std::vector<uint32_t> held_;  // by lane: how many of its adds are in jobs_
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
