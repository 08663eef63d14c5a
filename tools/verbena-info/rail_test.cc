#include "verbena-info/rail_test.h"

#include <array>
#include <sstream>
#include <utility>
#include <vector>

#include "common/cpu_unpack.h"
#include "common/error.h"
#include "common/net_plugin.h"
#include "common/pattern.h"
#include "common/size.h"
#include "common/spinner.h"
#include "verbena-info/children.h"
#include "verbena-info/test_memory.h"

namespace verbena::tools::info {
namespace {

constexpr size_t kAlignmentBytes = 65536;
constexpr size_t kSlotBytes = 4 << 20;  // the longest message that UNPACK stages, too
constexpr size_t kSlots = 8;            // as many messages as NCCL has under way
constexpr std::array<size_t, 7> kDataBytes{1, 8, 4096, 65536, 1 << 20, (1 << 20) + 3, kSlotBytes};
// Long ones first, so that short ones behind them could overtake.
constexpr std::array<size_t, kSlots> kOrderBytes{1 << 20, 1, 65536, 8, 262144, 4096, 131072, 64};

// Wrong bytes, as opposed to calls that failed.
class WrongData : public ToolError {
 public:
  using ToolError::ToolError;
};

class RailTest {
 public:
  RailTest(NetPlugin& plugin, RailRole role, double timeout_s)
      : plugin_(plugin), role_(std::move(role)), timeout_s_(timeout_s) {}

  std::string connect();
  std::string check_data();
  std::string check_order();
  std::string check_flush();
  std::string close();

 private:
  struct Message {
    size_t slot, length_bytes;
    uint64_t pattern;
  };

  void prepare(const Message& message);
  void check(const Message& message);
  void transfer(std::span<const Message> messages);
  void finish(const Message& message, size_t length_bytes);
  void give_back(void* request);
  void open(int device);
  std::vector<void*> register_all(void* comm, const TestMemory& last, int support);
  void* post(bool sends, const Message& message);
  size_t await(void* request, const char* what);

  NetPlugin& plugin_;
  RailRole role_;
  double timeout_s_;
  void *send_comm_ = nullptr, *receive_comm_ = nullptr;
  abi::NetDeviceHandle slots_{abi::kDeviceUnpack, abi::kDeviceUnpackVersion, nullptr, 0, 0};
  uint64_t first_head_ = 0, receives_ = 0, descriptors_ = 0;
  std::vector<std::unique_ptr<TestMemory>> others_;  // before the one that messages lie in
  std::unique_ptr<TestMemory> source_, target_;
  std::vector<void*> source_keys_, target_keys_;  // the last is of the memory that messages lie in
  uint64_t messages_ = 0;
};

std::string RailTest::connect() {
  const bool joins = role_.devices.size() > 1;
  const int device = joins ? plugin_.make_virtual_device(role_.devices) : role_.devices[0];
  open(device);
  const DeviceProperties properties = plugin_.read_properties(device);
  source_ = allocate_memory(role_.gpu, kSlots * kSlotBytes, timeout_s_);
  target_ = allocate_memory(role_.gpu, kSlots * kSlotBytes, timeout_s_);
  // NCCL registers its buffers of LL and LL128 before the one of Simple, which alone is staged from and to.
  while (role_.is_staged && others_.size() < 2)
    others_.push_back(allocate_memory(kHostMemory, kAlignmentBytes, timeout_s_));
  source_keys_ = register_all(send_comm_, *source_, properties.pointer_support);
  target_keys_ = register_all(receive_comm_, *target_, properties.pointer_support);
  plugin_.set_attributes(describe_ring_all_reduce(abi::kProtoSimple));
  return joins ? properties.name : "";
}

std::vector<void*> RailTest::register_all(void* comm, const TestMemory& last, int support) {
  std::vector<void*> keys;
  for (const auto& other : others_) keys.push_back(other->register_on(plugin_, comm, support));
  keys.push_back(last.register_on(plugin_, comm, support));
  return keys;
}

void RailTest::open(int device) {
  plugin_.set_attributes({});  // as NCCL does before it connects: for any operation
  std::array<uint8_t, abi::kHandleBytes> handle{};
  void* const listen_comm = plugin_.listen(device, handle.data());
  abi::NetDeviceHandle* slots = role_.is_staged ? &slots_ : nullptr;
  Spinner spinner(timeout_s_);
  while (send_comm_ == nullptr || receive_comm_ == nullptr) {
    if (send_comm_ == nullptr) send_comm_ = plugin_.connect(device, handle.data());
    if (receive_comm_ == nullptr) receive_comm_ = plugin_.accept(listen_comm, &slots);
    spinner.idle("the connection does not come up");
  }
  plugin_.close_listen(listen_comm);
  if (role_.is_staged && slots_.handle == nullptr)
    throw ToolError("the plugin gives the receiver no slots although VERBENA_UNPACK=1");
  if (role_.is_staged) first_head_ = static_cast<UnpackDeviceHandle*>(slots_.handle)->head;
}

void RailTest::prepare(const Message& message) {
  std::vector<std::byte> bytes(message.length_bytes);
  fill_pattern(bytes, message.pattern);
  source_->write(message.slot * kSlotBytes, bytes);
  for (std::byte& byte : bytes) byte = ~byte;  // so that what does not arrive shows
  target_->write(message.slot * kSlotBytes, bytes);
}

void RailTest::check(const Message& message) {
  std::vector<std::byte> bytes(message.length_bytes);
  target_->read(message.slot * kSlotBytes, bytes);
  const PatternCheck result = check_pattern(bytes, message.pattern);
  if (result.wrong_bytes == 0) return;
  throw WrongData(std::to_string(result.wrong_bytes) + " of " + std::to_string(message.length_bytes) +
                  " bytes are wrong, the first at offset " + std::to_string(result.first_wrong_offset));
}

void* RailTest::post(bool sends, const Message& message) {
  Spinner spinner(timeout_s_);
  const size_t offset = message.slot * kSlotBytes;
  for (;;) {
    void* const request = sends ? plugin_.isend(send_comm_, source_->address() + offset, message.length_bytes,
                                                source_keys_.back())
                                : plugin_.irecv(receive_comm_, target_->address() + offset,
                                                message.length_bytes, target_keys_.back(), false);
    if (request != nullptr) return request;
    spinner.idle(sends ? "isend takes no message" : "irecv takes no buffer");
  }
}

size_t RailTest::await(void* request, const char* what) {
  Spinner spinner(timeout_s_);
  for (;;) {
    if (const auto length = plugin_.test(request)) return *length;
    spinner.idle(what);
  }
}

// All at once; receives complete in the order of their posting.
void RailTest::transfer(std::span<const Message> messages) {
  std::vector<void*> receives, sends;
  for (const Message& message : messages) prepare(message);
  for (const Message& message : messages) receives.push_back(post(false, message));
  for (const Message& message : messages) sends.push_back(post(true, message));
  std::vector<size_t> lengths(messages.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    // A send may wait for its receive to be looked at, and the other way round.
    bool has_come = false, has_gone = false;
    Spinner spinner(timeout_s_);
    while (!has_come || !has_gone) {
      if (!has_gone) has_gone = plugin_.test(sends[i]).has_value();
      if (!has_come) {
        const auto length = plugin_.test(receives[i]);
        has_come = length.has_value();
        lengths[i] = length.value_or(0);
      }
      spinner.idle("a message does not arrive");
    }
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    finish(messages[i], lengths[i]);
    give_back(receives[i]);
    check(messages[i]);
  }
}

// What a kernel of NCCL's does with a receive that is complete.
void RailTest::finish(const Message& message, size_t length_bytes) {
  if (length_bytes != message.length_bytes)
    throw WrongData("a message of " + std::to_string(message.length_bytes) + " bytes arrived as " +
                    std::to_string(length_bytes));
  if (!role_.is_staged) return;
  const auto& slots = *static_cast<const UnpackDeviceHandle*>(slots_.handle);
  const std::span<std::byte> place(target_->address() + message.slot * kSlotBytes, length_bytes);
  descriptors_ += unpack_slot(slots, compute_slot(first_head_, receives_), place).descriptor_count;
}

// A slot that is left full makes NCCL's kernels loop for ever after an abort.
void RailTest::give_back(void* request) {
  plugin_.consume(receive_comm_, request);
  if (!role_.is_staged) return;
  const unsigned slot = compute_slot(first_head_, receives_++);
  if (load_slot_count(*static_cast<const UnpackDeviceHandle*>(slots_.handle), slot) != 0)
    throw ToolError("irecvConsumed left descriptors in slot " + std::to_string(slot));
}

std::string RailTest::check_data() {
  for (const size_t length_bytes : kDataBytes) {
    const Message message{messages_ % kSlots, length_bytes, messages_};
    ++messages_;
    transfer({&message, 1});
  }
  if (role_.is_staged && descriptors_ == 0)
    throw ToolError("no receive was staged although VERBENA_UNPACK=1: no slot had a descriptor");
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
  void* const request = plugin_.flush(receive_comm_, target_->address(), kSlotBytes, target_keys_.back());
  if (request == nullptr) return "not needed";
  await(request, "the flush does not complete");
  check(message);
  return "";
}

std::string RailTest::close() {
  for (void* key : source_keys_) plugin_.deregister_memory(send_comm_, key);
  for (void* key : target_keys_) plugin_.deregister_memory(receive_comm_, key);
  plugin_.close_send(send_comm_);
  plugin_.close_receive(receive_comm_);
  return "";
}

bool run_one(const char* name, RailTest& test, std::string (RailTest::*run)()) {
  try {
    answer({{"test", name}, {"ok", true}, {"detail", (test.*run)()}});
    return true;
  } catch (const WrongData& error) {
    answer({{"test", name}, {"ok", false}, {"wrong_data", true}, {"detail", error.what()}});
  } catch (const std::exception& error) {
    answer({{"test", name}, {"ok", false}, {"detail", join_warnings(error.what())}});
  }
  return false;
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

int run_rail_tests(const Options& options) {
  const RailRole role = parse_role(options.child);
  if (role.devices.empty()) throw ToolError("--child is the tool's own");
  show_plugin_lines(options.verbose);
  const PluginLibrary library(options.plugin);
  const auto plugin = library.adapt(kNewestNetTable);
  plugin->init(log_plugin_line<keep_plugin_line>);
  RailTest test(*plugin, role, options.timeout_s);
  const bool good =
      run_one("connect", test, &RailTest::connect) && run_one("data", test, &RailTest::check_data) &&
      run_one("order", test, &RailTest::check_order) && run_one("flush", test, &RailTest::check_flush) &&
      run_one("close", test, &RailTest::close);
  // What failed is left to the end of the process.
  if (good) plugin->finalize();
  return kExitOk;
}

}  // namespace verbena::tools::info
