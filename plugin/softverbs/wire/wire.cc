#include "softverbs/wire/wire.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "softverbs/engine/objects.h"
#include "softverbs/engine/queue_pair.h"
#include "softverbs/shared/clock.h"
#include "softverbs/shared/config.h"
#include "softverbs/wire/crowd.h"

namespace verbena::softverbs::wire {
namespace {

uint16_t get_port_number(uint32_t slot) {
  return static_cast<uint16_t>(get_config().port + slot);
}

std::array<uint8_t, 16> make_key(const void* gid) {
  std::array<uint8_t, 16> key{};
  memcpy(key.data(), gid, key.size());
  return key;
}

void fill_job(char (&to)[sizeof(Hello::job)]) {
  const std::string& job = get_config().job;
  memcpy(to, job.data(), std::min(job.size(), sizeof(to)));
}

}  // namespace

Wire::Wire() : qps_(new std::atomic<Qp*>[kQpCount]()) {
  for (const ibv_gid& address : get_rail_addresses()) {
    Port* port = nullptr;
    for (const auto& known : ports_) {
      if (is_same(known->address, address)) port = known.get();
    }
    if (port == nullptr) port = ports_.emplace_back(std::make_unique<Port>(*this, address)).get();
    port_of_rail_.push_back(port);
  }
}

bool Wire::claim(uint32_t slot) {
  slot_ = slot;
  for (const auto& port : ports_) {
    int error = 0;
    if (port->listen(get_port_number(slot), error)) continue;
    for (const auto& other : ports_) other->stop_listening();
    if (error == EADDRINUSE) return false;
    warn(
        "cannot listen at %s, TCP port %u, so processes on other hosts cannot reach this process: %s. Check "
        "SOFTVERBS_NETDEVS and SOFTVERBS_PORT",
        write_address(port->address).c_str(), get_port_number(slot), strerror(error));
    return true;
  }
  is_listening_ = true;
  return true;
}

int Wire::start() {
  if (is_started_.load(std::memory_order_acquire)) return 0;
  const std::lock_guard lock(start_mutex_);
  for (const auto& port : ports_) {
    if (const int error = port->start(); error != 0) return error;
  }
  is_started_.store(true, std::memory_order_release);
  return 0;
}

bool Wire::prepare_gpu(uint32_t rail, uint32_t device) {
  if (start() != 0) return false;
  const auto& loops = get_port(rail).loops;
  return std::all_of(loops.begin(), loops.end(),
                     [&](const std::unique_ptr<Loop>& loop) { return loop->gpu_path.prepare(device); });
}

void Wire::poll(uint32_t rail) {
  if (is_active_.load(std::memory_order_relaxed)) get_port(rail).loops[0]->poll();
}

void Wire::quiesce() {
  for (const auto& port : ports_) {
    for (const auto& loop : port->loops) loop->quiesce();
  }
}

void Wire::leave() {
  if (!is_active_.load()) return;
  for (const auto& port : ports_) {
    for (const auto& loop : port->loops) loop->poll();
  }
}

std::shared_ptr<ProcessLink> Wire::get_link(uint32_t rail, const ibv_gid& peer, uint32_t qp_number) {
  if (!leads_away(peer)) return nullptr;
  Port& port = get_port(rail);
  const auto number = get_port_number(get_qp_slot(qp_number));
  const LinkKey key{&port, make_key(&peer), number};
  const std::lock_guard lock(links_mutex_);
  if (const auto known = links_.find(key); known != links_.end()) return known->second;
  Hello hello = make_hello(port.address, peer, get_qp_slot(qp_number));
  if (getrandom(&hello.link, sizeof(hello.link), GRND_NONBLOCK) != sizeof(hello.link)) return nullptr;
  auto link = std::make_shared<ProcessLink>(port, true, hello, number);
  set_active();
  if (!link->connect_stream(0)) return nullptr;
  return links_[key] = link;
}

std::shared_ptr<ProcessLink> Wire::join(Port& port, const Hello& hello) {
  constexpr size_t kMaxAccepted = 16384;
  const std::lock_guard lock(links_mutex_);
  const std::pair key{hello.link, make_key(hello.source)};
  if (const auto known = accepted_.find(key); known != accepted_.end()) return known->second;
  if (accepted_.size() >= kMaxAccepted) return nullptr;
  set_active();
  strangers_.push_back(std::make_shared<ProcessLink>(port, false, hello, 0));
  return accepted_[key] = strangers_.back();
}

// A link uses descriptors. Links whose client is not the peer of any queue pair are kept only while there is
// space.
void Wire::limit_strangers() {
  constexpr size_t kLeast = 32, kMost = 4096;
  const size_t limit = get_descriptor_share(4, kLeast, kMost);
  std::vector<std::shared_ptr<ProcessLink>> leaving;
  {
    const std::lock_guard lock(links_mutex_);
    std::erase_if(strangers_, [](const auto& link) { return link->is_known() || link->is_dead(); });
    // A link counts at least 1, because the first stream of a new link is not added yet.
    const auto weigh = [](const auto& link) { return std::max<size_t>(link->count_streams(), 1); };
    size_t descriptors = 0;
    for (const auto& link : strangers_) descriptors += weigh(link);
    while (descriptors > limit) {
      const auto found = find_most_crowded(
          strangers_, [](const auto& link) { return std::pair(link->peer(), link->get_call_ns()); });
      descriptors -= std::min(weigh(*found), descriptors);
      leaving.push_back(*found);
      strangers_.erase(found);
    }
  }
  for (const auto& link : leaving) link->fail("no peer");
}

void Wire::check_links(Port& port) {
  constexpr uint64_t kSilenceNs = 10'000'000'000;
  std::vector<std::shared_ptr<ProcessLink>> links, strangers;
  {
    const std::lock_guard lock(links_mutex_);
    for (const auto& [key, link] : links_) {
      if (std::get<0>(key) == &port) links.push_back(link);
    }
    for (const auto& link : strangers_) {
      if (&link->port == &port) strangers.push_back(link);
    }
  }
  for (const auto& link : links) {
    link->check_end();
    link->retry_streams();
  }
  for (const auto& link : strangers) {
    if (!link->is_known() && read_clock_ns() - link->get_call_ns() > kSilenceNs) link->fail("no peer");
  }
}

void Wire::forget_memory(uint32_t key) {
  const std::lock_guard lock(links_mutex_);
  for (const auto& [unused, link] : links_) {
    for (uint32_t index = 0; index < link->hello.streams; ++index) {
      if (Stream* stream = link->get_stream(index)) stream->forget_memory(key);
    }
  }
}

void Wire::forget(const std::shared_ptr<ProcessLink>& link) {
  const std::lock_guard lock(links_mutex_);
  if (!link->is_requester) {
    accepted_.erase({link->hello.link, make_key(link->hello.source)});
    return;
  }
  const auto known = links_.find({&link->port, make_key(link->hello.destination), link->remote_port});
  if (known != links_.end() && known->second == link) links_.erase(known);
}

void Wire::add_qp(Qp& qp) {
  qps_[qp.index].store(&qp, std::memory_order_release);
}

void Wire::remove_qp(Qp& qp) {
  qps_[qp.index].store(nullptr, std::memory_order_release);
  quiesce();
}

Qp* Wire::find_qp(uint32_t number) const {
  Qp* qp =
      get_qp_slot(number) == slot_ ? qps_[get_qp_index(number)].load(std::memory_order_acquire) : nullptr;
  return qp != nullptr && qp->base.qp_num == number ? qp : nullptr;
}

void Wire::for_each_qp(const std::function<void(Qp&)>& visit) {
  const uint32_t end = Process::get()->qps.get_high_water();
  for (uint32_t index = kFirstQpIndex; index < end; ++index) {
    if (Qp* qp = qps_[index].load(std::memory_order_acquire)) visit(*qp);
  }
}

Wire* get_wire() {
  return Process::get()->wire;
}

Hello make_hello(const ibv_gid& source, const ibv_gid& destination, uint32_t slot) {
  Hello hello{};
  hello.magic = kMagic;
  hello.version = kProtocolVersion;
  hello.streams = static_cast<decltype(hello.streams)>(get_config().streams);
  hello.slot = slot;
  memcpy(hello.source, source.raw, sizeof(hello.source));
  memcpy(hello.destination, destination.raw, sizeof(hello.destination));
  fill_job(hello.job);
  return hello;
}

bool is_of_our_version(const Hello& hello) {
  return hello.magic == kMagic && hello.version == kProtocolVersion;
}

uint16_t check_hello(const Hello& hello, uint32_t own_slot) {
  if (!is_of_our_version(hello)) return kOtherVersion;
  if (hello.streams == 0 || hello.streams > kMaxStreams || hello.stream >= hello.streams)
    return kOtherVersion;
  char job[sizeof(hello.job)] = {};
  fill_job(job);
  if (memcmp(job, hello.job, sizeof(job)) != 0) return kOtherJob;
  return hello.slot == own_slot ? kWelcome : kOtherProcess;
}

}  // namespace verbena::softverbs::wire
