#include "observe/trace.h"

#include <map>

#include "base/text.h"

namespace verbena::observe {

namespace {

using base::append;

unsigned long long as_ull(uint64_t value) {
  return value;
}

std::string quote_json(const std::string& value) {
  std::string quoted = "\"";
  for (const char c : value) {
    if (static_cast<unsigned char>(c) < 0x20) {
      append(quoted, "\\u%04x", static_cast<unsigned>(c));
    } else {
      if (c == '\\' || c == '"') quoted += '\\';
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string name_track(const Connection& connection) {
  const Labels& labels = connection.labels();
  return name_of(labels.direction) +
         std::string(labels.direction == Direction::kReceive ? " from " : " to ") + labels.peer;
}

const char* name_path(Path path) {
  return path == Path::kStaged ? "staged" : "direct";
}

// The events of one connection, in their order.
class Track {
 public:
  Track(std::string& text, const Connection& connection, uint64_t process)
      : text_(text), connection_(connection), process_(process) {}

  void write() {
    begin("thread_name", 'M', 0);
    append(text_, ",\"args\":{\"name\":%s}}", quote_json(name_track(connection_)).c_str());
    begin("thread_sort_index", 'M', 0);
    append(text_, ",\"args\":{\"sort_index\":%llu}}", as_ull(connection_.id()));
    for (const Event& event : connection_.recorder().read()) add(event);
    for (const auto& [sequence, posted] : posted_) open_slice("message", name_message(posted), posted);
  }

 private:
  void begin(const std::string& name, char phase, int64_t at_ns) {
    append(text_, ",\n{\"name\":%s,\"ph\":\"%c\",\"pid\":%llu,\"tid\":%llu,\"ts\":%lld.%03lld",
           quote_json(name).c_str(), phase, as_ull(process_), as_ull(connection_.id()),
           static_cast<long long>(at_ns / 1000), static_cast<long long>(at_ns % 1000));
  }
  void add_instant(const std::string& name, const Event& event, const std::string& arguments) {
    begin(name, 'i', event.at_ns);
    append(text_, ",\"s\":\"t\",\"args\":{%s}}", arguments.c_str());
  }
  // Slices may overlap, so each has its own number.
  void add_slice_end(const char* category, const std::string& name, char phase, const Event& event) {
    begin(name, phase, event.at_ns);
    append(text_, ",\"cat\":\"%s\",\"id\":\"%llu.%u\",\"args\":{%s}}", category, as_ull(connection_.id()),
           event.sequence, describe(event).c_str());
  }
  void open_slice(const char* category, const std::string& name, const Event& from) {
    add_slice_end(category, name, 'b', from);
  }
  void add_slice(const char* category, const std::string& name, const Event& from, const Event& to) {
    add_slice_end(category, name, 'b', from);
    add_slice_end(category, name, 'e', to);
  }

  std::string name_rail(const Event& event) const {
    const auto& rails = connection_.labels().rails;
    return event.rail < rails.size() ? rails[event.rail] : "several";
  }
  static std::string name_message(const Event& event) { return "message " + std::to_string(event.sequence); }
  std::string describe(const Event& event) const {
    std::string text;
    append(text, "\"message\":%u", event.sequence);
    if (event.kind == EventKind::kPost || event.kind == EventKind::kDone || event.kind == EventKind::kChunk ||
        event.kind == EventKind::kReplay)
      append(text, ",\"bytes\":%llu", as_ull(event.value));
    if (event.kind == EventKind::kDone || event.kind == EventKind::kChunk)
      append(text, ",\"rail\":%s,\"path\":\"%s\"", quote_json(name_rail(event)).c_str(),
             name_path(event.path));
    return text;
  }

  void add(const Event& event);
  void add_rail_event(const char* what, const Event& event) {
    std::string arguments;
    append(arguments, "\"rail\":%s,\"queue pair\":%llu", quote_json(name_rail(event)).c_str(),
           as_ull(event.value));
    add_instant(what + name_rail(event), event, arguments);
  }
  // Moves the event of this message from `from` to `event`; false if it was overwritten in the ring.
  static bool take(std::map<uint32_t, Event>& from, uint32_t sequence, Event& event) {
    const auto found = from.extract(sequence);
    if (!found.empty()) event = found.mapped();
    return !found.empty();
  }

  std::string& text_;
  const Connection& connection_;
  const uint64_t process_;
  std::map<uint32_t, Event> posted_, done_, flushes_;  // without their end so far
};

void Track::add(const Event& event) {
  const bool is_send = connection_.labels().direction != Direction::kReceive;
  Event from;
  switch (event.kind) {
    case EventKind::kPost:
      posted_[event.sequence] = event;
      return;
    case EventKind::kDone:
      if (take(posted_, event.sequence, from)) add_slice("message", name_message(event), from, event);
      done_[event.sequence] = event;
      return;
    case EventKind::kConsumed:
      // The CPU sees only these two events. Between them the GPU's kernel unpacks the message and uses it.
      if (take(done_, event.sequence, from)) {
        const bool unpacks = from.path == Path::kStaged;
        add_slice("gpu", unpacks ? "GPU unpacks and uses" : "GPU uses", from, event);
      }
      return;
    case EventKind::kFlush:
      flushes_[event.sequence] = event;
      return;
    case EventKind::kFlushDone:
      if (take(flushes_, event.sequence, from)) add_slice("flush", "flush", from, event);
      return;
    case EventKind::kGrant:
      return add_instant(is_send ? "grant read" : "grant sent", event, describe(event));
    case EventKind::kChunk:
      return add_instant(is_send ? "posted on " + name_rail(event) : "arrived on " + name_rail(event), event,
                         describe(event));
    case EventKind::kReplay:
      return add_instant("retransmitted on " + name_rail(event), event, describe(event));
    case EventKind::kResent:
      return add_instant("packets retransmitted", event,
                         describe(event) + ",\"packets\":" + std::to_string(event.value));
    case EventKind::kRailDown:
      return add_rail_event("failed: ", event);
    case EventKind::kRailUp:
      return add_rail_event("works again: ", event);
    case EventKind::kStall:
      return add_instant("stall", event, "\"waited ns\":" + std::to_string(event.value));
    case EventKind::kFailed:
      return add_instant("connection failed", event, "");
  }
}

}  // namespace

std::string write_trace(const std::vector<std::shared_ptr<const Connection>>& connections,
                        const TraceHead& head) {
  std::string text = "{\"displayTimeUnit\":\"ns\",\n\"otherData\":{\"clock\":\"CLOCK_MONOTONIC\"";
  uint64_t lost = 0;
  for (const auto& connection : connections) lost += connection->recorder().count_lost();
  text += ",\"host\":" + quote_json(head.host) + ",\"cause\":" + quote_json(head.cause);
  append(text, ",\"realtime_ahead_ns\":\"%lld\",\"older events left out\":\"%llu\"},\n",
         static_cast<long long>(head.realtime_ahead_ns), as_ull(lost));
  append(
      text, "\"traceEvents\":[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%llu,\"args\":{\"name\":%s}}",
      as_ull(head.process), quote_json("verbena " + head.host + " " + std::to_string(head.process)).c_str());
  for (const auto& connection : connections) Track(text, *connection, head.process).write();
  return text + "\n]}\n";
}

}  // namespace verbena::observe
