// The C API as an application has it: its headers and libverbena.so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "verbena/message_queue.h"
#include "verbena/ranks.h"

extern "C" size_t measure_handle_in_c(void);

namespace {

constexpr int64_t kPatienceMs = 120'000;
constexpr verbena_queue_options kOptions = {1, 3, 64, 0, "127.0.0.1", nullptr};

// Both ends of a queue, in this process.
class QueueEnds : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(verbena_queue_destroy(reader_), VERBENA_SUCCESS);
    EXPECT_EQ(verbena_queue_destroy(writer_), VERBENA_SUCCESS);
  }
  void make(const verbena_queue_options& options, uint32_t number, bool waits = true) {
    ASSERT_EQ(verbena_queue_create(&options, &writer_), VERBENA_SUCCESS);
    verbena_queue_handle handle;
    ASSERT_EQ(verbena_queue_get_handle(writer_, &handle), VERBENA_SUCCESS);
    ASSERT_EQ(verbena_queue_attach(&handle, number, options.spin_us, &reader_), VERBENA_SUCCESS);
    if (!waits) return;
    std::thread other(
        [this] { EXPECT_EQ(verbena_queue_wait_until_ready(writer_, kPatienceMs), VERBENA_SUCCESS); });
    EXPECT_EQ(verbena_queue_wait_until_ready(reader_, kPatienceMs), VERBENA_SUCCESS);
    other.join();
  }

  verbena_queue *writer_ = nullptr, *reader_ = nullptr;
};

class QueueApi : public QueueEnds {
 protected:
  void SetUp() override { make(kOptions, 0); }
  void send(const std::string& text) {
    const verbena_queue_part part{text.data(), text.size()};
    ASSERT_EQ(verbena_queue_enqueue(writer_, &part, 1, kPatienceMs), VERBENA_SUCCESS);
  }
  verbena_queue_message get() {
    verbena_queue_message message{};
    EXPECT_EQ(verbena_queue_dequeue(reader_, kPatienceMs, &message), VERBENA_SUCCESS);
    return message;
  }
  static std::string text_of(const verbena_queue_message& message) {
    return {static_cast<const char*>(message.data), message.length};
  }
};

TEST_F(QueueApi, PartsAndPlaces) {
  EXPECT_EQ(measure_handle_in_c(), sizeof(verbena_queue_handle));
  EXPECT_EQ(verbena_queue_is_local(reader_), 1);
  EXPECT_EQ(verbena_queue_is_local(writer_), 1);
  std::vector<std::string> texts;
  std::vector<verbena_queue_part> parts;
  for (int i = 0; i < 20; ++i) texts.push_back(std::to_string(i));
  for (const std::string& text : texts) parts.push_back({text.data(), text.size()});
  ASSERT_EQ(verbena_queue_enqueue(writer_, parts.data(), parts.size(), kPatienceMs), VERBENA_SUCCESS);
  void* chunk = nullptr;
  ASSERT_EQ(verbena_queue_reserve(writer_, kPatienceMs, &chunk), VERBENA_SUCCESS);
  std::memcpy(chunk, "in place", 8);
  ASSERT_EQ(verbena_queue_commit(writer_, 8), VERBENA_SUCCESS);
  const auto first = get(), second = get();
  EXPECT_EQ(text_of(first), "012345678910111213141516171819");
  EXPECT_EQ(text_of(second), "in place");
  EXPECT_EQ(verbena_queue_destroy(reader_), VERBENA_INVALID_USAGE);
  EXPECT_THAT(verbena_last_error(), testing::HasSubstr("before 2 of its messages were released"));
  EXPECT_EQ(verbena_queue_release(reader_, first.ticket), VERBENA_SUCCESS);
  EXPECT_EQ(verbena_queue_release(reader_, first.ticket), VERBENA_INVALID_USAGE);
  EXPECT_EQ(verbena_queue_release(reader_, second.ticket), VERBENA_SUCCESS);
}

TEST_F(QueueApi, WhoMayDoWhat) {
  verbena_queue_message message{};
  const verbena_queue_part part{"x", 1};
  void* chunk = nullptr;
  EXPECT_EQ(verbena_queue_dequeue(writer_, 0, &message), VERBENA_INVALID_USAGE);
  EXPECT_EQ(verbena_queue_enqueue(reader_, &part, 1, 0), VERBENA_INVALID_USAGE);
  EXPECT_EQ(verbena_queue_reserve(reader_, 0, &chunk), VERBENA_INVALID_USAGE);
  EXPECT_EQ(verbena_queue_drop_reader(writer_, 1), VERBENA_INVALID_ARGUMENT);
  EXPECT_EQ(verbena_queue_pin(reader_), VERBENA_INVALID_USAGE);
  EXPECT_EQ(verbena_queue_dequeue(reader_, 0, &message), VERBENA_TIMEOUT);
  verbena_queue_cancel(reader_);
  EXPECT_EQ(verbena_queue_dequeue(reader_, -1, &message), VERBENA_INVALID_USAGE);
}

// By another thread: whatever the call waits for, it ends, and the memory goes behind it.
class QueueShutdown : public QueueEnds {
 protected:
  // `call` until it fails; whether it did so by the shutdown of `queue`.
  template <typename Call>
  static void shut_during(verbena_queue* queue, const Call& call) {
    std::atomic<bool> is_under_way{false};
    verbena_result result = VERBENA_SUCCESS;
    std::string error;
    std::thread blocked([&] {
      is_under_way = true;
      while (result == VERBENA_SUCCESS) result = call();
      error = verbena_last_error();
    });
    while (!is_under_way) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // both before and in the wait it is right
    EXPECT_EQ(verbena_queue_shutdown(queue), VERBENA_SUCCESS);
    EXPECT_EQ(call(), VERBENA_INVALID_USAGE);  // and so is each further one
    EXPECT_EQ(verbena_queue_shutdown(queue), VERBENA_SUCCESS);
    blocked.join();
    EXPECT_EQ(result, VERBENA_INVALID_USAGE);
    EXPECT_THAT(error, testing::HasSubstr("this process has shut the queue down"));
  }
  void make(bool waits = true, int64_t spin_us = 0) {
    verbena_queue_options options = kOptions;
    options.spin_us = spin_us;
    QueueEnds::make(options, VERBENA_QUEUE_ANY_READER, waits);
  }
  verbena_result dequeue() {
    verbena_queue_message message{};
    return verbena_queue_dequeue(reader_, -1, &message);
  }
  verbena_result enqueue() {
    const verbena_queue_part part{"x", 1};
    return verbena_queue_enqueue(writer_, &part, 1, -1);
  }
};

TEST_F(QueueShutdown, AReaderThatSleeps) {
  make();
  shut_during(reader_, [this] { return dequeue(); });
}
TEST_F(QueueShutdown, AReaderThatSpins) {
  make(true, -1);
  shut_during(reader_, [this] { return dequeue(); });
}
TEST_F(QueueShutdown, AWriterWhoseRingIsFull) {
  make();
  shut_during(writer_, [this] { return enqueue(); });
}
TEST_F(QueueShutdown, AWriterWhoseReadersHaveNotCome) {
  make(false);
  shut_during(writer_, [this] { return verbena_queue_wait_until_ready(writer_, kPatienceMs); });
}
TEST_F(QueueShutdown, AReaderWhoseWriterHasNotCome) {
  make(false);
  shut_during(reader_, [this] { return verbena_queue_wait_until_ready(reader_, kPatienceMs); });
}

// What is held stays as it is, and keeps its chunk from the writer, until it is released.
TEST_F(QueueShutdown, AReaderThatHoldsAMessage) {
  make();
  ASSERT_EQ(enqueue(), VERBENA_SUCCESS);
  verbena_queue_message message{};
  ASSERT_EQ(verbena_queue_dequeue(reader_, kPatienceMs, &message), VERBENA_SUCCESS);
  EXPECT_EQ(verbena_queue_shutdown(reader_), VERBENA_SUCCESS);
  EXPECT_EQ(verbena_queue_destroy(reader_), VERBENA_INVALID_USAGE);
  const verbena_queue_part part{"y", 1};
  verbena_result result = VERBENA_SUCCESS;
  for (int i = 0; i < 3 && result == VERBENA_SUCCESS; ++i)
    result = verbena_queue_enqueue(writer_, &part, 1, 10);
  EXPECT_EQ(result, VERBENA_TIMEOUT);
  EXPECT_EQ(*static_cast<const char*>(message.data), 'x');
  EXPECT_EQ(verbena_queue_release(reader_, message.ticket), VERBENA_SUCCESS);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(enqueue(), VERBENA_SUCCESS);  // it has left
}

// Many times, so that it meets each step of the calls.
TEST_F(QueueShutdown, AtAnyTime) {
  for (int round = 0; round < 300; ++round) {
    make();
    std::thread writing([&] {
      while (enqueue() == VERBENA_SUCCESS) continue;
    });
    std::thread reading([&] {
      verbena_queue_message message{};
      while (verbena_queue_dequeue(reader_, -1, &message) == VERBENA_SUCCESS)
        EXPECT_EQ(verbena_queue_release(reader_, message.ticket), VERBENA_SUCCESS);
    });
    for (int i = 0; i < round % 20; ++i) std::this_thread::yield();
    EXPECT_EQ(verbena_queue_shutdown(round % 2 == 0 ? reader_ : writer_), VERBENA_SUCCESS);
    if (round % 2 == 0) {
      EXPECT_EQ(verbena_queue_shutdown(writer_), VERBENA_SUCCESS);  // it goes on without a reader
    }
    writing.join();
    reading.join();
    EXPECT_EQ(verbena_queue_destroy(reader_), VERBENA_SUCCESS);
    EXPECT_EQ(verbena_queue_destroy(writer_), VERBENA_SUCCESS);
    reader_ = writer_ = nullptr;
  }
}

TEST(QueueApiArguments, AreChecked) {
  verbena_queue* queue = nullptr;
  verbena_queue_options options = kOptions;
  options.address = "localhost";
  EXPECT_EQ(verbena_queue_create(&options, &queue), VERBENA_INVALID_ARGUMENT);
  EXPECT_EQ(verbena_queue_create(nullptr, &queue), VERBENA_INVALID_ARGUMENT);
  const verbena_queue_handle handle{};
  EXPECT_EQ(verbena_queue_attach(&handle, 0, 0, &queue), VERBENA_INVALID_ARGUMENT);
  EXPECT_EQ(verbena_queue_destroy(nullptr), VERBENA_SUCCESS);
}

TEST(RanksApi, OneRank) {
  verbena_ranks* ranks = nullptr;
  const verbena_ranks_options place{"127.0.0.1", 1, 1, 0, 1000};
  ASSERT_EQ(verbena_ranks_join(&place, &ranks), VERBENA_SUCCESS);
  EXPECT_EQ(verbena_ranks_rank(ranks), 0u);
  EXPECT_EQ(verbena_ranks_count(ranks), 1u);
  int mine = 42, all = 0;
  EXPECT_EQ(verbena_ranks_all_gather(ranks, &mine, &all, sizeof(mine)), VERBENA_SUCCESS);
  EXPECT_EQ(all, 42);
  EXPECT_EQ(verbena_ranks_barrier(ranks), VERBENA_SUCCESS);
  verbena_ranks_leave(ranks);
  const verbena_ranks_options wrong{"127.0.0.1", 1, 2, 2, 1000};
  EXPECT_EQ(verbena_ranks_join(&wrong, &ranks), VERBENA_INVALID_ARGUMENT);
}

}  // namespace
