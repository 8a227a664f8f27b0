// SPDX-License-Identifier: MIT
/*
 * flag - a flag between the CPU and the GPU. The CPU writes data and then a flag to GPU
 * memory; the GPU, which polls the flag, reads the data and answers.
 *
 *	1. The CPU copies the data. gdr_copy_to_mapping ends with a store fence.
 *	2. The CPU copies the flag: the GPU never sees it before the data.
 *	3. The GPU reads the flag with acquire until it is set, then the data.
 *	4. The GPU writes the answer, and then its flag with release.
 *	5. The CPU copies the GPU's flag until it is set, then the answer. The loads of
 *	   gdr_copy_from_mapping are done when it returns.
 *
 * Where the driver runs no kernels (the simulated one) its copies play the GPU.
 */
#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include "kernel.h"

enum { FLAG = 0, DATA = 64, GPU_FLAG = 128, ANSWER = 192, SIZE = 256 };	/* bytes from the start */
enum { GIVE_UP_S = 10 };

static const char ptx[] =
	".address_size 64\n"
	".visible .entry answer(.param .u64 pbase, .param .u64 plimit)\n"
	"{\n"
	"	.reg .pred %p<3>;\n"
	"	.reg .b32 %r<5>;\n"
	"	.reg .b64 %rd<6>;\n"
	"	ld.param.u64 %rd1, [pbase];\n"
	"	ld.param.u64 %rd2, [plimit];\n"
	"	cvta.to.global.u64 %rd1, %rd1;\n"
	"	mov.u64 %rd3, %clock64;\n"
	"SPIN:\n"
	"	ld.acquire.sys.global.u32 %r1, [%rd1];\n"
	"	setp.ne.u32 %p1, %r1, 0;\n"
	"	@%p1 bra SEEN;\n"
	"	mov.u64 %rd4, %clock64;\n"
	"	sub.u64 %rd5, %rd4, %rd3;\n"
	"	setp.lt.u64 %p2, %rd5, %rd2;\n"
	"	@%p2 bra SPIN;\n"
	"	ret;\n"
	"SEEN:\n"
	"	ld.global.u32 %r2, [%rd1+64];\n"
	"	add.u32 %r3, %r2, 1;\n"
	"	st.global.u32 [%rd1+192], %r3;\n"
	"	mov.u32 %r4, 1;\n"
	"	st.release.sys.global.u32 [%rd1+128], %r4;\n"
	"	ret;\n"
	"}\n";

/* The GPU's steps, 3 and 4, by the driver's copies. */
struct player {
	CUcontext ctx;
	CUdeviceptr dev;
};

static void *play(void *arg)
{
	const struct player *p = arg;
	uint32_t flag = 0, data, one = 1;

	cu(cuCtxSetCurrent(p->ctx), "cuCtxSetCurrent");
	while (!flag)
		cu(cuMemcpyDtoH(&flag, p->dev + FLAG, sizeof(flag)), "cuMemcpyDtoH");
	cu(cuMemcpyDtoH(&data, p->dev + DATA, sizeof(data)), "cuMemcpyDtoH");
	data++;
	cu(cuMemcpyHtoD(p->dev + ANSWER, &data, sizeof(data)), "cuMemcpyHtoD");
	cu(cuMemcpyHtoD(p->dev + GPU_FLAG, &one, sizeof(one)), "cuMemcpyHtoD");
	return NULL;
}

/* One word of the GPU's, by the CPU. */
static uint32_t get(const struct example_memory *m, size_t at)
{
	uint32_t word;

	gdr(gdr_copy_from_mapping(m->mh, &word, (char *)m->cpu + at, sizeof(word)),
	    "gdr_copy_from_mapping");
	return word;
}

static void put(const struct example_memory *m, size_t at, uint32_t word)
{
	gdr(gdr_copy_to_mapping(m->mh, (char *)m->cpu + at, &word, sizeof(word)),
	    "gdr_copy_to_mapping");
}

int main(void)
{
	unsigned long long limit = 2000000000ull * GIVE_UP_S;	/* clocks of the GPU */
	static const char zero[SIZE];
	struct example_memory m;
	struct player player;
	CUstream stream = NULL;
	uint32_t answer;
	pthread_t thread;
	time_t start;
	int kernel;
	gdr_t g;

	player.ctx = example_context();
	g = example_open();
	example_map(g, &m, GPU_PAGE_SIZE);
	gdr(gdr_copy_to_mapping(m.mh, m.cpu, zero, SIZE), "gdr_copy_to_mapping");
	player.dev = m.dev;
	kernel = kernel_possible();
	if (kernel) {
		void *params[] = { &m.dev, &limit };

		stream = kernel_start(kernel_load(ptx, "answer"), params);
	} else {
		printf("this libcuda.so.1 runs no kernels: its copies play the GPU\n");
		gdr(pthread_create(&thread, NULL, play, &player), "pthread_create");
	}

	put(&m, DATA, 41);
	put(&m, FLAG, 1);
	start = time(NULL);
	while (!get(&m, GPU_FLAG))
		if (time(NULL) > start + GIVE_UP_S)
			gdr(ETIMEDOUT, "the GPU's flag");
	answer = get(&m, ANSWER);
	printf("sent 41, the GPU answers %u\n", answer);

	if (kernel)
		cu(cuStreamSynchronize(stream), "cuStreamSynchronize");
	else
		pthread_join(thread, NULL);
	example_unmap(g, &m);
	gdr(gdr_close(g), "gdr_close");
	return answer != 42;
}
