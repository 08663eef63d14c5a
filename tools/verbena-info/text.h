// Formats the document as text, as a picture, and as a topology file. Pure.
#pragma once
#include <string>
#include <vector>

#include "verbena-info/document.h"

namespace verbena::tools::info {

struct TextOptions {
  bool parameters = false;  // those with their defaults too
  bool all_parameters = false;
  bool verbose = false;
};

std::string format_document(const Document& document, const TextOptions& options);

// Format a check as a line, in columns that fit the names of the document's devices; and the last line.
std::string format_check(const Document& document, const Check& check);
std::string format_verdict(const std::vector<Check>& checks);

// "400 Gb/s"
std::string format_speed(uint64_t mbps);
// [7,8,9,12] as "v7 to v9, v12".
std::string format_versions(const std::vector<int>& versions);
std::string join(const std::vector<std::string>& words, const std::string& comma = ", ");
std::string join(const std::vector<int>& numbers, const std::string& comma);
// Breaks lines between words; lines after the first start at `first_column`.
std::string wrap(const std::string& text, size_t first_column, size_t width);

// A graph in Graphviz's language. NUMA nodes are frames that contain PCI switches, which contain GPUs and
// ports. The networks of the rails are below. A line leads from each GPU to its nearest ports.
std::string draw_topology(const Document& document);

// Formats a topology file for NCCL (NCCL_TOPO_FILE) with the positions of the plugin's devices. It contains
// no GPUs, because NCCL finds and adds them. A device without a PCI bus gets an unused address at the first
// NUMA node.
std::string format_topology_xml(const Document& document);

}  // namespace verbena::tools::info
