// A rank's one talk with the rendezvous: here am I, where is my parent?
#pragma once

#include "base/clock.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "device/bootstrap/tree_links.h"
#include "device/bootstrap/unique_id.h"

namespace verbena::bootstrap {

enum class Patience : uint8_t {
  kNone,           // the rendezvous stands already, as its id was made before
  kUntilDeadline,  // it may come later, and another one may be at its address until then
};

// Where the parent awaits us; no address for rank 0. `own` is where our children find us.
base::Result<base::SocketAddress> ask_for_parent(const Meeting& meeting, const TreeLinks::Place& place,
                                                 const base::SocketAddress& own, base::Deadline deadline,
                                                 Patience patience = Patience::kNone);

}  // namespace verbena::bootstrap
