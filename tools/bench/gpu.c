/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE 1	/* sched_setaffinity */
#include "gpu.h"
#include "version.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Other libgdrapi libraries lack the extensions: there, these are NULL. */
extern __typeof__(gdr_get_backend) gdr_get_backend __attribute__((weak));
extern __typeof__(gdr_mem_alloc) gdr_mem_alloc __attribute__((weak));
extern __typeof__(gdr_mem_free) gdr_mem_free __attribute__((weak));
extern __typeof__(gdr_mem_get_device_ptr) gdr_mem_get_device_ptr __attribute__((weak));

void bench_cu(const struct bench_gpu *b, int result, const char *what)
{
	if (result != CU_OK)
		bench_die("%s: %s gave %s (%d)", b->tool->name, what,
			  cuda_error(&b->cu, result), result);
}

void bench_rc(int rc, const char *what)
{
	if (rc)
		bench_die("%s: %s; GDRCOPY_ENABLE_LOGGING=1 tells more", what, strerror(rc));
}

void bench_gpu_start(struct bench_gpu *b, const struct bench_tool *tool,
		     const struct bench_opts *opts)
{
	const char *err;
	int gpus = 0, result;

	*b = (struct bench_gpu){ .tool = tool, .opts = opts };
	if (opts->backend && setenv("GDRCOPY_BACKEND", opts->backend, 1))
		bench_die("%s: setenv: %s", tool->name, strerror(errno));
	err = cuda_load(&b->cu);
	if (err)
		bench_skip("%s: NVIDIA's driver is needed: %s", tool->name, err);
	result = b->cu.init(0);
	if (result == CU_NO_DEVICE)
		bench_skip("%s: NVIDIA's driver finds no GPU", tool->name);
	bench_cu(b, result, "cuInit");
	bench_cu(b, b->cu.device_count(&gpus), "cuDeviceGetCount");
	if (!gpus)
		bench_skip("%s: CUDA sees no GPU", tool->name);
	if (opts->gpu >= gpus)
		bench_usage(tool, "there is no GPU %d: CUDA sees %d", opts->gpu, gpus);
	bench_cu(b, b->cu.device_get(&b->dev, opts->gpu), "cuDeviceGet");
	bench_cu(b, b->cu.primary_retain(&b->ctx, b->dev), "cuDevicePrimaryCtxRetain");
	bench_cu(b, b->cu.ctx_set(b->ctx), "cuCtxSetCurrent");
}

void bench_gpu_open(struct bench_gpu *b)
{
	b->g = gdr_open();
	if (!b->g)
		bench_die("%s: gdr_open found no way to the GPU's memory; GDRCOPY_ENABLE_LOGGING=1 tells why",
			  b->tool->name);
}

void bench_gpu_stop(struct bench_gpu *b)
{
	bench_rc(gdr_close(b->g), "gdr_close");
	bench_cu(b, b->cu.ctx_set(NULL), "cuCtxSetCurrent");
	bench_cu(b, b->cu.primary_release(b->dev), "cuDevicePrimaryCtxRelease");
}

static size_t round_up(size_t n, size_t unit)
{
	return (n + unit - 1) / unit * unit;
}

static void alloc_ext(struct bench_gpu *b, struct bench_buf *buf)
{
	if (!gdr_mem_alloc || !gdr_mem_get_device_ptr || !gdr_mem_free)
		bench_usage(b->tool, "this libgdrapi has no gdr_mem_alloc: choose -a cumemalloc or -a cumemcreate");
	bench_rc(gdr_mem_alloc(b->g, b->opts->gpu, buf->size, 0, &buf->ext), "gdr_mem_alloc");
	bench_rc(gdr_mem_get_device_ptr(b->g, buf->ext, &buf->addr, NULL),
		 "gdr_mem_get_device_ptr");
}

static void alloc_plain(struct bench_gpu *b, struct bench_buf *buf)
{
	buf->raw_size = buf->size + GPU_PAGE_SIZE - 1;
	bench_cu(b, b->cu.mem_alloc(&buf->raw, buf->raw_size), "cuMemAlloc");
	buf->addr = round_up(buf->raw, GPU_PAGE_SIZE);
}

static void alloc_vmm(struct bench_gpu *b, struct bench_buf *buf)
{
	struct cu_mem_want want = {
		.type = CU_MEM_PINNED,
		.fd_type = CU_EXPORT_FD,
		.place = { CU_PLACE_GPU, b->opts->gpu },
	};
	struct cu_access access = {
		.place = { CU_PLACE_GPU, b->opts->gpu },
		.flags = CU_ACCESS_RW,
	};
	size_t unit = 0;
	int rdma = 0;

	bench_cu(b, b->cu.device_attribute(&rdma, CU_DEV_VMM_RDMA, b->dev),
		 "cuDeviceGetAttribute");
	want.rdma = rdma != 0;
	bench_cu(b, b->cu.granularity(&unit, &want, 0), "cuMemGetAllocationGranularity");
	buf->raw_size = round_up(buf->size, unit);
	bench_cu(b, b->cu.create(&buf->mem, buf->raw_size, &want, 0), "cuMemCreate");
	bench_cu(b, b->cu.reserve(&buf->raw, buf->raw_size, 0, 0, 0), "cuMemAddressReserve");
	bench_cu(b, b->cu.map(buf->raw, buf->raw_size, 0, buf->mem, 0), "cuMemMap");
	bench_cu(b, b->cu.set_access(buf->raw, buf->raw_size, &access, 1), "cuMemSetAccess");
	buf->addr = buf->raw;
}

void bench_buf_alloc(struct bench_gpu *b, struct bench_buf *buf, size_t size)
{
	*buf = (struct bench_buf){ .kind = b->opts->mem };
	buf->size = round_up(size, GPU_PAGE_SIZE);
	switch (buf->kind) {
	case BENCH_MEM_EXT:
		alloc_ext(b, buf);
		break;
	case BENCH_MEM_PLAIN:
		alloc_plain(b, buf);
		break;
	case BENCH_MEM_VMM:
		alloc_vmm(b, buf);
		break;
	}
}

void bench_buf_free(struct bench_gpu *b, struct bench_buf *buf)
{
	switch (buf->kind) {
	case BENCH_MEM_EXT:
		bench_rc(gdr_mem_free(b->g, buf->ext), "gdr_mem_free");
		break;
	case BENCH_MEM_PLAIN:
		bench_cu(b, b->cu.mem_free(buf->raw), "cuMemFree");
		break;
	case BENCH_MEM_VMM:
		bench_cu(b, b->cu.unmap(buf->raw, buf->raw_size), "cuMemUnmap");
		bench_cu(b, b->cu.release(buf->mem), "cuMemRelease");
		bench_cu(b, b->cu.unreserve(buf->raw, buf->raw_size), "cuMemAddressFree");
		break;
	}
}

void bench_map_make(struct bench_gpu *b, struct bench_map *m,
		    const struct bench_buf *buf)
{
	int rc;

	*m = (struct bench_map){ .size = buf->size };
	rc = gdr_pin_buffer_v2(b->g, buf->addr, buf->size, GDR_PIN_FLAG_DEFAULT, &m->mh);
	if (rc == ENOTSUP)
		bench_die("%s: this backend cannot pin memory of '%s': choose -a ext or -a cumemcreate",
			  b->tool->name, bench_mem_name(buf->kind));
	bench_rc(rc, "gdr_pin_buffer_v2");
	rc = gdr_map_v2(b->g, m->mh, &m->va, m->size, b->opts->map_flags);
	if (rc && b->opts->map_flags != GDR_MAP_FLAG_DEFAULT)
		bench_die("%s: gdr_map_v2 with this -M: %s; the backend may not have that type of mapping",
			  b->tool->name, strerror(rc));
	bench_rc(rc, "gdr_map_v2");
	bench_rc(gdr_get_info(b->g, m->mh, &m->info), "gdr_get_info");
	m->p = (uint8_t *)m->va + (buf->addr - m->info.va);
}

void bench_map_drop(struct bench_gpu *b, struct bench_map *m)
{
	bench_rc(gdr_unmap(b->g, m->mh, m->va, m->size), "gdr_unmap");
	bench_rc(gdr_unpin_buffer(b->g, m->mh), "gdr_unpin_buffer");
	m->p = NULL;
}

void bench_gpu_put(struct bench_gpu *b, unsigned long addr, const void *src, size_t n)
{
	bench_cu(b, b->cu.to_gpu(addr, src, n), "cuMemcpyHtoD");
	bench_cu(b, b->cu.ctx_sync(), "cuCtxSynchronize");
}

void bench_gpu_get(struct bench_gpu *b, void *dst, unsigned long addr, size_t n)
{
	bench_cu(b, b->cu.from_gpu(dst, addr, n), "cuMemcpyDtoH");
	bench_cu(b, b->cu.ctx_sync(), "cuCtxSynchronize");
}

unsigned long long bench_gpu_clocks(const struct bench_gpu *b, long seconds)
{
	int khz = 0;

	if (!seconds)
		return ~0ull;
	if (b->cu.device_attribute(&khz, CU_DEV_CLOCK_KHZ, b->dev) != CU_OK || khz <= 0)
		khz = 2000000;
	return (unsigned long long)khz * 1000u * (unsigned long long)seconds;
}

const char *bench_backend(struct bench_gpu *b)
{
	static char name[16];
	int dmabuf = 0;

	if (gdr_get_backend) {
		bench_rc(gdr_get_backend(b->g, name, sizeof(name)), "gdr_get_backend");
		return name;
	}
	bench_rc(gdr_get_attribute(b->g, GDR_ATTR_USING_DMA_BUF_MMAP, &dmabuf),
		 "gdr_get_attribute");
	return dmabuf ? "dmabuf" : "gdrdrv";
}

void bench_gpu_facts(struct bench_gpu *b, const struct bench_map *m,
		     struct bench_result *r)
{
	const char *type = NULL;
	int major = 0, minor = 0, driver = 0;
	char name[96] = "";

	r->gpu = b;
	r->map = m;
	bench_cu(b, b->cu.device_name(name, sizeof(name), b->dev), "cuDeviceGetName");
	bench_cu(b, b->cu.driver_version(&driver), "cuDriverGetVersion");
	gdr_runtime_get_version(&major, &minor);
	bench_fact(r, "gpu", "%s", name);
	if (b->cu.simulated)
		bench_fact(r, "simulated", "GPU memory is the host's, and no figure is a GPU's");
	bench_fact(r, "cuda_driver", "%d.%d", driver / 1000, driver % 1000 / 10);
	bench_fact(r, "libgdrapi", "%d.%d", major, minor);
	if (gdr_ext_version)
		bench_fact(r, "build", "%s", gdr_ext_version());
	bench_fact(r, "memory", "%s", bench_mem_name(b->opts->mem));
	if (!m)
		return;
	bench_fact(r, "backend", "%s", bench_backend(b));
	bench_rc(gdr_get_mapping_type_string(m->info.mapping_type, &type),
		 "gdr_get_mapping_type_string");
	bench_fact(r, "mapping", "%s", type);
}

void bench_on_cpu(int cpu)
{
	cpu_set_t set;

	if (cpu < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET((size_t)cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		bench_die("CPU %d: %s", cpu, strerror(errno));
}

void bench_fill(void *p, size_t n, uint64_t seed)
{
	uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u;
	uint8_t *b = p;
	size_t i;

	for (i = 0; i < n; i++) {
		if (i % 8 == 0) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
		}
		b[i] = (uint8_t)(x >> i % 8 * 8);
	}
}

void *bench_host_alloc(size_t n)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		bench_die("%zu bytes of host memory: %s", n, strerror(errno));
	bench_fill(p, n, 0);
	return p;
}
