#include "common/gpu.h"

#include <sched.h>

#include "common/clock.h"
#include "common/error.h"

namespace verbena::tools {

Gpu::Gpu(const CudaDriver& driver, int ordinal) : driver_(driver) {
  char name[256] = "";
  driver_.check(driver_.init(0), "cuInit");
  driver_.check(driver_.get_device(&device_, ordinal), "cuDeviceGet");
  driver_.check(driver_.get_device_name(name, sizeof name, device_), "cuDeviceGetName");
  driver_.check(driver_.retain_context(&context_, device_), "cuDevicePrimaryCtxRetain");
  // NCCL asks the CUDA runtime for the current device, which follows the current context.
  driver_.check(driver_.set_context(context_), "cuCtxSetCurrent");
  driver_.check(driver_.create_stream(&stream_, kCudaStreamNonBlocking), "cuStreamCreate");
  name_ = name;
}

int Gpu::attribute(int number) const {
  int value = 0;
  driver_.check(driver_.get_attribute(&value, number, device_), "cuDeviceGetAttribute");
  return value;
}

CudaAddress Gpu::allocate(size_t length_bytes) {
  CudaAddress address = 0;
  driver_.check(driver_.allocate(&address, length_bytes), "cuMemAlloc");
  return address;
}

void Gpu::fill_words(CudaAddress target, uint32_t value, uint64_t count) {
  driver_.check(driver_.fill_words_async(target, value, count, stream_), "cuMemsetD32Async");
}

void Gpu::write(CudaAddress target, const void* source, size_t length_bytes, double timeout_s) {
  driver_.check(driver_.copy_to_device_async(target, source, length_bytes, stream_), "cuMemcpyHtoDAsync");
  wait(timeout_s);
}

void Gpu::read(void* target, CudaAddress source, size_t length_bytes, double timeout_s) {
  driver_.check(driver_.copy_to_host_async(target, source, length_bytes, stream_), "cuMemcpyDtoHAsync");
  wait(timeout_s);
}

void Gpu::wait(double timeout_s, const Watch& watch) {
  constexpr unsigned kRoundsPerWatch = 256;
  const int64_t deadline_ns = deadline_after_s(timeout_s);
  for (unsigned round = 1;; ++round) {
    const CudaStatus status = driver_.query_stream(stream_);
    if (status == kCudaSuccess) return;
    if (status != kCudaNotReady) driver_.check(status, "the stream");
    if (round % kRoundsPerWatch != 0) continue;
    if (watch) watch();
    if (now_ns() > deadline_ns) throw HangError("the GPU has not finished in " + format_seconds(timeout_s));
    sched_yield();
  }
}

void Gpu::mark(size_t index) {
  while (events_.size() <= index) {
    CudaEvent event = nullptr;
    driver_.check(driver_.create_event(&event, 0), "cuEventCreate");
    events_.push_back(event);
  }
  driver_.check(driver_.record_event(events_[index], stream_), "cuEventRecord");
}

double Gpu::measure_us(size_t index) {
  float milliseconds = 0;
  driver_.check(driver_.measure_events(&milliseconds, events_.at(index), events_.at(index + 1)),
                "cuEventElapsedTime");
  return static_cast<double>(milliseconds) * 1000;
}

Graph::Graph(Gpu& gpu, const std::function<void()>& enqueue) : gpu_(gpu) {
  const CudaDriver& driver = gpu_.driver();
  driver.check(driver.begin_capture(gpu_.stream(), kCudaCaptureRelaxed), "cuStreamBeginCapture");
  enqueue();
  driver.check(driver.end_capture(gpu_.stream(), &graph_), "cuStreamEndCapture");
  driver.check(driver.instantiate_graph(&exec_, graph_, 0), "cuGraphInstantiate");
}

Graph::~Graph() {
  if (exec_ != nullptr) gpu_.driver().destroy_graph_exec(exec_);
  if (graph_ != nullptr) gpu_.driver().destroy_graph(graph_);
}

void Graph::launch() {
  gpu_.driver().check(gpu_.driver().launch_graph(exec_, gpu_.stream()), "cuGraphLaunch");
}

}  // namespace verbena::tools
