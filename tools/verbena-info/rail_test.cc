#include "verbena-info/rail_test.h"

#include <array>
#include <cstdio>
#include <vector>

#include "common/error.h"
#include "common/net_plugin.h"
#include "common/pattern.h"
#include "common/size.h"
#include "common/spinner.h"
#include "verbena-info/children.h"
#include "verbena-info/test_memory.h"

namespace verbena::tools::info {
namespace {

constexpr int kNewestTable = 12;
constexpr size_t kSlotBytes = 4 << 20;
constexpr size_t kSlots = 8;  // as many messages as NCCL has under way
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
  RailTest(NetPlugin& plugin, int device, int gpu, double timeout_s)
      : plugin_(plugin), device_(device), gpu_(gpu), timeout_s_(timeout_s) {}

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
  void* post(bool sends, const Message& message);
  size_t await(void* request, const char* what);

  NetPlugin& plugin_;
  int device_, gpu_;
  double timeout_s_;
  void *send_comm_ = nullptr, *receive_comm_ = nullptr;
  std::unique_ptr<TestMemory> source_, target_;
  void *source_key_ = nullptr, *target_key_ = nullptr;
  uint64_t messages_ = 0;
};

std::string RailTest::connect() {
  std::array<uint8_t, abi::kHandleBytes> handle{};
  void* const listen_comm = plugin_.listen(device_, handle.data());
  Spinner spinner(timeout_s_);
  while (send_comm_ == nullptr || receive_comm_ == nullptr) {
    if (send_comm_ == nullptr) send_comm_ = plugin_.connect(device_, handle.data());
    if (receive_comm_ == nullptr) receive_comm_ = plugin_.accept(listen_comm, nullptr);
    spinner.idle("the connection does not come up");
  }
  plugin_.close_listen(listen_comm);
  const int support = plugin_.read_properties(device_).pointer_support;
  source_ = allocate_memory(gpu_, kSlots * kSlotBytes, timeout_s_);
  target_ = allocate_memory(gpu_, kSlots * kSlotBytes, timeout_s_);
  source_key_ = source_->register_on(plugin_, send_comm_, support);
  target_key_ = target_->register_on(plugin_, receive_comm_, support);
  return "";
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
    void* const request =
        sends ? plugin_.isend(send_comm_, source_->address() + offset, message.length_bytes, source_key_)
              : plugin_.irecv(receive_comm_, target_->address() + offset, message.length_bytes, target_key_,
                              false);
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
    plugin_.consume(receive_comm_, receives[i]);
    if (lengths[i] != messages[i].length_bytes)
      throw WrongData("message " + std::to_string(i) + " of " + std::to_string(messages[i].length_bytes) +
                      " bytes arrived as " + std::to_string(lengths[i]));
    check(messages[i]);
  }
}

std::string RailTest::check_data() {
  for (const size_t length_bytes : kDataBytes) {
    const Message message{messages_ % kSlots, length_bytes, messages_};
    ++messages_;
    transfer({&message, 1});
  }
  return std::to_string(kDataBytes.size()) + " sizes to " + format_size(kSlotBytes);
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
  void* const request = plugin_.flush(receive_comm_, target_->address(), kSlotBytes, target_key_);
  if (request == nullptr) return "not needed";
  await(request, "the flush does not complete");
  check(message);
  return "";
}

std::string RailTest::close() {
  plugin_.deregister_memory(send_comm_, source_key_);
  plugin_.deregister_memory(receive_comm_, target_key_);
  plugin_.close_send(send_comm_);
  plugin_.close_receive(receive_comm_);
  return "";
}

std::string describe_failure(const std::exception& error) {
  std::string text = error.what();
  for (const std::string& warning : list_plugin_warnings()) text += "; " + warning;
  return text;
}

bool run_one(const char* name, RailTest& test, std::string (RailTest::*run)()) {
  try {
    answer({{"test", name}, {"ok", true}, {"detail", (test.*run)()}});
    return true;
  } catch (const WrongData& error) {
    answer({{"test", name}, {"ok", false}, {"wrong_data", true}, {"detail", error.what()}});
  } catch (const std::exception& error) {
    answer({{"test", name}, {"ok", false}, {"detail", describe_failure(error)}});
  }
  return false;
}

}  // namespace

std::string name_rail_test_role(int device, int gpu) {
  return "rail " + std::to_string(device) + " " + std::to_string(gpu);
}

int run_rail_tests(const Options& options) {
  int device = 0, gpu = 0;
  if (std::sscanf(options.child.c_str(), "rail %d %d", &device, &gpu) != 2) return kExitFailed;
  show_plugin_lines(options.verbose);
  const PluginLibrary library(options.plugin);
  const auto plugin = library.adapt(kNewestTable);
  plugin->init(log_plugin_line<keep_plugin_line>);
  RailTest test(*plugin, device, gpu, options.timeout_s);
  const bool good =
      run_one("connect", test, &RailTest::connect) && run_one("data", test, &RailTest::check_data) &&
      run_one("order", test, &RailTest::check_order) && run_one("flush", test, &RailTest::check_flush) &&
      run_one("close", test, &RailTest::close);
  // What failed is left to the end of the process.
  if (good) plugin->finalize();
  return kExitOk;
}

}  // namespace verbena::tools::info
