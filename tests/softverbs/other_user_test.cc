#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "fixture.h"

// Another user of this host prepares files in the folder of the shared tables. Only as root, which can become
// another user; in the test's own folder.
namespace verbena::softverbs_test {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kVictim = 61234, kStranger = 61235;  // not used on this host

// A process of another user.
class UserChild : public Child {
 public:
  UserChild(uid_t user, const std::function<void(int socket)>& body)
      : Child([=](int socket) {
          ASSERT_EQ(setresgid(user, user, user), 0);
          ASSERT_EQ(setresuid(user, user, user), 0);
          prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);  // as after an exec
          body(socket);
        }) {}
};

class OtherUserTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    char name[] = "/tmp/softverbs-users-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    ASSERT_EQ(chmod(name, 0777), 0);  // not sticky: the kernel protects nothing
    setenv("SOFTVERBS_DIR", name, 1);
    unsetenv("SOFTVERBS_JOB");
    UserChild first(kVictim, [&](int socket) {
      const Node node;
      tell(socket, true);
      hear<bool>(socket);
    });
    hear<bool>(first.socket());
    for (const auto& entry : fs::directory_iterator(folder_)) name_ = entry.path();
    tell(first.socket(), true);
    first.join();
    ASSERT_FALSE(name_.empty());
    fs::remove_all(name_);
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }
  // The victim's process starts; true if it opened the device.
  static bool starts() {
    UserChild victim(kVictim, [](int socket) {
      int count = 0;
      ibv_device** devices = ibv_get_device_list(&count);
      ibv_context* context = count > 0 ? ibv_open_device(devices[0]) : nullptr;
      tell(socket, context != nullptr);
    });
    const bool is_open = hear<bool>(victim.socket());
    victim.join();
    return is_open;
  }
  // Runs `body` in a process for which these folders are empty, and nobody else's. False: that is not allowed
  // here.
  static bool in_own_mounts(const std::vector<const char*>& folders, const std::function<void()>& body) {
    Child child([&](int socket) {
      const auto mount_empty = [](const char* folder) {
        return mount("none", folder, "tmpfs", 0, nullptr) == 0;
      };
      const bool is_alone = unshare(CLONE_NEWNS) == 0 &&
                            mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                            std::all_of(folders.begin(), folders.end(), mount_empty);
      tell(socket, is_alone);
      if (is_alone) body();
    });
    const bool is_alone = hear<bool>(child.socket());
    child.join();
    return is_alone;
  }
  fs::path folder_;
  fs::path name_;  // of the victim's folder, while it has one
};

// It could be made to wait, written to, or, when its stranger cuts it off under a mapping, killed by SIGBUS.
TEST_F(OtherUserTest, AForeignFolderIsLeftAlone) {
  UserChild stranger(kStranger, [&](int socket) {
    const fs::path foreign = name_.string() + "-foreign";
    fs::create_directory(foreign);
    const std::string table = foreign / "processes";
    const int fd = open(table.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    chmod(foreign.c_str(), 0777);
    chmod(table.c_str(), 0666);
    signal(SIGIO, SIG_IGN);
    // Opening it now takes /proc/sys/fs/lease-break-time, 45 s.
    ASSERT_EQ(fcntl(fd, F_SETLEASE, F_WRLCK), 0);
    tell(socket, true);
    hear<bool>(socket);
    EXPECT_EQ(fcntl(fd, F_GETLEASE), F_WRLCK) << "it was opened";
    EXPECT_EQ(fs::file_size(table), 0u) << "it was written to";
    EXPECT_TRUE(fs::exists(table));
  });
  hear<bool>(stranger.socket());
  EXPECT_TRUE(starts());
  tell(stranger.socket(), true);
  stranger.join();
}

// It must not be mapped: a read beyond its end would be a SIGBUS.
TEST_F(OtherUserTest, AFolderThatGrowsAndShrinksStopsNoStart) {
  const int starts_wanted = count_attacks("starts beside a file that grows and shrinks", 5, 60);
  UserChild stranger(kStranger, [&](int socket) {
    const fs::path foreign = name_.string() + "-evil", table = foreign / "processes";
    const std::vector<char> words(1 << 16, '\1');
    tell(socket, true);
    for (pollfd order{socket, POLLIN, 0}; poll(&order, 1, 0) == 0;) {
      if (mkdir(foreign.c_str(), 0777) == 0) chmod(foreign.c_str(), 0777);
      const int fd = open(table.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
      fchmod(fd, 0666);
      for (int i = 0; i < 100; ++i) {
        if (pwrite(fd, words.data(), words.size(), 0) > 0) static_cast<void>(ftruncate(fd, 0));
      }
      close(fd);
    }
  });
  hear<bool>(stranger.socket());
  for (int i = 0; i < starts_wanted; ++i) EXPECT_TRUE(starts()) << i;
  tell(stranger.socket(), true);
  stranger.join();
}

TEST_F(OtherUserTest, ALinkLeadsToNobodysFile) {
  const fs::path home = folder_ / "home", file = home / "processes";
  fs::create_directory(home);
  std::ofstream(file) << "precious";
  for (const fs::path& path : {home, file}) ASSERT_EQ(chown(path.c_str(), kVictim, kVictim), 0);
  UserChild(kStranger, [&](int) { fs::create_symlink(home, name_.string() + "-link"); }).join();
  EXPECT_TRUE(starts());
  ASSERT_TRUE(fs::exists(file));
  EXPECT_EQ(fs::file_size(file), std::string("precious").size());
}

// Who takes the victim's name where everybody may write only sends it to its own place, if it has one.
TEST_F(OtherUserTest, ATakenNameDoesNotBarTheWay) {
  const fs::path private_place = fs::path("/run/user") / std::to_string(kVictim), name = name_.filename();
  const bool is_done = in_own_mounts({"/dev/shm", "/run"}, [&] {
    ASSERT_EQ(chmod("/dev/shm", 01777), 0);
    unsetenv("SOFTVERBS_DIR");
    UserChild(kStranger, [&](int) { fs::create_directory(fs::path("/dev/shm") / name); }).join();
    EXPECT_FALSE(starts()) << "it trusts a stranger's folder";
    fs::create_directories(private_place);
    ASSERT_EQ(chown(private_place.c_str(), kStranger, kStranger), 0);
    EXPECT_FALSE(starts()) << "it trusts a stranger's folder in the private one's place";
    ASSERT_EQ(chown(private_place.c_str(), kVictim, kVictim), 0);
    ASSERT_EQ(chmod(private_place.c_str(), 0700), 0);
    UserChild first(kVictim, [&](int socket) { auto [node, pair] = Connected(socket); });
    UserChild second(kVictim, [&](int socket) { auto [node, pair] = Connected(socket); });
    const auto address = hear<Address>(first.socket());
    EXPECT_TRUE(fs::exists(private_place / name));
    tell(first.socket(), hear<Address>(second.socket()));
    tell(second.socket(), address);
    for (const Child* of : {&first, &second}) hear<bool>(of->socket());
    for (const Child* of : {&first, &second}) tell(of->socket(), true);
    first.join();
    second.join();
  });
  if (!is_done) GTEST_SKIP() << "no right to mount";
}

// Its process numbers mean nothing outside of it: who sweeps sees whether somebody is there all the same.
TEST_F(OtherUserTest, AKilledContainersFolderGoesAway) {
  const bool is_done = in_own_mounts({}, [&] {
    Child container([&](int socket) {
      ASSERT_EQ(unshare(CLONE_NEWPID | CLONE_NEWNS), 0);
      Child inside([&](int peer) {
        ASSERT_EQ(mount("proc", "/proc", "proc", 0, nullptr), 0);
        const Node node;
        tell(peer, true);
        pause();
      });
      hear<bool>(inside.socket());
      tell(socket, true);
      hear<bool>(socket);
      inside.kill();
      tell(socket, true);
    });
    hear<bool>(container.socket());
    const fs::path its_folder = fs::directory_iterator(folder_)->path();
    Child([](int) { const Node node; }).join();
    EXPECT_TRUE(fs::exists(its_folder)) << "somebody is there";
    tell(container.socket(), true);
    hear<bool>(container.socket());
    container.join();
    Child([](int) { const Node node; }).join();
    EXPECT_FALSE(fs::exists(its_folder));
  });
  if (!is_done) GTEST_SKIP() << "no right to mount";
}

}  // namespace
}  // namespace verbena::softverbs_test
