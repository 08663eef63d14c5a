// isend, irecv, iflush, test, irecvConsumed of every version over the fake core.
#include <vector>

#include "nccl/adapters_fixture.h"

namespace verbena::nccl::testing {
namespace {

constexpr uint64_t kStaleRequest = 0xabcdef0;

template <typename V>
class DataEntriesTest : public AdaptersTest<V> {
 protected:
  void* stale() { return reinterpret_cast<void*>(kStaleRequest); }
  void refuse() {
    fake_core().answer = [] { return base::Error{base::Status::kRemote}; };
  }
  abi::Result post_receive(void** request, size_t size_bytes = 4096, int n = 1) {
    const std::vector<size_t> sizes(8, size_bytes);
    return this->net_.irecv(&this->comm_, n, data_list_, sizes.data(), tags_, mhandles_, request);
  }

  void* data_list_[1] = {&this->data_};
  void* mhandles_[8] = {&this->mhandle_, &this->mhandle_, &this->mhandle_, &this->mhandle_,
                        &this->mhandle_, &this->mhandle_, &this->mhandle_, &this->mhandle_};
  int tags_[1] = {7};
};
TYPED_TEST_SUITE(DataEntriesTest, AllVersions, VersionNames);

TYPED_TEST(DataEntriesTest, SendArgumentsKeepTheirPlaces) {
  void* request = nullptr;
  ASSERT_EQ(this->net_.isend(&this->comm_, &this->data_, 65537, 9, &this->mhandle_, &request), abi::kSuccess);
  EXPECT_EQ(this->last_call(), this->call("isend", &this->comm_, &this->data_, 65537, 9, &this->mhandle_));
  EXPECT_EQ(request, &this->made_);
}

TYPED_TEST(DataEntriesTest, SendLaterAndFailedSendWriteANullRequest) {
  void* request = this->stale();
  fake_core().produced = nullptr;
  EXPECT_EQ(this->net_.isend(&this->comm_, &this->data_, 1, 0, &this->mhandle_, &request), abi::kSuccess);
  EXPECT_EQ(request, nullptr);
  request = this->stale();
  this->refuse();
  EXPECT_EQ(this->net_.isend(&this->comm_, &this->data_, 1, 0, &this->mhandle_, &request), abi::kRemoteError);
  EXPECT_EQ(request, nullptr);
}

TYPED_TEST(DataEntriesTest, SizesBeyondTwoGigabytesAreRefusedOnlyWhereTheyAreInt) {
  const size_t size_bytes = 3ul << 30;
  void* request = this->stale();
  const abi::Result sent =
      this->net_.isend(&this->comm_, &this->data_, size_bytes, 0, &this->mhandle_, &request);
  const abi::Result received = this->post_receive(&request, size_bytes);
  if (TypeParam::kHasIntSizes) {
    EXPECT_EQ(sent, abi::kInvalidArgument);
    EXPECT_EQ(received, abi::kInvalidArgument);
    EXPECT_EQ(request, nullptr);
    EXPECT_EQ(LogCapture::get().take_warnings().size(), 2u);
  } else {
    EXPECT_EQ(sent, abi::kSuccess);
    EXPECT_EQ(received, abi::kSuccess);
    EXPECT_EQ(this->last_call().words.at(3), size_bytes);
  }
}

TYPED_TEST(DataEntriesTest, ReceiveArgumentsKeepTheirPlaces) {
  void* request = nullptr;
  ASSERT_EQ(this->post_receive(&request, 12345), abi::kSuccess);
  EXPECT_EQ(this->last_call(),
            this->call("irecv", &this->comm_, 1, this->data_list_, 12345, this->tags_, this->mhandles_));
  EXPECT_EQ(request, &this->made_);
}

TYPED_TEST(DataEntriesTest, HintReachesTheCoreWhereNcclGivesOne) {
  void* request = reinterpret_cast<void*>(abi::kOptionalRecvCompletion);
  ASSERT_EQ(this->post_receive(&request), abi::kSuccess);
  EXPECT_EQ(fake_core().request_on_entry, TypeParam::kHasHint ? abi::kOptionalRecvCompletion : 0);
}

TYPED_TEST(DataEntriesTest, ReceiveLaterAndFailedReceiveWriteANullRequest) {
  void* request = this->stale();
  fake_core().produced = nullptr;
  EXPECT_EQ(this->post_receive(&request), abi::kSuccess);
  EXPECT_EQ(request, nullptr);
  request = this->stale();
  this->refuse();
  EXPECT_EQ(this->post_receive(&request), abi::kRemoteError);
  EXPECT_EQ(request, nullptr);
}

TYPED_TEST(DataEntriesTest, OtherCountsAreTheCoresToRefuse) {
  for (const int n : {0, 2, 8, -1}) {
    void* request = this->stale();
    fake_core().answer = [] { return base::Error{base::Status::kInvalidUsage}; };
    EXPECT_EQ(this->post_receive(&request, 64, n), abi::kInvalidUsage);
    EXPECT_EQ(this->last_call().function, "irecv");
    EXPECT_EQ(this->last_call().words.at(1), to_word(n));
    EXPECT_EQ(request, nullptr);
  }
}

TYPED_TEST(DataEntriesTest, FlushArgumentsKeepTheirPlaces) {
  int sizes[1] = {77};
  void* request = this->stale();
  ASSERT_EQ(this->net_->iflush(&this->comm_, 1, this->data_list_, sizes, this->mhandles_, &request),
            abi::kSuccess);
  EXPECT_EQ(this->last_call(),
            this->call("iflush", &this->comm_, 1, this->data_list_, sizes, this->mhandles_));
  EXPECT_EQ(request, &this->made_);
  fake_core().produced = nullptr;
  ASSERT_EQ(this->net_->iflush(&this->comm_, 1, this->data_list_, sizes, this->mhandles_, &request),
            abi::kSuccess);
  EXPECT_EQ(request, nullptr);
}

TYPED_TEST(DataEntriesTest, TestAlwaysWritesDone) {
  int done = 55, size = 0;
  fake_core().produced_size_bytes = 321;
  ASSERT_EQ(this->net_->test(&this->request_, &done, &size), abi::kSuccess);
  EXPECT_EQ(this->last_call(), this->call("test", &this->request_, &done, &size));
  EXPECT_EQ(done, 1);
  EXPECT_EQ(size, 321);
  ASSERT_EQ(this->net_->test(&this->request_, &done, nullptr), abi::kSuccess);
  done = 55;
  this->refuse();
  EXPECT_EQ(this->net_->test(&this->request_, &done, &size), abi::kRemoteError);
  EXPECT_EQ(done, 0);
}

TYPED_TEST(DataEntriesTest, ConsumedArgumentsKeepTheirPlaces) {
  ASSERT_EQ(this->net_->irecv_consumed(&this->comm_, 1, &this->request_), abi::kSuccess);
  EXPECT_EQ(this->last_call(), this->call("irecv_consumed", &this->comm_, 1, &this->request_));
}

}  // namespace
}  // namespace verbena::nccl::testing
