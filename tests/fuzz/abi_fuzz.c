// SPDX-License-Identifier: MIT
/*
 * abi_fuzz.c - a libFuzzer target over the C ABI, on the simulated drivers.
 *
 * The input is a script of calls: a byte says which, the bytes after it choose
 * the arguments, right and wrong ones. A model of the library says what each
 * call must answer, and what each byte that is read must be. When the script has
 * made a driver call fail, a call that needs the driver may fail as well, with
 * an error that the header lists. At the end of each input everything must be
 * gone again: the driver's objects and the file descriptors, too.
 *
 * GDRCOPY_BACKEND picks the backend; it is dmabuf unless set. On rm the program
 * runs by rm_sim. guest_threads runs the model in many threads at a time.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gdrapi.h"
#include "gdrapi_ext.h"
#include "model.h"

#undef gdr_get_info
int gdr_get_info(gdr_t g, gdr_mh_t handle, void *info);

#define CONTEXTS 3
#define MEMORIES 3
#define BUFFERS 6
#define CACHES 2
#define HOLDS 6
#define PAGE host_page
#define GPU_PAGE_BYTES 65536ul
#define MEM_BYTES 65536ul	/* of an allocation that is asked for and modelled */
#define CONTENTS 12	/* allocations of one input, at most */
#define CALLS 200	/* of one input, at most */
#define FAULTS 16	/* the same; the doubles have room for 64 rules */

/* The model. A handle stays when its object is gone: it is stale then. */
struct context {
	gdr_t g;
	bool open;
};

/* The first bytes of an allocation, as far as the script has read or written. */
struct content {
	uint8_t bytes[MEM_BYTES];
	bool known[MEM_BYTES];
};

struct memory {
	gdr_mem_t m;
	int owner;	/* index of a context */
	unsigned long dptr;
	size_t size;
	struct content *content;
	bool live;
};

/* A pinned buffer keeps its memory's content when the memory is freed. */
struct buffer {
	gdr_mh_t mh;
	int owner;
	unsigned long dptr;
	struct content *content;
	size_t offset;	/* in the content */
	size_t pinned;
	uintptr_t va;
	size_t asked;	/* of gdr_map */
	bool live, mapped;
};

struct cache {
	gdr_cache_t c;
	int owner;
	bool open;
};

/* What gdr_cache_get gave once. Several may have one handle. */
struct hold {
	gdr_mh_t mh;
	int cache;
	uintptr_t va;
	struct content *content;
	size_t offset;	/* in the content, of va */
	size_t size;
	bool live;
};

static _Thread_local struct {
	struct context contexts[CONTEXTS];
	struct memory memories[MEMORIES];
	struct buffer buffers[BUFFERS];
	struct cache caches[CACHES];
	struct hold holds[HOLDS];
	bool cached;	/* there was a cache: what it has pinned is its own */
	bool faulty;	/* a driver call was told to fail */
	int faults;	/* how many were */
	bool beside;	/* other threads have objects, none of which is guessed; any driver, which does not fail */
	struct content *memory;
	int contents;	/* how many of them are used */
	const uint8_t *data;
	size_t left;
} w;

/* Of the simulated drivers; rm_sim_fail is there for its backend alone. */
static void (*cuda_sim_fail)(const char *name, int result, int nth);
static unsigned long (*cuda_sim_live)(void);
static void (*rm_sim_fail)(const char *name, int result, int nth);
static bool rm;

static size_t host_page = 4096;

/* What a pinning is made of. */
static size_t pin_page = 4096;

/* The first standard error: libFuzzer closes that of the library if asked to. */
static int report_fd = STDERR_FILENO;

/* Calls that get something: when one fails, nothing may be lost. */
static const char *const cuda_calls[] = {
	"cuInit", "cuDriverGetVersion", "cuDeviceGet", "cuDeviceGetAttribute",
	"cuDeviceGetCount", "cuDeviceGetUuid", "cuCtxGetCurrent", "cuCtxGetDevice",
	"cuCtxGetFlags", "cuCtxSetFlags", "cuCtxPushCurrent_v2",
	"cuDevicePrimaryCtxRetain", "cuPointerGetAttribute", "cuPointerSetAttribute",
	"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
	"cuMemGetAllocationGranularity", "cuMemGetHandleForAddressRange",
	"cuMemRetainAllocationHandle", "cuMemExportToShareableHandle",
	"cuMemGetAllocationPropertiesFromHandle", "cuMemGetAddressRange_v2",
};

/* Of the simulated NVIDIA driver; what it opens fails with an errno. */
static const char *const rm_calls[] = {
	"ALLOC", "CONTROL", "DUP_OBJECT", "MAP_MEMORY", "OPEN", "CARD_INFO", "REGISTER_FD", "MMAP",
};
#define RM_STATUSES 4	/* how many of them fail with a status */

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
	case EINVAL: case ENOMEM: case ENOTSUP: case ENODEV: case EMFILE:
	case EAGAIN: case EIO: case EPERM: case EBUSY:
		return true;
	}
	return false;
}

/* Of a call that no driver has a part in. */
static void check(const char *call, int got, int want)
{
	if (got != want)
		fail(call, got, want);
}

/* Of a call that fails when the driver does. */
static void check_driver(const char *call, int got, int want)
{
	if (got != want && !(w.faulty && got && documented(got)))
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

static size_t round_to(size_t n, size_t page)
{
	return (n + page - 1) & ~(page - 1);
}

static size_t round_up(size_t n)
{
	return round_to(n, PAGE);
}

/* A value that is like a handle: mostly right, else stale, forged or 0. */
static uint64_t some_handle(uint64_t right)
{
	switch (byte() % 16) {
	case 0: return 0;
	case 1: return word();
	case 2: return w.beside ? right : right ^ 1ull << byte() % 64;
	case 3: return w.buffers[byte() % BUFFERS].mh.h;
	case 4: return w.memories[byte() % MEMORIES].m.h;
	case 5: return (uintptr_t)w.contexts[byte() % CONTEXTS].g;
	case 6: return w.cached ? w.caches[byte() % CACHES].c.h : right;
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

/* The live memory that a range lies in, or NULL. */
static struct memory *memory_at(unsigned long addr, size_t size)
{
	for (int i = 0; i < MEMORIES; i++) {
		struct memory *m = &w.memories[i];

		if (m->live && addr >= m->dptr && addr - m->dptr < m->size && size &&
		    size <= m->size - (addr - m->dptr))
			return m;
	}
	return NULL;
}

/* Whether each byte of a range is live memory, of any number of allocations. */
static bool all_memory(unsigned long addr, size_t size)
{
	while (size) {
		const struct memory *m = memory_at(addr, 1);
		size_t n = m ? m->size - (addr - m->dptr) : 0;

		if (!m)
			return false;
		n = n < size ? n : size;
		addr += n;
		size -= n;
	}
	return true;
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

static void forget_cache(struct cache *c)
{
	c->open = false;
	for (int i = 0; i < HOLDS; i++)
		if (&w.caches[w.holds[i].cache] == c)
			w.holds[i].live = false;
}

static void forget(struct context *c)
{
	int index = c - w.contexts;

	c->open = false;
	for (int i = 0; i < CACHES; i++)
		if (w.caches[i].owner == index)
			forget_cache(&w.caches[i]);
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

static void use_content(struct memory *m)
{
	m->content = &w.memory[w.contents++];
	memset(m->content->known, 0, sizeof(m->content->known));
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

	if (m->live || w.contents == CONTENTS)
		return;
	want = c && size && !flags && !null ? 0 : EINVAL;
	rc = gdr_mem_alloc((gdr_t)g, 0, size, flags, null ? NULL : &m->m);
	check_driver("gdr_mem_alloc", rc, want);
	if (rc)
		return;
	m->owner = c - w.contexts;
	m->live = true;
	use_content(m);
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

/*
 * The simulated libcuda has no two dma-bufs of overlapping ranges with different
 * starts, nor a longer one beside a shorter one of the same start.
 */
static bool beyond_simulation(const struct content *content, size_t offset, size_t size)
{
	if (rm || w.cached)
		return !rm;
	for (int i = 0; i < BUFFERS; i++) {
		const struct buffer *b = &w.buffers[i];

		if (b->live && b->content == content &&
		    (b->offset / PAGE != offset / PAGE ||
		     round_up(b->offset + b->pinned) < round_up(offset + size)))
			return true;
	}
	return false;
}

/* The same for a range of live memory, of several allocations. */
static bool part_beyond_simulation(unsigned long addr, size_t size)
{
	while (size) {
		const struct memory *m = memory_at(addr, 1);
		size_t offset = addr - m->dptr, n = m->size - offset;

		n = n < size ? n : size;
		if (beyond_simulation(m->content, offset, n))
			return true;
		addr += n;
		size -= n;
	}
	return false;
}

/* The bits of how are the arguments. */
static void export_memory(uint64_t g, uint64_t h, const struct memory *found, uint8_t how)
{
	unsigned int flags = how >> 4 & 3;
	bool null = how & 8;
	int fd = -1, rc;

	rc = gdr_mem_export_dmabuf((gdr_t)g, (gdr_mem_t){ h }, flags, null ? NULL : &fd);
	if (found && rc == EIO && beyond_simulation(found->content, 0, found->size))
		return;
	check_driver("gdr_mem_export_dmabuf", rc, found && !null && flags < 2 ? 0 : EINVAL);
	if (rc)
		return;
	if (fcntl(fd, F_GETFD) != FD_CLOEXEC)
		fail("the dma-buf", fd, 0);
	close(fd);
}

static void do_mem_ptr(void)
{
	struct memory *m = &w.memories[byte() % MEMORIES];
	uint64_t g = some_g(m->owner), h = some_handle(m->m.h);
	struct memory *found = find_memory(find_context(g), h);
	unsigned long dptr = 0;
	uint8_t how = byte();
	size_t size = 0;
	int rc;

	rc = gdr_mem_get_device_ptr((gdr_t)g, (gdr_mem_t){ h }, &dptr, how % 4 ? &size : NULL);
	check("gdr_mem_get_device_ptr", rc, found ? 0 : EINVAL);
	if (!rc && dptr != found->dptr)
		fail("the device pointer", dptr, found->dptr);
	if (!rc && size && size != found->size)
		fail("the size", size, found->size);
	if (how >= 64 && !w.beside)	/* not each driver exports */
		export_memory(g, h, found, how);
}

/* What can be mapped begins on such a page: half of the pinnings do. */
static size_t pin_offset(unsigned int page)
{
	return pin_page > PAGE && page % 2 == 0 ? page * GPU_PAGE_BYTES : page * PAGE;
}

/* The same on both sides of a descriptor. */
struct place {
	uint64_t offset, length;
	unsigned int count;
};

/* Memory of gdr_mem_alloc is one object. */
static bool find_place(gdr_t g, gdr_mh_t mh, struct place *p)
{
	int rc = gdr_get_object(g, mh, &p->offset, &p->length, &p->count);

	check_driver("gdr_get_object", rc, 0);
	if (rc)
		return false;
	if (p->count != 1 || p->offset >= p->length)
		fail("the object of a buffer", p->count, 1);
	return true;
}

/* The same buffer by a descriptor, as another process has it; or the buffer where the driver fails. */
static gdr_mh_t by_descriptor(gdr_t g, gdr_mh_t mh)
{
	struct place here, there;
	gdr_mh_t other;
	int fd, rc = gdr_export_fd(g, mh, 0, &fd);

	check_driver("gdr_export_fd", rc, 0);
	if (rc)
		return mh;
	rc = gdr_pin_fd(g, fd, 0, &other);
	check_driver("gdr_pin_fd", rc, 0);
	close(fd);
	if (rc)
		return mh;
	if (find_place(g, mh, &here) && find_place(g, other, &there) &&
	    (here.offset != there.offset || here.length != there.length))
		fail("the place in the object", there.offset, here.offset);
	check("gdr_unpin_buffer", gdr_unpin_buffer(g, mh), 0);
	return other;
}

static void do_pin(void)
{
	struct buffer *b = &w.buffers[byte() % BUFFERS];
	struct memory *m = &w.memories[byte() % MEMORIES];
	uint64_t g = some_g(m->owner);
	struct context *c = find_context(g);
	uint8_t page = byte();
	size_t offset = pin_offset(page % 4), size = some_size((1 + byte() % 4) * PAGE);
	unsigned long addr = m->dptr + offset;
	uint8_t way = byte();
	bool v2 = way & 1, own = way % 8 == 7, null = byte() % 16 == 0, refused;
	uint32_t flags = v2 && !(byte() % 4) && !w.beside ? byte() : 0;
	gdr_mh_t mh = { 0 };
	int rc;

	if (b->live)
		return;
	if (!(byte() % 16))
		addr = word();
	else if (!(byte() % 16))
		addr += byte();
	if (w.beside)
		addr -= addr % pin_page;
	refused = !c || !size || null || addr + size < addr;
	m = memory_at(addr, size);
	if (w.beside && !refused && (!m || beyond_simulation(m->content, addr - m->dptr, size)))
		return;
	rc = own ? gdr_pin_bytes((gdr_t)g, addr, size, flags, null ? NULL : &mh) :
	     v2 ? gdr_pin_buffer_v2((gdr_t)g, addr, size, flags, null ? NULL : &mh) :
		  gdr_pin_buffer((gdr_t)g, addr, size, 0, 0, null ? NULL : &mh);
	if (refused)
		check("gdr_pin_buffer with wrong arguments", rc, EINVAL);
	else if (m && !(rc == EIO && beyond_simulation(m->content, addr - m->dptr, size)))
		check_driver("gdr_pin_buffer", rc, 0);
	else if (!m && all_memory(addr, size) &&
		 !(rc == EIO && part_beyond_simulation(addr, size)))
		check_driver("gdr_pin_buffer of allocations side by side", rc, 0);
	else if (!m && !(!rc && rm && memory_at(addr, 1)) && (!rc || !documented(rc)))
		fail("gdr_pin_buffer of no GPU memory", rc, EINVAL);	/* CUDA's own may lie behind the program's */
	if (rc)
		return;
	if (!m) {
		/* There is no model of that. */
		check("gdr_unpin_buffer", gdr_unpin_buffer((gdr_t)g, mh), 0);
		return;
	}
	if (own) {	/* the buffer begins on the page */
		size += addr % pin_page;
		addr -= addr % pin_page;
	}
	if (rm && page >= 128 && !(addr % pin_page))
		mh = by_descriptor((gdr_t)g, mh);
	*b = (struct buffer){ .mh = mh, .owner = c - w.contexts, .dptr = addr, .pinned = size,
			      .content = m->content, .offset = addr - m->dptr, .live = true };
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
	int flags = byte() % 4 || w.beside ? GDR_MAP_FLAG_DEFAULT : (int)(byte() % 6) - 1;
	bool null = byte() % 16 == 0, v1 = byte() & 1;
	void *va = NULL;
	int rc, want = EINVAL;

	if (found && !null && flags >= 0 && flags <= GDR_MAP_FLAG_REQ_DEVICE_MAPPING) {
		if (found->mapped)
			want = EAGAIN;
		else if (size && round_up(size) >= size &&
			 round_up(size) <= round_to(found->pinned, pin_page) &&
			 !(found->dptr % pin_page))
			want = flags <= GDR_MAP_FLAG_REQ_WC_MAPPING ? 0 : EINVAL;
	}
	rc = v1 && flags == GDR_MAP_FLAG_DEFAULT ?
		gdr_map((gdr_t)g, (gdr_mh_t){ h }, null ? NULL : &va, size) :
		gdr_map_v2((gdr_t)g, (gdr_mh_t){ h }, null ? NULL : &va, size, flags);
	check_driver("gdr_map", rc, want);
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
	/* The handle names the mapping; an address on another page is no mistake. */
	bool good = found && found->mapped && va % PAGE == 0 && size &&
		    size <= ((round_up(found->asked) + GPU_PAGE_SIZE - 1) & GPU_PAGE_MASK);

	check("gdr_unmap", gdr_unmap((gdr_t)g, (gdr_mh_t){ h }, (void *)va, size), good ? 0 : EINVAL);
	if (good)
		found->mapped = false;
}

/* What is in the memory now: n bytes that a copy has written at offset. */
static void learn(struct content *content, size_t offset, const uint8_t *data, size_t n)
{
	for (size_t i = 0; i < n && offset + i < MEM_BYTES; i++) {
		content->bytes[offset + i] = data[i];
		content->known[offset + i] = true;
	}
}

/* Nobody knows which of some writes is there. */
static void forget_bytes(struct content *content, size_t offset, size_t n)
{
	for (size_t i = 0; i < n && offset + i < MEM_BYTES; i++)
		content->known[offset + i] = false;
}

/* What a copy has read there must be what was last written, by any mapping. */
static void compare(const struct content *content, size_t offset, const uint8_t *data, size_t n)
{
	for (size_t i = 0; i < n && offset + i < MEM_BYTES; i++)
		if (content->known[offset + i] && content->bytes[offset + i] != data[i])
			fail("a byte", data[i], content->bytes[offset + i]);
}

/*
 * In host memory of just the size, so that a byte too many is seen; of one byte
 * where so much is not mapped and the copy must not begin.
 */
static void do_copy(void)
{
	struct buffer *b = &w.buffers[byte() % BUFFERS];
	uint64_t h = some_handle(b->mh.h);
	struct buffer *found = find_buffer(NULL, h);
	size_t own = round_up(b->asked);
	size_t at = (byte() << 8 | byte()) % (own + 3);
	size_t n = some_size(byte() % 2 ? byte() : own - at);
	size_t mapped = found && found->mapped ? round_up(found->asked) : 0;
	size_t room = n <= mapped ? n : 1;
	uint8_t *data = malloc(room + !room), first = byte();
	uintptr_t dev = b->va + at;
	bool null = byte() % 16 == 0, read = byte() & 1, fits;
	int rc, want;

	if (!data)
		abort();
	for (size_t i = 0; i < room; i++)
		data[i] = first + i;
	fits = mapped && dev >= found->va &&
	       dev - found->va <= mapped && n <= mapped - (dev - found->va);
	want = mapped && (!n || (fits && !null)) ? 0 : EINVAL;
	if (read)
		rc = gdr_copy_from_mapping((gdr_mh_t){ h }, null ? NULL : data, (void *)dev, n);
	else
		rc = gdr_copy_to_mapping((gdr_mh_t){ h }, (void *)dev, null ? NULL : data, n);
	check(read ? "gdr_copy_from_mapping" : "gdr_copy_to_mapping", rc, want);
	if (!rc && n) {
		size_t offset = found->offset + (dev - found->va);

		if (read)
			compare(found->content, offset, data, n);
		learn(found->content, offset, data, n);
	}
	free(data);
}

/*
 * Many pieces at once: nothing moves if one of them is wrong. Reads are checked
 * after all of them, and writes are taken in order, for pieces may overlap.
 */
#define PIECES 6
static void do_copy_many(void)
{
	gdr_piece_t pieces[PIECES];
	uint8_t data[PIECES][3 * 64];
	struct buffer *found[PIECES];
	size_t count = byte() % (PIECES + 1);
	bool read = byte() & 1, apart = true;
	int rc, want = 0;

	for (size_t i = 0; i < count; i++) {
		struct buffer *b = &w.buffers[byte() % BUFFERS];
		uint64_t h = some_handle(b->mh.h);
		size_t n = byte() % 16 ? byte() % sizeof(data[i]) : some_size(1);
		size_t at = byte() % 16 ? byte() * 16 : some_size(round_up(b->asked));
		bool null = byte() % 32 == 0;
		size_t mapped;

		found[i] = find_buffer(NULL, h);
		mapped = found[i] && found[i]->mapped ? round_up(found[i]->asked) : 0;
		/* What is right is so within the host's memory alone. */
		if (n > sizeof(data[i]) && n <= mapped)
			n = sizeof(data[i]);
		memset(data[i], byte(), sizeof(data[i]));
		pieces[i] = (gdr_piece_t){ { h }, (void *)(b->va + at), null ? NULL : data[i], n };
		if (!mapped || (n && (null || b->va + at < found[i]->va ||
				      b->va + at - found[i]->va > mapped ||
				      n > mapped - (b->va + at - found[i]->va))))
			want = EINVAL;
		/* Other mappings may be of the same memory: then the order would show. */
		for (size_t k = 0; k < i; k++)
			apart &= found[i] && found[k] && found[i]->content != found[k]->content;
	}
	rc = read ? gdr_copy_from_mapping_v(pieces, count) : gdr_copy_to_mapping_v(pieces, count);
	check(read ? "gdr_copy_from_mapping_v" : "gdr_copy_to_mapping_v", rc, want);
	for (size_t i = 0; !rc && i < count; i++) {
		size_t offset = found[i]->offset + ((uintptr_t)pieces[i].map_d_ptr - found[i]->va);

		if (!pieces[i].size)
			continue;
		if (read)
			compare(found[i]->content, offset, data[i], pieces[i].size);
		else if (apart)
			learn(found[i]->content, offset, data[i], pieces[i].size);
		else
			forget_bytes(found[i]->content, offset, pieces[i].size);
	}
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
	if (flag || info.va != (found->dptr & -pin_page) || info.mapped != found->mapped ||
	    info.mapped_size < found->pinned)
		fail("gdr_get_info_v2: the content", 0, 1);
}

static void do_attribute(void)
{
	uint64_t g = some_g(byte() % CONTEXTS);
	int attr = byte() % 8 ? byte() % 6 : (int)word();
	int want = find_context(g) && attr > 0 && attr < GDR_ATTR_MAX ? 0 : EINVAL;
	size_t room = byte() % 8;
	int v = -1, major, minor;
	const char *s;
	char name[8];
	int rc;

	rc = gdr_get_attribute((gdr_t)g, attr, &v);
	check("gdr_get_attribute", rc, want);
	if (!rc && v != 0 && v != 1)
		fail("the attribute", v, 1);
	check("gdr_driver_get_version", gdr_driver_get_version((gdr_t)g, &major, &minor),
	      find_context(g) ? 0 : EINVAL);
	/* "dmabuf" takes 7 bytes, "rm" 3; "dmabuf|rm" more, where nothing names one. */
	rc = gdr_get_backend((gdr_t)g, name, room);
	if (find_context(g) && rc != ERANGE)
		check("gdr_get_backend", rc || strlen(name) >= room, 0);
	if (!find_context(g) || room < 3 || (room > 6 && !w.beside))
		check("gdr_get_backend", rc, !find_context(g) ? EINVAL : room < 3 ? ERANGE : 0);
	gdr_runtime_get_version(&major, &minor);
	check("gdr_get_mapping_type_string", gdr_get_mapping_type_string(attr, &s),
	      attr >= 0 && attr < GDR_MAPPING_TYPE_MAX ? 0 : EINVAL);
}

static void do_fault(void)
{
	static const int cuda_results[] = { 1, 2, 3, 100, 201, 304, 400, 801, 999, 12345 };
	static const int statuses[] = { 0x1a, 0x1b, 0x1f, 0x2e, 0x51, 0x56, 0x57 };
	static const int errnos[] = { ENOMEM, EMFILE, ENODEV, EPERM };
	uint8_t which = byte(), result = byte(), nth = byte() % 4;
	size_t request = which / 2 % COUNT(rm_calls);

	if (w.faults == FAULTS)
		return;
	w.faults++;
	w.faulty = true;
	if (rm && which % 2)
		rm_sim_fail(rm_calls[request], request < RM_STATUSES ? statuses[result % COUNT(statuses)] :
			    errnos[result % COUNT(errnos)], nth);
	else
		cuda_sim_fail(cuda_calls[which / 2 % COUNT(cuda_calls)],
			      cuda_results[result % COUNT(cuda_results)], nth);
}

static void no_faults(void)
{
	if (!w.faulty)
		return;
	for (size_t i = 0; i < COUNT(cuda_calls); i++)
		cuda_sim_fail(cuda_calls[i], 0, 0);
	for (size_t i = 0; rm && i < COUNT(rm_calls); i++)
		rm_sim_fail(rm_calls[i], 0, 0);
}

/* The registration cache. */

static struct cache *find_cache(uint64_t h)
{
	for (int i = 0; i < CACHES; i++)
		if (w.caches[i].open && w.caches[i].c.h == h)
			return &w.caches[i];
	return NULL;
}

static void do_cache_open(void)
{
	struct cache *c = &w.caches[byte() % CACHES];
	int owner = byte() % CONTEXTS;
	uint64_t g = some_g(owner);
	struct context *found = find_context(g);
	size_t most = byte() % 8 ? (1 + byte() % 4) * 16 * PAGE : 0;
	unsigned int flags = byte() % 8 ? 0 : byte();
	bool null = byte() % 16 == 0;

	if (c->open)
		return;
	check("gdr_cache_open", gdr_cache_open((gdr_t)g, most, flags, null ? NULL : &c->c),
	      found && most && !flags && !null ? 0 : EINVAL);
	if (!found || !most || flags || null)
		return;
	c->owner = found - w.contexts;
	c->open = w.cached = true;
}

static void do_cache_get(void)
{
	struct hold *hold = &w.holds[byte() % HOLDS];
	int index = byte() % CACHES;
	uint64_t h = some_handle(w.caches[index].c.h);
	struct cache *c = find_cache(h);
	struct memory *m = &w.memories[byte() % MEMORIES];
	size_t offset = byte() % 32 * 1000, size = some_size(1 + byte() * 200);
	unsigned long addr = byte() % 16 ? m->dptr + offset : word();
	bool null = byte() % 16 == 0;
	gdr_mh_t mh = { 0 };
	void *va = NULL;
	int rc;

	if (hold->live)
		return;
	rc = gdr_cache_get((gdr_cache_t){ h }, addr, size, &mh, null ? NULL : &va);
	m = memory_at(addr, size);
	if (!c || !size || null || addr + size < addr || !addr)
		check("gdr_cache_get with wrong arguments", rc, EINVAL);
	else if (m && !(rc == EIO && beyond_simulation(m->content, addr - m->dptr, size)))
		check_driver("gdr_cache_get", rc, 0);
	else if (!m && (!rc || !documented(rc)))
		fail("gdr_cache_get of no GPU memory", rc, EINVAL);
	if (rc)
		return;
	*hold = (struct hold){ .mh = mh, .cache = c - w.caches, .va = (uintptr_t)va,
			       .content = m->content, .offset = addr - m->dptr, .size = size,
			       .live = true };
}

/* What is held can be written and read, whatever has happened to other things. */
static void do_cache_copy(void)
{
	struct hold *hold = &w.holds[byte() % HOLDS];
	uint8_t data[64], first = byte();
	size_t n = hold->size < sizeof(data) ? hold->size : sizeof(data);

	if (!hold->live)
		return;
	check("a read of what is held",
	      gdr_copy_from_mapping(hold->mh, data, (void *)hold->va, n), 0);
	compare(hold->content, hold->offset, data, n);
	for (size_t i = 0; i < n; i++)
		data[i] = first + i;
	check("a write of what is held",
	      gdr_copy_to_mapping(hold->mh, (void *)hold->va, data, n), 0);
	learn(hold->content, hold->offset, data, n);
}

static struct hold *find_hold(const struct cache *c, uint64_t h)
{
	for (int i = 0; i < HOLDS; i++)
		if (w.holds[i].live && w.holds[i].mh.h == h && &w.caches[w.holds[i].cache] == c)
			return &w.holds[i];
	return NULL;
}

static void do_cache_put(void)
{
	const struct hold *hold = &w.holds[byte() % HOLDS];
	uint64_t h = some_handle(w.caches[hold->cache].c.h), mh = some_handle(hold->mh.h);
	struct hold *found = find_hold(find_cache(h), mh);

	check("gdr_cache_put", gdr_cache_put((gdr_cache_t){ h }, (gdr_mh_t){ mh }),
	      found ? 0 : EINVAL);
	if (found)
		found->live = false;
}

static void do_cache_flush(void)
{
	uint64_t h = some_handle(w.caches[byte() % CACHES].c.h);

	check("gdr_cache_flush", gdr_cache_flush((gdr_cache_t){ h }), find_cache(h) ? 0 : EINVAL);
}

static void do_cache_close(void)
{
	uint64_t h = some_handle(w.caches[byte() % CACHES].c.h);
	struct cache *c = find_cache(h);

	check("gdr_cache_close", gdr_cache_close((gdr_cache_t){ h }), c ? 0 : EINVAL);
	if (c)
		forget_cache(c);
}

static void (*const cache_calls[])(void) = {
	do_cache_open, do_cache_get, do_cache_get, do_cache_get, do_cache_copy, do_cache_copy,
	do_cache_put, do_cache_put, do_cache_flush, do_cache_close,
};

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

	w.memory = malloc(CONTENTS * sizeof(*w.memory));
	c->g = gdr_open();
	if (!c->g || !w.memory)
		fail("gdr_open", 0, 1);
	c->open = true;
	if (gdr_mem_alloc(c->g, 0, MEM_BYTES, 0, &m->m) ||
	    gdr_mem_get_device_ptr(c->g, m->m, &m->dptr, &m->size))
		fail("gdr_mem_alloc", 1, 0);
	m->live = true;
	use_content(m);
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
		if (rc)
			fail("gdr_close at the end", rc, 0);
		forget(c);
		if (gdr_close(c->g) != EINVAL)
			fail("gdr_close twice", 0, EINVAL);
	}
	for (int i = 0; i < BUFFERS; i++)
		if (w.buffers[i].mh.h && gdr_copy_to_mapping(w.buffers[i].mh, NULL, NULL, 0) != EINVAL)
			fail("a copy after gdr_close", 0, EINVAL);
	for (int i = 0; i < HOLDS; i++)
		if (w.holds[i].mh.h && gdr_copy_to_mapping(w.holds[i].mh, NULL, NULL, 0) != EINVAL)
			fail("a copy after gdr_close", 0, EINVAL);
	free(w.memory);
}

/* What must be the same after each input as before it. */
struct left {
	unsigned long cuda;
	int fd;	/* the lowest free one */
};

static struct left look(void)
{
	struct left l = {
		.cuda = cuda_sim_live(),
		.fd = dup(STDERR_FILENO),
	};

	close(l.fd);
	return l;
}

static void find_drivers(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);

	if (cuda) {
		*(void **)&cuda_sim_fail = dlsym(cuda, "cuda_sim_fail");
		*(void **)&cuda_sim_live = dlsym(cuda, "cuda_sim_live");
		*(void **)&rm_sim_fail = dlsym(cuda, "rm_sim_fail");
	}
	if (cuda_sim_fail && cuda_sim_live && (!rm || rm_sim_fail))
		return;
	fputs("abi_fuzz: needs the simulated drivers on LD_LIBRARY_PATH (make doubles)\n", stderr);
	exit(2);
}

/* Starts the core: its coverage must be known before the first input. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	struct buffer b = { 0 };

	(void)argc;
	(void)argv;
	report_fd = dup(STDERR_FILENO);
	setenv("GDRCOPY_BACKEND", "dmabuf", 0);
	model_is_of(getenv("GDRCOPY_BACKEND"), strcmp(getenv("GDRCOPY_BACKEND"), "rm") ? PAGE : GPU_PAGE_BYTES);
	find_drivers();
	/* A first pinning makes what is kept: contexts. */
	begin();
	if (gdr_pin_buffer(w.contexts[0].g, w.memories[0].dptr, PAGE, 0, 0, &b.mh))
		fail("gdr_pin_buffer", 1, 0);
	end();
	return 0;
}

/*
 * 255 and 238, the last two of the bytes that mean the first call, lead to the cache's
 * and to copies of many: so nearly all kept inputs mean what they did.
 */
static void call(uint8_t which)
{
	void (*usual)(void) = calls[which % COUNT(calls)];

	if (w.beside && (which == UINT8_MAX || usual == do_mem_free || usual == do_fault))
		return;
	if (which == UINT8_MAX - COUNT(calls))
		do_copy_many();
	else if (which < UINT8_MAX)
		usual();
	else
		cache_calls[byte() % COUNT(cache_calls)]();
}

static void run(const uint8_t *script, size_t size, bool beside)
{
	memset(&w, 0, sizeof(w));
	w.data = script;
	w.left = size;
	w.beside = beside;
	begin();
	for (int i = 0; i < CALLS && w.left; i++)
		call(byte());
	end();
}

void model_run(const uint8_t *script, size_t size)
{
	run(script, size, true);
}

void model_is_of(const char *backend, size_t page)
{
	rm = !strcmp(backend, "rm");
	host_page = sysconf(_SC_PAGESIZE);
	pin_page = page;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct left before = look(), after;

	run(data, size, false);
	after = look();
	if (after.cuda != before.cuda)
		fail("the number of live CUDA objects", after.cuda, before.cuda);
	if (after.fd != before.fd)
		fail("the lowest free file descriptor", after.fd, before.fd);
	return 0;
}
