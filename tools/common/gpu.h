#pragma once
#include <functional>
#include <string>
#include <vector>

#include "common/cuda_driver.h"

namespace verbena::tools {

// The primary context of one GPU, with a stream and event timing. The constructor makes it current on the
// calling thread. Waits have a time limit. Nothing is released before the process ends.
class Gpu {
 public:
  // Called repeatedly while the GPU works; throws to end the wait if something else has failed.
  using Watch = std::function<void()>;

  Gpu(const CudaDriver& driver, int ordinal);
  // Makes the context current on another thread than the one that constructed the object.
  void make_current();

  // One of CUDA's CU_DEVICE_ATTRIBUTE numbers.
  int attribute(int number) const;

  const std::string& name() const { return name_; }
  const CudaDriver& driver() const { return driver_; }
  CUstream stream() const { return stream_; }

  CUdeviceptr allocate(size_t length_bytes);
  void fill_words(CUdeviceptr target, uint32_t value, uint64_t count);
  void copy(CUdeviceptr target, CUdeviceptr source, size_t length_bytes);
  void write(CUdeviceptr target, const void* source, size_t length_bytes, double timeout_s);
  void read(void* target, CUdeviceptr source, size_t length_bytes, double timeout_s);

  // Waits until the stream, or another one, is empty; throws HangError after `timeout_s`.
  void wait(double timeout_s, const Watch& watch = nullptr) { wait(stream_, timeout_s, watch); }
  void wait(CUstream stream, double timeout_s, const Watch& watch = nullptr);

  // Records time mark `index` of a series.
  void mark(size_t index);
  // Microseconds between mark `index` and the next.
  double measure_us(size_t index);

 private:
  const CudaDriver& driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  std::string name_;
  std::vector<CUevent> events_;
};

// A captured part of the stream, for replay.
class Graph {
 public:
  Graph(Gpu& gpu, const std::function<void()>& enqueue);
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  void launch();

 private:
  Gpu& gpu_;
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

}  // namespace verbena::tools
