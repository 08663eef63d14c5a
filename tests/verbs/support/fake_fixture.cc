#include "support/fake_fixture.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "base/parameters.h"

namespace verbena::verbs {

fake::Hooks& fake_hooks(const char* library_path) {
  void* handle = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  return *reinterpret_cast<fake::GetHooks>(dlsym(handle, fake::kGetHooks))();
}

fake::Gid make_ipv4_gid(uint8_t last_byte, uint32_t type) {
  return {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last_byte}, type};
}

fake::Gid make_global_gid(uint8_t last_byte) {
  return {{0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last_byte}, IBV_GID_TYPE_ROCE_V2};
}

fake::Gid make_link_local_gid(uint32_t type) {
  return {{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}, type};
}

fake::Device make_card(const std::string& name, size_t ports) {
  fake::Device card;
  card.name = name;
  card.ports.resize(ports);
  for (fake::Port& port : card.ports) port.gids = {make_link_local_gid(), make_ipv4_gid(1)};
  return card;
}

FakeTest::FakeTest() : hooks_(fake_hooks(FAKE_LIBRARY)) {
  // These devices carry nothing out.
  setenv("VERBENA_SELF_TEST", "0", 1);
  EXPECT_TRUE(base::load_parameters());
  script() = {};
  EXPECT_EQ(record().live_objects, 0) << "an earlier test left something open";
  std::destroy_at(&record());
  std::construct_at(&record());
  settings_.library_choice = FAKE_LIBRARY;
  settings_.address.sysfs_root = "/nonexistent";
  script().devices = {make_card("mlx5_0")};
}

FakeTest::~FakeTest() {
  EXPECT_EQ(record().misuses, 0);
  script() = {};
}

Devices FakeTest::discover() {
  auto found = try_discover();
  if (!found) {
    ADD_FAILURE() << "no device";
    return {};
  }
  return std::move(*found);
}

FakeDeviceTest::FakeDeviceTest() : devices_(discover()) {}

}  // namespace verbena::verbs
