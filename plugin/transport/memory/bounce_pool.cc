#include "transport/memory/bounce_pool.h"

#include <algorithm>
#include <cerrno>

#include "base/hot_path.h"
#include "base/lasting.h"
#include "base/log.h"
#include "base/parameters.h"
#include "base/text.h"
#include "topology/pci_path.h"
#include "topology/topology.h"
#include "verbs/self_test.h"

namespace verbena::transport {

namespace {

constexpr uint32_t kPostBatch = 64;
// Minimum length of a shared receive queue: as many entries as the queue pairs of one connection may request
// on one rail.
constexpr uint32_t kMinSharedEntries = 1024;
constexpr uint32_t kStepBytes = 1 << 20;
// A part of the pool, kKept / kKeptOf, is kept for modest requests. The pages above it go to the first
// connections: each gets at most a quarter of those that are left.
constexpr uint32_t kKept = 5, kKeptOf = 6, kMaxOfTheRest = 4;
// Number of retired connections that each closing connection checks. It is more than one, so that retired
// connections do not accumulate. It is constant, so that the time to close a connection does not grow
// with the number of retired connections.
constexpr size_t kLooksPerClose = 4;
// For devices that do not report draining: longer than any receive in progress.
constexpr int64_t kDrainMs = 1000;

struct Pools {
  std::mutex mutex;
  // The key is the GPU, and whether the entries have pages.
  std::map<std::pair<int, bool>, std::weak_ptr<BouncePool>> known;

  bool is_idle() {
    const std::lock_guard lock(mutex);
    return std::all_of(known.begin(), known.end(), [](const auto& entry) { return entry.second.expired(); });
  }
};

Pools& get_pools() {
  static const base::Lasting<Pools> pools;
  return *pools;
}

// Logs, once for each GPU and device, the distance between them.
void log_distance(int gpu, const verbs::Device& device) {
  const std::string address = base::find_gpu_pci_address(gpu);
  if (address.empty() || topology::trim_to_pci_device(device.sysfs_path()).empty()) return;
  const auto& machine = topology::Topology::system();
  base::log_info("GPU %d (%s): distance to device %s:%d: %s", gpu, machine.describe_device(address).c_str(),
                 device.name().c_str(), device.port_number(),
                 topology::describe(machine.measure_distance(address, device.sysfs_path())));
}

// Returns whether the error means that the device can never create a shared receive queue. Other errors, such
// as a lack of memory, may be temporary.
bool is_unsupported(int errno_value) {
  return errno_value == EOPNOTSUPP || errno_value == ENOSYS || errno_value == EINVAL;
}

}  // namespace

void FreePages::add(Run run) {
  if (run.count == 0) return;
  count_ += run.count;
  auto next = runs_.lower_bound(run.first);
  if (next != runs_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == run.first) {
      run = {before->first, before->second + run.count};
      runs_.erase(before);
    }
  }
  if (next != runs_.end() && run.first + run.count == next->first) {
    run.count += next->second;
    runs_.erase(next);
  }
  runs_.emplace(run.first, run.count);
}

FreePages::Run FreePages::take(uint32_t count) {
  return runs_.empty() || count == 0 ? Run{} : take_from(runs_.begin(), count);
}

FreePages::Run FreePages::take_together(uint32_t count) {
  for (auto run = runs_.begin(); run != runs_.end() && count != 0; ++run)
    if (run->second >= count) return take_from(run, count);
  return {};
}

uint32_t FreePages::longest() const {
  uint32_t longest = 0;
  for (const auto& [first, count] : runs_) longest = std::max(longest, count);
  return longest;
}

FreePages::Run FreePages::take_from(std::map<uint32_t, uint32_t>::iterator run, uint32_t count) {
  const Run whole{run->first, run->second}, taken{whole.first, std::min(whole.count, count)};
  runs_.erase(run);
  count_ -= taken.count;
  if (taken.count != whole.count) runs_.emplace(whole.first + taken.count, whole.count - taken.count);
  return taken;
}

base::Result<std::shared_ptr<BouncePool>> BouncePool::acquire(Kind kind, uint32_t page_bytes) {
  const int gpu = base::find_current_gpu();
  const bool has_pages = kind != Kind::kBareEntries;
  Pools& pools = get_pools();
  const std::lock_guard lock(pools.mutex);
  auto& entry = pools.known[{gpu, has_pages}];
  if (auto pool = entry.lock()) return pool;

  auto pool = std::shared_ptr<BouncePool>(new BouncePool);
  pool->gpu_ = gpu;
  if (has_pages) {
    if (auto outcome = pool->set_up_pages(kind, page_bytes); !outcome) return outcome.error();
  }
  entry = pool;
  return pool;
}

base::Outcome BouncePool::set_up_pages(Kind kind, uint32_t page_bytes) {
  const auto& parameters = base::parameters();
  page_bytes_ = page_bytes != 0 ? page_bytes : static_cast<uint32_t>(parameters.page_bytes);
  pages_ = static_cast<uint32_t>(static_cast<uint64_t>(parameters.bounce_bytes) / page_bytes_);
  const size_t region_bytes = size_t{pages_} * page_bytes_;
  if (kind == Kind::kGpuPages && gpu_ != base::kNoGpu) {
    auto region = base::Buffer::allocate(base::Place::kDevice, region_bytes);
    if (!region) return region.error();
    gpu_region_ = std::move(*region);
    step_pages_ = pages_;
  } else {
    auto region = base::GrowingBuffer::reserve(region_bytes);
    if (!region) return region.error();
    host_region_ = std::move(*region);
    step_pages_ = std::max(kStepBytes / page_bytes_, 1U);
  }
  infos_.resize(pages_);
  free_pages_.add({0, pages_});
  return {};
}

void* BouncePool::address_of(uint32_t page) const {
  auto* base = static_cast<uint8_t*>(is_gpu_memory() ? gpu_region_.device() : host_region_.host());
  return base + offset_of(page);
}

uint64_t BouncePool::usable_bytes() {
  const std::lock_guard lock(mutex_);
  return is_gpu_memory() ? gpu_region_.length_bytes() : host_region_.usable_bytes();
}

verbs::ReceiveBuffer BouncePool::make_receive(const Queue& queue, uint32_t page) const {
  if (is_bare()) return queue.bare_;
  return {address_of(page), page_bytes_, queue.local_key(page), kPageBit | page};
}

template <typename Post>
VERBENA_HOT_PATH base::Outcome BouncePool::post_batches(const Queue& queue, std::span<const uint32_t> pages,
                                                        Post&& post) const {
  verbs::ReceiveBuffer batch[kPostBatch];
  while (!pages.empty()) {
    const size_t count = std::min<size_t>(pages.size(), kPostBatch);
    for (size_t i = 0; i < count; ++i) batch[i] = make_receive(queue, pages[i]);
    if (base::Outcome outcome = post({batch, count}); !outcome) return outcome;
    pages = pages.subspan(count);
  }
  return {};
}

base::Result<BouncePool::Rail*> BouncePool::open_rail(verbs::Device& device) {
  if (const auto found = rails_.find(&device); found != rails_.end()) return found->second.get();
  auto rail = std::make_unique<Rail>();
  rail->lacks_shared_queues = !device.abilities().shared_receives;
  rail->keys.resize((pages_ + step_pages_ - 1) / step_pages_);
  if (auto outcome = register_steps(device, *rail); !outcome) return outcome.error();
  if (auto outcome = register_bare(device, *rail); !outcome) return outcome.error();
  log_distance(gpu_, device);
  return rails_.emplace(&device, std::move(rail)).first->second.get();
}

std::unique_ptr<BouncePool::Queue> BouncePool::make_queue(const Rail& rail, uint32_t capacity_entries) const {
  auto queue = std::make_unique<Queue>(rail.bare_entries);
  queue->bare_ = rail.bare;
  queue->keys_ = rail.keys.data();
  queue->step_pages_ = step_pages_;
  queue->capacity_entries_ = capacity_entries;
  return queue;
}

// Some devices reject a receive without a buffer, or build it incorrectly in a shared queue. For these
// devices, registers a small buffer.
base::Outcome BouncePool::register_bare(verbs::Device& device, Rail& rail) {
  if (!is_bare() || device.abilities().empty_receives) return {};
  auto region = verbs::MemoryRegion::register_memory(device, bare_memory_.data(), sizeof(bare_memory_),
                                                     {.remote_read = false, .remote_write = false});
  if (!region) return region.error();
  rail.bare.address = bare_memory_.data();
  rail.bare.length = sizeof(bare_memory_);
  rail.bare.local_key = region->local_key();
  rail.bare_region = std::move(*region);
  rail.bare_entries = verbs::EqualReceives(rail.bare);
  return {};
}

base::Outcome BouncePool::add_queue(verbs::Device& device, Rail& rail) {
  const uint32_t entries = std::min(is_bare() ? kBareQueueEntries : pages_, device.max_srq_entries());
  auto made = verbs::SharedReceiveQueue::create(device, entries);
  if (!made) return made.error();
  rail.queues.push_back(make_queue(rail, entries));
  rail.queues.back()->queue_ = std::move(*made);
  return {};
}

// Returns a queue that has enough entries left; otherwise a new queue, if it would have more; otherwise the
// queue that has the most. Returns null if the first queue cannot be created; then each queue pair has its
// own.
base::Result<BouncePool::Queue*> BouncePool::choose_queue(verbs::Device& device, Rail& rail,
                                                          uint32_t enough_entries) {
  Queue* best = nullptr;
  for (const auto& queue : rail.queues) {
    if (best == nullptr || count_left(*queue) > count_left(*best)) best = queue.get();
    if (count_left(*best) >= enough_entries) return best;
  }
  if (best != nullptr && count_growth(best->capacity_entries_) <= count_left(*best)) return best;
  if (auto outcome = add_queue(device, rail); !outcome) {
    if (best != nullptr || !rail.runs.empty()) return outcome.error();
    rail.lacks_shared_queues = is_unsupported(outcome.error().errno_value);
    base::log_warn(rail.lacks_shared_queues
                       ? "device %s:%d does not support shared receive queues, so each queue pair has its "
                         "own receive queue"
                       : "device %s:%d: each queue pair of this connection has its own receive queue",
                   device.name().c_str(), device.port_number());
    return nullptr;
  }
  return rail.queues.back().get();
}

// Registers every step of the region that is not registered on this rail yet.
base::Outcome BouncePool::register_steps(verbs::Device& device, Rail& rail) {
  if (device.has_failed()) return {};
  for (auto step = static_cast<uint32_t>(rail.regions.size()); step < usable_steps_; ++step) {
    const uint32_t first = step * step_pages_;
    const size_t length_bytes = size_t{std::min(step_pages_, pages_ - first)} * page_bytes_;
    auto region = verbs::MemoryRegion::register_memory(device, address_of(first), length_bytes,
                                                       {.remote_read = true, .remote_write = false});
    if (!region) return region.error();
    rail.keys[step] = {region->local_key(), region->remote_key()};
    rail.regions.push_back(std::move(*region));
  }
  return {};
}

// Allocates memory for the first `pages` pages, on all rails.
base::Outcome BouncePool::make_usable(uint32_t pages) {
  if (is_bare()) return {};
  const uint32_t steps = (pages + step_pages_ - 1) / step_pages_;
  if (!is_gpu_memory()) {
    auto outcome = host_region_.grow(size_t{std::min(steps * step_pages_, pages_)} * page_bytes_);
    if (!outcome) return outcome;
  }
  usable_steps_ = std::max(usable_steps_, steps);
  for (auto& [device, rail] : rails_) {
    if (auto outcome = register_steps(*device, *rail); !outcome && !device->has_failed()) return outcome;
  }
  return {};
}

// Chooses the number of entries for each queue pair.
uint32_t BouncePool::choose_grant(uint32_t left_entries, const WindowRequest& request,
                                  uint32_t queue_pairs) const {
  if (queue_pairs == 0) return 0;
  const uint32_t left = left_entries / queue_pairs;
  uint32_t grant = request.wanted;
  if (!is_bare()) {
    const uint32_t kept = pages_ / kKeptOf * kKept;
    const uint32_t generous = left_entries > kept ? (left_entries - kept) / kMaxOfTheRest / queue_pairs : 0;
    grant = std::min(grant, std::max(generous, request.modest));
  }
  grant = std::min(grant, left);
  return grant < request.least ? 0 : grant;
}

base::Result<BouncePool::Reservation> BouncePool::reserve(verbs::Device& device, const WindowRequest& request,
                                                          uint32_t queue_pairs) {
  reap();
  const std::lock_guard lock(mutex_);
  auto rail = open_rail(device);
  if (!rail) return rail.error();
  if (request.max_own != 0 || device.max_srq_entries() < kMinSharedEntries || (*rail)->lacks_shared_queues)
    return reserve_own(device, **rail, request, queue_pairs);
  if (request.wants_run) {
    auto run = reserve_run(device, **rail, request, queue_pairs);
    if (!run || run->entries != 0) return run;
  }
  auto queue = choose_queue(device, **rail, (is_bare() ? request.wanted : request.least) * queue_pairs);
  if (!queue) return queue.error();
  if (*queue == nullptr) return reserve_own(device, **rail, request, queue_pairs);
  const uint32_t granted = choose_grant(count_left(**queue), request, queue_pairs),
                 all = granted * queue_pairs;
  if (auto outcome = post_more(**queue, all - std::min(all, count_spare(**queue))); !outcome)
    return outcome.error();
  (*queue)->reserved_entries_ += all;
  return Reservation{*queue, granted, {}};
}

base::Result<BouncePool::Reservation> BouncePool::reserve_own(verbs::Device& device, Rail& rail,
                                                              const WindowRequest& request,
                                                              uint32_t queue_pairs) {
  if (rail.own == nullptr) rail.own = make_queue(rail, UINT32_MAX);
  Queue& queue = *rail.own;
  const uint32_t most =
      std::min(device.max_qp_entries(), request.max_own != 0 ? request.max_own : UINT32_MAX);
  uint32_t granted = std::min(choose_grant(count_left(queue), request, queue_pairs), most);
  if (granted < request.least) granted = 0;
  auto pages = take_pages(granted * queue_pairs);
  if (!pages) return pages.error();
  queue.posted_entries_ += granted * queue_pairs;
  queue.reserved_entries_ += granted * queue_pairs;
  return Reservation{&queue, granted, std::move(*pages)};
}

// Takes `count` free pages that have memory. The caller has checked that there are enough.
base::Result<std::vector<uint32_t>> BouncePool::take_pages(uint32_t count) {
  std::vector<uint32_t> pages;
  if (is_bare()) pages.resize(count);
  while (pages.size() < count) {
    const auto run = free_pages_.take(count - static_cast<uint32_t>(pages.size()));
    for (uint32_t i = 0; i < run.count; ++i) pages.push_back(run.first + i);
    if (auto outcome = make_usable(run.first + run.count); !outcome) {
      for (const uint32_t page : pages) free_pages_.add({page, 1});
      return outcome.error();
    }
  }
  return pages;
}

base::Outcome BouncePool::post_more(Queue& queue, uint32_t entries) {
  if (is_bare()) return post_pages(queue, 0, entries);
  while (entries != 0) {
    const auto run = free_pages_.take(entries);
    if (auto outcome = make_usable(run.first + run.count); !outcome) {
      free_pages_.add(run);
      return outcome;
    }
    if (auto outcome = post_pages(queue, run.first, run.count); !outcome) return outcome;
    entries -= run.count;
  }
  return {};
}

base::Outcome BouncePool::post_pages(Queue& queue, uint32_t first_page, uint32_t entries) {
  for (uint32_t done = 0; done != entries;) {
    verbs::ReceiveBuffer batch[kPostBatch];
    const uint32_t count = std::min(entries - done, kPostBatch);
    for (uint32_t i = 0; i < count; ++i) batch[i] = make_receive(queue, first_page + done + i);
    if (auto outcome = queue.queue_.post({batch, count}); !outcome) return outcome;
    queue.posted_entries_ += count;
    done += count;
  }
  return {};
}

// Returns no reservation, without an error, if too few consecutive pages are free or no queue can be created.
base::Result<BouncePool::Reservation> BouncePool::reserve_run(verbs::Device& device, Rail& rail,
                                                              const WindowRequest& request,
                                                              uint32_t queue_pairs) {
  const uint32_t deepest = device.max_srq_entries();
  uint32_t granted = choose_grant(std::min(free_pages_.count(), deepest), request, queue_pairs);
  if (granted * queue_pairs > free_pages_.longest()) granted = free_pages_.longest() / queue_pairs;
  if (granted == 0 || granted < request.least) return Reservation{};
  const auto pages = free_pages_.take_together(granted * queue_pairs);
  auto queue = make_queue(rail, pages.count);
  queue->is_run_ = true;
  queue->first_page_ = pages.first;
  auto outcome = make_usable(pages.first + pages.count);
  bool is_made = false;
  if (outcome) {
    auto made = verbs::SharedReceiveQueue::create(device, pages.count);
    is_made = static_cast<bool>(made);
    if (made) queue->queue_ = std::move(*made);
    outcome = made ? post_pages(*queue, pages.first, pages.count) : base::Outcome();
  }
  if (!outcome || !is_made) {
    queue.reset();
    free_pages_.add(pages);
    return outcome ? base::Result<Reservation>(Reservation{}) : outcome.error();
  }
  queue->reserved_entries_ = pages.count;
  return Reservation{rail.runs.emplace_back(std::move(queue)).get(), granted, {}};
}

// Frees the pages of a run. The entries that are still posted are destroyed with the receive queue.
void BouncePool::free_if_unused(Queue& queue) {
  if (!queue.is_run_ || queue.reserved_entries_ != 0 || queue.retiring_links_ != 0) return;
  const FreePages::Run pages{queue.first_page_, queue.capacity_entries_};
  for (auto& [device, rail] : rails_)
    std::erase_if(rail->runs, [&](const auto& run) { return run.get() == &queue; });
  free_pages_.add(pages);
}

void BouncePool::release(Queue& queue, uint32_t entries) {
  const std::lock_guard lock(mutex_);
  queue.reserved_entries_ -= entries;
  if (!queue.is_shared()) queue.posted_entries_ -= entries;
  free_if_unused(queue);
}

void BouncePool::free(std::span<const uint32_t> pages) {
  if (is_bare() || pages.empty()) return;
  const std::lock_guard lock(mutex_);
  for (const uint32_t page : pages) free_pages_.add({page, 1});
}

VERBENA_HOT_PATH base::Outcome BouncePool::repost(Queue& queue, std::span<const uint32_t> pages) {
  if (is_bare()) return queue.queue_.post(queue.bare_entries_, pages.size());
  return post_batches(queue, pages,
                      [&](std::span<const verbs::ReceiveBuffer> batch) { return queue.queue_.post(batch); });
}

base::Outcome BouncePool::post_own(const Queue& queue, verbs::QueuePair& pair,
                                   std::span<const uint32_t> pages) {
  return post_batches(queue, pages,
                      [&](std::span<const verbs::ReceiveBuffer> batch) { return pair.post_receives(batch); });
}

// Never waits for a mutex, because the thread that holds it may be waiting for a device.
std::string BouncePool::describe() {
  std::string text = is_bare() ? "receive entries without bounce pages" : "bounce pages";
  text += gpu_ == base::kNoGpu ? " in host memory" : " in memory of GPU " + std::to_string(gpu_);
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) {
    if (!is_bare())
      base::append(text, ": %u of %u in use, %u bytes each", pages_ - free_pages_.count(), pages_,
                   page_bytes_);
    for (const auto& [device, rail] : rails_) {
      uint32_t posted = 0, reserved = 0;
      for (const auto& queue : rail->queues) {
        posted += queue->posted_entries_;
        reserved += queue->reserved_entries_;
      }
      base::append(text, "; rail %s:%d: %u posted, %u reserved", device->name().c_str(),
                   device->port_number(), posted, reserved);
      if (rail->queues.size() > 1) base::append(text, ", in %zu queues", rail->queues.size());
      if (!rail->runs.empty())
        base::append(text, "; %zu connections with a contiguous run of pages each", rail->runs.size());
      if (rail->own != nullptr)
        base::append(text, ", %u in queue pairs' own queues", rail->own->reserved_entries_);
    }
  } else {
    text += ": the numbers are unknown, because another thread is posting or registering pages";
  }
  const std::unique_lock lock(retired_mutex_, std::try_to_lock);
  if (lock && !retired_.empty())
    base::append(text, "; %zu closed connections have not returned all their pages", retired_.size());
  return text;
}

void BouncePool::retire(Link link, std::vector<Queue*> queues, std::vector<uint32_t> own_pages) {
  {
    const std::lock_guard lock(mutex_);
    for (Queue* queue : queues)
      if (queue != nullptr) ++queue->retiring_links_;
  }
  {
    const std::lock_guard lock(retired_mutex_);
    retired_.push_back(
        {std::move(link), std::move(queues), std::move(own_pages), base::Deadline::after_ms(kDrainMs)});
  }
  reap(kLooksPerClose);
}

void BouncePool::reap(size_t most_looks) {
  const std::lock_guard lock(retired_mutex_);
  for (size_t looks = std::min(most_looks, retired_.size()); looks != 0; --looks) {
    if (look_at(retired_.front())) {
      const std::vector<Queue*> queues = std::move(retired_.front().queues);
      const std::vector<uint32_t> pages = std::move(retired_.front().own_pages);
      retired_.pop_front();  // destroys the queue pairs before their receive queues
      free(pages);
      const std::lock_guard queues_lock(mutex_);
      for (Queue* queue : queues) {
        if (queue == nullptr) continue;
        --queue->retiring_links_;
        free_if_unused(*queue);
      }
    } else {
      retired_.splice(retired_.end(), retired_, retired_.begin());
    }
  }
}

// Returns true if no receive of the link is outstanding, or if this can no longer be determined.
bool BouncePool::look_at(Retired& retired) {
  // Read before the poll, so that the poll finds all completions that came before.
  const bool is_last_look = retired.link.is_drained() || retired.deadline.has_passed();
  const auto take_page = [&](const verbs::Completion& completion, uint32_t rail) {
    if (!is_page_cookie(completion.cookie)) return;
    const uint32_t page = cookie_page(completion.cookie);
    Queue& queue = *retired.queues[rail];
    if (queue.is_shared()) static_cast<void>(repost(queue, {&page, 1}));
  };
  const bool is_alive =
      retired.link.poll([&](const verbs::Completion& completion,
                            uint32_t queue_pair) { take_page(completion, retired.link.rail_of(queue_pair)); },
                        take_page);
  return is_last_look || !is_alive;
}

}  // namespace verbena::transport
