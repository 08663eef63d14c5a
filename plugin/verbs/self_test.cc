#include "verbs/self_test.h"

#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/log.h"
#include "verbs/address_handles.h"
#include "verbs/async_events.h"
#include "verbs/datagram_queues.h"
#include "verbs/queues.h"

namespace verbena::verbs {
namespace {

constexpr uint32_t kDepth = 16;
constexpr uint32_t kBytes = 4096, kShortBytes = 64;
constexpr uint32_t kImm = 0x5eed1234;
constexpr uint32_t kChainLength = 4;
constexpr uint64_t kAddend = 5;
constexpr int kMaxSilences = 2;
constexpr uint32_t kDatagramKey = 0x5eed;

struct Memory {
  alignas(4096) std::byte source[kBytes];
  std::byte target[kBytes], received[kBytes];
  std::byte datagram[kGrhBytes + kBytes];
};

// A call that fails because of a temporary lack of memory shows nothing about the device.
FormResult refuse(const base::Error& error) {
  const bool is_of_the_host = error.errno_value == ENOMEM || error.errno_value == EAGAIN;
  return {is_of_the_host ? Verdict::kNoAnswer : Verdict::kRefused, error.errno_value};
}

class Tester {
 public:
  Tester(Device& device, const SelfTestOptions& options)
      : device_(device), options_(options), memory_(std::make_unique<Memory>()) {}

  SelfTestResult run() {
    const int64_t begin_ns = base::monotonic_ns();
    auto region = MemoryRegion::register_memory(device_, memory_.get(), sizeof(Memory), access());
    if (region) {
      region_ = std::move(*region);
      run_plain();
      if (may_go_on()) run_receives();
      if (may_go_on() && (options_.all_forms || options_.datagrams)) run_datagrams();
      if (may_go_on() && options_.gpu_memory != nullptr) run_gpu();
    } else {
      result(Form::kWrite) = refuse(region.error());
    }
    bench_.reset();  // destroyed before the memory
    result_.took_ns = base::monotonic_ns() - begin_ns;
    return result_;
  }

 private:
  // A queue pair connected to itself.
  struct Bench {
    CompletionQueue completions;
    std::optional<SharedReceiveQueue> shared;
    QueuePair pair;
  };
  struct DatagramBench {
    CompletionQueue completions;
    SharedReceiveQueue receives;
    DatagramPair pair;
    AddressHandle way;
  };
  struct Arrival {
    CompletionKind kind;
    uint32_t length;
  };

  FormResult& result(Form form) { return result_.forms[static_cast<size_t>(form)]; }
  bool may_go_on() const { return !result_.of(Form::kWrite).fails() && silences_ < kMaxSilences; }
  Access access() const {
    return {.remote_read = true, .remote_write = true, .remote_atomic = device_.offers_atomics()};
  }

  // Opens a queue pair of the wanted kind if there is none, or after a failure.
  FormResult open(bool shared) {
    if (bench_ != nullptr && bench_->shared.has_value() == shared) return {Verdict::kWorks, 0};
    bench_.reset();
    auto made = std::make_unique<Bench>();
    auto completions = CompletionQueue::create(device_, 2 * kDepth);
    if (!completions) return refuse(completions.error());
    made->completions = std::move(*completions);
    if (shared) {
      auto queue = SharedReceiveQueue::create(device_, kDepth);
      if (!queue) return refuse(queue.error());
      made->shared = std::move(*queue);
    }
    const LocalAddress address = device_.local_address();
    auto pair = QueuePair::create(device_, made->completions,
                                  {.send_depth = kDepth,
                                   .operations = {.fetch_add = device_.offers_atomics()},
                                   .receive_queue = shared ? &*made->shared : nullptr,
                                   .receive_depth = shared ? 0 : kDepth,
                                   .local = &address});
    if (!pair) return refuse(pair.error());
    if (auto outcome = pair->connect(address.port, pair->address()); !outcome) {
      silences_ = kMaxSilences;  // each further attempt would wait equally long for the address
      return {Verdict::kNoAnswer, outcome.error().errno_value};
    }
    made->pair = std::move(*pair);
    bench_ = std::move(made);
    return {Verdict::kWorks, 0};
  }

  template <typename Body>
  void attempt(Form form, bool shared, Body&& body) {
    attempt_over([&] { return open(shared); }, form, body);
  }
  // `open` creates the objects that `body` uses.
  template <typename Open, typename Body>
  void attempt_over(Open&& open, Form form, Body&& body) {
    if (!may_go_on()) return;
    FormResult& found = result(form);
    found = open();
    if (found.works()) {
      fill();
      found = body();
    }
    if (found.verdict == Verdict::kNoAnswer) ++silences_;
    if (found.fails()) bench_.reset();
  }

  // Fills with different data for each form, so that data of an earlier form is not accepted.
  void fill() {
    ++seed_;
    for (size_t i = 0; i < kBytes; ++i) memory_->source[i] = static_cast<std::byte>(seed_ + i * 7 + (i >> 8));
    std::memset(memory_->target, 0, kBytes);
    std::memset(memory_->received, 0, kBytes);
    std::memset(memory_->datagram, 0, sizeof(memory_->datagram));
  }

  OneSidedRequest make(Opcode opcode, uint32_t bytes) const {
    OneSidedRequest request;
    request.opcode = opcode;
    request.signaled = true;
    request.imm = kImm;
    request.local = memory_->source;
    request.local_key = region_.local_key();
    request.length = bytes;
    request.remote_key = region_.remote_key();
    request.remote = reinterpret_cast<uintptr_t>(memory_->target);
    return request;
  }

  FormResult await(const std::optional<Arrival>& arrival) {
    return await(
        bench_->completions, [this](const Completion&) { bench_->pair.retire(); }, arrival);
  }
  // Waits until all posted requests have completed: one send and, if expected, the receive.
  template <typename Retire>
  FormResult await(CompletionQueue& completions, const Retire& retire,
                   const std::optional<Arrival>& arrival) {
    const auto deadline = base::Deadline(base::monotonic_ns() + options_.patience_ns);
    bool is_sent = false, has_arrived = !arrival;
    while (!is_sent || !has_arrived) {
      Completion batch[2];
      const bool is_late = deadline.has_passed();  // read before the last poll
      const int count = completions.poll(batch);
      if (count < 0) return {Verdict::kRefused, 0};
      for (int i = 0; i < count; ++i) {
        const Completion& completion = batch[i];
        // The device does not answer itself, or the port has gone down meanwhile.
        if (completion.error == IBV_WC_RETRY_EXC_ERR) return {Verdict::kNoAnswer, 0};
        if (completion.error != 0) {
          // Prefers the error that is the cause to a flush error of the other end.
          const bool is_next_better =
              i + 1 < count && is_flush_error(completion.error) && batch[i + 1].error != 0;
          return {Verdict::kFailed, batch[is_next_better ? i + 1 : i].error};
        }
        if (completion.kind() == CompletionKind::kSend) {
          retire(completion);
          is_sent = true;
        } else {
          const bool is_right = arrival && completion.kind() == arrival->kind &&
                                completion.length == arrival->length && completion.imm() == kImm;
          if (!is_right) return {Verdict::kWrong, 0};
          has_arrived = true;
        }
      }
      if (count == 0 && is_late) return {Verdict::kNoAnswer, 0};
    }
    return {Verdict::kWorks, 0};
  }

  FormResult carry_out(std::span<const OneSidedRequest> requests,
                       const std::optional<Arrival>& arrival = {}) {
    if (auto outcome = bench_->pair.post(requests); !outcome) return refuse(outcome.error());
    return await(arrival);
  }
  FormResult carry_out(const OneSidedRequest& request, const std::optional<Arrival>& arrival = {}) {
    return carry_out({&request, 1}, arrival);
  }

  static FormResult expect(bool is_right, FormResult result) {
    return result.works() && !is_right ? FormResult{Verdict::kWrong, 0} : result;
  }
  bool has_come(const std::byte* where, uint32_t bytes) const {
    return std::memcmp(where, memory_->source, bytes) == 0 &&
           std::all_of(where + bytes, where + kBytes, [](std::byte byte) { return byte == std::byte{0}; });
  }

  void run_plain() {
    attempt(Form::kWrite, false, [&] {
      const FormResult done = carry_out(make(Opcode::kWrite, kBytes));
      return expect(has_come(memory_->target, kBytes), done);
    });
    attempt(Form::kInline, false, [&] { return write_inline(); });
    attempt(Form::kEmptyWrite, false,
            [&] { return carry_out({{.opcode = Opcode::kWrite, .signaled = true}}); });
    attempt(Form::kRead, false, [&] {
      std::memcpy(memory_->target, memory_->source, kShortBytes);
      OneSidedRequest request = make(Opcode::kRead, kShortBytes);
      request.local = memory_->received;
      const FormResult done = carry_out(request);
      return expect(has_come(memory_->received, kShortBytes), done);
    });
    if (device_.offers_atomics()) {
      attempt(Form::kFetchAdd, false,
              [&] { return add(reinterpret_cast<uintptr_t>(memory_->target), region_.remote_key(), 0); });
    } else {
      result(Form::kFetchAdd).verdict = Verdict::kNotOffered;
    }
    attempt(Form::kChain, false, [&] {
      std::array<OneSidedRequest, kChainLength> chain;
      constexpr uint32_t kPart = kBytes / kChainLength;
      for (uint32_t i = 0; i < kChainLength; ++i) {
        chain[i] = make(Opcode::kWrite, kPart);
        chain[i].signaled = i + 1 == kChainLength;
        chain[i].local = memory_->source + i * kPart;
        chain[i].remote += i * kPart;
      }
      const FormResult done = carry_out(chain);
      return expect(has_come(memory_->target, kBytes), done);
    });
  }

  // The buffer may be changed as soon as post() returns.
  FormResult write_inline() {
    const uint32_t bytes = std::min(bench_->pair.inline_bytes(), kShortBytes);
    if (bytes == 0) return {Verdict::kNotOffered, 0};
    OneSidedRequest request = make(Opcode::kWrite, bytes);
    std::byte lent[kShortBytes];
    std::memcpy(lent, memory_->source, bytes);
    request.local = lent;
    request.local_key = 0;
    request.send_inline = true;
    if (auto outcome = bench_->pair.post({&request, 1}); !outcome) return refuse(outcome.error());
    std::memset(lent, 0xff, sizeof(lent));
    const FormResult done = await({});
    return expect(has_come(memory_->target, bytes), done);
  }

  FormResult add(uint64_t remote, uint32_t remote_key, uint64_t before) {
    OneSidedRequest request = make(Opcode::kFetchAdd, sizeof(uint64_t));
    request.local = memory_->received;
    request.remote = remote;
    request.remote_key = remote_key;
    request.addend = kAddend;
    FormResult done = carry_out(request);
    request.addend = 0;
    uint64_t former = 0, sum = 0;
    std::memcpy(&former, memory_->received, sizeof(former));
    if (done.works()) done = carry_out(request);
    std::memcpy(&sum, memory_->received, sizeof(sum));
    return expect(former == before && sum == before + kAddend, done);
  }

  // Tests shared queues; tests a queue pair's own queues if there are no shared ones, or if they fail.
  void run_receives() {
    bool needs_own = options_.all_forms;
    if (device_.max_srq_entries() < kDepth) {
      for (const Form form :
           {Form::kSharedSend, Form::kSharedWriteImm, Form::kSharedEmptyImm, Form::kSharedBare})
        result(form).verdict = Verdict::kNotOffered;
      needs_own = true;
    } else {
      receive(true, Form::kSharedSend);
      for (const Form form : {Form::kSharedSend, Form::kSharedWriteImm, Form::kSharedEmptyImm})
        needs_own |= result(form).fails();
    }
    if (needs_own) receive(false, Form::kOwnSend);
  }

  void receive(bool shared, Form first) {
    const auto next = [&](int step) { return static_cast<Form>(static_cast<int>(first) + step); };
    attempt(next(0), shared, [&] {
      return take(Opcode::kSendImm, kShortBytes, {CompletionKind::kReceive, kShortBytes}, memory_->received);
    });
    const Arrival written{CompletionKind::kReceiveWrite, kShortBytes};
    attempt(next(1), shared,
            [&] { return take(Opcode::kWriteImm, kShortBytes, written, memory_->received); });
    attempt(next(2), shared, [&] {
      return take(Opcode::kWriteImm, 0, {CompletionKind::kReceiveWrite, 0}, memory_->received);
    });
    if (options_.all_forms || device_.takes_empty_receives())
      attempt(next(3), shared, [&] { return take(Opcode::kWriteImm, kShortBytes, written, nullptr); });
  }

  // `piece` is the buffer of the receive; null for a receive without one.
  FormResult take(Opcode opcode, uint32_t bytes, const Arrival& arrival, std::byte* piece) {
    const ReceiveBuffer buffer{piece, piece != nullptr ? kBytes : 0, region_.local_key(), 0};
    if (auto outcome =
            bench_->shared ? bench_->shared->post({&buffer, 1}) : bench_->pair.post_receives({&buffer, 1});
        !outcome)
      return refuse(outcome.error());
    OneSidedRequest request = make(opcode, bytes);
    if (bytes == 0) request.remote_key = 0, request.remote = 0;
    const FormResult done = carry_out(request, arrival);
    return expect(has_come(opcode == Opcode::kSendImm ? piece : memory_->target, bytes), done);
  }

  static FormResult take(auto made, auto& into) {
    if (!made) return refuse(made.error());
    into = std::move(*made);
    return {Verdict::kWorks, 0};
  }

  // The queue pair is not connected; only the address handle names this port.
  FormResult open(DatagramBench& bench) {
    const LocalAddress address = device_.local_address();
    FormResult opened = take(CompletionQueue::create(device_, 2 * kDepth), bench.completions);
    if (opened.works()) opened = take(SharedReceiveQueue::create(device_, kDepth, 2), bench.receives);
    if (opened.works())
      opened =
          take(DatagramPair::create(device_, bench.completions, bench.completions, bench.receives,
                                    {.send_depth = kDepth, .inline_bytes = kShortBytes, .key = kDatagramKey}),
               bench.pair);
    if (!opened.works()) return opened;
    auto way = device_.address_handles().take(address, address.port, -1, 1, AddressHandles::Purpose::kAnswer);
    if (!way && way.error().errno_value == ETIMEDOUT) return {Verdict::kNoAnswer, ETIMEDOUT};
    return take(std::move(way), bench.way);
  }

  void run_datagrams() {
    if (device_.max_srq_entries() < kDepth) {
      result(Form::kShortDatagram).verdict = result(Form::kDatagram).verdict = Verdict::kNotOffered;
      return;
    }
    const uint32_t mtu_bytes = std::min(128U << device_.local_address().port.mtu, kBytes);
    send_datagram(Form::kShortDatagram, kShortBytes, 0);
    send_datagram(Form::kDatagram, kShortBytes, mtu_bytes - kShortBytes);
  }

  // The device writes the network header in front of the data.
  void send_datagram(Form form, uint32_t header_bytes, uint32_t data_bytes) {
    DatagramBench bench;
    attempt_over([&] { return open(bench); }, form,
                 [&] { return exchange(bench, header_bytes, data_bytes); });
  }

  FormResult exchange(DatagramBench& bench, uint32_t header_bytes, uint32_t data_bytes) {
    std::byte* const page = memory_->datagram + kGrhBytes + header_bytes;
    const uint32_t key = region_.local_key();
    const SplitReceive receive{.line = {memory_->datagram, kGrhBytes + header_bytes, key, 0},
                               .page = {page, data_bytes, key, 0}};
    if (auto outcome = post_split(bench.receives, {&receive, 1}); !outcome) return refuse(outcome.error());
    const Datagram datagram{.way = bench.way.get(),
                            .pair_number = bench.pair.number(),
                            .key = kDatagramKey,
                            .imm = kImm,
                            .send_inline = data_bytes == 0 && bench.pair.inline_bytes() >= header_bytes,
                            .header_length = header_bytes,
                            .data_length = data_bytes,
                            .header = memory_->source,
                            .data = memory_->source + header_bytes,
                            .header_key = key,
                            .data_key = key};
    if (auto outcome = bench.pair.post({&datagram, 1}); !outcome) return refuse(outcome.error());
    const uint32_t bytes = header_bytes + data_bytes;
    const FormResult done = await(
        bench.completions, [&](const Completion& completion) { bench.pair.retire(completion.cookie); },
        Arrival{CompletionKind::kReceive, kGrhBytes + bytes});
    return expect(std::memcmp(memory_->datagram + kGrhBytes, memory_->source, bytes) == 0, done);
  }

  void run_gpu() {
    auto region = options_.dmabuf >= 0 ? MemoryRegion::register_dmabuf(device_, options_.gpu_memory,
                                                                       SelfTestOptions::kGpuBytes, 0,
                                                                       options_.dmabuf, access())
                                       : MemoryRegion::register_memory(device_, options_.gpu_memory,
                                                                       SelfTestOptions::kGpuBytes, access());
    result(Form::kGpuRegister) = region ? FormResult{Verdict::kWorks, 0} : refuse(region.error());
    if (!region) return;
    const auto remote = reinterpret_cast<uintptr_t>(options_.gpu_memory);
    attempt(Form::kGpuWrite, false, [&] {
      OneSidedRequest request = make(Opcode::kWrite, kBytes);
      request.remote = remote;
      request.remote_key = region->remote_key();
      return carry_out(request);
    });
    if (!result(Form::kGpuWrite).works()) return;
    const std::unique_ptr<std::byte[]> written(new std::byte[kBytes]);
    std::memcpy(written.get(), memory_->source, kBytes);
    attempt(Form::kGpuRead, false, [&] {
      OneSidedRequest request = make(Opcode::kRead, kBytes);
      request.local = memory_->received;
      request.remote = remote;
      request.remote_key = region->remote_key();
      const FormResult done = carry_out(request);
      return expect(std::memcmp(memory_->received, written.get(), kBytes) == 0, done);
    });
    uint64_t before = 0;
    std::memcpy(&before, written.get(), sizeof(before));
    if (!device_.offers_atomics()) {
      result(Form::kGpuFetchAdd).verdict = Verdict::kNotOffered;
    } else {
      attempt(Form::kGpuFetchAdd, false, [&] { return add(remote, region->remote_key(), before); });
    }
    bench_.reset();  // destroyed before the region
  }

  Device& device_;
  const SelfTestOptions options_;
  const std::unique_ptr<Memory> memory_;
  MemoryRegion region_;
  std::unique_ptr<Bench> bench_;
  SelfTestResult result_;
  int silences_ = 0;
  unsigned seed_ = 0;
};

void append(std::string& text, const char* what, const FormResult& result, const char* instead) {
  if (!text.empty()) text += "; ";
  text += what + std::string(" ") + describe(result) + ": " + instead;
}

// Returns the first form that fails, or null.
const FormResult* find_failure(const SelfTestResult& result, std::initializer_list<Form> forms) {
  for (const Form form : forms)
    if (result.of(form).fails()) return &result.of(form);
  return nullptr;
}

}  // namespace

std::string describe(const FormResult& result) {
  switch (result.verdict) {
    case Verdict::kNotTried:
      return "not tried";
    case Verdict::kNotOffered:
      return "not offered";
    case Verdict::kWorks:
      return "ok";
    case Verdict::kRefused:
      return "refused (errno " + std::to_string(result.code) + ")";
    case Verdict::kFailed:
      return "failed (status " + std::to_string(result.code) + ")";
    case Verdict::kNoAnswer:
      return "has no completion" + (result.code != 0 ? " (errno " + std::to_string(result.code) + ")" : "");
    case Verdict::kWrong:
      break;
  }
  return "wrong";
}

SelfTestResult test_device(Device& device, const SelfTestOptions& options) {
  const base::QuietLog quiet;
  device.events().set_quiet(true);
  const SelfTestResult result = Tester(device, options).run();
  device.events().set_quiet(false);
  return result;
}

Abilities judge(const SelfTestResult& result, Abilities untested) {
  Abilities found = std::move(untested);
  const FormResult& write = result.of(Form::kWrite);
  if (write.fails()) {
    // A queue pair that cannot reach itself may still reach other ports: for example functions of a card
    // without local loopback, or an address that the host routes through a switch.
    if (write.verdict == Verdict::kFailed || write.verdict == Verdict::kNoAnswer) {
      found.reaches_itself = false;
      append(found.advice, "a write to itself", write,
             "the plugin trusts the features that the device reports, and flushes of GPU memory may fail");
    } else {
      found.unusable = "a write " + describe(write);
    }
    return found;
  }
  if (const FormResult* failure =
          find_failure(result, {Form::kSharedSend, Form::kSharedWriteImm, Form::kSharedEmptyImm})) {
    found.shared_receives = false;
    append(found.advice, "a shared receive queue", *failure, "each queue pair gets its own receive queue");
  }
  if (const FormResult* failure = find_failure(result, {Form::kShortDatagram, Form::kDatagram}))
    append(found.advice, "a datagram", *failure, "VERBENA_TRANSPORT=connected is needed");
  if (const FormResult* failure =
          find_failure(result, {Form::kOwnSend, Form::kOwnWriteImm, Form::kOwnEmptyImm}))
    if (failure->is_proved() &&
        (!found.shared_receives || result.of(Form::kSharedSend).verdict == Verdict::kNotOffered))
      found.unusable = "a receive with an immediate " + describe(*failure);
  if (result.of(Form::kChain).is_proved())
    found.unusable = "a chain of writes " + describe(result.of(Form::kChain));
  const FormResult& bare = result.of(
      found.shared_receives && result.of(Form::kSharedSend).works() ? Form::kSharedBare : Form::kOwnBare);
  if (bare.fails() && found.empty_receives) {
    found.empty_receives = false;
    append(found.advice, "a receive without memory", bare, "each receive gets a buffer of a few bytes");
  }
  if (const FormResult& form = result.of(Form::kInline); form.fails()) {
    found.inline_writes = false;
    append(found.advice, "an inline write", form, "grants are sent from registered memory");
  }
  if (const FormResult& form = result.of(Form::kEmptyWrite); form.fails()) {
    found.empty_writes = false;
    append(found.advice, "a write of no bytes", form, "a rail that has failed is not used again");
  }
  if (const FormResult& form = result.of(Form::kFetchAdd); form.fails()) {
    found.fetch_add = false;
    append(found.advice, "a fetch-and-add", form,
           "the plugin uses no atomics, so it offers neither RMA nor GIN");
  }
  if (const FormResult& form = result.of(Form::kRead); form.fails())
    append(found.advice, "a read", form, "flushes of GPU memory and gets will fail");
  return found;
}

}  // namespace verbena::verbs
