#include "chaos/judge.h"

#include <algorithm>

namespace verbena::chaos {
namespace {

using nlohmann::json;

// An error names the peer and the cause; softverbs tells what its plan strikes.
constexpr const char* kReported =
    "WARN .*(send to|receive from|connect to|accept from|accept on|peer) 127\\.0\\.0\\.1:[0-9]+: .{8,}";
// A listener whose caller was killed before its hello knows no peer.
constexpr const char* kReportedOfDatagrams = "WARN .*(engine [0-9a-f]{16} at .{8,}|accept on [^ ]+): .{8,}";
constexpr const char* kInjected = "^softverbs: fault: ";
constexpr const char* kTelling = "WARN|softverbs:|works again|terminate";
constexpr size_t kShownLines = 20;

std::string name_end(size_t end) {
  return "end" + std::to_string(end);
}

class Judge {
 public:
  Judge(const RoundPlan& plan, const std::array<End, kEnds>& ends, const std::vector<Struck>& struck,
        const Folder& folder, RoundResult& result)
      : plan_(plan), ends_(ends), struck_(struck), folder_(folder), result_(result) {}

  void judge();

 private:
  void object(const std::string& problem) { result_.problems.push_back(problem); }
  void look_at_end(size_t end);
  void look_at_life(size_t end, unsigned number, const json& life);
  void look_at_failure(size_t end, unsigned number, const json& life);
  void look_at_growth(size_t end);
  void collect_stalls();
  void collect_reactions(size_t end);
  double find_longest_gap_ms(int64_t from_ns, int64_t to_ns) const;
  void show_output();

  const RoundPlan& plan_;
  const std::array<End, kEnds>& ends_;
  const std::vector<Struck>& struck_;
  const Folder& folder_;
  RoundResult& result_;
};

void Judge::judge() {
  for (size_t end = 0; end < kEnds; ++end) {
    look_at_end(end);
    collect_reactions(end);
    result_.injected += folder_.find_lines(name_end(end), kInjected).size();
  }
  collect_stalls();
  if (!result_.has_hung) {
    for (const std::string& left : folder_.list("verbs")) object("left behind: " + left);
  }
  if (!result_.problems.empty()) show_output();
}

void Judge::look_at_end(size_t number) {
  const End& end = ends_[number];
  for (const auto& [life, said] : end.lives) look_at_life(number, life, said);
  if (result_.has_hung) return;
  if (!end.has_finished || end.exit != "exit status 0")
    object(name_end(number) + " in \"" + end.phase + "\": " + end.exit + " " + end.last_words);
  const unsigned lives = static_cast<unsigned>(end.lives.size()) + (end.is_killed ? 1 : 0);
  if (lives < plan_.traffic.lives)
    object(name_end(number) + " has not lived " + std::to_string(lives + 1) + " times");
  look_at_growth(number);
}

void Judge::look_at_life(size_t end, unsigned number, const json& life) {
  result_.messages += life["messages"].get<uint64_t>();
  result_.bytes += life["bytes"].get<uint64_t>();
  result_.staged += life["staged"].get<uint64_t>();
  const auto outcome = life["result"].get<std::string>();
  const std::string what = name_end(end) + ", life " + std::to_string(number) + ": " + outcome;
  if (outcome == "done" || outcome == "left") {
    ++result_.lives_done;
  } else if (outcome == "failed") {
    ++result_.lives_failed;
    look_at_failure(end, number, life);
  } else if (outcome == "wrong") {
    result_.is_wrong = true;
    object(what + ": " + life["error"].get<std::string>());
  } else if (!ends_[1 - end].is_killed || number != 1) {
    object(what);
  }
}

void Judge::look_at_failure(size_t end, unsigned number, const json& life) {
  const auto error = life["error"].get<std::string>();
  const std::string what = name_end(end) + ", life " + std::to_string(number) + ": " + error;
  if (number != 1 || !plan_.may_fail) object(what + ", which must not fail");
  if (error.find("ncclRemoteError") == std::string::npos || error.find("closing") != std::string::npos)
    object(what + " is no clean remote error");
  const std::vector<std::string> reported =
      folder_.find_lines(name_end(end), plan_.is_datagram ? kReportedOfDatagrams : kReported);
  if (reported.empty()) return object(what + ": nothing names peer and cause");
  if (plan_.fault != Fault::kBlackout || plan_.is_datagram) return;  // a peer is given up, not its rails
  for (int rail = 0; rail < plan_.traffic.rails; ++rail) {
    const std::string name = "rail softverbs" + std::to_string(rail) + ":";
    const auto names_it = [&](const std::string& line) { return line.find(name) != std::string::npos; };
    if (std::none_of(reported.begin(), reported.end(), names_it)) object(what + ": nothing names " + name);
  }
}

// What a life took is given back before the next. The first may not have got far, so the two after it are
// compared. Over the wire both ways between two rails open their other streams with the first long message,
// which an end that leaves early may not have sent.
void Judge::look_at_growth(size_t number) {
  const auto& lives = ends_[number].lives;
  if (lives.count(2) == 0 || lives.count(3) == 0) return;
  const auto before = lives.at(2)["descriptors"].get<uint64_t>(),
             after = lives.at(3)["descriptors"].get<uint64_t>();
  const bool is_wire = std::any_of(plan_.settings.begin(), plan_.settings.end(), [](const auto& setting) {
    return setting.first == "SOFTVERBS_FORCE_WIRE";
  });
  const uint64_t late_streams = is_wire ? uint64_t{2 * 3} * static_cast<uint64_t>(plan_.traffic.rails) : 0;
  if (after > before + late_streams)
    object(name_end(number) + ": " + std::to_string(before) + " descriptors after the second life, " +
           std::to_string(after) + " after the third");
}

double Judge::find_longest_gap_ms(int64_t from_ns, int64_t to_ns) const {
  int64_t longest_ns = 0;
  for (const End& end : ends_) {
    const auto life = end.lives.find(1);
    if (life == end.lives.end()) continue;
    for (const json& gap : life->second["gaps"]) {
      const auto begin_ns = gap[0].get<int64_t>(), end_ns = gap[1].get<int64_t>();
      if (end_ns >= from_ns && begin_ns < to_ns) longest_ns = std::max(longest_ns, end_ns - begin_ns);
    }
  }
  return static_cast<double>(longest_ns) * 1e-6;
}

// Of rounds in which the traffic goes on.
void Judge::collect_stalls() {
  if (plan_.traffic.lives > 1 || result_.lives_failed != 0 || result_.has_hung) return;
  if (struck_.empty() && result_.lives_done == kEnds)
    return result_.stalls_ms.push_back(find_longest_gap_ms(0, INT64_MAX));
  for (size_t i = 0; i < struck_.size(); ++i) {
    if (!struck_[i].strike->is_harm) continue;
    int64_t until_ns = INT64_MAX;
    for (size_t later = struck_.size() - 1; later > i; --later)
      if (struck_[later].strike->is_harm) until_ns = struck_[later].at_ns;
    result_.stalls_ms.push_back(find_longest_gap_ms(struck_[i].at_ns, until_ns));
  }
}

// From the last thing that befell the connections to this end's error.
void Judge::collect_reactions(size_t number) {
  const auto life = ends_[number].lives.find(1);
  if (life == ends_[number].lives.end() || life->second["result"] != "failed") return;
  int64_t fault_ns = struck_.empty() ? 0 : struck_.back().at_ns;
  const auto other = ends_[1 - number].lives.find(1);
  if (other != ends_[1 - number].lives.end() && other->second["result"] == "left")
    fault_ns = other->second["ended_ns"].get<int64_t>();
  if (fault_ns == 0) return;
  const auto took_ns = life->second["ended_ns"].get<int64_t>() - fault_ns;
  result_.reactions_ms.push_back(static_cast<double>(std::max<int64_t>(took_ns, 0)) * 1e-6);
}

void Judge::show_output() {
  for (size_t end = 0; end < kEnds; ++end) {
    const std::vector<std::string> lines = folder_.find_lines(name_end(end), kTelling);
    const size_t shown = std::min(lines.size(), kShownLines);
    for (size_t i = lines.size() - shown; i < lines.size(); ++i)
      result_.problems.push_back("    " + name_end(end) + " said: " + lines[i]);
  }
}

}  // namespace

void judge(const RoundPlan& plan, const std::array<End, kEnds>& ends, const std::vector<Struck>& struck,
           const Folder& folder, RoundResult& result) {
  Judge(plan, ends, struck, folder, result).judge();
}

}  // namespace verbena::chaos
