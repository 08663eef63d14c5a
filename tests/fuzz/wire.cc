// Every byte that a process of another host may send to softverbs' wire: hellos, frames for queue pairs that
// are there and for others, on several streams, in pieces, with and without an end. What is real: the
// listener, the frame reader, the responder with its sessions, rounds and refusals, memory keys, datagrams.
#include <arpa/inet.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "softverbs/shared/shared_layout.h"
#include "support/wire_victim.h"

using namespace verbena::softverbs;
using namespace verbena::softverbs::wire;
using namespace verbena::fuzz;

namespace {

class Caller {
 public:
  explicit Caller(uint32_t slot) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in from{}, to{};
    from.sin_family = to.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(0x7f000002);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(kPort + slot));
    constexpr linger kNoWait{1, 0};  // thousands of connections: none stays in TIME_WAIT
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &kNoWait, sizeof(kNoWait));
    is_connected_ = bind(fd_, reinterpret_cast<sockaddr*>(&from), sizeof(from)) == 0 &&
                    connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~Caller() { close(fd_); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  void say(const uint8_t* bytes, size_t length) { send(fd_, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT); }
  // False: it has been sent away.
  bool drain() {
    char ignored[16384];
    ssize_t count = 0;
    while ((count = recv(fd_, ignored, sizeof(ignored), MSG_DONTWAIT)) > 0) continue;
    return count < 0 && errno == EAGAIN;
  }
  void stop_saying() { shutdown(fd_, SHUT_WR); }
  int fd() const { return fd_; }
  bool is_connected() const { return is_connected_; }

 private:
  int fd_;
  bool is_connected_ = false;
};

Victim* victim = nullptr;
uint64_t links = 0, sessions = 0;

Hello make_hello(FuzzedDataProvider& data, uint32_t stream, uint32_t streams) {
  Hello hello{};
  hello.magic = kMagic;
  hello.version = kProtocolVersion;
  hello.link = links;
  hello.stream = stream;
  hello.streams = streams;
  hello.slot = get_qp_slot(victim->datagrams->qp_num);
  const ibv_gid from = make_gid(2), to = make_gid(1);
  memcpy(hello.source, from.raw, sizeof(hello.source));
  memcpy(hello.destination, to.raw, sizeof(hello.destination));
  memcpy(hello.job, "fuzz", 4);
  if (data.ConsumeIntegralInRange(0, 31) == 0) {
    const auto at = data.ConsumeIntegralInRange<size_t>(0, sizeof(hello) - 1);
    reinterpret_cast<uint8_t*>(&hello)[at] ^= data.ConsumeIntegral<uint8_t>();
  }
  return hello;
}

Header make_header(FuzzedDataProvider& data) {
  Header header{};
  static constexpr Kind kKinds[] = {Kind::kRequest, Kind::kRequest,  Kind::kRequest,     Kind::kDatagram,
                                    Kind::kAbandon, Kind::kResponse, Kind::kAcknowledge, Kind::kRefusal};
  static constexpr uint8_t kCodes[] = {
      IBV_WR_SEND,        IBV_WR_SEND_WITH_IMM,      IBV_WR_RDMA_WRITE,           IBV_WR_RDMA_WRITE_WITH_IMM,
      IBV_WR_RDMA_READ,   IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND_WITH_INV,
      IBV_WR_ATOMIC_WRITE};
  header.kind = data.PickValueInArray(kKinds);
  header.code = data.PickValueInArray(kCodes);
  header.flags = data.ConsumeIntegralInRange<uint16_t>(0, 3);
  header.source_qp = data.ConsumeIntegralInRange(0, 15) == 0 ? data.ConsumeIntegral<uint32_t>() : kPeerQp;
  const bool is_datagram = header.kind == Kind::kDatagram;
  header.target_qp = is_datagram ? victim->datagrams->qp_num : victim->reliable->qp_num;
  if (data.ConsumeIntegralInRange(0, 15) == 0) header.target_qp ^= data.ConsumeIntegral<uint32_t>();
  header.session = sessions + data.ConsumeIntegralInRange(0U, 3U);
  header.sequence = data.ConsumeIntegralInRange(0U, 6U);
  header.round = data.ConsumeIntegralInRange(0U, 2U);
  header.immediate = data.ConsumeIntegral<uint8_t>();
  header.bytes = data.ConsumeIntegralInRange(0U, 9000U);
  header.offset = data.ConsumeBool() ? 0 : data.ConsumeIntegralInRange(0U, header.bytes);
  header.length = data.ConsumeBool() ? header.bytes - header.offset
                                     : data.ConsumeIntegralInRange(0U, header.bytes - header.offset);
  if (is_atomic_code(header.code)) {
    header.length = kAtomicBytes;
    header.bytes = kAtomicResult;
    header.offset = 0;
  }
  if (header.code == IBV_WR_RDMA_READ || header.kind == Kind::kAbandon) header.length = 0;
  header.address = reinterpret_cast<uint64_t>(victim->mr->addr) +
                   static_cast<uint64_t>(data.ConsumeIntegralInRange<int64_t>(-64, kRegionBytes));
  header.key = is_datagram                               ? kQueueKey
               : data.ConsumeIntegralInRange(0, 15) == 0 ? data.ConsumeIntegral<uint32_t>()
                                                         : victim->mr->rkey;
  if (data.ConsumeIntegralInRange(0, 15) == 0) {
    const auto at = data.ConsumeIntegralInRange<size_t>(0, sizeof(header) - 1);
    reinterpret_cast<uint8_t*>(&header)[at] = data.ConsumeIntegral<uint8_t>();
  }
  return header;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  victim = new Victim;
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t length_bytes) {
  FuzzedDataProvider data(bytes, length_bytes);
  victim->prepare();
  ++links;
  sessions += 4;
  const uint32_t streams = data.ConsumeIntegralInRange(1U, 2U);
  std::vector<std::vector<uint8_t>> words(streams);
  const auto append = [](std::vector<uint8_t>& to, const auto& message) {
    const auto* start = reinterpret_cast<const uint8_t*>(&message);
    to.insert(to.end(), start, start + sizeof(message));
  };
  for (uint32_t i = 0; i < streams; ++i) append(words[i], make_hello(data, i, streams));
  for (int frames = 0; frames < 24 && data.remaining_bytes() > 0; ++frames) {
    auto& stream = words[data.ConsumeIntegralInRange<size_t>(0, streams - 1)];
    const Header header = make_header(data);
    append(stream, header);
    stream.resize(stream.size() + std::min<uint32_t>(header.length, 9000), data.ConsumeIntegral<uint8_t>());
  }
  if (data.ConsumeIntegralInRange(0, 7) == 0) words[0].resize(words[0].size() - words[0].size() / 8);

  std::vector<std::unique_ptr<Caller>> callers;
  for (uint32_t i = 0; i < streams; ++i)
    callers.push_back(std::make_unique<Caller>(get_qp_slot(victim->datagrams->qp_num)));
  // A host may be out of ports for a moment; libFuzzer's clock interrupts calls.
  for (const auto& caller : callers)
    if (!caller->is_connected()) return 0;
  std::vector<size_t> said(streams, 0);
  for (bool is_left = true; is_left;) {
    is_left = false;
    for (uint32_t i = 0; i < streams; ++i) {
      const size_t wanted =
          data.remaining_bytes() != 0 ? data.ConsumeIntegralInRange<size_t>(1, 20000) : SIZE_MAX;
      const size_t piece = std::min(words[i].size() - said[i], wanted);
      callers[i]->say(words[i].data() + said[i], piece);
      said[i] += piece;
      is_left |= said[i] < words[i].size();
      victim->poll();
      callers[i]->drain();
    }
  }
  // Until it has read all, or a few turns have passed: what it holds back it holds for ever.
  for (const auto& caller : callers) caller->stop_saying();
  for (int turn = 0; turn < 20; ++turn) {
    victim->poll();
    bool is_anybody_left = false;
    for (const auto& caller : callers) is_anybody_left |= caller->drain();
    if (!is_anybody_left) break;
    pollfd ready{callers[0]->fd(), POLLIN, 0};
    ::poll(&ready, 1, 1);
  }
  victim->check();
  return 0;
}
