// Reports to NCCL's profiler when the work requests of one communicator begin and end (VERBENA_PROFILER).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "nccl/abi.h"
#include "observe/net_events.h"

namespace verbena::nccl {

class NetProfiler final : public observe::NetEvents {
 public:
  // `devices` has NCCL's device number for each rail.
  NetProfiler(abi::ProfilerCallback callback, std::vector<int> devices)
      : callback_(callback), devices_(std::move(devices)) {}

  void* begin(void* parent, const observe::NetEvent& event) override;
  void end(void* event) override;

 private:
  const abi::ProfilerCallback callback_;
  const std::vector<int> devices_;
};

}  // namespace verbena::nccl
