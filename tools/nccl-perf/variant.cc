#include "nccl-perf/variant.h"

#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <tuple>

#include "common/self_path.h"

namespace verbena::tools::nccl {
namespace {

Variant make_plugin_variant(const std::string& unpack) {
  return {unpack.empty() ? "plugin" : "unpack " + unpack, Variant::Transport::kPlugin, unpack};
}

void add_to_loader_path(Environment& environment, const std::filesystem::path& folder) {
  const std::string* const path = environment.find("LD_LIBRARY_PATH");
  environment.set("LD_LIBRARY_PATH", path == nullptr ? folder.string() : folder.string() + ":" + *path);
}

// NCCL's own IB transport finds libibverbs.so.1 in the loader's path. Puts the software device beside the
// plugin, if there is one, into that path.
void add_software_verbs(Environment& environment) {
  const std::filesystem::path folder = find_default_plugin().parent_path() / "softverbs";
  std::error_code error;
  if (std::filesystem::exists(folder / "libibverbs.so.1", error)) add_to_loader_path(environment, folder);
}

void set_transport(Environment& environment, const NcclPerfOptions& options, const Variant& variant) {
  switch (variant.transport) {
    case Variant::Transport::kPlugin:
      if (!options.plugin.empty()) environment.set("NCCL_NET_PLUGIN", options.plugin);
      environment.set_default("NCCL_NET_PLUGIN", find_default_plugin().string());
      return;
    case Variant::Transport::kSocket:
      environment.set("NCCL_NET_PLUGIN", "none");
      environment.set("NCCL_NET", "Socket");
      return;
    case Variant::Transport::kIb:
      environment.set("NCCL_NET_PLUGIN", "none");
      environment.set("NCCL_NET", "IB");
      environment.set_default("NCCL_GIN_TYPE", "2");
      environment.set_default("NCCL_PROTO", "^LL128");
      add_software_verbs(environment);
      return;
  }
}

}  // namespace

bool is_network_of(const Variant& variant, const std::string& network) {
  if (network.empty()) return true;
  switch (variant.transport) {
    case Variant::Transport::kSocket:
      return network == "Socket";
    case Variant::Transport::kIb:
      return network == "IB";
    case Variant::Transport::kPlugin:
      break;
  }
  return network != "Socket" && network != "IB";
}

std::vector<Variant> list_variants(const NcclPerfOptions& options) {
  std::vector<Variant> variants;
  if (options.unpack == "both") {
    variants.push_back(make_plugin_variant("1"));
    variants.push_back(make_plugin_variant("0"));
  } else {
    variants.push_back(make_plugin_variant(options.unpack));
  }
  for (const std::string& name : options.against) {
    if (name == "socket") variants.push_back({"socket", Variant::Transport::kSocket, ""});
    if (name == "ib") variants.push_back({"ib", Variant::Transport::kIb, ""});
    if (name.starts_with("unpack")) variants.push_back(make_plugin_variant(name.substr(6)));
  }
  return variants;
}

Environment make_environment(const NcclPerfOptions& options, const Variant& variant) {
  Environment environment = Environment::copy_own();
  if (!options.protocol.empty()) environment.set("NCCL_PROTO", options.protocol);
  if (!options.algorithm.empty()) environment.set("NCCL_ALGO", options.algorithm);
  if (!options.threshold.empty()) {
    environment.set("VERBENA_UNPACK_THRESHOLD", options.threshold);
    environment.set_default("VERBENA_UNPACK", "1");  // without it no threshold counts
  }
  if (options.rails > 0) environment.set("SOFTVERBS_DEVICES", std::to_string(options.rails));
  if (!variant.unpack.empty()) environment.set("VERBENA_UNPACK", variant.unpack);
  for (const auto& [name, value] : variant.settings) environment.set(name, value);
  set_transport(environment, options, variant);
  // The devices are not on a PCI bus, but the topology file makes them ports of one card.
  if (options.join_rails) environment.set_default("VERBENA_MERGE_NICS", "1");
  environment.set_default("NCCL_NET_GDR_LEVEL", "SYS");
  environment.set_default("NCCL_NET_GDR_READ", "1");
  environment.set_default("NCCL_NVLS_ENABLE", "0");
  environment.set_default("NCCL_P2P_DISABLE", "1");
  environment.set_default("NCCL_SHM_DISABLE", "1");
  environment.set_default("NCCL_SOCKET_IFNAME", "lo");
  environment.set_default("NCCL_DEBUG", "INFO");
  environment.set_default("NCCL_DEBUG_SUBSYS", "INIT,NET");
  return environment;
}

void fit_plugin_name(Environment& environment, const std::string& nccl_version) {
  int major = 0, minor = 0;
  const std::string* const named = environment.find("NCCL_NET_PLUGIN");
  if (std::sscanf(nccl_version.c_str(), "%d.%d", &major, &minor) != 2 ||
      std::tie(major, minor) >= std::tuple(2, 21) || named == nullptr)
    return;
  constexpr std::string_view kPrefix = "libnccl-net";
  const std::filesystem::path file(*named);
  std::string name = file.stem();
  if (!file.has_parent_path() || !name.starts_with(kPrefix)) return;
  name.erase(0, kPrefix.size());
  if (name.empty()) {
    environment.unset("NCCL_NET_PLUGIN");
  } else {
    environment.set("NCCL_NET_PLUGIN", name.substr(1));  // without the hyphen
  }
  add_to_loader_path(environment, file.parent_path());
}

Environment make_rank_environment(const Environment& shared, int rank, const std::string& log_file) {
  Environment environment = shared;
  environment.set("NCCL_HOSTID", "nccl-perf-node-" + std::to_string(rank));
  environment.set("NCCL_DEBUG_FILE", log_file);
  return environment;
}

}  // namespace verbena::tools::nccl
