#include "softverbs/engine/process.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "softverbs/faults/injector.h"
#include "softverbs/shared/config.h"
#include "softverbs/shared/job_folder.h"
#include "softverbs/shared/own_thread.h"
#include "softverbs/wire/descriptors.h"
#include "softverbs/wire/secret.h"
#include "softverbs/wire/wire.h"

namespace verbena::softverbs {
namespace {

std::mutex process_mutex;
std::atomic<Process*> process_instance{nullptr};

// A forked child has neither the threads nor the identity of its parent: it starts anew when it opens a
// device. It does not touch the inherited objects, which belong to the parent.
void forget_process() {
  process_instance.store(nullptr);
  new (&process_mutex) std::mutex;
  wire::close_in_child();
}

// Reads the word at which the peer keeps its identity. If this succeeds, copies to and from the peer are
// allowed.
int probe(int pid, const SegmentHeader& header) {
  uint64_t word = 0;
  iovec local{&word, sizeof(word)};
  iovec remote{reinterpret_cast<void*>(header.probe_address), sizeof(word)};
  if (process_vm_readv(pid, &local, 1, &remote, 1, 0) != sizeof(word)) return errno != 0 ? errno : EFAULT;
  return word == header.owner ? 0 : ESRCH;
}

// Without a key, every host that can reach the port could pretend to be a peer.
bool may_listen() {
  if (!wire::is_enabled() || wire::has_key() || get_config().insecure) return wire::is_enabled();
  const auto& rails = wire::get_rail_addresses();
  if (std::none_of(rails.begin(), rails.end(), wire::is_open_to_others)) return true;
  warn(
      "connections to other hosts are off, because there is no job key: without a key, any host that can "
      "reach the port could read and write registered memory. Set VERBENA_JOB_KEY_FILE, for every process, "
      "to the path of a file with the same secret; or set SOFTVERBS_INSECURE=1 on a network that nobody else "
      "can reach");
  return false;
}

}  // namespace

Process::Process() = default;
Process::~Process() = default;

Process* Process::get() {
  Process* process = process_instance.load(std::memory_order_acquire);
  if (process != nullptr) return process;
  std::lock_guard lock(process_mutex);
  process = process_instance.load();
  if (process == nullptr) {
    process = open();
    process_instance.store(process, std::memory_order_release);
  }
  return process;
}

Process* Process::open() {
  std::unique_ptr<Process> process(new Process);
  process->owner_ = read_owner(getpid());
  Directory::Claim claim{};
  if (wire::is_enabled() && !wire::load_key()) {
    errno = EACCES;
    return nullptr;
  }
  auto wire = may_listen() ? std::make_unique<wire::Wire>() : nullptr;
  uint32_t taken_ports = 0;
  const auto accept = [&](uint32_t slot) {
    const bool is_taken = wire != nullptr && !wire->claim(slot);
    taken_ports += is_taken ? 1 : 0;
    return !is_taken;
  };
  process->directory_ = Directory::open(process->owner_, accept, claim);
  if (process->directory_ == nullptr) return nullptr;
  if (claim.slot == kProcessSlots && taken_ports > 0) {
    const auto first = static_cast<uint32_t>(get_config().port);
    warn(
        "this process cannot listen, because all TCP ports from %u to %u are in use. Other programs use %u "
        "of these ports. Set SOFTVERBS_PORT to the start of another range, for every process of the job",
        first, first + kProcessSlots - 1, taken_ports);
  } else if (claim.slot == kProcessSlots) {
    warn(
        "more than %u processes use the same SOFTVERBS_DIR and SOFTVERBS_JOB. Give each job a different "
        "SOFTVERBS_JOB",
        kProcessSlots);
  }
  if (claim.slot == kProcessSlots) {
    errno = EAGAIN;
    return nullptr;
  }
  process->slot_ = claim.slot;
  process->claimer_ = make_claimer(claim.slot, claim.generation);
  process->segment_ = Segment::create();
  if (!process->segment_) {
    const int error = errno;
    warn(
        "softverbs offers no device, because it cannot create the memory that it shares with other processes "
        "(memfd_create, ftruncate, mmap): %s. Check whether memory is free and whether a seccomp profile "
        "forbids memfd_create. Check the limits of open files (ulimit -n), of file sizes (ulimit -f, at "
        "least 1 GiB) and of address space (ulimit -v)",
        strerror(error));
    errno = error;
    return nullptr;
  }
  process->arena_ = std::make_unique<Arena>(*process->segment_);
  SegmentHeader& header = process->segment_->header();
  header.slot = claim.slot;
  header.generation = claim.generation;
  header.probe_address = reinterpret_cast<uint64_t>(&process->owner_);
  header.base = reinterpret_cast<uint64_t>(&header);
  reinterpret_cast<std::atomic<uint64_t>&>(header.owner).store(process->owner_, std::memory_order_release);
  process->directory_->set_segment(claim.slot, process->segment_->fd());
  process->self_.segment = process->segment_.get();
  process->self_.owner = process->owner_;
  process->self_.pid = getpid();
  process->self_.is_self = true;
  if (wire != nullptr && wire->is_listening()) process->wire = wire.release();

  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, forget_process);
    atexit([] {
      if (Process* leaving = process_instance.load()) leaving->leave();
    });
  });
  return process.release();
}

// Yama's restriction of ptrace applies to the copies of peers as well, so all processes of this user must be
// allowed to attach. EINVAL if there is no Yama.
void Process::count_queue_pair(int change) {
  const std::lock_guard lock(queue_pairs_mutex_);
  const bool was_open = queue_pairs_ != 0;
  queue_pairs_ += change;
  const bool is_open = queue_pairs_ != 0;
  if (is_open == was_open || !get_config().ptracer || get_config().force_wire) return;
  prctl(PR_SET_PTRACER, is_open ? PR_SET_PTRACER_ANY : 0, 0, 0, 0);
}

void Process::leave() {
  if (wire != nullptr) wire->leave();
  segment_->header().closed.store(1);
  directory_->release(slot_);
}

PeerProcess* Process::find_peer(uint32_t qp_number) {
  const uint32_t slot = get_qp_slot(qp_number);
  if (slot == slot_) return &self_;
  const uint64_t owner = slot < kProcessSlots ? directory_->get_owner(slot) : 0;
  if (owner == 0) {
    errno = ENOENT;
    return nullptr;
  }
  thread_local struct {
    const Process* process = nullptr;
    uint64_t owner = 0;
    PeerProcess* peer = nullptr;
  } latest;
  if (latest.process == this && latest.owner == owner) return latest.peer;  // peers are never forgotten
  std::lock_guard lock(peers_mutex_);
  const auto known = peers_.find(owner);
  PeerProcess* const peer = known != peers_.end() ? known->second.get() : map_peer(slot, owner);
  if (peer != nullptr) latest = {this, owner, peer};
  return peer;
}

namespace {

// Returns -1 with errno 0 if the kernel does not have this call, or a seccomp profile rejects it.
int open_pidfd(int pid) {
  const auto pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (pidfd >= 0 || (errno != ENOSYS && errno != EPERM && errno != EACCES)) return pidfd;
  static std::atomic<bool> is_logged{false};
  if (!is_logged.exchange(true)) {
    warn(
        "pidfd_open() failed (%s), perhaps because a seccomp profile forbids it. Without pidfd_open(), "
        "softverbs notices the exit of a peer up to 0.1 s later",
        strerror(errno));
  }
  errno = 0;
  return -1;
}

}  // namespace

PeerProcess* Process::map_peer(uint32_t slot, uint64_t owner) {
  if (const int error = start_monitor(); error != 0) return fail_with<PeerProcess>(error);
  auto peer = std::make_unique<PeerProcess>();
  peer->owner = owner;
  peer->pid = get_pid(owner);
  peer->pidfd = open_pidfd(peer->pid);
  const auto fail = [&](int error) {
    if (peer->pidfd >= 0) close(peer->pidfd);
    return fail_with<PeerProcess>(error);
  };
  if (peer->pidfd < 0 && errno != 0) return fail(errno == ESRCH ? ENOENT : errno);
  if (const uint64_t present = read_owner(peer->pid); present != owner)
    return fail(present == 0 && errno != 0 ? errno : ENOENT);
  const int descriptor = directory_->get_segment(slot);
  errno = ENOENT;
  if (descriptor >= 0) peer->mapped = Segment::open(peer->pid, descriptor);
  int error = !peer->mapped ? errno : peer->mapped->header().owner != owner ? ENOENT : 0;
  if (error == 0) error = probe(peer->pid, peer->mapped->header());
  if (error != 0) return fail(error == ESRCH ? ENOENT : error);
  peer->segment = peer->mapped.get();
  PeerProcess* const made = (peers_[owner] = std::move(peer)).get();
  peer_count_.fetch_add(1, std::memory_order_relaxed);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = made;
  if (made->pidfd >= 0 && epoll_ctl(monitor_epoll_, EPOLL_CTL_ADD, made->pidfd, &event) == 0) return made;
  if (made->pidfd >= 0) close(std::exchange(made->pidfd, -1));
  unwatched_.fetch_add(1);
  eventfd_write(monitor_wake_, 1);
  return made;
}

int Process::start_monitor() {
  if (monitor_epoll_ >= 0) return 0;
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  const int wake = epoll < 0 ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  int error = wake < 0 ? errno : 0;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;  // the wake-up
  if (error == 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, wake, &event) != 0) error = errno;
  monitor_epoll_ = epoll;
  monitor_wake_ = wake;
  if (error == 0) error = start_own_thread([this] { watch_peers(); });
  if (error == 0) return 0;
  if (epoll >= 0) close(epoll);
  if (wake >= 0) close(wake);
  monitor_epoll_ = monitor_wake_ = -1;
  return error;
}

void PeerProcess::mark_dead() {
  dead.store(true, std::memory_order_release);
  {
    const std::lock_guard lock(pipes_mutex);
    for (const auto& [inode, fd] : pipes) close(fd);
    pipes.clear();
  }
  const std::lock_guard lock(handles_mutex);
  mapped->give_back();
  if (pidfd >= 0) close(std::exchange(pidfd, -1));
}

void Process::watch_peers() {
  pthread_setname_np(pthread_self(), "softverbs-peers");
  constexpr int kLookUpMs = 100;
  for (;;) {
    epoll_event event{};
    const int count = epoll_wait(monitor_epoll_, &event, 1, unwatched_.load() == 0 ? -1 : kLookUpMs);
    if (count == 1 && event.data.ptr == nullptr) {
      eventfd_t ignored;
      eventfd_read(monitor_wake_, &ignored);
    } else if (count == 1) {
      auto* peer = static_cast<PeerProcess*>(event.data.ptr);
      epoll_ctl(monitor_epoll_, EPOLL_CTL_DEL, peer->pidfd, nullptr);
      peer->mark_dead();
    }
    if (unwatched_.load() == 0) continue;
    const std::lock_guard lock(peers_mutex_);
    for (const auto& [owner, peer] : peers_) {
      if (peer->pidfd >= 0 || peer->dead.load() || is_alive(owner)) continue;
      peer->mark_dead();
      unwatched_.fetch_sub(1);
    }
  }
}

bool Process::is_claimer_dead(uint32_t claimer) const {
  if (claimer == claimer_) return false;  // another thread of this process holds it
  const uint32_t slot = claimer >> 12;
  if (slot >= kProcessSlots) return true;  // a peer may write any value
  if ((directory_->get_generation(slot) & 0xfff) != (claimer & 0xfff)) return true;
  return !is_alive(directory_->get_owner(slot));
}

}  // namespace verbena::softverbs
