// NCCL's own IB transport, without a GPU: messages in host memory from this process to itself, every byte
// compared. The transport is no exported symbol of libnccl.so.2, but NVIDIA's library for CUDA has its
// symbol table.
//
//   nccl_ib_check LIBRARY MESSAGES
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "nccl/abi_tables.h"

namespace {

using Net = verbena::abi::ncclNet_v11_t;

constexpr int kWindow = 8;
constexpr size_t kMaxBytes = 300'000;
constexpr auto kPatience = std::chrono::seconds(100);

template <typename T>
std::vector<T> read_table(std::ifstream& file, const Elf64_Shdr& section) {
  std::vector<T> table(section.sh_size / sizeof(T));
  file.seekg(static_cast<std::streamoff>(section.sh_offset));
  file.read(reinterpret_cast<char*>(table.data()), static_cast<std::streamsize>(table.size() * sizeof(T)));
  return table;
}

uintptr_t find_symbol(const char* path, const std::string& name) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header{};
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  Elf64_Shdr place{};
  place.sh_offset = header.e_shoff;
  place.sh_size = size_t{header.e_shnum} * sizeof(Elf64_Shdr);
  const auto sections = read_table<Elf64_Shdr>(file, place);
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB) continue;
    const auto names = read_table<char>(file, sections.at(section.sh_link));
    for (const Elf64_Sym& symbol : read_table<Elf64_Sym>(file, section))
      if (name == &names.at(symbol.st_name)) return symbol.st_value;
  }
  throw std::runtime_error("no symbol " + name);
}

void check(verbena::abi::Result result, const char* what) {
  if (static_cast<int>(result) != 0)
    throw std::runtime_error(std::string(what) + ": result " + std::to_string(static_cast<int>(result)));
}

void print(verbena::abi::LogLevel level, unsigned long, const char*, int, const char* format, ...) {
  if (static_cast<int>(level) > 2) return;
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
}

std::byte pattern(uint64_t message, size_t i) {
  return static_cast<std::byte>((message * 0x9e3779b97f4a7c15 + i * 0x2545f4914f6cdd1d) >> 32);
}

struct Slot {
  std::vector<std::byte> bytes = std::vector<std::byte>(kMaxBytes);
  void* region = nullptr;
  void* request = nullptr;
  uint64_t message = 0;
};

}  // namespace

int main(int, char** arguments) try {
  const uint64_t messages = std::strtoull(arguments[2], nullptr, 10);
  void* const library = dlopen(arguments[1], RTLD_NOW);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const link_map* map = nullptr;
  dlinfo(library, RTLD_DI_LINKMAP, &map);
  const auto& net = *reinterpret_cast<const Net*>(map->l_addr + find_symbol(arguments[1], "ncclNetIb"));
  void* context = nullptr;
  verbena::abi::NetCommConfig config{};
  config.traffic_class = -1;
  check(net.init(&context, 1, &config, &print, nullptr), "init");
  int devices = 0;
  check(net.devices(&devices), "devices");
  if (devices == 0) throw std::runtime_error("it has found no device");
  alignas(8) char handle[128] = {};
  void *listening = nullptr, *sending = nullptr, *receiving = nullptr;
  check(net.listen(context, 0, handle, &listening), "listen");
  const auto end = std::chrono::steady_clock::now() + kPatience;
  const auto check_time = [&] {
    if (std::chrono::steady_clock::now() > end) throw std::runtime_error("no end in time");
  };
  for (; sending == nullptr || receiving == nullptr; check_time()) {
    verbena::abi::NetDeviceHandle* device_handle = nullptr;
    if (sending == nullptr) check(net.connect(context, 0, handle, &sending, &device_handle), "connect");
    if (receiving == nullptr) check(net.accept(listening, &receiving, &device_handle), "accept");
  }
  std::vector<Slot> sent(kWindow), received(kWindow);
  for (int i = 0; i < kWindow; ++i) {
    check(net.reg_mr(sending, sent[i].bytes.data(), kMaxBytes, 1, &sent[i].region), "regMr");
    check(net.reg_mr(receiving, received[i].bytes.data(), kMaxBytes, 1, &received[i].region), "regMr");
  }
  std::mt19937_64 random(1);
  std::vector<size_t> lengths;
  for (uint64_t m = 0; m < messages; ++m)
    lengths.push_back(1 + random() % (random() % 4 == 0 ? kMaxBytes : 9000));
  uint64_t sends = 0, receives = 0, sends_done = 0, receives_done = 0, wrong = 0;
  for (; receives_done != messages || sends_done != messages; check_time()) {
    if (Slot& slot = received[receives % kWindow]; receives != messages && slot.request == nullptr) {
      void* data = slot.bytes.data();
      size_t size = kMaxBytes;
      int tag = 0;
      void* phandle = nullptr;
      std::memset(data, 0, kMaxBytes);
      check(net.irecv(receiving, 1, &data, &size, &tag, &slot.region, &phandle, &slot.request), "irecv");
      if (slot.request != nullptr) slot.message = receives++;
    }
    if (Slot& slot = sent[sends % kWindow]; sends != messages && slot.request == nullptr) {
      for (size_t i = 0; i < lengths[sends]; ++i) slot.bytes[i] = pattern(sends, i);
      check(net.isend(sending, slot.bytes.data(), lengths[sends], 0, slot.region, nullptr, &slot.request),
            "isend");
      if (slot.request != nullptr) slot.message = sends++;
    }
    for (auto* slots : {&sent, &received})
      for (Slot& slot : *slots) {
        if (slot.request == nullptr) continue;
        int done = 0, size = 0;
        check(net.test(slot.request, &done, &size), "test");
        if (done == 0) continue;
        slot.request = nullptr;
        if (slots == &sent) {
          ++sends_done;
          continue;
        }
        ++receives_done;
        bool is_right = static_cast<size_t>(size) == lengths[slot.message];
        for (size_t i = 0; i < lengths[slot.message]; ++i)
          is_right &= slot.bytes[i] == pattern(slot.message, i);
        wrong += is_right ? 0 : 1;
      }
  }
  for (int i = 0; i < kWindow; ++i) {
    check(net.dereg_mr(sending, sent[i].region), "deregMr");
    check(net.dereg_mr(receiving, received[i].region), "deregMr");
  }
  check(net.close_send(sending), "closeSend");
  check(net.close_recv(receiving), "closeRecv");
  check(net.close_listen(listening), "closeListen");
  std::printf("%llu messages, %llu wrong\n", static_cast<unsigned long long>(messages),
              static_cast<unsigned long long>(wrong));
  return wrong == 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "nccl_ib_check: %s\n", error.what());
  return 1;
}
