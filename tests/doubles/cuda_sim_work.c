// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: a kernel that runs until it is told to end. Test code.
 *
 * It is a thread that writes each line of a buffer, again and again, as a counter, a queue
 * or a heartbeat is written. On an H200 (580.159) cuMemFree and cuModuleLoadData waited
 * for such a kernel, on whatever stream it ran; no other call did that this library knows,
 * but cuCtxSynchronize and the end of the context.
 */
#include "cuda_sim.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define LINE 64u

static struct {
	bool runs;
	atomic_bool stop;
	pthread_t thread;
	struct mem *mem;
	const struct ctx *ctx;	/* whose end is the kernel's */
	uint8_t *at;
	uint64_t size;
} kernel;

static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;

/* All words of a line differ from line to line and from time to time. */
static void *run(void *arg)
{
	uint64_t n = 0;

	while (!atomic_load(&kernel.stop)) {
		for (uint64_t at = 0; at + LINE <= kernel.size; at += LINE)
			for (uint64_t *w = (uint64_t *)(kernel.at + at), i = 0; i < LINE / sizeof(*w); i++)
				__atomic_store_n(&w[i], ++n, __ATOMIC_RELAXED);
		sched_yield();
	}
	return arg;
}

static int start(const struct ctx *ctx, uint64_t addr, uint64_t size)
{
	const struct buffer *b = buffer_find(addr);

	if (!b || kernel.runs || addr % LINE || size > b->addr + b->size - addr)
		return CU_INVALID_VALUE;
	kernel.mem = mem_get(b->mem);
	kernel.ctx = ctx;
	kernel.at = b->mem->view + b->offset + (addr - b->addr);
	kernel.size = size;
	atomic_store(&kernel.stop, false);
	if (pthread_create(&kernel.thread, NULL, run, NULL)) {
		mem_put(kernel.mem);
		return CU_OUT_OF_MEMORY;
	}
	kernel.runs = true;
	return CU_OK;
}

/* Launches the kernel. There is one at a time. */
SIM_CALL_CTX(cuda_sim_kernel_start, (uint64_t addr, uint64_t size),
	     start(current_ctx(), addr, size))

static int end(void)
{
	if (!kernel.runs)
		return CU_OK;
	atomic_store(&kernel.stop, true);
	pthread_join(kernel.thread, NULL);
	mem_put(kernel.mem);
	kernel.runs = false;
	pthread_cond_broadcast(&ended);
	return CU_OK;
}

SIM_CALL(cuda_sim_kernel_end, (void), end())

/* The context ends. */
void kernel_forget(const struct ctx *ctx)
{
	if (kernel.ctx == ctx)
		end();
}

/* Waits for the kernel. Other calls go on meanwhile. */
void kernel_wait(void)
{
	while (kernel.runs)
		wait_unlocked(&ended);
}

/* No modules are modelled, only that it waits. So no handle is one. */
SIM_CALL_CTX(cuModuleLoadData, (void **module, const void *image),
	     ((void)image, kernel_wait(), module ? CU_NOT_SUPPORTED : CU_INVALID_VALUE))

static int no_global(const void *out, const void *size, const void *of, const char *global)
{
	return (out || size) && of && global ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
}

SIM_CALL_CTX(cuModuleGetGlobal_v2,
		    (uint64_t *addr, size_t *size, void *module, const char *global),
		    no_global(addr, size, module, global))
SIM_CALL_CTX(cuLibraryGetGlobal, (uint64_t *addr, size_t *size, void *library, const char *global),
		    no_global(addr, size, library, global))
