#include "softverbs/shared/config.h"

#include "fixture.h"

// What the settings say, and what is said about those that are wrong.
namespace verbena::softverbs_test {
namespace {

using softverbs::Config;
using softverbs::get_config;

struct Seen {
  int64_t number;
  char said[512];
};

// In a separate process, because the settings are read once.
Seen read_with(const std::vector<std::pair<const char*, const char*>>& variables,
               int64_t (*read)(const Config&)) {
  Child child([&](int socket) {
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    ::testing::internal::CaptureStderr();
    Seen seen{read(get_config()), {}};
    strncpy(seen.said, ::testing::internal::GetCapturedStderr().c_str(), sizeof(seen.said) - 1);
    send_bytes(socket, &seen, sizeof(seen));
  });
  Seen seen{};
  receive_bytes(child.socket(), &seen, sizeof(seen));
  return seen;
}

TEST(ConfigTest, ValuesHaveTheGrammarOfTheTable) {
  const auto read_bytes = [](const Config& config) { return config.inline_copy_bytes; };
  EXPECT_EQ(read_with({{"SOFTVERBS_INLINE_COPY", "262144"}}, read_bytes).number, 262144);
  EXPECT_EQ(read_with({{"SOFTVERBS_INLINE_COPY", "0x1000"}}, read_bytes).number, 4096);
  EXPECT_EQ(read_with({{"SOFTVERBS_INLINE_COPY", "1m"}}, read_bytes).number, 1 << 20);
  EXPECT_EQ(read_with({{"SOFTVERBS_GPU", "off"}}, [](const Config& config) -> int64_t { return config.gpu; })
                .number,
            0);
  EXPECT_EQ(read_with({{"VERBENA_ENCRYPTION", "1"}},
                      [](const Config& config) -> int64_t { return config.encryption; })
                .number,
            1);
  const auto has_key = [](const Config& config) -> int64_t { return config.key_file == "/key"; };
  EXPECT_EQ(read_with({{"VERBENA_JOB_KEY_FILE", "/key"}}, has_key).number, 1);
  EXPECT_EQ(read_with({{"VERBENA_JOB_KEY_FILE", "/other"}, {"SOFTVERBS_KEY_FILE", "/key"}}, has_key).number,
            1);
}

TEST(ConfigTest, AWrongValueIsALineAndTheDefault) {
  const auto read_port = [](const Config& config) { return config.port; };
  for (const char* wrong : {"80", "1e4", "65535"}) {
    const Seen seen = read_with({{"SOFTVERBS_PORT", wrong}}, read_port);
    EXPECT_EQ(seen.number, 23552);
    EXPECT_NE(std::string(seen.said).find("softverbs: SOFTVERBS_PORT: "), std::string::npos) << seen.said;
    EXPECT_NE(std::string(seen.said).find("range 1024 to 64511), so softverbs uses 23552"), std::string::npos)
        << seen.said;
  }
  EXPECT_STREQ(read_with({{"SOFTVERBS_PORT", "30000"}}, read_port).said, "");
}

TEST(ConfigTest, AMisspeltNameIsALine) {
  const auto nothing = [](const Config&) { return int64_t{0}; };
  EXPECT_STREQ(read_with({{"SOFTVERBS_DEVICE", "2"}}, nothing).said,
               "softverbs: SOFTVERBS_DEVICE is unknown and is ignored; did you mean SOFTVERBS_DEVICES?\n");
  EXPECT_STREQ(read_with({{"VERBENA_ENCRYPTIN", "1"}}, nothing).said,
               "softverbs: VERBENA_ENCRYPTIN is unknown and is ignored; did you mean VERBENA_ENCRYPTION?\n");
}

}  // namespace
}  // namespace verbena::softverbs_test
