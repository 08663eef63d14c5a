// The objects behind NCCL's opaque comm pointers.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

#include "nccl/net_profiler.h"
#include "nccl/process.h"
#include "transport/datagram/channel.h"
#include "transport/datagram/meeting.h"
#include "transport/receiver.h"
#include "transport/sender.h"
#include "transport/setup/listener.h"

namespace verbena::nccl {

struct ListenComm {
  std::shared_ptr<Context> context;
  std::shared_ptr<transport::NicRegistry> nics;  // keeps `nic` alive
  // Exactly one of these two is set.
  std::unique_ptr<transport::Listener> listener;
  std::unique_ptr<transport::datagram::Listener> datagram_listener;
  const transport::Nic* nic = nullptr;
};

// The common part of a sending and a receiving communicator. Exactly one of its four ends is set.
struct Communicator {
  std::shared_ptr<Context> context;
  std::shared_ptr<transport::NicRegistry> nics;
  const transport::Nic* nic;
  RegistrationOrder::Family family = RegistrationOrder::Family::kUnknown;
  RegistrationOrder order;

  std::mutex registration_mutex;  // registrations come from another thread than messages
  std::unordered_map<const transport::Registration*, std::unique_ptr<transport::Registration>> registrations;

  std::unique_ptr<NetProfiler> profiler;  // null if no profiler wants work requests

  // Declared after the registrations, so that queue pairs are destroyed before the memory that they access.
  std::unique_ptr<transport::Sender> sender;
  std::unique_ptr<transport::Receiver> receiver;
  std::unique_ptr<transport::datagram::SendEnd> datagram_sender;
  std::unique_ptr<transport::datagram::ReceiveEnd> datagram_receiver;
};

}  // namespace verbena::nccl
