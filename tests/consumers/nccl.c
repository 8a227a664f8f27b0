/* SPDX-License-Identifier: MIT */
/*
 * nccl.c - what NCCL 2.30 does with GDRCopy (its gdrwrap, with NCCL_GDRCOPY_ENABLE=1):
 * versions first, then flags and small buffers in GPU memory of cudaMalloc, or of
 * cuMemCreate with NCCL_CUMEM_ENABLE=1, that the CPU stores to and reads. From GDRCopy 2.5
 * on it pins by gdr_pin_buffer_v2, with FORCE_PCIE what a flush would be needed for. A
 * library without a function that it looks up is closed again, unused.
 */
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "load.h"
#include "tap.h"

enum { LINES = 64, BUFFERS = 32 };

static struct consumer_gdr gdr;
static struct cuda_dl cu;
static struct tap tap;

/* One of NCCL's buffers: the CPU's pointer, the GPU's, and what frees them. */
struct buffer {
	cu_ptr mem;		/* what was allocated */
	size_t mem_size;
	cu_mem handle;		/* of cuMemCreate, else 0 */
	gdr_mh_t mh;
	void *map;
	size_t map_size;
	uint64_t *cpu;
	cu_ptr gpu;
};

/* NCCL goes on without GDRCopy below 2.1. */
static void versions(gdr_t g)
{
	int major = 0, minor = 0;

	gdr.runtime_version(&major, &minor);
	tap_ok(&tap, major > 2 || (major == 2 && minor >= 1), "library %d.%d", major, minor);
	major = minor = 0;
	tap_is(&tap, gdr.driver_version(g, &major, &minor), 0, "gdr_driver_get_version");
	tap_ok(&tap, major > 2 || (major == 2 && minor >= 1), "driver %d.%d", major, minor);
}

static int alloc_vmm(struct buffer *b)
{
	struct cu_mem_want want = {
		.type = CU_MEM_PINNED, .fd_type = CU_EXPORT_FD,
		.place = { .type = CU_PLACE_GPU }, .rdma = 1,
	};
	struct cu_access access = { .place = want.place, .flags = CU_ACCESS_RW };
	size_t page;
	int rc;

	rc = cu.granularity(&page, &want, 0);
	if (rc)
		return rc;
	b->mem_size = (b->mem_size + page - 1) / page * page;
	rc = cu.create(&b->handle, b->mem_size, &want, 0);
	if (!rc)
		rc = cu.reserve(&b->mem, b->mem_size, 0, 0, 0);
	if (!rc)
		rc = cu.map(b->mem, b->mem_size, 0, b->handle, 0);
	return rc ? rc : cu.set_access(b->mem, b->mem_size, &access, 1);
}

static void free_mem(struct buffer *b)
{
	int rc;

	if (b->handle) {
		rc = cu.unmap(b->mem, b->mem_size);
		rc |= cu.unreserve(b->mem, b->mem_size);
		rc |= cu.release(b->handle);
	} else {
		rc = cu.mem_free(b->mem);
	}
	if (rc)
		tap_ok(&tap, 0, "freeing the memory");
}

/*
 * A child, for the library stays open here. It closes one that cannot open, or that lacks a
 * function, and goes on with CUDA.
 */
static int without_library(int opened)
{
	pid_t pid = fork();
	int status = -1;
	cu_ptr mem;
	void *lib;

	if (!pid) {
		setenv("GDRCOPY_BACKEND", "gdrdrv", 1);
		lib = consumer_load();
		consumer_functions(lib, &gdr);
		if ((opened && gdr.open()) || dlsym(lib, "gdr_no_such_function") || dlclose(lib))
			_exit(1);
		consumer_cuda(&cu);
		_exit(cu.mem_alloc(&mem, GPU_PAGE_SIZE) || cu.set8(mem, 1, GPU_PAGE_SIZE) || cu.ctx_sync() ||
		      cu.mem_free(mem));
	}
	waitpid(pid, &status, 0);
	return status;
}

/* A page more than is needed, and pinned from the first whole one on. */
static int make(gdr_t g, struct buffer *b, size_t size, int vmm, uint32_t flags)
{
	cu_ptr aligned;
	gdr_info_t info;
	int rc;

	*b = (struct buffer){ .map_size = (size + GPU_PAGE_SIZE - 1) & GPU_PAGE_MASK };
	b->mem_size = b->map_size + GPU_PAGE_SIZE - 1;
	rc = vmm ? alloc_vmm(b) : cu.mem_alloc(&b->mem, b->mem_size);
	if (!rc)
		rc = cu.set8(b->mem, 0, b->mem_size);
	if (rc)
		return rc;
	aligned = (b->mem + GPU_PAGE_OFFSET) & GPU_PAGE_MASK;
	rc = gdr.pin_v2(g, aligned, b->map_size, flags, &b->mh);
	if (!rc)
		rc = gdr.map(g, b->mh, &b->map, b->map_size);
	if (!rc)
		rc = gdr.info(g, b->mh, &info);
	if (rc)
		return rc;
	b->cpu = (uint64_t *)((char *)b->map + (info.va - aligned));
	b->gpu = info.va;
	return 0;
}

static int destroy(gdr_t g, struct buffer *b)
{
	int rc = gdr.unmap(g, b->mh, b->map, b->map_size);

	if (!rc)
		rc = gdr.unpin(g, b->mh);
	free_mem(b);
	return rc;
}

/* A word by a store, a line by a copy; CUDA and the CPU must see both. */
static int use(const struct buffer *b, uint64_t seed)
{
	uint64_t line[8], got[9];
	int i, rc;

	for (i = 0; i < 8; i++)
		line[i] = seed + (uint64_t)i;
	*(volatile uint64_t *)b->cpu = ~seed;
	__sync_synchronize();
	rc = gdr.to(b->mh, b->cpu + 1, line, sizeof(line));
	if (!rc)
		rc = cu.from_gpu(got, b->gpu, sizeof(got));
	if (rc || got[0] != ~seed || memcmp(got + 1, line, sizeof(line)) != 0)
		return -1;
	memset(got, 0, sizeof(got));
	rc = gdr.from(b->mh, got, b->cpu, sizeof(got));
	return rc || got[0] != ~seed || memcmp(got + 1, line, sizeof(line)) != 0 ? -1 : 0;
}

/* As many as a communicator with a few peers has, all at a time. */
static void communicator(gdr_t g, int vmm)
{
	const char *of = vmm ? "cuMemCreate" : "cudaMalloc";
	static struct buffer b[BUFFERS];
	int i, made, bad = 0;

	for (made = 0; made < BUFFERS; made++)
		if (make(g, &b[made], LINES * sizeof(uint64_t) << made % 12, vmm,
			 made % 2 ? GDR_PIN_FLAG_FORCE_PCIE : GDR_PIN_FLAG_DEFAULT))
			break;
	tap_is(&tap, made, BUFFERS, "buffers pinned and mapped");
	for (i = 0; i < made; i++)
		bad += use(&b[i], 0x0123456789abcdefull * (uint64_t)(i + 1)) != 0;
	tap_ok(&tap, !bad, "what the CPU and CUDA see of memory of %s is the same", of);
	for (bad = 0, i = 0; i < made; i++)
		bad += destroy(g, &b[i]) != 0;
	tap_ok(&tap, !bad, "memory of %s is unmapped and unpinned", of);
}

int main(void)
{
	gdr_t g;

	tap_is(&tap, without_library(0), 0, "dlclose of a library that lacks a function, and CUDA");
	tap_is(&tap, without_library(1), 0, "dlclose after a gdr_open that is NULL, and CUDA");
	consumer_functions(consumer_load(), &gdr);
	consumer_cuda(&cu);
	g = gdr.open();
	tap_ok(&tap, g != NULL, "gdr_open");
	if (g) {
		versions(g);
		communicator(g, 0);
		communicator(g, 1);
		tap_is(&tap, gdr.close(g), 0, "gdr_close");
	}
	return tap_done(&tap);
}
