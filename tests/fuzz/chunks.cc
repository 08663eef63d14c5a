// A peer that shook hands and then sends what it likes: immediates, lengths and orders of chunks, and records
// about queue pairs that have failed, against a receiver whose receives are posted, tested and consumed
// meanwhile. No byte may be written outside a receive.
#include "support/devices.h"
#include "support/message.h"
#include "support/records.h"
#include "transport/setup/acceptor.h"
#include "verbena/unpack_abi.h"

#include <sys/socket.h>

#include <deque>
#include <memory>

using namespace verbena;
using transport::ReceiveClass;
using transport::ReceiveMessage;

namespace {

constexpr uint32_t kPageBytes = 4096;
constexpr int kMaxSteps = 400;

class HostileSender {
 public:
  HostileSender(int rails, uint32_t queue_pairs, bool unpacks) : nic_(fuzz::find_nic(rails)), rails_(rails) {
    transport::Link::Options options;
    options.rails = nic_.rails;
    options.queue_pairs = queue_pairs;
    auto link = transport::Link::create(options);
    fuzz::require(static_cast<bool>(link));
    link_ = std::move(*link);
    shake_hands(unpacks);
  }

  transport::Receiver& receiver() { return *receiver_; }
  const UnpackDeviceHandle* handle() const { return handle_; }
  uint32_t queue_pairs() const { return link_.queue_pairs(); }

  // False: the device takes no more.
  void send(uint32_t queue_pair, uint32_t imm, uint32_t length_bytes, bool is_write) {
    if (link_.pair(queue_pair).free_slots() == 0) return;
    const auto* memory = fuzz::find_registration(rails_);
    const verbs::WorkRequest request{.opcode = is_write ? verbs::Opcode::kWriteImm : verbs::Opcode::kSendImm,
                                     .signaled = true,
                                     .imm = imm,
                                     .local = fuzz::find_scratch().data(),
                                     .local_key = memory->regions[0].local_key(),
                                     .length = length_bytes,
                                     .remote = reinterpret_cast<uintptr_t>(fuzz::find_scratch().data())};
    static_cast<void>(link_.pair(queue_pair).post(request));  // there may be no receive entry left
    link_.poll([](const verbs::Completion&, uint32_t) {});
  }
  const base::Socket& socket() const { return socket_; }
  uint64_t connection() const { return connection_; }
  // What a receive without pages takes.
  uint32_t longest_send() const { return is_staging_ ? kPageBytes : 0; }

 private:
  void shake_hands(bool unpacks) {
    auto sockets = fuzz::make_sockets();
    bool has_told_of_strangers = false;
    transport::Acceptor acceptor(nic_, fuzz::kNonce, std::move(sockets.product), &has_told_of_strangers);
    protocol::Hello hello{};
    hello.header = protocol::make_header(sizeof(hello), fuzz::kNonce);
    hello.rails = static_cast<uint32_t>(nic_.rails.size());
    hello.queue_pairs = link_.queue_pairs();
    link_.describe(hello.rail, hello.queue_pair);
    hello.traffic_class = -1;
    hello.control_address = reinterpret_cast<uintptr_t>(control_.get());
    exchange(sockets.peer, hello);
    const transport::AcceptOptions options{.unpacks = unpacks};
    fuzz::require(static_cast<bool>(acceptor.poll(options)));
    protocol::Welcome welcome{};
    fuzz::require(recv(sockets.peer.fd(), &welcome, sizeof(welcome), MSG_DONTWAIT) == sizeof(welcome));
    fuzz::require(static_cast<bool>(link_.connect(welcome.rail, welcome.queue_pair, welcome.rail_of)));
    protocol::Ready ready{};
    ready.header = protocol::make_header(sizeof(ready), fuzz::kNonce);
    exchange(sockets.peer, ready);
    const auto verdict = acceptor.poll(options);
    fuzz::require(verdict && *verdict == transport::Acceptor::Verdict::kStanding);
    handle_ = static_cast<const UnpackDeviceHandle*>(acceptor.device_handle());
    is_staging_ = welcome.staging != 0;
    connection_ = welcome.id;
    auto receiver = acceptor.finish();
    fuzz::require(static_cast<bool>(receiver));
    receiver_ = std::move(*receiver);
    socket_ = std::move(sockets.peer);
  }

  template <typename Message>
  static void exchange(base::Socket& socket, const Message& message) {
    fuzz::require(::send(socket.fd(), &message, sizeof(message), MSG_NOSIGNAL) == sizeof(message));
  }

  const transport::Nic& nic_;
  const int rails_;
  std::unique_ptr<protocol::ControlBlock> control_ = std::make_unique<protocol::ControlBlock>();
  base::Socket socket_;
  transport::Link link_;
  std::unique_ptr<transport::Receiver> receiver_;
  const UnpackDeviceHandle* handle_ = nullptr;
  bool is_staging_ = false;
  uint64_t connection_ = 0;
};

struct Open {
  ReceiveMessage* message;
  std::unique_ptr<uint8_t[]> place;  // a separate allocation, so that a byte too many is noticed
  uint64_t room_bytes;
  bool is_done;
};

// NCCL's kernel would do what this says.
void check_slot(const HostileSender& peer, const Open& open, uint64_t bytes) {
  if (!open.message->slot_taken || open.message->receive_class != ReceiveClass::kUnpacked) return;
  const NetUnpackMeta& meta = *peer.handle()->meta;
  const uint32_t slot = open.message->slot;
  fuzz::require(meta.cnt[slot] <= kUnpackMaxDescriptors);
  uint64_t described = 0;
  for (uint64_t i = 0; i < meta.cnt[slot]; ++i) {
    const LoadMeta& piece = meta.mem[slot][i];
    fuzz::require(piece.dst_off <= open.room_bytes && piece.len <= open.room_bytes - piece.dst_off);
    fuzz::require(piece.src_off / kPageBytes == (piece.src_off + piece.len - 1) / kPageBytes);
    described += piece.len;
  }
  fuzz::require(described <= bytes);  // the rest was written to its place
}

class Game {
 public:
  Game(FuzzedDataProvider& data, HostileSender& peer) : data_(data), peer_(peer) {}

  // False: the connection has failed.
  bool step() {
    switch (data_.ConsumeIntegralInRange(0, 8)) {
      case 0:
      case 1:
        return post();
      case 2:
      case 3:
        return test();
      case 4:
        tell_record();
        return true;
      default:
        send();
        return true;
    }
  }

 private:
  bool post() {
    static constexpr uint64_t kRooms[] = {0, 1, 4095, 4096, 4097, 32768, 65536};
    const uint64_t room = data_.PickValueInArray(kRooms);
    const auto receive_class =
        data_.PickValueInArray({ReceiveClass::kUnpacked, ReceiveClass::kSlotOnly, ReceiveClass::kNoSlot});
    auto place = std::make_unique<uint8_t[]>(room);
    transport::Request* request = nullptr;
    if (!peer_.receiver().post(place.get(), room, fuzz::find_registration(1), receive_class, &request))
      return false;
    if (request == nullptr) return true;
    open_.push_back({static_cast<ReceiveMessage*>(request), std::move(place), room, false});
    ++posted_;
    return true;
  }

  bool test() {
    if (open_.empty()) return true;
    const size_t index = data_.ConsumeIntegralInRange<size_t>(0, open_.size() - 1);
    Open& open = open_[index];
    uint64_t bytes = 0;
    if (!open.is_done && !peer_.receiver().test(*open.message, &open.is_done, &bytes)) return false;
    if (!open.is_done) return true;
    if (bytes != 0) {
      fuzz::require(bytes <= open.room_bytes);
      check_slot(peer_, open, bytes);
    }
    const bool is_good = static_cast<bool>(peer_.receiver().consume(*open.message));
    open_.erase(open_.begin() + static_cast<ptrdiff_t>(index));
    return is_good;
  }

  void send() {
    const auto queue_pair = data_.ConsumeIntegralInRange(0U, peer_.queue_pairs() - 1);
    const bool is_write = data_.ConsumeBool();
    static constexpr uint32_t kLengths[] = {0, 1, 100, 4095, 4096};
    uint32_t length = data_.PickValueInArray(kLengths);
    if (is_write) length *= data_.ConsumeIntegralInRange(1U, 20U);
    if (!is_write) length = std::min(length, peer_.longest_send());
    const uint32_t imm = data_.ConsumeIntegralInRange(0, 31) == 0 ? data_.ConsumeIntegral<uint32_t>()
                                                                  : make_tag(is_write, length);
    peer_.send(queue_pair, imm, length, is_write);
  }

  uint32_t make_tag(bool is_write, uint32_t length) {
    const auto near = static_cast<uint8_t>(posted_ + data_.ConsumeIntegralInRange(-6, 4));
    const auto index = static_cast<uint16_t>(data_.ConsumeBool() ? 0 : data_.ConsumeIntegralInRange(0, 20));
    const bool is_direct = data_.ConsumeIntegralInRange(0, 15) == 0 ? !is_write : is_write;
    const bool is_last = data_.ConsumeBool();
    const uint32_t announced = data_.ConsumeIntegralInRange(0, 15) == 0 ? length / 2 : length;
    return protocol::encode_tag({near, index, is_last, is_direct}, announced);
  }

  // While a request is open, so that the receiver takes it in its next call.
  void tell_record() {
    if (open_.empty()) return;
    if (data_.ConsumeIntegralInRange(0, 31) == 0) fuzz::tell_frame(data_, peer_.socket(), peer_.connection());
    if (fuzz::tell(peer_.socket(), peer_.connection(), fuzz::take_record(data_, peer_.queue_pairs())))
      peer_.receiver().want();
  }

  FuzzedDataProvider& data_;
  HostileSender& peer_;
  std::deque<Open> open_;
  int posted_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t length_bytes) {
  FuzzedDataProvider data(bytes, length_bytes);
  const int rails = data.ConsumeIntegralInRange(1, 2);
  const auto pairs = static_cast<uint32_t>(rails * data.ConsumeIntegralInRange(1, 2));
  HostileSender peer(rails, pairs, data.ConsumeBool());
  Game game(data, peer);
  for (int i = 0; i < kMaxSteps && data.remaining_bytes() != 0 && game.step(); ++i) {
  }
  return 0;
}
