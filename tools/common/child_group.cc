#include "common/child_group.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "common/clock.h"
#include "common/error.h"

namespace verbena::tools {
namespace {

constexpr int64_t kCollectDeadlineNs = 5'000'000'000;
constexpr int64_t kCollectPollUs = 2'000;

std::vector<char*> make_pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Moves a channel above the numbers that both get in the end: a dup2 of a descriptor onto itself would keep
// close-on-exec set.
int duplicate_high(int descriptor) {
  return fcntl(descriptor, F_DUPFD_CLOEXEC, kPartnerDescriptor + 1);
}

int spawn_process(const ChildCommand& command, int control_descriptor, pid_t& pid) {
  std::vector<std::string> arguments{command.executable};
  arguments.insert(arguments.end(), command.arguments.begin(), command.arguments.end());
  std::vector<std::string> variables = command.environment.list_all();
  const int control = duplicate_high(control_descriptor);
  const int partner = command.partner_descriptor >= 0 ? duplicate_high(command.partner_descriptor) : -1;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, control, kControlDescriptor);
  if (partner >= 0) posix_spawn_file_actions_adddup2(&actions, partner, kPartnerDescriptor);
  const int error = posix_spawnp(&pid, command.executable.c_str(), &actions, nullptr,
                                 make_pointers(arguments).data(), make_pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  close(control);
  if (partner >= 0) close(partner);
  return error;
}

}  // namespace

size_t ChildGroup::start(const ChildCommand& command) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    throw ToolError(std::string("socketpair: ") + std::strerror(errno));
  }
  Child child;
  child.channel = LineChannel(pair[0]);
  const int error = spawn_process(command, pair[1], child.pid);
  close(pair[1]);
  if (error != 0) throw ToolError("cannot start " + command.executable + ": " + std::strerror(error));
  children_.push_back(std::move(child));
  return children_.size() - 1;
}

size_t ChildGroup::adopt(LineChannel channel) {
  children_.push_back({.channel = std::move(channel)});
  return children_.size() - 1;
}

bool ChildGroup::send_line(size_t child, const std::string& line, int64_t deadline_ns) {
  return children_[child].channel.send_line(line, deadline_ns);
}

bool ChildGroup::try_collect(Child& child, int64_t deadline_ns) {
  if (child.pid < 0) child.exited = true;
  while (!child.exited) {
    const pid_t collected = waitpid(child.pid, &child.wait_status, WNOHANG);
    if (collected == child.pid || (collected < 0 && errno == ECHILD)) {
      child.exited = true;
    } else if (now_ns() >= deadline_ns) {
      return false;
    } else {
      usleep(kCollectPollUs);
    }
  }
  return true;
}

ChildEvent ChildGroup::wait_event(int64_t deadline_ns) {
  for (;;) {
    std::vector<pollfd> entries;
    std::vector<size_t> indices;
    for (size_t index = 0; index < children_.size(); ++index) {
      if (children_[index].exited) continue;
      entries.push_back({children_[index].channel.descriptor(), POLLIN, 0});
      indices.push_back(index);
    }
    if (entries.empty()) return {};
    const int ready = poll(entries.data(), entries.size(), compute_poll_timeout_ms(deadline_ns));
    if (ready <= 0) {
      if (now_ns() >= deadline_ns) return {};
      continue;
    }
    for (size_t at = 0; at < entries.size(); ++at) {
      if (entries[at].revents == 0) continue;
      Child& child = children_[indices[at]];
      LineChannel::Received received = child.channel.receive_line(now_ns());
      if (received.status == LineChannel::Status::kLine) {
        return {ChildEvent::Kind::kLine, indices[at], std::move(received.line)};
      }
      if (received.status == LineChannel::Status::kTimeout) continue;
      // The channel closes when the process exits; a process that closed it but still runs is killed.
      if (!try_collect(child, now_ns() + kCollectDeadlineNs)) kill(child.pid, SIGKILL);
      try_collect(child, now_ns() + kCollectDeadlineNs);
      child.exited = true;
      return {ChildEvent::Kind::kExit, indices[at], {}};
    }
  }
}

void ChildGroup::kill_all() {
  for (Child& child : children_) {
    if (!child.exited && child.pid >= 0) kill(child.pid, SIGKILL);
  }
  const int64_t deadline_ns = now_ns() + kCollectDeadlineNs;
  for (Child& child : children_) try_collect(child, deadline_ns);
}

int ChildGroup::exit_status(size_t index) const {
  const Child& child = children_[index];
  if (!child.exited || child.wait_status == -1) return -1;
  if (WIFSIGNALED(child.wait_status)) return 128 + WTERMSIG(child.wait_status);
  return WEXITSTATUS(child.wait_status);
}

std::string ChildGroup::describe_exit(size_t index) const {
  const int status = exit_status(index);
  if (children_[index].exited && children_[index].pid < 0) return "the connection to the process was closed";
  if (status < 0) return "still running";
  if (status < 128) return "exit status " + std::to_string(status);
  return "killed by signal " + std::to_string(status - 128) + " (" + strsignal(status - 128) + ")";
}

void prepare_child_process() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int descriptor : {kControlDescriptor, kPartnerDescriptor}) {
    if (fcntl(descriptor, F_GETFD) >= 0) fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  }
}

}  // namespace verbena::tools
