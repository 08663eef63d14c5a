#pragma once

#include "base/cuda_api.h"

namespace verbena::base {

// A separate CUDA stream: work on it neither waits for the application's streams nor delays them.
class PrivateStream {
 public:
  explicit PrivateStream(const CudaApi& cuda)
      : cuda_(cuda), result_(cuda.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING)) {}
  ~PrivateStream() {
    if (stream_ != nullptr) cuda_.cuStreamDestroy_v2(stream_);
  }
  PrivateStream(const PrivateStream&) = delete;
  PrivateStream& operator=(const PrivateStream&) = delete;

  // Starts `work(stream)` and waits for it.
  template <typename Work>
  CUresult run(Work work) {
    if (result_ == CUDA_SUCCESS) result_ = work(stream_);
    return result_ == CUDA_SUCCESS ? cuda_.cuStreamSynchronize(stream_) : result_;
  }

 private:
  const CudaApi& cuda_;
  CUstream stream_ = nullptr;
  CUresult result_;
};

}  // namespace verbena::base
