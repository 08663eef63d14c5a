// Which files may hold a job's key.
#include "base/job_key.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/parameters.h"
#include "tests/base/log_capture.h"
#include "tests/base/scoped_environment.h"
#include "tests/base/scratch_path.h"

namespace verbena::base {
namespace {

class JobKeyTest : public testing::Test {
 protected:
  JobKeyTest() { environment_.set("VERBENA_JOB_KEY_FILE", path_.get()); }
  ~JobKeyTest() override {
    environment_.set("VERBENA_JOB_KEY_FILE", "");
    EXPECT_TRUE(load_parameters());
    EXPECT_TRUE(load_job_key());
  }

  void write(const std::string& content, mode_t mode = 0600) {
    std::ofstream(path_.get(), std::ios::binary) << content;
    chmod(path_.get().c_str(), mode);
  }
  Status load() {
    EXPECT_TRUE(load_parameters());
    return load_job_key().status();
  }
  void expect_refused(const std::string& why) {
    const LogCapture log;
    EXPECT_EQ(load(), Status::kInvalidUsage);
    ASSERT_EQ(log.warnings().size(), 1U);
    EXPECT_NE(log.warnings()[0].find(path_.get() + " (VERBENA_JOB_KEY_FILE"), std::string::npos)
        << log.warnings()[0];
    EXPECT_NE(log.warnings()[0].find(why), std::string::npos) << log.warnings()[0];
    EXPECT_FALSE(job_key()) << "it would go on without a key";
  }
  Mac sign() {
    const auto key = job_key();
    EXPECT_TRUE(key && *key != nullptr);
    return *(*key)->compute({});
  }

  tests::ScratchPath path_{"job_key"};
  ScopedEnvironment environment_;
};

TEST_F(JobKeyTest, NoneIsNone) {
  environment_.set("VERBENA_JOB_KEY_FILE", "");
  EXPECT_EQ(load(), Status::kOk);
  const auto key = job_key();
  EXPECT_TRUE(key && *key == nullptr);
}

TEST_F(JobKeyTest, EncryptionNeedsOne) {
  environment_.set("VERBENA_JOB_KEY_FILE", "");
  environment_.set("VERBENA_ENCRYPTION", "1");
  const LogCapture log;
  EXPECT_EQ(load(), Status::kInvalidUsage);
  ASSERT_EQ(log.warnings().size(), 1U);
  EXPECT_NE(log.warnings()[0].find("VERBENA_ENCRYPTION=1 needs a job key"), std::string::npos)
      << log.warnings()[0];
  Socket socket;
  EXPECT_FALSE(encrypt_if_asked(socket, ConnectionEnd::kSender)) << "it would go on without";
  environment_.set("VERBENA_ENCRYPTION", "0");
}

TEST_F(JobKeyTest, ANewlineAtTheEndDoesNotCount) {
  write("0123456789abcdef");
  ASSERT_EQ(load(), Status::kOk);
  const Mac bare = sign();
  write("0123456789abcdef\n", 0400);
  ASSERT_EQ(load(), Status::kOk);
  EXPECT_EQ(sign(), bare);
  write("0123456789abcdef\n\n");
  ASSERT_EQ(load(), Status::kOk);
  EXPECT_NE(sign(), bare) << "only one is";
}

TEST_F(JobKeyTest, AnotherUsersFileIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  write("0123456789abcdef");
  ASSERT_EQ(chown(path_.get().c_str(), 65534, 65534), 0);
  expect_refused("belongs to user 65534");
}

TEST_F(JobKeyTest, Lengths) {
  write(std::string(15, 'x') + "\n");
  expect_refused("too few bytes. A key must have 16 to 4096 bytes");
  write(std::string(4096, 'x') + "\n");
  EXPECT_EQ(load(), Status::kOk);
  write(std::string(4097, 'x'));
  expect_refused("too many bytes");
  write(std::string(1 << 20, 'x'));
  expect_refused("too many bytes");
  write("");
  expect_refused("too few bytes");
}

TEST_F(JobKeyTest, NobodyElseMayUseTheFile) {
  for (const mode_t mode : {0604, 0640, 0620, 0610, 0602, 0601}) {
    write("0123456789abcdef", mode);
    char text[16];
    std::snprintf(text, sizeof(text), "mode %04o", mode);
    expect_refused(text);
  }
}

TEST_F(JobKeyTest, OnlyAPlainFileIsAKey) {
  expect_refused("cannot be opened");
  ASSERT_EQ(mkfifo(path_.get().c_str(), 0600), 0);
  expect_refused("not a regular file");  // and does not wait for a writer
  ASSERT_EQ(remove(path_.get().c_str()), 0);
  ASSERT_EQ(mkdir(path_.get().c_str(), 0700), 0);
  expect_refused("not a regular file");
}

TEST_F(JobKeyTest, AFileThatIsGoneTakesTheKeyWithIt) {
  write("0123456789abcdef");
  ASSERT_EQ(load(), Status::kOk);
  ASSERT_EQ(remove(path_.get().c_str()), 0);
  expect_refused("cannot be opened");
}

}  // namespace
}  // namespace verbena::base
