/* SPDX-License-Identifier: MIT */
/*
 * sanity/life.c - what is left of a mapping, a pinning or a gdr_t once it is
 * ended, in any order: a fault or EINVAL, and never another one's memory.
 */
#include "sanity.h"

/* The library refuses the handle, whatever is at its old address now. */
static void expect_stale(struct env *e, const struct map *m)
{
	unsigned char byte = 0;
	gdr_info_t info;
	void *va = NULL;

	mark(&info, sizeof(info));
	check_rc(gdr_copy_to_mapping(m->mh, m->p, &byte, 1), EINVAL);
	check_rc(gdr_copy_from_mapping(m->mh, &byte, m->p, 1), EINVAL);
	check_rc(gdr_copy_to_mapping(m->mh, m->p, &byte, 0), EINVAL);
	check_rc(gdr_get_info(e->g, m->mh, &info), EINVAL);
	check_rc(gdr_map(e->g, m->mh, &va, m->size), EINVAL);
	check_rc(gdr_unmap(e->g, m->mh, m->va, m->size), EINVAL);
	check_rc(gdr_unpin_buffer(e->g, m->mh), EINVAL);
	check(byte == 0 && va == NULL && untouched(&info, sizeof(info)));
}

/* Writes WRITTEN at both ends, for is_gone. */
static void write_ends(const struct map *m)
{
	check(!write_faults(m->p) && !write_faults(m->p + m->size - 1));
}

/* The library refuses the handle, and the CPU's access faults or misses the memory. */
static void expect_gone(struct env *e, const struct map *m)
{
	check(is_gone(m->p));
	check(is_gone(m->p + m->size - 1));
	expect_stale(e, m);
}

static void access_after_unmap(struct env *e)
{
	unsigned char byte = 1;
	struct buf b;
	struct map m;
	void *va;

	start(e);
	alloc_mapped(e, &b, &m, MEM_PLAIN, GPU_PAGE_SIZE);
	check(!read_faults(m.p) && !write_faults(m.p));
	check_rc(gdr_unmap(e->g, m.mh, m.va, m.size), 0);
	check(is_gone(m.p));
	check_rc(gdr_copy_to_mapping(m.mh, m.p, &byte, 1), EINVAL);
	check_rc(gdr_copy_from_mapping(m.mh, &byte, m.p, 1), EINVAL);
	check_rc(gdr_copy_to_mapping(m.mh, m.p, &byte, 0), EINVAL);
	check_rc(gdr_unmap(e->g, m.mh, m.va, m.size), EINVAL);
	check_eq(byte, 1);

	/* Still pinned: it maps again, and the bytes are still there. */
	check_rc(gdr_map(e->g, m.mh, &va, m.size), 0);
	check_rc(gdr_copy_from_mapping(m.mh, &byte, va, 1), 0);
	check_eq(byte, 0xbd);
	check_rc(gdr_unmap(e->g, m.mh, va, m.size), 0);
	check_rc(gdr_unpin_buffer(e->g, m.mh), 0);
	buf_free(e, &b);
}

static void access_after_unpin(struct env *e)
{
	struct buf b;
	struct map m;

	start(e);
	alloc_mapped(e, &b, &m, MEM_PLAIN, GPU_PAGE_SIZE);
	write_ends(&m);
	check_rc(gdr_unpin_buffer(e->g, m.mh), 0);
	expect_gone(e, &m);
	buf_free(e, &b);
}

static void access_after_close(struct env *e)
{
	enum { N = 5 };
	unsigned long addr = 7;
	gdr_t old;
	struct buf b[N];
	struct map m[N];
	int i, v = 7;

	start(e);
	for (i = 0; i < N; i++) {
		alloc_mapped(e, &b[i], &m[i], i == 0 ? MEM_EXT : MEM_PLAIN, GPU_PAGE_SIZE);
		write_ends(&m[i]);
	}
	check_rc(gdr_unmap(e->g, m[1].mh, m[1].va, m[1].size), 0);
	check_rc(gdr_close(e->g), 0);
	for (i = 0; i < N; i++)
		expect_gone(e, &m[i]);
	check_rc(gdr_close(e->g), EINVAL);
	check_rc(gdr_get_attribute(e->g, GDR_ATTR_USE_PERSISTENT_MAPPING, &v),
		 EINVAL);
	check_rc(gdr_mem_get_device_ptr(e->g, b[0].ext, &addr, NULL), EINVAL);
	check(v == 0 && addr == 7);	/* a failure stores 0 in the attribute */

	/* A new gdr_t does not bring the old handles back. */
	old = e->g;
	e->g = gdr_open();
	check(e->g != NULL && e->g != old);
	for (i = 0; i < N; i++)
		expect_stale(e, &m[i]);
	check_rc(gdr_mem_free(e->g, b[0].ext), EINVAL);
	for (i = 1; i < N; i++)
		buf_free(e, &b[i]);
	check_rc(gdr_close(e->g), 0);
}

/* The memory is freed under a live mapping. */
static void free_under(struct env *e, enum mem_kind kind)
{
	unsigned char ours[256], theirs[256], seen[256];
	struct buf b, next;
	struct map m;
	int flag = -1;

	alloc_mapped(e, &b, &m, kind, GPU_PAGE_SIZE);
	fill(ours, sizeof(ours), 1);
	fill(theirs, sizeof(theirs), 2);
	check_rc(gdr_copy_to_mapping(m.mh, m.p, ours, sizeof(ours)), 0);
	buf_free(e, &b);
	buf_alloc(e, &next, kind, GPU_PAGE_SIZE);
	gpu_write(e, next.addr, theirs, sizeof(theirs));

	check_rc(gdr_get_callback_flag(e->g, m.mh, &flag), 0);
	if (e->persistent) {
		/* The pinning holds the memory, so it is nobody else's. */
		check_eq(flag, 0);
		check_rc(gdr_copy_from_mapping(m.mh, seen, m.p, sizeof(seen)), 0);
		check(memcmp(seen, ours, sizeof(seen)) == 0);
		check_rc(gdr_copy_to_mapping(m.mh, m.p, theirs, 1), 0);
		check_rc(gdr_copy_from_mapping(m.mh, seen, m.p, sizeof(seen)), 0);
		check(seen[0] == theirs[0] && memcmp(seen + 1, ours + 1, sizeof(seen) - 1) == 0);
	} else {
		check_eq(flag, 1);
		check(read_faults(m.p));
	}
	if (e->persistent)
		write_ends(&m);
	gpu_check(e, next.addr, theirs, sizeof(theirs));
	check_rc(gdr_unpin_buffer(e->g, m.mh), 0);
	expect_gone(e, &m);
	buf_free(e, &next);
}

static void access_after_free(struct env *e)
{
	int k;

	start(e);
	for (k = 0; k < MEM_KINDS; k++)
		free_under(e, k);
}

/* After the first round nothing may be left behind by another one. */
static void no_leaks(struct env *e)
{
	int round, fds = 0, inheritable = count_inheritable_fds();
	struct buf b;
	struct map m;

	start_cuda(e);
	for (round = 0; round < 30; round++) {
		e->g = gdr_open();
		check(e->g != NULL);
		alloc_mapped(e, &b, &m, MEM_PLAIN, GPU_PAGE_SIZE);
		if (round % 3 == 0)
			map_drop(e, &m);
		if (round % 3 == 1)
			check_rc(gdr_unmap(e->g, m.mh, m.va, m.size), 0);
		check_rc(gdr_close(e->g), 0);
		buf_free(e, &b);
		if (round == 3)
			fds = count_fds();
	}
	check_eq(count_fds(), fds);
	note("%d descriptors stay open, %d of them inheritable, %d before",
	     fds, count_inheritable_fds(), inheritable);
}

/* What a pinning opens must not reach a program that the process starts. */
static void close_on_exec(struct env *e)
{
	int inheritable, fds;
	struct buf b;
	struct map m;
	gdr_t g;

	start(e);
	alloc_mapped(e, &b, &m, MEM_PLAIN, GPU_PAGE_SIZE);	/* lets the drivers open theirs */
	map_drop(e, &m);
	inheritable = count_inheritable_fds();
	fds = count_fds();
	g = e->g;
	e->g = gdr_open();
	check(e->g != NULL);
	map_make(e, &m, b.addr, b.size);
	note("a second open and pinning hold %d descriptors", count_fds() - fds);
	if (e->backend == BE_DMABUF)
		check(count_fds() > fds);
	check_eq(count_inheritable_fds(), inheritable);
	map_drop(e, &m);
	check_rc(gdr_close(e->g), 0);
	check_rc(gdr_close(g), 0);
	buf_free(e, &b);
}

const struct sanity_case life_cases[] = {
	{ "access_after_unmap", access_after_unmap, BE_ALL, NULL },
	{ "access_after_unpin", access_after_unpin, BE_ALL, NULL },
	{ "access_after_close", access_after_close, BE_ALL, NULL },
	{ "access_after_free", access_after_free, BE_ALL, NULL },
	{ "no_leaks", no_leaks, BE_ALL, NULL },
	{ "close_on_exec", close_on_exec, BE_ALL, NULL },
	{ NULL, NULL, 0, NULL }
};
