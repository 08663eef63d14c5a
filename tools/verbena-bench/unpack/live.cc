#include "verbena-bench/unpack/live.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "common/error.h"
#include "common/nccl_host.h"
#include "common/net_plugin.h"
#include "common/pattern.h"

namespace verbena::tools::unpack {
namespace {

constexpr uint32_t kWindow = kNcclSlices;
constexpr uint64_t kMessageUnitBytes = 4096;

void show_warning(const PluginLine& line) {
  if (line.is_warning()) std::fprintf(stderr, "WARN %s\n", line.text.c_str());
}

// Plans messages like those of a case, so that the same kernels can check them.
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
      : plugin_(plugin), run_(plan_window(options.message_bytes)), host_(plugin, options.timeout_s) {
    host_.connect(options.device);
    std::array<size_t, 3> lengths_bytes = kNcclBufferBytes;
    lengths_bytes[2] = std::max<size_t>(lengths_bytes[2], run_.buffer_bytes());
    for (const size_t length_bytes : lengths_bytes) {
      sources_.emplace_back(length_bytes);
      send_registrations_.push_back(
          plugin_.register_memory(host_.send_comm(), sources_.back().data(), length_bytes, abi::kPtrHost));
      run_.buffers = receiver.allocate(length_bytes);
      receive_registrations_.push_back(
          plugin_.register_memory(host_.receive_comm(), run_.buffers, length_bytes, receiver.pointer_type()));
    }
    for (uint32_t slot = 0; slot < kWindow; ++slot) fill_pattern({source(slot), run_.slice_bytes}, slot);
    plugin_.set_attributes(describe_ring_all_reduce(abi::kProtoSimple));
  }

  const UnpackRun& run() const { return run_; }

  void receive_window(LiveReceiver& receiver, LiveFigure& figure) {
    std::array<void*, kWindow> receives{}, sends{};
    for (uint32_t slot = 0; slot < kWindow; ++slot)
      receives[slot] = host_.irecv(reinterpret_cast<std::byte*>(target(slot)), run_.slice_bytes,
                                   receive_registrations_.back());
    for (uint32_t slot = 0; slot < kWindow; ++slot)
      sends[slot] = host_.isend(source(slot), run_.slice_bytes, send_registrations_.back(), receives.back());
    for (uint32_t slot = 0; slot < kWindow; ++slot) {
      const size_t length_bytes = host_.wait(receives[slot], sends);
      if (length_bytes != run_.slice_bytes)
        throw ToolError("test reported " + std::to_string(length_bytes) + " bytes");
      const uint64_t descriptors =
          host_.slots() == nullptr ? 0 : receiver.place(host_.slots(), target(slot), run_.slice_bytes);
      plugin_.consume(host_.receive_comm(), receives[slot]);
      figure.staged += descriptors != 0;
      figure.descriptors += descriptors;
    }
    for (void* const send : sends)
      if (send != nullptr) host_.wait(send);
    figure.messages += kWindow;
  }

  void close() {
    for (void* const key : send_registrations_) plugin_.deregister_memory(host_.send_comm(), key);
    for (void* const key : receive_registrations_) plugin_.deregister_memory(host_.receive_comm(), key);
    host_.close();
  }

 private:
  std::byte* source(uint32_t slot) { return sources_.back().data() + slot * run_.slice_bytes; }
  char* target(uint32_t slot) const { return run_.buffers + run_.data_offset(slot); }

  NetPlugin& plugin_;
  UnpackRun run_;
  NcclHost host_;
  std::vector<PageMemory> sources_;
  std::vector<void*> send_registrations_, receive_registrations_;
};

}  // namespace

LiveFigure run_live(const LiveOptions& options, LiveReceiver& receiver) {
  const PluginLibrary library(options.plugin);
  const std::unique_ptr<NetPlugin> plugin = library.adapt(options.abi_version);
  plugin->init(log_plugin_line<show_warning>);
  choose_device(*plugin, options.device, 1);
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
