#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/error.h"
#include "tools/info/run_info.h"

namespace verbena::tools::info {
namespace {

// The first of this subject, or the one with this.
Json find_check(const Json& document, const std::string& what, const std::string& with = "") {
  for (const Json& check : document["checks"]) {
    if (check["what"] == what && (with.empty() || check["with"] == with)) return check;
  }
  ADD_FAILURE() << what << " " << with << " is not in " << document["checks"];
  return Json::object();
}

Json check_json(const std::string& settings, int status) {
  const ToolRun run = expect_run(run_info(settings, "--check --json --timeout 3 2>/dev/null"), status);
  return read_json(run);
}

std::vector<std::string> list_passed(const Json& check) {
  std::vector<std::string> names;
  for (const Json& test : check["tests"]) {
    if (test["ok"] == true) names.push_back(test["test"]);
  }
  return names;
}

TEST(InfoCheck, EveryRailIsTested) {
  const Json document = check_json("SOFTVERBS_DEVICES=2", kExitOk);
  const std::vector<std::string> all{"connect", "data", "order", "flush", "close"};
  for (const char* rail : {"verbena_softverbs0", "verbena_softverbs1"}) {
    const Json check = find_check(document, rail);
    EXPECT_EQ(check["status"], "ok");
    EXPECT_EQ(check["with"], "host memory");
    EXPECT_EQ(list_passed(check), all);
    const Json staged = find_check(document, rail, "staged");
    EXPECT_EQ(staged["status"], "ok") << staged;
    EXPECT_EQ(list_passed(staged), all);
    EXPECT_NE(staged["detail"].get<std::string>().find(" descriptors"), std::string::npos) << staged;
  }
  const Json apart = find_check(document, "rails 0+1", "joined");
  EXPECT_EQ(apart["status"], "skipped") << "softverbs devices are on no bus";
  EXPECT_NE(apart["try"].get<std::string>().find("VERBENA_MERGE_NICS=1"), std::string::npos) << apart;
}

TEST(InfoCheck, DatagramsAreTestedAsConnectionsAre) {
  const Json document = check_json("SOFTVERBS_DEVICES=1 VERBENA_TRANSPORT=datagram", kExitOk);
  const std::vector<std::string> all{"connect", "data", "order", "flush", "close"};
  EXPECT_EQ(list_passed(find_check(document, "verbena_softverbs0")), all);
  EXPECT_EQ(find_check(document, "verbena_softverbs0", "staged")["status"], "ok");
}

TEST(InfoCheck, RailsThatMayBeJoinedAreTestedJoined) {
  const std::string settings = "SOFTVERBS_DEVICES=2 VERBENA_MERGE_NICS=1 ";
  const Json good = find_check(check_json(settings, kExitOk), "rails 0+1", "joined");
  EXPECT_EQ(good["status"], "ok") << good;
  EXPECT_NE(good["detail"].get<std::string>().find("connect (verbena_softverbs0+verbena_softverbs1)"),
            std::string::npos)
      << good;
  // The second of the two carries its part, or it could not fail; how much, is chance on a busy machine.
  const Json bad =
      find_check(check_json(settings + "SOFTVERBS_FAULTS='fail rail=1 status=RETRY_EXC nth=1'", kExitFailed),
                 "rails 0+1", "joined");
  EXPECT_EQ(bad["status"], "failed") << bad;
  EXPECT_EQ(bad["reason"], "peer") << bad;
  EXPECT_NE(bad["try"].get<std::string>().find("VERBENA_HCA=^softverbs1"), std::string::npos) << bad;
}

TEST(InfoCheck, ABrokenRailIsRedAndNoOther) {
  const Json document =
      check_json("SOFTVERBS_DEVICES=2 SOFTVERBS_FAULTS='fail rail=1 status=RETRY_EXC nth=2'", kExitFailed);
  EXPECT_EQ(find_check(document, "verbena_softverbs0")["status"], "ok");
  const Json broken = find_check(document, "verbena_softverbs1");
  EXPECT_EQ(broken["status"], "failed");
  EXPECT_EQ(broken["reason"], "peer") << broken;
  EXPECT_NE(broken["detail"].get<std::string>().find("retries exhausted"), std::string::npos) << broken;
  EXPECT_NE(broken["try"].get<std::string>().find("VERBENA_HCA=^softverbs1"), std::string::npos) << broken;
  EXPECT_LT(list_passed(broken).size(), 5U);
}

TEST(InfoCheck, AMessageThatNeverArrivesEnds) {
  const Json document = check_json("SOFTVERBS_FAULTS='drop every=1'", kExitFailed);
  const Json check = find_check(document, "verbena_softverbs0");
  EXPECT_EQ(check["status"], "failed");
  EXPECT_EQ(check["reason"], "no_arrival") << check;
  EXPECT_NE(check["detail"].get<std::string>().find("no progress for 3 s"), std::string::npos) << check;
}

TEST(InfoCheck, SaysInALineWhatFailedAndWhatToDo) {
  expect_run(
      run_info("SOFTVERBS_FAULTS='fail status=RETRY_EXC nth=1'", "--check"), kExitFailed,
      {"FAILED   verbena_softverbs0", "  -> no reply arrives on this port", "# 1 ok, 1 failed, 2 skipped"});
}

TEST(InfoCheck, BrokenSettingsAreRed) {
  EXPECT_EQ(find_check(check_json("VERBENA_TC=999", kExitFailed), "plugin")["status"], "failed");
  EXPECT_EQ(find_check(check_json("VERBENA_HCA=mlx5", kExitNoDevice), "plugin")["status"], "failed");
}

#ifdef FAKE_FOLDER
TEST(InfoCheck, EveryGpuIsTestedOnEveryRail) {
  const Json document = check_json(
      "SOFTVERBS_DEVICES=2 VERBENA_MERGE_NICS=1 FAKE_GPUS=2 LD_LIBRARY_PATH=" FAKE_FOLDER, kExitOk);
  ASSERT_EQ(document["gpus"]["devices"].size(), 2U);
  EXPECT_EQ(document["gpus"]["devices"][1]["pci_address"], "fffe:02:00.0");
  std::vector<std::string> tested;
  for (const Json& check : document["checks"]) {
    EXPECT_EQ(check["status"], "ok") << check;
    if (check.contains("tests"))
      tested.push_back(check["what"].get<std::string>() + " " + check["with"].get<std::string>());
  }
  const std::vector<std::string> all{
      "verbena_softverbs0 host memory", "verbena_softverbs0 staged",      "verbena_softverbs0 GPU 0",
      "verbena_softverbs0 GPU 1",       "verbena_softverbs1 host memory", "verbena_softverbs1 staged",
      "verbena_softverbs1 GPU 0",       "verbena_softverbs1 GPU 1",       "rails 0+1 joined"};
  EXPECT_EQ(tested, all);
}
#endif

ToolRun check_sample(const std::string& fault, const std::string& options = "") {
  return run_info("SAMPLE_FAULT=" + fault, "--check " + options + " --plugin " SAMPLE_PLUGIN);
}

// A plugin that gives a wrong byte.
TEST(InfoCheck, WrongDataIsSaid) {
  expect_run(check_sample("flip"), kExitWrongData,
             {"do not use this path, because NCCL would compute with wrong data"});
}

// Descriptors that leave a byte out, point past the receive, or stay in their slot: only staged receives have
// them.
TEST(InfoCheck, WrongDescriptorsAreSaid) {
  for (const char* fault : {"short", "offset", "stale"}) {
    expect_run(
        check_sample(fault), kExitFailed,
        {"ok       verbena_softverbs0          host memory", "FAILED   verbena_softverbs0          staged"});
  }
}

TEST(InfoCheck, SaysByACodeWhatFailed) {
  struct Case {
    const char *fault, *with, *reason;
  };
  for (const auto& [fault, with, reason] :
       {Case{"flip", "host memory", "wrong_data"}, Case{"short", "staged", "wrong_data"},
        Case{"offset", "staged", "wrong_descriptors"}, Case{"stale", "staged", "wrong_descriptors"},
        Case{"crash", "host memory", "process_ended"}}) {
    const Json document = read_json(check_sample(fault, "--json 2>/dev/null"));
    EXPECT_EQ(find_check(document, "verbena_softverbs0", with)["reason"], reason) << fault;
  }
}

TEST(InfoCheck, ACrashIsAFailureOfThatRailAlone) {
  expect_run(check_sample("crash"), kExitFailed,
             {": the process killed by signal", "# 1 ok, 2 failed, 2 skipped"});
}

}  // namespace
}  // namespace verbena::tools::info
