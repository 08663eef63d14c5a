#include "verbena-info/picture.h"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "verbena-info/machine_tree.h"
#include "verbena-info/svg.h"
#include "verbena-info/text.h"

namespace verbena::tools::info {
namespace {

constexpr double kMargin = 24, kGap = 12, kTitleHeight = 24, kHeadHeight = 104;
constexpr double kCardWidth = 190, kGpuHeight = 62, kNicHeight = 96, kBetweenRows = 64;
constexpr double kNetworkDistance = 46, kNetworkHeight = 34, kLegendWidth = 770;
constexpr double kTitleSize = 20, kBodySize = 12,
                 kNameSize = 14;  // the latter is bold, which is wider than its 13
constexpr const char* kStyle =
    "text{font-family:Helvetica,Arial,sans-serif;fill:#1c2733}"
    ".title{font-size:18px;font-weight:bold}.name{font-size:13px;font-weight:bold}.body{font-size:12px}"
    ".label{font-size:12px;fill:#5b6b7b}"
    ".node{fill:#f3f5f8;stroke:#b9c3cf}.switch{fill:#fff;stroke:#b9c3cf;stroke-dasharray:5 4}"
    ".gpu{fill:#e2f2e0;stroke:#4f9a48}.nic{fill:#dfebfa;stroke:#3b73b9}.idle{fill:#f6e3e1;stroke:#b5483d}"
    ".network{fill:#fbf1d9;stroke:#c29a2e}"
    ".near{stroke:#4f9a48;stroke-width:3}.middling{stroke:#c29a2e;stroke-width:2}"
    ".far{stroke:#b5483d;stroke-width:2;stroke-dasharray:3 4}.rail{stroke:#3b73b9;stroke-width:2}"
    ".end{fill:#3b73b9}";

// From near to far, as topology::describe says it.
constexpr std::array<const char*, 6> kDistances = {"same device",    "same PCI switch", "same host bridge",
                                                   "same NUMA node", "other NUMA node", "unknown distance"};

size_t rank_distance(const std::string& words) {
  return static_cast<size_t>(std::find(kDistances.begin(), kDistances.end(), words) - kDistances.begin());
}

const char* choose_line(size_t rank) {
  return rank <= 1 ? "near" : rank <= 3 ? "middling" : "far";
}

std::string count(size_t number, const std::string& what) {
  return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

// A network's bar lies below its ports, so that every rail goes straight down.
struct Network {
  std::string subnet;
  std::vector<Box> ports;
  Box bar;  // its height is a row's
};

// Into rows, narrow ones first: a wide network lies below those that have ports in its midst.
double place_networks(std::vector<Network>* networks, double top) {
  std::sort(networks->begin(), networks->end(), [](const Network& a, const Network& b) {
    return std::pair(a.bar.width, a.bar.left) < std::pair(b.bar.width, b.bar.left);
  });
  std::vector<std::vector<Box>> rows;
  for (Network& network : *networks) {
    const auto is_free = [&](const std::vector<Box>& row) {
      return std::all_of(row.begin(), row.end(), [&](const Box& other) {
        return other.right() <= network.bar.left || network.bar.right() <= other.left;
      });
    };
    const auto row = std::find_if(rows.begin(), rows.end(), is_free);
    network.bar.top = top + static_cast<double>(row - rows.begin()) * (kNetworkHeight + kGap);
    if (row == rows.end()) {
      rows.push_back({network.bar});
    } else {
      row->push_back(network.bar);
    }
  }
  return top + static_cast<double>(rows.size()) * (kNetworkHeight + kGap) - kGap;
}

class Drawing {
 public:
  explicit Drawing(const Json& document) : document_(document), nodes_(build_machine_tree(document)) {}
  std::string draw();

 private:
  double draw_node(const NodeGroup& node, double left);
  double draw_group(const DeviceGroup& group, double left);
  Network& find_network(const std::string& subnet);
  void add_card_line(const Box& card, double down, const std::string& text, const std::string& style);
  void draw_gpu(const Json& gpu, const Box& box);
  void draw_nic(const Json& nic, const Box& box);
  void draw_nearest();
  double draw_networks();
  void draw_head(double width);

  double group_top() const { return kMargin + kHeadHeight + kTitleHeight; }
  double gpu_top() const { return group_top() + kTitleHeight; }
  bool has_gpus() const { return !document_["gpus"]["devices"].empty(); }
  double nic_top() const { return gpu_top() + (has_gpus() ? kGpuHeight + kBetweenRows : 0); }
  double group_bottom() const { return nic_top() + kNicHeight + kGap; }
  double node_bottom() const { return group_bottom() + kGap; }

  const Json& document_;
  std::vector<NodeGroup> nodes_;
  Svg svg_;
  std::map<int, Box> gpu_boxes_;  // by index
  std::vector<Network> networks_;
  std::map<int, Box> nic_boxes_;  // by the plugin's index
};

// A line of text in a card, its baseline this far below the card's top; cut where the card is too narrow.
void Drawing::add_card_line(const Box& card, double down, const std::string& text, const std::string& style) {
  const double size = style == "name" ? kNameSize : kBodySize;
  svg_.add_text(card.middle(), card.top + down, fit_text(text, card.width - kGap, size), style, true);
}

void Drawing::draw_gpu(const Json& gpu, const Box& box) {
  gpu_boxes_[gpu["index"].get<int>()] = box;
  svg_.begin_group(gpu.dump(1));
  svg_.add_box(box, "gpu");
  add_card_line(box, 20, "GPU " + show(gpu["index"]), "name");
  add_card_line(box, 37, read_text(gpu, "name"), "body");
  add_card_line(box, 53, read_text(gpu, "pci_address"), "label");
  svg_.end_group();
}

Network& Drawing::find_network(const std::string& subnet) {
  const auto known =
      std::find_if(networks_.begin(), networks_.end(), [&](const Network& n) { return n.subnet == subnet; });
  return known == networks_.end() ? networks_.emplace_back(Network{subnet, {}, {}}) : *known;
}

void Drawing::draw_nic(const Json& nic, const Box& box) {
  const bool usable = nic["usable"];
  const std::string port = name_port(nic);
  svg_.begin_group(usable ? read_text(nic, "name") : read_text(nic, "why_not"));
  svg_.add_box(box, usable ? "nic" : "idle");
  add_card_line(box, 20, port, "name");
  if (usable) {
    const Json gid = nic.value("gid", Json());
    add_card_line(box, 38, format_speed(nic["speed_mbps"]) + ", " + show(nic["link_layer"]), "body");
    add_card_line(box, 55, "GPU memory: " + read_text(nic["gpu_memory"], "path"), "body");
    const std::string address = gid.is_null() ? "LID " + show(nic["lid"]) : read_text(gid, "address");
    add_card_line(box, 72, address, "label");
    const std::string network = gid.is_null() ? "InfiniBand" : read_text(gid, "subnet");
    find_network(network).ports.push_back(box);
    nic_boxes_[nic["index"].get<int>()] = box;
  } else {
    add_card_line(box, 38, "not used", "body");
    add_card_line(box, 55, read_text(nic, "why_not"), "body");
  }
  const std::string place = read_text(nic, "pci_address");
  add_card_line(box, 89, place.empty() ? "no PCI device" : place, "label");
  svg_.end_group();
}

double Drawing::draw_group(const DeviceGroup& group, double left) {
  const auto cards = static_cast<double>(std::max(group.gpus.size(), group.nics.size()));
  const double width = cards * (kCardWidth + kGap) + kGap;
  svg_.add_box({left, group_top(), width, group_bottom() - group_top()}, "switch");
  const std::string label = group.pci_switch.empty() ? "no PCI switch" : "PCI switch " + group.pci_switch;
  svg_.add_text(left + kGap, group_top() + 17, fit_text(label, width - 2 * kGap, kBodySize), "label");
  const auto place = [&](size_t index, size_t count, double top, double height) {
    const double used = static_cast<double>(count) * (kCardWidth + kGap) - kGap;
    const double start = left + (width - used) / 2;
    return Box{start + static_cast<double>(index) * (kCardWidth + kGap), top, kCardWidth, height};
  };
  for (size_t i = 0; i < group.gpus.size(); ++i)
    draw_gpu(*group.gpus[i], place(i, group.gpus.size(), gpu_top(), kGpuHeight));
  for (size_t i = 0; i < group.nics.size(); ++i)
    draw_nic(*group.nics[i], place(i, group.nics.size(), nic_top(), kNicHeight));
  return width;
}

double Drawing::draw_node(const NodeGroup& node, double left) {
  const auto count_width = [](const DeviceGroup& group) {
    return static_cast<double>(std::max(group.gpus.size(), group.nics.size())) * (kCardWidth + kGap) + kGap;
  };
  double width = kGap;
  for (const DeviceGroup& group : node.groups) width += count_width(group) + kGap;
  const double top = kMargin + kHeadHeight;
  svg_.add_box({left, top, width, node_bottom() - top}, "node");
  svg_.add_text(left + kGap, top + 17,
                node.numa_node.is_null() ? "no NUMA node known" : "NUMA node " + show(node.numa_node),
                "name");
  double at = left + kGap;
  for (const DeviceGroup& group : node.groups) at += draw_group(group, at) + kGap;
  return width;
}

// Each GPU with the NICs that are as near as any.
void Drawing::draw_nearest() {
  std::map<int, size_t> nearest;
  const auto visit = [&](auto use) {
    for (const Json& nic : document_["devices"]) {
      if (!nic["usable"].get<bool>()) continue;
      for (const Json& entry : nic["gpu_distances"])
        use(entry["gpu"].get<int>(), nic["index"].get<int>(), rank_distance(read_text(entry, "distance")));
    }
  };
  visit([&](int gpu, int, size_t rank) {
    nearest[gpu] = std::min(rank, nearest.contains(gpu) ? nearest[gpu] : kDistances.size());
  });
  visit([&](int gpu, int nic, size_t rank) {
    if (rank != nearest[gpu]) return;
    const Box& from = gpu_boxes_[gpu];
    const Box& to = nic_boxes_[nic];
    svg_.add_line(from.middle(), from.bottom(), to.middle(), to.top, choose_line(rank));
  });
}

// Where they end.
double Drawing::draw_networks() {
  for (Network& network : networks_) {
    const auto [first, last] =
        std::minmax_element(network.ports.begin(), network.ports.end(),
                            [](const Box& a, const Box& b) { return a.left < b.left; });
    network.bar = {first->left, 0, last->right() - first->left, kNetworkHeight};
  }
  const double bottom = place_networks(&networks_, node_bottom() + kNetworkDistance);
  for (const auto& [subnet, ports, bar] : networks_) {
    const std::string rails = subnet + ": " + count(ports.size(), "rail"), whole = "network " + rails;
    const double room = bar.width - kGap;
    svg_.begin_group(whole);
    svg_.add_box(bar, "network");
    svg_.add_text(bar.middle(), bar.top + 22,
                  fits(whole, room, kNameSize) ? whole : fit_text(rails, room, kNameSize), "name", true);
    svg_.end_group();
  }
  for (const Network& network : networks_) {
    for (const Box& port : network.ports) {
      svg_.add_line(port.middle(), port.bottom(), port.middle(), network.bar.top, "rail");
      svg_.add_dot(port.middle(), network.bar.top, "end");
    }
  }
  return bottom;
}

void Drawing::draw_head(double width) {
  const std::string title = "Verbena on " + read_text(document_["host"], "name");
  svg_.add_text(kMargin, kMargin + 18, fit_text(title, width - 2 * kMargin, kTitleSize), "title");
  const std::string counts = count(gpu_boxes_.size(), "GPU") + ", " +
                             count(nic_boxes_.size(), "usable port") + ", " +
                             count(networks_.size(), "network");
  svg_.add_text(kMargin, kMargin + 40, counts, "body");
  const std::array<std::pair<const char*, const char*>, 4> keys{{{"near", "nearest NIC: same PCI switch"},
                                                                 {"middling", "same bridge or NUMA node"},
                                                                 {"far", "other node or unknown"},
                                                                 {"rail", "rail"}}};
  double left = kMargin;
  for (const auto& [style, words] : keys) {
    svg_.add_line(left, kMargin + 66, left + 28, kMargin + 66, style);
    svg_.add_text(left + 34, kMargin + 70, words, "label");
    left += 34 + 7 * static_cast<double>(std::string(words).size()) + 24;
  }
}

std::string Drawing::draw() {
  double right = kMargin;
  for (const NodeGroup& node : nodes_) right += draw_node(node, right) + kGap;
  const double width = std::max(right - kGap + kMargin, kLegendWidth + 2 * kMargin);
  draw_nearest();
  const double bottom = networks_.empty() ? node_bottom() : draw_networks();
  draw_head(width);
  return svg_.finish(width, bottom + kMargin, "Topology of " + read_text(document_["host"], "name"), kStyle);
}

}  // namespace

std::string draw_topology(const Json& document) {
  return Drawing(document).draw();
}

}  // namespace verbena::tools::info
