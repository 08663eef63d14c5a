#include "verbena-perf/exchange.h"

#include <unistd.h>

#include <utility>

#include "common/clock.h"
#include "common/error.h"

namespace verbena::tools::perf {

void Exchange::meet_partner() {
  const int64_t deadline_ns = deadline_after_s(options_.timeout_s);
  if (!partner_.send_line("ready", deadline_ns)) throw ToolError("the partner is gone");
  receive_word(deadline_ns);
}

std::string Exchange::receive_word(int64_t deadline_ns) {
  auto received = partner_.receive_line(deadline_ns);
  if (received.status == LineChannel::Status::kClosed) throw ToolError("the partner is gone");
  if (received.status == LineChannel::Status::kTimeout) throw ToolError("the partner was not ready in time");
  return std::move(received.line);
}

bool Exchange::is_wanted_again() {
  static constexpr const char* kAgain = "again";
  if (options_.until.empty()) return false;
  const int64_t deadline_ns = deadline_after_s(options_.timeout_s);
  if (!starts()) return receive_word(deadline_ns) == kAgain;
  const bool is_wanted = access(options_.until.c_str(), F_OK) != 0;
  if (!partner_.send_line(is_wanted ? kAgain : "enough", deadline_ns)) throw ToolError("the partner is gone");
  return is_wanted;
}

void Exchange::post_receives() {
  while (receive_.post()) {
  }
}

void Exchange::send_one() {
  Spinner spinner(options_.timeout_s);
  while (!send_.post()) {
    const bool moved = send_.complete() | receive_.complete();
    if (!moved) spinner.idle("isend accepted no message in time");
  }
}

void Exchange::receive_one(uint64_t already_completed) {
  Spinner spinner(options_.timeout_s);
  while (receive_.completed() == already_completed) {
    if (!receive_.complete()) {
      post_receives();  // irecv may have taken none
      spinner.idle("a receive did not complete in time");
    }
    send_.complete();
  }
}

std::vector<double> Exchange::run_latency(uint64_t length_bytes, uint64_t count, bool distinct) {
  const Pass pass{length_bytes, count, distinct, latency_sequence_};
  latency_sequence_ += count;
  send_.start(pass);
  receive_.start(pass);
  post_receives();
  meet_partner();
  std::vector<double> half_trips_us;
  half_trips_us.reserve(starts() ? count : 0);
  for (uint64_t message = 0; message < count; ++message) {
    const int64_t begin_ns = now_ns();
    if (starts()) send_one();
    receive_one(message);
    if (starts()) half_trips_us.push_back(static_cast<double>(now_ns() - begin_ns) / 2000.0);
    if (!starts()) send_one();
    post_receives();
  }
  Spinner spinner(options_.timeout_s);
  while (!send_.finished() || !receive_.finished()) {
    const bool moved = send_.complete() | receive_.complete();
    if (!moved) spinner.idle("the last send did not complete in time");
  }
  receive_.check_last_window();
  return half_trips_us;
}

double Exchange::run_bandwidth(uint64_t length_bytes, uint64_t count, bool distinct) {
  const Pass pass{length_bytes, count, distinct, bandwidth_sequence_};
  bandwidth_sequence_ += count;
  const Pass nothing{};
  send_.start(starts() ? pass : nothing);
  receive_.start(starts() ? nothing : pass);
  post_receives();
  meet_partner();
  const int64_t begin_ns = now_ns();
  Spinner spinner(options_.timeout_s);
  while (!send_.finished() || !receive_.finished()) {
    bool moved = send_.post();
    moved |= send_.complete();
    moved |= receive_.complete();
    moved |= receive_.post();
    if (!moved)
      spinner.idle(starts() ? "sends did not complete in time" : "receives did not complete in time");
  }
  const double seconds = static_cast<double>(now_ns() - begin_ns) * 1e-9;
  receive_.check_last_window();
  return starts() ? 0 : seconds;
}

}  // namespace verbena::tools::perf
