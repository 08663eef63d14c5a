#include "transport/datagram/greeting_keys.h"

#include <algorithm>
#include <cstring>

#include "base/job_key.h"

namespace verbena::transport::datagram {
namespace {

using base::as_whole;

// Derives a key from the job's key and `secrets` or, without a job key, from `secrets` alone.
base::Result<base::HmacKey> make_key(base::Bytes secrets) {
  auto job = base::job_key();
  if (!job) return job.error();
  if (*job == nullptr) return base::HmacKey::create(secrets);
  return (*job)->derive({base::as_label("verbena datagrams"), secrets});
}

}  // namespace

base::Result<uint64_t> make_engine_id(const protocol::datagram::EngineName& name) {
  auto key = base::HmacKey::create(as_whole(name.secret));
  if (!key) return key.error();
  protocol::datagram::EngineName rest = name;
  rest.id = 0;
  auto mac = key->compute({base::as_label("engine"), as_whole(rest)});
  if (!mac) return mac.error();
  uint64_t id = 0;
  std::memcpy(&id, mac->data(), sizeof(id));
  return id | 1;
}

base::Result<GreetingMac> make_greeting_mac(const protocol::datagram::EngineSecret& secret,
                                            protocol::datagram::PacketKind kind,
                                            std::span<const uint8_t> packet) {
  auto key = make_key(as_whole(secret));
  if (!key) return key.error();
  auto mac = key->compute({base::as_label("greeting"), as_whole(kind), packet});
  if (!mac) return mac.error();
  GreetingMac result{};
  std::copy_n(mac->begin(), result.size(), result.begin());
  return result;
}

base::Result<protocol::datagram::TagKeys> make_tag_keys(const protocol::datagram::EngineName& from,
                                                        const protocol::datagram::EngineName& to) {
  const auto& first = from.id < to.id ? from : to;
  const auto& second = from.id < to.id ? to : from;
  std::array<uint8_t, 2 * sizeof(protocol::datagram::EngineSecret)> secrets;
  std::copy(first.secret.begin(), first.secret.end(), secrets.begin());
  std::copy(second.secret.begin(), second.secret.end(), secrets.begin() + first.secret.size());
  auto key = make_key(secrets);
  if (!key) return key.error();
  auto mac = key->compute({base::as_label("tags"), as_whole(from.id), as_whole(to.id)});
  if (!mac) return mac.error();
  protocol::datagram::TagKeys keys;
  std::memcpy(&keys.first, mac->data(), sizeof(keys.first));
  std::memcpy(&keys.second, mac->data() + sizeof(keys.first), sizeof(keys.second));
  return keys;
}

}  // namespace verbena::transport::datagram
