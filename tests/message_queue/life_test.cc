// Nothing is left: no descriptor, thread, mapping or name.
#include <dirent.h>

#include <fstream>
#include <string>
#include <thread>

#include "base/clock.h"
#include "message_queue/support/queues.h"

namespace verbena::message_queue {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kCycles = 30;
#else
constexpr int kCycles = 1000;
#endif

size_t count_entries(const std::string& folder) {
  size_t count = 0;
  DIR* const open = opendir(folder.c_str());
  while (open != nullptr && readdir(open) != nullptr) ++count;
  if (open != nullptr) closedir(open);
  return count;
}

size_t count_queue_maps() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("verbena-queue") != std::string::npos || line.find("/dev/shm/") != std::string::npos;
  return count;
}

// The kernel counts a joined thread for a moment longer. A sanitizer has its own thread.
size_t await_threads(size_t expected) {
  const auto deadline = base::Deadline::after_ms(5000);
  size_t count = 0;
  while ((count = count_entries("/proc/self/task")) > expected && !deadline.has_passed())
    std::this_thread::yield();
  return count;
}

void run_cycle() {
  auto writer = make_writer(2, 2, 4096);
  std::thread other([&] {
    auto reader = attach(writer->handle(), 1);
    EXPECT_EQ(read_all(*reader, 5, 4096), 5u);
  });
  std::thread admitting([&] { ASSERT_TRUE(writer->wait_until_ready(kPatienceMs)); });
  auto reader = attach(writer->handle(), 0);
  admitting.join();
  std::thread sending([&] { EXPECT_TRUE(send_all(*writer, 5, 4096)); });
  EXPECT_EQ(read_all(*reader, 5, 4096), 5u);
  sending.join();
  other.join();
}

TEST(QueueLife, NothingIsLeft) {
  run_cycle();  // what is made once a process
  const size_t files = count_entries("/proc/self/fd");
  const size_t threads = await_threads(3);  // ., .., this one
  for (int i = 0; i < kCycles; ++i) run_cycle();
  EXPECT_EQ(count_entries("/proc/self/fd"), files);
  EXPECT_EQ(count_queue_maps(), 0u);
  EXPECT_EQ(await_threads(threads), threads);
}

}  // namespace
}  // namespace verbena::message_queue
