// The forms in which a copy can be passed to CUDA's driver, and a stream that accepts such copies.
#pragma once

#include <span>
#include <vector>

#include "softverbs/copier/driver.h"
#include "softverbs/copier/protocol.h"

namespace verbena::softverbs::copier {

// The forms in which a copy can be passed to the driver. The GPU executes a copy in one of two ways: with its
// copy engines, in parallel with any kernel; or through a channel that shares the SMs with the application's
// kernels. While such a kernel spins, the channel waits for a time slice of about 2.4 ms. The driver decides
// which of the two a form uses; the self-test measures the forms.
enum class Form : uint8_t {
  kPlain,        // cuMemcpyAsync
  kRows,         // cuMemcpy2DAsync of contiguous rows; a single aligned word is copied by cuMemcpyAsync
  kWords,        // the stream stores aligned words, which the CPU reads from host memory at the call
  kThroughHost,  // copied to pinned memory first, and from there to the destination
};
inline constexpr const char* kFormNames[] = {"plain", "rows", "words", "through the host"};

// The kinds of memory at the two ends of a copy.
enum class Path : uint8_t { kToHost, kToGpu, kWithin, kPeer };
inline constexpr const char* kPathNames[] = {"to the host", "to the GPU", "within the GPU",
                                             "to or from another GPU"};
inline constexpr size_t kPathCount = 4;

inline constexpr uint64_t kWord = sizeof(uint64_t), kMaxWordsBytes = kWord * kMaxWords;

struct WordAt {
  CUdeviceptr address;
  uint64_t value;
};

// A stream of one GPU and its outstanding work. Used by one thread, with the GPU's context current.
class CopyStream {
 public:
  explicit CopyStream(const Driver& driver) : driver_(driver) {}
  // Opens the stream. Returns false, and the reason in `why`, on failure.
  bool open(std::string& why);

  // Each function passes one copy to the driver. kThroughHost has no function here, because it consists of
  // two copies.
  CUresult copy(Form form, CUdeviceptr to, CUdeviceptr from, uint64_t bytes);
  CUresult copy_batch(std::vector<CUdeviceptr>& to, std::vector<CUdeviceptr>& from,
                      std::vector<size_t>& bytes);
  CUresult store(std::span<const WordAt> words);
  CUresult record(CUevent event) const { return driver_.cuEventRecord(event, stream_); }
  CUresult query() const { return driver_.cuStreamQuery(stream_); }
  // Returns whether the driver can store words. An old driver may have the function but reject the call.
  // After the first rejection no further store is tried.
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
