// The proxy before an endpoint that does what the test says: what is posted, in which order, what waits, and
// what kernels are notified of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "device/proxy/proxy.h"
#include "device/proxy/queue_drain.h"
#include "device/proxy/support/fake_endpoint.h"
#include "device/proxy/support/queue_writer.h"

namespace verbena::device_test {
namespace {

using symm::AbortWord;
using symm::Proxy;
using symm::PutQueue;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using enum PutOperation;

constexpr uint64_t kNear = 0, kFar = 1 << 20, kWindowBytes = 4096;

class DrainTest : public testing::Test {
 protected:
  DrainTest() {
    EXPECT_TRUE(proxy_.add_window(kNear, kWindowBytes, 3));
    EXPECT_TRUE(proxy_.add_window(kFar, kWindowBytes, 4));
  }
  std::vector<std::string> work() {
    proxy_.work();
    return endpoint_.take_asked();
  }
  // The endpoint's report, which the proxy takes up.
  void complete(uint32_t peer, uint32_t lane, uint64_t count, uint64_t cookie = 0, uint64_t value = 0) {
    endpoint_.complete(peer, lane, count, cookie, value);
    work();
  }
  void write(uint32_t queue, PutOperation operation, uint64_t peer, uint64_t operand, uint64_t extent,
             uint64_t place) {
    writer_.write(queue, describe(operation, peer, operand, extent, place));
  }

  FakeEndpoint endpoint_;
  PutQueue queues_ = *PutQueue::create({.count = 2, .depth = 16});
  AbortWord abort_ = *AbortWord::create();
  Proxy proxy_{endpoint_, queues_, abort_, {.count_ranks = 4}};
  QueueWriter writer_{queues_};
};

TEST_F(DrainTest, EveryOperationGoesToItsRegions) {
  write(0, kPut, 1, kNear + 16, 24, kFar + 32);
  write(0, kGet, 2, kFar + 8, 4096 - 8, kNear);
  write(1, kWriteWord, 3, uint64_t(-1), 0, kFar + 4088);
  write(1, kAddWord, 0, 5, 0, kNear + 8);
  EXPECT_THAT(work(), ElementsAre("put 1:0 3+16 4+32 24", "get 2:0 4+8 3+0 4088", "write 3:1 4+4088 -1",
                                  "add 0:1 3+8 5"));
  EXPECT_THAT(work(), IsEmpty()) << "once";
  EXPECT_EQ(writer_.consumed(0), 2U);
  EXPECT_EQ(writer_.completed(0), 0U);
  EXPECT_EQ(proxy_.counts().descriptors, 4U);
}

TEST_F(DrainTest, ADescriptorIsTakenWhenBothHalvesAreThere) {
  const PutDescriptor whole = describe(kWriteWord, 1, 9, 0, kNear + 8);
  PutDescriptor& slot = writer_.slot(0, 0);
  slot = whole;
  EXPECT_THAT(work(), IsEmpty()) << "no turn";
  slot.place |= writer_.turn_of(0);
  EXPECT_THAT(work(), IsEmpty()) << "one word";
  slot.place = whole.place;
  slot.action |= writer_.turn_of(0);
  EXPECT_THAT(work(), IsEmpty()) << "the other word";
  slot.place |= writer_.turn_of(16);
  EXPECT_THAT(work(), IsEmpty()) << "another turn";
  slot.place = whole.place | writer_.turn_of(0);
  EXPECT_THAT(work(), ElementsAre("write 1:0 3+8 9"));
}

TEST_F(DrainTest, CompletedIsAPrefixOfTheQueue) {
  write(0, kWriteWord, 1, 1, 0, kNear);
  write(0, kWriteWord, 2, 2, 0, kNear);
  write(0, kPut, 1, kNear, 0, kNear);  // nothing to move
  write(0, kWriteWord, 1, 3, 0, kNear);
  work();
  EXPECT_EQ(writer_.consumed(0), 4U);
  complete(2, 0, 1);
  EXPECT_EQ(writer_.completed(0), 0U) << "the first is not";
  complete(1, 0, 1);
  EXPECT_EQ(writer_.completed(0), 3U);
  complete(1, 0, 2);
  EXPECT_EQ(writer_.completed(0), 4U);
  EXPECT_EQ(writer_.completed(1), 0U);
}

TEST_F(DrainTest, AFullLaneHoldsItsPeerAlone) {
  endpoint_.room[{1, 0}] = 1;
  for (uint64_t i = 0; i < 3; ++i) write(0, kPut, 1, kNear, 8 + i, kNear);
  write(0, kPut, 2, kNear, 8, kNear);
  write(1, kPut, 1, kNear, 8, kNear);
  EXPECT_THAT(work(), ElementsAre("put 1:0 3+0 3+0 8", "put 2:0 3+0 3+0 8", "put 1:1 3+0 3+0 8"));
  EXPECT_EQ(writer_.consumed(0), 4U) << "kernels have their places back";
  EXPECT_THAT(work(), IsEmpty());
  endpoint_.room[{1, 0}] = 1;
  write(0, kPut, 1, kNear, 11, kNear);
  EXPECT_THAT(work(), ElementsAre("put 1:0 3+0 3+0 9"));
  endpoint_.room[{1, 0}] = 2;
  EXPECT_THAT(work(), ElementsAre("put 1:0 3+0 3+0 10", "put 1:0 3+0 3+0 11")) << "in order";
  endpoint_.complete(2, 0, 1);
  complete(1, 0, 3);
  EXPECT_EQ(writer_.completed(0), 4U);
}

// What is taken and not complete has a bound.
TEST_F(DrainTest, APeerThatDoesNotGoOnIsNotWaitedForWithoutEnd) {
  constexpr uint64_t kMaxCount = 4096;
  endpoint_.room[{1, 0}] = 0;
  uint64_t written = 0;
  for (; written < 2 * kMaxCount; ++written) {
    if (written - writer_.consumed(0) == 16) proxy_.work();
    if (written - writer_.consumed(0) == 16) break;
    write(0, kPut, written == 0 ? 1 : 2, kNear, 8, kNear);
  }
  EXPECT_EQ(writer_.consumed(0), kMaxCount);
  EXPECT_EQ(endpoint_.take_asked().size(), kMaxCount - 1);
  endpoint_.room.clear();
  work();
  endpoint_.complete(1, 0, 1);
  complete(2, 0, kMaxCount);
  EXPECT_EQ(writer_.completed(0), kMaxCount);
  EXPECT_EQ(work().size(), 16U) << "and on it goes";
}

// Of what is there when it is marked, behind a producer that is not done too; not of what comes later.
TEST_F(DrainTest, AMarkIsOfWhatIsThere) {
  symm::WindowTable windows;
  ASSERT_TRUE(windows.add({kNear, kWindowBytes, 3}));
  const symm::QueueDrain::All none;
  symm::QueueDrain drain(queues_, 0, endpoint_, windows, 4, none);
  const auto work_drain = [&](uint64_t count_done) {
    windows.take_up();
    drain.drain();
    windows.let_go();
    drain.note_done(1, count_done);
    drain.publish_consumed();
    drain.publish_completed();
  };
  drain.mark();
  EXPECT_TRUE(drain.is_quiet()) << "nothing was asked for";
  for (int i = 0; i < 3; ++i) write(0, kPut, 1, kNear, 8, kNear);
  const PutDescriptor unwritten = std::exchange(writer_.slot(0, 1), {});
  drain.mark();
  work_drain(1);
  EXPECT_EQ(writer_.completed(0), 1U);
  EXPECT_FALSE(drain.is_quiet());
  writer_.slot(0, 1) = unwritten;
  for (int i = 0; i < 3; ++i) write(0, kPut, 1, kNear, 8, kNear);
  work_drain(2);
  EXPECT_FALSE(drain.is_quiet());
  work_drain(3);
  EXPECT_TRUE(drain.is_quiet());
  EXPECT_EQ(writer_.completed(0), 3U) << "what came later is under way";
}

TEST_F(DrainTest, QuietReturnsWhenAllIsComplete) {
  write(0, kPut, 1, kNear, 8, kNear);
  write(1, kPut, 2, kNear, 8, kNear);
  work();
  std::atomic<bool> is_quiet{false};
  std::thread caller([&] {
    EXPECT_TRUE(proxy_.quiet());
    is_quiet = true;
  });
  work();
  EXPECT_FALSE(is_quiet);
  complete(2, 1, 1);
  EXPECT_FALSE(is_quiet);
  endpoint_.complete(1, 0, 1);
  while (!is_quiet) work();
  caller.join();
}

TEST_F(DrainTest, AFailureEndsQuiet) {
  write(0, kPut, 1, kNear, 8, kNear);
  work();
  std::thread caller([&] { EXPECT_FALSE(proxy_.quiet()); });
  proxy_.fail("a test's");
  caller.join();
  EXPECT_FALSE(proxy_.quiet());
}

TEST_F(DrainTest, QueuesTakeTurns) {
  PutQueue queues = *PutQueue::create({.count = 2, .depth = 256});
  Proxy proxy(endpoint_, queues, abort_, {.count_ranks = 4});
  ASSERT_TRUE(proxy.add_window(kNear, kWindowBytes, 3));
  QueueWriter writer(queues);
  for (uint64_t i = 0; i < 256; ++i) writer.write(0, describe(kPut, 1, 0, 8, 0));
  writer.write(1, describe(kPut, 2, 0, 8, 0));
  proxy.work();
  EXPECT_EQ(endpoint_.take_asked().back(), "put 2:1 3+0 3+0 8") << "in the first round";
  for (int round = 0; round < 4; ++round) proxy.work();
  EXPECT_EQ(writer.consumed(0), 256U);
}

// Words wait for adds and gets before them; puts do not, nor adds to the one word.
TEST_F(DrainTest, WordsAreFencedWhereTheyMustBe) {
  write(0, kAddWord, 1, 1, 0, kNear);
  write(0, kPut, 1, kNear, 8, kNear);
  write(0, kAddWord, 1, 2, 0, kNear);
  write(0, kAddWord, 2, 3, 0, kFar);
  write(0, kAddWord, 1, 4, 0, kFar);
  write(0, kWriteWord, 1, 5, 0, kFar);
  write(0, kWriteWord, 1, 6, 0, kFar);
  write(0, kGet, 1, kNear, 8, kNear);
  write(0, kWriteWord, 1, 7, 0, kNear);
  EXPECT_THAT(work(), ElementsAre("add 1:0 3+0 1", "put 1:0 3+0 3+0 8", "add 1:0 3+0 2", "add 2:0 4+0 3",
                                  "fence 1:0", "add 1:0 4+0 4", "fence 1:0", "write 1:0 4+0 5",
                                  "write 1:0 4+0 6", "get 1:0 3+0 3+0 8", "fence 1:0", "write 1:0 3+0 7"));
  write(0, kAddWord, 1, 8, 0, kNear);
  work();
  complete(1, 0, 9);
  write(0, kWriteWord, 1, 9, 0, kNear);
  EXPECT_THAT(work(), ElementsAre("write 1:0 3+0 9")) << "what is complete is waited for no more";
}

TEST_F(DrainTest, AnAddToAnotherWordInBetweenIsNotForgotten) {
  write(0, kAddWord, 1, 1, 0, kNear);
  write(0, kGet, 1, kNear, 8, kNear);
  write(0, kAddWord, 1, 2, 0, kNear);
  EXPECT_THAT(work(),
              ElementsAre("add 1:0 3+0 1", "fence 1:0", "get 1:0 3+0 3+0 8", "fence 1:0", "add 1:0 3+0 2"));
}

TEST_F(DrainTest, ASignalIsSetInTwoSteps) {
  write(0, kSetSignal, 1, 100, kNear + 8, kFar + 16);
  write(0, kWriteWord, 1, 1, 0, kNear);
  write(0, kSetSignal, 2, 7, kNear + 8, kFar + 16);
  write(0, kPut, 3, kNear, 8, kNear);
  write(1, kWriteWord, 1, 2, 0, kNear);
  EXPECT_THAT(work(),
              ElementsAre("read 1:0 3+8 #1", "read 2:0 3+8 #3", "put 3:0 3+0 3+0 8", "write 1:1 3+0 2"))
      << "other peers and queues go on";
  EXPECT_THAT(work(), IsEmpty());
  EXPECT_EQ(writer_.consumed(0), 4U);
  endpoint_.complete(2, 0, 1, 3, 9);
  endpoint_.room[{1, 0}] = 0;
  complete(1, 0, 1, 1, 142);
  EXPECT_THAT(work(), ElementsAre("write 2:0 4+16 -2")) << "no room for the other one";
  EXPECT_EQ(writer_.completed(0), 0U) << "the read alone is not all of it";
  endpoint_.room.clear();
  EXPECT_THAT(work(), ElementsAre("write 1:0 4+16 -42", "write 1:0 3+0 1"));
  complete(1, 0, 3);
  EXPECT_EQ(writer_.completed(0), 2U);
  endpoint_.complete(2, 0, 2);
  complete(3, 0, 1);
  EXPECT_EQ(writer_.completed(0), 4U);
}

// A position that asks for it is told of when its own peer has done all before it.
TEST_F(DrainTest, APositionIsToldOfByItself) {
  write(0, kPut, 1, kNear, 8, kNear);
  writer_.write(0, and_tell(describe(kGet, 2, kNear, 8, kNear)));
  writer_.write(0, and_tell(describe(kPut, 1, kNear, 0, kNear)));  // asks when the first is complete
  work();
  EXPECT_EQ(writer_.reply(0, 1).told, 0U);
  complete(2, 0, 1);
  EXPECT_EQ(writer_.reply(0, 1).told, 2U);
  EXPECT_EQ(writer_.reply(0, 2).told, 0U);
  EXPECT_EQ(writer_.completed(0), 0U);
  complete(1, 0, 1);
  EXPECT_EQ(writer_.reply(0, 2).told, 3U);
  EXPECT_EQ(writer_.reply(0, 0).told, 0U) << "did not ask";
}

TEST_F(DrainTest, AWordIsUpdatedWithAReply) {
  write(0, kFetchAdd, 1, 5, 0, kFar + 8);
  write(0, kCompareSwap, 1, 9, 7, kFar + 8);
  write(0, kPut, 2, kNear, 8, kNear);
  EXPECT_THAT(work(),
              ElementsAre("add 1:0 4+8 5 #1", "fence 1:0", "swap 1:0 4+8 7>9 #2", "put 2:0 3+0 3+0 8"));
  EXPECT_EQ(writer_.consumed(0), 0U) << "the reply's place is the reader's";
  complete(1, 0, 1, 1, 2);
  EXPECT_EQ(writer_.reply(0, 0).told, 1U);
  EXPECT_EQ(writer_.reply(0, 0).value, 2U);
  EXPECT_EQ(writer_.completed(0), 1U);
  EXPECT_EQ(writer_.consumed(0), 0U);
  writer_.reply(0, 1).told = 2 | kPutReplyLeft;  // gave up
  writer_.reply(0, 0).told = 1 | kPutReplyLeft;
  work();
  EXPECT_EQ(writer_.consumed(0), 3U);
  complete(1, 0, 2, 2, 7);
  EXPECT_EQ(writer_.reply(0, 1).told, 2 | kPutReplyLeft);
  EXPECT_EQ(writer_.completed(0), 2U);
}

// A get that is told of late does not take the reply of a later position in its slot.
TEST_F(DrainTest, ALateReplyDoesNotReplaceALaterOne) {
  writer_.write(0, and_tell(describe(kGet, 1, kNear, 8, kNear)));
  for (int i = 0; i < 15; ++i) write(0, kPut, 2, kNear, 8, kNear);
  work();
  write(0, kFetchAdd, 2, 1, 0, kNear);
  writer_.reply(0, 16).told = 17 | kPutReplyLeft;
  work();
  EXPECT_EQ(writer_.consumed(0), 17U);
  complete(1, 0, 1);
  EXPECT_EQ(writer_.reply(0, 0).told, 17 | kPutReplyLeft);
}

TEST_F(DrainTest, RowsAreCopiedOneByOne) {
  endpoint_.room[{1, 0}] = 2;
  write(0, kRows, 1, 100, 200, 3);
  write(0, kPut, 1, kNear + 16, 8, kFar + 32);
  write(0, kRows, 2, 8, 16, 2);
  write(0, kGet, 2, kNear, 8, kFar);
  write(0, kPut, 1, kNear, 24, kNear);
  EXPECT_THAT(work(), ElementsAre("put 1:0 3+16 4+32 8", "put 1:0 3+116 4+232 8", "get 2:0 3+0 4+0 8",
                                  "get 2:0 3+8 4+16 8"));
  endpoint_.room.clear();
  EXPECT_THAT(work(), ElementsAre("put 1:0 3+216 4+432 8", "put 1:0 3+0 3+0 24"));
  complete(1, 0, 2);
  EXPECT_EQ(writer_.completed(0), 1U);
  complete(1, 0, 3);
  EXPECT_EQ(writer_.completed(0), 3U) << "the first three";
}

// One signal behind what two queues were asked for.
TEST_F(DrainTest, AQueueWaitsForAnother) {
  write(0, kPut, 1, kNear, 8, kFar);
  write(0, kPut, 2, kNear, 8, kFar);
  write(1, kAwaitQueue, 1, 3, 0, 0);
  write(1, kAddWord, 1, 5, 0, kNear);
  write(1, kAddWord, 3, 6, 0, kNear);
  EXPECT_THAT(work(), ElementsAre("put 1:0 3+0 4+0 8", "put 2:0 3+0 4+0 8", "add 3:1 3+0 6"))
      << "another peer goes on";
  complete(1, 0, 1);
  EXPECT_THAT(work(), IsEmpty()) << "its third is not there yet";
  write(0, kPut, 1, kNear, 16, kFar);
  EXPECT_THAT(work(), ElementsAre("put 1:0 3+0 4+0 16"));
  work();
  write(0, kPut, 1, kNear, 24, kFar);
  EXPECT_THAT(work(), ElementsAre("put 1:0 3+0 4+0 24")) << "the other queue goes on";
  complete(1, 0, 2);
  EXPECT_THAT(work(), ElementsAre("add 1:1 3+0 5")) << "not for other peers, nor for what came behind";
}

TEST_F(DrainTest, AQueueWaitsForWhatAnotherCannotPostYet) {
  endpoint_.room[{1, 0}] = 0;
  write(0, kPut, 1, kNear, 8, kFar);
  write(1, kAwaitQueue, 1, 1, 0, 0);
  write(1, kAddWord, 1, 5, 0, kNear);
  EXPECT_THAT(work(), IsEmpty());
  EXPECT_THAT(work(), IsEmpty());
  endpoint_.room.clear();
  EXPECT_THAT(work(), ElementsAre("put 1:0 3+0 4+0 8"));
  EXPECT_THAT(work(), IsEmpty());
  complete(1, 0, 1);
  EXPECT_THAT(work(), ElementsAre("add 1:1 3+0 5"));
}

struct Bad {
  const char* name;
  const char* why;
  PutDescriptor descriptor;
};
class BadDescriptorTest : public DrainTest, public testing::WithParamInterface<Bad> {};
INSTANTIATE_TEST_SUITE_P(
    Fields, BadDescriptorTest,
    testing::Values(
        Bad{"OperationZero", "the operation is unknown", describe(PutOperation{0}, 1, 0, 8, 0)},
        Bad{"OperationTen", "the operation is unknown", describe(PutOperation{10}, 1, 0, 8, 0)},
        Bad{"Operation255", "the operation is unknown", describe(PutOperation{255}, 1, 0, 8, 0)},
        Bad{"OperationOfTwoBytes",
            "the operation is unknown",
            {0, 8, 0, uint64_t{0x0201} << kPutOperationShift | 1}},
        Bad{"RankFour", "the rank does not exist", describe(kPut, 4, 0, 8, 0)},
        Bad{"RankOfAllOnes", "the rank does not exist", describe(kWriteWord, 0xFFFFFFFF, 0, 0, 0)},
        Bad{"PutPastTheWindow", "remote address is outside every window", describe(kPut, 1, 0, 8, 4089)},
        Bad{"PutAtTheLastOffset", "remote address is outside every window",
            describe(kPut, 1, 0, 8, kPutMaxOffset - 3)},
        Bad{"PutLongerThanTheWindow", "remote address is outside every window",
            describe(kPut, 1, 0, 4097, 0)},
        Bad{"GetAtTheEndOfMemory", "remote address is outside every window",
            describe(kGet, 1, 0, UINT64_MAX, 16)},
        Bad{"GetThatWrapsAround", "remote address is outside every window",
            describe(kGet, 1, 0, UINT64_MAX - 7, kFar + 8)},
        Bad{"PutOfNothingPastTheWindow", "remote address is outside every window",
            describe(kPut, 1, 0, 0, 8192)},
        Bad{"PutFromPastTheWindow", "local address is outside every window", describe(kPut, 1, 4089, 8, 0)},
        Bad{"GetToTheEndOfMemory", "local address is outside every window",
            describe(kGet, 1, UINT64_MAX - 3, 8, 0)},
        Bad{"GetToPastTheWindow", "local address is outside every window", describe(kGet, 1, 8192, 8, 0)},
        Bad{"WordAtFour", "not aligned to 8 bytes", describe(kWriteWord, 1, 0, 0, 4)},
        Bad{"SumAtAnOddPlace", "not aligned to 8 bytes", describe(kAddWord, 1, 0, 0, kFar + 1)},
        Bad{"SumPastTheWindow", "remote address is outside every window", describe(kAddWord, 1, 0, 0, 4096)},
        Bad{"SumWithALength", "the length of an operation on a word must be 0",
            describe(kAddWord, 1, 0, 8, 0)},
        Bad{"FetchWithALength", "the length of an operation on a word must be 0",
            describe(kFetchAdd, 1, 0, 8, 0)},
        Bad{"SwapAtFour", "not aligned to 8 bytes", describe(kCompareSwap, 1, 0, 8, 4)},
        Bad{"NoRows", "number of rows is 0", describe(kRows, 1, 8, 8, 0)},
        Bad{"AwaitsItself", "the put queue for which the operation waits does not exist",
            describe(kAwaitQueue, 1, 0, 0, 0)},
        Bad{"AwaitsNoQueue", "the put queue for which the operation waits does not exist",
            describe(kAwaitQueue, 1, 0, 2, 0)},
        Bad{"SignalAtFour", "not aligned to 8 bytes", describe(kSetSignal, 1, 0, 8, 4)},
        Bad{"SignalOfAnOddWord", "the second word of the signal", describe(kSetSignal, 1, 0, 4, 8)},
        Bad{"SignalOfAWordPastTheWindow", "the second word of the signal",
            describe(kSetSignal, 1, 0, 4096, 8)},
        Bad{"SignalOfAWordAtTheEndOfMemory", "the second word of the signal",
            describe(kSetSignal, 1, 0, UINT64_MAX - 7, 8)}),
    [](const auto& bad) { return std::string(bad.param.name); });

TEST_P(BadDescriptorTest, EndsTheContext) {
  write(0, kPut, 1, kNear, 16, kNear);
  writer_.write(0, GetParam().descriptor);
  write(0, kPut, 1, kNear, 8, kNear);
  EXPECT_THAT(work(), ElementsAre("put 1:0 3+0 3+0 16"));
  EXPECT_EQ(abort_.value(), SymmAbort::kRefused);
  EXPECT_THAT(proxy_.error(), HasSubstr(GetParam().why));
  EXPECT_THAT(proxy_.error(), HasSubstr("put queue 0, descriptor 1 "));
  write(1, kPut, 1, kNear, 8, kNear);
  EXPECT_THAT(work(), IsEmpty()) << "nothing more is done";
  EXPECT_EQ(writer_.consumed(0), 3U) << "but taken";
  EXPECT_EQ(writer_.consumed(1), 1U);
  complete(1, 0, 1);
  EXPECT_EQ(writer_.completed(0), 0U) << "no wait succeeds any more";
}

struct BadRows {
  const char* name;
  const char* why;
  PutDescriptor announcement, descriptor;
};
class BadRowsTest : public DrainTest, public testing::WithParamInterface<BadRows> {};
INSTANTIATE_TEST_SUITE_P(
    Fields, BadRowsTest,
    testing::Values(BadRows{"PastTheWindow", "remote address", describe(kRows, 1, 0, 2048, 3),
                            describe(kPut, 1, 0, 8, 0)},
                    BadRows{"PastTheWindowHere", "local address", describe(kRows, 1, 2048, 0, 3),
                            describe(kPut, 1, 0, 8, 0)},
                    BadRows{"ThatWrapAround", "remote address", describe(kRows, 1, 0, UINT64_MAX / 2, 4),
                            describe(kPut, 1, 0, 16, 0)},
                    BadRows{"OfAnotherRank", "the next descriptor is not a put or get to the same rank",
                            describe(kRows, 1, 8, 8, 2), describe(kPut, 2, 0, 8, 0)},
                    BadRows{"OfAWord", "the next descriptor is not a put or get to the same rank",
                            describe(kRows, 1, 8, 8, 2), describe(kWriteWord, 1, 0, 0, 0)},
                    BadRows{"OfRows", "the next descriptor is not a put or get to the same rank",
                            describe(kRows, 1, 8, 8, 2), describe(kRows, 1, 8, 8, 2)}),
    [](const auto& bad) { return std::string(bad.param.name); });

TEST_P(BadRowsTest, EndTheContext) {
  writer_.write(0, GetParam().announcement);
  writer_.write(0, GetParam().descriptor);
  EXPECT_THAT(work(), IsEmpty());
  EXPECT_EQ(abort_.value(), SymmAbort::kRefused);
  EXPECT_THAT(proxy_.error(), HasSubstr(GetParam().why));
}

TEST_F(DrainTest, ADeviceWithoutSwapsRefusesThem) {
  endpoint_.swaps = false;
  write(0, kCompareSwap, 1, 0, 1, kNear);
  EXPECT_THAT(work(), IsEmpty());
  EXPECT_THAT(proxy_.error(), HasSubstr("fake has no compare-and-swap"));
}

TEST_F(DrainTest, AFailedPeerEndsTheContext) {
  write(0, kPut, 1, kNear, 8, kNear);
  work();
  endpoint_.errors[1] = "rank 1, rail fake: retries exhausted";
  endpoint_.completions.push_back({1, 0, true, 0, 0, 0});
  work();
  EXPECT_EQ(abort_.value(), SymmAbort::kNetworkFailed);
  EXPECT_EQ(proxy_.error(), "rank 1, rail fake: retries exhausted");
  EXPECT_EQ(writer_.completed(0), 0U);
}

// The peer that the oldest one waits for, not one that answers.
TEST_F(DrainTest, APeerThatDoesNotAnswerIsGivenUp) {
  Proxy proxy(endpoint_, queues_, abort_, {.count_ranks = 4, .timeout_ms = 20});
  ASSERT_TRUE(proxy.add_window(kNear, kWindowBytes, 3));
  write(1, kPut, 2, kNear, 8, kNear);
  write(1, kPut, 1, kNear, 8, kNear);
  write(1, kPut, 2, kNear, 8, kNear);
  proxy.work();
  endpoint_.complete(2, 1, 2);
  const auto deadline = base::Deadline::after_ms(60'000);
  while (proxy.error().empty() && !deadline.has_passed()) proxy.work();
  EXPECT_EQ(proxy.error(),
            "rank 1: put queue 1: descriptor 1 did not complete in time (VERBENA_SYMM_TIMEOUT_MS)");
  EXPECT_EQ(abort_.value(), SymmAbort::kNetworkFailed);
  EXPECT_EQ(writer_.completed(1), 1U);
}

TEST_F(DrainTest, ASignalThatCannotBeReadIsGivenUp) {
  Proxy proxy(endpoint_, queues_, abort_, {.count_ranks = 4, .timeout_ms = 20});
  ASSERT_TRUE(proxy.add_window(kNear, kWindowBytes, 3));
  const auto deadline = base::Deadline::after_ms(60'000);
  for (int i = 0; i < 2000; ++i) proxy.work();
  EXPECT_EQ(proxy.error(), "") << "nothing is waited for";
  write(0, kSetSignal, 3, 1, kNear + 8, kNear);
  while (proxy.error().empty() && !deadline.has_passed()) proxy.work();
  EXPECT_THAT(proxy.error(), HasSubstr("rank 3: put queue 0: descriptor 0 "));
}

TEST_F(DrainTest, WhatTheEndpointRefusesIsSaid) {
  endpoint_.refuses = "too long for one operation";
  write(0, kPut, 1, kNear, 8, kNear);
  work();
  EXPECT_EQ(abort_.value(), SymmAbort::kRefused);
  EXPECT_THAT(proxy_.error(), HasSubstr("too long for one operation"));
}

TEST_F(DrainTest, APeerThatHasFailedRefusesForThatReason) {
  endpoint_.refuses = "the peer has failed: so";
  endpoint_.errors[1] = "so";
  write(0, kAddWord, 1, 1, 0, kNear);
  work();
  EXPECT_EQ(abort_.value(), SymmAbort::kNetworkFailed);
  EXPECT_EQ(proxy_.error(), "so");
}

TEST_F(DrainTest, TheFirstEndStays) {
  EXPECT_EQ(abort_.value(), SymmAbort::kNone);
  EXPECT_TRUE(abort_.raise(SymmAbort::kByUser));
  proxy_.fail("rank 2 went");
  proxy_.fail("rank 3 went");
  EXPECT_EQ(abort_.value(), SymmAbort::kByUser);
  EXPECT_EQ(proxy_.error(), "rank 2 went");
  write(0, kPut, 1, kNear, 8, kNear);
  EXPECT_THAT(work(), IsEmpty());
}

// More laps than a turn has values.
TEST_F(DrainTest, TurnsWrapAround) {
  constexpr uint64_t kLaps = 70'000;
  PutQueue queues = *PutQueue::create({.count = 1, .depth = 2});
  Proxy proxy(endpoint_, queues, abort_, {.count_ranks = 4});
  ASSERT_TRUE(proxy.add_window(kNear, kWindowBytes, 3));
  QueueWriter writer(queues);
  for (uint64_t position = 0; position < 2 * kLaps; ++position) {
    proxy.work();
    ASSERT_EQ(writer.consumed(0), position) << "nothing but what was written";
    writer.write(0, describe(kWriteWord, 1, position, 0, 8));
    proxy.work();
    ASSERT_EQ(writer.consumed(0), position + 1);
    endpoint_.complete(1, 0, position + 1);
    endpoint_.asked.clear();
  }
  proxy.work();
  EXPECT_EQ(writer.completed(0), 2 * kLaps);
}

TEST_F(DrainTest, WindowsDoNotOverlapAndGo) {
  for (const auto& [offset, bytes] : {std::pair<uint64_t, uint64_t>{4095, 8},
                                      {kFar - 1, 2},
                                      {kFar + 8, 8},
                                      {kNear, 0},
                                      {kPutMaxOffset, 2},
                                      {kNear + 8192, UINT64_MAX - 8191},
                                      {kNear + 8192, 1 << 21}})
    EXPECT_FALSE(proxy_.add_window(offset, bytes, 5)) << offset;
  EXPECT_TRUE(proxy_.add_window(4096, 8, 5)) << "side by side";
  write(0, kPut, 1, 4096, 8, 4096);
  EXPECT_THAT(work(), ElementsAre("put 1:0 5+0 5+0 8"));
  proxy_.remove_window(4096);
  write(0, kPut, 1, 4096, 8, 4096);
  EXPECT_THAT(work(), IsEmpty());
  EXPECT_THAT(proxy_.error(), HasSubstr("outside every window"));
}

TEST(PutQueue, HasAShape) {
  EXPECT_FALSE(PutQueue::create({.count = 0}));
  EXPECT_FALSE(PutQueue::create({.count = 17}));
  EXPECT_FALSE(PutQueue::create({.depth = 1}));
  EXPECT_FALSE(PutQueue::create({.depth = 24}));
  EXPECT_FALSE(PutQueue::create({.depth = 2U << kPutMaxDepthShift}));
  const auto queue = PutQueue::create({.count = 16, .depth = 2});
  ASSERT_TRUE(queue);
  EXPECT_EQ(queue->count(), 16U);
  EXPECT_EQ(queue->depth(), 2U);
}

}  // namespace
}  // namespace verbena::device_test
