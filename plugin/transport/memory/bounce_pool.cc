#include "transport/memory/bounce_pool.h"

#include <algorithm>

#include "base/hot_path.h"
#include "base/lasting.h"
#include "base/log.h"
#include "base/parameters.h"
#include "base/text.h"
#include "topology/pci_path.h"
#include "topology/topology.h"

namespace verbena::transport {

namespace {

constexpr uint32_t kPostBatch = 64;
// Of a shared receive queue, at least: what the queue pairs of one connection on one rail may ask for.
constexpr uint32_t kMinSharedEntries = 1024;
constexpr uint32_t kStepBytes = 1 << 20;
// Of a pool: kept for modest requests. What is above it goes to the first connections, a quarter of the rest
// at most to each.
constexpr uint32_t kKept = 5, kKeptOf = 6, kMaxOfTheRest = 4;
// Of retired connections by each that closes: more than one, so that they do not pile up, and no more with
// their number, so that closing many takes no longer for each.
constexpr size_t kLooksPerClose = 4;
constexpr int64_t kDrainMs = 1000;  // devices that say nothing: longer than any receive that has begun

struct Registry {
  std::mutex mutex;
  std::map<std::pair<int, bool>, std::weak_ptr<BouncePool>> pools;  // by GPU and by whether there are pages

  bool is_idle() {
    const std::lock_guard lock(mutex);
    return std::all_of(pools.begin(), pools.end(), [](const auto& entry) { return entry.second.expired(); });
  }
};

Registry& get_registry() {
  static const base::Lasting<Registry> registry;
  return *registry;
}

// Once for a GPU and a device: what the data of this pair crosses.
void log_distance(int gpu, const verbs::Device& device) {
  const std::string address = base::find_gpu_pci_address(gpu);
  if (address.empty() || topology::trim_to_pci_device(device.sysfs_path()).empty()) return;
  const auto& machine = topology::Topology::system();
  base::log_info("GPU %d (%s): device %s:%d is at the distance: %s", gpu,
                 machine.describe_device(address).c_str(), device.name().c_str(), device.port_number(),
                 topology::describe(machine.measure_distance(address, device.sysfs_path())));
}

}  // namespace

base::Result<std::shared_ptr<BouncePool>> BouncePool::acquire(Kind kind) {
  const int gpu = base::find_current_gpu();
  const bool has_pages = kind != Kind::kBareEntries;
  Registry& registry = get_registry();
  const std::lock_guard lock(registry.mutex);
  auto& entry = registry.pools[{gpu, has_pages}];
  if (auto pool = entry.lock()) return pool;

  auto pool = std::shared_ptr<BouncePool>(new BouncePool);
  pool->gpu_ = gpu;
  if (has_pages) {
    if (auto outcome = pool->set_up_pages(kind); !outcome) return outcome.error();
  }
  entry = pool;
  return pool;
}

base::Outcome BouncePool::set_up_pages(Kind kind) {
  const auto& parameters = base::parameters();
  page_bytes_ = static_cast<uint32_t>(parameters.page_bytes);
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
  if (is_bare()) return {nullptr, 0, 0, kPageBit};
  return {address_of(page), page_bytes_, queue.local_key(page), kPageBit | page};
}

template <typename Post>
base::Outcome BouncePool::post_batches(const Queue& queue, std::span<const uint32_t> pages,
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
  rail->keys.resize((pages_ + step_pages_ - 1) / step_pages_);
  if (auto outcome = register_steps(device, *rail); !outcome) return outcome.error();
  log_distance(gpu_, device);
  return rails_.emplace(&device, std::move(rail)).first->second.get();
}

std::unique_ptr<BouncePool::Queue> BouncePool::make_queue(const Rail& rail, uint32_t capacity_entries) const {
  auto queue = std::make_unique<Queue>();
  queue->keys_ = rail.keys.data();
  queue->step_pages_ = step_pages_;
  queue->capacity_entries_ = capacity_entries;
  return queue;
}

base::Outcome BouncePool::add_queue(verbs::Device& device, Rail& rail) {
  const uint32_t entries = std::min(is_bare() ? kBareQueueEntries : pages_, device.max_srq_entries());
  auto made = verbs::SharedReceiveQueue::create(device, entries);
  if (!made) return made.error();
  rail.queues.push_back(make_queue(rail, entries));
  rail.queues.back()->queue_ = std::move(*made);
  return {};
}

// Of shared ones one that has enough left, else a new one if that would have more, else the one that has
// most.
base::Result<BouncePool::Queue*> BouncePool::choose_queue(verbs::Device& device, Rail& rail,
                                                          const WindowRequest& request,
                                                          uint32_t queue_pairs) {
  if (request.max_own != 0 || device.max_srq_entries() < kMinSharedEntries) {
    if (rail.own == nullptr) rail.own = make_queue(rail, UINT32_MAX);
    return rail.own.get();
  }
  const uint32_t enough_entries = (is_bare() ? request.wanted : request.least) * queue_pairs;
  Queue* best = nullptr;
  for (const auto& queue : rail.queues) {
    if (best == nullptr || count_left(*queue) > count_left(*best)) best = queue.get();
    if (count_left(*best) >= enough_entries) return best;
  }
  if (best != nullptr && count_growth(best->capacity_entries_) <= count_left(*best)) return best;
  if (auto outcome = add_queue(device, rail); !outcome) return outcome.error();
  return rail.queues.back().get();
}

// Every step that there is and that this rail does not know yet.
base::Outcome BouncePool::register_steps(verbs::Device& device, Rail& rail) {
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

// Gives the first `pages` memory, on all rails.
base::Outcome BouncePool::make_usable(uint32_t pages) {
  if (is_bare()) return {};
  const uint32_t steps = (pages + step_pages_ - 1) / step_pages_;
  if (!is_gpu_memory()) {
    auto outcome = host_region_.grow(size_t{std::min(steps * step_pages_, pages_)} * page_bytes_);
    if (!outcome) return outcome;
  }
  usable_steps_ = std::max(usable_steps_, steps);
  for (auto& [device, rail] : rails_) {
    if (auto outcome = register_steps(*device, *rail); !outcome) return outcome;
  }
  return {};
}

// To each queue pair.
uint32_t BouncePool::choose_grant(const verbs::Device& device, const Queue& queue,
                                  const WindowRequest& request, uint32_t queue_pairs) const {
  if (queue_pairs == 0) return 0;
  uint32_t left = count_left(queue) / queue_pairs;
  if (!queue.is_shared()) left = std::min(left, device.max_qp_entries());
  if (request.max_own != 0) left = std::min(left, request.max_own);
  uint32_t grant = request.wanted;
  if (!is_bare()) {
    const uint32_t kept = pages_ / kKeptOf * kKept, all = count_left(queue);
    const uint32_t generous = all > kept ? (all - kept) / kMaxOfTheRest / queue_pairs : 0;
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
  auto queue = choose_queue(device, **rail, request, queue_pairs);
  if (!queue) return queue.error();
  const uint32_t granted = choose_grant(device, **queue, request, queue_pairs), all = granted * queue_pairs;
  Reservation reservation{*queue, granted, {}};
  if ((*queue)->is_shared()) {
    if (auto outcome = post_more(**queue, all - std::min(all, count_spare(**queue))); !outcome)
      return outcome.error();
  } else {
    auto pages = take_pages(all);
    if (!pages) return pages.error();
    reservation.pages = std::move(*pages);
    (*queue)->posted_entries_ += all;
  }
  (*queue)->reserved_entries_ += all;
  return reservation;
}

base::Outcome BouncePool::post_more(Queue& queue, uint32_t entries) {
  auto pages = take_pages(entries);
  if (!pages) return pages.error();
  queue.posted_entries_ += entries;
  return repost(queue, *pages);
}

// So many that nobody has, with memory. There are.
base::Result<std::vector<uint32_t>> BouncePool::take_pages(uint32_t count) {
  if (is_bare()) return std::vector<uint32_t>(count);
  const uint32_t used_before = std::min(count, static_cast<uint32_t>(free_pages_.size()));
  if (auto outcome = make_usable(next_free_page_ + count - used_before); !outcome) return outcome.error();
  std::vector<uint32_t> pages(free_pages_.end() - used_before, free_pages_.end());
  free_pages_.resize(free_pages_.size() - used_before);
  while (pages.size() < count) pages.push_back(next_free_page_++);
  return pages;
}

void BouncePool::release(Queue& queue, uint32_t entries) {
  const std::lock_guard lock(mutex_);
  queue.reserved_entries_ -= entries;
  if (!queue.is_shared()) queue.posted_entries_ -= entries;
}

void BouncePool::free(std::span<const uint32_t> pages) {
  if (is_bare() || pages.empty()) return;
  const std::lock_guard lock(mutex_);
  free_pages_.insert(free_pages_.end(), pages.begin(), pages.end());
}

VERBENA_HOT_PATH base::Outcome BouncePool::repost(Queue& queue, std::span<const uint32_t> pages) {
  return post_batches(queue, pages,
                      [&](std::span<const verbs::ReceiveBuffer> batch) { return queue.queue_.post(batch); });
}

base::Outcome BouncePool::post_own(const Queue& queue, verbs::QueuePair& pair,
                                   std::span<const uint32_t> pages) {
  return post_batches(queue, pages,
                      [&](std::span<const verbs::ReceiveBuffer> batch) { return pair.post_receives(batch); });
}

// Waits for nobody: whoever holds a mutex here may be waiting for a device.
std::string BouncePool::describe() {
  std::string text = is_bare() ? "receive entries without pages" : "pages";
  text += gpu_ == base::kNoGpu ? " of the host" : " of GPU " + std::to_string(gpu_);
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) {
    if (!is_bare())
      base::append(text, ": %u of %u in use, %u bytes each", pages_ - count_free_pages(), pages_,
                   page_bytes_);
    for (const auto& [device, rail] : rails_) {
      uint32_t posted = 0, reserved = 0;
      for (const auto& queue : rail->queues) {
        posted += queue->posted_entries_;
        reserved += queue->reserved_entries_;
      }
      base::append(text, "; rail %s:%d: %u circulate, %u reserved", device->name().c_str(),
                   device->port_number(), posted, reserved);
      if (rail->queues.size() > 1) base::append(text, ", in %zu queues", rail->queues.size());
      if (rail->own != nullptr)
        base::append(text, ", %u in queue pairs' own queues", rail->own->reserved_entries_);
    }
  } else {
    text += ": are being posted or registered just now";
  }
  const std::unique_lock lock(retired_mutex_, std::try_to_lock);
  if (lock && !retired_.empty())
    base::append(text, "; of %zu closed connections not all are back", retired_.size());
  return text;
}

void BouncePool::retire(Link link, std::vector<Queue*> queues, std::vector<uint32_t> own_pages) {
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
      const std::vector<uint32_t> pages = std::move(retired_.front().own_pages);
      retired_.pop_front();
      free(pages);
    } else {
      retired_.splice(retired_.end(), retired_, retired_.begin());
    }
  }
}

// True: nothing of it is under way any more, or nobody will ever know.
bool BouncePool::look_at(Retired& retired) {
  // Asked before the look: whatever came until then is found by it.
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
