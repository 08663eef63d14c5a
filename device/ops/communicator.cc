#include "device/ops/communicator.h"

#include <algorithm>
#include <utility>

namespace verbena::ops {
namespace {

constexpr size_t kPacketBytes = size_t{32} << 20;
constexpr size_t kChunkBytes = size_t{64} << 20;
constexpr uint32_t kBlocks = 128;
constexpr size_t kErrorTextBytes = 512;

verbena_ops_options fill_in(verbena_ops_options options) {
  if (options.packet_bytes == 0) options.packet_bytes = kPacketBytes;
  if (options.chunk_bytes == 0) options.chunk_bytes = kChunkBytes;
  if (options.blocks == 0) options.blocks = kBlocks;
  return options;
}

void check_options(const verbena_ops_options& options) {
  if (options.blocks > kSymmMaxBlocks) {
    throw Failure(VERBENA_INVALID_ARGUMENT, "ops: " + std::to_string(options.blocks) + " blocks: at most " +
                                                std::to_string(kSymmMaxBlocks) + " are possible");
  }
}

const SymmContext& context_of(const verbena_team* team) {
  return *static_cast<const SymmContext*>(verbena_team_host_context(team));
}

void check_team(const verbena_team* team) {
  const SymmContext& context = context_of(team);
  if (context.team_size > kMostRanks) {
    throw Failure(VERBENA_INVALID_ARGUMENT, "ops: a team of " + std::to_string(context.team_size) +
                                                " ranks: at most " + std::to_string(kMostRanks) +
                                                " are possible");
  }
  if (context.has_remote != 0) {
    throw Failure(VERBENA_INVALID_USAGE,
                  "ops: a team with members that loads and stores do not reach: make it of those of "
                  "verbena_team_lsa()");
  }
}

SymmetricWorkspace make_workspace(verbena_context* context, const verbena_team* team, size_t bytes,
                                  uint32_t blocks) {
  verbena_workspace* workspace = nullptr;
  check(verbena_workspace_create(context, team, bytes, blocks, &workspace));
  return SymmetricWorkspace(workspace);
}

}  // namespace

StatusWord::StatusWord(const Driver& driver) : driver_(driver) {
  void* memory = nullptr;
  driver_.check(
      driver_.cuMemHostAlloc(&memory, sizeof(int64_t), CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
      "memory of the host for a status");
  word_ = static_cast<int64_t*>(memory);
  clear();
}

StatusWord::~StatusWord() {
  driver_.cuMemFreeHost(word_);
}

Communicator::Communicator(verbena_context* context, const verbena_team* team,
                           const verbena_ops_options& options)
    : context_(context), options_(fill_in(options)), packets_(nullptr), chunks_(nullptr) {
  try {
    check_options(options_);
    if (team != nullptr) {
      check_team(team);
      rank_ = verbena_team_rank(team);
      size_ = verbena_team_size(team);
      local_.emplace();
    }
  } catch (const Failure&) {
    // What cannot be, so that the other ranks, who are in this call, fail too.
    verbena_workspace* none = nullptr;
    static_cast<void>(verbena_workspace_create(context, nullptr, 0, 0, &none));
    throw;
  }
  packets_ = make_workspace(context, team, options_.packet_bytes, options_.blocks);
  chunks_ = make_workspace(context, team, options_.chunk_bytes, options_.blocks);
}

void Communicator::reset() {
  check(verbena_workspace_reset(packets_.handle()));
  check(verbena_workspace_reset(chunks_.handle()));
  if (local_) local_->status.clear();
}

void Communicator::check_error() const {
  char text[kErrorTextBytes] = "";
  for (const SymmetricWorkspace* workspace : {&packets_, &chunks_}) {
    const verbena_result result = verbena_workspace_get_error(workspace->handle(), text, sizeof(text));
    if (result != VERBENA_SUCCESS) throw Failure(result, text);
  }
  const verbena_result result = verbena_context_get_error(context_, text, sizeof(text));
  // A wait of another team or workspace that ended by time is none of ours.
  if (result != VERBENA_SUCCESS && result != VERBENA_TIMEOUT) throw Failure(result, text);
  if (!local_ || local_->status.value() == 0) return;
  if (local_->status.value() == static_cast<int64_t>(SymmStatus::kInvalid)) {
    throw Failure(VERBENA_INVALID_ARGUMENT,
                  "ops: counts or offsets in the GPU's memory that do not fit the tensors, or that ranks "
                  "differ in; verbena_ops_reset() makes the communicator good again");
  }
  throw Failure(VERBENA_REMOTE_ERROR, "ops: a call has ended without its result (status " +
                                          std::to_string(local_->status.value()) +
                                          "); verbena_ops_reset() makes the communicator "
                                          "good again");
}

void Communicator::expect_member() const {
  if (!local_) throw Failure(VERBENA_INVALID_USAGE, "ops: this rank is no member of the team");
}

Choice Communicator::choose(Kind kind, uint32_t, uint32_t, uint64_t bytes) const {
  expect_member();
  constexpr uint32_t kThreads = 512, kLineData = 15;  // bytes of data that a thread has of a line
  Choice choice;
  const auto spread = [&](uint64_t length, uint64_t bytes_each, uint32_t most_blocks) {
    const uint64_t threads_needed = std::max<uint64_t>(1, (length + bytes_each - 1) / bytes_each);
    choice.grid.threads =
        static_cast<uint32_t>(std::min<uint64_t>(kThreads, (threads_needed + 31) / 32 * 32));
    choice.grid.blocks = static_cast<uint32_t>(std::min<uint64_t>(
        std::min(options_.blocks, most_blocks), (threads_needed + kThreads - 1) / kThreads));
  };
  const uint64_t one_shot_most = size_ == 2 ? 1 << 20 : size_ <= 4 ? 256 << 10 : 128 << 10;
  const uint64_t two_shot_most = uint64_t{2} << 20;
  if (kind == Kind::kAllReduce ? bytes <= one_shot_most : bytes <= (128 << 10)) {
    choice.algorithm = bytes <= 4096 ? Algorithm::kOneShot16 : Algorithm::kOneShot128;
    spread(bytes, bytes <= 4096 ? 8 : kLineData, 128);
  } else if (kind == Kind::kAllReduce && bytes <= two_shot_most && size_ > 2) {
    choice.algorithm = Algorithm::kTwoShot128;
    spread(bytes / size_, kLineData, 128);
  } else {
    choice.algorithm =
        kind == Kind::kAllReduce && size_ > 2 ? Algorithm::kBulkTwoShot : Algorithm::kBulkOneShot;
    choice.grid = {std::min<uint32_t>(options_.blocks, 128), kThreads};
  }
  return choice;
}

Choice Communicator::complete(const Choice& chosen, const verbena_ops_choice* asked) const {
  Choice choice = chosen;
  if (asked == nullptr) return choice;
  if (asked->algorithm != VERBENA_OPS_AUTO) choice.algorithm = static_cast<Algorithm>(asked->algorithm);
  if (asked->blocks != 0) choice.grid.blocks = asked->blocks;
  if (asked->threads != 0) choice.grid.threads = asked->threads;
  choice.chunk_bytes = asked->chunk_bytes;
  const bool is_right = static_cast<uint32_t>(choice.algorithm) < kCountAlgorithms &&
                        choice.grid.blocks <= options_.blocks && choice.grid.threads % 32 == 0 &&
                        choice.grid.threads <= kMostThreads;
  if (!is_right) {
    throw Failure(VERBENA_INVALID_ARGUMENT,
                  "ops: a choice of algorithm " + std::to_string(asked->algorithm) + ", " +
                      std::to_string(asked->blocks) + " blocks of " + std::to_string(asked->threads) +
                      " threads: there are at most " + std::to_string(options_.blocks) + " blocks of " +
                      std::to_string(kMostThreads) + ", threads a multiple of 32");
  }
  return choice;
}

void Communicator::submit(const Call& call, const Choice& choice, CUstream stream) {
  expect_member();
  if (is_grouped_) {
    group_.push_back({call, choice});
  } else {
    const Pending one{call, choice};
    launch({&one, 1}, stream);
  }
}

void Communicator::begin_group() {
  expect_member();
  if (is_grouped_) throw Failure(VERBENA_INVALID_USAGE, "ops: a group in a group");
  is_grouped_ = true;
}

void Communicator::end_group(CUstream stream) {
  if (!is_grouped_) throw Failure(VERBENA_INVALID_USAGE, "ops: a group ends that has not begun");
  is_grouped_ = false;
  const std::vector<Pending> calls = std::exchange(group_, {});
  for (size_t begin = 0; begin < calls.size();) {
    size_t end = begin + 1;
    const auto is_alike = [&](const Pending& one) {
      return family_of(one.choice.algorithm) == family_of(calls[begin].choice.algorithm) &&
             one.choice.chunk_bytes == calls[begin].choice.chunk_bytes;
    };
    while (end < calls.size() && end - begin < kMostCalls && is_alike(calls[end])) ++end;
    launch(std::span(calls).subspan(begin, end - begin), stream);
    begin = end;
  }
}

// Calls of one family; the grid is the largest that one of them wants.
void Communicator::launch(std::span<const Pending> calls, CUstream stream) {
  const Choice& first = calls.front().choice;
  Launch launch;
  launch.workspace = (family_of(first.algorithm) == Family::kChunks ? chunks_ : packets_).workspace();
  launch.status = local_->status.address();
  launch.count_calls = static_cast<uint32_t>(calls.size());
  launch.chunk_bytes = first.chunk_bytes;
  launch.lets_next_start = options_.lets_next_start;
  launch.pause_before_ns = launch.pause_after_ns = 0;
  bool are_all_reduces = true;
  Grid grid{0, 0};
  for (size_t i = 0; i < calls.size(); ++i) {
    launch.calls[i] = calls[i].call;
    launch.calls[i].algorithm = calls[i].choice.algorithm;
    are_all_reduces = are_all_reduces && calls[i].call.kind == Kind::kAllReduce;
    grid.blocks = std::max(grid.blocks, calls[i].choice.grid.blocks);
    grid.threads = std::max(grid.threads, calls[i].choice.grid.threads);
  }
  local_->kernels.launch(family_of(first.algorithm), are_all_reduces, grid, launch, stream);
}

void Communicator::pause(uint64_t length_ns, CUstream stream) {
  expect_member();
  local_->kernels.pause(length_ns, stream);
}

}  // namespace verbena::ops
