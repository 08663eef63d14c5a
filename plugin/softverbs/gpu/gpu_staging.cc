#include "softverbs/gpu/gpu_staging.h"

#include <algorithm>
#include <cstring>

#include "softverbs/engine/queue_pair.h"
#include "softverbs/gpu/gpu_copy.h"
#include "softverbs/gpu/gpu_service.h"

namespace verbena::softverbs {
namespace {

enum class Side { kLocal, kRemote };
enum class Flow { kIntoStage, kOutOfStage };

// Copies one operation, chunk by chunk. Each chunk is copied from the source to a stage (fill), and then to
// the destination (drain). Fills may be ahead of drains; both may be asynchronous.
class StagedTransfer {
 public:
  StagedTransfer(Operation& op, StagingBlock& block) : op_(op), block_(block), lane_(choose_lane(op)) {}
  StepOutcome run(const std::function<void()>& once_begun);

 private:
  enum class Phase { kFree, kFilling, kDraining };
  struct Stage {
    Phase phase = Phase::kFree;
    uint64_t offset = 0, bytes = 0;
    uint64_t first = 0, last = 0;  // the lane's tickets
    std::vector<uint32_t> requests;
  };

  Memory slice(Side side, const Stage& stage) const;
  void move(Side side, Flow flow, uint32_t index);
  void move_local(const iovec& piece, uint32_t gpu, uint8_t* stage, Flow flow);
  void move_remote(const iovec& piece, uint32_t gpu, Stage& stage, uint64_t stage_offset, Flow flow);
  void move_remote_host(const iovec& piece, uint8_t* stage, Flow flow);
  void use_lane(const AreaAddress& outside, uint8_t* stage, uint64_t bytes, Flow flow);
  bool is_settled(Stage& stage);
  void advance(uint32_t index);
  void fail(StepOutcome outcome);

  Operation& op_;
  StagingBlock& block_;
  GpuLane* lane_;
  std::array<Stage, kStages> stages_;
  uint64_t filled_ = 0;  // bytes whose fill has begun
  uint64_t drained_ = 0;
  uint64_t draining_ = 0;  // bytes whose drain has begun; drains begin in order
  StepOutcome outcome_;
};

StepOutcome StagedTransfer::run(const std::function<void()>& once_begun) {
  advance(0);
  if (once_begun) once_begun();
  const uint64_t total = op_.bytes;
  const auto is_busy = [](const Stage& stage) { return stage.phase != Phase::kFree; };
  while (drained_ < total || std::any_of(stages_.begin(), stages_.end(), is_busy)) {
    // An operation that was drained completely is executed and counted, even if the queue pair stops
    // meanwhile.
    if (outcome_.step == Step::kDone && draining_ < total) fail(check_progress(op_));
    if (outcome_.step != Step::kDone && std::none_of(stages_.begin(), stages_.end(), is_busy)) break;
    for (uint32_t i = 0; i < kStages; ++i) advance(i);
  }
  return outcome_;
}

// A failure ends the transfer only after all its copies have ended, because the stages are reused afterwards.
void StagedTransfer::fail(StepOutcome outcome) {
  if (outcome_.step == Step::kDone) outcome_ = outcome;
}

void StagedTransfer::advance(uint32_t index) {
  Stage& stage = stages_[index];
  const bool is_reading = is_read(op_);
  if (stage.phase == Phase::kFree) {
    if (filled_ == op_.bytes || outcome_.step != Step::kDone) return;
    stage = {Phase::kFilling, filled_, std::min(kStageBytes, op_.bytes - filled_), 0, 0, {}};
    filled_ += stage.bytes;
    move(is_reading ? Side::kRemote : Side::kLocal, Flow::kIntoStage, index);
    return;
  }
  if (!is_settled(stage)) return;
  if (stage.phase == Phase::kDraining || outcome_.step != Step::kDone) {
    drained_ += stage.bytes;
    stage.phase = Phase::kFree;
  } else if (stage.offset == draining_) {
    stage.phase = Phase::kDraining;
    draining_ += stage.bytes;
    move(is_reading ? Side::kLocal : Side::kRemote, Flow::kOutOfStage, index);
  }
}

bool StagedTransfer::is_settled(Stage& stage) {
  std::erase_if(stage.requests, [this](uint32_t request) {
    const ServiceState state = look_at_request(*op_.peer, request);
    if (state == ServiceState::kFailed) fail(explain_failure(op_, IBV_WC_REM_OP_ERR));
    return state != ServiceState::kBusy;
  });
  if (!stage.requests.empty()) return false;
  if (stage.first == stage.last) return true;
  const LaneState state = lane_->look(stage.first, stage.last);
  if (state == LaneState::kBroken) fail(explain_failure(op_, IBV_WC_GENERAL_ERR));
  return state != LaneState::kBusy;
}

Memory StagedTransfer::slice(Side side, const Stage& stage) const {
  const Memory& whole = side == Side::kLocal ? op_.local : op_.remote;
  Memory part;
  uint64_t skip = stage.offset, left = stage.bytes;
  for (size_t i = 0; i < whole.pieces.size() && left > 0; ++i) {
    const iovec& piece = whole.pieces[i];
    if (skip >= piece.iov_len) {
      skip -= piece.iov_len;
      continue;
    }
    const uint64_t take = std::min(left, piece.iov_len - skip);
    part.add(reinterpret_cast<uint64_t>(piece.iov_base) + skip, take, whole.gpus[i], whole.keys[i]);
    left -= take;
    skip = 0;
  }
  return part;
}

void StagedTransfer::move(Side side, Flow flow, uint32_t index) {
  Stage& stage = stages_[index];
  const Memory memory = slice(side, stage);
  stage.first = lane_ != nullptr ? lane_->ticket() : 0;
  uint64_t done = 0;
  for (size_t i = 0; i < memory.pieces.size(); ++i) {
    const iovec& piece = memory.pieces[i];
    if (side == Side::kLocal) {
      move_local(piece, memory.gpus[i], block_.stage(index) + done, flow);
    } else {
      move_remote(piece, memory.gpus[i], stage, block_.stage_offset(index) + done, flow);
    }
    done += piece.iov_len;
  }
  stage.last = lane_ != nullptr ? lane_->ticket() : 0;
}

void StagedTransfer::use_lane(const AreaAddress& outside, uint8_t* stage, uint64_t bytes, Flow flow) {
  const AreaAddress inside = address_segment(stage);
  // Each copy has a different origin, so that no two copies are joined.
  if (flow == Flow::kIntoStage) {
    lane_->copy({inside, outside, bytes, inside.offset});
  } else {
    lane_->copy({outside, inside, bytes, inside.offset});
  }
}

void StagedTransfer::move_local(const iovec& piece, uint32_t gpu, uint8_t* stage, Flow flow) {
  if (gpu != 0) {
    AreaAddress here;
    if (!address_own(*lane_, reinterpret_cast<uint64_t>(piece.iov_base), gpu, here))
      return fail({Step::kFail, IBV_WC_GENERAL_ERR});
    use_lane(here, stage, piece.iov_len, flow);
  } else if (flow == Flow::kIntoStage) {
    memcpy(stage, piece.iov_base, piece.iov_len);
  } else {
    copy_inorder(piece.iov_base, stage, piece.iov_len);
  }
}

void StagedTransfer::move_remote(const iovec& piece, uint32_t gpu, Stage& stage, uint64_t stage_offset,
                                 Flow flow) {
  const uint64_t there = reinterpret_cast<uint64_t>(piece.iov_base);
  uint8_t* at = Process::get()->segment().at<uint8_t>(stage_offset);
  if (gpu == 0) return move_remote_host(piece, at, flow);
  AreaAddress here;
  if (address_remote(op_, lane_, there, gpu, here)) return use_lane(here, at, piece.iov_len, flow);
  StagedCopy copy{there,        piece.iov_len,   gpu,          flow == Flow::kOutOfStage,
                  stage_offset, block_.offset(), kStagingBytes};
  uint32_t request = 0;
  if (submit(*op_.peer, copy, request)) {
    stage.requests.push_back(request);
  } else {
    fail({Step::kFail, IBV_WC_REM_OP_ERR});
  }
}

void StagedTransfer::move_remote_host(const iovec& piece, uint8_t* stage, Flow flow) {
  const int pid = op_.peer->is_self ? 0 : op_.peer->pid;
  const Pieces remote{piece}, local{{stage, piece.iov_len}};
  const int error =
      flow == Flow::kIntoStage ? read_pieces(pid, remote, local) : write_pieces(pid, remote, local);
  if (error != 0) fail(explain_copy_error(error));
}

}  // namespace

bool StagingBlock::allocate() {
  if (offset_ == 0) offset_ = Process::get()->arena().allocate(kStagingBytes);
  return offset_ != 0;
}

bool StagingBlock::open() {
  const std::lock_guard lock(mutex_);
  return allocate();
}

void StagingBlock::pin(Copier& copier) {
  const std::lock_guard lock(mutex_);
  if (is_pinned_ || !allocate()) return;
  std::string why;  // on failure the memory stays pageable, which is slower but correct
  copier.pin(copier::kOwnSegment, offset_, kStagingBytes, why);
  is_pinned_ = true;
}

uint8_t* StagingBlock::stage(uint32_t index) const {
  return Process::get()->segment().at<uint8_t>(stage_offset(index));
}

uint64_t* StagingBlock::take_words() {
  constexpr uint64_t kEach = kCarriedWords * sizeof(uint64_t);
  if (!has_words_ && !open()) return nullptr;
  for (uint64_t at = 0; !has_words_ && at + kEach <= kWordsBytes; at += kEach)
    free_words_.push_back(reinterpret_cast<uint64_t*>(stage(kStages) + at));
  has_words_ = true;
  if (free_words_.empty()) return nullptr;
  uint64_t* const words = free_words_.back();
  free_words_.pop_back();
  return words;
}

void DatagramStages::pin(Copier& copier) {
  const std::lock_guard lock(mutex_);
  if (is_pinned_) return;
  is_pinned_ = true;
  Process& process = *Process::get();
  const uint64_t offset = process.arena().allocate(kParts * kPartBytes);
  if (offset == 0) return;
  std::string why;
  copier.pin(copier::kOwnSegment, offset, kParts * kPartBytes, why);
  for (size_t i = 0; i < kParts; ++i) free_.push_back(process.segment().at<uint8_t>(offset + i * kPartBytes));
}

uint8_t* DatagramStages::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return nullptr;
  uint8_t* const part = free_.back();
  free_.pop_back();
  return part;
}

void DatagramStages::give_back(uint8_t* part) {
  const std::lock_guard lock(mutex_);
  free_.push_back(part);
}

StepOutcome copy_staged(Operation& op, const std::function<void()>& once_begun) {
  StagingBlock& block = Process::get()->staging[op.qp->device];
  if (!block.open()) return {Step::kFail, IBV_WC_GENERAL_ERR};
  Process::get()->imports.begin_use();
  const StepOutcome outcome = StagedTransfer(op, block).run(once_begun);
  Process::get()->imports.end_use();
  return outcome;
}

bool read_local(const Operation& op, uint8_t* to) {
  GpuLane* const lane = op.local.has_gpu ? choose_lane(op) : nullptr;
  StagingBlock& block = Process::get()->staging[op.qp->device];
  if (op.local.has_gpu && (lane == nullptr || !block.open())) return false;
  const uint64_t first = lane != nullptr ? lane->ticket() : 0;
  uint64_t done = 0;
  for (size_t i = 0; i < op.local.pieces.size(); ++i) {
    const iovec& piece = op.local.pieces[i];
    if (op.local.gpus[i] == 0) {
      memcpy(to + done, piece.iov_base, piece.iov_len);
    } else {
      AreaAddress here;
      if (!address_own(*lane, reinterpret_cast<uint64_t>(piece.iov_base), op.local.gpus[i], here))
        return false;
      const AreaAddress stage = address_segment(block.stage(0) + done);
      lane->copy({stage, here, piece.iov_len, stage.offset});
    }
    done += piece.iov_len;
  }
  if (lane == nullptr) return true;
  LaneState state = LaneState::kBusy;
  while (state == LaneState::kBusy) state = lane->look(first, lane->ticket());
  done = 0;
  for (size_t i = 0; i < op.local.pieces.size(); ++i) {
    if (op.local.gpus[i] != 0) memcpy(to + done, block.stage(0) + done, op.local.pieces[i].iov_len);
    done += op.local.pieces[i].iov_len;
  }
  return state == LaneState::kDone;
}

}  // namespace verbena::softverbs
