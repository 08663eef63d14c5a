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

// In the order of trial, and of kFormNames.
enum class Form : uint8_t {
  kWrite,
  kInline,      // a write whose bytes the CPU gives
  kEmptyWrite,  // without memory and without a key
  kRead,        // also what flushes memory of a GPU
  kFetchAdd,
  kChain,  // several requests at once, of which the last one is signaled
  // Into a shared receive queue: a send, a write with immediate, one of zero bytes, and one whose receive
  // work request has no SGE.
  kSharedSend,
  kSharedWriteImm,
  kSharedEmptyImm,
  kSharedBare,
  // The same into a queue pair's own.
  kOwnSend,
  kOwnWriteImm,
  kOwnEmptyImm,
  kOwnBare,
  // Unreliable datagrams: one piece, inline where the device takes it; an MTU in two pieces at both ends.
  kShortDatagram,
  kDatagram,
  // Memory of a GPU: the registration of its dma-buf or pointer, then data to it and back.
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
  kNotOffered,  // the device says so itself
  kWorks,
  kRefused,  // by the call; `code` is its errno
  kFailed,   // in a completion; `code` is its status
  // No completion in time, or one that says that no answer came; or, with `code`, the errno: the own address
  // was not reached, or the host lacked memory.
  kNoAnswer,
  kWrong,  // bytes, immediate, length or kind of completion
};

struct FormResult {
  Verdict verdict = Verdict::kNotTried;
  int code = 0;

  bool works() const { return verdict == Verdict::kWorks; }
  bool fails() const { return verdict >= Verdict::kRefused; }
  // Whether the device itself shows that it fails. Silence may have other causes, and excludes no device.
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
  // Tests also what the transport would not use on this device: a queue pair's own receive queue although the
  // shared receive queue works, and receives without an SGE although the device is not known to support them.
  bool all_forms = false;
  bool datagrams = false;  // tests datagrams too; all_forms does
  // At least kGpuBytes of a GPU's memory; null: none. By a dma-buf of which it is the start, or by pointer.
  static constexpr size_t kGpuBytes = 8192;
  void* gpu_memory = nullptr;
  int dmabuf = -1;
};

// Reports failures in the result only; logs refused verbs calls at kInfo.
SelfTestResult test_device(Device& device, const SelfTestOptions& options);

// Which kinds of request the transport may post to a device.
struct Abilities {
  std::string unusable = {};   // why no connection can be made on it; empty: it can
  bool reaches_itself = true;  // by its own address
  bool shared_receives = true, empty_receives = false, inline_writes = true, empty_writes = true;
  bool fetch_add = false;
  std::string advice = {};  // what fails, and the fallback; empty: the device does what it advertises
};

// Derives the abilities from a test. `untested`: those to assume for kinds that were not tested.
Abilities judge(const SelfTestResult& result, Abilities untested);

}  // namespace verbena::verbs
