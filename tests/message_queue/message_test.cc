// What is written is what is read, by all, in order: in place, put together, over TCP.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "base/job_key.h"
#include "message_queue/support/queues.h"
#include "tests/base/log_capture.h"
#include "tests/base/scratch_path.h"

namespace verbena::message_queue {
namespace {

using base::LogCapture;
using base::Status;

constexpr uint64_t kChunkBytes = 512;
constexpr uint64_t kMessages = 3000;

TEST(MessageQueue, SixtyFourBytesToOneReader) {
  auto writer = make_writer(1, 2, 64);
  std::thread thread([&] { EXPECT_TRUE(writer->wait_until_ready(kPatienceMs)); });
  auto reader = attach(writer->handle(), 0);
  thread.join();
  EXPECT_TRUE(reader->is_local());
  const std::vector<std::byte> sent(64, std::byte{7});
  ASSERT_TRUE(send(*writer, sent));
  const auto got = reader->dequeue(kPatienceMs);
  ASSERT_TRUE(got);
  EXPECT_TRUE(std::ranges::equal(got->bytes, sent));
  EXPECT_EQ(reader->count_held(), 1u);
  EXPECT_TRUE(reader->release(got->ticket));
  EXPECT_EQ(reader->count_held(), 0u);
}

void run_threads(uint32_t count_readers, uint64_t messages) {
  auto writer = make_writer(count_readers, 4, kChunkBytes);
  std::vector<std::thread> readers;
  for (uint32_t number = 0; number < count_readers; ++number) {
    readers.emplace_back([&, number] {
      auto reader = attach(writer->handle(), number);
      EXPECT_EQ(read_all(*reader, messages, kChunkBytes), messages) << "reader " << number;
    });
  }
  EXPECT_TRUE(writer->wait_until_ready(kPatienceMs));
  EXPECT_TRUE(send_all(*writer, messages, kChunkBytes));
  for (std::thread& thread : readers) thread.join();
}

TEST(MessageQueue, ManySizesToThreads) {
  run_threads(3, kMessages);
}
TEST(MessageQueue, ManyReaders) {
  run_threads(70, 200);
}

// Every second reader is on another host, as far as it says.
void run_processes(uint32_t count_readers, bool poses, uint64_t messages) {
  auto writer = make_writer(count_readers, 4, kChunkBytes);
  Processes readers(count_readers, [&](uint32_t number) {
    const bool is_remote = poses && number % 2 == 0;
    if (is_remote) pose_as_host("elsewhere");
    auto reader = attach(writer->handle(), number);
    if (reader->is_local() == is_remote) return 3;
    return read_all(*reader, messages, kChunkBytes) == messages ? 0 : 1;
  });
  ASSERT_TRUE(writer->wait_until_ready(kPatienceMs));
  EXPECT_EQ(writer->count_local(), poses ? count_readers / 2 : count_readers);
  EXPECT_TRUE(send_all(*writer, messages, kChunkBytes));
  EXPECT_THAT(readers.await(kPatienceMs), testing::Each(0));
}

TEST(MessageQueue, ManySizesToProcesses) {
  run_processes(2, false, kMessages);
}
TEST(MessageQueue, ManySizesOverTcp) {
  run_processes(4, true, kMessages);
}

TEST(MessageQueue, OverTcpWithJobKey) {
  const tests::ScratchPath path{"key"};
  std::ofstream(path.get()) << "a secret of sixteen bytes";
  chmod(path.get().c_str(), 0600);
  base::ScopedEnvironment environment;
  environment.set("VERBENA_JOB_KEY_FILE", path.get());
  ASSERT_TRUE(base::load_parameters());
  ASSERT_TRUE(base::load_job_key());
  run_processes(2, true, 300);
  // Who has no key is no reader.
  auto writer = make_writer(1, 2, 64);
  LogCapture log;
  std::thread admitting([&] { EXPECT_EQ(writer->wait_until_ready(2000).status(), Status::kTimeout); });
  Processes stranger(1, [&](uint32_t) {
    environment.set("VERBENA_JOB_KEY_FILE", "");
    if (!base::load_parameters() || !base::load_job_key()) return 3;
    auto reader = take(Reader::attach(writer->handle(), 0, 0), "reader");
    return reader->wait_until_ready(60'000).status() == Status::kRemote ? 0 : 1;
  });
  EXPECT_THAT(stranger.await(kPatienceMs), testing::Each(0));
  admitting.join();
  EXPECT_THAT(log.warnings(),
              testing::Contains(testing::HasSubstr("the peer has no job key but this rank has one")));
  environment.set("VERBENA_JOB_KEY_FILE", "");
  ASSERT_TRUE(base::load_parameters());
  ASSERT_TRUE(base::load_job_key());
}

class Pair : public testing::Test {
 protected:
  Pair() : writer_(make_writer(1, 3, 64)) {
    std::thread thread([this] { EXPECT_TRUE(writer_->wait_until_ready(kPatienceMs)); });
    reader_ = attach(writer_->handle(), 0);
    thread.join();
  }
  static std::vector<std::byte> fill(int value, size_t length = 64) {
    return std::vector<std::byte>(length, static_cast<std::byte>(value));
  }
  int read_value() {
    const auto message = reader_->dequeue(kPatienceMs);
    if (!message) return -1;
    const int value = static_cast<int>(message->bytes[0]);
    EXPECT_TRUE(reader_->release(message->ticket));
    return value;
  }

  std::unique_ptr<Writer> writer_;
  std::unique_ptr<Reader> reader_;
};

TEST_F(Pair, MessagesAreReleasedInAnyOrder) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(send(*writer_, fill(i)));
  std::vector<Message> held;
  for (int i = 0; i < 3; ++i) held.push_back(*reader_->dequeue(0));
  LogCapture log;
  EXPECT_EQ(reader_->dequeue(0).error().status, Status::kInvalidUsage);
  EXPECT_THAT(log.warnings(), testing::ElementsAre(testing::HasSubstr(
                                  "all 3 chunks contain messages that this reader has not released")));
  EXPECT_TRUE(reader_->release(held[2].ticket));
  EXPECT_EQ(send(*writer_, fill(3), 0).status(), Status::kTimeout);  // the first still holds its slot
  EXPECT_TRUE(reader_->release(held[0].ticket));
  EXPECT_TRUE(send(*writer_, fill(3)));
  EXPECT_EQ(held[1].bytes[0], std::byte{1});
  EXPECT_EQ(reader_->release(held[0].ticket).status(), Status::kInvalidUsage);  // twice
  EXPECT_EQ(reader_->release(77).status(), Status::kInvalidUsage);
  EXPECT_EQ(read_value(), 3);
}

TEST_F(Pair, EmptyMessage) {
  ASSERT_TRUE(send(*writer_, {}));
  const auto message = reader_->dequeue(kPatienceMs);
  ASSERT_TRUE(message);
  EXPECT_TRUE(message->bytes.empty());
}

TEST_F(Pair, PartsMakeOneMessage) {
  const auto a = fill(1, 100), b = fill(2, 1), c = fill(3, 50);
  const std::span<const std::byte> parts[] = {a, {}, b, c};
  std::thread thread([&] { EXPECT_TRUE(writer_->enqueue(parts, kPatienceMs)); });
  const auto message = reader_->dequeue(kPatienceMs);
  thread.join();
  ASSERT_TRUE(message);
  ASSERT_EQ(message->bytes.size(), 151u);
  EXPECT_EQ(message->bytes[99], std::byte{1});
  EXPECT_EQ(message->bytes[100], std::byte{2});
  EXPECT_EQ(message->bytes[150], std::byte{3});
  EXPECT_TRUE(reader_->release(message->ticket));
}

TEST_F(Pair, WrittenInPlace) {
  const auto chunk = writer_->reserve(kPatienceMs);
  ASSERT_TRUE(chunk);
  ASSERT_EQ(chunk->size(), 64u);
  (*chunk)[0] = std::byte{42};
  EXPECT_EQ(reader_->dequeue(0).error().status, Status::kTimeout);
  EXPECT_EQ(writer_->commit(65).status(), Status::kInvalidUsage);
  ASSERT_TRUE(writer_->commit(1));
  EXPECT_EQ(read_value(), 42);
}

// A reader never sees half a message, whichever side gave it up.
TEST_F(Pair, TimeoutInTheMiddleOfAMessage) {
  LogCapture log;
  EXPECT_EQ(send(*writer_, fill(1, 64 * 5), 20).status(), Status::kTimeout);
  EXPECT_THAT(log.warnings(),
              testing::ElementsAre(testing::AllOf(
                  testing::HasSubstr("no chunk became free within"), testing::HasSubstr("chunk 0"),
                  testing::HasSubstr("reader 0 (process "), testing::HasSubstr("has not read the chunk"))));
  std::thread thread([&] { EXPECT_TRUE(send(*writer_, fill(2))); });
  EXPECT_EQ(read_value(), 2);
  thread.join();
}

TEST_F(Pair, SlowReaderIsNamedWithWhatItHolds) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(send(*writer_, fill(i)));
  const auto held = reader_->dequeue(0);
  ASSERT_TRUE(held);
  LogCapture log;
  EXPECT_EQ(send(*writer_, fill(3), 1).status(), Status::kTimeout);
  EXPECT_THAT(log.warnings(),
              testing::ElementsAre(testing::HasSubstr("has read the chunk but has not released the chunk")));
}

TEST_F(Pair, CancelEndsAWait) {
  std::thread thread([&] { reader_->cancel(); });
  EXPECT_EQ(reader_->dequeue(kForever).error().status, Status::kInvalidUsage);
  thread.join();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(send(*writer_, fill(i)));
  std::thread other([&] { writer_->cancel(); });
  EXPECT_EQ(send(*writer_, fill(3), kForever).status(), Status::kInvalidUsage);
  other.join();
  EXPECT_EQ(read_value(), 0);
  EXPECT_TRUE(send(*writer_, fill(3)));
}

TEST_F(Pair, TheEndComesBehindWhatWasWritten) {
  ASSERT_TRUE(send(*writer_, fill(5)));
  writer_.reset();
  EXPECT_EQ(read_value(), 5);
  LogCapture log;
  EXPECT_EQ(reader_->dequeue(kForever).error().status, Status::kRemote);
  EXPECT_THAT(log.lines_of(base::LogLevel::kInfo),
              testing::Contains(testing::HasSubstr("has shut the queue down")));
  EXPECT_THAT(log.warnings(), testing::IsEmpty());
}

TEST_F(Pair, AReaderThatLeavesIsNoError) {
  reader_.reset();
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(send(*writer_, fill(i)));
}

TEST(MessageQueueUsage, IsChecked) {
  LogCapture log;
  EXPECT_EQ(Writer::create({.shape = {0, 4, 64}, .bind = {}}).error().status, Status::kInvalidArgument);
  EXPECT_EQ(Writer::create({.shape = {1, 1, 64}, .bind = {}}).error().status, Status::kInvalidArgument);
  EXPECT_EQ(Writer::create({.shape = {1, 4, 0}, .bind = {}}).error().status, Status::kInvalidArgument);
  EXPECT_EQ(Writer::create({.shape = {kMaxReaders + 1, 4, 64}, .bind = {}}).error().status,
            Status::kInvalidArgument);
  auto writer = make_writer(2, 4, 64);
  EXPECT_EQ(send(*writer, {}).status(), Status::kInvalidUsage);
  EXPECT_EQ(Reader::attach(writer->handle(), 2, 0).error().status, Status::kInvalidArgument);
  Handle other = writer->handle();
  other.magic = 0;
  EXPECT_EQ(Reader::attach(other, 0, 0).error().status, Status::kInvalidArgument);
  EXPECT_EQ(writer->pin().status(), Status::kInvalidUsage);  // no GPU here
}

}  // namespace
}  // namespace verbena::message_queue
