// What a device does of that which the transport asks of it, found by trying: with queue pairs connected to
// themselves, in host memory and, where a caller gives some, in memory of a GPU. Device::abilities() runs it
// before the first connection and chooses another way for what fails; `verbena-info --self-test` prints it.
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
  // Into a shared receive queue: a send, a write with immediate, one without bytes, and one whose receive has
  // no piece of memory.
  kSharedSend,
  kSharedWriteImm,
  kSharedEmptyImm,
  kSharedBare,
  // The same into a queue pair's own.
  kOwnSend,
  kOwnWriteImm,
  kOwnEmptyImm,
  kOwnBare,
  // Memory of a GPU: the registration of its dma-buf or pointer, then data to it and back.
  kGpuRegister,
  kGpuWrite,
  kGpuRead,
  kGpuFetchAdd,
  kCount
};
inline constexpr size_t kForms = static_cast<size_t>(Form::kCount);
inline constexpr const char* kFormNames[] = {
    "write",       "inline_write", "empty_write",  "read",        "fetch_add", "chain",
    "shared_send", "shared_imm",   "shared_empty", "shared_bare", "own_send",  "own_imm",
    "own_empty",   "own_bare",     "gpu_register", "gpu_write",   "gpu_read",  "gpu_fetch_add"};
static_assert(std::size(kFormNames) == kForms);

enum class Verdict : uint8_t {
  kNotTried,
  kNotOffered,  // the device says so itself
  kWorks,
  kRefused,   // by the call; `code` is its errno
  kFailed,    // in a completion; `code` is its status
  kNoAnswer,  // no completion in time, or one that says that no answer came
  kWrong,     // bytes, immediate, length or kind of completion
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
  int64_t patience_ns = 0;  // for each form; a device that lets two wait is not tried further
  // Also what the transport would not use here: a queue pair's own receive queue beside a shared one that
  // works, receives without a piece where they are not relied on.
  bool all_forms = false;
  // At least kGpuBytes of a GPU's memory; null: none. By a dma-buf of which it is the start, or by pointer.
  static constexpr size_t kGpuBytes = 8192;
  void* gpu_memory = nullptr;
  int dmabuf = -1;
};

// Fails into the result alone; what verbs refuse is logged at kInfo.
SelfTestResult test_device(Device& device, const SelfTestOptions& options);

// What the transport may ask of a device.
struct Abilities {
  std::string unusable = {};  // why no connection can be made on it; empty: it can
  bool shared_receives = true, empty_receives = false, inline_writes = true, empty_writes = true;
  bool fetch_add = false;
  std::string advice = {};  // what was found and what happens instead; empty: all is as the device says
};

// `untested`: what is believed where nothing was tried.
Abilities judge(const SelfTestResult& result, Abilities untested);

}  // namespace verbena::verbs
