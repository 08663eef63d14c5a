#include "observe/prometheus.h"

#include <utility>

#include "base/text.h"

namespace verbena::observe {

namespace {

using base::append;

// The format escapes only backslash, quote and line feed.
std::string quote(const std::string& value) {
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '\n') {
      quoted += "\\n";
    } else {
      if (c == '\\' || c == '"') quoted += '\\';
      quoted += c;
    }
  }
  return quoted + '"';
}

class Page {
 public:
  explicit Page(uint64_t process) : process_(std::to_string(process)) {}

  void begin(const char* name, const char* type, const char* help) {
    append(text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
  }
  void add(const std::string& name, const std::string& labels, uint64_t value) {
    append(text, "%s{%s} %llu\n", name.c_str(), labels.c_str(), static_cast<unsigned long long>(value));
  }
  void add_seconds(const std::string& name, const std::string& labels, double value_s) {
    append(text, "%s{%s} %.9g\n", name.c_str(), labels.c_str(), value_s);
  }

  std::string label(Direction direction) const {
    return "pid=" + quote(process_) + ",direction=" + quote(name_of(direction));
  }
  std::string label(const EndKey& key) const { return label(key.direction) + ",peer=" + quote(key.peer); }
  std::string label(const RailKey& key) const { return label(key.end) + ",rail=" + quote(key.rail); }
  std::string label(const PathKey& key) const {
    return label(key.rail) + ",path=" + quote(key.path == Path::kStaged ? "staged" : "direct");
  }
  // Writes a line for each entry of `map`, with the value that `get` returns for it.
  template <typename Map, typename Get>
  void add_all(const char* name, const char* type, const char* help, const Map& map, Get&& get) {
    begin(name, type, help);
    for (const auto& [key, value] : map) add(name, label(key), get(value));
  }
  std::string process_label() const { return "pid=" + quote(process_); }

  std::string text;

 private:
  const std::string process_;
};

void add_latencies(Page& page, const Totals& totals) {
  constexpr const char* kName = "verbena_message_latency_seconds";
  page.begin(
      kName, "histogram",
      "Time from isend or irecv to the test call that reports the message complete. Measured for one message "
      "in eight, or for all messages with VERBENA_TRACE. A receive mostly waits for the peer.");
  for (const auto& [key, path] : totals.messages) {
    const std::string labels = page.label(key);
    uint64_t count = 0;
    for (size_t b = 0; b + 1 < kBuckets; ++b) {
      count += path.latency[b];
      std::string bucket = labels;
      append(bucket, ",le=\"%.9g\"", static_cast<double>(bucket_limit_ns(b)) * 1e-9);
      page.add(std::string(kName) + "_bucket", bucket, count);
    }
    count += path.latency[kBuckets - 1];
    page.add(std::string(kName) + "_bucket", labels + ",le=\"+Inf\"", count);
    page.add_seconds(std::string(kName) + "_sum", labels, static_cast<double>(path.latency_sum_ns) * 1e-9);
    page.add(std::string(kName) + "_count", labels, count);
  }
}

void add_rails(Page& page, const Totals& totals) {
  page.add_all("verbena_rail_chunks_total", "counter",
               "Work requests of a rail. One request carries a whole message, a stripe or a run of pages.",
               totals.chunks, [](const ChunkTotals& t) { return t.chunks; });
  page.add_all("verbena_rail_bytes_total", "counter", "Bytes transferred by a rail.", totals.chunks,
               [](const ChunkTotals& t) { return t.bytes; });
  page.add_all("verbena_rail_failures_total", "counter", "Failed queue pairs of a rail.", totals.rails,
               [](const RailTotals& t) { return t.failures; });
  page.add_all("verbena_rail_revivals_total", "counter",
               "Failed queue pairs of a rail that were replaced and returned to service.", totals.rails,
               [](const RailTotals& t) { return t.revivals; });
}

void add_ends(Page& page, const Totals& totals) {
  page.add_all("verbena_replayed_chunks_total", "counter", "Chunks retransmitted after a queue pair failed.",
               totals.ends, [](const EndTotals& t) { return t.replayed_chunks; });
  page.add_all("verbena_stalls_total", "counter", "Stall warnings in the log (VERBENA_STALL_WARNING_MS).",
               totals.ends, [](const EndTotals& t) { return t.stalls; });
  page.add_all("verbena_connection_failures_total", "counter", "Connections that failed.", totals.ends,
               [](const EndTotals& t) { return t.failures; });
  page.add_all("verbena_open_requests", "gauge", "Messages that are posted but not complete.", totals.ends,
               [](const EndTotals& t) { return t.open_requests; });
  page.add_all("verbena_open_connections", "gauge", "Open connections.", totals.ends,
               [](const EndTotals& t) { return t.connections; });
}

}  // namespace

std::string write_prometheus(const Totals& totals, uint64_t process, double unix_time_s) {
  Page page(process);
  page.add_all("verbena_messages_total", "counter", "Complete messages.", totals.messages,
               [](const PathTotals& t) { return t.messages; });
  page.add_all("verbena_bytes_total", "counter", "Bytes of complete messages.", totals.messages,
               [](const PathTotals& t) { return t.bytes; });
  add_latencies(page, totals);
  add_rails(page, totals);
  add_ends(page, totals);
  page.begin("verbena_written_timestamp_seconds", "gauge", "Time when this file was written.");
  append(page.text, "verbena_written_timestamp_seconds{%s} %.3f\n", page.process_label().c_str(),
         unix_time_s);
  return std::move(page.text);
}

}  // namespace verbena::observe
