#pragma once

#include "softverbs/operation.h"

namespace verbena::softverbs {

// The part of prepare() for datagrams: they are lost without notice when nobody takes them. One that goes to
// another host is read when it is executed.
Outcome prepare_datagram(Operation& op);

// Names op.bytes of the receive that was taken as op.remote. False when they do not fit.
bool scatter_datagram(Operation& op);

// Datagrams that one run of a send queue carries: what goes from host memory to host memory of one process is
// copied by one call, what has a GPU at either end takes its lane. So a header may land in host memory and
// the data behind it in a GPU's page.
class DatagramChain {
 public:
  // Begins the copies of an operation that stays where it is until it has been finished. False: nothing was
  // begun, as some of its memory cannot be addressed from here. With memory of a GPU: workers only.
  bool begin(Operation& op);
  // The copies between host memories are done.
  void flush();

 private:
  Peer* peer_ = nullptr;
  Pieces local_, remote_;
  std::vector<Operation*> operations_;  // with pieces among them
};

}  // namespace verbena::softverbs
