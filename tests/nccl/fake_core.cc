#include "nccl/fake_core.h"

namespace verbena::nccl {
namespace testing {

FakeCore& fake_core() {
  static FakeCore core;
  return core;
}

std::ostream& operator<<(std::ostream& out, const Call& call) {
  out << call.function << '(' << std::hex;
  for (const uint64_t word : call.words) out << " 0x" << word;
  return out << std::dec << " )";
}

namespace {

template <typename... Arguments>
Outcome record(const char* function, Arguments... arguments) {
  fake_core().calls.push_back({function, {to_word(arguments)...}});
  return fake_core().answer();
}

template <typename... Arguments>
Outcome record_and_produce(const char* function, void** output, Arguments... arguments) {
  const Outcome outcome = record(function, arguments...);
  if (outcome) *output = fake_core().produced;
  return outcome;
}

}  // namespace
}  // namespace testing

using testing::fake_core;
using testing::record;
using testing::record_and_produce;

Outcome init(void** context, uint64_t communicator_id, int traffic_class, abi::DebugLogger logger,
             abi::ProfilerCallback profiler, int abi_version) {
  return record_and_produce("init", context, communicator_id, traffic_class, logger, profiler, abi_version);
}
Outcome finalize(void* context) {
  return record("finalize", context);
}
bool is_idle(void*) {
  return fake_core().is_idle;
}

Outcome count_devices(int* count) {
  *count = 3;
  return record("count_devices", count);
}
Outcome get_properties(int device, abi::ncclNetProperties_v12_t* properties) {
  *properties = fake_core().properties;
  return record("get_properties", device);
}
Outcome make_virtual_device(int* device, const abi::ncclNetVDeviceProps_v12_t& members) {
  fake_core().members = members;
  return record("make_virtual_device", device);
}
Outcome set_attributes(void* context, const abi::NetAttr& attributes) {
  fake_core().attributes = attributes;
  return record("set_attributes", context);
}

Outcome listen(void* context, int device, void* handle, void** listen_comm) {
  return record_and_produce("listen", listen_comm, context, device, handle);
}
Outcome connect(void* context, int device, int traffic_class, void* handle, void** send_comm) {
  return record_and_produce("connect", send_comm, context, device, traffic_class, handle);
}
Outcome accept(void* listen_comm, void** receive_comm, abi::NetDeviceHandle** device_handle) {
  return record_and_produce("accept", receive_comm, listen_comm, device_handle);
}
Outcome close_send(void* send_comm) {
  return record("close_send", send_comm);
}
Outcome close_receive(void* receive_comm) {
  return record("close_receive", receive_comm);
}
Outcome close_listen(void* listen_comm) {
  return record("close_listen", listen_comm);
}

Outcome register_memory(void* comm, void* data, size_t length_bytes, int type, void** mhandle) {
  return record_and_produce("register_memory", mhandle, comm, data, length_bytes, type);
}
Outcome register_dmabuf(void* comm, void* data, size_t length_bytes, int type, uint64_t offset_bytes, int fd,
                        void** mhandle) {
  return record_and_produce("register_dmabuf", mhandle, comm, data, length_bytes, type, offset_bytes, fd);
}
Outcome deregister_memory(void* comm, void* mhandle) {
  return record("deregister_memory", comm, mhandle);
}

std::atomic<bool> is_profiling{false};

void name_parent(void* comm, void* phandle) {
  static_cast<void>(record("name_parent", comm, phandle));
}

Outcome isend(void* send_comm, void* data, size_t length_bytes, int tag, void* mhandle, void** request) {
  return record_and_produce("isend", request, send_comm, data, length_bytes, tag, mhandle);
}
Outcome irecv(void* receive_comm, int count, void** data, const size_t* lengths_bytes, const int* tags,
              void** mhandles, void** request) {
  fake_core().request_on_entry = testing::to_word(*request);
  return record_and_produce("irecv", request, receive_comm, count, data, lengths_bytes[0], tags, mhandles);
}
Outcome iflush(void* receive_comm, int count, void** data, const int* lengths_bytes, void** mhandles,
               void** request) {
  return record_and_produce("iflush", request, receive_comm, count, data, lengths_bytes, mhandles);
}
Outcome test(void* request, int* done, int* lengths_bytes) {
  const Outcome outcome = record("test", request, done, lengths_bytes);
  if (!outcome) return outcome;
  *done = fake_core().produced_done;
  if (lengths_bytes != nullptr) *lengths_bytes = fake_core().produced_size_bytes;
  return outcome;
}
Outcome irecv_consumed(void* receive_comm, int count, void* request) {
  return record("irecv_consumed", receive_comm, count, request);
}

}  // namespace verbena::nccl
