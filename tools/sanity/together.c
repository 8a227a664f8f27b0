/* SPDX-License-Identifier: MIT */
/*
 * sanity/together.c - mappings of all kinds, opens, threads and GPUs beside each other.
 */
#include "sanity.h"

#include <pthread.h>

/* Live mappings of all memory kinds and all types that can be had, at once. */
static void mixed(struct env *e)
{
	enum { MAX = 2 * MEM_KINDS * GDR_MAPPING_TYPE_MAX };
	unsigned types = 0;
	struct buf b[MAX];
	struct map m[MAX];
	int n = 0, kind, type, i;

	start(e);
	for (kind = 0; kind < MEM_KINDS; kind++)
		for (type = 0; type < 2 * GDR_MAPPING_TYPE_MAX; type++) {
			bool pcie = type >= GDR_MAPPING_TYPE_MAX;
			gdr_info_t info;

			if (pcie && !e->force_pcie)
				continue;
			buf_alloc(e, &b[n], kind, GPU_PAGE_SIZE);
			m[n] = (struct map){ .size = b[n].size };
			check_rc(gdr_pin_buffer_v2(e->g, b[n].addr, b[n].size,
						   pcie, &m[n].mh), 0);
			if (gdr_map_v2(e->g, m[n].mh, &m[n].va, b[n].size,
				       type % GDR_MAPPING_TYPE_MAX)) {
				check(m[n].va == NULL);
				check_rc(gdr_unpin_buffer(e->g, m[n].mh), 0);
				buf_free(e, &b[n]);
				continue;
			}
			m[n].p = m[n].va;
			mark(&info, sizeof(info));
			check_rc(gdr_get_info(e->g, m[n].mh, &info), 0);
			check(info.mapping_type > GDR_MAPPING_TYPE_NONE &&
			      info.mapping_type < GDR_MAPPING_TYPE_MAX);
			types |= 1u << info.mapping_type;
			n++;
		}
	note("%d mappings, set of types %#x", n, types);
	check(n >= 2);
	for (i = 0; i < n; i++)
		copy_both_ways(e, &m[i], b[i].addr, b[i].size);
	for (i = 0; i < n; i++) {
		free_mapped(e, &b[i], &m[i]);
	}
}

static void two_pins(struct env *e)
{
	unsigned char in[1000], out[1000];
	struct buf b;
	struct map one, two;

	start(e);
	alloc_mapped(e, &b, &one, MEM_PLAIN, GPU_PAGE_SIZE);
	map_make(e, &two, b.addr, b.size);
	check(one.mh.h != two.mh.h);
	check(one.va != two.va);
	fill(in, sizeof(in), 3);
	check_rc(gdr_copy_to_mapping(one.mh, one.p + 3, in, sizeof(in)), 0);
	check_rc(gdr_copy_from_mapping(two.mh, out, two.p + 3, sizeof(out)), 0);
	check(memcmp(in, out, sizeof(in)) == 0);
	/* A pointer into the one mapping does not fit the other's handle. */
	check_rc(gdr_copy_to_mapping(one.mh, two.p, in, 8), EINVAL);
	map_drop(e, &one);
	check_rc(gdr_copy_from_mapping(two.mh, out, two.p + 3, sizeof(out)), 0);
	check(memcmp(in, out, sizeof(in)) == 0);
	free_mapped(e, &b, &two);
}

/* Two gdr_t over the same memory; neither knows the other's handle. */
static void two_opens(struct env *e)
{
	uint32_t in = 0xfeedface, out = 0;
	gdr_t first, second;
	struct map a, b;
	struct buf buf;

	start(e);
	first = e->g;
	second = gdr_open();
	check(second != NULL && second != first);
	alloc_mapped(e, &buf, &a, MEM_PLAIN, GPU_PAGE_SIZE);
	e->g = second;
	map_make(e, &b, buf.addr, buf.size);
	check_rc(gdr_copy_to_mapping(a.mh, a.p, &in, 4), 0);
	check_rc(gdr_close(first), 0);
	check_rc(gdr_copy_from_mapping(b.mh, &out, b.p, 4), 0);
	check_eq(out, in);
	check(!write_faults(b.p) && is_gone(a.p) && *(volatile unsigned char *)b.p == WRITTEN);
	map_drop(e, &b);
	check_rc(gdr_close(second), 0);
	buf_free(e, &buf);
}

struct thread_arg {
	struct env *e;
	struct buf *b;
	struct map m;
};

static void *pin_in_thread(void *p)
{
	struct thread_arg *t = p;
	struct env *e = t->e;
	cu_ctx before = NULL, after = NULL;

	check_cu(e->cu.ctx_get(&before));
	check(before == NULL);
	map_make(e, &t->m, t->b->addr, t->b->size);
	check_cu(e->cu.ctx_get(&after));
	check(after == NULL);
	return NULL;
}

/* A thread with no CUDA context pins; its work outlives it. */
static void child_thread(struct env *e)
{
	struct thread_arg t = { .e = e };
	pthread_t thread;
	struct buf b;
	cu_ctx ctx;
	int k;

	start(e);
	for (k = 0; k < MEM_KINDS; k++) {
		buf_alloc(e, &b, k, GPU_PAGE_SIZE);
		t.b = &b;
		check_rc(pthread_create(&thread, NULL, pin_in_thread, &t), 0);
		check_rc(pthread_join(thread, NULL), 0);
		copy_both_ways(e, &t.m, b.addr, b.size);
		map_drop(e, &t.m);
		buf_free(e, &b);
	}
	check_cu(e->cu.ctx_get(&ctx));
	check(ctx == e->ctx);
}

static void two_gpus(struct env *e)
{
	const uint64_t in[2] = { 0x1111111111111111, 0x2222222222222222 };
	int gpu[2] = { e->gpu, (e->gpu + 1) % e->gpus }, dev, i, k;
	cu_ctx ctx[2];
	struct buf b[2];
	struct map m[2];
	uint64_t out;

	if (e->gpus < 2)
		skip("one GPU here");
	start(e);
	ctx[0] = e->ctx;
	check_cu(e->cu.device_get(&dev, gpu[1]));
	check_cu(e->cu.primary_retain(&ctx[1], dev));
	for (k = 0; k < MEM_KINDS; k++) {
		for (i = 0; i < 2; i++) {
			check_cu(e->cu.ctx_set(ctx[i]));
			buf_alloc_on(e, &b[i], k, GPU_PAGE_SIZE, gpu[i]);
		}
		/* The first is pinned while the other's context is current. */
		for (i = 0; i < 2; i++)
			map_make(e, &m[i], b[i].addr, b[i].size);
		for (i = 0; i < 2; i++)
			check_rc(gdr_copy_to_mapping(m[i].mh, m[i].p, &in[i], 8), 0);
		for (i = 0; i < 2; i++) {
			check_rc(gdr_copy_from_mapping(m[i].mh, &out, m[i].p, 8), 0);
			check_eq(out, in[i]);
			check_cu(e->cu.ctx_set(ctx[i]));
			gpu_check(e, b[i].addr, &in[i], 8);
			free_mapped(e, &b[i], &m[i]);
		}
	}
	check_cu(e->cu.ctx_set(e->ctx));
	check_cu(e->cu.primary_release(dev));
}

const struct sanity_case together_cases[] = {
	{ "mixed", mixed, BE_ALL, NULL },
	{ "two_pins", two_pins, BE_ALL, NULL },
	{ "two_opens", two_opens, BE_ALL, NULL },
	{ "child_thread", child_thread, BE_ALL, NULL },
	{ "two_gpus", two_gpus, BE_ALL, NULL },
	{ NULL, NULL, 0, NULL }
};
