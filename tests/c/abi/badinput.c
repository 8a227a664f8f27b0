/* SPDX-License-Identifier: MIT */
/*
 * badinput.c - every function with what no caller should pass: NULL, zero, huge
 * and forged values, handles that are stale, freed twice, of another gdr_t or
 * of another kind, and flags that do not exist. Each must answer its errno
 * value and leave everything else alone. Meant to run under valgrind and the
 * sanitizers too.
 */
#pragma GCC diagnostic ignored "-Wunused-parameter"	/* not each function takes a gdr_t and a handle */

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gdrapi.h"
#include "gdrapi_ext.h"
#include "tap.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static struct tap tap;

/* What is right, and must be right at the end still. */
static struct world {
	gdr_t g;
	gdr_mem_t mem;
	unsigned long addr;
	size_t size;
	gdr_mh_t mapped, pinned;
	unsigned char *va;
	unsigned char host[10000];	/* not registered */

	gdr_t other;		/* another gdr_t, and a live mapping of it */
	gdr_mem_t other_mem;
	gdr_mh_t other_mapped;
	void *other_va;

	gdr_t closed;		/* and what was live when it was closed */
	gdr_mh_t closed_mh;
	gdr_mem_t closed_mem;
	gdr_mh_t unpinned;
	gdr_mem_t freed;
	unsigned long freed_addr;
} w;

/* Where a failed call must not write. */
static struct out {
	gdr_mh_t mh;
	gdr_mem_t mem;
	gdr_info_v2_t info;
	unsigned long addr;
	size_t size;
	void *va;
	int v, v2;
	unsigned char bytes[64];
} out, untouched;

static void is_rc(int got, int want, const char *function, const char *what)
{
	bool clean = memcmp(&out, &untouched, sizeof(out)) == 0, kept = errno == EXDEV;

	if (!tap_ok(&tap, got == want && clean && kept, "%s: %s", function, what))
		printf("# got %d, not %d; out-parameters %s, errno %s\n", got, want,
		       clean ? "untouched" : "written", kept ? "as before" : "set");
	errno = EXDEV;
	memcpy(&out, &untouched, sizeof(out));
}

static unsigned long random_bits(void)
{
	static uint64_t x = 88172645463325252ull;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return x;
}

/* Each function with a gdr_t and a handle, if it takes them; all else is as it should be. */
static int g_close(gdr_t g, unsigned long h)
{
	return gdr_close(g);
}
static int g_pin(gdr_t g, unsigned long h)
{
	return gdr_pin_buffer(g, w.addr, w.size, 0, 0, &out.mh);
}
static int g_pin_v2(gdr_t g, unsigned long h)
{
	return gdr_pin_buffer_v2(g, w.addr, w.size, 0, &out.mh);
}
static int g_version(gdr_t g, unsigned long h)
{
	return gdr_driver_get_version(g, &out.v, &out.v2);
}
static int g_backend(gdr_t g, unsigned long h)
{
	return gdr_get_backend(g, (char *)out.bytes, sizeof(out.bytes));
}
static int g_attribute(gdr_t g, unsigned long h)
{
	int v = 1, rc = gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &v);

	return v ? -1 : rc;	/* a failure stores 0 */
}
static int g_mem_alloc(gdr_t g, unsigned long h)
{
	return gdr_mem_alloc(g, 0, w.size, 0, &out.mem);
}

static int g_pin_fd(gdr_t g, unsigned long h)
{
	return gdr_pin_fd(g, 0, 0, &out.mh);
}

static int h_export(gdr_t g, unsigned long h)
{
	return gdr_export_fd(g, (gdr_mh_t){ h }, 0, &out.v);
}
static int h_unpin(gdr_t g, unsigned long h)
{
	return gdr_unpin_buffer(g, (gdr_mh_t){ h });
}
static int h_flag(gdr_t g, unsigned long h)
{
	return gdr_get_callback_flag(g, (gdr_mh_t){ h }, &out.v);
}
#undef gdr_get_info
int gdr_get_info(gdr_t g, gdr_mh_t handle, void *v1);
static int h_info(gdr_t g, unsigned long h)
{
	return gdr_get_info(g, (gdr_mh_t){ h }, &out.info);
}
static int h_info_v2(gdr_t g, unsigned long h)
{
	return gdr_get_info_v2(g, (gdr_mh_t){ h }, &out.info);
}
static int h_map(gdr_t g, unsigned long h)
{
	return gdr_map(g, (gdr_mh_t){ h }, &out.va, w.size);
}
static int h_map_v2(gdr_t g, unsigned long h)
{
	return gdr_map_v2(g, (gdr_mh_t){ h }, &out.va, w.size, 0);
}
static int h_unmap(gdr_t g, unsigned long h)
{
	return gdr_unmap(g, (gdr_mh_t){ h }, w.va, w.size);
}
static int h_mem_free(gdr_t g, unsigned long h)
{
	return gdr_mem_free(g, (gdr_mem_t){ h });
}
static int h_mem_ptr(gdr_t g, unsigned long h)
{
	return gdr_mem_get_device_ptr(g, (gdr_mem_t){ h }, &out.addr, &out.size);
}
static int h_mem_export(gdr_t g, unsigned long h)
{
	return gdr_mem_export_dmabuf(g, (gdr_mem_t){ h }, 0, &out.v);
}
static int h_copy_to(gdr_t g, unsigned long h)
{
	return gdr_copy_to_mapping((gdr_mh_t){ h }, w.va, out.bytes, 8);
}
static int h_copy_from(gdr_t g, unsigned long h)
{
	return gdr_copy_from_mapping((gdr_mh_t){ h }, out.bytes, w.va, 8);
}
static int h_copy_to_v(gdr_t g, unsigned long h)
{
	const gdr_piece_t pieces[2] = {
		{ w.mapped, w.va, out.bytes, 8 }, { { h }, w.va + 8, out.bytes, 8 },
	};

	return gdr_copy_to_mapping_v(pieces, 2);
}
static int h_copy_from_v(gdr_t g, unsigned long h)
{
	const gdr_piece_t pieces[2] = {
		{ { h }, w.va, out.bytes, 8 }, { w.mapped, w.va, out.bytes, 8 },
	};

	return gdr_copy_from_mapping_v(pieces, 2);
}

enum { TAKES_G = 1, TAKES_MH = 2, TAKES_MEM = 4 };
static const struct {
	const char *name;
	int (*call)(gdr_t g, unsigned long h);
	int takes;
} functions[] = {
	{ "gdr_close", g_close, TAKES_G },
	{ "gdr_pin_buffer", g_pin, TAKES_G },
	{ "gdr_pin_buffer_v2", g_pin_v2, TAKES_G },
	{ "gdr_driver_get_version", g_version, TAKES_G },
	{ "gdr_get_backend", g_backend, TAKES_G },
	{ "gdr_get_attribute", g_attribute, TAKES_G },
	{ "gdr_mem_alloc", g_mem_alloc, TAKES_G },
	{ "gdr_pin_fd", g_pin_fd, TAKES_G },
	{ "gdr_export_fd", h_export, TAKES_G | TAKES_MH },
	{ "gdr_unpin_buffer", h_unpin, TAKES_G | TAKES_MH },
	{ "gdr_get_callback_flag", h_flag, TAKES_G | TAKES_MH },
	{ "gdr_get_info v1", h_info, TAKES_G | TAKES_MH },
	{ "gdr_get_info_v2", h_info_v2, TAKES_G | TAKES_MH },
	{ "gdr_map", h_map, TAKES_G | TAKES_MH },
	{ "gdr_map_v2", h_map_v2, TAKES_G | TAKES_MH },
	{ "gdr_unmap", h_unmap, TAKES_G | TAKES_MH },
	{ "gdr_mem_free", h_mem_free, TAKES_G | TAKES_MEM },
	{ "gdr_mem_get_device_ptr", h_mem_ptr, TAKES_G | TAKES_MEM },
	{ "gdr_mem_export_dmabuf", h_mem_export, TAKES_G | TAKES_MEM },
	{ "gdr_copy_to_mapping", h_copy_to, TAKES_MH },
	{ "gdr_copy_from_mapping", h_copy_from, TAKES_MH },
	{ "gdr_copy_to_mapping_v", h_copy_to_v, TAKES_MH },
	{ "gdr_copy_from_mapping_v", h_copy_from_v, TAKES_MH },
};

/* Calls each function that takes one of these kinds: a gdr_t, a handle. All else is right. */
static void all_refuse(int kinds, const char *kind, const char *what, unsigned long g,
		       unsigned long mh, unsigned long mem)
{
	char text[80];

	snprintf(text, sizeof(text), "%s that is %s", kind, what);
	for (size_t f = 0; f < COUNT(functions); f++)
		if (functions[f].takes & kinds)
			is_rc(functions[f].call((gdr_t)g, functions[f].takes & TAKES_MEM ? mem : mh),
			      EINVAL, functions[f].name, text);
}

static void bad_opens(void)
{
	unsigned long good = (unsigned long)w.g;
	const struct { const char *what; unsigned long g; } bad[] = {
		{ "NULL", 0 },
		{ "1", 1 },
		{ "all ones", ULONG_MAX },
		{ "a closed gdr_t", (unsigned long)w.closed },
		{ "one above a gdr_t", good + 1 },
		{ "one below a gdr_t", good - 1 },
		{ "the next generation", good + (1ul << 20) },
		{ "the next epoch", good + (1ul << 52) },
		{ "no epoch", good & ((1ul << 52) - 1) },
		{ "a gdr_mh_t", w.mapped.h },
		{ "a gdr_mem_t", w.mem.h },
		{ "a pointer", (unsigned long)&w },
		{ "a bad pointer", 0xdeadbeefdead0000 },
	};

	for (size_t i = 0; i < COUNT(bad); i++)
		all_refuse(TAKES_G, "gdr_t", bad[i].what, bad[i].g, w.mapped.h, w.mem.h);
}

static void bad_handles(void)
{
	const struct { const char *what; unsigned long h, mem; } bad[] = {
		{ "0", 0, 0 },
		{ "1", 1, 1 },
		{ "all ones", ULONG_MAX, ULONG_MAX },
		{ "unpinned or freed", w.unpinned.h, w.freed.h },
		{ "of a closed gdr_t", w.closed_mh.h, w.closed_mem.h },
		{ "another kind's", w.mem.h, w.mapped.h },
		{ "a gdr_t", (unsigned long)w.g, (unsigned long)w.g },
		{ "the next generation", w.mapped.h + (1ul << 20), w.mem.h + (1ul << 20) },
		{ "the last generation", w.mapped.h - (1ul << 20), w.mem.h - (1ul << 20) },
		{ "the next epoch", w.mapped.h + (1ul << 52), w.mem.h + (1ul << 52) },
		{ "the last epoch", w.mapped.h - (1ul << 52), w.mem.h - (1ul << 52) },
		{ "an index never used", w.mapped.h | 0xfffff, w.mem.h | 0xfffff },
		{ "a pointer", (unsigned long)&w, (unsigned long)&w },
		{ "of another gdr_t", w.other_mapped.h, w.other_mem.h },
	};

	for (size_t i = 0; i < COUNT(bad); i++)
		all_refuse(TAKES_MH | TAKES_MEM, "handle", bad[i].what, (unsigned long)w.g, bad[i].h, bad[i].mem);
}

/* Whether nobody gave h out. */
static bool is_forged(unsigned long h)
{
	return h != w.mapped.h && h != w.pinned.h && h != w.mem.h &&
	       h != w.other_mapped.h && h != w.other_mem.h &&
	       h != (unsigned long)w.g && h != (unsigned long)w.other;
}

/* Random handles, or for functions without one random gdr_t, and live ones with a few bits turned over. */
static void forged(int rounds)
{
	const unsigned long live[] = { w.mapped.h, w.pinned.h, w.mem.h, (unsigned long)w.g };

	for (size_t f = 0; f < COUNT(functions); f++) {
		bool open = functions[f].takes == TAKES_G;
		int bad = 0;

		for (int i = 0; i < rounds; i++) {
			unsigned long h = random_bits();

			if (i % 2)
				h = (open ? (unsigned long)w.g : live[h % COUNT(live)]) ^ 1ul << (h >> 58) ^
				    1ul << (h >> 40) % 64;
			if (is_forged(h) && functions[f].call(open ? (gdr_t)h : w.g, h) != EINVAL)
				bad++;
		}
		is_rc(bad, 0, functions[f].name, open ? "forged gdr_t" : "forged handles");
	}
}

/* The first form of the info ends where the second goes on. */
static void old_info(void)
{
	unsigned char info[sizeof(gdr_info_v2_t)], same[sizeof(info)];

	memset(info, 0xa5, sizeof(info));
	memset(same, 0xa5, sizeof(same));
	is_rc(gdr_get_info(w.g, w.mapped, info), 0, "gdr_get_info v1", "a good call");
	is_rc(memcmp(info, same, 40) && !memcmp(info + 40, same, sizeof(info) - 40), true, "gdr_get_info v1",
	      "bytes written");
}

/* One call for each row. A row that has written is noticed by the first one that is judged. */
static void bad_arguments(void)
{
	const struct { int rc, want; const char *function, *what; } rows[] = {
		{ gdr_pin_buffer(w.g, w.addr, w.size, 0, 0, NULL), EINVAL, "gdr_pin_buffer", "NULL" },
		{ gdr_pin_buffer_v2(w.g, w.addr, w.size, 0, NULL), EINVAL, "gdr_pin_buffer_v2", "NULL" },
		{ gdr_get_callback_flag(w.g, w.mapped, NULL), EINVAL, "gdr_get_callback_flag", "NULL" },
		{ gdr_get_info(w.g, w.mapped, NULL), EINVAL, "gdr_get_info v1", "NULL" },
		{ gdr_get_info_v2(w.g, w.mapped, NULL), EINVAL, "gdr_get_info_v2", "NULL" },
		{ gdr_map(w.g, w.pinned, NULL, w.size), EINVAL, "gdr_map", "NULL" },
		{ gdr_map_v2(w.g, w.pinned, NULL, w.size, 0), EINVAL, "gdr_map_v2", "NULL" },
		{ gdr_copy_to_mapping(w.mapped, NULL, out.bytes, 1), EINVAL, "gdr_copy_to_mapping", "NULL: mapping" },
		{ gdr_copy_to_mapping(w.mapped, w.va, NULL, 1), EINVAL, "gdr_copy_to_mapping", "NULL: host" },
		{ gdr_copy_from_mapping(w.mapped, out.bytes, NULL, 1), EINVAL, "gdr_copy_from_mapping", "NULL: mapping" },
		{ gdr_copy_from_mapping(w.mapped, NULL, w.va, 1), EINVAL, "gdr_copy_from_mapping", "NULL: host" },
		{ gdr_copy_to_mapping_v(NULL, 1), EINVAL, "gdr_copy_to_mapping_v", "NULL: pieces" },
		{ gdr_copy_from_mapping_v(NULL, SIZE_MAX), EINVAL, "gdr_copy_from_mapping_v", "NULL: pieces" },
		{ gdr_driver_get_version(w.g, NULL, NULL), EINVAL, "gdr_driver_get_version", "NULL: both" },
		{ gdr_driver_get_version(w.g, NULL, &out.v), EINVAL, "gdr_driver_get_version", "NULL: major" },
		{ gdr_driver_get_version(w.g, &out.v, NULL), EINVAL, "gdr_driver_get_version", "NULL: minor" },
		{ gdr_get_attribute(w.g, GDR_ATTR_USING_DMA_BUF_MMAP, NULL), EINVAL, "gdr_get_attribute", "NULL" },
		{ gdr_get_mapping_type_string(GDR_MAPPING_TYPE_WC, NULL), EINVAL, "gdr_get_mapping_type_string", "NULL" },
		{ gdr_get_backend(w.g, NULL, 16), EINVAL, "gdr_get_backend", "NULL" },
		{ gdr_mem_alloc(w.g, 0, w.size, 0, NULL), EINVAL, "gdr_mem_alloc", "NULL" },
		{ gdr_mem_get_device_ptr(w.g, w.mem, NULL, &out.size), EINVAL, "gdr_mem_get_device_ptr", "NULL" },
		{ gdr_mem_export_dmabuf(w.g, w.mem, 0, NULL), EINVAL, "gdr_mem_export_dmabuf", "NULL" },
		{ gdr_export_fd(w.g, w.mapped, 0, NULL), EINVAL, "gdr_export_fd", "NULL" },
		{ gdr_export_fd(w.g, w.mapped, 2, &out.v), EINVAL, "gdr_export_fd", "an unknown flag" },
		{ gdr_pin_fd(w.g, 0, 0, NULL), EINVAL, "gdr_pin_fd", "NULL" },
		{ gdr_pin_fd(w.g, 0, 1, &out.mh), EINVAL, "gdr_pin_fd", "an unknown flag" },
		{ gdr_pin_buffer(w.g, w.addr, 0, 0, 0, &out.mh), EINVAL, "gdr_pin_buffer", "size 0" },
		{ gdr_pin_buffer(w.g, 0, w.size, 0, 0, &out.mh), EINVAL, "gdr_pin_buffer", "address 0" },
		{ gdr_pin_buffer(w.g, ULONG_MAX, 1, 0, 0, &out.mh), EINVAL, "gdr_pin_buffer", "the last address" },
		{ gdr_pin_buffer(w.g, (unsigned long)&w, sizeof(w), 0, 0, &out.mh), EINVAL, "gdr_pin_buffer", "host memory" },
		{ gdr_pin_buffer(w.g, (unsigned long)w.va, 64, 0, 0, &out.mh), EINVAL, "gdr_pin_buffer", "a mapping" },
		{ gdr_pin_buffer(w.g, 0x10000, 1, 0, 0, &out.mh), EINVAL, "gdr_pin_buffer", "an address of nobody's" },
		{ gdr_pin_buffer(w.g, w.freed_addr, 1, 0, 0, &out.mh), EINVAL, "gdr_pin_buffer", "memory that was freed" },
		{ gdr_map(w.g, w.pinned, &out.va, 0), EINVAL, "gdr_map", "size 0" },
		{ gdr_map(w.g, w.pinned, &out.va, w.size + 1), EINVAL, "gdr_map", "more than is pinned" },
		{ gdr_map(w.g, w.mapped, &out.va, w.size), EAGAIN, "gdr_map", "a buffer that is mapped" },
		{ gdr_unmap(w.g, w.pinned, w.va, w.size), EINVAL, "gdr_unmap", "a buffer that is not mapped" },
		{ gdr_unmap(w.g, w.mapped, w.va, 0), EINVAL, "gdr_unmap", "size 0" },
		{ gdr_unmap(w.g, w.mapped, w.va, ((w.size + 0xffff) & ~0xfffful) + 1), EINVAL, "gdr_unmap", "more than the mapping, in GPU pages" },
		{ gdr_unmap(w.g, w.mapped, w.va + 64, w.size), EINVAL, "gdr_unmap", "the middle of a mapping" },
		{ gdr_copy_to_mapping(w.pinned, w.va, out.bytes, 1), EINVAL, "gdr_copy_to_mapping", "a buffer that is not mapped" },
		{ gdr_copy_from_mapping(w.pinned, out.bytes, w.va, 1), EINVAL, "gdr_copy_from_mapping", "a buffer that is not mapped" },
		{ gdr_copy_to_mapping(w.mapped, w.other_va, out.bytes, 1), EINVAL, "gdr_copy_to_mapping", "another mapping" },
		{ gdr_copy_from_mapping(w.mapped, out.bytes, w.other_va, 1), EINVAL, "gdr_copy_from_mapping", "another mapping" },
		{ gdr_mem_alloc(w.g, 0, w.size, 1, &out.mem), EINVAL, "gdr_mem_alloc", "flag 1" },
		{ gdr_mem_alloc(w.g, 0, 0, 0, &out.mem), EINVAL, "gdr_mem_alloc", "size 0" },
		{ gdr_mem_alloc(w.g, 0, SIZE_MAX, 0, &out.mem), EINVAL, "gdr_mem_alloc", "a size that wraps" },
		{ gdr_mem_alloc(w.g, 0, 1ul << 42, 0, &out.mem), ENOMEM, "gdr_mem_alloc", "more than a GPU has" },
		{ gdr_mem_alloc(w.g, -1, w.size, 0, &out.mem), ENODEV, "gdr_mem_alloc", "GPU -1" },
		{ gdr_mem_alloc(w.g, 1 << 20, w.size, 0, &out.mem), ENODEV, "gdr_mem_alloc", "GPU 1048576" },
	};

	for (size_t i = 0; i < COUNT(rows); i++)
		is_rc(rows[i].rc, rows[i].want, rows[i].function, rows[i].what);
	gdr_runtime_get_version(NULL, NULL);
	gdr_runtime_get_version(NULL, &out.v);
	tap_is(&tap, out.v, 6, "minor version, with NULL for the major");
	out.v = untouched.v;
}

static void bad_numbers(void)
{
	static const int flags[] = { 4, 7, 16, 1 << 16, -1, INT_MIN };
	static const int attrs[] = { 0, GDR_ATTR_MAX, 1000, -1, INT_MIN };
	static const size_t sizes[] = { SIZE_MAX, SIZE_MAX - 4095, SIZE_MAX / 2 + 1, 1ul << 47 };
	const char *text = NULL;
	size_t i;

	for (i = 0; i < COUNT(sizes); i++) {
		const gdr_piece_t huge = { w.mapped, w.va, out.bytes, sizes[i] };

		is_rc(gdr_copy_to_mapping_v(&huge, 1), EINVAL, "gdr_copy_to_mapping_v", "huge size");
		is_rc(gdr_copy_from_mapping_v(&huge, 1), EINVAL, "gdr_copy_from_mapping_v",
		      "huge size");
		is_rc(gdr_pin_buffer(w.g, w.addr, sizes[i], 0, 0, &out.mh),
		      EINVAL, "gdr_pin_buffer", "huge size");
		is_rc(gdr_map(w.g, w.pinned, &out.va, sizes[i]), EINVAL,
		      "gdr_map", "huge size");
		is_rc(gdr_unmap(w.g, w.mapped, w.va, sizes[i]), EINVAL,
		      "gdr_unmap", "huge size");
		is_rc(gdr_copy_to_mapping(w.mapped, w.va, out.bytes, sizes[i]),
		      EINVAL, "gdr_copy_to_mapping", "huge size");
		is_rc(gdr_copy_from_mapping(w.mapped, out.bytes, w.va, sizes[i]),
		      EINVAL, "gdr_copy_from_mapping", "huge size");
	}
	for (i = 0; i < COUNT(flags); i++) {
		is_rc(gdr_map_v2(w.g, w.pinned, &out.va, w.size, flags[i]),
		      EINVAL, "gdr_map_v2", "wrong flag");
		is_rc(gdr_mem_alloc(w.g, 0, w.size, (unsigned)flags[i],
				    &out.mem), EINVAL,
		      "gdr_mem_alloc", "wrong flag");
	}
	for (i = 0; i < COUNT(attrs); i++) {
		int v = 1;

		is_rc(gdr_get_attribute(w.g, attrs[i], &v), EINVAL,
		      "gdr_get_attribute", "unknown attribute");
		tap_is(&tap, v, 0, "its answer is 0");
		if (attrs[i])
			is_rc(gdr_get_mapping_type_string(attrs[i], &text),
			      EINVAL, "gdr_get_mapping_type_string",
			      "unknown type");
	}
	tap_ok(&tap, text == NULL, "gdr_get_mapping_type_string wrote no text");
}

/* A name is written where it fits with its end, and nothing beside it. */
static void short_places(void)
{
	char name[32], got[32], fresh[32];
	size_t n;

	tap_is(&tap, gdr_get_backend(w.g, name, sizeof(name)), 0, "gdr_get_backend with room");
	n = strlen(name) + 1;
	memset(fresh, 0x3e, sizeof(fresh));
	for (size_t size = 0; size <= n; size++) {
		memcpy(got, fresh, sizeof(got));
		is_rc(gdr_get_backend(w.g, got, size), size < n ? ERANGE : 0, "gdr_get_backend", "little room");
		if (size == n)
			tap_ok(&tap, !memcmp(got, name, n), "the name is there");
		tap_ok(&tap, !memcmp(got + n, fresh + n, sizeof(got) - n) && (size == n || !memcmp(got, fresh, n)),
		       "nothing else is, in %zu bytes", size);
	}
}

/* Everything of a gdr_t: memory, a mapping of it, and a pinning. */
static bool furnish(gdr_t *g, gdr_mem_t *mem, gdr_mh_t *mapped, void **va)
{
	unsigned long addr;
	size_t size;

	*g = gdr_open();
	return *g && gdr_mem_alloc(*g, 0, 1, 0, mem) == 0 &&
	       gdr_mem_get_device_ptr(*g, *mem, &addr, &size) == 0 &&
	       gdr_pin_buffer(*g, addr, w.size, 0, 0, mapped) == 0 &&
	       gdr_map(*g, *mapped, va, w.size) == 0;
}

static bool set_up(void)
{
	void *va;

	w.size = GPU_PAGE_SIZE;
	if (!furnish(&w.closed, &w.closed_mem, &w.closed_mh, &va) ||
	    gdr_close(w.closed) || !furnish(&w.g, &w.mem, &w.mapped, &va) ||
	    !furnish(&w.other, &w.other_mem, &w.other_mapped, &w.other_va))
		return false;
	w.va = va;
	memset(w.va, 0x77, w.size);
	return gdr_mem_get_device_ptr(w.g, w.mem, &w.addr, NULL) == 0 &&
	       gdr_pin_buffer(w.g, w.addr, w.size, 0, 0, &w.pinned) == 0 &&
	       gdr_pin_buffer(w.g, w.addr, w.size, 0, 0, &w.unpinned) == 0 &&
	       gdr_unpin_buffer(w.g, w.unpinned) == 0 &&
	       gdr_mem_alloc(w.g, 0, 1, 0, &w.freed) == 0 &&
	       gdr_mem_get_device_ptr(w.g, w.freed, &w.freed_addr, NULL) == 0 &&
	       gdr_mem_free(w.g, w.freed) == 0;
}

/* What was right is right still, and ends as it should, once. */
static void tear_down(void)
{
	unsigned char want[64], got[64];

	memset(want, 0x77, sizeof(want));
	tap_is(&tap, gdr_copy_from_mapping(w.mapped, got, w.va, sizeof(got)), 0,
	       "a copy from the live mapping");
	tap_ok(&tap, memcmp(got, want, sizeof(got)) == 0,
	       "no bad call wrote to the mapping");
	tap_is(&tap, gdr_unmap(w.g, w.mapped, w.va, w.size), 0, "gdr_unmap");
	tap_is(&tap, gdr_unmap(w.g, w.mapped, w.va, w.size), EINVAL,
	       "gdr_unmap once more");
	tap_is(&tap, gdr_unpin_buffer(w.g, w.mapped), 0, "gdr_unpin_buffer");
	tap_is(&tap, gdr_unpin_buffer(w.g, w.mapped), EINVAL,
	       "gdr_unpin_buffer once more");
	tap_is(&tap, gdr_mem_free(w.g, w.mem), 0, "gdr_mem_free");
	tap_is(&tap, gdr_mem_free(w.g, w.mem), EINVAL, "gdr_mem_free once more");
	tap_is(&tap, gdr_close(w.g), 0, "gdr_close");
	tap_is(&tap, gdr_close(w.g), EINVAL, "gdr_close once more");
	tap_is(&tap, gdr_unpin_buffer(w.g, w.pinned), EINVAL,
	       "gdr_unpin_buffer after gdr_close");
	tap_is(&tap, gdr_copy_from_mapping(w.other_mapped, got, w.other_va, 1),
	       0, "a copy from the other gdr_t's mapping");
	tap_is(&tap, gdr_close(w.other), 0, "gdr_close of the other");
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 2000;

	errno = EXDEV;	/* no call sets it */
	memset(&untouched, 0x3e, sizeof(untouched));
	memcpy(&out, &untouched, sizeof(out));

	/* Nothing is open: the copies and the handles know nothing. */
	w.size = GPU_PAGE_SIZE;
	is_rc(gdr_close(NULL), EINVAL, "gdr_close", "before gdr_open");
	is_rc(gdr_close((gdr_t)12345), EINVAL, "gdr_close",
	      "12345 before gdr_open");
	is_rc(h_copy_to(NULL, 12345), EINVAL, "gdr_copy_to_mapping",
	      "before gdr_open");
	is_rc(h_copy_to_v(NULL, 12345), EINVAL, "gdr_copy_to_mapping_v", "before gdr_open");
	is_rc(h_unpin(NULL, 0), EINVAL, "gdr_unpin_buffer", "before gdr_open");
	is_rc(gdr_copy_to_mapping_v(NULL, 0), 0, "gdr_copy_to_mapping_v", "no pieces before gdr_open");
	is_rc(gdr_copy_from_mapping_v(NULL, 0), 0, "gdr_copy_from_mapping_v", "no pieces before gdr_open");

	if (!set_up()) {
		puts("Bail out! a buffer cannot even be made: set "
		     "GDRCOPY_ENABLE_LOGGING=1 to see why");
		puts("0 passed, 1 failed, 0 skipped");
		return 1;
	}
	bad_opens();
	bad_handles();
	old_info();
	bad_arguments();
	bad_numbers();
	short_places();
	forged(rounds);
	tear_down();
	return tap_done(&tap);
}
