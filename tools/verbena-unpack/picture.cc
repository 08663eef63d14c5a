#include "verbena-unpack/picture.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <sstream>
#include <vector>

#include "common/error.h"
#include "verbena-unpack/program.h"

namespace verbena::tools::unpack {
namespace {

constexpr double kPlotTimeoutS = 60;
constexpr size_t kCasesAPicture = 24;

// Cases of few blocks and of the whole GPU differ by an order: a picture for each number of blocks.
std::vector<uint64_t> list_block_counts(const nlohmann::json& document) {
  std::set<uint64_t> counts;
  for (const auto& entry : document["cases"]) counts.insert(entry["blocks"].get<uint64_t>());
  return {counts.begin(), counts.end()};
}

std::vector<std::string> list_kernels(const nlohmann::json& document) {
  std::vector<std::string> names;
  for (const char* name : {"registers", "bulk", "nccl", "copy"}) {
    const auto& cases = document["cases"];
    if (std::any_of(cases.begin(), cases.end(),
                    [name](const auto& entry) { return entry["kernels"].contains(name); }))
      names.emplace_back(name);
  }
  return names;
}

std::string quote(const std::string& text) {
  std::string quoted = "'";
  for (const char letter : text) quoted += letter == '\'' ? "''" : std::string(1, letter);
  return quoted + "'";
}

void write_data(std::ostream& out, const nlohmann::json& document, uint64_t blocks,
                const std::vector<std::string>& kernels) {
  out << "$blocks" << blocks << " << EOD\n";
  for (const auto& entry : document["cases"]) {
    if (entry["blocks"] != blocks) continue;
    out << '"' << entry["name"].get<std::string>() << '"';
    for (const std::string& kernel : kernels) {
      const auto& figures = entry["kernels"];
      out << ' ' << (figures.contains(kernel) ? figures[kernel]["gbps"].get<double>() : 0.0);
    }
    out << '\n';
  }
  out << "EOD\n";
}

}  // namespace

std::string write_plot(const nlohmann::json& document, const std::string& svg_file) {
  const std::vector<uint64_t> block_counts = list_block_counts(document);
  const std::vector<std::string> kernels = list_kernels(document);
  const size_t width = 400 + 60 * std::min(document["cases"].size(), kCasesAPicture);
  std::ostringstream out;
  out << "set terminal svg size " << width << ',' << 480 * std::max<size_t>(block_counts.size(), 1)
      << " background 'white'\nset output " << quote(svg_file)
      << "\nset style data histograms\nset style histogram clustered gap 1\nset style fill solid 0.9 "
         "noborder\n"
      << "set boxwidth 0.9\nset grid ytics\nset yrange [0:*]\nset xtics rotate by -35 noenhanced\n"
      << "set ylabel 'GB/s of payload'\nset key outside right top noenhanced\n";
  for (const uint64_t blocks : block_counts) write_data(out, document, blocks, kernels);
  out << "set multiplot layout " << std::max<size_t>(block_counts.size(), 1) << ",1\n";
  for (const uint64_t blocks : block_counts) {
    out << "set title " << quote(std::to_string(blocks) + " blocks") << "\nplot";
    for (size_t column = 0; column < kernels.size(); ++column) {
      out << (column == 0 ? " " : ", ") << "$blocks" << blocks << " using " << column + 2
          << (column == 0 ? ":xtic(1)" : "") << " title " << quote(kernels[column]);
    }
    out << '\n';
  }
  out << "unset multiplot\n";
  return out.str();
}

bool draw_picture(const nlohmann::json& document, const std::string& svg_file) {
  const std::string gnuplot = find_program("gnuplot");
  if (gnuplot.empty()) {
    std::fprintf(stderr, "verbena-unpack: no gnuplot in the PATH: %s is not drawn\n", svg_file.c_str());
    return false;
  }
  if (document["cases"].empty()) return false;
  const ProgramResult result = run_program({gnuplot, "-"}, write_plot(document, svg_file), kPlotTimeoutS);
  if (result.status != 0) throw ToolError("gnuplot cannot draw " + svg_file + ": " + result.output);
  return true;
}

}  // namespace verbena::tools::unpack
