#pragma once
#include <cstring>
#include <limits>
#include <utility>

#include "common/error.h"
#include "common/net_plugin.h"
#include "nccl/abi_tables.h"

namespace verbena::tools {

const char* describe_result(abi::Result result);
[[noreturn]] void throw_failed_call(const char* call, abi::Result result);

// One adapter for all tables: where a version differs from the next, the call is written twice, nothing else.
template <typename Net, int kVersion>
class NetAdapter final : public NetPlugin {
 public:
  explicit NetAdapter(const Net& net) : net_(net) {}

  const char* name() const override { return net_.name; }
  int version() const override { return kVersion; }

  void init(abi::DebugLogger logger) override {
    if constexpr (kVersion >= 11) {
      constexpr uint64_t kCommId = 0x76657262;
      abi::NetCommConfig config{abi::kUndefined};
      check("init", net_.init(&context_, kCommId, &config, logger, nullptr));
    } else if constexpr (kVersion == 10) {
      check("init", net_.init(logger, nullptr));
    } else {
      check("init", net_.init(logger));
    }
  }

  int count_devices() override {
    int count = 0;
    check("devices", net_.devices(&count));
    return count;
  }

  DeviceProperties read_properties(int device) override {
    // NCCL passes a struct full of stale bytes; a member that the plugin forgets then shows.
    typename Net::Properties raw;
    std::memset(static_cast<void*>(&raw), 0xAA, sizeof raw);
    check("getProperties", net_.get_properties(device, &raw));
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
    if constexpr (kVersion >= 9) {
      if (net_.make_vdevice == nullptr) throw ToolError("the plugin has no makeVDevice");
      return make_device_of(members, net_.make_vdevice);
    } else {
      throw ToolError("tables before v9 have no makeVDevice: use --abi 9 or newer with --rails");
    }
  }

  void set_attributes(const MessageAttributes& attributes) override {
    if constexpr (kVersion >= 11) {
      if (net_.set_net_attr == nullptr) return;
      constexpr abi::CommAttr kAny{abi::kUndefined, abi::kUndefined, abi::kUndefined, abi::kUndefined};
      abi::NetAttr raw{kAny, kAny, attributes.operation, attributes.algorithm, attributes.protocol};
      check("setNetAttr", net_.set_net_attr(context_, &raw));
    }
  }

  void* listen(int device, void* handle) override {
    void* comm = nullptr;
    if constexpr (kVersion >= 11) {
      check("listen", net_.listen(context_, device, handle, &comm));
    } else {
      check("listen", net_.listen(device, handle, &comm));
    }
    if (comm == nullptr) throw ToolError("listen succeeded without a listenComm");
    return comm;
  }

  void* connect(int device, void* handle) override {
    void* comm = nullptr;
    abi::NetDeviceHandle* none = nullptr;
    if constexpr (kVersion >= 11) {
      check("connect", net_.connect(context_, device, handle, &comm, &none));
    } else if constexpr (kVersion == 10) {
      abi::NetCommConfig config{abi::kUndefined};
      check("connect", net_.connect(device, &config, handle, &comm, &none));
    } else {
      check("connect", net_.connect(device, handle, &comm, &none));
    }
    return comm;
  }

  void* accept(void* listen_comm, abi::NetDeviceHandle** device_handle) override {
    void* comm = nullptr;
    check("accept", net_.accept(listen_comm, &comm, device_handle));
    return comm;
  }

  void close_listen(void* comm) override { check("closeListen", net_.close_listen(comm)); }
  void close_send(void* comm) override { check("closeSend", net_.close_send(comm)); }
  void close_receive(void* comm) override { check("closeRecv", net_.close_recv(comm)); }

  void* register_memory(void* comm, void* data, size_t length_bytes, int type) override {
    void* mhandle = nullptr;
    if constexpr (kVersion == 7) {
      check("regMr", net_.reg_mr(comm, data, narrow(length_bytes), type, &mhandle));
    } else {
      check("regMr", net_.reg_mr(comm, data, length_bytes, type, &mhandle));
    }
    return mhandle;
  }

  void* register_dmabuf(void* comm, void* data, size_t length_bytes, int descriptor) override {
    void* mhandle = nullptr;
    constexpr uint64_t kFromTheStart = 0;
    check("regMrDmaBuf",
          net_.reg_mr_dmabuf(comm, data, length_bytes, abi::kPtrCuda, kFromTheStart, descriptor, &mhandle));
    return mhandle;
  }

  void deregister_memory(void* comm, void* mhandle) override {
    check("deregMr", net_.dereg_mr(comm, mhandle));
  }

  void* isend(void* comm, void* data, size_t length_bytes, void* mhandle) override {
    void* request = stale_request();
    if constexpr (kVersion >= 10) {
      check("isend", net_.isend(comm, data, length_bytes, kTag, mhandle, nullptr, &request));
    } else if constexpr (kVersion == 9) {
      check("isend", net_.isend(comm, data, length_bytes, kTag, mhandle, &request));
    } else {
      check("isend", net_.isend(comm, data, narrow(length_bytes), kTag, mhandle, &request));
    }
    return checked_request("isend", request, stale_request());
  }

  void* irecv(void* comm, void* data, size_t length_bytes, void* mhandle, bool ll_hint) override {
    int tag = kTag;
    void* const entry =
        ll_hint && kVersion >= 9 ? reinterpret_cast<void*>(abi::kOptionalRecvCompletion) : stale_request();
    void* request = entry;
    if constexpr (kVersion >= 10) {
      void* phandle = nullptr;
      check("irecv", net_.irecv(comm, 1, &data, &length_bytes, &tag, &mhandle, &phandle, &request));
    } else if constexpr (kVersion == 9) {
      check("irecv", net_.irecv(comm, 1, &data, &length_bytes, &tag, &mhandle, &request));
    } else {
      int length = narrow(length_bytes);
      check("irecv", net_.irecv(comm, 1, &data, &length, &tag, &mhandle, &request));
    }
    return checked_request("irecv", request, entry);
  }

  std::optional<size_t> test(void* request) override {
    int done = -1;
    int sizes[abi::kMaxTestSizes] = {};
    check("test", net_.test(request, &done, sizes));
    if (done != 0 && done != 1) throw ToolError("test left `done` unwritten");
    if (done == 0) return std::nullopt;
    return static_cast<size_t>(sizes[0]);
  }

  void consume(void* comm, void* request) override {
    if (net_.irecv_consumed != nullptr) check("irecvConsumed", net_.irecv_consumed(comm, 1, request));
  }

  void* flush(void* comm, void* data, size_t length_bytes, void* mhandle) override {
    int length = narrow(length_bytes);
    void* request = stale_request();
    check("iflush", net_.iflush(comm, 1, &data, &length, &mhandle, &request));
    return checked_request("iflush", request, stale_request());
  }

  void finalize() override {
    if constexpr (kVersion >= 11) {
      check("finalize", net_.finalize(std::exchange(context_, nullptr)));
    }
  }

 private:
  static constexpr int kTag = 0;

  static void check(const char* call, abi::Result result) {
    if (result != abi::kSuccess) throw_failed_call(call, result);
  }

  // What NCCL leaves in *request from an earlier use: some address, never the hint.
  static void* stale_request() { return reinterpret_cast<void*>(uintptr_t{0x5A5A5A5A5A5A5A50}); }

  static void* checked_request(const char* call, void* request, const void* entry) {
    if (request == entry) throw ToolError(std::string(call) + " left *request unwritten");
    return request;
  }

  static int narrow(size_t length_bytes) {
    if (length_bytes > static_cast<size_t>(std::numeric_limits<int>::max())) {
      throw ToolError("lengths of tables v7 and v8 end at 2 GiB");
    }
    return static_cast<int>(length_bytes);
  }

  template <typename Members>
  int make_device_of(const std::vector<int>& members, abi::Result (*make)(int*, Members*)) {
    if (members.size() > static_cast<size_t>(Members::kCapacity)) {
      throw ToolError("v" + std::to_string(kVersion) + " joins at most " +
                      std::to_string(Members::kCapacity) + " devices");
    }
    Members raw{};
    raw.ndevs = static_cast<int>(members.size());
    for (size_t index = 0; index < members.size(); ++index) raw.devs[index] = members[index];
    int device = -1;
    check("makeVDevice", make(&device, &raw));
    return device;
  }

  const Net& net_;
  void* context_ = nullptr;
};

}  // namespace verbena::tools
