#pragma once
#include <functional>
#include <string>
#include <vector>

#include "common/cuda_driver.h"

namespace verbena::tools {

// One GPU's primary context, made current on this thread, with a stream and event timing. Waits are bounded.
// Lives as long as its process: nothing is given back before the process ends.
class Gpu {
 public:
  // Polled while the GPU works: throws when something else has failed.
  using Watch = std::function<void()>;

  Gpu(const CudaDriver& driver, int ordinal);

  // One of CUDA's CU_DEVICE_ATTRIBUTE numbers.
  int attribute(int number) const;

  const std::string& name() const { return name_; }
  const CudaDriver& driver() const { return driver_; }
  CudaStream stream() const { return stream_; }

  CudaAddress allocate(size_t length_bytes);
  void fill_words(CudaAddress target, uint32_t value, uint64_t count);
  void write(CudaAddress target, const void* source, size_t length_bytes, double timeout_s);
  void read(void* target, CudaAddress source, size_t length_bytes, double timeout_s);

  // Until the stream is empty; throws HangError after `timeout_s`.
  void wait(double timeout_s, const Watch& watch = nullptr);

  // Records time mark `index` of a series.
  void mark(size_t index);
  // Microseconds between mark `index` and the next.
  double measure_us(size_t index);

 private:
  const CudaDriver& driver_;
  CudaDevice device_ = 0;
  CudaContext context_ = nullptr;
  CudaStream stream_ = nullptr;
  std::string name_;
  std::vector<CudaEvent> events_;
};

// A captured piece of the stream, to be replayed.
class Graph {
 public:
  Graph(Gpu& gpu, const std::function<void()>& enqueue);
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  void launch();

 private:
  Gpu& gpu_;
  CudaGraph graph_ = nullptr;
  CudaGraphExec exec_ = nullptr;
};

}  // namespace verbena::tools
