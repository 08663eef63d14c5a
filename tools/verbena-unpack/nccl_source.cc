#include "verbena-unpack/nccl_source.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/clock.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/program.h"
#include "verbena-unpack/images.h"

namespace verbena::tools::unpack {
namespace {

namespace fs = std::filesystem;
constexpr double kCompileTimeoutS = 300;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "verbena-unpack-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr)
      throw ToolError("cannot make " + pattern + ": " + std::strerror(errno));
    path_ = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void write_file(const fs::path& path, std::string_view text) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw ToolError("cannot write " + path.string());
}

}  // namespace

std::string find_nvcc() {
  const Environment environment = Environment::copy_own();
  if (const std::string* const home = environment.find("CUDA_HOME"); home != nullptr && !home->empty()) {
    const fs::path nvcc = fs::path(*home) / "bin" / "nvcc";
    if (fs::exists(nvcc)) return nvcc.string();
  }
  return find_program("nvcc");
}

std::string compile_nccl_kernel(const std::string& checkout, int compute_major, int compute_minor) {
  const fs::path device = fs::path(checkout) / "src" / "device";
  const fs::path unpack = device / "network" / "unpack";
  if (!fs::exists(unpack / "unpack.h"))
    throw ToolError("--nccl-source: no " + (unpack / "unpack.h").string() + " (NCCL 2.22 or later)");
  const std::string nvcc = find_nvcc();
  if (nvcc.empty())
    throw ToolError("--nccl-source: no nvcc in the PATH, nor in $CUDA_HOME/bin, to compile NCCL's code");
  const TemporaryFolder folder;
  const fs::path source = folder.path() / "nccl_kernel.cu", image = folder.path() / "nccl_kernel.cubin";
  write_file(source, nccl_kernel_text());
  write_file(folder.path() / "verbena-unpack" / "unpack_run.h", unpack_run_text());
  write_file(folder.path() / "device.h", "");
  write_file(folder.path() / "common.h", "");
  const std::string architecture = "sm_" + std::to_string(compute_major) + std::to_string(compute_minor);
  const ProgramResult result = run_program(
      {nvcc, "-std=c++17", "-O3", "--expt-relaxed-constexpr", "-cubin", "-arch=" + architecture,
       "-I" + folder.path().string(), "-I" + unpack.string(), "-I" + device.string(),
       "-I" + (fs::path(checkout) / "src" / "include").string(), "-o", image.string(), source.string()},
      "", kCompileTimeoutS);
  if (result.status != 0)
    throw ToolError("--nccl-source: nvcc cannot compile NCCL's unpack.h:\n" + result.output);
  std::ifstream file(image, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace verbena::tools::unpack
