#include "wire_caller.h"

// Requests of a former session, which arrive after their target was destroyed or reset. Callers stand
// for the streams of the peer.
namespace verbena::softverbs_test {
namespace {

using namespace softverbs::wire;

class WireSessionTest : public WireHostileTest {
 protected:
  void return_after_reset() {
    order(Order::kReset);
    order(Order::kConnect);
  }
  // The next request of the same session.
  static Header follow(Header header) {
    ++header.sequence;
    return header;
  }
};

TEST_F(WireSessionTest, LaterRequestsDoNotHoldTheStream) {
  const auto stream = welcome();
  const Header first = make_write();
  expect_acknowledgement(*stream, first);
  return_after_reset();
  expect_refusal(*stream, follow(first), kGone);
  expect_refusal(*stream, follow(follow(first)), kGone);
  expect_honest_goes_on(*stream);
  expect_acknowledgement(*stream, make_write());
}

TEST_F(WireSessionTest, TheFirstRequestIsNotExecutedTwice) {
  const auto stream = welcome();
  Header first = make_write();
  expect_acknowledgement(*stream, first);
  return_after_reset();
  ++first.round;
  expect_refusal(*stream, first, kGone);
  expect_acknowledgement(*stream, make_write());
}

// Some chunks went to the queue pair before its reset, so the message cannot become complete.
TEST_F(WireSessionTest, TheRestOfAMessageIsRefused) {
  const auto stream = welcome(), other_stream = welcome();
  Header chunk = make_write(8192);
  chunk.length = 4096;
  stream->say_frame(chunk);
  expect_honest_goes_on(*stream);  // the victim has taken the chunk
  return_after_reset();
  chunk.offset = 4096;
  expect_refusal(*other_stream, chunk, kGone);
  expect_acknowledgement(*stream, make_write());
}

TEST_F(WireSessionTest, RequestsAreRefusedBeforeTheReturnToo) {
  const auto stream = welcome();
  const Header first = make_write(), next_session = make_write();
  expect_acknowledgement(*stream, first);
  order(Order::kReset);
  expect_refusal(*stream, follow(first), kGone);
  expect_refusal(*stream, next_session, kPeerNotReady);
  order(Order::kConnect);
  expect_refusal(*stream, follow(first), kGone);
  Header again = next_session;
  ++again.round;
  expect_acknowledgement(*stream, again);
}

TEST_F(WireSessionTest, OlderSessionsAreRefusedToo) {
  const auto stream = welcome();
  const Header oldest = make_write(), old = make_write();
  expect_acknowledgement(*stream, oldest);
  expect_acknowledgement(*stream, old);
  return_after_reset();
  expect_refusal(*stream, oldest, kGone);
  expect_refusal(*stream, follow(oldest), kGone);
  expect_acknowledgement(*stream, make_write());
}

// Its first chunk may have gone to a queue pair that has been destroyed since, and no other refusal follows.
TEST_F(WireSessionTest, TheRestOfAMessageToNoQueuePairIsRefused) {
  Header chunk = make_write(8192);
  chunk.target_qp += 77;
  chunk.length = chunk.offset = 4096;
  expect_refusal(*welcome(), chunk, kGone);
}

// The peer sends a refused round no further, but its frames may still be on their way.
TEST_F(WireSessionTest, ARefusedRoundIsDroppedAfterAReset) {
  order(Order::kReset);
  const auto stream = welcome();
  const Header first = make_write();
  expect_refusal(*stream, first, kPeerNotReady);
  return_after_reset();
  stream->say_frame(follow(first));
  expect_honest_goes_on(*stream);
  Header again = first;
  ++again.round;
  expect_acknowledgement(*stream, again);
}

// Nothing of the session has reached the receiver, so the session goes on.
TEST_F(WireSessionTest, ARequestThatFoundNoReceiveIsServedAfterAReset) {
  const auto stream = welcome();
  Header send = make_write();
  send.code = IBV_WR_SEND;
  expect_refusal(*stream, send, kReceiverNotReady);
  return_after_reset();
  ++send.round;
  expect_refusal(*stream, send, kReceiverNotReady);
  send.code = IBV_WR_RDMA_WRITE;
  ++send.round;
  expect_acknowledgement(*stream, send);
}

// Streams of a new session overtake each other.
TEST_F(WireSessionTest, ALaterRequestOfANewSessionWaitsForTheFirst) {
  const auto stream = welcome(), other_stream = welcome();
  expect_acknowledgement(*stream, make_write());
  return_after_reset();
  const Header first = make_write();
  Header answer{};
  other_stream->say_frame(follow(first));
  EXPECT_FALSE(other_stream->hear(answer, 100));
  expect_acknowledgement(*stream, first);
  ASSERT_TRUE(other_stream->hear(answer));
  EXPECT_EQ(answer.kind, Kind::kAcknowledge);
  EXPECT_EQ(answer.sequence, 1u);
}

}  // namespace
}  // namespace verbena::softverbs_test
