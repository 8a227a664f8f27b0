/* SPDX-License-Identifier: MIT */
/*
 * sanity/gpu.c - CUDA and the library, up; GPU memory with a mapping of it, and what is in it.
 */
#include "sanity.h"

void start_cuda(struct env *e)
{
	const char *err = cuda_load(&e->cu);
	int dev;

	if (err)
		check_at(false, err, __FILE__, __LINE__);
	check_cu(e->cu.init(0));
	check_cu(e->cu.device_get(&dev, e->gpu));
	check_cu(e->cu.primary_retain(&e->ctx, dev));
	check_cu(e->cu.ctx_set(e->ctx));
}

void start(struct env *e)
{
	start_cuda(e);
	e->g = gdr_open();
	check(e->g != NULL);
}

int device_attribute(struct env *e, int attribute)
{
	int dev, value, result;

	check_cu(e->cu.device_get(&dev, e->gpu));
	result = e->cu.device_attribute(&value, attribute, dev);
	if (result == CU_INVALID_VALUE)
		return 0;
	check_cu(result);
	return value;
}

bool is_coherent_rm(struct env *e)
{
	int major = -1, minor = -1;

	check_rc(gdr_driver_get_version(e->g, &major, &minor), 0);
	return e->backend == BE_RM && major == 2 && minor == 4;
}

static size_t round_up(size_t n, size_t unit)
{
	return (n + unit - 1) / unit * unit;
}

void buf_alloc_vmm(struct env *e, struct buf *b, size_t size, int gpu,
		   int fd_type)
{
	struct cu_mem_want want = {
		.type = CU_MEM_PINNED,
		.fd_type = fd_type,
		.place = { CU_PLACE_GPU, gpu },
	};
	struct cu_access access = {
		.place = { CU_PLACE_GPU, gpu },
		.flags = CU_ACCESS_RW,
	};
	size_t unit;
	int dev, rdma;

	memset(b, 0, sizeof(*b));
	check_cu(e->cu.device_get(&dev, gpu));
	check_cu(e->cu.device_attribute(&rdma, CU_DEV_VMM_RDMA, dev));
	want.rdma = rdma;
	b->kind = MEM_VMM;
	b->size = round_up(size, GPU_PAGE_SIZE);
	check_cu(e->cu.granularity(&unit, &want, 0));
	b->raw_size = round_up(b->size, unit);
	check_cu(e->cu.create(&b->mem, b->raw_size, &want, 0));
	check_cu(e->cu.reserve(&b->raw, b->raw_size, 0, 0, 0));
	check_cu(e->cu.map(b->raw, b->raw_size, 0, b->mem, 0));
	check_cu(e->cu.set_access(b->raw, b->raw_size, &access, 1));
	b->addr = b->raw;
	check_eq(b->addr & GPU_PAGE_OFFSET, 0);
}

static void alloc_plain(struct env *e, struct buf *b, size_t size)
{
	memset(b, 0, sizeof(*b));
	b->kind = MEM_PLAIN;
	b->size = round_up(size, GPU_PAGE_SIZE);
	b->raw_size = b->size + GPU_PAGE_SIZE - 1;
	check_cu(e->cu.mem_alloc(&b->raw, b->raw_size));
	b->addr = round_up(b->raw, GPU_PAGE_SIZE);
}

static void alloc_ext(struct env *e, struct buf *b, size_t size, int gpu)
{
	memset(b, 0, sizeof(*b));
	b->kind = MEM_EXT;
	b->size = round_up(size, GPU_PAGE_SIZE);
	check_rc(gdr_mem_alloc(e->g, gpu, b->size, 0, &b->ext), 0);
	check_rc(gdr_mem_get_device_ptr(e->g, b->ext, &b->addr, &b->raw_size), 0);
	check(b->raw_size >= b->size);
	check_eq(b->addr & GPU_PAGE_OFFSET, 0);
	b->raw = b->addr;
}

void buf_alloc_on(struct env *e, struct buf *b, enum mem_kind kind, size_t size,
		  int gpu)
{
	if (kind == MEM_VMM)
		buf_alloc_vmm(e, b, size, gpu, CU_EXPORT_FD);
	else if (kind == MEM_EXT)
		alloc_ext(e, b, size, gpu);
	else
		alloc_plain(e, b, size);
}

void buf_alloc(struct env *e, struct buf *b, enum mem_kind kind, size_t size)
{
	buf_alloc_on(e, b, kind, size, e->gpu);
}

void buf_free(struct env *e, struct buf *b)
{
	if (b->kind == MEM_PLAIN) {
		check_cu(e->cu.mem_free(b->raw));
	} else if (b->kind == MEM_EXT) {
		check_rc(gdr_mem_free(e->g, b->ext), 0);
	} else {
		check_cu(e->cu.unmap(b->raw, b->raw_size));
		check_cu(e->cu.release(b->mem));
		check_cu(e->cu.unreserve(b->raw, b->raw_size));
	}
	b->addr = 0;
}

gdr_mh_t pin_only(struct env *e, unsigned long addr, size_t size)
{
	gdr_mh_t mh = { 0 };

	check_rc(gdr_pin_buffer_v2(e->g, addr, size, GDR_PIN_FLAG_DEFAULT, &mh), 0);
	check(mh.h != 0);
	return mh;
}

void map_make(struct env *e, struct map *m, unsigned long addr, size_t size)
{
	gdr_info_t info;

	memset(m, 0, sizeof(*m));
	m->mh = pin_only(e, addr, size);
	m->size = size;
	check_rc(gdr_map(e->g, m->mh, &m->va, size), 0);
	check(m->va != NULL);
	check_eq((uintptr_t)m->va % e->host_page, 0);
	mark(&info, sizeof(info));
	check_rc(gdr_get_info(e->g, m->mh, &info), 0);
	check(info.va <= addr && addr - info.va < e->page);
	m->p = (unsigned char *)m->va + (addr - info.va);
}

void map_drop(struct env *e, struct map *m)
{
	check_rc(gdr_unmap(e->g, m->mh, m->va, m->size), 0);
	check_rc(gdr_unpin_buffer(e->g, m->mh), 0);
	m->p = m->va = NULL;
}

void alloc_mapped(struct env *e, struct buf *b, struct map *m, enum mem_kind kind, size_t size)
{
	buf_alloc(e, b, kind, size);
	map_make(e, m, b->addr, b->size);
}

void free_mapped(struct env *e, struct buf *b, struct map *m)
{
	map_drop(e, m);
	buf_free(e, b);
}

void gpu_write(struct env *e, unsigned long addr, const void *src, size_t size)
{
	check_cu(e->cu.to_gpu(addr, src, size));
	check_cu(e->cu.ctx_sync());
}

void gpu_read(struct env *e, void *dst, unsigned long addr, size_t size)
{
	check_cu(e->cu.from_gpu(dst, addr, size));
	check_cu(e->cu.ctx_sync());
}

void gpu_check(struct env *e, unsigned long addr, const void *want, size_t size)
{
	unsigned char *got = must_alloc(size);
	const unsigned char *w = want;
	size_t i = 0;

	memset(got, (unsigned char)~w[0], size);
	gpu_read(e, got, addr, size);
	if (memcmp(got, w, size))
		for (i = 0; i < size && got[i] == w[i]; i++)
			;
	if (memcmp(got, w, size))
		note("byte %zu of %zu is %#x, not %#x", i, size, got[i], w[i]);
	check(memcmp(got, w, size) == 0);
	free(got);
}

void copy_both_ways(struct env *e, struct map *m, unsigned long addr, size_t size)
{
	unsigned char *a = must_alloc(size), *b = must_alloc(size);

	fill(a, size, addr + 1);
	memset(b, 0, size);
	check_rc(gdr_copy_to_mapping(m->mh, m->p, a, size), 0);
	gpu_check(e, addr, a, size);
	check_rc(gdr_copy_from_mapping(m->mh, b, m->p, size), 0);
	check(memcmp(a, b, size) == 0);

	fill(a, size, addr + 2);
	gpu_write(e, addr, a, size);
	check_rc(gdr_copy_from_mapping(m->mh, b, m->p, size), 0);
	check(memcmp(a, b, size) == 0);

	check_cu(e->cu.set8(addr, 0x3c, size));
	check_cu(e->cu.ctx_sync());
	memset(a, 0x3c, size);
	a[size - 1] = 0x99;
	check_rc(gdr_copy_to_mapping(m->mh, m->p + size - 1, a + size - 1, 1), 0);
	check_rc(gdr_copy_from_mapping(m->mh, b, m->p, size), 0);
	check(memcmp(a, b, size) == 0);
	gpu_check(e, addr, a, size);
	free(b);
	free(a);
}
