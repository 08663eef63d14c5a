// Stands in for NCCL's header of this name.
#pragma once
#define DIVUP(x, y) (((x) + (y)-1) / (y))
