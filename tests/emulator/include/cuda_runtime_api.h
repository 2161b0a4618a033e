// What kernels/cuda asks of it is in emulator.h.
#pragma once
