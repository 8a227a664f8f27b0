/* SPDX-License-Identifier: MIT */
/*
 * ext/share.h - buffers, and their descriptors on the way to other processes: what share.c and
 * descriptor.c have in common.
 */
#ifndef EXT_SHARE_H
#define EXT_SHARE_H

#include "guest/cuda.h"

#include <sys/socket.h>

#define OBJECT (2 * MIB)
#define NOBODY 65534

static struct cuda_dl cu;
static gdr_t g;

/* GPU memory of one kind, and what of it is pinned. */
struct shared {
	cu_ptr addr;
	size_t size;
	gdr_mh_t mh;
	int fd;
};

/* What a process without CUDA is given: a descriptor, where the bytes are in it, their seed, and a user to be. */
struct guest {
	int fd, uid;
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

static inline bool is_root(void)
{
	return !getuid() && prctl(PR_CAPBSET_READ, 6 /* CAP_SETUID */) == 1;
}

static inline void with_context(void)
{
	start_current(&cu);
	g = open_or_fail();
}

/* Memory of the default pool. */
static inline cu_ptr make_pooled(size_t size)
{
	int (*alloc_async)(cu_ptr *, size_t, void *) = need_symbol("cuMemAllocAsync");
	cu_ptr p;

	expect_is(alloc_async(&p, size, NULL), 0);
	expect_is(cu.ctx_sync(), 0);
	return p;
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

/* So much is copied at a time, and none of it is on the stack. */
#define CHUNK (64 * MIB)

static inline uint32_t *chunk_for(size_t size)
{
	uint32_t *h = malloc(size < CHUNK ? size : CHUNK);

	expect(h != NULL);
	return h;
}

static inline size_t rest_of(size_t size, size_t at)
{
	return size - at < CHUNK ? size - at : CHUNK;
}

static inline void fill_words(uint32_t *h, size_t at, size_t n, uint32_t seed)
{
	for (size_t i = 0; i < n / 4; i++)
		h[i] = word(at / 4 + i, seed);
}

static inline void expect_words(const uint32_t *h, size_t at, size_t n, uint32_t seed)
{
	size_t bad = 0;

	for (size_t i = 0; i < n / 4; i++)
		bad += h[i] != word(at / 4 + i, seed);
	expect_is(bad, 0);
}

/* By CUDA, all words of the range. */
static inline void fill_by_cuda(cu_ptr p, size_t size, uint32_t seed)
{
	uint32_t *h = chunk_for(size);

	for (size_t at = 0, n; at < size; at += n) {
		n = rest_of(size, at);
		fill_words(h, at, n, seed);
		expect_is(cu.to_gpu(p + at, h, n), 0);
	}
	expect_is(cu.ctx_sync(), 0);
	free(h);
}

static inline void check_by_cuda(cu_ptr p, size_t size, uint32_t seed)
{
	uint32_t *h = chunk_for(size);

	for (size_t at = 0, n; at < size; at += n) {
		n = rest_of(size, at);
		expect_is(cu.from_gpu(h, p + at, n), 0);
		expect_words(h, at, n, seed);
	}
	free(h);
}

/* The same through a mapping, by the library's copies. */
static inline void fill_by_cpu(gdr_mh_t mh, char *va, size_t size, uint32_t seed)
{
	uint32_t *h = chunk_for(size);

	for (size_t at = 0, n; at < size; at += n) {
		n = rest_of(size, at);
		fill_words(h, at, n, seed);
		expect_is(gdr_copy_to_mapping(mh, va + at, h, n), 0);
	}
	/* A read is behind the writes. */
	expect_is(gdr_copy_from_mapping(mh, h, va, 4), 0);
	free(h);
}

static inline void check_by_cpu(gdr_mh_t mh, const char *va, size_t size, uint32_t seed)
{
	uint32_t *h = chunk_for(size);

	for (size_t at = 0, n; at < size; at += n) {
		n = rest_of(size, at);
		expect_is(gdr_copy_from_mapping(mh, h, va + at, n), 0);
		expect_words(h, at, n, seed);
	}
	free(h);
}

/*
 * The other side: pins the descriptor, sees each word of the seed, and writes each of the
 * next seed.
 */
static inline void use(gdr_t at, int fd, size_t skip, size_t size, uint32_t seed)
{
	gdr_info_v2_t info;
	gdr_mh_t mh;
	void *va;

	expect_is(gdr_pin_fd(at, fd, 0, &mh), 0);
	expect_is(gdr_get_info_v2(at, mh, &info), 0);
	expect(info.mapped_size >= skip + size && info.mapped_size - size - skip < info.page_size && !info.mapped);
	expect_is(gdr_map(at, mh, &va, skip + size), 0);
	check_by_cpu(mh, (char *)va + skip, size, seed);
	fill_by_cpu(mh, (char *)va + skip, size, seed + 1);
	expect_is(gdr_unmap(at, mh, va, skip + size), 0);
	expect_is(gdr_unpin_buffer(at, mh), 0);
}

/* A message of bytes with up to 64 descriptors. */
static inline bool send_with(int to, const void *bytes, size_t size, const int *fds, int n)
{
	union {
		char bytes[CMSG_SPACE(64 * sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec v = { (void *)bytes, size };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control,
			    .msg_controllen = CMSG_SPACE(n * sizeof(int)) };
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);

	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(n * sizeof(int));
	memcpy(CMSG_DATA(h), fds, n * sizeof(int));
	return sendmsg(to, &m, MSG_NOSIGNAL) == (ssize_t)size;
}

/* Returns how many descriptors came; 0 at the end. */
static inline int receive_with(int from, void *bytes, size_t size, int *fds)
{
	union {
		char bytes[CMSG_SPACE(64 * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec v = { bytes, size };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	struct cmsghdr *h;

	if (recvmsg(from, &m, MSG_CMSG_CLOEXEC) != (ssize_t)size || !(h = CMSG_FIRSTHDR(&m)))
		return 0;
	memcpy(fds, CMSG_DATA(h), h->cmsg_len - CMSG_LEN(0));
	return (int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
}

#endif
