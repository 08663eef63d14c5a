#include "common/nccl_search.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "common/child_group.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/nccl_library.h"
#include "common/self_path.h"

namespace verbena::tools::nccl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibraryName = "libnccl.so.2";
constexpr double kPythonTimeoutS = 20;
constexpr double kProbeTimeoutS = 30;
// -I keeps the current folder out of sys.path, and with it PYTHONPATH, which the script adds.
constexpr const char* kPythonScript =
    "import sys,site,glob,os\n"
    "seen=sys.path+os.environ.get('PYTHONPATH','').split(os.pathsep)\n"
    "for f in (getattr(site,'getsitepackages',lambda:[]),lambda:[site.getusersitepackages()]):\n"
    "  try: seen+=f()\n"
    "  except Exception: pass\n"
    "for p in filter(os.path.isabs,seen):\n"
    "  for q in sorted(glob.glob(os.path.join(p,'nvidia','*','lib','libnccl.so.2'))): print(q)\n";

// Runs a command for at most `timeout_s` and returns the lines that it writes to kControlDescriptor.
std::vector<std::string> collect_lines(const ChildCommand& command, double timeout_s,
                                       std::string& exit_text) {
  std::vector<std::string> lines;
  ChildGroup group;
  try {
    group.start(command);
  } catch (const ToolError& error) {
    exit_text = error.what();
    return lines;
  }
  const int64_t deadline_ns = deadline_after_s(timeout_s);
  for (;;) {
    ChildEvent event = group.wait_event(deadline_ns);
    if (event.kind == ChildEvent::Kind::kLine) {
      lines.push_back(std::move(event.line));
      continue;
    }
    exit_text =
        event.kind == ChildEvent::Kind::kTimeout ? "python3 did not answer in time" : group.describe_exit(0);
    return lines;
  }
}

class Finder {
 public:
  // `path` is a file, or a folder with the library. A path that does not exist is ignored.
  void add(const fs::path& path, const std::string& source) {
    std::error_code error;
    const fs::path file = fs::is_directory(path, error) ? path / kLibraryName : path;
    const fs::path real = fs::canonical(file, error);
    if (error || std::find(real_paths_.begin(), real_paths_.end(), real) != real_paths_.end()) return;
    real_paths_.push_back(real);
    candidates_.push_back({file.string(), source, "", ""});
  }

  void add_loader() {
    void* const library = dlopen(kLibraryName, RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) return;
    link_map* map = nullptr;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr) add(map->l_name, "loader");
    dlclose(library);
  }

  void add_cuda() {
    std::vector<fs::path> roots;
    for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
      if (const char* const value = std::getenv(name)) roots.emplace_back(value);
    }
    std::error_code error;
    std::vector<fs::path> installed;
    for (const auto& entry : fs::directory_iterator("/usr/local", error)) {
      if (entry.path().filename().string().starts_with("cuda")) installed.push_back(entry.path());
    }
    std::sort(installed.begin(), installed.end());
    roots.insert(roots.end(), installed.begin(), installed.end());
    for (const fs::path& root : roots) {
      for (const char* folder : {"lib64", "lib", "targets/x86_64-linux/lib"})
        add(root / folder / kLibraryName, "CUDA");
    }
  }

  void add_python() {
    for (const char* python : {"python3", "python"}) {
      ChildCommand command{"/bin/sh",
                           {"-c", "exec \"$0\" -I -c \"$1\" >&3 2>/dev/null", python, kPythonScript},
                           Environment::copy_own(),
                           -1};
      std::string unused;
      for (const std::string& line : collect_lines(command, kPythonTimeoutS, unused)) add(line, python);
    }
  }

  std::vector<NcclCandidate> take() { return std::move(candidates_); }

 private:
  std::vector<fs::path> real_paths_;
  std::vector<NcclCandidate> candidates_;
};

void probe(NcclCandidate& candidate) {
  const ChildCommand command{
      find_self_executable().string(), {"--probe-nccl", candidate.path}, Environment::copy_own(), -1};
  std::string exit_text;
  for (const std::string& line : collect_lines(command, kProbeTimeoutS, exit_text)) {
    if (line.starts_with("version ")) candidate.version = line.substr(8);
    if (line.starts_with("problem ")) candidate.problem = line.substr(8);
  }
  if (candidate.version.empty() && candidate.problem.empty()) candidate.problem = exit_text;
}

}  // namespace

std::vector<NcclCandidate> find_nccl_libraries(const std::string& wanted) {
  Finder finder;
  if (!wanted.empty()) {
    finder.add(wanted, "--nccl");
  } else {
    if (const char* const value = std::getenv("NCCL_LIB")) finder.add(value, "$NCCL_LIB");
    finder.add_loader();
    finder.add_cuda();
    finder.add_python();
  }
  std::vector<NcclCandidate> candidates = finder.take();
  for (NcclCandidate& candidate : candidates) probe(candidate);
  return candidates;
}

NcclCandidate choose_nccl(const std::vector<NcclCandidate>& candidates) {
  std::string tried;
  for (const NcclCandidate& candidate : candidates) {
    if (!candidate.version.empty()) return candidate;
    tried += "; " + candidate.path + ": " + candidate.problem;
  }
  throw ToolError(
      "no libnccl.so.2 found (searched --nccl, $NCCL_LIB, the loader's path, CUDA's folders, python3's "
      "packages)" +
      tried);
}

int run_nccl_probe(const std::string& path) {
  LineChannel control(kControlDescriptor);
  const int64_t deadline_ns = deadline_after_s(kProbeTimeoutS);
  try {
    int version = 0;
    const NcclLibrary nccl = load_nccl(path);
    nccl.check(nccl.get_version(&version), "ncclGetVersion");
    control.send_line("version " + format_nccl_version(version), deadline_ns);
    return kExitOk;
  } catch (const ToolError& error) {
    control.send_line(std::string("problem ") + error.what(), deadline_ns);
    return kExitFailed;
  }
}

}  // namespace verbena::tools::nccl
