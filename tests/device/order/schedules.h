// Each test runs under several schedules of the emulated GPU: 0 all in turn, the others drawn.
#pragma once

#include <gtest/gtest.h>

#include "device/emulator/world.h"
#include "verbena/device/machine.cuh"

namespace verbena::device {

using emulator::require;
using emulator::World;

class EverySchedule : public testing::TestWithParam<uint64_t> {};

inline const auto kSchedules = testing::Range<uint64_t>(0, 12);

}  // namespace verbena::device
