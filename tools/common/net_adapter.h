#pragma once
#include <cstring>
#include <limits>
#include <utility>

#include "common/net_plugin.h"
#include "common/table_caller.h"

namespace verbena::tools {

// One adapter for all tables: TableCaller with exceptions.
template <typename V>
class NetAdapter final : public NetPlugin {
 public:
  using Table = typename V::Table;
  explicit NetAdapter(const Table& table) : net_(table) {}

  const char* name() const override { return net_->name; }
  int version() const override { return V::kVersion; }

  void init(abi::DebugLogger logger) override {
    constexpr uint64_t kCommId = 0x76657262;
    check("init", net_.init(&context_, kCommId, abi::kUndefined, logger));
  }

  int count_devices() override {
    int count = 0;
    check("devices", net_->devices(&count));
    return count;
  }

  DeviceProperties read_properties(int device) override {
    // NCCL passes an uninitialised struct. The pattern makes a member visible that the plugin does not set.
    typename V::Properties raw;
    std::memset(static_cast<void*>(&raw), 0xAA, sizeof raw);
    check("getProperties", net_->get_properties(device, &raw));
    DeviceProperties properties;
    if (raw.name != nullptr) properties.name = raw.name;
    if (raw.pci_path != nullptr) properties.pci_path = raw.pci_path;
    properties.guid = raw.guid;
    properties.pointer_support = raw.ptr_support;
    properties.speed_mbps = raw.speed_mbps;
    properties.port = raw.port;
    properties.latency_us = raw.latency_us;
    properties.max_communicators = raw.max_comms;
    properties.max_receives = raw.max_recvs;
    properties.device_type = raw.net_device_type;
    properties.device_version = raw.net_device_version;
    return properties;
  }

  int make_virtual_device(const std::vector<int>& members) override {
    if constexpr (V::kHasVDevice) {
      if (net_->make_vdevice == nullptr) throw ToolError("the plugin has no makeVDevice");
      return make_device_of(members, net_->make_vdevice);
    } else {
      throw ToolError("tables before v9 have no makeVDevice; with --rails, use --abi 9 or newer");
    }
  }

  void set_attributes(const MessageAttributes& attributes) override {
    if constexpr (V::kHasContext) {
      if (net_->set_net_attr == nullptr) return;
      constexpr abi::CommAttr kAny{abi::kUndefined, abi::kUndefined, abi::kUndefined, abi::kUndefined};
      abi::NetAttr raw{kAny, kAny, attributes.operation, attributes.algorithm, attributes.protocol};
      check("setNetAttr", net_->set_net_attr(context_, &raw));
    }
  }

  void* listen(int device, void* handle) override {
    void* comm = nullptr;
    check("listen", net_.listen(context_, device, handle, &comm));
    if (comm == nullptr) throw ToolError("listen succeeded without a listenComm");
    return comm;
  }

  void* connect(int device, void* handle) override {
    void* comm = nullptr;
    abi::NetDeviceHandle* none = nullptr;
    check("connect", net_.connect(context_, device, abi::kUndefined, handle, &comm, &none));
    return comm;
  }

  void* accept(void* listen_comm, abi::NetDeviceHandle** device_handle) override {
    void* comm = nullptr;
    check("accept", net_->accept(listen_comm, &comm, device_handle));
    return comm;
  }

  void close_listen(void* comm) override { check("closeListen", net_->close_listen(comm)); }
  void close_send(void* comm) override { check("closeSend", net_->close_send(comm)); }
  void close_receive(void* comm) override { check("closeRecv", net_->close_recv(comm)); }

  void* register_memory(void* comm, void* data, size_t length_bytes, int type) override {
    void* mhandle = nullptr;
    check_length(length_bytes, V::kVersion == 7);
    check("regMr", net_.reg_mr(comm, data, length_bytes, type, &mhandle));
    return mhandle;
  }

  void* register_dmabuf(void* comm, void* data, size_t length_bytes, int descriptor) override {
    void* mhandle = nullptr;
    constexpr uint64_t kFromTheStart = 0;
    check("regMrDmaBuf",
          net_->reg_mr_dmabuf(comm, data, length_bytes, abi::kPtrCuda, kFromTheStart, descriptor, &mhandle));
    return mhandle;
  }

  void deregister_memory(void* comm, void* mhandle) override {
    check("deregMr", net_->dereg_mr(comm, mhandle));
  }

  void* isend(void* comm, void* data, size_t length_bytes, void* mhandle) override {
    void* request = stale_request();
    check_length(length_bytes, V::kHasIntSizes);
    check("isend", net_.isend(comm, data, length_bytes, kTag, mhandle, &request));
    return checked_request("isend", request, stale_request());
  }

  void* irecv(void* comm, void* data, size_t length_bytes, void* mhandle, bool ll_hint) override {
    int tag = kTag;
    void* const entry =
        ll_hint && V::kHasHint ? reinterpret_cast<void*>(abi::kOptionalRecvCompletion) : stale_request();
    void* request = entry;
    check_length(length_bytes, V::kHasIntSizes);
    check("irecv", net_.irecv(comm, 1, &data, &length_bytes, &tag, &mhandle, &request));
    return checked_request("irecv", request, entry);
  }

  std::optional<size_t> test(void* request) override {
    int done = -1;
    int sizes[abi::kMaxTestSizes] = {};
    check("test", net_->test(request, &done, sizes));
    if (done != 0 && done != 1) throw ToolError("test did not write `done`");
    if (done == 0) return std::nullopt;
    return static_cast<size_t>(sizes[0]);
  }

  void consume(void* comm, void* request) override {
    if (net_->irecv_consumed != nullptr) check("irecvConsumed", net_->irecv_consumed(comm, 1, request));
  }

  void* flush(void* comm, void* data, size_t length_bytes, void* mhandle) override {
    check_length(length_bytes, true);
    auto length = static_cast<int>(length_bytes);
    void* request = stale_request();
    check("iflush", net_->iflush(comm, 1, &data, &length, &mhandle, &request));
    return checked_request("iflush", request, stale_request());
  }

  void finalize() override { check("finalize", net_.finalize(std::exchange(context_, nullptr))); }

 private:
  static constexpr int kTag = 0;

  static void check(const char* call, abi::Result result) {
    if (result != abi::kSuccess) throw CallError(call, result);
  }

  // A value of *request as NCCL passes it: an address from an earlier use, never the hint.
  static void* stale_request() { return reinterpret_cast<void*>(uintptr_t{0x5A5A5A5A5A5A5A50}); }

  static void* checked_request(const char* call, void* request, const void* entry) {
    if (request == entry) throw ToolError(std::string(call) + " did not write *request");
    return request;
  }

  static void check_length(size_t length_bytes, bool is_int) {
    if (is_int && length_bytes > static_cast<size_t>(std::numeric_limits<int>::max()))
      throw ToolError("messages must be shorter than 2 GiB with tables v7 and v8");
  }

  template <typename Members>
  int make_device_of(const std::vector<int>& members, abi::Result (*make)(int*, Members*)) {
    if (members.size() > static_cast<size_t>(Members::kCapacity)) {
      throw ToolError("v" + std::to_string(V::kVersion) + " joins at most " +
                      std::to_string(Members::kCapacity) + " devices");
    }
    Members raw{};
    raw.ndevs = static_cast<int>(members.size());
    for (size_t index = 0; index < members.size(); ++index) raw.devs[index] = members[index];
    int device = -1;
    check("makeVDevice", make(&device, &raw));
    return device;
  }

  TableCaller<V> net_;
  void* context_ = nullptr;
};

}  // namespace verbena::tools
