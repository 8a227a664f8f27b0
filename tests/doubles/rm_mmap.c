// SPDX-License-Identifier: MIT
/* A preload: mmap of the simulated driver's files, for a program without the simulated libcuda. */
#include "cuda_sim.h"

bool rm_mode(void)
{
	return true;
}
