// A device that fails for good, as a NIC whose firmware has crashed: its queue pairs are flushed, nothing can
// be created on it or asked of it any more, and its events say IBV_EVENT_DEVICE_FATAL.
#include <mutex>
#include <set>
#include <vector>

#include "target.h"

namespace verbena::verbs::faulty {
namespace {

std::mutex mutex;  // guards the two below
std::vector<ibv_qp*> pairs;
std::set<const ibv_context*> told;  // whose event has been read

uint32_t bit_of(const ibv_context* context) {
  return 1U << find_number(context->device);
}

}  // namespace

void note_pair(ibv_qp* pair) {
  const std::lock_guard lock(mutex);
  pairs.push_back(pair);
}

void forget_pair(ibv_qp* pair) {
  const std::lock_guard lock(mutex);
  std::erase(pairs, pair);
}

void end_device(int number) {
  Hooks& all = hooks();
  all.dead_devices |= 1U << number;
  const std::lock_guard lock(mutex);
  told.clear();
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  for (ibv_qp* pair : pairs)
    if (find_number(pair->context->device) == number) target().modify_qp(pair, &attributes, IBV_QP_STATE);
}

bool refuse_on(const ibv_context* context, const char* name) {
  Hooks& all = hooks();
  const int number = find_number(context->device);
  if (number == all.dying_device && ++all.device_calls == all.fatal_call) end_device(number);
  if ((all.dead_devices & bit_of(context)) == 0) return refuse(name);
  errno = EIO;
  return true;
}

bool take_death(const ibv_context* context) {
  const std::lock_guard lock(mutex);
  return (hooks().dead_devices & bit_of(context)) != 0 && told.insert(context).second;
}

}  // namespace verbena::verbs::faulty
