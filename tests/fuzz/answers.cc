// Every byte that another host may answer to softverbs' requests: hellos, responses of reads and atomics,
// acknowledgements, refusals, of requests that there are and of others, in pieces, with and without an end.
// What is real: the calling side of a link, the requester with its rounds, sessions and retries, the
// placement of answers.
#include <arpa/inet.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "softverbs/shared/shared_layout.h"
#include "support/wire_victim.h"

using namespace verbena::softverbs;
using namespace verbena::softverbs::wire;
using namespace verbena::fuzz;

namespace {

constexpr size_t kAnswers =
    8 << 10;  // of the region, from its start: where answers belong; nothing else may change
constexpr uint32_t kMaxBytes = 3000;

Victim* victim = nullptr;

// The other host: it listens where the victim calls.
class Host {
 public:
  Host() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(0x7f000002);
    at.sin_port = htons(static_cast<uint16_t>(kPort + get_qp_slot(kPeerQp)));
    const int one = 1;
    setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    require(bind(listener_, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0 && listen(listener_, 16) == 0);
  }
  // False: nobody has called for some turns.
  bool accept_caller() {
    for (int turn = 0; turn < 40; ++turn) {
      victim->poll();
      fd_ = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd_ >= 0) break;
      wait(listener_);
    }
    constexpr linger kNoWait{1, 0};  // thousands of connections: none stays in TIME_WAIT
    if (fd_ >= 0) setsockopt(fd_, SOL_SOCKET, SO_LINGER, &kNoWait, sizeof(kNoWait));
    return fd_ >= 0;
  }
  // What the victim has said until then, or until some turns have brought nothing.
  size_t hear(size_t least) {
    for (int turn = 0; turn < 40 && heard.size() < least; ++turn) {
      victim->poll();
      uint8_t bytes[16384];
      const ssize_t count = recv(fd_, bytes, sizeof(bytes), MSG_DONTWAIT);
      if (count > 0) {
        heard.insert(heard.end(), bytes, bytes + count);
      } else {
        wait(fd_);
      }
    }
    return heard.size();
  }
  void say(const uint8_t* bytes, size_t length) { send(fd_, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT); }
  void leave() {
    close(fd_);
    fd_ = -1;
    heard.clear();
    for (int late = 0; (late = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) close(late);
  }

  std::vector<uint8_t> heard;

 private:
  static void wait(int fd) {
    pollfd ready{fd, POLLIN, 0};
    ::poll(&ready, 1, 1);
  }
  int listener_, fd_ = -1;
};
Host* host = nullptr;

struct Posted {
  ibv_wr_opcode opcode;
  uint32_t bytes;
};

std::vector<Posted> post_requests(FuzzedDataProvider& data) {
  static constexpr ibv_wr_opcode kOpcodes[] = {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
                                               IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_RDMA_WRITE, IBV_WR_SEND};
  std::vector<Posted> posted;
  for (int count = data.ConsumeIntegralInRange(1, 6); count > 0; --count) {
    const ibv_wr_opcode opcode = data.PickValueInArray(kOpcodes);
    const bool is_word = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
    const uint32_t bytes = is_word ? 8 : data.ConsumeIntegralInRange(0U, kMaxBytes);
    const auto at = reinterpret_cast<uint64_t>(victim->mr->addr) + data.ConsumeIntegralInRange(0U, 64U);
    ibv_sge pieces[2] = {{at, bytes / 2, victim->mr->lkey},
                         {at + kAnswers / 2, bytes - bytes / 2, victim->mr->lkey}};
    if (is_word) pieces[0].length = 8;
    ibv_send_wr request{}, *rejected = nullptr;
    request.opcode = opcode;
    request.send_flags = IBV_SEND_SIGNALED;
    request.sg_list = pieces;
    request.num_sge = is_word ? 1 : 2;
    if (is_word) {
      request.wr.atomic = {4096, 1, 2, 77};
    } else if (opcode != IBV_WR_SEND) {
      request.wr.rdma = {4096, 77};
    }
    if (ibv_post_send(victim->reliable, &request, &rejected) == 0) posted.push_back({opcode, bytes});
  }
  return posted;
}

template <typename Message>
void flip(FuzzedDataProvider& data, Message& message, int one_in) {
  if (data.ConsumeIntegralInRange(1, one_in) != 1) return;
  const auto at = data.ConsumeIntegralInRange<size_t>(0, sizeof(message) - 1);
  reinterpret_cast<uint8_t*>(&message)[at] ^= data.ConsumeIntegral<uint8_t>();
}

Header make_answer(FuzzedDataProvider& data, uint64_t session, const std::vector<Posted>& posted) {
  static constexpr Kind kKinds[] = {Kind::kResponse, Kind::kResponse, Kind::kAcknowledge, Kind::kRefusal,
                                    Kind::kRequest};
  Header header{};
  header.kind = kKinds[data.ConsumeIntegralInRange(0, 31) == 0 ? 4 : data.ConsumeIntegralInRange(0, 3)];
  header.source_qp = kPeerQp;
  header.target_qp = victim->reliable->qp_num;
  header.session = data.ConsumeIntegralInRange(0, 15) == 0 ? data.ConsumeIntegral<uint64_t>() : session;
  header.sequence = data.ConsumeIntegralInRange<uint64_t>(0, posted.size());
  header.round = data.ConsumeIntegralInRange(0U, 2U);
  if (header.kind == Kind::kRefusal) {
    header.code = data.ConsumeIntegralInRange<uint8_t>(1, 6);
    header.immediate = 1;
  }
  if (header.kind == Kind::kResponse) {
    const uint32_t due = header.sequence < posted.size() ? posted[header.sequence].bytes : 8;
    header.bytes =
        data.ConsumeIntegralInRange(0, 7) == 0 ? data.ConsumeIntegralInRange(0U, 2 * kMaxBytes) : due;
    header.offset = data.ConsumeBool() ? 0 : data.ConsumeIntegralInRange(0U, header.bytes);
    header.length = data.ConsumeBool() ? header.bytes - header.offset
                                       : data.ConsumeIntegralInRange(0U, header.bytes - header.offset);
  }
  flip(data, header, 16);
  return header;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  setenv("SOFTVERBS_STREAMS", "1", 1);
  victim = new Victim;
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t length_bytes) {
  if (host == nullptr)
    host = new Host;  // not before: a process that merges starts others, which need the port
  FuzzedDataProvider data(bytes, length_bytes);
  victim->replace_reliable();
  const std::vector<Posted> posted = post_requests(data);
  if (!host->accept_caller()) return 0;
  int completed = 0;
  if (host->hear(sizeof(Hello)) >= sizeof(Hello)) {
    Hello hello;
    std::memcpy(&hello, host->heard.data(), sizeof(hello));
    flip(data, hello, 32);
    std::vector<uint8_t> words(sizeof(hello));
    std::memcpy(words.data(), &hello, sizeof(hello));
    host->say(words.data(), words.size());
    uint64_t session = 0;
    if (host->hear(sizeof(Hello) + sizeof(Header)) >= sizeof(Hello) + sizeof(Header)) {
      Header first;
      std::memcpy(&first, host->heard.data() + sizeof(Hello), sizeof(first));
      session = first.session;
    }
    words.clear();
    for (int frames = 0; frames < 24 && data.remaining_bytes() > 0; ++frames) {
      const Header header = make_answer(data, session, posted);
      const auto* start = reinterpret_cast<const uint8_t*>(&header);
      words.insert(words.end(), start, start + sizeof(header));
      words.resize(words.size() + std::min<uint32_t>(header.length, 9000), data.ConsumeIntegral<uint8_t>());
    }
    for (size_t said = 0; said < words.size();) {
      const size_t wanted =
          data.remaining_bytes() != 0 ? data.ConsumeIntegralInRange<size_t>(1, 9000) : SIZE_MAX;
      const size_t piece = std::min(words.size() - said, wanted);
      host->say(words.data() + said, piece);
      said += piece;
      completed += victim->poll();
    }
    for (int turn = 0; turn < 4; ++turn) {
      completed += victim->poll();
      usleep(200);
    }
  }
  host->leave();
  require(completed <= static_cast<int>(posted.size()));
  victim->check(kAnswers, kRegionBytes);
  return 0;
}
