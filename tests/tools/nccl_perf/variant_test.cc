#include "nccl-perf/variant.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace verbena::tools::nccl {
namespace {

std::string find(const Environment& environment, const std::string& name) {
  const std::string* const value = environment.find(name);
  return value == nullptr ? "(unset)" : *value;
}

class Variants : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"NCCL_NET_PLUGIN", "NCCL_NET", "NCCL_PROTO", "NCCL_NET_GDR_LEVEL"})
      unsetenv(name);
  }
  void TearDown() override { SetUp(); }
};

TEST_F(Variants, ListsWhatIsAskedFor) {
  NcclPerfOptions options;
  EXPECT_EQ(list_variants(options).size(), 1U);
  options.unpack = "both";
  options.against = {"socket", "ib"};
  const auto variants = list_variants(options);
  ASSERT_EQ(variants.size(), 4U);
  EXPECT_EQ(variants[0].name, "unpack 1");
  EXPECT_EQ(variants[1].name, "unpack 0");
  EXPECT_EQ(variants[2].name, "socket");
  EXPECT_EQ(variants[3].name, "ib");
}

TEST_F(Variants, KnowTheirNetwork) {
  const Variant plugin{"plugin", Variant::Transport::kPlugin, ""}, ib{"ib", Variant::Transport::kIb, ""};
  const Variant socket{"socket", Variant::Transport::kSocket, ""};
  EXPECT_TRUE(is_network_of(plugin, "Verbena") && is_network_of(ib, "IB") && is_network_of(socket, "Socket"));
  EXPECT_TRUE(is_network_of(plugin, "") && is_network_of(ib, ""));
  EXPECT_FALSE(is_network_of(plugin, "Socket") || is_network_of(plugin, "IB"));
  EXPECT_FALSE(is_network_of(ib, "Socket") || is_network_of(socket, "Verbena"));
}

TEST_F(Variants, PluginRunsLookLikeManyNodes) {
  NcclPerfOptions options;
  options.plugin = "/opt/libnccl-net.so";
  options.threshold = "4096";
  const Environment environment = make_environment(options, {"unpack 1", Variant::Transport::kPlugin, "1"});
  EXPECT_EQ(find(environment, "NCCL_NET_PLUGIN"), "/opt/libnccl-net.so");
  EXPECT_EQ(find(environment, "VERBENA_UNPACK"), "1");
  EXPECT_EQ(find(environment, "VERBENA_UNPACK_THRESHOLD"), "4096");
  EXPECT_EQ(find(make_environment(options, {"plugin", Variant::Transport::kPlugin, ""}), "VERBENA_UNPACK"),
            "1");
  EXPECT_EQ(find(environment, "NCCL_NET_GDR_LEVEL"), "SYS");
  EXPECT_EQ(find(environment, "NCCL_NVLS_ENABLE"), "0");
  const Environment first = make_rank_environment(environment, 0, "a.log");
  const Environment second = make_rank_environment(environment, 1, "b.log");
  EXPECT_NE(find(first, "NCCL_HOSTID"), find(second, "NCCL_HOSTID"));
  EXPECT_EQ(find(second, "NCCL_DEBUG_FILE"), "b.log");
}

TEST_F(Variants, OldReleasesFindThePluginByName) {
  NcclPerfOptions options;
  const auto fit = [&](const char* plugin, const char* version) {
    options.plugin = plugin;
    Environment environment = make_environment(options, {"plugin", Variant::Transport::kPlugin, ""});
    fit_plugin_name(environment, version);
    return environment;
  };
  const Environment plain = fit("/opt/libnccl-net.so", "2.19.3");
  EXPECT_EQ(plain.find("NCCL_NET_PLUGIN"), nullptr);
  EXPECT_TRUE(find(plain, "LD_LIBRARY_PATH").starts_with("/opt"));
  const Environment named = fit("/opt/libnccl-net-verbena.so", "2.20.5");
  EXPECT_EQ(find(named, "NCCL_NET_PLUGIN"), "verbena");
  EXPECT_EQ(find(fit("theirs", "2.19.3"), "NCCL_NET_PLUGIN"), "theirs");
  EXPECT_EQ(find(fit("/opt/libnccl-net.so", "2.21.5"), "NCCL_NET_PLUGIN"), "/opt/libnccl-net.so");
}

TEST_F(Variants, UsersSettingsWinOverDefaultsOnly) {
  setenv("NCCL_NET_GDR_LEVEL", "LOC", 1);
  setenv("NCCL_NET_PLUGIN", "theirs", 1);
  setenv("NCCL_PROTO", "LL", 1);
  NcclPerfOptions options;
  options.protocol = "Simple";
  const Environment plugin = make_environment(options, {"plugin", Variant::Transport::kPlugin, ""});
  EXPECT_EQ(find(plugin, "NCCL_NET_GDR_LEVEL"), "LOC");
  EXPECT_EQ(find(plugin, "NCCL_NET_PLUGIN"), "theirs");
  EXPECT_EQ(find(plugin, "NCCL_PROTO"), "Simple");
  EXPECT_EQ(find(plugin, "VERBENA_UNPACK"), "(unset)");
  const Environment socket = make_environment(options, {"socket", Variant::Transport::kSocket, ""});
  EXPECT_EQ(find(socket, "NCCL_NET_PLUGIN"), "none");
  EXPECT_EQ(find(socket, "NCCL_NET"), "Socket");
}

TEST_F(Variants, IbAvoidsWhatCannotWorkInSoftware) {
  const Environment ib = make_environment({}, {"ib", Variant::Transport::kIb, ""});
  EXPECT_EQ(find(ib, "NCCL_NET"), "IB");
  EXPECT_EQ(find(ib, "NCCL_GIN_TYPE"), "2");
  EXPECT_EQ(find(ib, "NCCL_PROTO"), "^LL128");
}

}  // namespace
}  // namespace verbena::tools::nccl
