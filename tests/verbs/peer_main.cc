// The peer of process_transfer_test: connects, then answers each write with immediate i by writing its
// buffer, each byte increased by one, back with immediate i + 1. Ends when the test closes the socket.
#include <sys/socket.h>

#include <cstdlib>

#include "support/loopback.h"
#include "support/peer_link.h"

namespace verbena::verbs {
namespace {

bool is_closed(int socket) {
  char byte;
  return recv(socket, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
}

bool answer(Endpoint& end, const PeerHello& remote, uint32_t imm) {
  for (std::byte& byte : end.buffer()) byte = static_cast<std::byte>(static_cast<int>(byte) + 1);
  WorkRequest request = end.make_request(Opcode::kWriteImm, remote.address, remote.remote_key);
  request.imm = imm + 1;
  return static_cast<bool>(end.pair().post(std::span(&request, 1)));
}

int serve(int socket) {
  const auto devices = open_devices();
  PeerHello remote{};
  if (recv(socket, &remote, sizeof(remote), MSG_WAITALL) != sizeof(remote)) return 2;
  Endpoint end(*devices.at(0), remote.length_bytes);
  const PeerHello own{end.device().address(), end.pair().address(), end.address(), end.remote_key(),
                      remote.length_bytes};
  if (!end.post_receive(0, 0, 1) || !end.pair().connect(remote.port, remote.pair)) return 3;
  if (send(socket, &own, sizeof(own), 0) != sizeof(own)) return 4;
  while (!is_closed(socket)) {
    const Completion completion = end.wait(10);
    if (completion.error == -1) continue;  // nothing yet
    if (completion.error != 0) return 5;
    if (completion.kind() == CompletionKind::kSend) {
      end.pair().retire();
    } else if (!end.post_receive(0, 0, 1) || !answer(end, remote, completion.imm())) {
      return 6;
    }
  }
  return 0;
}

}  // namespace
}  // namespace verbena::verbs

int main(int count, char** arguments) {
  if (count != 2) return 1;
  return verbena::verbs::serve(std::atoi(arguments[1]));
}
