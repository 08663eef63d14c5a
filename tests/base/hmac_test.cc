// HMAC-SHA-256 against the cases of RFC 4231.
#include "base/hmac.h"

#include <gtest/gtest.h>

#include <string>

namespace verbena::base {
namespace {

Bytes as_bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string show(const Mac& mac) {
  std::string text;
  for (const uint8_t byte : mac) {
    for (const int nibble : {byte >> 4, byte & 15}) text += "0123456789abcdef"[nibble];
  }
  return text;
}

HmacKey make_key(const std::string& secret) {
  auto key = HmacKey::create(as_bytes(secret));
  EXPECT_TRUE(key);
  return std::move(*key);
}

std::string compute(const std::string& secret, const std::string& text) {
  return show(*make_key(secret).compute({as_bytes(text)}));
}

TEST(HmacTest, PublishedCases) {
  EXPECT_EQ(compute(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(compute("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(compute(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(HmacTest, PartsAreOneText) {
  const HmacKey key = make_key("a key that is long enough");
  EXPECT_EQ(*key.compute({as_bytes("ab"), as_bytes(""), as_bytes("c")}), *key.compute({as_bytes("abc")}));
  EXPECT_NE(*key.compute({as_bytes("abc")}), *key.compute({as_bytes("abd")}));
}

TEST(HmacTest, ADerivedKeyIsTheMac) {
  const HmacKey key = make_key("a key that is long enough");
  const Mac mac = *key.compute({as_bytes("purpose")});
  const auto derived = key.derive({as_bytes("purpose")});
  ASSERT_TRUE(derived);
  EXPECT_EQ(show(*derived->compute({as_bytes("text")})), compute({mac.begin(), mac.end()}, "text"));
}

TEST(HmacTest, MacsAreComparedWhole) {
  const Mac mac = *make_key("a key that is long enough").compute({});
  for (size_t i = 0; i < mac.size(); ++i) {
    Mac other = mac;
    other[i] ^= 1;
    EXPECT_FALSE(is_same_mac(mac, other)) << i;
  }
  EXPECT_TRUE(is_same_mac(mac, Mac(mac)));
  EXPECT_FALSE(is_same_mac(mac, Bytes(mac).first(31)));
}

TEST(HmacTest, WipedMemoryIsZero) {
  std::string secret = "a secret that was";
  wipe({reinterpret_cast<uint8_t*>(secret.data()), secret.size()});
  EXPECT_EQ(secret, std::string(secret.size(), '\0'));
}

}  // namespace
}  // namespace verbena::base
