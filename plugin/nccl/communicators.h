// The objects behind NCCL's opaque comm pointers.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

#include "nccl/net_profiler.h"
#include "nccl/process.h"
#include "transport/ends.h"
#include "transport/link/nic.h"
#include "transport/memory/registration.h"
#include "transport/transport.h"

namespace verbena::nccl {

struct ListenComm {
  std::shared_ptr<Context> context;
  std::shared_ptr<transport::NicRegistry> nics;  // keeps `nic` alive
  std::unique_ptr<transport::Listening> listening;
  const transport::Nic* nic = nullptr;
};

// A sending or a receiving communicator: exactly one of its two ends is set.
struct Communicator {
  std::shared_ptr<Context> context;
  std::shared_ptr<transport::NicRegistry> nics;
  const transport::Nic* nic;
  RegistrationOrder::Family family = RegistrationOrder::Family::kUnknown;
  RegistrationOrder order;

  std::mutex registration_mutex;  // another thread than the data thread registers memory
  std::unordered_map<const transport::Registration*, std::unique_ptr<transport::Registration>> registrations;

  std::unique_ptr<NetProfiler> profiler;  // null if no profiler wants work requests

  // Declared after the registrations, so that queue pairs are destroyed before the memory that they access.
  std::unique_ptr<transport::SendingEnd> sender;
  std::unique_ptr<transport::ReceivingEnd> receiver;

  transport::MessageEnd& end() const {
    return sender != nullptr ? static_cast<transport::MessageEnd&>(*sender) : *receiver;
  }
};

}  // namespace verbena::nccl
