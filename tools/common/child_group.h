#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/environment.h"
#include "common/line_channel.h"

namespace verbena::tools {

// The descriptors of a child process: the first one connects it with the tool, the second one with its
// partner, if it has one.
inline constexpr int kControlDescriptor = 3;
inline constexpr int kPartnerDescriptor = 4;

struct ChildCommand {
  std::string executable;
  std::vector<std::string> arguments;  // without argv[0]
  Environment environment;
  int partner_descriptor = -1;  // the caller owns the descriptor; the child gets a copy as kPartnerDescriptor
};

struct ChildEvent {
  enum class Kind { kLine, kExit, kTimeout };
  Kind kind = Kind::kTimeout;
  size_t child = 0;
  std::string line;
};

// The processes of one run. None outlives the group, and no wait is without a deadline.
class ChildGroup {
 public:
  ChildGroup() = default;
  ChildGroup(const ChildGroup&) = delete;
  ChildGroup& operator=(const ChildGroup&) = delete;
  ~ChildGroup() { kill_all(); }

  // Throws ToolError if the process cannot be started.
  size_t start(const ChildCommand& command);

  // Adds a process of another host that talks through this channel. It counts as exited when the channel is
  // closed, and cannot be killed.
  size_t adopt(LineChannel channel);

  bool send_line(size_t child, const std::string& line, int64_t deadline_ns);
  ChildEvent wait_event(int64_t deadline_ns);

  // Kills the processes that still run, by process id, and collects them; gives up on one after five seconds.
  void kill_all();

  size_t size() const { return children_.size(); }
  pid_t pid(size_t child) const { return children_[child].pid; }
  bool is_adopted(size_t child) const { return children_[child].pid < 0; }
  bool has_exited(size_t child) const { return children_[child].exited; }

  // Describes how a child ended: "exit status 2", "killed by signal 11 (Segmentation fault)", or "its
  // connection closed" for an adopted process.
  std::string describe_exit(size_t child) const;
  // Exit status, 128 + signal, or -1 while unknown.
  int exit_status(size_t child) const;

 private:
  struct Child {
    pid_t pid = -1;
    LineChannel channel{-1};
    bool exited = false;
    int wait_status = -1;
  };

  bool try_collect(Child& child, int64_t deadline_ns);

  std::vector<Child> children_;
};

// The first call in a child process: makes it die with the tool, and hides the channels from the child's own
// children.
void prepare_child_process();

}  // namespace verbena::tools
