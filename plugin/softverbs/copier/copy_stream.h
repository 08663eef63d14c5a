// The forms in which a copy can be given to CUDA's driver, and a stream that gives them.
#pragma once

#include <span>
#include <vector>

#include "softverbs/copier/driver.h"
#include "softverbs/copier/protocol.h"

namespace verbena::softverbs::copier {

// How a copy can be given to the driver. The forms differ in who copies: the GPU's copy engines, which work
// beside any kernel, or a channel that shares the SMs with the application's kernels and waits for a time
// slice of some 2.4 ms while one of them spins. Which form takes which is the driver's choice; the self-test
// measures it.
enum class Form : uint8_t {
  kPlain,        // cuMemcpyAsync
  kRows,         // cuMemcpy2DAsync of contiguous rows; a single aligned word is none, and goes plain
  kWords,        // aligned words stored by the stream; from host memory that the CPU reads now
  kThroughHost,  // to pinned memory, and from there
};
inline constexpr const char* kFormNames[] = {"plain", "rows", "words", "through the host"};

// The two ends of a copy.
enum class Path : uint8_t { kToHost, kToGpu, kWithin, kPeer };
inline constexpr const char* kPathNames[] = {"to the host", "to the GPU", "within the GPU",
                                             "to or from another GPU"};
inline constexpr size_t kPathCount = 4;

inline constexpr uint64_t kWord = sizeof(uint64_t), kMaxWordsBytes = kWord * kMaxWords;

struct WordAt {
  CUdeviceptr address;
  uint64_t value;
};

// A stream of one GPU, and what is under way on it. Used by one thread, with the GPU's context current.
class CopyStream {
 public:
  explicit CopyStream(const Driver& driver) : driver_(driver) {}
  // False, and `why`.
  bool open(std::string& why);

  // Each gives one copy to the driver. kThroughHost is none of these: it is two of them.
  CUresult copy(Form form, CUdeviceptr to, CUdeviceptr from, uint64_t bytes);
  CUresult copy_batch(std::vector<CUdeviceptr>& to, std::vector<CUdeviceptr>& from,
                      std::vector<size_t>& bytes);
  CUresult store(std::span<const WordAt> words);
  CUresult record(CUevent event) const { return driver_.cuEventRecord(event, stream_); }
  CUresult query() const { return driver_.cuStreamQuery(stream_); }
  bool has_batches() const { return driver_.cuMemcpyBatchAsync != nullptr; }
  // An old driver has the function and refuses: nothing is stored after the first refusal.
  bool has_stores() const { return driver_.cuStreamBatchMemOp_v2 != nullptr && !has_refused_; }
  CUstream stream() const { return stream_; }

 private:
  CUresult copy_as_rows(CUdeviceptr to, CUdeviceptr from, uint64_t bytes);
  CUresult copy_in_units(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, uint64_t unit);
  CUresult copy_rows(CUdeviceptr to, CUdeviceptr from, uint64_t width, uint64_t rows);

  const Driver& driver_;
  CUstream stream_ = nullptr;
  bool has_stored_ = false, has_refused_ = false;
};

}  // namespace verbena::softverbs::copier
