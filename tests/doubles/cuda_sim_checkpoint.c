// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: a checkpoint, and what comes after it. Test code.
 *
 * As with cuda-checkpoint on 580.159.04 all that the kernel has ends, and comes again with the same addresses and
 * handles, below another client. In the real one a thread of libcuda's does it; here the caller does. Nobody may
 * call between the two.
 */
#include "cuda_sim.h"

static bool away;

static int checkpoint(void)
{
	int result;

	if (!rm_mode() || objects_foreign() || away)
		return CU_NOT_SUPPORTED;
	flush();
	away = true;
	rm_views_end();
	result = uvm_end_all();
	if (result)
		return result;
	objects_end();
	return rm_free(rm.client, rm.client);
}

SIM_CALL(cuda_sim_checkpoint, (void), checkpoint())

static int restore(void)
{
	if (!away)
		return CU_NOT_SUPPORTED;
	away = false;
	return rm_client_again() ?: objects_again() ?: uvm_again() ?: rm_views_again();
}

SIM_CALL(cuda_sim_restore, (void), restore())
