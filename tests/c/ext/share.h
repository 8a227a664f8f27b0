/* SPDX-License-Identifier: MIT */
/*
 * ext/share.h - buffers and their descriptors: what share.c and descriptor.c have in common.
 */
#ifndef EXT_SHARE_H
#define EXT_SHARE_H

#include "guest/cuda.h"

#define OBJECT (2 * MIB)

static struct cuda_dl cu;
static gdr_t g;

/* GPU memory of one kind, and what of it is pinned. */
struct shared {
	cu_ptr addr;
	size_t size;
	gdr_mh_t mh;
	int fd;
};

/* What a process without CUDA is given: a descriptor, where the bytes are in it, and their seed. */
struct guest {
	int fd;
	size_t skip, size;
	uint32_t seed;
};

/* gdrdrv shares nothing. */
__attribute__((constructor)) static void name_backend(void)
{
	setenv("GDRCOPY_BACKEND", "rm", 0);
}

static inline bool by_dmabuf(void)
{
	return backend_is("dmabuf");
}

static inline void with_context(void)
{
	start_current(&cu);
	g = open_or_fail();
}

static inline void pin_and_export(struct shared *s, cu_ptr addr, size_t size)
{
	*s = (struct shared){ .addr = addr, .size = size, .fd = -1 };
	expect_is(gdr_pin_buffer(g, addr, size, 0, 0, &s->mh), 0);
	expect_is(gdr_export_fd(g, s->mh, 0, &s->fd), 0);
	expect(fcntl(s->fd, F_GETFD) & FD_CLOEXEC);
}

/* New memory of cuMemAlloc. */
static inline void export_new(struct shared *s, size_t size)
{
	cu_ptr p;

	expect_is(cu.mem_alloc(&p, size), 0);
	pin_and_export(s, p, size);
}

/* The range's first byte in the pinned pages. */
static inline size_t skip_of(const struct shared *s)
{
	gdr_info_v2_t info;

	expect_is(gdr_get_info_v2(g, s->mh, &info), 0);
	return s->addr - info.va;
}

static inline uint32_t word(size_t at, uint32_t seed)
{
	return (uint32_t)at * 2654435761u + seed;
}

static inline uint32_t *words_of(size_t size, uint32_t seed)
{
	uint32_t *h = malloc(size);

	expect(h != NULL);
	for (size_t i = 0; i < size / 4; i++)
		h[i] = word(i, seed);
	return h;
}

static inline void expect_words(uint32_t *h, size_t size, uint32_t seed)
{
	size_t bad = 0;

	for (size_t i = 0; i < size / 4; i++)
		bad += h[i] != word(i, seed);
	expect_is(bad, 0);
	free(h);
}

/* By CUDA, all words of the range. */
static inline void fill_by_cuda(cu_ptr p, size_t size, uint32_t seed)
{
	uint32_t *h = words_of(size, seed);

	expect_is(cu.to_gpu(p, h, size), 0);
	expect_is(cu.ctx_sync(), 0);
	free(h);
}

static inline void check_by_cuda(cu_ptr p, size_t size, uint32_t seed)
{
	uint32_t *h = words_of(size, seed + 1);

	expect_is(cu.from_gpu(h, p, size), 0);
	expect_words(h, size, seed);
}

/*
 * The other side: pins the descriptor, sees each word of the seed, and writes each of the
 * next seed.
 */
static inline void use(gdr_t at, int fd, size_t skip, size_t size, uint32_t seed)
{
	gdr_info_v2_t info;
	gdr_mh_t mh;
	uint32_t *h;
	void *va;

	expect_is(gdr_pin_fd(at, fd, 0, &mh), 0);
	expect_is(gdr_get_info_v2(at, mh, &info), 0);
	expect(info.mapped_size >= skip + size && info.mapped_size - size - skip < info.page_size && !info.mapped);
	expect_is(gdr_map(at, mh, &va, skip + size), 0);
	h = words_of(size, seed + 1);
	expect_is(gdr_copy_from_mapping(mh, h, (char *)va + skip, size), 0);
	expect_words(h, size, seed);
	h = words_of(size, seed + 1);
	expect_is(gdr_copy_to_mapping(mh, (char *)va + skip, h, size), 0);
	/* A read is behind the writes. */
	expect_is(gdr_copy_from_mapping(mh, h, (char *)va + skip, 4), 0);
	free(h);
	expect_is(gdr_unmap(at, mh, va, skip + size), 0);
	expect_is(gdr_unpin_buffer(at, mh), 0);
}

#endif
