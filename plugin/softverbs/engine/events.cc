#include "softverbs/engine/events.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>

#include "softverbs/shared/completion_ring.h"

namespace verbena::softverbs {
namespace {

uint64_t get_inode(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

// Opens another process's pipe through /proc. Opens it for reading too, so that a write never raises SIGPIPE.
// The inode shows whether the descriptor number still names the same pipe.
int open_peer_pipe(const PeerProcess& peer, int fd, uint64_t inode) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/fd/%d", peer.pid, fd);
  struct stat status {};
  if (stat(path, &status) != 0 || !S_ISFIFO(status.st_mode) || status.st_ino != inode) return -1;
  const int mine = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (mine >= 0 && get_inode(mine) == inode) return mine;
  if (mine >= 0) close(mine);
  return -1;
}

bool is_woken_by(uint32_t armed, bool is_solicited) {
  return armed == kArmedAny || (armed == kArmedSolicited && is_solicited);
}

uint64_t read_stamp_ns(uint32_t stamp) {
  timespec now{};
  clock_gettime(stamp == kRawStamp ? CLOCK_MONOTONIC_RAW : CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

void write_event(PeerProcess& peer, const SharedPipe& pipe, const void* record, size_t bytes) {
  const uint64_t inode = pipe.inode.get();
  if (inode == 0) return;
  std::lock_guard lock(peer.pipes_mutex);
  auto known = peer.pipes.find(inode);
  if (known == peer.pipes.end()) {
    const int fd = peer.is_self ? -1 : open_peer_pipe(peer, pipe.fd.get(), inode);
    if (fd < 0) return;
    known = peer.pipes.emplace(inode, fd).first;
  }
  ssize_t written;
  do {
    written = write(known->second, record, bytes);
  } while (written < 0 && errno == EINTR);
}

void raise_async(PeerProcess& peer, uint32_t context, uint64_t token, ibv_event_type type) {
  const AsyncRecord record{token, static_cast<uint32_t>(type), 0};
  write_event(peer, peer.segment->async_pipe(context), &record, sizeof(record));
}

void complete(PeerProcess& peer, uint32_t cq_index, Completion& completion, bool is_solicited, Order order) {
  SharedCq& cq = peer.segment->cq(cq_index);
  if (cq.stamp.get() != kNoStamp) completion.stamp_ns = read_stamp_ns(cq.stamp.get());
  if (!push_completion(*peer.segment, cq, completion, Process::get()->claimer(), order)) {
    if (cq.overrun.exchange(1) == 0) raise_async(peer, cq.context.get(), cq.token.get(), IBV_EVENT_CQ_ERR);
    return;
  }
  // A read-modify-write, as in req_notify: the later of the two sees everything that the earlier thread did
  // before. So either this thread sees that the queue is armed, or its owner's next poll sees the completion.
  if (!is_woken_by(cq.armed.fetch_add(0), is_solicited)) return;
  if (cq.armed.exchange(kDisarmed) == kDisarmed) return;
  const uint64_t token = cq.token.get();
  write_event(peer, cq.channel, &token, sizeof(token));
}

bool open_event_pipe(SharedPipe& shared, int& read_fd) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  fcntl(ends[1], F_SETFL, O_NONBLOCK);
  read_fd = ends[0];
  PeerProcess& self = Process::get()->self();
  const uint64_t inode = get_inode(ends[1]);
  {
    std::lock_guard lock(self.pipes_mutex);
    self.pipes[inode] = ends[1];
  }
  shared.fd.set(ends[1]);
  shared.inode.set(inode);
  return true;
}

void close_event_pipe(SharedPipe& shared, int read_fd) {
  const uint64_t inode = shared.inode.get();
  shared.inode.set(0);
  PeerProcess& self = Process::get()->self();
  std::lock_guard lock(self.pipes_mutex);
  if (const auto known = self.pipes.find(inode); known != self.pipes.end()) {
    close(known->second);
    self.pipes.erase(known);
  }
  close(read_fd);
}

uint64_t EventTable::add(void* object) {
  std::lock_guard lock(mutex_);
  objects_[++last_token_] = {object, {}};
  return last_token_;
}

void* EventTable::deliver(uint64_t token, uint32_t Delivered::*kind) {
  std::lock_guard lock(mutex_);
  const auto known = objects_.find(token);
  if (known == objects_.end()) return nullptr;
  ++(known->second.delivered.*kind);
  return known->second.object;
}

EventTable::Delivered EventTable::remove(uint64_t token) {
  std::lock_guard lock(mutex_);
  const auto known = objects_.find(token);
  const Delivered delivered = known->second.delivered;
  objects_.erase(known);
  return delivered;
}

EventTable& get_event_table() {
  static auto* table = new EventTable;
  return *table;
}

}  // namespace verbena::softverbs
