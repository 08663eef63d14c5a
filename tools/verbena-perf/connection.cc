#include "verbena-perf/connection.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/spinner.h"
#include "verbena/unpack_abi.h"

namespace verbena::tools::perf {
namespace {

using Handle = std::array<uint8_t, abi::kHandleBytes>;

int choose_device(NetPlugin& plugin, const Options& options) {
  const int device_count = plugin.count_devices();
  if (options.rails > 1) {
    if (options.rails > device_count) {
      throw ToolError("--rails " + std::to_string(options.rails) + ": the plugin has " +
                      std::to_string(device_count) + " devices");
    }
    std::vector<int> members;
    members.reserve(static_cast<size_t>(options.rails));
    for (int index = 0; index < options.rails; ++index) members.push_back(index);
    const int device = plugin.make_virtual_device(members);
    if (plugin.count_devices() != device + 1) {
      throw ToolError("makeVDevice gave device " + std::to_string(device) +
                      ", which devices() does not count");
    }
    return device;
  }
  if (options.device >= device_count) {
    throw ToolError("--device " + std::to_string(options.device) + ": the plugin has " +
                    std::to_string(device_count) + " devices");
  }
  return options.device;
}

Handle swap_handles(LineChannel& partner, const Handle& own, double timeout_s) {
  const int64_t deadline_ns = deadline_after_s(timeout_s);
  if (!partner.send_line(nlohmann::json(own).dump(), deadline_ns)) throw ToolError("the partner is gone");
  const auto received = partner.receive_line(deadline_ns);
  if (received.status == LineChannel::Status::kTimeout) throw ToolError("the partner sent no handle in time");
  if (received.status == LineChannel::Status::kClosed) throw ToolError("the partner is gone");
  return nlohmann::json::parse(received.line).get<Handle>();
}

void check_device_handle(const Connection& connection) {
  const abi::NetDeviceHandle& handle = connection.device_handle;
  if (handle.handle == nullptr) throw ToolError("accept left the unpack handle empty");
  if (handle.needs_proxy_progress != 1) {
    throw ToolError("accept left needsProxyProgress 0: NCCL would never post a receive");
  }
  const auto& unpack = *static_cast<const UnpackDeviceHandle*>(handle.handle);
  if (reinterpret_cast<uintptr_t>(unpack.meta) % 16 != 0)
    throw ToolError("unpack meta is not 16-byte aligned");
  if (reinterpret_cast<uintptr_t>(unpack.bounce_buf) % 16 != 0) {
    throw ToolError("bounce buffer is not 16-byte aligned");
  }
}

}  // namespace

void establish(NetPlugin& plugin, LineChannel& partner, const Options& options, Connection& connection) {
  connection.device = choose_device(plugin, options);
  const DeviceProperties properties = plugin.read_properties(connection.device);
  Handle own{};
  void* const listen_comm = plugin.listen(connection.device, own.data());
  Handle remote = swap_handles(partner, own, options.timeout_s);
  plugin.set_attributes({});
  connection.unpacks = properties.device_type == abi::kDeviceUnpack;
  connection.device_handle = {abi::kDeviceUnpack, abi::kDeviceUnpackVersion, nullptr, 0, 0};
  abi::NetDeviceHandle* device_handle = connection.unpacks ? &connection.device_handle : nullptr;
  Spinner spinner(options.timeout_s);
  while (connection.send_comm == nullptr || connection.receive_comm == nullptr) {
    if (connection.send_comm == nullptr)
      connection.send_comm = plugin.connect(connection.device, remote.data());
    if (connection.receive_comm == nullptr) {
      connection.receive_comm = plugin.accept(listen_comm, &device_handle);
    }
    spinner.idle(connection.send_comm == nullptr ? "connect" : "accept");
  }
  plugin.close_listen(listen_comm);
  if (connection.unpacks) check_device_handle(connection);
}

void Connection::close(NetPlugin& plugin) {
  if (send_comm != nullptr) plugin.close_send(send_comm);
  if (receive_comm != nullptr) plugin.close_receive(receive_comm);
  send_comm = nullptr;
  receive_comm = nullptr;
}

}  // namespace verbena::tools::perf
