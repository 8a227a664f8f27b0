// SPDX-License-Identifier: MIT
/*
 * abi_fuzz.c - a libFuzzer target over the C ABI, on the simulated drivers.
 *
 * The input is a script of calls: a byte says which, the bytes after it choose
 * the arguments, right and wrong ones. A model of the library says what each
 * call must answer. When the script has made a driver call fail, an answer need
 * only be one that the header lists. At the end of each input everything must
 * be gone again.
 *
 * GDRCOPY_BACKEND picks the backend; it is dmabuf unless set.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gdrapi.h"
#include "gdrapi_ext.h"

#undef gdr_get_info
int gdr_get_info(gdr_t g, gdr_mh_t handle, void *info);

#define CONTEXTS 3
#define MEMORIES 3
#define BUFFERS 6
#define PAGE 4096ul
#define MEM_BYTES (16 * PAGE)
#define CALLS 200	/* of one input, at most */

/* The model. A handle stays when its object is gone: it is stale then. */
struct context {
	gdr_t g;
	bool open;
};

struct memory {
	gdr_mem_t m;
	int owner;	/* index of a context */
	unsigned long dptr;
	size_t size;
	bool live;
};

struct buffer {
	gdr_mh_t mh;
	int owner;
	unsigned long dptr;
	size_t pinned;
	uintptr_t va;
	size_t asked;	/* of gdr_map */
	bool live, mapped;
};

static struct {
	struct context contexts[CONTEXTS];
	struct memory memories[MEMORIES];
	struct buffer buffers[BUFFERS];
	bool faulty;	/* a driver call was told to fail */
	const uint8_t *data;
	size_t left;
} w;

/* Of the simulated libcuda. */
static void (*cuda_sim_fail)(const char *name, int result, int nth);
static unsigned long (*cuda_sim_live)(void);
static bool dmabuf;

/* The first standard error: libFuzzer closes that of the library if asked to. */
static int report_fd = STDERR_FILENO;

static const char *const driver_calls[] = {
	"cuInit", "cuDeviceGet", "cuDeviceGetAttribute", "cuDeviceGetCount",
	"cuCtxGetCurrent", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2",
	"cuPointerGetAttribute", "cuPointerSetAttribute", "cuMemCreate",
	"cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
	"cuMemGetAllocationGranularity", "cuMemGetHandleForAddressRange",
	"cuMemRetainAllocationHandle", "cuMemExportToShareableHandle",
	"cuMemGetAllocationPropertiesFromHandle", "cuMemGetAddressRange_v2",
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void fail(const char *call, long got, long want)
{
	dprintf(report_fd, "abi_fuzz: %s gives %ld, want %ld\n", call, got, want);
	abort();
}

static uint8_t byte(void)
{
	if (!w.left)
		return 0;
	w.left--;
	return *w.data++;
}

static uint64_t word(void)
{
	uint64_t v = 0;

	for (int i = 0; i < 8; i++)
		v = v << 8 | byte();
	return v;
}

/* Whether an answer is one that a failing driver may bring about. */
static bool documented(int rc)
{
	switch (rc) {
	case 0: case EINVAL: case ENOMEM: case ENOTSUP: case ENODEV: case EMFILE:
	case EAGAIN: case EIO: case EPERM: case EBUSY:
		return true;
	}
	return false;
}

static void check(const char *call, int got, int want)
{
	if (got == want)
		return;
	if (w.faulty && documented(got))
		return;
	fail(call, got, want);
}

/* Sizes around the edges, and any. */
static size_t some_size(size_t right)
{
	switch (byte() % 12) {
	case 0: return 0;
	case 1: return 1;
	case 2: return right + 1;
	case 3: return right - 1;
	case 4: return right + PAGE;
	case 5: return SIZE_MAX;
	case 6: return SIZE_MAX - PAGE + 1;
	case 7: return word();
	default: return right;
	}
}

static size_t round_up(size_t n)
{
	return (n + PAGE - 1) & ~(PAGE - 1);
}

/* A value that is like a handle: mostly right, else stale, forged or 0. */
static uint64_t some_handle(uint64_t right)
{
	switch (byte() % 16) {
	case 0: return 0;
	case 1: return word();
	case 2: return right ^ 1ull << byte() % 64;
	case 3: return w.buffers[byte() % BUFFERS].mh.h;
	case 4: return w.memories[byte() % MEMORIES].m.h;
	case 5: return (uintptr_t)w.contexts[byte() % CONTEXTS].g;
	default: return right;
	}
}

/* The context of a value, or NULL: what the library must find, too. */
static struct context *find_context(uint64_t h)
{
	for (int i = 0; i < CONTEXTS; i++)
		if (w.contexts[i].open && (uintptr_t)w.contexts[i].g == h)
			return &w.contexts[i];
	return NULL;
}

static struct buffer *find_buffer(const struct context *c, uint64_t h)
{
	for (int i = 0; i < BUFFERS; i++)
		if (w.buffers[i].live && w.buffers[i].mh.h == h &&
		    (!c || &w.contexts[w.buffers[i].owner] == c))
			return &w.buffers[i];
	return NULL;
}

static struct memory *find_memory(const struct context *c, uint64_t h)
{
	for (int i = 0; i < MEMORIES; i++)
		if (w.memories[i].live && w.memories[i].m.h == h &&
		    &w.contexts[w.memories[i].owner] == c)
			return &w.memories[i];
	return NULL;
}

static uint64_t some_g(int right)
{
	return some_handle((uintptr_t)w.contexts[right].g);
}

/* The calls. */

static void do_open(void)
{
	struct context *c = &w.contexts[byte() % CONTEXTS];

	if (c->open)
		return;
	c->g = gdr_open();
	c->open = c->g != NULL;
	if (!c->open && !w.faulty)
		fail("gdr_open", 0, 1);
}

static void forget(struct context *c)
{
	int index = c - w.contexts;

	c->open = false;
	for (int i = 0; i < BUFFERS; i++)
		if (w.buffers[i].owner == index)
			w.buffers[i].live = w.buffers[i].mapped = false;
	for (int i = 0; i < MEMORIES; i++)
		if (w.memories[i].owner == index)
			w.memories[i].live = false;
}

static void do_close(void)
{
	uint64_t g = some_g(byte() % CONTEXTS);
	struct context *c = find_context(g);

	check("gdr_close", gdr_close((gdr_t)g), c ? 0 : EINVAL);
	if (c)
		forget(c);
}

static void do_mem_alloc(void)
{
	struct memory *m = &w.memories[byte() % MEMORIES];
	int owner = byte() % CONTEXTS;
	uint64_t g = some_g(owner);
	struct context *c = find_context(g);
	size_t size = byte() % 4 ? MEM_BYTES : 0;
	unsigned int flags = byte() % 8 ? 0 : 1;
	bool null = byte() % 16 == 0;
	int rc, want;

	if (m->live)
		return;
	want = c && size && !flags && !null ? 0 : EINVAL;
	rc = gdr_mem_alloc((gdr_t)g, 0, size, flags, null ? NULL : &m->m);
	check("gdr_mem_alloc", rc, want);
	if (rc)
		return;
	m->owner = c - w.contexts;
	m->live = true;
	rc = gdr_mem_get_device_ptr((gdr_t)g, m->m, &m->dptr, &m->size);
	if (rc || !m->dptr || m->size < size)
		fail("gdr_mem_get_device_ptr", rc, 0);
}

static void do_mem_free(void)
{
	struct memory *m = &w.memories[byte() % MEMORIES];
	uint64_t g = some_g(m->owner), h = some_handle(m->m.h);
	struct memory *found = find_memory(find_context(g), h);

	check("gdr_mem_free", gdr_mem_free((gdr_t)g, (gdr_mem_t){ h }), found ? 0 : EINVAL);
	if (found)
		found->live = false;
}

static void do_mem_ptr(void)
{
	struct memory *m = &w.memories[byte() % MEMORIES];
	uint64_t g = some_g(m->owner), h = some_handle(m->m.h);
	struct memory *found = find_memory(find_context(g), h);
	unsigned long dptr = 0;
	size_t size = 0;
	int rc;

	rc = gdr_mem_get_device_ptr((gdr_t)g, (gdr_mem_t){ h }, &dptr, byte() % 4 ? &size : NULL);
	check("gdr_mem_get_device_ptr", rc, found ? 0 : EINVAL);
	if (!rc && dptr != found->dptr)
		fail("the device pointer", dptr, found->dptr);
}

static void do_pin(void)
{
	struct buffer *b = &w.buffers[byte() % BUFFERS];
	struct memory *m = &w.memories[byte() % MEMORIES];
	uint64_t g = some_g(m->owner);
	struct context *c = find_context(g);
	size_t offset = byte() % 4 * PAGE, size = some_size((1 + byte() % 4) * PAGE);
	unsigned long addr = m->dptr + offset;
	bool v2 = byte() & 1, null = byte() % 16 == 0;
	uint32_t flags = v2 && !(byte() % 4) ? byte() : 0;
	gdr_mh_t mh = { 0 };
	int rc;
	bool good;

	if (b->live)
		return;
	if (!(byte() % 16))
		addr = word();
	else if (!(byte() % 16))
		addr += byte();
	good = c && m->live && addr >= m->dptr && addr < m->dptr + m->size && size &&
	       size <= m->dptr + m->size - addr && flags <= 1 && !null;
	rc = v2 ? gdr_pin_buffer_v2((gdr_t)g, addr, size, flags, null ? NULL : &mh) :
		  gdr_pin_buffer((gdr_t)g, addr, size, 0, 0, null ? NULL : &mh);
	/*
	 * Refusing more than the range of an allocation is ENOTSUP on Vulkan;
	 * the simulated dma-bufs cannot overlap from different starts: EIO.
	 * An address made up may be some other live memory's.
	 */
	if (good && rc && !(dmabuf && rc == EIO))
		check("gdr_pin_buffer", rc, 0);
	if (!good && rc && rc != EINVAL && rc != ENOTSUP && rc != EIO)
		check("gdr_pin_buffer", rc, EINVAL);
	if (!good && !rc && (!c || !size || flags > 1 || null))
		fail("gdr_pin_buffer", rc, EINVAL);
	if (rc)
		return;
	*b = (struct buffer){ .mh = mh, .owner = c - w.contexts, .dptr = addr,
			      .pinned = size, .live = true };
}

static void do_unpin(void)
{
	struct buffer *b = &w.buffers[byte() % BUFFERS];
	uint64_t g = some_g(b->owner), h = some_handle(b->mh.h);
	struct context *c = find_context(g);
	struct buffer *found = c ? find_buffer(c, h) : NULL;

	check("gdr_unpin_buffer", gdr_unpin_buffer((gdr_t)g, (gdr_mh_t){ h }),
	      found ? 0 : EINVAL);
	if (found)
		found->live = found->mapped = false;
}

static void do_map(void)
{
	struct buffer *b = &w.buffers[byte() % BUFFERS];
	uint64_t g = some_g(b->owner), h = some_handle(b->mh.h);
	struct context *c = find_context(g);
	struct buffer *found = c ? find_buffer(c, h) : NULL;
	size_t size = some_size(b->pinned);
	int flags = byte() % 4 ? GDR_MAP_FLAG_DEFAULT : (int)(byte() % 6) - 1;
	bool null = byte() % 16 == 0;
	void *va = NULL;
	int rc, want = EINVAL;

	if (found && !null && flags >= 0 && flags <= GDR_MAP_FLAG_REQ_DEVICE_MAPPING) {
		if (found->mapped)
			want = EAGAIN;
		else if (size && round_up(size) >= size &&
			 round_up(size) <= round_up(found->pinned) &&
			 flags <= GDR_MAP_FLAG_REQ_WC_MAPPING && !(found->dptr % PAGE))
			want = 0;
	}
	rc = gdr_map_v2((gdr_t)g, (gdr_mh_t){ h }, null ? NULL : &va, size, flags);
	check("gdr_map_v2", rc, want);
	if (rc)
		return;
	found->va = (uintptr_t)va;
	found->asked = size;
	found->mapped = true;
}

static void do_unmap(void)
{
	struct buffer *b = &w.buffers[byte() % BUFFERS];
	uint64_t g = some_g(b->owner), h = some_handle(b->mh.h);
	struct context *c = find_context(g);
	struct buffer *found = c ? find_buffer(c, h) : NULL;
	uintptr_t va = byte() % 8 ? b->va : b->va + word() % (4 * PAGE);
	size_t size = some_size(b->asked);
	bool good = found && found->mapped && va == found->va &&
		    round_up(size) >= size && round_up(size) == round_up(found->asked);

	check("gdr_unmap", gdr_unmap((gdr_t)g, (gdr_mh_t){ h }, (void *)va, size), good ? 0 : EINVAL);
	if (good)
		found->mapped = false;
}

/* In host memory of just the size, so that a byte too many is seen. */
static void do_copy(void)
{
	struct buffer *b = &w.buffers[byte() % BUFFERS];
	uint64_t h = some_handle(b->mh.h);
	struct buffer *found = find_buffer(NULL, h);
	size_t mapped = round_up(b->asked);
	size_t at = (byte() << 8 | byte()) % (mapped + 3);
	size_t n = some_size(byte() % 2 ? byte() : mapped - at);
	size_t room = n <= 8 * PAGE ? n : 1;
	unsigned char *out = malloc(room + 1), *in = malloc(room + 1);
	uintptr_t dev = b->va + at;
	bool null = byte() % 16 == 0, fits;
	int want;

	if (!out || !in)
		abort();
	memset(out, byte(), room);
	mapped = found ? round_up(found->asked) : 0;
	fits = found && found->mapped && dev >= found->va &&
	       dev - found->va <= mapped && n <= mapped - (dev - found->va);
	want = found && found->mapped && (!n || (fits && !null)) ? 0 : EINVAL;
	check("gdr_copy_to_mapping", gdr_copy_to_mapping((gdr_mh_t){ h }, (void *)dev,
							null ? NULL : out, n), want);
	check("gdr_copy_from_mapping", gdr_copy_from_mapping((gdr_mh_t){ h }, null ? NULL : in,
							    (void *)dev, n), want);
	if (!want && n && memcmp(in, out, n))
		fail("the data", 0, 1);
	free(out);
	free(in);
}

static void do_info(void)
{
	struct buffer *b = &w.buffers[byte() % BUFFERS];
	uint64_t g = some_g(b->owner), h = some_handle(b->mh.h);
	struct context *c = find_context(g);
	struct buffer *found = c ? find_buffer(c, h) : NULL;
	int want = found ? 0 : EINVAL, flag = -1;
	unsigned char *v1 = malloc(40);
	gdr_info_v2_t info;
	int rc;

	if (!v1)
		abort();
	check("gdr_get_info", gdr_get_info((gdr_t)g, (gdr_mh_t){ h }, v1), want);
	free(v1);
	check("gdr_get_info", gdr_get_info((gdr_t)g, (gdr_mh_t){ h }, NULL), EINVAL);
	check("gdr_get_callback_flag", gdr_get_callback_flag((gdr_t)g, (gdr_mh_t){ h }, &flag), want);
	rc = gdr_get_info_v2((gdr_t)g, (gdr_mh_t){ h }, &info);
	check("gdr_get_info_v2", rc, want);
	if (rc)
		return;
	if (flag || info.va != found->dptr || info.mapped != found->mapped ||
	    info.mapped_size < found->pinned)
		fail("gdr_get_info_v2: the content", 0, 1);
}

static void do_attribute(void)
{
	uint64_t g = some_g(byte() % CONTEXTS);
	int attr = byte() % 8 ? byte() % 6 : (int)word();
	int want = find_context(g) && attr > 0 && attr < GDR_ATTR_MAX ? 0 : EINVAL;
	int v = -1, major, minor;
	const char *s;
	int rc;

	rc = gdr_get_attribute((gdr_t)g, attr, &v);
	check("gdr_get_attribute", rc, want);
	if (!rc && v != 0 && v != 1)
		fail("the attribute", v, 1);
	check("gdr_driver_get_version", gdr_driver_get_version((gdr_t)g, &major, &minor),
	      find_context(g) ? 0 : EINVAL);
	gdr_runtime_get_version(&major, &minor);
	check("gdr_get_mapping_type_string", gdr_get_mapping_type_string(attr, &s),
	      attr >= 0 && attr < GDR_MAPPING_TYPE_MAX ? 0 : EINVAL);
}

static void do_fault(void)
{
	static const int results[] = { 1, 2, 3, 100, 201, 304, 400, 801, 999, 12345 };
	const char *name = driver_calls[byte() % COUNT(driver_calls)];

	w.faulty = true;
	cuda_sim_fail(name, results[byte() % COUNT(results)], byte() % 4);
}

static void no_faults(void)
{
	if (!w.faulty)
		return;
	for (size_t i = 0; i < COUNT(driver_calls); i++)
		cuda_sim_fail(driver_calls[i], 0, 0);
}

static void (*const calls[])(void) = {
	do_open, do_mem_alloc, do_pin, do_pin, do_map, do_map, do_copy, do_copy,
	do_copy, do_unmap, do_unpin, do_info, do_mem_ptr, do_mem_free, do_attribute,
	do_close, do_fault,
};

/* So that a short input gets somewhere: one of each, ready to be used. */
static void begin(void)
{
	struct context *c = &w.contexts[0];
	struct memory *m = &w.memories[0];

	c->g = gdr_open();
	if (!c->g)
		fail("gdr_open", 0, 1);
	c->open = true;
	if (gdr_mem_alloc(c->g, 0, MEM_BYTES, 0, &m->m) ||
	    gdr_mem_get_device_ptr(c->g, m->m, &m->dptr, &m->size))
		fail("gdr_mem_alloc", 1, 0);
	m->live = true;
}

/* Everything goes, and stays gone. */
static void end(void)
{
	no_faults();
	for (int i = 0; i < CONTEXTS; i++) {
		struct context *c = &w.contexts[i];
		int rc;

		if (!c->open)
			continue;
		rc = gdr_close(c->g);
		if (rc && !w.faulty)
			fail("gdr_close at the end", rc, 0);
		forget(c);
		if (gdr_close(c->g) != EINVAL)
			fail("gdr_close twice", 0, EINVAL);
	}
	for (int i = 0; i < BUFFERS; i++)
		if (w.buffers[i].mh.h && gdr_copy_to_mapping(w.buffers[i].mh, NULL, NULL, 0) != EINVAL)
			fail("a copy after gdr_close", 0, EINVAL);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	const char *backend;
	void *cuda;

	(void)argc;
	(void)argv;
	report_fd = dup(STDERR_FILENO);
	setenv("GDRCOPY_BACKEND", "dmabuf", 0);
	backend = getenv("GDRCOPY_BACKEND");
	dmabuf = !strcmp(backend, "dmabuf");
	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (cuda) {
		*(void **)&cuda_sim_fail = dlsym(cuda, "cuda_sim_fail");
		*(void **)&cuda_sim_live = dlsym(cuda, "cuda_sim_live");
	}
	if (!cuda_sim_fail || !cuda_sim_live) {
		fputs("abi_fuzz: needs the simulated libcuda.so.1 on LD_LIBRARY_PATH\n", stderr);
		exit(2);
	}
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static unsigned long live;
	static bool measured;

	memset(&w, 0, sizeof(w));
	w.data = data;
	w.left = size;
	begin();
	for (int i = 0; i < CALLS && w.left; i++)
		calls[byte() % COUNT(calls)]();
	end();
	/* A driver that failed to free may have lost something. */
	if (measured && !w.faulty && cuda_sim_live() != live)
		fail("the number of live driver objects", cuda_sim_live(), live);
	live = cuda_sim_live();
	measured = true;
	return 0;
}
