/* SPDX-License-Identifier: MIT */
/*
 * badinput.c - every function with what no caller should pass: NULL, zero, huge
 * and forged values, handles that are stale, freed twice, of another gdr_t or
 * of another kind, and flags that do not exist. Each must answer its errno
 * value and leave everything else alone. Meant to run under valgrind and the
 * sanitizers too.
 */
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
	bool clean = memcmp(&out, &untouched, sizeof(out)) == 0;

	if (!tap_ok(&tap, got == want && clean, "%s: %s", function, what))
		printf("# got %d, not %d; out-parameters %s\n", got, want,
		       clean ? "untouched" : "written");
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

/* Each function that takes a gdr_t, with all else as it should be. */
static int g_close(gdr_t g) { return gdr_close(g); }
static int g_pin(gdr_t g)
{
	return gdr_pin_buffer(g, w.addr, w.size, 0, 0, &out.mh);
}
static int g_pin_v2(gdr_t g)
{
	return gdr_pin_buffer_v2(g, w.addr, w.size, 0, &out.mh);
}
static int g_version(gdr_t g)
{
	return gdr_driver_get_version(g, &out.v, &out.v2);
}
static int g_backend(gdr_t g)
{
	return gdr_get_backend(g, (char *)out.bytes, sizeof(out.bytes));
}
static int g_attribute(gdr_t g)
{
	int v = 1, rc = gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &v);

	return v ? -1 : rc;	/* a failure stores 0 */
}
static int g_mem_alloc(gdr_t g)
{
	return gdr_mem_alloc(g, 0, w.size, 0, &out.mem);
}

static const struct {
	const char *name;
	int (*call)(gdr_t g);
} on_open[] = {
	{ "gdr_close", g_close },
	{ "gdr_pin_buffer", g_pin },
	{ "gdr_pin_buffer_v2", g_pin_v2 },
	{ "gdr_driver_get_version", g_version },
	{ "gdr_get_backend", g_backend },
	{ "gdr_get_attribute", g_attribute },
	{ "gdr_mem_alloc", g_mem_alloc },
};

/* Each function that takes a gdr_t and a handle. */
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
	(void)g;
	return gdr_copy_to_mapping((gdr_mh_t){ h }, w.va, out.bytes, 8);
}
static int h_copy_from(gdr_t g, unsigned long h)
{
	(void)g;
	return gdr_copy_from_mapping((gdr_mh_t){ h }, out.bytes, w.va, 8);
}
static int h_copy_to_v(gdr_t g, unsigned long h)
{
	const gdr_piece_t pieces[2] = {
		{ w.mapped, w.va, out.bytes, 8 }, { { h }, w.va + 8, out.bytes, 8 },
	};

	(void)g;
	return gdr_copy_to_mapping_v(pieces, 2);
}
static int h_copy_from_v(gdr_t g, unsigned long h)
{
	const gdr_piece_t pieces[2] = {
		{ { h }, w.va, out.bytes, 8 }, { w.mapped, w.va, out.bytes, 8 },
	};

	(void)g;
	return gdr_copy_from_mapping_v(pieces, 2);
}

enum { TAKES_G = 1, TAKES_MEM = 2 };
static const struct {
	const char *name;
	int (*call)(gdr_t g, unsigned long h);
	int takes;
} on_handle[] = {
	{ "gdr_unpin_buffer", h_unpin, TAKES_G },
	{ "gdr_get_callback_flag", h_flag, TAKES_G },
	{ "gdr_get_info v1", h_info, TAKES_G },
	{ "gdr_get_info_v2", h_info_v2, TAKES_G },
	{ "gdr_map", h_map, TAKES_G },
	{ "gdr_map_v2", h_map_v2, TAKES_G },
	{ "gdr_unmap", h_unmap, TAKES_G },
	{ "gdr_mem_free", h_mem_free, TAKES_G | TAKES_MEM },
	{ "gdr_mem_get_device_ptr", h_mem_ptr, TAKES_G | TAKES_MEM },
	{ "gdr_mem_export_dmabuf", h_mem_export, TAKES_G | TAKES_MEM },
	{ "gdr_copy_to_mapping", h_copy_to, 0 },
	{ "gdr_copy_from_mapping", h_copy_from, 0 },
	{ "gdr_copy_to_mapping_v", h_copy_to_v, 0 },
	{ "gdr_copy_from_mapping_v", h_copy_from_v, 0 },
};

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
	size_t i, f;
	char what[80];

	for (i = 0; i < COUNT(bad); i++) {
		snprintf(what, sizeof(what), "gdr_t that is %s", bad[i].what);
		for (f = 0; f < COUNT(on_open); f++)
			is_rc(on_open[f].call((gdr_t)bad[i].g), EINVAL,
			      on_open[f].name, what);
		for (f = 0; f < COUNT(on_handle); f++) {
			unsigned long h = on_handle[f].takes & TAKES_MEM ?
					  w.mem.h : w.mapped.h;

			if (on_handle[f].takes & TAKES_G)
				is_rc(on_handle[f].call((gdr_t)bad[i].g, h),
				      EINVAL, on_handle[f].name, what);
		}
	}
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
		{ "the next generation", w.mapped.h + (1ul << 20),
		  w.mem.h + (1ul << 20) },
		{ "the last generation", w.mapped.h - (1ul << 20),
		  w.mem.h - (1ul << 20) },
		{ "the next epoch", w.mapped.h + (1ul << 52),
		  w.mem.h + (1ul << 52) },
		{ "the last epoch", w.mapped.h - (1ul << 52),
		  w.mem.h - (1ul << 52) },
		{ "an index never used", w.mapped.h | 0xfffff,
		  w.mem.h | 0xfffff },
		{ "a pointer", (unsigned long)&w, (unsigned long)&w },
		{ "of another gdr_t", w.other_mapped.h, w.other_mem.h },
	};
	size_t i, f;
	char what[80];

	for (i = 0; i < COUNT(bad); i++) {
		snprintf(what, sizeof(what), "handle that is %s", bad[i].what);
		for (f = 0; f < COUNT(on_handle); f++)
			is_rc(on_handle[f].call(w.g, on_handle[f].takes & TAKES_MEM ?
						bad[i].mem : bad[i].h),
			      EINVAL, on_handle[f].name, what);
	}
}

/* Whether nobody gave h out. */
static bool is_forged(unsigned long h)
{
	return h != w.mapped.h && h != w.pinned.h && h != w.mem.h &&
	       h != w.other_mapped.h && h != w.other_mem.h &&
	       h != (unsigned long)w.g && h != (unsigned long)w.other;
}

/* Random handles, and live ones with a few bits turned over. */
static void forged(int rounds)
{
	const unsigned long live[] = { w.mapped.h, w.pinned.h, w.mem.h,
				       (unsigned long)w.g };
	size_t f;
	int i;

	for (f = 0; f < COUNT(on_handle); f++) {
		int bad = 0;

		for (i = 0; i < rounds; i++) {
			unsigned long h = random_bits();

			if (i % 2)
				h = live[h % COUNT(live)] ^ 1ul << (h >> 58) ^
				    1ul << (h >> 40) % 64;
			if (is_forged(h) && on_handle[f].call(w.g, h) != EINVAL)
				bad++;
		}
		is_rc(bad, 0, on_handle[f].name, "forged handles");
	}
	for (f = 0; f < COUNT(on_open); f++) {
		int bad = 0;

		for (i = 0; i < rounds; i++) {
			unsigned long h = random_bits();

			if (i % 2)
				h = (unsigned long)w.g ^ 1ul << (h >> 58) ^
				    1ul << (h >> 40) % 64;
			if (is_forged(h) && on_open[f].call((gdr_t)h) != EINVAL)
				bad++;
		}
		is_rc(bad, 0, on_open[f].name, "forged gdr_t");
	}
}

static void null_pointers(void)
{
	const struct { const char *name; int rc; } rows[] = {
		{ "gdr_pin_buffer",
		  gdr_pin_buffer(w.g, w.addr, w.size, 0, 0, NULL) },
		{ "gdr_pin_buffer_v2",
		  gdr_pin_buffer_v2(w.g, w.addr, w.size, 0, NULL) },
		{ "gdr_get_callback_flag",
		  gdr_get_callback_flag(w.g, w.mapped, NULL) },
		{ "gdr_get_info v1", gdr_get_info(w.g, w.mapped, NULL) },
		{ "gdr_get_info_v2", gdr_get_info_v2(w.g, w.mapped, NULL) },
		{ "gdr_map", gdr_map(w.g, w.pinned, NULL, w.size) },
		{ "gdr_map_v2", gdr_map_v2(w.g, w.pinned, NULL, w.size, 0) },
		{ "gdr_copy_to_mapping, mapping",
		  gdr_copy_to_mapping(w.mapped, NULL, out.bytes, 1) },
		{ "gdr_copy_to_mapping, host",
		  gdr_copy_to_mapping(w.mapped, w.va, NULL, 1) },
		{ "gdr_copy_from_mapping, mapping",
		  gdr_copy_from_mapping(w.mapped, out.bytes, NULL, 1) },
		{ "gdr_copy_from_mapping, host",
		  gdr_copy_from_mapping(w.mapped, NULL, w.va, 1) },
		{ "gdr_copy_to_mapping_v, pieces", gdr_copy_to_mapping_v(NULL, 1) },
		{ "gdr_copy_from_mapping_v, pieces", gdr_copy_from_mapping_v(NULL, SIZE_MAX) },
		{ "gdr_driver_get_version, both",
		  gdr_driver_get_version(w.g, NULL, NULL) },
		{ "gdr_driver_get_version, major",
		  gdr_driver_get_version(w.g, NULL, &out.v) },
		{ "gdr_driver_get_version, minor",
		  gdr_driver_get_version(w.g, &out.v, NULL) },
		{ "gdr_get_attribute",
		  gdr_get_attribute(w.g, GDR_ATTR_USING_DMA_BUF_MMAP, NULL) },
		{ "gdr_get_mapping_type_string",
		  gdr_get_mapping_type_string(GDR_MAPPING_TYPE_WC, NULL) },
		{ "gdr_get_backend", gdr_get_backend(w.g, NULL, 16) },
		{ "gdr_mem_alloc", gdr_mem_alloc(w.g, 0, w.size, 0, NULL) },
		{ "gdr_mem_get_device_ptr",
		  gdr_mem_get_device_ptr(w.g, w.mem, NULL, &out.size) },
		{ "gdr_mem_export_dmabuf", gdr_mem_export_dmabuf(w.g, w.mem, 0, NULL) },
	};
	size_t i;

	for (i = 0; i < COUNT(rows); i++)
		is_rc(rows[i].rc, EINVAL, rows[i].name, "NULL");
	gdr_runtime_get_version(NULL, NULL);
	gdr_runtime_get_version(NULL, &out.v);
	tap_is(&tap, out.v, 6, "minor version, with NULL for the major");
	out.v = untouched.v;
}

static void bad_numbers(void)
{
	static const int flags[] = { 4, 7, 16, 1 << 16, -1, INT_MIN };
	static const int attrs[] = { 0, GDR_ATTR_MAX, 1000, -1, INT_MIN };
	static const size_t sizes[] = { SIZE_MAX, SIZE_MAX - 4095,
					SIZE_MAX / 2 + 1, 1ul << 47 };
	const char *text = NULL;
	size_t i;

	is_rc(gdr_pin_buffer(w.g, w.addr, 0, 0, 0, &out.mh), EINVAL,
	      "gdr_pin_buffer", "size 0");
	is_rc(gdr_pin_buffer(w.g, 0, w.size, 0, 0, &out.mh), EINVAL,
	      "gdr_pin_buffer", "address 0");
	is_rc(gdr_pin_buffer(w.g, ULONG_MAX, 1, 0, 0, &out.mh), EINVAL,
	      "gdr_pin_buffer", "the last address");
	is_rc(gdr_pin_buffer(w.g, (unsigned long)&w, sizeof(w), 0, 0, &out.mh),
	      EINVAL, "gdr_pin_buffer", "host memory");
	is_rc(gdr_pin_buffer(w.g, (unsigned long)w.va, 64, 0, 0, &out.mh),
	      EINVAL, "gdr_pin_buffer", "a mapping");
	is_rc(gdr_map(w.g, w.pinned, &out.va, 0), EINVAL, "gdr_map", "size 0");
	is_rc(gdr_map(w.g, w.mapped, &out.va, w.size), EAGAIN, "gdr_map",
	      "a buffer that is mapped");
	is_rc(gdr_unmap(w.g, w.pinned, w.va, w.size), EINVAL, "gdr_unmap",
	      "a buffer that is not mapped");
	is_rc(gdr_unmap(w.g, w.mapped, w.va, 0), EINVAL, "gdr_unmap", "size 0");
	is_rc(gdr_unmap(w.g, w.mapped, w.va, ((w.size + 0xffff) & ~0xfffful) + 1), EINVAL,
	      "gdr_unmap", "more than the mapping, in GPU pages");
	is_rc(gdr_unmap(w.g, w.mapped, w.va + 64, w.size), EINVAL, "gdr_unmap",
	      "the middle of a mapping");
	is_rc(gdr_copy_to_mapping(w.pinned, w.va, out.bytes, 1), EINVAL,
	      "gdr_copy_to_mapping", "a buffer that is not mapped");
	is_rc(gdr_copy_from_mapping(w.pinned, out.bytes, w.va, 1), EINVAL,
	      "gdr_copy_from_mapping", "a buffer that is not mapped");
	is_rc(gdr_copy_to_mapping(w.mapped, w.other_va, out.bytes, 1), EINVAL,
	      "gdr_copy_to_mapping", "another mapping");
	is_rc(gdr_copy_from_mapping(w.mapped, out.bytes, w.other_va, 1), EINVAL,
	      "gdr_copy_from_mapping", "another mapping");
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
	is_rc(gdr_mem_alloc(w.g, 0, 0, 0, &out.mem), EINVAL, "gdr_mem_alloc",
	      "size 0");
	is_rc(gdr_mem_alloc(w.g, 0, SIZE_MAX, 0, &out.mem), EINVAL,
	      "gdr_mem_alloc", "a size that wraps");
	is_rc(gdr_mem_alloc(w.g, -1, w.size, 0, &out.mem), ENODEV,
	      "gdr_mem_alloc", "GPU -1");
	is_rc(gdr_mem_alloc(w.g, 1 << 20, w.size, 0, &out.mem), ENODEV,
	      "gdr_mem_alloc", "GPU 1048576");
	tap_ok(&tap, text == NULL, "gdr_get_mapping_type_string wrote no text");
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

	if (!set_up()) {
		puts("Bail out! a buffer cannot even be made: set "
		     "GDRCOPY_ENABLE_LOGGING=1 to see why");
		puts("0 passed, 1 failed, 0 skipped");
		return 1;
	}
	bad_opens();
	bad_handles();
	null_pointers();
	bad_numbers();
	forged(rounds);
	tear_down();
	return tap_done(&tap);
}
