#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/clock.h"
#include "nccl/abi.h"
#include "verbena-bench/unpack/unpack_run.h"
#include "verbena-bench/unpack/workspace.h"
#include "verbena/unpack_abi.h"

namespace verbena::tools::unpack {

struct LiveOptions {
  std::string plugin;
  int device = 0;
  int abi_version = 12;
  uint64_t message_bytes = 524288;
  uint64_t messages = 64;  // rounded to whole windows
  double timeout_s = kStepTimeoutS;
};

// The replacement for NCCL's kernel: owns the memory of the receives, and unpacks staged messages.
class LiveReceiver {
 public:
  virtual ~LiveReceiver() = default;

  // abi::kPtrHost or abi::kPtrCuda.
  virtual int pointer_type() const = 0;
  // Memory that lives as long as this object.
  virtual char* allocate(size_t length_bytes) = 0;
  // Fills the run's buffers with guard bytes.
  virtual void reset(const UnpackRun& run) = 0;
  // Unpacks the connection's next receive, which test has reported done, from its slot to `data`. Returns the
  // number of its descriptors; 0 if the message was direct.
  virtual uint64_t place(UnpackDeviceHandle* handle, char* data, uint64_t length_bytes) = 0;
  virtual Finding check(const UnpackRun& run) = 0;
};

struct LiveFigure {
  std::string device;
  uint64_t message_bytes = 0;
  uint64_t messages = 0;
  uint64_t staged = 0;
  uint64_t descriptors = 0;
  Finding finding;
};

// Sends messages to itself through a connection of the plugin, as NCCL does: receives of protocol Simple in
// windows of eight, each unpacked by `receiver` when it is complete, and consumed afterwards.
LiveFigure run_live(const LiveOptions& options, LiveReceiver& receiver);

}  // namespace verbena::tools::unpack
