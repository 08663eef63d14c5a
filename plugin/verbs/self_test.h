// Self-test of a device: executes each kind of request that the transport posts, on queue pairs that are
// connected to themselves, in host memory and, if the caller passes some, in GPU memory. Device::abilities()
// runs the test before the first connection, and the transport uses a fallback for each kind that fails.
// `verbena-info --self-test` prints the result.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "verbs/types.h"

namespace verbena::verbs {

class Device;

// In the order of the test, and of kFormNames.
enum class Form : uint8_t {
  kWrite,
  kInline,      // a write with inline data
  kEmptyWrite,  // without a buffer and a key
  kRead,        // also used to flush GPU memory
  kFetchAdd,
  kChain,  // several requests at once; only the last one is signaled
  // With a shared receive queue: a send, a write with immediate, a write of zero bytes with immediate, and
  // one whose receive has no SGE.
  kSharedSend,
  kSharedWriteImm,
  kSharedEmptyImm,
  kSharedBare,
  // The same four forms with a queue pair's own receive queue.
  kOwnSend,
  kOwnWriteImm,
  kOwnEmptyImm,
  kOwnBare,
  // Unreliable datagrams: one in a single buffer, inline if the device supports it; and one of an MTU, in two
  // buffers at both ends.
  kShortDatagram,
  kDatagram,
  // GPU memory: registration of its dma-buf or pointer, then data to it and back.
  kGpuRegister,
  kGpuWrite,
  kGpuRead,
  kGpuFetchAdd,
  kCount
};
inline constexpr size_t kForms = static_cast<size_t>(Form::kCount);
inline constexpr const char* kFormNames[] = {
    "write",          "inline_write", "empty_write",  "read",      "fetch_add", "chain",        "shared_send",
    "shared_imm",     "shared_empty", "shared_bare",  "own_send",  "own_imm",   "own_empty",    "own_bare",
    "short_datagram", "datagram",     "gpu_register", "gpu_write", "gpu_read",  "gpu_fetch_add"};
static_assert(std::size(kFormNames) == kForms);

enum class Verdict : uint8_t {
  kNotTried,
  kNotOffered,  // as the device itself reports
  kWorks,
  kRefused,  // by the call; `code` is its errno
  kFailed,   // in a completion; `code` is its status
  // There was no completion in time, or it reported that no answer came. With `code`, the errno: the device's
  // own address did not answer, or the host lacked memory.
  kNoAnswer,
  kWrong,  // wrong bytes, immediate, length or kind of completion
};

struct FormResult {
  Verdict verdict = Verdict::kNotTried;
  int code = 0;

  bool works() const { return verdict == Verdict::kWorks; }
  bool fails() const { return verdict >= Verdict::kRefused; }
  // Returns whether the device itself has reported a failure. A missing completion may have other causes, and
  // does not exclude a device.
  bool is_proved() const { return fails() && verdict != Verdict::kNoAnswer; }
};
std::string describe(const FormResult& result);

struct SelfTestResult {
  std::array<FormResult, kForms> forms{};
  int64_t took_ns = 0;

  const FormResult& of(Form form) const { return forms[static_cast<size_t>(form)]; }
};

struct SelfTestOptions {
  int64_t patience_ns = 0;  // timeout of each form; after two timeouts the test ends
  // Also tests forms that the transport would not use on this device: a queue pair's own receive queue
  // although the shared receive queue works, and receives without an SGE although the device is not known to
  // support them.
  bool all_forms = false;
  bool datagrams = false;  // also tests datagrams; all_forms includes them
  // At least kGpuBytes of GPU memory, or null. Registered by a dma-buf that starts at this address, or by
  // pointer.
  static constexpr size_t kGpuBytes = 8192;
  void* gpu_memory = nullptr;
  int dmabuf = -1;
};

// Reports failures only in the result. Rejected verbs calls are logged at kInfo.
SelfTestResult test_device(Device& device, const SelfTestOptions& options);

// Which kinds of request the transport may post to a device.
struct Abilities {
  std::string unusable = {};   // why the device cannot be used for connections; empty if it can
  bool reaches_itself = true;  // by the device's own address
  bool shared_receives = true, empty_receives = false, inline_writes = true, empty_writes = true;
  bool fetch_add = false;
  std::string advice = {};  // what fails, and the fallback; empty if nothing fails
};

// Derives the abilities from a test. `untested` has the abilities to assume for forms that were not tested.
Abilities judge(const SelfTestResult& result, Abilities untested);

}  // namespace verbena::verbs
