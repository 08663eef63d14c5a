#include "verbena-unpack/live.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "common/error.h"
#include "common/net_plugin.h"
#include "common/pattern.h"
#include "common/plugin_log.h"
#include "common/spinner.h"

namespace verbena::tools::unpack {
namespace {

// NCCL's default buffers, registered in this order; the slice is an eighth of the last.
constexpr size_t kLlBytes = 524288;
constexpr size_t kLl128Bytes = 4915200;
constexpr size_t kSimpleBytes = 4194304;
constexpr uint32_t kWindow = 8;
constexpr uint64_t kMessageUnitBytes = 4096;

void show_warning(const PluginLine& line) {
  if (line.is_warning()) std::fprintf(stderr, "WARN %s\n", line.text.c_str());
}

// Messages that lie as those of a laid-out run do, so that the same kernels check them.
UnpackRun plan_window(uint64_t message_bytes) {
  UnpackRun run;
  run.connections = run.rounds = run.passes = 1;
  run.slots = kWindow;
  run.slice_bytes = message_bytes;
  const uint64_t needed = kGuardBeforeBytes + message_bytes + kGuardAfterBytes;
  run.message_stride_bytes = (needed + kMessageUnitBytes - 1) / kMessageUnitBytes * kMessageUnitBytes;
  return run;
}

// A connection to itself, with memory registered on both sides.
class LiveConnection {
 public:
  LiveConnection(NetPlugin& plugin, const LiveOptions& options, LiveReceiver& receiver)
      : plugin_(plugin), run_(plan_window(options.message_bytes)), timeout_s_(options.timeout_s) {
    connect(options.device);
    const std::array<size_t, 3> lengths_bytes = {kLlBytes, kLl128Bytes,
                                                 std::max<size_t>(kSimpleBytes, run_.buffer_bytes())};
    for (const size_t length_bytes : lengths_bytes) {
      sources_.emplace_back(length_bytes);
      send_registrations_.push_back(
          plugin_.register_memory(send_comm_, sources_.back().data(), length_bytes, abi::kPtrHost));
      char* const memory = receiver.allocate(length_bytes);
      receive_registrations_.push_back(
          plugin_.register_memory(receive_comm_, memory, length_bytes, receiver.pointer_type()));
      run_.buffers = memory;
    }
    fill_sources();
    constexpr uint32_t kRingAllReduce = 1U << 4, kRing = 1U << 1;
    plugin_.set_attributes({kRingAllReduce, kRing, abi::kProtoSimple});
  }

  const UnpackRun& run() const { return run_; }
  UnpackDeviceHandle* handle() const { return static_cast<UnpackDeviceHandle*>(device_handle_.handle); }

  void receive_window(LiveReceiver& receiver, LiveFigure& figure) {
    std::array<void*, kWindow> receives{}, sends{};
    for (uint32_t slot = 0; slot < kWindow; ++slot) {
      receives[slot] = post([&] {
        return plugin_.irecv(receive_comm_, run_.buffers + run_.data_offset(slot), run_.slice_bytes,
                             receive_registrations_.back(), false);
      });
    }
    for (uint32_t slot = 0; slot < kWindow; ++slot) {
      sends[slot] = post([&] {
        return plugin_.isend(send_comm_, sources_.back().data() + slot * run_.slice_bytes, run_.slice_bytes,
                             send_registrations_.back());
      });
    }
    for (uint32_t slot = 0; slot < kWindow; ++slot) {
      wait(receives[slot], &sends);
      const uint64_t descriptors =
          handle() == nullptr
              ? 0
              : receiver.place(handle(), run_.buffers + run_.data_offset(slot), run_.slice_bytes);
      plugin_.consume(receive_comm_, receives[slot]);
      figure.staged += descriptors != 0;
      figure.descriptors += descriptors;
    }
    for (void*& send : sends)
      if (send != nullptr) wait(send, nullptr);
    figure.messages += kWindow;
  }

  void close() {
    for (void* const registration : send_registrations_) plugin_.deregister_memory(send_comm_, registration);
    for (void* const registration : receive_registrations_)
      plugin_.deregister_memory(receive_comm_, registration);
    plugin_.close_send(send_comm_);
    plugin_.close_receive(receive_comm_);
  }

 private:
  void connect(int device) {
    std::array<char, abi::kHandleBytes> address{};
    void* const listen_comm = plugin_.listen(device, address.data());
    plugin_.set_attributes({});
    device_handle_ = {abi::kDeviceUnpack, abi::kDeviceUnpackVersion, nullptr, 0, 0};
    const bool unpacks = plugin_.read_properties(device).device_type == abi::kDeviceUnpack;
    abi::NetDeviceHandle* device_handle = unpacks ? &device_handle_ : nullptr;
    Spinner spinner(timeout_s_);
    while (send_comm_ == nullptr || receive_comm_ == nullptr) {
      if (send_comm_ == nullptr) send_comm_ = plugin_.connect(device, address.data());
      if (receive_comm_ == nullptr) receive_comm_ = plugin_.accept(listen_comm, &device_handle);
      spinner.idle("connecting");
    }
    plugin_.close_listen(listen_comm);
  }

  void fill_sources() {
    for (uint32_t slot = 0; slot < kWindow; ++slot)
      fill_pattern({sources_.back().data() + slot * run_.slice_bytes, run_.slice_bytes}, slot);
  }

  void* post(const auto& start) {
    Spinner spinner(timeout_s_);
    for (;;) {
      if (void* const request = start(); request != nullptr) return request;
      spinner.idle("the plugin takes no message");
    }
  }

  // The other side's requests are tested too: whoever is not asked makes no progress.
  void wait(void*& request, std::array<void*, kWindow>* others) {
    Spinner spinner(timeout_s_);
    for (;;) {
      if (const auto length = plugin_.test(request)) {
        if (others == nullptr) request = nullptr;
        if (others != nullptr && *length != run_.slice_bytes)
          throw ToolError("test reported " + std::to_string(*length) + " bytes");
        return;
      }
      for (size_t index = 0; others != nullptr && index < others->size(); ++index) {
        void*& other = (*others)[index];
        if (other != nullptr && plugin_.test(other)) other = nullptr;
      }
      spinner.idle("a message does not arrive");
    }
  }

  NetPlugin& plugin_;
  UnpackRun run_;
  double timeout_s_;
  void* send_comm_ = nullptr;
  void* receive_comm_ = nullptr;
  abi::NetDeviceHandle device_handle_{};
  std::vector<std::vector<std::byte>> sources_;
  std::vector<void*> send_registrations_, receive_registrations_;
};

}  // namespace

LiveFigure run_live(const LiveOptions& options, LiveReceiver& receiver) {
  const PluginLibrary library(options.plugin);
  const std::unique_ptr<NetPlugin> plugin = library.adapt(options.abi_version);
  plugin->init(log_plugin_line<show_warning>);
  const int devices = plugin->count_devices();
  if (options.device >= devices)
    throw ToolError("--device " + std::to_string(options.device) + ": the plugin has " +
                    std::to_string(devices) + " devices");
  LiveFigure figure;
  figure.device = plugin->read_properties(options.device).name;
  figure.message_bytes = options.message_bytes;
  LiveConnection connection(*plugin, options, receiver);
  while (figure.messages < options.messages) {
    receiver.reset(connection.run());
    connection.receive_window(receiver, figure);
    const Finding finding = receiver.check(connection.run());
    if (figure.finding.wrong_bytes == 0) figure.finding.where = finding.where;
    figure.finding.wrong_bytes += finding.wrong_bytes;
  }
  connection.close();
  plugin->finalize();
  return figure;
}

}  // namespace verbena::tools::unpack
