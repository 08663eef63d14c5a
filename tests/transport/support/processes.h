// Tests in several processes. The test's own process opens no library: each part runs in a child of it,
// forked before anything is loaded there, whose failed expectations fail the test.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>

namespace verbena::transport {

// Both parts' way to each other.
class Channel {
 public:
  explicit Channel(int socket) : socket_(socket) {}
  void send(const void* data, size_t length_bytes);
  // Throws after a minute of silence, or at once if the other part is gone.
  void receive(void* data, size_t length_bytes);
  // Each waits until the other has come there too.
  void meet();

  template <typename T>
  void tell(const T& value) {
    send(&value, sizeof(value));
  }
  template <typename T>
  T hear() {
    T value{};
    receive(&value, sizeof(value));
    return value;
  }

 private:
  int socket_;
};

enum class End { kSuccess, kKilled };

struct Part {
  std::function<void(Channel&)> body;
  End end = End::kSuccess;
};

// Runs both, at most `patience_s` long; what still runs then is killed and the test fails.
void run_processes(const Part& first, const Part& second, int patience_s = 240);
// One part alone.
void run_process(const std::function<void()>& body);

// The end of a process that a fault takes: no destructor runs.
[[noreturn]] void die();

}  // namespace verbena::transport
