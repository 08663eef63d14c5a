#include "nccl/process.h"

#include "base/lasting.h"
#include "base/log.h"
#include "base/parameters.h"

namespace verbena::nccl {

namespace {

// Up to table 10 nothing tells PAT from ring, and NCCL 2.24 to 2.27 choose PAT although its kernel never
// unpacks.
constexpr int kFirstTableWithAttributes = 11;

void guard_against_pat(int abi_version) {
  if (abi_version >= kFirstTableWithAttributes || !base::parameters().unpack) return;
  if (base::set_environment_default("NCCL_PAT_ENABLE", "0")) {
    base::log_info(
        "init: NCCL_PAT_ENABLE=0 set: this NCCL does not say when PAT receives, which no kernel unpacks, are "
        "posted (VERBENA_UNPACK=0 brings PAT back)");
  }
}

unsigned long long as_ull(uint64_t value) {
  return value;
}

}  // namespace

void Context::enter() {
  const std::lock_guard lock(mutex);
  ++open_communicators;
}

void Context::leave(const transport::Statistics& statistics) {
  const std::lock_guard lock(mutex);  // whoever finalizes an idle context waits for it
  totals.add(statistics);
  if (--open_communicators == 0 && abi_version < kFirstTableWithAttributes) report();
}

void Context::report() const {
  const auto& t = totals;
  base::log_info(
      "communicator 0x%llx: sent: staged %llu messages %llu bytes, direct %llu messages %llu bytes; "
      "received: "
      "staged %llu messages %llu bytes, direct %llu messages %llu bytes; unpack descriptors %llu, copied by "
      "the "
      "plugin %llu messages",
      as_ull(communicator_id), as_ull(t.sent_staged_messages), as_ull(t.sent_staged_bytes),
      as_ull(t.sent_direct_messages), as_ull(t.sent_direct_bytes), as_ull(t.received_staged_messages),
      as_ull(t.received_staged_bytes), as_ull(t.received_direct_messages), as_ull(t.received_direct_bytes),
      as_ull(t.unpack_descriptors), as_ull(t.copied_messages));
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
  }
  if (nics_ == nullptr) {
    if (auto outcome = find_nics(); !outcome) return outcome.error();
  }
  guard_against_pat(abi_version);
  auto context = std::make_unique<Context>();
  context->communicator_id = communicator_id;
  context->traffic_class = traffic_class;
  context->abi_version = abi_version;
  context->nics = nics_;
  ++contexts_;
  return context.release();
}

// NCCL numbers the devices once in its life: the same ports and virtual devices are found again in the same
// order.
base::Outcome Process::find_nics() {
  nics_ = last_nics_.lock();  // alive while communicators outlive their context
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
  delete context;
  if (--contexts_ != 0) return;
  last_nics_ = nics_;
  nics_.reset();
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
  return base::fail(base::Status::kInvalidArgument, "%s: no such device (dev %d, devices 0 to %d)", who,
                    device, nics->size() - 1);
}

}  // namespace verbena::nccl
