#include "tuner/guard.h"

namespace verbena::tuner {

// NCCL's kernel can unpack for two peers. A node of a tree has three children if a local rank is below a rank
// that also receives from two other nodes.
bool Guard::has_three_children() const {
  return shape_.ranks > shape_.nodes && shape_.nodes >= 3;
}

bool Guard::forbids(Algorithm algorithm, Protocol protocol) const {
  if (!is_active() || protocol != Protocol::kSimple) return false;
  switch (algorithm) {
    case Algorithm::kNvlsTree:
      return true;  // the second and third peer are children over the network
    case Algorithm::kTree:
      return has_three_children();
    case Algorithm::kPat:
      return !offer_.tells_pat;  // PAT's kernel never unpacks
    default:
      return false;  // a ring has one peer; CollNet, and NVLS within a node, do not use this network
  }
}

void Guard::apply(const CostTable& table) const {
  visit_allowed(table, [&](Algorithm algorithm, Protocol protocol, float& entry) {
    if (forbids(algorithm, protocol)) entry = kIgnored;
  });
}

std::string Guard::describe() const {
  if (!offer_.is_in_use) return "UNPACK guard off: NCCL does not use this plugin";
  if (!offer_.unpack) return "UNPACK guard off: UNPACK is not offered";
  if (shape_.nodes <= 1) return "UNPACK guard off: one node";
  std::string text = "UNPACK guard on, because UNPACK is offered. NCCL may not use nvls_tree";
  if (has_three_children()) text += ", tree with simple (three children)";
  if (!offer_.tells_pat)
    text += ", pat (this version of NCCL does not tell the plugin which receives belong to pat)";
  return text;
}

}  // namespace verbena::tuner
