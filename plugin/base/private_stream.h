#pragma once

#include "base/cuda_api.h"

namespace verbena::base {

// A stream of our own: work on it neither waits for the application's streams nor holds them up.
class PrivateStream {
 public:
  explicit PrivateStream(const CudaApi& cuda)
      : cuda_(cuda), result_(cuda.create_stream(&stream_, kCudaStreamNonBlocking)) {}
  ~PrivateStream() {
    if (stream_ != nullptr) cuda_.destroy_stream(stream_);
  }
  PrivateStream(const PrivateStream&) = delete;
  PrivateStream& operator=(const PrivateStream&) = delete;

  // Starts `work(stream)` and waits for it.
  template <typename Work>
  CudaResult run(Work work) {
    if (result_ == kCudaSuccess) result_ = work(stream_);
    return result_ == kCudaSuccess ? cuda_.synchronize_stream(stream_) : result_;
  }

 private:
  const CudaApi& cuda_;
  CudaStream stream_ = nullptr;
  CudaResult result_;
};

}  // namespace verbena::base
