#include "verbena-perf/send_side.h"

#include <algorithm>

#include "common/error.h"
#include "common/pattern.h"

namespace verbena::tools::perf {

SendSide::SendSide(NetPlugin& plugin, void* comm, const PerfOptions& options, const SendSide* lender)
    : plugin_(plugin),
      comm_(comm),
      fifo_(plugin, comm, options, options.source_offset_bytes, lender == nullptr ? nullptr : &lender->fifo_),
      window_(options.window) {}

void SendSide::start(const Pass& pass) {
  pass_ = pass;
  filled_ = posted_ = completed_ = 0;
  if (pass.distinct) return;
  for (; filled_ < std::min<uint64_t>(window_, pass.count); ++filled_) {
    fill_pattern(fifo_.place(filled_, pass.length_bytes), pass.pattern_index(filled_, window_));
  }
}

bool SendSide::post() {
  if (posted_ == pass_.count || posted_ - completed_ == window_) return false;
  const std::span<std::byte> message = fifo_.place(posted_, pass_.length_bytes);
  if (pass_.distinct && filled_ == posted_) {
    fill_pattern(message, pass_.pattern_index(posted_, window_));
    ++filled_;
  }
  void* const request = plugin_.isend(comm_, message.data(), message.size(), fifo_.mhandle());
  if (request == nullptr) return false;
  requests_[posted_++ % requests_.size()] = request;
  return true;
}

bool SendSide::complete() {
  if (completed_ == posted_) return false;
  const auto length = plugin_.test(requests_[completed_ % requests_.size()]);
  if (!length) return false;
  if (*length != pass_.length_bytes) {
    throw ToolError("test of a send of " + std::to_string(pass_.length_bytes) + " bytes reported " +
                    std::to_string(*length));
  }
  ++completed_;
  return true;
}

}  // namespace verbena::tools::perf
