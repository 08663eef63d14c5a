#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nccl/abi.h"

namespace verbena::tools {

inline constexpr int kNewestNetTable = 12;  // that adapt_table knows

struct DeviceProperties {
  std::string name;
  std::string pci_path;
  uint64_t guid = 0;
  int pointer_support = 0;
  int speed_mbps = 0;
  int port = 0;
  float latency_us = 0;
  int max_communicators = 0;
  int max_receives = 0;
  int device_type = 0;
  int device_version = 0;
};

// NCCL's attributes of a message (v11 and later tables hear of them); before a connection is made, of all
// that it may carry: by default anything.
struct MessageAttributes {
  uint32_t operation = 0xFFFFFFFF;
  uint32_t algorithm = 0xFFFFFFFF;
  uint32_t protocol = 0xFFFFFFFF;
};

// Of the messages of a ring all-reduce over `protocol` (abi::kProtoSimple, ...).
inline MessageAttributes describe_ring_all_reduce(uint32_t protocol) {
  constexpr uint32_t kAllReduce = 1U << 4, kRing = 1U << 1;
  return {kAllReduce, kRing, protocol};
}

// One table of a loaded plugin, whatever its version. Every call throws ToolError, which names the call and
// NCCL's code, when the plugin returns anything but success; "not yet" is a null comm or request, as in NCCL.
class NetPlugin {
 public:
  virtual ~NetPlugin() = default;

  virtual const char* name() const = 0;
  virtual int version() const = 0;

  virtual void init(abi::DebugLogger logger) = 0;
  virtual int count_devices() = 0;
  virtual DeviceProperties read_properties(int device) = 0;
  // The index of a new device over these ones.
  virtual int make_virtual_device(const std::vector<int>& members) = 0;
  virtual void set_attributes(const MessageAttributes& attributes) = 0;

  virtual void* listen(int device, void* handle) = 0;
  virtual void* connect(int device, void* handle) = 0;
  // `device_handle` points to the handle to fill, or to null for a receive without unpack.
  virtual void* accept(void* listen_comm, abi::NetDeviceHandle** device_handle) = 0;
  virtual void close_listen(void* listen_comm) = 0;
  virtual void close_send(void* send_comm) = 0;
  virtual void close_receive(void* receive_comm) = 0;

  virtual void* register_memory(void* comm, void* data, size_t length_bytes, int type) = 0;
  // `descriptor` stays the caller's.
  virtual void* register_dmabuf(void* comm, void* data, size_t length_bytes, int descriptor) = 0;
  virtual void deregister_memory(void* comm, void* mhandle) = 0;

  virtual void* isend(void* comm, void* data, size_t length_bytes, void* mhandle) = 0;
  // `ll_hint`: NCCL's mark for receives of LL and LL128; tables before v9 do not know it.
  virtual void* irecv(void* comm, void* data, size_t length_bytes, void* mhandle, bool ll_hint) = 0;
  // The received length when done.
  virtual std::optional<size_t> test(void* request) = 0;
  virtual void consume(void* comm, void* request) = 0;
  // Null where nothing is to be waited for.
  virtual void* flush(void* comm, void* data, size_t length_bytes, void* mhandle) = 0;

  virtual void finalize() = 0;
};

// An adapter of a table that outlives it. Throws ToolError for a version that is not known.
std::unique_ptr<NetPlugin> adapt_table(const void* table, int abi_version);
size_t size_of_table(int abi_version);

// A plugin's shared object, opened as NCCL opens it. Must outlive the adapters it gives.
class PluginLibrary {
 public:
  explicit PluginLibrary(const std::string& path);
  PluginLibrary(const PluginLibrary&) = delete;
  PluginLibrary& operator=(const PluginLibrary&) = delete;
  ~PluginLibrary();

  std::unique_ptr<NetPlugin> adapt(int abi_version) const;
  // The versions of the tables that it exports under `prefix`, such as "ncclNetPlugin_v", in rising order.
  std::vector<int> list_versions(const std::string& prefix) const;
  // The file that the loader took.
  std::string find_path() const;

 private:
  const void* find_table(int abi_version) const;

  void* handle_;
};

}  // namespace verbena::tools
