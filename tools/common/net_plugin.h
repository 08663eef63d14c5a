#pragma once
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "nccl/abi.h"

namespace verbena::tools {

inline constexpr int kNewestNetTable = 12;  // the newest version that adapt_table knows

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

// NCCL's attributes of a message, for tables from v11 on. Set before a connection is made, they describe
// every message that it may carry; the default is any message.
struct MessageAttributes {
  uint32_t operation = 0xFFFFFFFF;
  uint32_t algorithm = 0xFFFFFFFF;
  uint32_t protocol = 0xFFFFFFFF;
};

// The attributes of a ring all-reduce over `protocol` (abi::kProtoSimple, ...).
inline MessageAttributes describe_ring_all_reduce(uint32_t protocol) {
  constexpr uint32_t kAllReduce = 1U << 4, kRing = 1U << 1;
  return {kAllReduce, kRing, protocol};
}

// A call of the plugin's table failed; the text has the call and NCCL's code.
class CallError : public ToolError {
 public:
  CallError(const char* call, abi::Result code);
  abi::Result code() const { return code_; }

 private:
  abi::Result code_;
};

// A table of a loaded plugin, of any version. Every call throws CallError if the plugin returns an error, and
// ToolError if it breaks NCCL's contract; "not yet" is a null comm or request, as in NCCL.
class NetPlugin {
 public:
  virtual ~NetPlugin() = default;

  virtual const char* name() const = 0;
  virtual int version() const = 0;

  virtual void init(abi::DebugLogger logger) = 0;
  virtual int count_devices() = 0;
  virtual DeviceProperties read_properties(int device) = 0;
  // Returns the index of a new device that joins `members`.
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
  // The caller keeps `descriptor`.
  virtual void* register_dmabuf(void* comm, void* data, size_t length_bytes, int descriptor) = 0;
  virtual void deregister_memory(void* comm, void* mhandle) = 0;

  virtual void* isend(void* comm, void* data, size_t length_bytes, void* mhandle) = 0;
  // `ll_hint`: NCCL's mark for receives of LL and LL128; tables before v9 do not know it.
  virtual void* irecv(void* comm, void* data, size_t length_bytes, void* mhandle, bool ll_hint) = 0;
  // The length, once the request is done.
  virtual std::optional<size_t> test(void* request) = 0;
  virtual void consume(void* comm, void* request) = 0;
  // Returns null if there is nothing to wait for.
  virtual void* flush(void* comm, void* data, size_t length_bytes, void* mhandle) = 0;

  virtual void finalize() = 0;
};

// An adapter of a table, which must outlive it. Throws ToolError for an unknown version.
std::unique_ptr<NetPlugin> adapt_table(const void* table, int abi_version);
size_t size_of_table(int abi_version);

// The shared object of a plugin, opened as NCCL opens it. Must outlive its adapters.
class PluginLibrary {
 public:
  explicit PluginLibrary(const std::string& path);
  PluginLibrary(const PluginLibrary&) = delete;
  PluginLibrary& operator=(const PluginLibrary&) = delete;
  ~PluginLibrary();

  std::unique_ptr<NetPlugin> adapt(int abi_version) const;
  // The versions of the exported tables named `prefix` and a number, such as "ncclNetPlugin_v", ascending.
  std::vector<int> list_versions(const std::string& prefix) const;
  // The file that the loader chose.
  std::string find_path() const;

 private:
  const void* find_table(int abi_version) const;

  void* handle_;
};

// A log line of the plugin. log_plugin_line<use> is a logger for NetPlugin::init.

struct PluginLine {
  abi::LogLevel level;
  std::string text;
  const char* file;  // may be null
  int line;

  bool is_warning() const { return level <= abi::kLogWarn; }
};

// Lines are truncated to 2047 bytes.
std::string format_plugin_text(const char* format, va_list arguments);

// Any thread of the plugin may call it.
template <void (*use)(const PluginLine&)>
void log_plugin_line(abi::LogLevel level, unsigned long /*flags*/, const char* file, int line,
                     const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const std::string text = format_plugin_text(format, arguments);
  va_end(arguments);
  use({level, text, file, line});
}

}  // namespace verbena::tools
