#include "softverbs/faults/faults.h"

#include "softverbs/engine/process.h"
#include "softverbs/faults/injector.h"
#include "softverbs/shared/clock.h"

namespace verbena::softverbs::faults {
namespace {

// Reads the control file periodically: unlike file notifications, this works with every file system, and with
// files that are renamed or truncated.
class RailFile {
 public:
  RailFile(Process& process, const std::string& path) : process_(process), path_(path) {}

  void look() {
    std::string text;
    if (read_file(path_, text) && text != text_) {
      text_ = text;
      obey(text);
    }
    constexpr uint64_t kPeriodNs = 5'000'000;
    process_.schedule.add(read_clock_ns() + kPeriodNs, [this] { look(); });
  }

 private:
  void obey(const std::string& text) {
    const RailOrders orders = parse_rails(text);
    if (!orders.problem.empty())
      return warn("%s: %s. The whole file is ignored", path_.c_str(), orders.problem.c_str());
    process_.rails.obey(orders.up, orders.down);
  }

  Process& process_;
  const std::string path_;
  std::string text_;
};

}  // namespace

bool start(Process& process) {
  const Setup& setup = get_setup();
  if (!setup.is_valid) return false;
  std::call_once(process.faults_once, [&] {
    if (!setup.rails_path.empty())
      (new RailFile(process, setup.rails_path))->look();  // lives as long as the process
    if (setup.plan.rules.empty()) return;
    process.injector = std::make_unique<Injector>(setup.plan, process.rails, process.schedule);
    process.injector->start();
  });
  return true;
}

}  // namespace verbena::softverbs::faults
