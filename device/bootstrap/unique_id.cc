#include "device/bootstrap/unique_id.h"

#include <cstring>
#include <list>
#include <memory>
#include <mutex>

#include "base/hmac.h"
#include "base/log.h"
#include "base/parameters.h"
#include "base/random.h"
#include "device/bootstrap/proof.h"
#include "device/bootstrap/rendezvous.h"

namespace verbena::bootstrap {
namespace {

constexpr uint64_t kIdMagic = 0x6469'616e'6562'7276;  // "vrbenaid"

struct Content {
  uint64_t magic = kIdMagic;
  uint32_t version = kVersion;
  uint32_t reserved = 0;
  Meeting meeting;
  uint8_t reserved_too[24] = {};
};
static_assert(sizeof(Content) == kUniqueIdBytes);

// Those that still run, and those that ended since the last id was made.
struct OpenRendezvous {
  std::mutex mutex;
  std::list<std::unique_ptr<Rendezvous>> list;
};

OpenRendezvous& open_rendezvous() {
  static OpenRendezvous open;
  return open;
}

}  // namespace

UniqueId make_id(const Meeting& meeting) {
  Content content;
  content.meeting = meeting;
  UniqueId id;
  std::memcpy(id.bytes, &content, sizeof(content));
  return id;
}

base::Result<Meeting> parse(const UniqueId& id) {
  Content content;
  std::memcpy(&content, id.bytes, sizeof(content));
  if (content.magic != kIdMagic) {
    return base::fail(base::Status::kInvalidArgument, "bootstrap: these 128 bytes are no unique id");
  }
  if (content.version != kVersion) {
    return base::fail(base::Status::kInvalidArgument,
                      "bootstrap: the unique id is another version's (%u, ours is %u)", content.version,
                      kVersion);
  }
  return content.meeting;
}

base::Result<UniqueId> make_unique_id() {
  Meeting meeting;
  if (auto drawn = base::draw_random(meeting.nonce, "bootstrap"); !drawn) return drawn.error();
  if (base::has_crypto()) {
    if (auto drawn = base::draw_random(meeting.secret, "bootstrap"); !drawn) return drawn.error();
  } else {
    base::log_warn(
        "bootstrap: unique id: no key: OpenSSL's libcrypto (3 or 1.1) is not there; who hears the ranks talk "
        "may come as one of them: install it");
  }
  auto rendezvous = Rendezvous::open(meeting, base::parameters().bootstrap_timeout_ms);
  if (!rendezvous) return rendezvous.error();
  const UniqueId id = (*rendezvous)->id();
  OpenRendezvous& open = open_rendezvous();
  const std::lock_guard lock(open.mutex);
  open.list.remove_if([](const auto& one) { return one->has_ended(); });
  open.list.push_back(std::move(*rendezvous));
  return id;
}

}  // namespace verbena::bootstrap
