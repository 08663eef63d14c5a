// Kernels that the library launches, on an emulated GPU: the stand-in for CUDA's driver (tests/softverbs)
// calls here.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "device/emulator/world.h"
#include "device/symm/stream_kernel.cuh"

namespace verbena::symm {

template <typename... Arguments>
void call_driver(const char* name, Arguments... arguments) {
  void* const function = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
  if (function == nullptr || reinterpret_cast<int (*)(Arguments...)>(function)(arguments...) != 0) {
    std::fprintf(stderr, "the stand-in's %s failed\n", name);
    std::abort();
  }
}

// By name, blocks and threads what a launch runs; its parameters are read at once.
inline std::function<void()> capture_kernel(const std::string& name, uint32_t blocks, uint32_t threads,
                                            void** parameters) {
  if (name != "verbena_stream_call") std::abort();
  const auto* const context = *static_cast<const SymmContext**>(parameters[0]);
  StreamCall call;
  std::memcpy(&call, parameters[1], sizeof(call));
  return [=] {
    static std::atomic<uint64_t> seed{0};
    emulator::World world(seed++, {.steps = UINT64_MAX, .outside_patience_s = 60});
    world.add_grid(0, blocks, threads, [=] { run_stream_call(*context, call); });
    const std::string failure = world.run();
    if (failure.empty()) return;
    std::fprintf(stderr, "%s\n", failure.c_str());
    std::abort();
  };
}

// Once, before memory is allocated: GPU memory is open to the emulator, and launches run there.
inline void run_kernels_by_emulator() {
  struct Launcher {
    void* (*capture)(const char*, unsigned, unsigned, void**);
    void (*run)(void*);
  };
  static const Launcher launcher = {
      [](const char* name, unsigned blocks, unsigned threads, void** parameters) -> void* {
        return new std::function(capture_kernel(name, blocks, threads, parameters));
      },
      [](void* captured) {
        auto* const kernel = static_cast<std::function<void()>*>(captured);
        (*kernel)();
        delete kernel;
      }};
  call_driver("fake_open_memory");
  call_driver("fake_set_launcher", &launcher);
}

}  // namespace verbena::symm
