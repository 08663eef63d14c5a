// What the built library shows and wants: only NCCL's tables, only libraries that every machine has.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "nccl/elf_file.h"
#include "nccl/loaded_plugin.h"

namespace verbena::nccl::testing {
namespace {

TEST(ExportsTest, OnlyTheTables) {
  std::set<std::string> exported;
  for (const ElfSymbol& symbol : read_elf_file(LoadedPlugin::path()).symbols) {
    if (symbol.is_defined) exported.insert(symbol.name);
  }
  EXPECT_EQ(exported,
            (std::set<std::string>{
                "ncclNetPlugin_v7", "ncclNetPlugin_v8", "ncclNetPlugin_v9", "ncclNetPlugin_v10",
                "ncclNetPlugin_v11", "ncclNetPlugin_v12", "ncclGinPlugin_v11", "ncclGinPlugin_v13",
                "ncclRmaPlugin_v14", "ncclRmaPlugin_v15", "ncclRmaPlugin_v16", "ncclTunerPlugin_v2",
                "ncclTunerPlugin_v3", "ncclTunerPlugin_v4", "ncclTunerPlugin_v5", "ncclTunerPlugin_v6"}));
}

TEST(ExportsTest, LoadsWithoutCudaVerbsAndASharedCxxLibrary) {
  if (VERBENA_IS_SANITIZED) GTEST_SKIP() << "a sanitizer brings its own libraries";
  const std::set<std::string> allowed{
      "libc.so.6",      "libm.so.6",  "libdl.so.2",           "libpthread.so.0",
      "libhwloc.so.15", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"};
  for (const std::string& name : read_elf_file(LoadedPlugin::path()).needed) {
    EXPECT_TRUE(allowed.contains(name)) << "needs " << name;
  }
}

TEST(ExportsTest, ImportsComeFromTheCLibraryOrHwloc) {
  if (VERBENA_IS_SANITIZED) GTEST_SKIP() << "a sanitizer brings its own symbols";
  size_t imports = 0;
  for (const ElfSymbol& symbol : read_elf_file(LoadedPlugin::path()).symbols) {
    if (symbol.is_defined || symbol.is_weak) continue;
    ++imports;
    EXPECT_TRUE(symbol.version.starts_with("GLIBC_") || symbol.name.starts_with("hwloc_"))
        << "imports " << symbol.name << " " << symbol.version;
  }
  EXPECT_GT(imports, 0u);
}

TEST(ExportsTest, TheUnnamedLinkIsTheSameLibrary) {
  const std::filesystem::path library = LoadedPlugin::path();
  EXPECT_TRUE(std::filesystem::equivalent(library, library.parent_path() / "libnccl-net.so"));
}

TEST(ExportsTest, OpensWithEverySymbolBound) {
  const LoadedPlugin plugin;  // RTLD_NOW
  EXPECT_EQ(plugin.problem(), "");
}

}  // namespace
}  // namespace verbena::nccl::testing
