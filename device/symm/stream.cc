#include "device/symm/stream.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/cuda_api.h"
#include "base/log.h"

namespace verbena::symm {
namespace {

using namespace ::verbena::cuda;  // NVIDIA's names
using base::fail;
using base::Outcome;
using base::Status;

#ifdef VERBENA_STREAM_KERNEL
constexpr char kKernel[] =
#include VERBENA_STREAM_KERNEL
    ;

base::Result<CUfunction> load(const base::CudaApi& cuda) {
  const base::RelaxedCapture relaxed(cuda);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUresult result = cuda.cuModuleLoadDataEx(&module, kKernel, 0, nullptr, nullptr);
  if (result == CUDA_SUCCESS) result = cuda.cuModuleGetFunction(&function, module, "verbena_stream_call");
  if (result == CUDA_SUCCESS) return function;
  return fail(Status::kCuda, "symm: the kernel that executes calls on streams cannot be loaded: %s",
              base::describe_cuda(result));
}
#else
base::Result<CUfunction> load(const base::CudaApi&) {
  return fail(Status::kInvalidUsage,
              "symm: calls on streams are not available, because this build of the library does not contain "
              "their kernel. Build the library with clang 16 to 19");
}
#endif

// One module for each CUDA context. They are never unloaded, because kernels may still run.
base::Result<CUfunction> find_kernel(const base::CudaApi& cuda) {
  static std::mutex mutex;
  static std::map<CUcontext, CUfunction> loaded;
  CUcontext context = nullptr;
  if (cuda.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr)
    return fail(Status::kInvalidUsage,
                "symm: a call on a stream failed, because no GPU is current. Call cudaSetDevice() first");
  const std::lock_guard lock(mutex);
  const auto found = loaded.find(context);
  if (found != loaded.end()) return found->second;
  auto function = load(cuda);
  if (function) loaded[context] = *function;
  return function;
}

bool is_in_heap(const SymmContext& context, uint64_t begin, uint64_t length_bytes) {
  return begin >= context.heap_begin && begin <= context.heap_end && length_bytes <= context.heap_end - begin;
}

bool reaches(const SymmContext& context, const Team& team, int32_t peer) {
  return team.delta_bytes(static_cast<uint32_t>(peer)) != kSymmOutOfReach || context.has_remote == 0;
}

Outcome refuse(const Team& team, const char* what, long long number) {
  return fail(Status::kInvalidArgument, "symm: call on a stream for %s: %s %lld does not exist",
              team.name().c_str(), what, number);
}

bool is_copy_call(const StreamCall& call) {
  using enum StreamCall::Kind;
  return call.kind == kPut || call.kind == kGet || call.kind == kPutPieces;
}

struct Range {
  uint64_t destination, source, length_bytes;
  bool is_put;
};
Outcome check_range(const Team& team, const Range& range, bool needs_network) {
  const SymmContext& context = team.context();
  const uint64_t there = range.is_put ? range.destination : range.source;
  const uint64_t here = range.is_put ? range.source : range.destination;
  if (is_in_heap(context, there, range.length_bytes) &&
      (!needs_network || is_in_heap(context, here, range.length_bytes)))
    return {};
  return fail(
      Status::kInvalidArgument,
      "symm: call on a stream for %s: the range of %llu bytes from 0x%llx to 0x%llx is not inside a window",
      team.name().c_str(), static_cast<unsigned long long>(range.length_bytes),
      static_cast<unsigned long long>(range.source), static_cast<unsigned long long>(range.destination));
}

// Checks everything for which the kernel would return kInvalid or kUnreachable, because nobody reads the
// kernel's result.
Outcome check_call(const Team& team, const StreamCall& call) {
  using enum StreamCall::Kind;
  const SymmContext& context = team.context();
  const bool is_copy = is_copy_call(call);
  if (call.kind == kBarrier && call.number >= kSymmBarriers) return refuse(team, "barrier", call.number);
  if ((call.kind == kSignal || call.kind == kWait) && call.number >= kSymmSignals)
    return refuse(team, "signal", call.number);
  const bool has_peer = call.kind == kSignal || is_copy;
  if (has_peer && (call.peer < 0 || call.peer >= context.team_size)) return refuse(team, "rank", call.peer);
  if (call.kind == kSignal && call.operation > static_cast<uint32_t>(SymmSignalOperation::kIncrement))
    return refuse(team, "operation", call.operation);
  if (call.kind == kWait && (call.operation < static_cast<uint32_t>(SymmCompare::kEqual) ||
                             call.operation > static_cast<uint32_t>(SymmCompare::kLessEqual)))
    return refuse(team, "comparison", call.operation);
  const bool needs_network =
      context.has_remote != 0 && (!has_peer || !reaches(context, team, call.peer)) && call.kind != kWait;
  if (context.has_remote != 0 && context.type != kSymmVerbena && (needs_network || call.kind == kWait)) {
    return fail(Status::kInvalidUsage,
                "symm: call on a stream for %s: some members are only reachable over the network of the "
                "heap's library (type %d), which calls on streams cannot use. Launch your own kernel with a "
                "context of this type instead",
                team.name().c_str(), context.type);
  }
  if (!is_copy) return {};
  if (call.kind != kPutPieces)
    return check_range(team, {call.destination, call.source, call.length_bytes, call.kind == kPut},
                       needs_network);
  for (uint64_t i = 0; i < call.value; ++i) {
    const SymmPiece& piece = call.pieces[i];
    const Range range{reinterpret_cast<uint64_t>(piece.destination), reinterpret_cast<uint64_t>(piece.source),
                      piece.length_bytes, true};
    if (auto possible = check_range(team, range, needs_network); !possible) return possible;
  }
  return {};
}

uint32_t count_blocks(const Team& team, const StreamCall& call) {
  // Copies by a NIC need only one block, which makes one request.
  if (!is_copy_call(call) || !reaches(team.context(), team, call.peer)) return 1;
  if (call.kind == StreamCall::Kind::kPutPieces) return static_cast<uint32_t>(call.value);
  const uint64_t parts = (call.length_bytes + kStreamBlockBytes - 1) / kStreamBlockBytes;
  return static_cast<uint32_t>(std::clamp<uint64_t>(parts, 1, kStreamBlocks));
}

Outcome launch(const Team& team, const StreamCall& call, void* stream) {
  const base::CudaApi* const cuda = base::find_cuda();
  if (cuda == nullptr || cuda->cuLaunchKernel == nullptr || cuda->cuModuleLoadDataEx == nullptr ||
      cuda->cuModuleGetFunction == nullptr)
    return fail(Status::kInvalidUsage,
                "symm: a call on a stream needs a GPU, but no CUDA driver (libcuda.so.1) was found");
  const auto function = find_kernel(*cuda);
  if (!function) return function.error();
  const SymmContext* context = team.device_context();
  StreamCall given = call;
  void* parameters[] = {&context, &given};
  const CUresult result = cuda->cuLaunchKernel(*function, count_blocks(team, call), 1, 1, kStreamThreads, 1,
                                               1, 0, static_cast<CUstream>(stream), parameters, nullptr);
  if (result == CUDA_SUCCESS) return {};
  return fail(Status::kCuda, "symm: call on a stream for %s: %s", team.name().c_str(),
              base::describe_cuda(result));
}

}  // namespace

Outcome enqueue_calls(const Team& team, std::span<const StreamCall> calls, void* stream) {
  for (const StreamCall& call : calls)
    if (auto possible = check_call(team, call); !possible) return possible;
  for (const StreamCall& call : calls)
    if (auto launched = launch(team, call, stream); !launched) return launched;
  return {};
}

}  // namespace verbena::symm
