#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::tools {

// Runs the straightforward part of PTX that the tools' kernels use, thread after thread, on host memory: so
// the very text that a driver would compile is tested without a GPU. No shared memory, no barriers.
class PtxProgram {
 public:
  // Throws std::runtime_error for an instruction it does not know.
  explicit PtxProgram(std::string_view text);

  struct Grid {
    uint32_t blocks = 1;
    uint32_t threads = 1;
  };

  // `arguments` point to the values, as cuLaunchKernel takes them.
  void launch(const std::string& kernel, Grid grid, void** arguments) const;
  bool has_kernel(const std::string& kernel) const { return kernels_.contains(kernel); }

 private:
  struct Thread {
    std::map<std::string, uint64_t> names;  // special registers and parameters
    std::vector<uint64_t> registers;
    size_t next = 0;
  };
  using Step = std::function<void(Thread&)>;
  struct Kernel {
    std::vector<std::pair<std::string, unsigned>> parameters;  // name, bytes
    std::map<std::string, size_t> labels;
    std::map<std::string, size_t> register_numbers;
    std::vector<Step> steps;
  };
  static constexpr size_t kReturned = ~size_t{0};

  void parse_line(Kernel& kernel, const std::string& line);
  Step parse_instruction(Kernel& kernel, const std::string& instruction);
  static size_t find_register(Kernel& kernel, const std::string& name);
  static std::function<uint64_t(const Thread&)> parse_operand(Kernel& kernel, const std::string& text);

  std::map<std::string, Kernel> kernels_;
};

}  // namespace verbena::tools
