// What the ranks of NCCL's device API tell each other when they meet, connect and register memory, said by
// ranks that may say anything: the numbers that they gather, the addresses of their lanes and regions, their
// votes. Then operations on what came of it. What is real: the plugin's side of every collective call, its
// endpoint and lanes; also the 128 bytes that NCCL carries.
#include <cstring>
#include <vector>

#include "bootstrap/rendezvous.h"
#include "nccl/rma_communicator.h"
#include "support/devices.h"
#include "support/message.h"
#include "transport/one_sided/address_blob.h"

using namespace verbena;

namespace {

constexpr size_t kRegionBytes = 64 << 10;
constexpr size_t kBlobHead =
    32;  // of an address: who tells whom is in it, and how many lanes or which region

// The other ranks, in the place of the caller's all-gather. They say what this rank would say in their place,
// but for what the input changes.
class Others {
 public:
  Others(FuzzedDataProvider& data, uint32_t rank, uint32_t count) : data_(data), rank_(rank), count_(count) {}

  static int gather(void* self, const void* mine, void* all, size_t bytes_each) {
    return static_cast<Others*>(self)->answer(static_cast<const uint8_t*>(mine), static_cast<uint8_t*>(all),
                                              bytes_each);
  }
  // Whether a region's address or length was changed: a NIC would refuse what goes there, these devices do
  // not.
  bool has_lied_about_memory() const { return has_lied_about_memory_; }

 private:
  int answer(const uint8_t* mine, uint8_t* all, size_t bytes_each) {
    if (data_.ConsumeIntegralInRange(0, 63) == 0) return 1;
    for (uint32_t from = 0; from < count_; ++from) {
      uint8_t* const said = all + from * bytes_each;
      std::memcpy(said, mine, bytes_each);
      if (from != rank_) speak(from, said, bytes_each);
    }
    return 0;
  }

  void speak(uint32_t from, uint8_t* said, size_t bytes) {
    const size_t region_bytes = transport::measure_region_address();
    if (bytes == region_bytes) {
      name(said, from, 0);
      change(said, bytes, true);
      return;
    }
    if (bytes % count_ == 0 && bytes / count_ > region_bytes) {  // an address for each rank
      const size_t part_bytes = bytes / count_;
      uint8_t* const part = said + rank_ * part_bytes;
      std::memcpy(part, said + from * part_bytes, part_bytes);
      name(part, from, rank_);
      change(part, part_bytes, true);
      return;
    }
    change(said, bytes, false);
  }

  // The names of an address, which lie behind magic, version, kind and the group's number.
  static void name(uint8_t* blob, uint32_t from, uint32_t to) {
    std::memcpy(blob + 16, &from, sizeof(from));
    std::memcpy(blob + 20, &to, sizeof(to));
  }

  void change(uint8_t* said, size_t bytes, bool is_blob) {
    const int changes = data_.ConsumeIntegralInRange(0, 7) < 5 ? 0 : data_.ConsumeIntegralInRange(1, 4);
    for (int i = 0; i < changes; ++i) {
      const size_t width = std::min(bytes, size_t{1} << data_.ConsumeIntegralInRange(0, 3));
      size_t at = data_.ConsumeIntegralInRange<size_t>(0, bytes - width);
      if (is_blob && at < kBlobHead && data_.ConsumeBool()) at += kBlobHead;
      for (const uint8_t byte : data_.ConsumeBytes<uint8_t>(width)) said[at++] = byte;
      has_lied_about_memory_ |= is_blob && bytes == transport::measure_region_address();
    }
    if (is_blob && (changes == 0 || data_.ConsumeIntegralInRange(0, 7) != 0)) seal(said, bytes);
  }

  static void seal(uint8_t* blob, size_t bytes) {
    uint64_t sum = 0xcbf29ce484222325;
    for (size_t i = 0; i < bytes - sizeof(sum); ++i) sum = (sum ^ blob[i]) * 0x100000001b3;
    std::memcpy(blob + bytes - sizeof(sum), &sum, sizeof(sum));
  }

  FuzzedDataProvider& data_;
  const uint32_t rank_, count_;
  bool has_lied_about_memory_ = false;
};

class Game {
 public:
  Game(FuzzedDataProvider& data, Others& others, nccl::RmaCommunicator& communicator, uint32_t count)
      : data_(data), others_(others), communicator_(communicator), count_(count) {}

  void step() {
    switch (data_.ConsumeIntegralInRange(0, 7)) {
      case 0:
        return create_context();
      case 1:
        return register_memory();
      case 2:
        return deregister_memory();
      case 3:
        static_cast<void>(communicator_.progress());
        return;
      case 4:
        return test();
      default:
        return operate();
    }
  }

 private:
  void create_context() {
    const auto stride = data_.ConsumeIntegralInRange(1U, count_);
    auto made = communicator_.create_context({data_.ConsumeIntegralInRange(1U, 6U), -1, stride});
    if (made) contexts_.push_back(*made);
  }
  void register_memory() {
    const size_t offset = data_.ConsumeIntegralInRange<size_t>(0, 8) * kRegionBytes;
    auto made = communicator_.register_memory({fuzz::find_scratch().data() + offset, kRegionBytes});
    if (made) regions_.push_back(*made);
  }
  void deregister_memory() {
    if (regions_.empty() || !requests_.empty()) return;
    communicator_.deregister_memory(regions_.back());
    regions_.pop_back();
  }
  nccl::RmaBytes take_bytes() {
    if (data_.ConsumeBool()) return {};
    nccl::RmaRegion* const local = pick(regions_);
    nccl::RmaRegion* const remote = pick(regions_);
    return {data_.ConsumeIntegralInRange<uint64_t>(0, kRegionBytes), local,
            data_.ConsumeIntegralInRange<uint64_t>(0, kRegionBytes),
            data_.ConsumeIntegralInRange<uint64_t>(0, kRegionBytes), remote};
  }
  void operate() {
    if (contexts_.empty() || regions_.empty() || others_.has_lied_about_memory()) return;
    const auto peer = data_.ConsumeIntegralInRange(0U, count_);
    const auto index = data_.ConsumeIntegralInRange(0U, 5U);
    void* request = nullptr;
    const nccl::RmaBytes bytes = take_bytes();
    const nccl::RmaSignal signal = {data_.ConsumeIntegralInRange<uint64_t>(0, kRegionBytes),
                                    data_.ConsumeBool() ? pick(regions_) : nullptr, 1};
    nccl::RmaContext& context = *pick(contexts_);
    const auto done =
        data_.ConsumeBool()
            ? communicator_.put(context, index, peer, bytes, signal, data_.ConsumeBool(), &request)
            : communicator_.get(context, index, peer, bytes, data_.ConsumeBool(), &request);
    fuzz::require(!done || request != nullptr);
    if (done) requests_.push_back(static_cast<nccl::RmaRequest*>(request));
  }
  void test() {
    std::erase_if(requests_, [&](nccl::RmaRequest* request) {
      int done = 0;
      return !communicator_.test(*request, &done) || done != 0;
    });
  }
  template <typename T>
  T pick(const std::vector<T>& all) {
    return all[data_.ConsumeIntegralInRange<size_t>(0, all.size() - 1)];
  }

  FuzzedDataProvider& data_;
  Others& others_;
  nccl::RmaCommunicator& communicator_;
  const uint32_t count_;
  std::vector<nccl::RmaContext*> contexts_;
  std::vector<nccl::RmaRegion*> regions_;
  std::vector<nccl::RmaRequest*> requests_;
};

void parse_handle(FuzzedDataProvider& data) {
  bootstrap::UniqueId id = bootstrap::make_id({});
  for (int changes = data.ConsumeIntegralInRange(0, 3); changes > 0; --changes)
    id.bytes[data.ConsumeIntegralInRange<size_t>(0, sizeof(id.bytes) - 1)] = data.ConsumeIntegral<uint8_t>();
  if (const auto meeting = bootstrap::parse(id))
    fuzz::require(static_cast<bool>(bootstrap::parse(bootstrap::make_id(*meeting))));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t length_bytes) {
  FuzzedDataProvider data(bytes, length_bytes);
  const auto& nic = fuzz::find_nic(data.ConsumeIntegralInRange(1, fuzz::kMaxRails));
  parse_handle(data);
  const auto count = data.ConsumeIntegralInRange(1U, 3U);
  const auto rank = data.ConsumeIntegralInRange(0U, count - 1);
  Others others(data, rank, count);
  auto group = bootstrap::Bootstrap::from_all_gather(&Others::gather, &others, rank, count);
  fuzz::require(static_cast<bool>(group));
  auto communicator =
      nccl::RmaCommunicator::open(std::move(*group), nullptr, nic, fuzz::kNonce, data.ConsumeBool());
  if (!communicator) return 0;
  Game game(data, others, **communicator, count);
  for (int steps = 0; steps < 200 && data.remaining_bytes() > 0; ++steps) game.step();
  return 0;
}
