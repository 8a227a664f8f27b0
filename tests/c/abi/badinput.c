/* SPDX-License-Identifier: MIT */
/*
 * badinput.c - every function with what no caller should pass: NULL, zero, huge
 * and forged values, handles that are stale, freed twice, of another gdr_t or
 * of another kind, and flags that do not exist. Each must answer its errno
 * value, log one line under its name, and leave everything else alone. Meant to run under
 * valgrind and the sanitizers too.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "every.h"
#include "tap.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static struct tap tap;

/* What is right, and must be right at the end still. */
static struct world {
	struct args right;
	gdr_mh_t pinned;
	unsigned char *va;	/* right's */
	struct args other;	/* of another gdr_t */
	struct args closed;	/* what was live when it was closed */
	gdr_mh_t unpinned;
	gdr_mem_t freed;
	gdr_cache_t ended;
	unsigned long freed_addr;
} w;

static struct out untouched;

/* What the library logs; -1: that is not looked at. */
static int log_fd = -1;
static off_t log_at;

/* Of the sanitizers' lines none may be lost. */
static void catch_log(void)
{
#ifndef __SANITIZE_ADDRESS__
	log_fd = memfd_create("log", 0);
	if (log_fd < 0 || dup2(log_fd, STDERR_FILENO) < 0)
		exit(2);
	setenv("GDRCOPY_ENABLE_LOGGING", "1", 1);
	setenv("GDRCOPY_LOG_LEVEL", "4", 1);
#endif
}

/* Whether the next line of the log is of that function, whose name may end with " v1". */
static bool logged(const char *function)
{
	size_t n = strcspn(function, " ");
	char line[4096] = "";
	ssize_t got = log_fd < 0 ? 0 : pread(log_fd, line, sizeof(line) - 1, log_at);

	if (log_fd < 0)
		return true;
	line[got > 0 ? strcspn(line, "\n") : 0] = '\0';
	log_at += (off_t)strlen(line) + 1;
	return !strncmp(line, "ERR:  ", 6) && !strncmp(line + 6, function, n) && line[6 + n] == ':';
}

static void is_rc(int got, int want, const char *function, const char *what)
{
	bool clean = memcmp(&out, &untouched, sizeof(out)) == 0, kept = errno == EXDEV;
	bool said = got ? logged(function) : true;

	if (!tap_ok(&tap, got == want && clean && kept && said, "%s: %s", function, what))
		printf("# got %d, not %d; out-parameters %s, errno %s, %s\n", got, want,
		       clean ? "untouched" : "written", kept ? "as before" : "set",
		       said ? "a log line" : "no log line under its name");
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

/* Calls each function that takes one of these kinds of handles. */
static void all_refuse(int kinds, const char *kind, const char *what, const struct args *a)
{
	char text[80];

	snprintf(text, sizeof(text), "%s that is %s", kind, what);
	for (size_t f = 0; f < EVERY; f++)
		if (every[f].takes & kinds)
			is_rc(every[f].call(a), EINVAL, every[f].name, text);
}

/* Nothing is open, so that the functions know no handle. */
static void before_an_open(void)
{
	const struct args none = { .size = GPU_PAGE_SIZE }, some = {
		.g = (gdr_t)12345, .mh = { 12345 }, .mem = { 12345 }, .cache = { 12345 }, .size = GPU_PAGE_SIZE,
	};

	all_refuse(~0, "handle", "0 before gdr_open", &none);
	all_refuse(~0, "handle", "12345 before gdr_open", &some);
	is_rc(gdr_copy_to_mapping_v(NULL, 0), 0, "gdr_copy_to_mapping_v", "no pieces before gdr_open");
	is_rc(gdr_copy_from_mapping_v(NULL, 0), 0, "gdr_copy_from_mapping_v", "no pieces before gdr_open");
}

static void bad_opens(void)
{
	unsigned long good = (unsigned long)w.right.g;
	const struct { const char *what; unsigned long g; } bad[] = {
		{ "NULL", 0 },
		{ "1", 1 },
		{ "all ones", ULONG_MAX },
		{ "a closed gdr_t", (unsigned long)w.closed.g },
		{ "one above a gdr_t", good + 1 },
		{ "one below a gdr_t", good - 1 },
		{ "the next generation", good + (1ul << 20) },
		{ "the next epoch", good + (1ul << 52) },
		{ "no epoch", good & ((1ul << 52) - 1) },
		{ "a gdr_mh_t", w.right.mh.h },
		{ "a gdr_mem_t", w.right.mem.h },
		{ "a gdr_cache_t", w.right.cache.h },
		{ "a pointer", (unsigned long)&w },
		{ "a bad pointer", 0xdeadbeefdead0000 },
	};

	for (size_t i = 0; i < COUNT(bad); i++) {
		struct args a = w.right;

		a.g = (gdr_t)bad[i].g;
		all_refuse(TAKES_G, "gdr_t", bad[i].what, &a);
	}
}

static void bad_handles(void)
{
	const unsigned long mh = w.right.mh.h, mem = w.right.mem.h, cache = w.right.cache.h, g = (unsigned long)w.right.g;
	const unsigned long generation = 1ul << 20, epoch = 1ul << 52, here = (unsigned long)&w;
	const struct { const char *what; unsigned long mh, mem, cache; } bad[] = {
		{ "0", 0, 0, 0 },
		{ "1", 1, 1, 1 },
		{ "all ones", ULONG_MAX, ULONG_MAX, ULONG_MAX },
		{ "unpinned, freed or closed", w.unpinned.h, w.freed.h, w.ended.h },
		{ "of a closed gdr_t", w.closed.mh.h, w.closed.mem.h, w.closed.cache.h },
		{ "another kind's", mem, mh, mh },
		{ "yet another kind's", cache, cache, mem },
		{ "a gdr_t", g, g, g },
		{ "the next generation", mh + generation, mem + generation, cache + generation },
		{ "the last generation", mh - generation, mem - generation, cache - generation },
		{ "the next epoch", mh + epoch, mem + epoch, cache + epoch },
		{ "the last epoch", mh - epoch, mem - epoch, cache - epoch },
		{ "an index never used", mh | 0xfffff, mem | 0xfffff, cache | 0xfffff },
		{ "a pointer", here, here, here },
	};
	struct args a = w.right;

	for (size_t i = 0; i < COUNT(bad); i++) {
		a.mh.h = bad[i].mh;
		a.mem.h = bad[i].mem;
		a.cache.h = bad[i].cache;
		all_refuse(TAKES_MH | TAKES_MEM | TAKES_CACHE, "handle", bad[i].what, &a);
	}
	a.mh = w.other.mh;
	a.mem = w.other.mem;
	a.cache.h = 0;
	all_refuse(TAKES_MH | TAKES_MEM, "handle", "of another gdr_t", &a);
}

/* Whether nobody gave h out. */
static bool is_forged(unsigned long h)
{
	const unsigned long given[] = {
		w.right.mh.h, w.pinned.h, w.right.mem.h, w.right.cache.h, (unsigned long)w.right.g,
		w.other.mh.h, w.other.mem.h, w.other.cache.h, (unsigned long)w.other.g,
	};

	for (size_t i = 0; i < COUNT(given); i++)
		if (h == given[i])
			return false;
	return true;
}

/* Arguments of which the last kind of handle that a function takes is h. */
static struct args with(int takes, unsigned long h)
{
	struct args a = w.right;

	if (takes & TAKES_CACHE)
		a.cache.h = h;
	else if (takes & TAKES_MEM)
		a.mem.h = h;
	else if (takes & TAKES_MH)
		a.mh.h = h;
	else
		a.g = (gdr_t)h;
	return a;
}

/* Random handles, and live ones with a few bits turned over. */
static void forged(int rounds)
{
	const unsigned long live[] = {
		w.right.mh.h, w.pinned.h, w.right.mem.h, w.right.cache.h, (unsigned long)w.right.g,
	};

	log_fd = -1;
	for (size_t f = 0; f < EVERY; f++) {
		int bad = 0;

		for (int i = 0; i < rounds; i++) {
			unsigned long h = random_bits();
			struct args a;

			if (i % 2)
				h = live[h % COUNT(live)] ^ 1ul << (h >> 58) ^ 1ul << (h >> 40) % 64;
			a = with(every[f].takes, h);
			if (is_forged(h) && every[f].call(&a) != EINVAL)
				bad++;
		}
		is_rc(bad, 0, every[f].name, "forged handles");
	}
}

/* The first form of the info ends where the second goes on. */
static void old_info(void)
{
	unsigned char info[sizeof(gdr_info_v2_t)], same[sizeof(info)];

	memset(info, 0xa5, sizeof(info));
	memset(same, 0xa5, sizeof(same));
	is_rc(gdr_get_info(w.right.g, w.right.mh, info), 0, "gdr_get_info v1", "a good call");
	is_rc(!memcmp(info, same, 40) || memcmp(info + 40, same, sizeof(info) - 40), 0, "gdr_get_info v1",
	      "bytes written");
}

/* One call for each row. A row that has written is noticed by the first one that is judged. */
static void bad_arguments(void)
{
	const struct { int rc, want; const char *function, *what; } rows[] = {
		{ gdr_pin_buffer(w.right.g, w.right.addr, w.right.size, 0, 0, NULL), EINVAL, "gdr_pin_buffer", "NULL" },
		{ gdr_pin_buffer_v2(w.right.g, w.right.addr, w.right.size, 0, NULL), EINVAL, "gdr_pin_buffer_v2", "NULL" },
		{ gdr_pin_bytes(w.right.g, w.right.addr, w.right.size, 0, NULL), EINVAL, "gdr_pin_bytes", "NULL" },
		{ gdr_get_callback_flag(w.right.g, w.right.mh, NULL), EINVAL, "gdr_get_callback_flag", "NULL" },
		{ gdr_get_info(w.right.g, w.right.mh, NULL), EINVAL, "gdr_get_info v1", "NULL" },
		{ gdr_get_info_v2(w.right.g, w.right.mh, NULL), EINVAL, "gdr_get_info_v2", "NULL" },
		{ gdr_map(w.right.g, w.pinned, NULL, w.right.size), EINVAL, "gdr_map", "NULL" },
		{ gdr_map_v2(w.right.g, w.pinned, NULL, w.right.size, 0), EINVAL, "gdr_map_v2", "NULL" },
		{ gdr_copy_to_mapping(w.right.mh, NULL, out.bytes, 1), EINVAL, "gdr_copy_to_mapping", "NULL: mapping" },
		{ gdr_copy_to_mapping(w.right.mh, w.va, NULL, 1), EINVAL, "gdr_copy_to_mapping", "NULL: host" },
		{ gdr_copy_from_mapping(w.right.mh, out.bytes, NULL, 1), EINVAL, "gdr_copy_from_mapping", "NULL: mapping" },
		{ gdr_copy_from_mapping(w.right.mh, NULL, w.va, 1), EINVAL, "gdr_copy_from_mapping", "NULL: host" },
		{ gdr_copy_to_mapping_v(NULL, 1), EINVAL, "gdr_copy_to_mapping_v", "NULL: pieces" },
		{ gdr_copy_from_mapping_v(NULL, SIZE_MAX), EINVAL, "gdr_copy_from_mapping_v", "NULL: pieces" },
		{ gdr_driver_get_version(w.right.g, NULL, NULL), EINVAL, "gdr_driver_get_version", "NULL: both" },
		{ gdr_driver_get_version(w.right.g, NULL, &out.v), EINVAL, "gdr_driver_get_version", "NULL: major" },
		{ gdr_driver_get_version(w.right.g, &out.v, NULL), EINVAL, "gdr_driver_get_version", "NULL: minor" },
		{ gdr_get_attribute(w.right.g, GDR_ATTR_USING_DMA_BUF_MMAP, NULL), EINVAL, "gdr_get_attribute", "NULL" },
		{ gdr_get_backend(w.right.g, NULL, 16), EINVAL, "gdr_get_backend", "NULL" },
		{ gdr_mem_alloc(w.right.g, 0, w.right.size, 0, NULL), EINVAL, "gdr_mem_alloc", "NULL" },
		{ gdr_mem_get_device_ptr(w.right.g, w.right.mem, NULL, &out.size), EINVAL, "gdr_mem_get_device_ptr", "NULL" },
		{ gdr_mem_export_dmabuf(w.right.g, w.right.mem, 0, NULL), EINVAL, "gdr_mem_export_dmabuf", "NULL" },
		{ gdr_export_fd(w.right.g, w.right.mh, 0, NULL), EINVAL, "gdr_export_fd", "NULL" },
		{ gdr_export_fd(w.right.g, w.right.mh, 2, &out.v), EINVAL, "gdr_export_fd", "an unknown flag" },
		{ gdr_get_object(w.right.g, w.right.mh, NULL, &out.length, &out.count), EINVAL, "gdr_get_object", "NULL: offset" },
		{ gdr_get_object(w.right.g, w.right.mh, &out.offset, NULL, &out.count), EINVAL, "gdr_get_object", "NULL: length" },
		{ gdr_get_object(w.right.g, w.right.mh, &out.offset, &out.length, NULL), EINVAL, "gdr_get_object", "NULL: count" },
		{ gdr_pin_fd(w.right.g, 0, 0, NULL), EINVAL, "gdr_pin_fd", "NULL" },
		{ gdr_pin_fd(w.right.g, 0, 1, &out.mh), EINVAL, "gdr_pin_fd", "an unknown flag" },
		{ gdr_cache_open(w.right.g, 1, 0, NULL), EINVAL, "gdr_cache_open", "NULL" },
		{ gdr_cache_open(w.right.g, 0, 0, &out.cache), EINVAL, "gdr_cache_open", "0 bytes" },
		{ gdr_cache_open(w.right.g, 1, 1, &out.cache), EINVAL, "gdr_cache_open", "flag 1" },
		{ gdr_cache_get(w.right.cache, w.right.addr, 1, NULL, &out.va), EINVAL, "gdr_cache_get", "NULL: handle" },
		{ gdr_cache_get(w.right.cache, w.right.addr, 1, &out.mh, NULL), EINVAL, "gdr_cache_get", "NULL: mapping" },
		{ gdr_cache_get(w.right.cache, w.right.addr, 0, &out.mh, &out.va), EINVAL, "gdr_cache_get", "size 0" },
		{ gdr_cache_get(w.right.cache, 0, 1, &out.mh, &out.va), EINVAL, "gdr_cache_get", "address 0" },
		{ gdr_cache_get(w.right.cache, w.right.addr, SIZE_MAX, &out.mh, &out.va), EINVAL, "gdr_cache_get", "a size that wraps" },
		{ gdr_cache_get(w.right.cache, (unsigned long)&w, 1, &out.mh, &out.va), EINVAL, "gdr_cache_get", "host memory" },
		{ gdr_cache_put(w.right.cache, w.right.mh), EINVAL, "gdr_cache_put", "a buffer that is not the cache's" },
		{ gdr_mem_export_dmabuf(w.right.g, w.right.mem, 2, &out.v), EINVAL, "gdr_mem_export_dmabuf", "flag 2" },
		{ gdr_pin_buffer(w.right.g, w.right.addr, 0, 0, 0, &out.mh), EINVAL, "gdr_pin_buffer", "size 0" },
		{ gdr_pin_buffer(w.right.g, 0, w.right.size, 0, 0, &out.mh), EINVAL, "gdr_pin_buffer", "address 0" },
		{ gdr_pin_buffer(w.right.g, ULONG_MAX, 1, 0, 0, &out.mh), EINVAL, "gdr_pin_buffer", "the last address" },
		{ gdr_pin_buffer(w.right.g, w.right.addr, -w.right.addr - 1, 0, 0, &out.mh), EINVAL, "gdr_pin_buffer", "all from there on" },
		{ gdr_pin_buffer(w.right.g, (unsigned long)&w, sizeof(w), 0, 0, &out.mh), EINVAL, "gdr_pin_buffer", "host memory" },
		{ gdr_pin_buffer(w.right.g, (unsigned long)w.va, 64, 0, 0, &out.mh), EINVAL, "gdr_pin_buffer", "a mapping" },
		{ gdr_pin_buffer(w.right.g, 0x10000, 1, 0, 0, &out.mh), EINVAL, "gdr_pin_buffer", "an address of nobody's" },
		{ gdr_pin_buffer(w.right.g, w.freed_addr, 1, 0, 0, &out.mh), EINVAL, "gdr_pin_buffer", "memory that was freed" },
		{ gdr_pin_bytes(w.right.g, w.right.addr, 0, 0, &out.mh), EINVAL, "gdr_pin_bytes", "size 0" },
		{ gdr_pin_bytes(w.right.g, 0, w.right.size, 0, &out.mh), EINVAL, "gdr_pin_bytes", "address 0" },
		{ gdr_pin_bytes(w.right.g, ULONG_MAX, 1, 0, &out.mh), EINVAL, "gdr_pin_bytes", "the last address" },
		{ gdr_pin_bytes(w.right.g, w.right.addr, -w.right.addr, 0, &out.mh), EINVAL, "gdr_pin_bytes", "a size that wraps" },
		{ gdr_pin_bytes(w.right.g, (unsigned long)&w, sizeof(w), 0, &out.mh), EINVAL, "gdr_pin_bytes", "host memory" },
		{ gdr_pin_bytes(w.right.g, w.freed_addr, 1, 0, &out.mh), EINVAL, "gdr_pin_bytes", "memory that was freed" },
		{ gdr_map(w.right.g, w.pinned, &out.va, 0), EINVAL, "gdr_map", "size 0" },
		{ gdr_map(w.right.g, w.pinned, &out.va, w.right.size + 1), EINVAL, "gdr_map", "more than is pinned" },
		{ gdr_map(w.right.g, w.right.mh, &out.va, w.right.size), EAGAIN, "gdr_map", "a buffer that is mapped" },
		{ gdr_unmap(w.right.g, w.pinned, w.va, w.right.size), EINVAL, "gdr_unmap", "a buffer that is not mapped" },
		{ gdr_unmap(w.right.g, w.right.mh, w.va, 0), EINVAL, "gdr_unmap", "size 0" },
		{ gdr_unmap(w.right.g, w.right.mh, w.va, ((w.right.size + 0xffff) & ~0xfffful) + 1), EINVAL, "gdr_unmap", "more than the mapping, in GPU pages" },
		{ gdr_unmap(w.right.g, w.right.mh, w.va + 64, w.right.size), EINVAL, "gdr_unmap", "the middle of a mapping" },
		{ gdr_copy_to_mapping(w.pinned, w.va, out.bytes, 1), EINVAL, "gdr_copy_to_mapping", "a buffer that is not mapped" },
		{ gdr_copy_from_mapping(w.pinned, out.bytes, w.va, 1), EINVAL, "gdr_copy_from_mapping", "a buffer that is not mapped" },
		{ gdr_copy_to_mapping(w.right.mh, w.other.va, out.bytes, 1), EINVAL, "gdr_copy_to_mapping", "another mapping" },
		{ gdr_copy_from_mapping(w.right.mh, out.bytes, w.other.va, 1), EINVAL, "gdr_copy_from_mapping", "another mapping" },
		{ gdr_copy_to_mapping(w.right.mh, out.bytes, out.bytes + 8, 8), EINVAL, "gdr_copy_to_mapping", "memory of the host" },
		{ gdr_copy_from_mapping(w.right.mh, out.bytes, w.va + w.right.size - 1, 2), EINVAL, "gdr_copy_from_mapping", "past the mapping" },
		{ gdr_mem_alloc(w.right.g, 0, w.right.size, 1, &out.mem), EINVAL, "gdr_mem_alloc", "flag 1" },
		{ gdr_mem_alloc(w.right.g, 0, 0, 0, &out.mem), EINVAL, "gdr_mem_alloc", "size 0" },
		{ gdr_mem_alloc(w.right.g, 0, SIZE_MAX, 0, &out.mem), EINVAL, "gdr_mem_alloc", "a size that wraps" },
		{ gdr_mem_alloc(w.right.g, 0, 1ul << 42, 0, &out.mem), ENOMEM, "gdr_mem_alloc", "more than a GPU has" },
		{ gdr_mem_alloc(w.right.g, -1, w.right.size, 0, &out.mem), ENODEV, "gdr_mem_alloc", "GPU -1" },
		{ gdr_mem_alloc(w.right.g, 1 << 20, w.right.size, 0, &out.mem), ENODEV, "gdr_mem_alloc", "GPU 1048576" },
	};

	for (size_t i = 0; i < COUNT(rows); i++)
		is_rc(rows[i].rc, rows[i].want, rows[i].function, rows[i].what);
}

static void bad_gdr_runtime_get_version(void)
{
	int minor = 0;

	gdr_runtime_get_version(NULL, NULL);
	gdr_runtime_get_version(NULL, &minor);
	tap_is(&tap, minor, 6, "minor version, with NULL for the major");
}

static void bad_gdr_get_mapping_type_string(void)
{
	static const int types[] = { GDR_MAPPING_TYPE_MAX, 1000, -1, INT_MIN };
	const char *text = NULL;

	for (size_t i = 0; i < COUNT(types); i++)
		is_rc(gdr_get_mapping_type_string(types[i], &text), EINVAL, "gdr_get_mapping_type_string", "unknown type");
	is_rc(gdr_get_mapping_type_string(GDR_MAPPING_TYPE_WC, NULL), EINVAL, "gdr_get_mapping_type_string", "NULL");
	tap_ok(&tap, text == NULL, "gdr_get_mapping_type_string wrote no text");
}

/* Those that take no handle. */
static void others(void)
{
#define HANDLES(name, takes)
#define OTHER(name) bad_##name();
#define NOTHING(name)
#include "functions.h"
}

static void bad_numbers(void)
{
	static const int flags[] = { 4, 7, 16, 1 << 16, -1, INT_MIN };
	static const int attrs[] = { 0, GDR_ATTR_MAX, 1000, -1, INT_MIN };
	static const size_t sizes[] = { SIZE_MAX, SIZE_MAX - 4095, SIZE_MAX / 2 + 1, 1ul << 47 };
	size_t i;

	for (i = 0; i < COUNT(sizes); i++) {
		const gdr_piece_t huge = { w.right.mh, w.va, out.bytes, sizes[i] };

		is_rc(gdr_copy_to_mapping_v(&huge, 1), EINVAL, "gdr_copy_to_mapping_v", "huge size");
		is_rc(gdr_copy_from_mapping_v(&huge, 1), EINVAL, "gdr_copy_from_mapping_v",
		      "huge size");
		is_rc(gdr_pin_buffer(w.right.g, w.right.addr, sizes[i], 0, 0, &out.mh),
		      EINVAL, "gdr_pin_buffer", "huge size");
		is_rc(gdr_map(w.right.g, w.pinned, &out.va, sizes[i]), EINVAL,
		      "gdr_map", "huge size");
		is_rc(gdr_unmap(w.right.g, w.right.mh, w.va, sizes[i]), EINVAL,
		      "gdr_unmap", "huge size");
		is_rc(gdr_copy_to_mapping(w.right.mh, w.va, out.bytes, sizes[i]),
		      EINVAL, "gdr_copy_to_mapping", "huge size");
		is_rc(gdr_copy_from_mapping(w.right.mh, out.bytes, w.va, sizes[i]),
		      EINVAL, "gdr_copy_from_mapping", "huge size");
	}
	for (i = 0; i < COUNT(flags); i++) {
		is_rc(gdr_map_v2(w.right.g, w.pinned, &out.va, w.right.size, flags[i]),
		      EINVAL, "gdr_map_v2", "wrong flag");
		is_rc(gdr_mem_alloc(w.right.g, 0, w.right.size, (unsigned)flags[i],
				    &out.mem), EINVAL,
		      "gdr_mem_alloc", "wrong flag");
	}
	for (i = 0; i < COUNT(attrs); i++) {
		int v = 1;

		is_rc(gdr_get_attribute(w.right.g, attrs[i], &v), EINVAL,
		      "gdr_get_attribute", "unknown attribute");
		tap_is(&tap, v, 0, "its answer is 0");
	}
}

/*
 * What the reference answers in a way of its own, and this library as it does or as
 * docs/migrate.md says: sizes and addresses of gdr_unmap, bits of a pin's flags, an attribute that is final.
 */
static void as_the_reference(void)
{
	enum { SIZE = 200000 };
	static const struct { size_t at, size; int rc; } unmaps[] = {
		{ 0, 1, 0 }, { 0, 4096, 0 }, { 0, 65536, 0 }, { 0, SIZE - 1, 0 }, { 0, SIZE, 0 }, { 0, SIZE + 1, 0 },
		{ 0, 262144, 0 }, { 65536, SIZE, 0 }, { 0, 1 << 20, EINVAL }, { 0, 262145, EINVAL },
	};
	static const uint32_t flags[] = { 2, 4, 0x10000, 0x80000000, 0xfffffffe };
	int first = -1, then = -2;
	gdr_t g = gdr_open();
	unsigned long addr;
	gdr_info_v2_t info;
	gdr_mem_t mem;
	gdr_mh_t mh;
	char *va;

	log_fd = -1;	/* its warnings are not errors */
	tap_is(&tap, gdr_get_attribute(g, GDR_ATTR_USING_DMA_BUF_MMAP, &first), 0, "USING_DMA_BUF_MMAP");
	if (gdr_mem_alloc(g, 0, SIZE, 0, &mem) || gdr_mem_get_device_ptr(g, mem, &addr, NULL))
		exit(2);
	for (size_t i = 0; i < COUNT(flags); i++)
		tap_ok(&tap, !gdr_pin_buffer_v2(g, addr, SIZE, flags[i], &mh) && !gdr_unpin_buffer(g, mh),
		       "unknown bits of a pin's flags are ignored");
	tap_is(&tap, gdr_get_attribute(g, GDR_ATTR_USING_DMA_BUF_MMAP, &then), 0, "USING_DMA_BUF_MMAP after it");
	tap_is(&tap, then, first, "its answer");
	for (size_t i = 0; i < COUNT(unmaps); i++) {
		if (gdr_pin_buffer(g, addr, SIZE, 0, 0, &mh) || gdr_map(g, mh, (void **)&va, SIZE))
			exit(2);
		tap_is(&tap, gdr_unmap(g, mh, va + unmaps[i].at, unmaps[i].size), unmaps[i].rc,
		       "gdr_unmap of another range");
		tap_ok(&tap, !gdr_get_info_v2(g, mh, &info) && info.mapped == (unmaps[i].rc != 0),
		       "all of it is unmapped, or nothing");
		tap_is(&tap, gdr_unpin_buffer(g, mh), 0, "gdr_unpin_buffer, also of a mapped buffer");
		tap_is(&tap, gdr_unpin_buffer(g, mh), EINVAL, "gdr_unpin_buffer once more");
	}
	tap_is(&tap, gdr_close(g), 0, "gdr_close");
	errno = EXDEV;
}

/* A name is written where it fits with its end, and nothing beside it. */
static void short_places(void)
{
	char name[32], got[32], fresh[32];
	size_t n;

	tap_is(&tap, gdr_get_backend(w.right.g, name, sizeof(name)), 0, "gdr_get_backend with room");
	n = strlen(name) + 1;
	memset(fresh, 0x3e, sizeof(fresh));
	for (size_t size = 0; size <= n; size++) {
		memcpy(got, fresh, sizeof(got));
		is_rc(gdr_get_backend(w.right.g, got, size), size < n ? ERANGE : 0, "gdr_get_backend", "little room");
		if (size == n)
			tap_ok(&tap, !memcmp(got, name, n), "the name is there");
		tap_ok(&tap, !memcmp(got + n, fresh + n, sizeof(got) - n) && (size == n || !memcmp(got, fresh, n)),
		       "nothing else is, in %zu bytes", size);
	}
}

/* Everything of a gdr_t: memory, a mapping of it, and a cache. */
static bool furnish(struct args *a)
{
	size_t size;

	a->g = gdr_open();
	a->size = GPU_PAGE_SIZE;
	if (!a->g || gdr_mem_alloc(a->g, 0, 1, 0, &a->mem) || gdr_mem_get_device_ptr(a->g, a->mem, &a->addr, &size) ||
	    gdr_pin_buffer(a->g, a->addr, a->size, 0, 0, &a->mh) || gdr_map(a->g, a->mh, &a->va, a->size) ||
	    gdr_cache_open(a->g, 1 << 20, 0, &a->cache))
		return false;
	a->mapped = a->mh;
	return true;
}

static bool set_up(void)
{
	if (!furnish(&w.closed) || gdr_close(w.closed.g) || !furnish(&w.right) || !furnish(&w.other))
		return false;
	w.va = w.right.va;
	memset(w.va, 0x77, w.right.size);
	return gdr_pin_buffer(w.right.g, w.right.addr, w.right.size, 0, 0, &w.pinned) == 0 &&
	       gdr_pin_buffer(w.right.g, w.right.addr, w.right.size, 0, 0, &w.unpinned) == 0 &&
	       gdr_unpin_buffer(w.right.g, w.unpinned) == 0 &&
	       gdr_mem_alloc(w.right.g, 0, 1, 0, &w.freed) == 0 &&
	       gdr_mem_get_device_ptr(w.right.g, w.freed, &w.freed_addr, NULL) == 0 &&
	       gdr_mem_free(w.right.g, w.freed) == 0 &&
	       gdr_cache_open(w.right.g, 1 << 20, 0, &w.ended) == 0 && gdr_cache_close(w.ended) == 0;
}

/* What was right is right still, and ends as it should, once. */
static void tear_down(void)
{
	unsigned char want[64], got[64];

	memset(want, 0x77, sizeof(want));
	tap_is(&tap, gdr_copy_from_mapping(w.right.mh, got, w.va, sizeof(got)), 0,
	       "a copy from the live mapping");
	tap_ok(&tap, memcmp(got, want, sizeof(got)) == 0,
	       "no bad call wrote to the mapping");
	tap_is(&tap, gdr_unmap(w.right.g, w.right.mh, w.va, w.right.size), 0, "gdr_unmap");
	tap_is(&tap, gdr_unmap(w.right.g, w.right.mh, w.va, w.right.size), EINVAL,
	       "gdr_unmap once more");
	tap_is(&tap, gdr_unpin_buffer(w.right.g, w.right.mh), 0, "gdr_unpin_buffer");
	tap_is(&tap, gdr_unpin_buffer(w.right.g, w.right.mh), EINVAL,
	       "gdr_unpin_buffer once more");
	tap_is(&tap, gdr_cache_close(w.right.cache), 0, "gdr_cache_close");
	tap_is(&tap, gdr_cache_close(w.right.cache), EINVAL, "gdr_cache_close once more");
	tap_is(&tap, gdr_mem_free(w.right.g, w.right.mem), 0, "gdr_mem_free");
	tap_is(&tap, gdr_mem_free(w.right.g, w.right.mem), EINVAL, "gdr_mem_free once more");
	tap_is(&tap, gdr_close(w.right.g), 0, "gdr_close");
	tap_is(&tap, gdr_close(w.right.g), EINVAL, "gdr_close once more");
	tap_is(&tap, gdr_unpin_buffer(w.right.g, w.pinned), EINVAL,
	       "gdr_unpin_buffer after gdr_close");
	tap_is(&tap, gdr_copy_from_mapping(w.other.mh, got, w.other.va, 1),
	       0, "a copy from the other gdr_t's mapping");
	tap_is(&tap, gdr_close(w.other.g), 0, "gdr_close of the other");
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 2000;

	errno = EXDEV;	/* no call sets it */
	memset(&untouched, 0x3e, sizeof(untouched));
	memcpy(&out, &untouched, sizeof(out));

	before_an_open();
	catch_log();
	errno = EXDEV;
	if (!set_up()) {
		puts("Bail out! a buffer cannot even be made: set "
		     "GDRCOPY_ENABLE_LOGGING=1 to see why");
		puts("0 passed, 1 failed, 0 skipped");
		return 1;
	}
	if (log_fd >= 0)
		log_at = lseek(log_fd, 0, SEEK_END);
	bad_opens();
	bad_handles();
	old_info();
	bad_arguments();
	bad_numbers();
	others();
	short_places();
	forged(rounds);
	as_the_reference();
	tear_down();
	return tap_done(&tap);
}
