/* SPDX-License-Identifier: MIT */
/*
 * demo.c - what the library is for, in ten lines of output: memory of cuMemAlloc
 * (cudaMalloc's) is written by the CPU and read by CUDA, and the other way.
 *
 * Status: 0; 1 if anything failed; 2 if there is no CUDA driver or no GPU, which
 * `make demo` takes for the word to run it again on the simulated driver.
 */
#include <gdrapi.h>

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/timing.h"
#include "cuda_dl.h"

enum { NO_GPU = 2, BYTES = 4096, TIMES = 2001 };

/* All that was made; what is 0 was not. */
struct demo {
	struct cuda_dl cu;
	int dev;
	cu_ctx ctx;
	cu_ptr mem;	/* what cuMemAlloc gave */
	cu_ptr addr;	/* the first GPU page in it */
	gdr_t g;
	gdr_mh_t mh;
	char *va;	/* addr, as the CPU sees it */
};

static int no_gpu(const char *what, const char *why)
{
	printf("No GPU here: %s%s.\n", what, why);
	return NO_GPU;
}

static int cuda_failed(const struct demo *d, const char *call, int result)
{
	fprintf(stderr, "%s: %s\n", call, cuda_error(&d->cu, result));
	return 1;
}

static int gdr_failed(const char *call, int err)
{
	fprintf(stderr, "%s: %s (errno %d). The library's lines above say why and what to do;\n"
		"README.md has the table of what serves which memory and driver.\n",
		call, err ? strerror(err) : "failed", err);
	return 1;
}

/* Has a context of the first GPU. CUDA comes first: see fork in gdrapi(3). */
static int start_cuda(struct demo *d)
{
	const char *why = cuda_load(&d->cu);
	char name[128] = "";
	int result, version = 0;

	if (why)
		return no_gpu("", why);
	result = d->cu.init(0);
	if (!result)
		result = d->cu.device_get(&d->dev, 0);
	if (result)
		return no_gpu("CUDA says ", cuda_error(&d->cu, result));
	result = d->cu.primary_retain(&d->ctx, d->dev);
	if (!result)
		result = d->cu.ctx_set(d->ctx);
	if (result)
		return cuda_failed(d, "cuDevicePrimaryCtxRetain", result);
	d->cu.device_name(name, sizeof(name), d->dev);
	d->cu.driver_version(&version);
	printf("GPU: %s, CUDA driver %d.%d\n", name, version / 1000, version % 1000 / 10);
	if (d->cu.simulated)
		printf("It is the simulated driver of tests/doubles: its GPU memory is memory of the host.\n");
	return 0;
}

static int allocate(struct demo *d)
{
	int result = d->cu.mem_alloc(&d->mem, 2 * GPU_PAGE_SIZE);

	if (result)
		return cuda_failed(d, "cuMemAlloc", result);
	/* A buffer that is mapped begins on a GPU page. */
	d->addr = (d->mem + GPU_PAGE_SIZE - 1) & GPU_PAGE_MASK;
	return 0;
}

/* The library's own lines, on standard error, say which backend it takes. */
static int open_library(struct demo *d)
{
	setenv("GDRCOPY_ENABLE_LOGGING", "1", 1);
	setenv("GDRCOPY_LOG_LEVEL", "2", 0);
	errno = 0;
	d->g = gdr_open();
	return d->g ? 0 : gdr_failed("gdr_open", errno);
}

static int pin_and_map(struct demo *d)
{
	gdr_info_t info;
	const char *type;
	void *va;
	int err;

	err = gdr_pin_buffer(d->g, d->addr, GPU_PAGE_SIZE, 0, 0, &d->mh);
	if (err)
		return gdr_failed("gdr_pin_buffer", err);
	err = gdr_map(d->g, d->mh, &va, GPU_PAGE_SIZE);
	if (err)
		return gdr_failed("gdr_map", err);
	err = gdr_get_info(d->g, d->mh, &info);
	if (!err)
		err = gdr_get_mapping_type_string(info.mapping_type, &type);
	if (err)
		return gdr_failed("gdr_get_info", err);
	d->va = va;
	printf("cuMemAlloc gave %#llx; %lu KiB of it pinned, and mapped for the CPU at %p, %s\n",
	       d->mem, GPU_PAGE_SIZE >> 10, va, type);
	return 0;
}

static int compare(const char *what, const char *a, const char *b)
{
	int differ = memcmp(a, b, BYTES);

	printf("%s: %s\n", what, differ ? "DIFFERENT" : "equal");
	return differ != 0;
}

static int cpu_to_cuda(struct demo *d)
{
	char sent[BYTES], got[BYTES] = { 0 };
	int rc;

	memset(sent, 0x5a, sizeof(sent));
	rc = gdr_copy_to_mapping(d->mh, d->va, sent, sizeof(sent));
	if (rc)
		return gdr_failed("gdr_copy_to_mapping", rc);
	rc = d->cu.from_gpu(got, d->addr, sizeof(got));
	if (rc)
		return cuda_failed(d, "cuMemcpyDtoH", rc);
	return compare("4096 bytes written by the CPU, read by cuMemcpyDtoH", sent, got);
}

static int cuda_to_cpu(struct demo *d)
{
	char sent[BYTES], got[BYTES] = { 0 };
	int rc;

	memset(sent, 0xc3, sizeof(sent));
	rc = d->cu.to_gpu(d->addr, sent, sizeof(sent));
	if (!rc)
		rc = d->cu.ctx_sync();
	if (rc)
		return cuda_failed(d, "cuMemcpyHtoD", rc);
	rc = gdr_copy_from_mapping(d->mh, got, d->va, sizeof(got));
	if (rc)
		return gdr_failed("gdr_copy_from_mapping", rc);
	return compare("4096 bytes written by cuMemcpyHtoD, read by the CPU", sent, got);
}

/* What is timed; each moves one word. */
static int cpu_write(struct demo *d, uint32_t *word)
{
	return gdr_copy_to_mapping(d->mh, d->va, word, sizeof(*word));
}

static int cpu_read(struct demo *d, uint32_t *word)
{
	return gdr_copy_from_mapping(d->mh, word, d->va, sizeof(*word));
}

static int cuda_write(struct demo *d, uint32_t *word)
{
	return d->cu.to_gpu(d->addr, word, sizeof(*word));
}

static int cuda_read(struct demo *d, uint32_t *word)
{
	return d->cu.from_gpu(word, d->addr, sizeof(*word));
}

/* The median time of many, in ns; below 0 if one failed. */
static double median(struct demo *d, int (*move)(struct demo *d, uint32_t *word))
{
	static double ns[TIMES];
	struct bench_samples s = { .ns = ns, .cap = TIMES };
	uint32_t word = 0;

	while (s.n < s.cap) {
		uint64_t t0 = bench_ticks(), t;

		if (move(d, &word))
			return -1;
		t = bench_ticks() - t0;
		bench_samples_add(&s, bench_ns(t) - bench_ns(bench_clock_cost()));
		bench_spin(bench_ticks_of(1000));
	}
	return bench_p50(&s);
}

static int times(struct demo *d)
{
	double t[4];

	if (d->cu.simulated) {
		printf("No times are shown: on simulated memory they would mean nothing.\n");
		return 0;
	}
	bench_clock_init();
	t[0] = median(d, cpu_write);
	t[1] = median(d, cuda_write);
	t[2] = median(d, cpu_read);
	t[3] = median(d, cuda_read);
	if (t[0] < 0 || t[1] < 0 || t[2] < 0 || t[3] < 0) {
		fprintf(stderr, "a copy failed while it was timed\n");
		return 1;
	}
	printf("4-byte write, median of %d: %.0f ns by the CPU, %.0f ns by cuMemcpyHtoD\n",
	       TIMES, t[0], t[1]);
	printf("4-byte read,  median of %d: %.0f ns by the CPU, %.0f ns by cuMemcpyDtoH\n",
	       TIMES, t[2], t[3]);
	return 0;
}

static void end(struct demo *d)
{
	if (d->g)
		gdr_close(d->g);	/* unpins and unmaps, too */
	if (d->mem)
		d->cu.mem_free(d->mem);
	if (d->ctx)
		d->cu.primary_release(d->dev);
}

int main(void)
{
	static int (*const steps[])(struct demo *d) = {
		start_cuda, allocate, open_library, pin_and_map, cpu_to_cuda, cuda_to_cpu, times,
	};
	struct demo d = { .g = NULL };
	size_t i;
	int rc = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (i = 0; !rc && i < sizeof(steps) / sizeof(steps[0]); i++)
		rc = steps[i](&d);
	end(&d);
	if (!rc)
		printf("Next: make check; make install, and README.md's first program; build/bin/gdrcopy_copylat on a GPU.\n");
	return rc;
}
