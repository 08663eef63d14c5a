// Slots of dispatches and combines are reused without a barrier: every order of stores, of two and three
// ranks, over several calls of one kernel or two, and over a time-out and a reset.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <vector>

#include "device/emulator/sanitizer.h"
#include "device/moe/turns.h"

namespace verbena::device_test {
namespace {

using ::testing::HasSubstr;
using What = TurnStep::What;
using Routes = std::array<uint8_t, kTurnRanks>;

// "dc" are a dispatch and a combine of one kernel each, "DC" of two, "g" and "G" are dispatches that group
// rows by expert, "!" is a reset; "-" leaves the third rank out of the calls after it, "+" brings it back.
// Routes of tokens change from call to call.
std::vector<TurnStep> make_steps(const std::string& calls, const std::vector<Routes>& routes,
                                 uint32_t blocks = 1) {
  std::vector<TurnStep> steps;
  uint32_t dispatches = 0, combines = 0, call = 0;
  uint8_t living = 7;
  for (const char letter : calls) {
    if (letter == '-' || letter == '+') {
      living = letter == '-' ? 3 : 7;
      continue;
    }
    if (letter == '!') {
      steps.push_back({});
      continue;
    }
    TurnStep step;
    step.is_grouped = letter == 'g' || letter == 'G';
    const bool is_dispatch = letter == 'd' || letter == 'D' || step.is_grouped;
    step.kind = is_dispatch ? MoeKind::kDispatch : MoeKind::kCombine;
    step.routes = routes[(is_dispatch ? dispatches : combines)++ % routes.size()];
    step.living = living;
    step.call = ++call;
    step.blocks = call % 3 == 2 ? 1 : blocks;
    if (letter == 'd' || letter == 'c' || letter == 'g') {
      step.what = What::kBoth;
      steps.push_back(step);
      continue;
    }
    for (const What what : {What::kSend, What::kReceive}) {
      step.what = what;
      steps.push_back(step);
    }
  }
  return steps;
}
std::string explore(uint32_t ranks, const std::vector<TurnStep>& steps, const TurnFaults& faults = {},
                    bool has_notes = false, uint8_t max_timeouts = 0) {
  const TurnModel model(ranks, steps, faults, has_notes, max_timeouts);
  if (!model.fits()) return "too many slots";
  Exploration<TurnModel> exploration(model);
  std::string wrong = exploration.run({});
  if (wrong.empty()) std::cout << exploration.count_states() << " states\n";
  return wrong;
}

const std::vector<Routes> kNothing = {{0, 0, 0}}, kToEach = {{2, 1, 0}}, kOneWay = {{2, 0, 0}},
                          kMixed = {{2, 1, 0}, {0, 1, 0}, {2, 0, 0}, {0, 0, 0}}, kRing = {{2, 4, 1}},
                          kToFirst = {{0, 1, 1}, {6, 0, 0}};

TEST(MoeTurns, TwoRanks) {
  for (const auto& routes : {kNothing, kToEach, kOneWay, kMixed}) {
    for (const char* const calls : {"dcdcdcdc", "ddddcccc", "DCDCDC", "DdDccC"}) {
      for (const uint32_t blocks : {1, 2})
        EXPECT_EQ(explore(2, make_steps(calls, routes, blocks)), "") << calls;
    }
  }
}
TEST(MoeTurns, ThreeRanks) {
  if (emulator::kSanitizer) GTEST_SKIP() << "takes minutes, and has one thread";
  for (const char* const calls : {"dddd", "dcdcdc", "DDD", "CcC"})
    EXPECT_EQ(explore(3, make_steps(calls, kNothing)), "") << calls;
  EXPECT_EQ(explore(3, make_steps("ddd", kRing)), "");
  EXPECT_EQ(explore(3, make_steps("ddd", kToFirst)), "");
  EXPECT_EQ(explore(3, make_steps("ccc", kToFirst)), "");
}
// Entries with the places of rows, in each call or now and then.
TEST(MoeTurns, RowsGroupedByExpert) {
  for (const auto& routes : {kToEach, kMixed}) {
    for (const char* const calls : {"gggg", "gdgdg", "gcgcgc", "GgG"}) {
      for (const uint32_t blocks : {1, 2})
        EXPECT_EQ(explore(2, make_steps(calls, routes, blocks)), "") << calls;
    }
  }
}
// A rank is left out of calls, from one call on, and takes part again after a reset.
TEST(MoeTurns, RanksAreLeftOut) {
  if (emulator::kSanitizer) GTEST_SKIP() << "takes minutes, and has one thread";
  for (const char* const calls : {"dd-dd", "dc-dcdc", "d-dd!+dd", "-cc!+c"})
    EXPECT_EQ(explore(3, make_steps(calls, kToFirst)), "") << calls;
  EXPECT_EQ(explore(3, make_steps("d!-dd!+d", kNothing), {}, false, 1), "");
  EXPECT_THAT(explore(3, make_steps("d-d+d", kNothing)), HasSubstr("a rank waits for ever"));
}
// Of packets whose words need a note, which lands before or after the packet.
TEST(MoeTurns, Notes) {
  for (const char* const calls : {"dddd", "dcdcdc", "DDD", "ccCc"})
    EXPECT_EQ(explore(2, make_steps(calls, kMixed), {}, true), "") << calls;
}
// A dispatch and a combine in flight together: each kind has its own turns.
TEST(MoeTurns, OneOfEachKindInFlight) {
  for (const uint32_t blocks : {1, 2}) {
    // The first dispatch, then three times: a dispatch and the combine of the dispatch before.
    std::vector<TurnStep> steps = make_steps("DDCDCDC", kMixed, blocks);
    for (size_t first = 2; first < steps.size(); first += 4) std::swap(steps[first + 1], steps[first + 2]);
    EXPECT_EQ(explore(2, steps), "");
  }
}
// Any rank times out in any wait, and perhaps a second one of its own accord.
TEST(MoeTurns, TimeoutAndReset) {
  for (const uint8_t timeouts : {uint8_t{1}, uint8_t{2}}) {
    for (const char* const calls : {"ddd!ddd", "dcdc!dcdc", "DD!DD", "ccc!dcc"})
      EXPECT_EQ(explore(2, make_steps(calls, kMixed, 2), {}, false, timeouts), "") << calls;
  }
  EXPECT_EQ(explore(2, make_steps("ddd!dd", kToEach), {}, true, 1), "");
  EXPECT_EQ(explore(3, make_steps("dc!d", kNothing), {}, false, 1), "");
}

// A combine's headers are for calls that follow each other without a dispatch between them.
TEST(MoeTurns, AlternatingCallsNeedNoHeadersOfCombines) {
  const TurnFaults fault{.sends_no_header_without_rows = true};
  EXPECT_EQ(explore(2, make_steps("dcdcdcdc", kOneWay), fault), "");
  EXPECT_THAT(explore(2, make_steps("dddccc", kOneWay), fault), HasSubstr("lands on"));
}

// What the exploration is there for, it finds.
TEST(MoeTurns, FindsWhatIsWrong) {
  const auto of_two = [](const char* calls, const TurnFaults& fault, uint32_t blocks = 1,
                         bool has_notes = false, uint8_t timeouts = 0) {
    return explore(2, make_steps(calls, kToEach, blocks), fault, has_notes, timeouts);
  };
  EXPECT_THAT(of_two("dd", {.has_one_copy = true}), HasSubstr("a packet of call 2 lands on one of call 1"));
  EXPECT_THAT(of_two("ddd", {.ends_before_its_stores = true}), HasSubstr("call 1"));
  EXPECT_NE(of_two("ddd", {.counts_calls_of_its_grid = true}, 2), "");
  EXPECT_THAT(of_two("ddd", {.believes_any_note = true}, 1, true),
              HasSubstr("a note of call 1 is believed by call 3"));
  EXPECT_THAT(explore(2, make_steps("gggg", kMixed), {.believes_any_note = true}),
              HasSubstr("a note of call 1 is believed by call 3"));
  EXPECT_THAT(of_two("ddd", {.goes_on_after_failure = true}, 1, false, 1), HasSubstr("call"));
  EXPECT_THAT(of_two("d!d", {.resets_alone = true}, 1, false, 1), HasSubstr("call"));
  EXPECT_THAT(of_two("d!d", {.reset_keeps_epochs = true}, 1, false, 1), HasSubstr("a rank waits for ever"));
  EXPECT_THAT(of_two("d!d", {.reset_keeps_notes = true}, 1, true),
              HasSubstr("a note of call 1 is believed by call 2"));
}
// Two calls of a kind are in flight, which the host refuses.
TEST(MoeTurns, FindsTwoCallsInFlight) {
  std::vector<TurnStep> steps = make_steps("DD", kToEach);
  std::swap(steps[1], steps[2]);
  EXPECT_THAT(explore(2, steps), HasSubstr("a packet of call 2 lands on one of call 1"));
}
// A kernel receives with another grid than the one that sent.
TEST(MoeTurns, PhasesWithDifferentGrids) {
  for (const uint32_t blocks : {1, 2}) {
    std::vector<TurnStep> steps = make_steps("DDDD", kToEach, blocks);
    for (size_t i = 1; i < steps.size(); i += 2) steps[i].blocks = 3 - steps[i].blocks;
    EXPECT_EQ(explore(2, steps), "");
  }
}

}  // namespace
}  // namespace verbena::device_test
