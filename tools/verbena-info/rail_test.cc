#include "verbena-info/check.h"

#include <array>
#include <cstring>
#include <sstream>
#include <utility>

#include "base/file_descriptor.h"
#include "common/error.h"
#include "common/gpu.h"
#include "common/nccl_host.h"
#include "common/pattern.h"
#include "common/size.h"
#include "verbena-info/child.h"

namespace verbena::tools::info {
namespace {

constexpr size_t kOtherBytes = 65536;
constexpr size_t kSlotBytes = 4 << 20;  // also the longest message that UNPACK stages
constexpr size_t kSlots = 8;            // as many messages as NCCL has in flight
constexpr std::array<size_t, 7> kDataBytes{1, 8, 4096, 65536, 1 << 20, (1 << 20) + 3, kSlotBytes};
// Long messages first, so that short ones could overtake them.
constexpr std::array<size_t, kSlots> kOrderBytes{1 << 20, 1, 65536, 8, 262144, 4096, 131072, 64};

// A test found an error, although all calls succeeded.
class Finding : public ToolError {
 public:
  Finding(TestFault fault, const std::string& words) : ToolError(words), fault_(fault) {}
  TestFault fault() const { return fault_; }

 private:
  TestFault fault_;
};

// Memory for messages, of the host or of a GPU.
class TestMemory {
 public:
  virtual ~TestMemory() = default;
  virtual std::byte* address() const = 0;
  virtual void* register_on(NetPlugin& plugin, void* comm, int pointer_support) const = 0;
  virtual void write(size_t offset_bytes, std::span<const std::byte> bytes) = 0;
  virtual void read(size_t offset_bytes, std::span<std::byte> bytes) = 0;
};

class HostMemory final : public TestMemory {
 public:
  explicit HostMemory(size_t length_bytes) : memory_(length_bytes) {}
  std::byte* address() const override { return memory_.data(); }
  void* register_on(NetPlugin& plugin, void* comm, int) const override {
    return plugin.register_memory(comm, memory_.data(), memory_.length_bytes(), abi::kPtrHost);
  }
  void write(size_t offset_bytes, std::span<const std::byte> bytes) override {
    std::memcpy(address() + offset_bytes, bytes.data(), bytes.size());
  }
  void read(size_t offset_bytes, std::span<std::byte> bytes) override {
    std::memcpy(bytes.data(), address() + offset_bytes, bytes.size());
  }

 private:
  PageMemory memory_;
};

const CudaDriver& find_driver() {
  std::string why;
  const CudaDriver* const driver = load_cuda_driver(why);
  if (driver == nullptr) throw ToolError(why);
  return *driver;
}

class GpuMemory final : public TestMemory {
 public:
  GpuMemory(int gpu, size_t length_bytes, double timeout_s)
      : gpu_(find_driver(), gpu),
        // CUDA aligns large allocations to 2 MiB.
        start_(gpu_.allocate(length_bytes)),
        length_bytes_(length_bytes),
        timeout_s_(timeout_s) {}

  std::byte* address() const override { return reinterpret_cast<std::byte*>(start_); }
  // As NCCL does: with dma-buf if the plugin and the driver support it.
  void* register_on(NetPlugin& plugin, void* comm, int pointer_support) const override {
    const auto export_range = gpu_.driver().cuMemGetHandleForAddressRange;
    int raw = -1;
    if ((pointer_support & abi::kPtrDmabuf) != 0 && export_range != nullptr &&
        export_range(&raw, start_, length_bytes_, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) == CUDA_SUCCESS) {
      const base::FileDescriptor descriptor(raw);
      return plugin.register_dmabuf(comm, address(), length_bytes_, descriptor.get());
    }
    return plugin.register_memory(comm, address(), length_bytes_, abi::kPtrCuda);
  }
  void write(size_t offset_bytes, std::span<const std::byte> bytes) override {
    gpu_.write(start_ + offset_bytes, bytes.data(), bytes.size(), timeout_s_);
  }
  void read(size_t offset_bytes, std::span<std::byte> bytes) override {
    gpu_.read(bytes.data(), start_ + offset_bytes, bytes.size(), timeout_s_);
  }

 private:
  tools::Gpu gpu_;
  CUdeviceptr start_;
  size_t length_bytes_;
  double timeout_s_;
};

class RailTest {
 public:
  RailTest(NetPlugin& plugin, RailRole role, double timeout_s)
      : plugin_(plugin), role_(std::move(role)), timeout_s_(timeout_s), host_(plugin, timeout_s) {}

  std::string connect();
  std::string check_data();
  std::string check_order();
  std::string check_flush();
  std::string close();

  // The fault to report if a call fails or does not return at this point.
  TestFault fault_of_call() const { return fault_of_call_; }

 private:
  struct Message {
    size_t slot, length_bytes;
    uint64_t pattern;
  };

  void prepare(const Message& message);
  void transfer(std::span<const Message> messages);
  void finish(const Message& message, size_t length_bytes, void* request);
  void check(const Message& message);
  std::unique_ptr<TestMemory> allocate(int gpu, size_t length_bytes) const;
  std::vector<void*> register_all(void* comm, const TestMemory& last, int support);

  NetPlugin& plugin_;
  RailRole role_;
  double timeout_s_;
  NcclHost host_;
  TestFault fault_of_call_ = TestFault::kNoConnection;
  uint64_t descriptors_ = 0, messages_ = 0;
  std::vector<std::unique_ptr<TestMemory>> others_;  // registered before the memory for messages
  std::unique_ptr<TestMemory> source_, target_;
  std::vector<void*> source_keys_, target_keys_;  // the last is of the memory for messages
};

std::string RailTest::connect() {
  const bool joins = role_.devices.size() > 1;
  const int device = joins ? plugin_.make_virtual_device(role_.devices) : role_.devices[0];
  host_.connect(device);
  if (role_.is_staged && host_.slots() == nullptr)
    throw Finding(TestFault::kNotStaged, "the plugin gives the receiver no slots although VERBENA_UNPACK=1");
  fault_of_call_ = TestFault::kNoRegistration;
  const DeviceProperties properties = plugin_.read_properties(device);
  source_ = allocate(role_.gpu, kSlots * kSlotBytes);
  target_ = allocate(role_.gpu, kSlots * kSlotBytes);
  // NCCL registers its buffers of LL and LL128 before that of Simple, and only the latter may be staged.
  while (role_.is_staged && others_.size() < 2) others_.push_back(allocate(kHostMemory, kOtherBytes));
  source_keys_ = register_all(host_.send_comm(), *source_, properties.pointer_support);
  target_keys_ = register_all(host_.receive_comm(), *target_, properties.pointer_support);
  fault_of_call_ = TestFault::kNoArrival;
  plugin_.set_attributes(describe_ring_all_reduce(abi::kProtoSimple));
  return joins ? properties.name : "";
}

std::unique_ptr<TestMemory> RailTest::allocate(int gpu, size_t length_bytes) const {
  if (gpu == kHostMemory) return std::make_unique<HostMemory>(length_bytes);
  return std::make_unique<GpuMemory>(gpu, length_bytes, timeout_s_);
}

std::vector<void*> RailTest::register_all(void* comm, const TestMemory& last, int support) {
  std::vector<void*> keys;
  keys.reserve(others_.size() + 1);
  for (const auto& other : others_) keys.push_back(other->register_on(plugin_, comm, support));
  keys.push_back(last.register_on(plugin_, comm, support));
  return keys;
}

void RailTest::prepare(const Message& message) {
  std::vector<std::byte> bytes(message.length_bytes);
  fill_pattern(bytes, message.pattern);
  source_->write(message.slot * kSlotBytes, bytes);
  for (std::byte& byte : bytes) byte = ~byte;  // so that a byte that does not arrive is wrong
  target_->write(message.slot * kSlotBytes, bytes);
}

void RailTest::check(const Message& message) {
  std::vector<std::byte> bytes(message.length_bytes);
  target_->read(message.slot * kSlotBytes, bytes);
  const PatternCheck result = check_pattern(bytes, message.pattern);
  if (result.wrong_bytes == 0) return;
  throw Finding(TestFault::kWrongData,
                std::to_string(result.wrong_bytes) + " of " + std::to_string(message.length_bytes) +
                    " bytes are wrong, the first at offset " + std::to_string(result.first_wrong_offset));
}

// Posts all messages at once; receives complete in the order in which they were posted.
void RailTest::transfer(std::span<const Message> messages) {
  std::vector<void*> receives, sends;
  for (const Message& message : messages) prepare(message);
  for (const Message& m : messages)
    receives.push_back(
        host_.irecv(target_->address() + m.slot * kSlotBytes, m.length_bytes, target_keys_.back()));
  for (const Message& m : messages)
    sends.push_back(host_.isend(source_->address() + m.slot * kSlotBytes, m.length_bytes, source_keys_.back(),
                                receives.back()));
  std::vector<size_t> lengths;
  lengths.reserve(receives.size());
  for (void* const receive : receives) lengths.push_back(host_.wait(receive, sends));
  for (void* const send : sends) {
    if (send != nullptr) host_.wait(send);
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    finish(messages[i], lengths[i], receives[i]);
    check(messages[i]);
  }
}

// Does what NCCL's kernel and proxy do with a complete receive.
void RailTest::finish(const Message& message, size_t length_bytes, void* request) {
  if (length_bytes != message.length_bytes)
    throw Finding(TestFault::kWrongData, "a message of " + std::to_string(message.length_bytes) +
                                             " bytes arrived as " + std::to_string(length_bytes));
  if (!role_.is_staged) return plugin_.consume(host_.receive_comm(), request);
  try {
    descriptors_ +=
        host_.unpack({target_->address() + message.slot * kSlotBytes, length_bytes}).descriptor_count;
    plugin_.consume(host_.receive_comm(), request);
    host_.check_slot_is_empty();
  } catch (const CallError&) {
    throw;
  } catch (const ToolError& error) {
    throw Finding(TestFault::kWrongDescriptors, error.what());
  }
}

std::string RailTest::check_data() {
  for (const size_t length_bytes : kDataBytes) {
    const Message message{messages_ % kSlots, length_bytes, messages_};
    ++messages_;
    transfer({&message, 1});
  }
  if (role_.is_staged && descriptors_ == 0)
    throw Finding(TestFault::kNotStaged,
                  "no slot had a descriptor, so no receive was staged although VERBENA_UNPACK=1");
  return std::to_string(kDataBytes.size()) + " sizes to " + format_size(kSlotBytes) +
         (role_.is_staged ? ", " + std::to_string(descriptors_) + " descriptors" : "");
}

std::string RailTest::check_order() {
  std::vector<Message> messages;
  for (size_t slot = 0; slot < kSlots; ++slot) messages.push_back({slot, kOrderBytes[slot], messages_++});
  transfer(messages);
  return std::to_string(kSlots) + " messages at once";
}

std::string RailTest::check_flush() {
  const Message message{0, kSlotBytes, messages_++};
  transfer({&message, 1});
  void* const request =
      plugin_.flush(host_.receive_comm(), target_->address(), kSlotBytes, target_keys_.back());
  if (request == nullptr) return "not needed";
  host_.wait(request);
  check(message);
  return "";
}

std::string RailTest::close() {
  fault_of_call_ = TestFault::kCallFailed;
  for (void* key : source_keys_) plugin_.deregister_memory(host_.send_comm(), key);
  for (void* key : target_keys_) plugin_.deregister_memory(host_.receive_comm(), key);
  host_.close();
  return "";
}

bool run_one(const char* name, RailTest& test, std::string (RailTest::*run)()) {
  Test result{name, false, "", TestFault::kCallFailed};
  try {
    result = {name, true, (test.*run)(), TestFault::kNone};
  } catch (const Finding& finding) {
    result.fault = finding.fault();
    result.detail = finding.what();
  } catch (const CallError& error) {
    result.fault = test.fault_of_call();
    if (result.fault == TestFault::kNoArrival)
      result.fault = error.code() == abi::kRemoteError ? TestFault::kPeer : TestFault::kCallFailed;
    result.detail = join_warnings(error.what());
  } catch (const HangError& error) {
    result.fault = test.fault_of_call();
    result.detail = join_warnings(error.what());
  } catch (const std::exception& error) {
    result.detail = join_warnings(error.what());
  }
  answer({.plugin = {}, .view = {}, .test = result});
  return result.ok;
}

}  // namespace

std::string format_role(const RailRole& role) {
  std::string text = role.is_staged ? "staged" : "rail";
  text += " " + std::to_string(role.gpu);
  for (const int device : role.devices) text += " " + std::to_string(device);
  return text;
}

RailRole parse_role(const std::string& text) {
  std::istringstream words(text);
  std::string kind;
  RailRole role;
  if (!(words >> kind >> role.gpu) || (kind != "rail" && kind != "staged")) return {};
  role.is_staged = kind == "staged";
  for (int device = 0; words >> device;) role.devices.push_back(device);
  return role;
}

int run_rail_tests(const InfoOptions& options) {
  const RailRole role = parse_role(options.child);
  if (role.devices.empty()) throw ToolError("--child is only for the tool's own processes");
  show_plugin_lines(options.verbose);
  const PluginLibrary library(options.plugin);
  const auto plugin = library.adapt(kNewestNetTable);
  plugin->init(log_plugin_line<keep_plugin_line>);
  RailTest test(*plugin, role, options.timeout_s);
  const bool good =
      run_one("connect", test, &RailTest::connect) && run_one("data", test, &RailTest::check_data) &&
      run_one("order", test, &RailTest::check_order) && run_one("flush", test, &RailTest::check_flush) &&
      run_one(kCloseTest, test, &RailTest::close);
  // After a failure, the end of the process cleans up.
  if (good) plugin->finalize();
  return kExitOk;
}

}  // namespace verbena::tools::info
