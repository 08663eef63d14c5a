#include "base/socket_address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

namespace verbena::base {
namespace {

SocketAddress parse(const char* text, uint16_t port, uint32_t scope_id = 0) {
  SocketAddress address{.port = port, .scope_id = scope_id};
  if (inet_pton(AF_INET, text, address.bytes) == 1) {
    address.family = IpFamily::kV4;
  } else if (inet_pton(AF_INET6, text, address.bytes) == 1) {
    address.family = IpFamily::kV6;
  }
  return address;
}

TEST(SocketAddress, GoesToTheSystemAndBack) {
  for (const SocketAddress& address :
       {parse("10.1.2.3", 4711), parse("2001:db8::7", 65535), parse("fe80::1", 1, 2)}) {
    const std::optional<SystemAddress> system = to_system(address);
    ASSERT_TRUE(system);
    EXPECT_EQ(from_system(reinterpret_cast<const sockaddr*>(&system->storage)), address);
  }
}

TEST(SocketAddress, UsesTheSystemsByteOrder) {
  const std::optional<SystemAddress> system = to_system(parse("10.1.2.3", 4711));
  ASSERT_TRUE(system);
  const auto* target = reinterpret_cast<const sockaddr_in*>(&system->storage);
  EXPECT_EQ(ntohs(target->sin_port), 4711);
  EXPECT_EQ(ntohl(target->sin_addr.s_addr), 0x0a010203u);
  EXPECT_EQ(system->length_bytes, sizeof(sockaddr_in));
}

TEST(SocketAddress, RefusesForeignFamilies) {
  SocketAddress address = parse("10.1.2.3", 1);
  address.family = static_cast<IpFamily>(99);
  EXPECT_FALSE(to_system(address));
  EXPECT_FALSE(to_system(SocketAddress()));
  sockaddr unix_address{};
  unix_address.sa_family = AF_UNIX;
  EXPECT_FALSE(from_system(&unix_address));
  EXPECT_FALSE(from_system(nullptr));
}

TEST(SocketAddress, KnowsLinkLocalAddresses) {
  EXPECT_TRUE(is_link_local(parse("fe80::1", 0)));
  EXPECT_TRUE(is_link_local(parse("febf::1", 0)));
  EXPECT_TRUE(is_link_local(parse("169.254.1.1", 0)));
  EXPECT_FALSE(is_link_local(parse("fec0::1", 0)));
  EXPECT_FALSE(is_link_local(parse("169.253.1.1", 0)));
}

TEST(SocketAddress, IsReadable) {
  EXPECT_EQ(describe(parse("10.1.2.3", 4711)), "10.1.2.3:4711");
  EXPECT_EQ(describe(parse("2001:db8::7", 80)), "[2001:db8::7]:80");
  EXPECT_EQ(describe(parse("fe80::1", 80, 3)), "[fe80::1%3]:80");
  EXPECT_EQ(describe(SocketAddress()), "no address");
}

}  // namespace
}  // namespace verbena::base
