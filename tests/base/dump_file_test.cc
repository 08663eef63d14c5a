#include "base/dump_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "tests/base/log_capture.h"
#include "tests/base/scratch_path.h"

namespace verbena::base {
namespace {

TEST(DumpFile, PathsNameHostAndProcess) {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  const std::string process = std::to_string(getpid());
  EXPECT_EQ(expand_path("/a/%h/b.%p"), std::string("/a/") + host + "/b." + process);
  EXPECT_EQ(expand_path("100%%p %x %"), "100%p %x %");
}

TEST(DumpFile, TextsAreAdded) {
  const tests::ScratchPath path("dump");
  EXPECT_TRUE(append_to_file(path.get(), "one\n"));
  EXPECT_TRUE(append_to_file(path.get(), "two\n"));
  EXPECT_EQ(path.read(), "one\ntwo\n");
  struct stat entry {};
  stat(path.get().c_str(), &entry);
  EXPECT_EQ(entry.st_mode & 0777, 0600U);
}

TEST(DumpFile, APipeThatNobodyReadsIsNotWaitedFor) {
  const LogCapture log;
  const tests::ScratchPath path("pipe");
  ASSERT_EQ(mkfifo(path.get().c_str(), 0600), 0);
  EXPECT_EQ(append_to_file(path.get(), "one\n").status(), Status::kSystem);
  EXPECT_THAT(log.warnings(), testing::ElementsAre(testing::HasSubstr("VERBENA_DUMP")));
}

// In a folder that other users may write to, files may exist at our name.
TEST(DumpFile, NothingIsAppendedToAPreparedFile) {
  const LogCapture log;
  const tests::ScratchPath folder("append");
  std::filesystem::create_directory(folder.get());
  const std::string own = folder.get() + "/own", other = folder.get() + "/other";
  std::ofstream(own) << "ours";
  std::filesystem::create_symlink(own, other);
  EXPECT_EQ(append_to_file(other, "one\n").status(), Status::kSystem);
  std::filesystem::remove(other);
  std::filesystem::create_hard_link(own, other);
  EXPECT_EQ(append_to_file(other, "one\n").status(), Status::kSystem);
  std::filesystem::remove(other);
  for (const mode_t writable : {0620, 0602}) {
    ASSERT_EQ(chmod(own.c_str(), writable), 0);
    EXPECT_EQ(append_to_file(own, "one\n").status(), Status::kSystem);
  }
  ASSERT_EQ(chmod(own.c_str(), 0600), 0);
  if (geteuid() == 0) {
    ASSERT_EQ(chown(own.c_str(), 65534, 65534), 0);
    EXPECT_EQ(append_to_file(own, "one\n").status(), Status::kSystem);
  }
  EXPECT_EQ(tests::read_file(own), "ours");
  EXPECT_THAT(log.warnings(), testing::Each(testing::HasSubstr("VERBENA_DUMP")));
}

TEST(DumpFile, AWholeFileIsReplaced) {
  const tests::ScratchPath folder("replaced");
  std::filesystem::create_directory(folder.get());
  const std::string path = folder.get() + "/file";
  EXPECT_EQ(replace_file(path, "a long text\n", 0600), 0);
  std::ifstream reader(path);  // goes on reading what it has opened
  EXPECT_EQ(replace_file(path, "two\n", 0600), 0);
  std::string line;
  std::getline(reader, line);
  EXPECT_EQ(line, "a long text");
  EXPECT_EQ(tests::read_file(path), "two\n");
  const auto entries = std::filesystem::directory_iterator(folder.get());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << "nothing else is left";
}

// In a folder that other users may write to, files may exist at the name of our temporary file.
TEST(DumpFile, AFileThatSomebodyPreparedReceivesNothing) {
  const tests::ScratchPath folder("prepared");
  std::filesystem::create_directory(folder.get());
  const std::string path = folder.get() + "/file", process = std::to_string(getpid());
  const std::string prepared = path + "." + process + ".tmp";
  std::ofstream(prepared).flush();
  ASSERT_EQ(chmod(prepared.c_str(), 0666), 0);
  EXPECT_EQ(replace_file(path, "for our eyes\n", 0600), 0);
  EXPECT_EQ(tests::read_file(path), "for our eyes\n");
  EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms{0600});
  ASSERT_TRUE(std::filesystem::exists(prepared)) << "it was made the file";
  EXPECT_EQ(tests::read_file(prepared), "");
}

TEST(DumpFile, OnlyARegularFileIsReplaced) {
  const tests::ScratchPath path("pipe_to_replace");
  ASSERT_EQ(mkfifo(path.get().c_str(), 0600), 0);
  EXPECT_EQ(replace_file(path.get(), "one\n", 0600), ENOTSUP);
  EXPECT_TRUE(std::filesystem::is_fifo(path.get()));
  EXPECT_EQ(replace_file("/nowhere/at/all", "one\n", 0600), ENOENT);
}

}  // namespace
}  // namespace verbena::base
