// What launchers' variables are read as, and ranks that find each other by them.
#include "bootstrap/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <thread>

#include "base/clock.h"
#include "base/job_key.h"
#include "base/parameters.h"
#include "base/socket.h"
#include "bootstrap/support/ranks.h"
#include "tests/base/log_capture.h"
#include "tests/base/scoped_environment.h"
#include "tests/base/scratch_path.h"

namespace verbena::bootstrap {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

base::Result<LaunchPlace> read(const Variables& variables, int64_t port = 0) {
  return read_launch_place(
      [&](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? std::string() : found->second;
      },
      port);
}

struct Good {
  const char* name;
  Variables variables;
  const char* launcher;
  uint32_t rank, count;
  int local_rank;  // -1: not said
  const char* host;
  uint16_t port;
  int64_t configured_port = 0;
};

const Variables kMaster = {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}};
Variables with_master(Variables variables) {
  variables.insert(kMaster.begin(), kMaster.end());
  return variables;
}

class GoodEnvironmentTest : public testing::TestWithParam<Good> {};

TEST_P(GoodEnvironmentTest, IsUnderstood) {
  const Good& good = GetParam();
  const auto place = read(good.variables, good.configured_port);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->launcher, good.launcher);
  EXPECT_EQ(place->rank, good.rank);
  EXPECT_EQ(place->count_ranks, good.count);
  EXPECT_EQ(place->local_rank ? static_cast<int>(*place->local_rank) : -1, good.local_rank);
  EXPECT_EQ(place->host, good.host);
  EXPECT_EQ(place->port, good.port);
}

INSTANTIATE_TEST_SUITE_P(
    Sets, GoodEnvironmentTest,
    testing::Values(
        Good{"Torchrun", with_master({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}}), "torchrun",
             3, 8, 1, "h", 31217},
        Good{"ByHand", with_master({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), "torchrun", 0, 2, -1, "h", 31217},
        Good{"Alone", {{"RANK", "0"}, {"WORLD_SIZE", "1"}}, "torchrun", 0, 1, -1, "", 0},
        Good{"HighPort",
             {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "65000"}},
             "torchrun",
             1,
             2,
             -1,
             "h",
             2205},
        Good{"ChosenPort",
             {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}},
             "torchrun",
             1,
             2,
             -1,
             "h",
             4711,
             4711},
        Good{"OpenMpi",
             with_master({{"OMPI_COMM_WORLD_RANK", "5"},
                          {"OMPI_COMM_WORLD_SIZE", "6"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "2"}}),
             "Open MPI", 5, 6, 2, "h", 31217},
        Good{"Mpich", with_master({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}}), "PMI", 1,
             4, 0, "h", 31217},
        Good{"Slurm",
             {{"SLURM_PROCID", "7"},
              {"SLURM_NTASKS", "16"},
              {"SLURM_LOCALID", "3"},
              {"SLURM_JOB_NODELIST", "node[003-007,9]-ib,login"},
              {"SLURM_JOB_ID", "1000000"}},
             "Slurm",
             7,
             16,
             3,
             "node003-ib",
             34037},
        Good{"TorchrunBelowSlurm",
             with_master({{"RANK", "0"},
                          {"WORLD_SIZE", "2"},
                          {"TORCHELASTIC_RUN_ID", "x"},
                          {"SLURM_PROCID", "1"},
                          {"SLURM_NTASKS", "2"}}),
             "torchrun", 0, 2, -1, "h", 31217},
        Good{"ByHandInASlurmShell",
             with_master({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}),
             "torchrun", 1, 2, -1, "h", 31217},
        Good{"TwoThatAgree",
             with_master({{"RANK", "1"},
                          {"WORLD_SIZE", "2"},
                          {"OMPI_COMM_WORLD_RANK", "1"},
                          {"OMPI_COMM_WORLD_SIZE", "2"}}),
             "torchrun", 1, 2, -1, "h", 31217}),
    [](const auto& good) { return good.param.name; });

struct Bad {
  const char* name;
  Variables variables;
  std::vector<const char*> words;  // of the error
};

class BadEnvironmentTest : public testing::TestWithParam<Bad> {};

TEST_P(BadEnvironmentTest, IsAnErrorThatNamesTheVariables) {
  base::LogCapture log;
  const auto place = read(GetParam().variables);
  ASSERT_FALSE(place);
  EXPECT_EQ(place.error().status, base::Status::kInvalidUsage);
  ASSERT_EQ(log.warnings().size(), 1U);
  for (const char* word : GetParam().words) EXPECT_THAT(log.warnings()[0], HasSubstr(word));
}

INSTANTIATE_TEST_SUITE_P(
    Sets, BadEnvironmentTest,
    testing::Values(
        Bad{"Nothing", {}, {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}},
        Bad{"NoSize", with_master({{"RANK", "1"}}), {"RANK is set but WORLD_SIZE is not"}},
        Bad{"NoRank",
            with_master({{"OMPI_COMM_WORLD_SIZE", "1"}}),
            {"OMPI_COMM_WORLD_SIZE is set but OMPI_COMM_WORLD_RANK is not"}},
        Bad{"NoNumber", with_master({{"RANK", "one"}, {"WORLD_SIZE", "2"}}), {"RANK is one"}},
        Bad{"Negative", with_master({{"PMI_RANK", "-1"}, {"PMI_SIZE", "2"}}), {"PMI_RANK is -1"}},
        Bad{"TooMany", with_master({{"RANK", "1"}, {"WORLD_SIZE", "99999999999"}}), {"WORLD_SIZE"}},
        Bad{"BeyondTheSize",
            with_master({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
            {"RANK is 2", "WORLD_SIZE, which is 2"}},
        Bad{"SizeOfNone",
            with_master({{"RANK", "0"}, {"WORLD_SIZE", "0"}}),
            {"RANK is 0", "WORLD_SIZE, which is 0"}},
        Bad{"LocalRank",
            with_master({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}}),
            {"LOCAL_RANK is 2"}},
        Bad{"NoAddress", {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}}, {"MASTER_ADDR"}},
        Bad{"NoPort",
            {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}},
            {"MASTER_PORT", "VERBENA_BOOTSTRAP_PORT"}},
        Bad{"BadPort",
            {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "70000"}},
            {"MASTER_PORT is 70000"}},
        Bad{"NoNodeList",
            {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}},
            {"MASTER_ADDR", "SLURM_JOB_NODELIST"}},
        Bad{"Contradiction",
            with_master({{"RANK", "1"},
                         {"WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_RANK", "0"},
                         {"OMPI_COMM_WORLD_SIZE", "2"}}),
            {"RANK=1", "OMPI_COMM_WORLD_RANK=0", "2 ranks"}}),
    [](const auto& bad) { return bad.param.name; });

TEST(SlurmList, ItsFirstHost) {
  EXPECT_EQ(first_host_of("one"), "one");
  EXPECT_EQ(first_host_of("one,two[1-3]"), "one");
  EXPECT_EQ(first_host_of("n[1,3]"), "n1");
  EXPECT_EQ(first_host_of("n[08-12].domain,m"), "n08.domain");
  EXPECT_EQ(first_host_of("n[7]"), "n7");
  EXPECT_EQ(first_host_of("n[7"), "");
  EXPECT_EQ(first_host_of(""), "");
}

// One of two ranks.
LaunchPlace place_here(uint32_t rank, uint16_t port) {
  LaunchPlace place;
  place.rank = rank;
  place.count_ranks = 2;
  place.host = "127.0.0.1";
  place.port = port;
  return place;
}

TEST(JoiningFromTheEnvironment, ProcessesMeetTwiceWhoeverComesFirst) {
  const std::string port = std::to_string(reserve_port());
  Processes ranks(3, [&](uint32_t rank) {
    base::LogCapture log;
    base::ScopedEnvironment environment;
    environment.set("RANK", std::to_string(rank));
    environment.set("WORLD_SIZE", "3");
    environment.set("MASTER_ADDR", "localhost");
    environment.set("VERBENA_BOOTSTRAP_PORT", port);
    if (!base::load_parameters()) return 2;
    if (rank == 0) usleep(100'000);
    for (int again = 0; again < 2; ++again) {
      auto bootstrap = join_from_environment({.timeout_ms = 10'000});
      if (!bootstrap) return 3;
      const auto all = bootstrap->gather(rank * 5);
      if (!all || *all != std::vector<uint32_t>{0, 5, 10} || !bootstrap->barrier()) return 4;
    }
    return 0;
  });
  EXPECT_THAT(ranks.await(kPatienceMs), testing::Each(0));
}

// Whether somebody listens there.
bool is_open(const base::SocketAddress& address) {
  auto socket = base::Socket::try_connect(address);
  while (socket) {
    const auto done = socket->finish_connect();
    if (!done || *done) return static_cast<bool>(done);
    usleep(100);
  }
  return false;
}

struct Listening {
  const char* name;
  const char* host;
  bool is_insecure, is_one_host;
  bool is_at_others;  // reachable at another address of this host
};

class ListeningTest : public testing::TestWithParam<Listening> {};

TEST_P(ListeningTest, RankZeroListensWhereOtherRanksReachIt) {
  base::LogCapture log;
  base::ScopedEnvironment environment;
  environment.set("VERBENA_INSECURE", GetParam().is_insecure ? "1" : "0");
  ASSERT_TRUE(base::load_parameters());
  const uint16_t port = reserve_port();
  const auto place = [&](uint32_t rank) {
    LaunchPlace made = place_here(rank, port);
    made.host = GetParam().host;
    made.is_one_host = GetParam().is_one_host;
    return made;
  };
  std::thread root([&] { EXPECT_TRUE(join_at(place(0), {.timeout_ms = 60'000})); });
  base::SocketAddress named{.family = base::IpFamily::kV4, .port = port, .bytes = {127, 0, 0, 1}};
  const auto deadline = base::Deadline::after_ms(30'000);
  while (!is_open(named) && !deadline.has_passed()) usleep(1000);
  named.bytes[3] = 2;
  EXPECT_EQ(is_open(named), GetParam().is_at_others);
  EXPECT_TRUE(join_at(place(1), {.timeout_ms = 60'000}));
  root.join();
}

INSTANTIATE_TEST_SUITE_P(Hosts, ListeningTest,
                         testing::Values(
                             // Operators give rank 0 these names, and the other ranks another one.
                             Listening{"Address", "127.0.0.1", true, false, true},
                             Listening{"Localhost", "localhost", true, false, true},
                             // Other hosts may resolve such a name to another address.
                             Listening{"NameOfALoopbackAddress", "127.1", true, false, true},
                             Listening{"OneHost", "127.1", true, true, false},
                             Listening{"WithoutAKey", "localhost", false, false, false}),
                         [](const auto& listening) { return listening.param.name; });

// A process each, as it is said once a process. The exit code is the number of warnings.
TEST(JoiningFromTheEnvironment, RankZeroWarnsOnceWithoutAKey) {
  tests::ScratchPath path("key");
  std::ofstream(path.get()) << "a secret of sixteen bytes";
  chmod(path.get().c_str(), 0600);
  for (const std::string& key : {std::string(), path.get()}) {
    const uint16_t port = reserve_port();
    Processes ranks(2, [&](uint32_t rank) {
      base::LogCapture log;
      base::ScopedEnvironment environment;
      environment.set("VERBENA_JOB_KEY_FILE", key);
      if (!base::load_parameters() || !base::load_job_key()) return 20;
      for (int again = 0; again < 2; ++again) {
        if (!join_at(place_here(rank, port), {.timeout_ms = 60'000})) return 30;
      }
      const auto warnings = log.warnings();
      for (const std::string& line : warnings) {
        if (line.find("VERBENA_JOB_KEY_FILE") == std::string::npos) return 40;
      }
      return static_cast<int>(warnings.size());
    });
    EXPECT_THAT(ranks.await(kPatienceMs), testing::ElementsAre(key.empty() ? 1 : 0, 0));
  }
}

// A stranger among these ranks could run code in them. Every rank fails at once, and its error names the
// cure.
TEST(JoiningFromTheEnvironment, AddressesOfOtherHostsNeedAKey) {
  LaunchPlace place = place_here(1, reserve_port());
  place.host = "192.0.2.1";  // no host has this address
  for (const bool is_insecure : {false, true}) {
    base::LogCapture log;
    base::ScopedEnvironment environment;
    environment.set("VERBENA_INSECURE", is_insecure ? "1" : "0");
    ASSERT_TRUE(base::load_parameters());
    const base::Status status = join_at(place, {.timeout_ms = 200}).error().status;
    const auto is_said = testing::ElementsAre(testing::AllOf(
        HasSubstr("VERBENA_INSECURE=1"), HasSubstr("VERBENA_JOB_KEY_FILE"), HasSubstr("run code")));
    if (is_insecure) {
      EXPECT_NE(status, base::Status::kInvalidUsage);
      EXPECT_THAT(log.warnings(), testing::Not(is_said));
    } else {
      EXPECT_EQ(status, base::Status::kInvalidUsage);
      EXPECT_THAT(log.warnings(), is_said);
    }
  }
}

TEST(JoiningFromTheEnvironment, TheLauncherPublishesThatAllRanksAreOnOneHost) {
  const auto is_one_host = [](const Variables& variables) {
    return take(read(variables), "place").is_one_host;
  };
  EXPECT_TRUE(is_one_host(with_master({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}})));
  EXPECT_FALSE(is_one_host(with_master({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "1"}})));
  EXPECT_FALSE(is_one_host(with_master({{"RANK", "1"}, {"WORLD_SIZE", "2"}})));
  EXPECT_TRUE(is_one_host(
      with_master({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_NUM_NODES", "1"}})));
}

TEST(JoiningFromTheEnvironment, APortThatIsTakenIsToldWithTheCure) {
  base::LogCapture log;
  const auto other = take(base::Listener::open_at(base::make_loopback()), "listener");
  EXPECT_FALSE(join_at(place_here(0, other.address().port)));
  EXPECT_THAT(log.warnings().back(), HasSubstr("VERBENA_BOOTSTRAP_PORT"));
}

TEST(JoiningFromTheEnvironment, NobodyThereIsToldAtTheDeadline) {
  LaunchPlace place = place_here(1, reserve_port());
  base::LogCapture log;
  EXPECT_EQ(join_at(place, {.timeout_ms = 200}).error().status, base::Status::kTimeout);
  EXPECT_THAT(log.warnings(), testing::ElementsAre(HasSubstr("Connection refused")));
  place.host = "no.such.host.invalid";
  EXPECT_EQ(join_at(place, {.timeout_ms = 200}).error().status, base::Status::kInvalidUsage);
  EXPECT_THAT(log.warnings().back(), HasSubstr("no.such.host.invalid"));
}

TEST(JoiningFromTheEnvironment, OneRankNeedsNobody) {
  auto bootstrap = take(join_at({}), "bootstrap");
  EXPECT_TRUE(bootstrap.barrier());
  EXPECT_EQ(take(bootstrap.gather(7), "gathered"), std::vector<int>{7});
}

}  // namespace
}  // namespace verbena::bootstrap
