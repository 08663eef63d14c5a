#include "nccl/process.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "base/job_key.h"
#include "base/lasting.h"
#include "base/log.h"
#include "base/parameters.h"
#include "nccl/boundary.h"
#include "nccl/tuning.h"
#include "nccl/unpack_offer.h"
#include "transport/datagram/datagram_transport.h"
#include "transport/service/state_dump.h"
#include "transport/setup/connected_transport.h"

namespace verbena::nccl {

namespace {

// NCCL 2.24 to 2.27 choose PAT although its kernel never unpacks, and their tables do not distinguish PAT's
// receives from ring's. Verbena's tuner excludes PAT too, but another tuner may be in use.
constexpr int kFirstTableWithPat = 9;
void guard_against_pat(int abi_version) {
  const bool is_silent = abi_version >= kFirstTableWithPat && abi_version < kFirstTableWithAttributes;
  if (!is_silent || !offers_unpack()) return;
  if (base::set_environment_default("NCCL_PAT_ENABLE", "0")) {
    base::log_info(
        "init: the plugin set NCCL_PAT_ENABLE=0, because kernels cannot unpack receives of the PAT "
        "algorithm, and this version of NCCL does not tell the plugin which receives belong to PAT. To use "
        "PAT, do not set VERBENA_UNPACK=1");
  }
}

std::atomic<int> living_contexts{0};

// Runs in the forked child, which has no other threads. Log lines go to stderr there, because another thread
// of the parent may have held the lock of NCCL's logger.
void note_inheritance() {
  if (living_contexts.load(std::memory_order_relaxed) == 0) return;
  is_inherited.store(true, std::memory_order_relaxed);
  base::set_log_sink(nullptr);
}

unsigned long long as_ull(uint64_t value) {
  return value;
}

// Returns `, by rail 12 34 bytes` if there is more than one rail.
std::string describe_rails(const protocol::Statistics& totals) {
  const auto& bytes = totals.sent_rail_bytes;
  size_t rails = bytes.size();
  while (rails != 0 && bytes[rails - 1] == 0) --rails;
  if (rails < 2) return {};
  std::string text = ", by rail";
  for (size_t r = 0; r < rails; ++r) text += ' ' + std::to_string(bytes[r]);
  return text + " bytes";
}

}  // namespace

void Context::finalize() {
  const std::shared_ptr<Context> last = std::move(self);
  const std::lock_guard lock(mutex);
  if (open_communicators == 0) return;
  base::log_warn(
      "communicator 0x%llx: finalized while %d connection ends are open. Close all ends before finalize; "
      "open ends keep working, and their resources are freed only when the last end is closed",
      as_ull(communicator_id), open_communicators);
}

void Context::enter() {
  const std::lock_guard lock(mutex);
  ++open_communicators;
}

void Context::leave(const protocol::Statistics& statistics) {
  const std::lock_guard lock(mutex);  // finalizing an idle context waits for it
  totals.add(statistics);
  if (--open_communicators == 0 && abi_version < kFirstTableWithAttributes) report();
}

// Returns an empty text if nothing failed.
std::string describe_failures(const protocol::Statistics& totals) {
  std::string stalls;
  if (totals.stalls != 0) stalls = "; stalls " + std::to_string(totals.stalls);
  if (totals.failed_queue_pairs == 0) return stalls;
  return stalls + "; queue pairs failed " + std::to_string(totals.failed_queue_pairs) + ", revived " +
         std::to_string(totals.revived_queue_pairs) + ", chunks retransmitted " +
         std::to_string(totals.replayed_chunks);
}

void Context::report() const {
  const auto& t = totals;
  base::log_info(
      "communicator 0x%llx: sent: staged %llu messages %llu bytes, direct %llu messages %llu bytes%s; "
      "received: "
      "staged %llu messages %llu bytes, direct %llu messages %llu bytes; unpack descriptors %llu, copied by "
      "the "
      "plugin %llu messages%s",
      as_ull(communicator_id), as_ull(t.sent_staged().messages), as_ull(t.sent_staged().bytes),
      as_ull(t.sent_direct().messages), as_ull(t.sent_direct().bytes), describe_rails(t).c_str(),
      as_ull(t.received_staged_messages), as_ull(t.received_staged_bytes), as_ull(t.received_direct_messages),
      as_ull(t.received_direct_bytes), as_ull(t.unpack_descriptors), as_ull(t.copied_messages),
      describe_failures(t).c_str());
}

Process& Process::get() {
  static const base::Lasting<Process> process;
  return *process;
}

bool Process::is_idle() {
  const std::lock_guard lock(mutex_);
  return contexts_ == 0;
}

base::Result<Context*> Process::open_context(uint64_t communicator_id, int traffic_class, int abi_version) {
  const std::lock_guard lock(mutex_);
  if (contexts_ == 0) {
    if (auto outcome = base::load_parameters(); !outcome) return outcome.error();
    if (auto outcome = base::load_job_key(); !outcome) return outcome.error();
  }
  if (nics_ == nullptr) {
    if (auto outcome = find_nics(); !outcome) return outcome.error();
  }
  if (abi_version != kNoMessages) {
    // NCCL chooses another network only if init fails; a failure in listen would be too late.
    const auto& used = transport();
    if (auto outcome = used.check(*nics_); !outcome) {
      if (contexts_ == 0) nics_.reset();
      return outcome.error();
    }
    if (message_contexts_ == 0) {
      load_tuning(*nics_, abi_version);
      used.introduce();
    }
    used.check_traffic_class(communicator_id, traffic_class);
    guard_against_pat(abi_version);
    oldest_abi_version_ = message_contexts_ == 0 ? abi_version : std::min(oldest_abi_version_, abi_version);
    ++message_contexts_;
  }
  if (contexts_ == 0) transport::start_reports();
  const std::shared_ptr<Context> context(new Context, [this](Context* gone) { close_context(gone); });
  context->communicator_id = communicator_id;
  context->traffic_class = traffic_class;
  context->abi_version = abi_version;
  context->nics = nics_;
  // Destroyed when the library is unloaded.
  static const int watches_forks = pthread_atfork(nullptr, nullptr, &note_inheritance);
  static_cast<void>(watches_forks);
  ++contexts_;
  living_contexts.store(contexts_, std::memory_order_relaxed);
  context->self = context;
  return context.get();
}

// NCCL numbers the devices only once per process. So a later init must find the same ports and virtual
// devices in the same order.
base::Outcome Process::find_nics() {
  nics_ = last_nics_.lock();  // not empty while communicators outlive their context
  if (nics_ != nullptr) return {};
  auto nics = transport::NicRegistry::discover();
  if (!nics) return nics.error();
  for (const auto& members : virtual_nics_) {
    if (auto index = (*nics)->add_virtual(members); !index) return index.error();
  }
  nics_ = std::move(*nics);
  return {};
}

base::Result<int> Process::add_virtual_nic(std::span<const int> members) {
  const std::lock_guard lock(mutex_);
  if (nics_ == nullptr) return base::fail(base::Status::kInvalidUsage, "makeVDevice: called before init");
  const int before = nics_->size();
  auto index = nics_->add_virtual(members);
  if (index && *index == before) virtual_nics_.emplace_back(members.begin(), members.end());
  return index;
}

void Process::close_context(Context* context) {
  {
    const std::lock_guard lock(context->mutex);
    if (context->abi_version >= kFirstTableWithAttributes) context->report();
  }
  const std::lock_guard lock(mutex_);
  if (context->abi_version != kNoMessages) --message_contexts_;
  delete context;
  living_contexts.store(--contexts_, std::memory_order_relaxed);
  if (contexts_ != 0) return;
  transport::stop_reports();
  last_nics_ = nics_;
  nics_.reset();
}

int Process::oldest_abi_version() {
  const std::lock_guard lock(mutex_);
  return message_contexts_ == 0 ? 0 : oldest_abi_version_;
}

const transport::Transport& Process::transport() {
  const bool is_datagram = base::parameters().transport == base::Transport::kDatagram;
  return is_datagram ? transport::datagram::datagram_transport() : transport::connected_transport();
}

std::shared_ptr<transport::NicRegistry> Process::nics() {
  const std::lock_guard lock(mutex_);
  return nics_;
}

base::Result<const transport::Nic*> Process::find_nic(const std::shared_ptr<transport::NicRegistry>& nics,
                                                      int device, const char* who) {
  if (nics == nullptr) return base::fail(base::Status::kInvalidUsage, "%s: called before init", who);
  const std::lock_guard lock(mutex_);
  const transport::Nic* nic = nics->find(device);
  if (nic != nullptr) return nic;
  return base::fail(base::Status::kInvalidArgument, "%s: device %d does not exist (devices 0 to %d)", who,
                    device, nics->size() - 1);
}

}  // namespace verbena::nccl
