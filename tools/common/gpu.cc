#include "common/gpu.h"

#include <sched.h>

#include "common/clock.h"
#include "common/error.h"

namespace verbena::tools {

Gpu::Gpu(const CudaDriver& driver, int ordinal) : driver_(driver) {
  char name[256] = "";
  driver_.check(driver_.cuInit(0), "cuInit");
  driver_.check(driver_.cuDeviceGet(&device_, ordinal), "cuDeviceGet");
  driver_.check(driver_.cuDeviceGetName(name, sizeof name, device_), "cuDeviceGetName");
  driver_.check(driver_.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
  make_current();
  driver_.check(driver_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  name_ = name;
}

// NCCL asks the CUDA runtime for the current device, which follows the current context.
void Gpu::make_current() {
  driver_.check(driver_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
}

int Gpu::attribute(int number) const {
  int value = 0;
  driver_.check(driver_.cuDeviceGetAttribute(&value, number, device_), "cuDeviceGetAttribute");
  return value;
}

CUdeviceptr Gpu::allocate(size_t length_bytes) {
  CUdeviceptr address = 0;
  driver_.check(driver_.cuMemAlloc_v2(&address, length_bytes), "cuMemAlloc");
  return address;
}

void Gpu::fill_words(CUdeviceptr target, uint32_t value, uint64_t count) {
  driver_.check(driver_.cuMemsetD32Async(target, value, count, stream_), "cuMemsetD32Async");
}

void Gpu::copy(CUdeviceptr target, CUdeviceptr source, size_t length_bytes) {
  driver_.check(driver_.cuMemcpyAsync(target, source, length_bytes, stream_), "cuMemcpyAsync");
}

void Gpu::write(CUdeviceptr target, const void* source, size_t length_bytes, double timeout_s) {
  driver_.check(driver_.cuMemcpyHtoDAsync_v2(target, source, length_bytes, stream_), "cuMemcpyHtoDAsync");
  wait(timeout_s);
}

// Not into the stream at once: a copy to memory that is not pinned may keep other threads out of the driver
// until what is before it has ended, and softverbs, for whose copies that may wait, needs the driver.
void Gpu::read(void* target, CUdeviceptr source, size_t length_bytes, double timeout_s) {
  wait(timeout_s);
  driver_.check(driver_.cuMemcpyDtoHAsync_v2(target, source, length_bytes, stream_), "cuMemcpyDtoHAsync");
  wait(timeout_s);
}

void Gpu::wait(CUstream stream, double timeout_s, const Watch& watch) {
  constexpr unsigned kRoundsPerWatch = 256;
  const int64_t deadline_ns = deadline_after_s(timeout_s);
  for (unsigned round = 1;; ++round) {
    const CUresult status = driver_.cuStreamQuery(stream);
    if (status == CUDA_SUCCESS) return;
    if (status != CUDA_ERROR_NOT_READY) driver_.check(status, "the stream");
    if (round % kRoundsPerWatch != 0) continue;
    if (watch) watch();
    if (now_ns() > deadline_ns) throw HangError("the GPU has not finished in " + format_seconds(timeout_s));
    sched_yield();
  }
}

void Gpu::mark(size_t index) {
  while (events_.size() <= index) {
    CUevent event = nullptr;
    driver_.check(driver_.cuEventCreate(&event, 0), "cuEventCreate");
    events_.push_back(event);
  }
  driver_.check(driver_.cuEventRecord(events_[index], stream_), "cuEventRecord");
}

double Gpu::measure_us(size_t index) {
  float milliseconds = 0;
  driver_.check(driver_.cuEventElapsedTime(&milliseconds, events_.at(index), events_.at(index + 1)),
                "cuEventElapsedTime");
  return static_cast<double>(milliseconds) * 1000;
}

Graph::Graph(Gpu& gpu, const std::function<void()>& enqueue) : gpu_(gpu) {
  const CudaDriver& driver = gpu_.driver();
  driver.check(driver.cuStreamBeginCapture_v2(gpu_.stream(), CU_STREAM_CAPTURE_MODE_RELAXED),
               "cuStreamBeginCapture");
  enqueue();
  driver.check(driver.cuStreamEndCapture(gpu_.stream(), &graph_), "cuStreamEndCapture");
  driver.check(driver.cuGraphInstantiateWithFlags(&exec_, graph_, 0), "cuGraphInstantiate");
}

Graph::~Graph() {
  if (exec_ != nullptr) gpu_.driver().cuGraphExecDestroy(exec_);
  if (graph_ != nullptr) gpu_.driver().cuGraphDestroy(graph_);
}

void Graph::launch() {
  gpu_.driver().check(gpu_.driver().cuGraphLaunch(exec_, gpu_.stream()), "cuGraphLaunch");
}

}  // namespace verbena::tools
