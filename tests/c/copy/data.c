// SPDX-License-Identifier: MIT
/*
 * copy/data.c - capi/data.c over a table and mappings of the test's: what a copy takes and
 * refuses, what its record shows meanwhile, copies inside copies and copies that were
 * left, records of threads that have ended. Whoever makes long copies is the test.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "copy/copy.h"
#include "long/plan.h"
#include "data.h"
#include "log_double.h"
#include "front_double.h"
#include "gdrapi_ext.h"
#include "long/long.h"
#include "tap.h"

enum { SIZE = 8192, HANDLES = 5, EPOCH = 3, EDGE = 64 };

static struct tap tap;
static struct gdr_table table;
static struct gdr_slot *slots;
static struct gdr_hazard *hazards;
static unsigned char dev[HANDLES][EDGE + SIZE + EDGE], host[SIZE + 2 * EDGE];

/* In place of the C library's: how they end, if not as the kernel has it. */
static stack_t *stack_now;	/* of this thread's handlers */
static int stack_error, read_error;
static int yields;

int sigaltstack(const stack_t *set, stack_t *old)
{
	if (old && stack_error) {
		errno = stack_error;
		return -1;
	}
	if (old && stack_now) {
		*old = *stack_now;
		return 0;
	}
	return (int)syscall(SYS_sigaltstack, set, old);
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *to, unsigned long n, const struct iovec *from, unsigned long m,
			 unsigned long flags)
{
	if (read_error) {
		errno = read_error;
		return -1;
	}
	return syscall(SYS_process_vm_readv, pid, to, n, from, m, flags);
}

int sched_yield(void)
{
	yields++;
	return (int)syscall(SYS_sched_yield);
}

/* What was left to others. */
static struct gdr_long last_long;
static int longs, forgotten;
static const void *forgotten_owner;

void gdr_long_copy(const struct gdr_long *copy)
{
	last_long = *copy;
	longs++;
	memcpy(copy->to ? copy->dev : copy->host, copy->to ? copy->host : copy->dev, copy->size);
}

void gdr_long_forget(const struct gdr_front *f, const void *owner)
{
	forgotten += f == &front;
	forgotten_owner = owner;
}

/* A routine for write-combined memory, which calls hook once in a copy of more than a line. */
static struct copy_impl impl;
static void (*hook)(void);
static int moves;

static void move(void *dst, const void *src, size_t n)
{
	void (*now)(void) = hook;

	moves++;
	hook = NULL;
	memcpy(dst, src, n);
	if (now)
		now();
}

static void check(bool ok, const char *what)
{
	tap_ok(&tap, ok, "%s", what);
}

static uint64_t key_of(uint64_t epoch, int i)
{
	return epoch << GDR_HANDLE_EPOCH_SHIFT | 7ull << GDR_HANDLE_INDEX_BITS | (unsigned int)(100 + i);
}

static gdr_mh_t mh(int i)
{
	return (gdr_mh_t){ key_of(EPOCH, i) };
}

static unsigned char *first(int i)
{
	return dev[i] + EDGE;
}

static void map_as(int i, uint32_t type)
{
	struct gdr_slot *s = &slots[100 + i];

	s->va = (uintptr_t)first(i);
	s->len = SIZE;
	s->type = type;
	atomic_store(&s->key, key_of(EPOCH, i));
}

/* The record of this thread: the last one that its ID has. */
static struct gdr_hazard *mine(void)
{
	uint32_t id = (uint32_t)syscall(SYS_gettid), used = atomic_load(&table.hazards_used);

	for (uint32_t i = 0; i < used; i++)
		if (atomic_load(&hazards[GDR_HAZARD_COUNT - 1 - i].owner) == id)
			return &hazards[GDR_HAZARD_COUNT - 1 - i];
	return NULL;
}

static bool is_idle(void)
{
	const struct gdr_hazard *r = mine();

	return r && !atomic_load(&r->busy[0]) && !atomic_load(&r->busy[1]) && !atomic_load(&r->busy[2]);
}

static int copy(int way, gdr_mh_t h, void *d, void *p, size_t n)
{
	const gdr_piece_t piece = { .handle = h, .map_d_ptr = d, .h_ptr = p, .size = n };

	switch (way) {
	case 0: return gdr_copy_to_mapping(h, d, p, n);
	case 1: return gdr_copy_from_mapping(h, p, d, n);
	case 2: return gdr_copy_to_mapping_v(&piece, 1);
	default: return gdr_copy_from_mapping_v(&piece, 1);
	}
}

/* Whether a copy has the answer, and moves these bytes or none. */
static bool answers(int way, int i, long off, size_t n, int want)
{
	unsigned char *d = first(i) + off, before[sizeof(dev[0])], back[sizeof(host)];
	bool to = way % 2 == 0, all = !want && n;

	for (size_t k = 0; k < sizeof(dev[0]); k++)
		dev[i][k] = (unsigned char)(k * 7 + off);
	for (size_t k = 0; k < sizeof(host); k++)
		host[k] = (unsigned char)(k * 11 + n);
	memcpy(before, dev[i], sizeof(before));
	memcpy(back, host, sizeof(back));
	if (all && to)
		memcpy(before + EDGE + off, host + EDGE, n);
	if (all && !to)
		memcpy(back + EDGE, dev[i] + EDGE + off, n);
	return copy(way, mh(i), d, host + EDGE, n) == want && !memcmp(before, dev[i], sizeof(before)) &&
	       !memcmp(back, host, sizeof(back)) && is_idle();
}

static void test_bounds(void)
{
	static const struct { long off; size_t n; int want; } rows[] = {
		{ 0, 1, 0 }, { 0, 8, 0 }, { 0, 64, 0 }, { 0, 65, 0 }, { 0, SIZE, 0 }, { 0, SIZE + 1, EINVAL }, { 3, 100, 0 },
		{ 1, SIZE - 1, 0 }, { 1, SIZE, EINVAL }, { SIZE - 1, 1, 0 }, { SIZE - 1, 2, EINVAL }, { SIZE, 1, EINVAL },
		{ SIZE - 64, 64, 0 }, { SIZE - 63, 64, EINVAL }, { SIZE - 65, 65, 0 }, { SIZE - 64, 65, EINVAL }, { -1, 1, EINVAL },
		{ -1, 65, EINVAL }, { -8, 16, EINVAL }, { SIZE + 8, 8, EINVAL }, { 0, SIZE_MAX, EINVAL }, { 1, SIZE_MAX, EINVAL },
		{ 8, SIZE_MAX - 7, EINVAL }, { 0, 0, 0 }, { SIZE, 0, 0 }, { -9, 0, 0 }, { SIZE + 9, 0, 0 },
	};
	static const uint32_t types[] = { GDR_MAPPING_TYPE_WC, GDR_MAPPING_TYPE_CACHING, GDR_MAPPING_TYPE_DEVICE };

	for (int mixed = 0; mixed < 2; mixed++) {
		atomic_store(&table.mixed, mixed);
		for (int t = 0; t < 3; t++) {
			map_as(0, types[t]);
			for (int way = 0; way < 4; way++) {
				bool good = true;

				for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++)
					if (!answers(way, 0, rows[k].off, rows[k].n, rows[k].want)) {
						printf("# %zu bytes at %ld\n", rows[k].n, rows[k].off);
						good = false;
					}
				good &= copy(way, mh(0), first(0), NULL, 8) == EINVAL && copy(way, mh(0), first(0), NULL, 100) == EINVAL;
				good &= !copy(way, mh(0), NULL, NULL, 0) && is_idle();
				tap_ok(&tap, good, "type %u, way %d%s: bounds and bytes", types[t], way, mixed ? ", mixed" : "");
			}
		}
	}
	atomic_store(&table.mixed, 0);
	map_as(0, GDR_MAPPING_TYPE_WC);
}

static void test_keys(void)
{
	for (int way = 0; way < 4; way++) {
		const uint64_t wrong[] = { 0, key_of(EPOCH, HANDLES), key_of(EPOCH, 0) ^ 1ull << GDR_HANDLE_INDEX_BITS, key_of(EPOCH + 1, 0) };
		bool good = true;

		for (int k = 0; k < 4; k++)
			for (size_t n = 0; n < 200; n += 66)
				good &= copy(way, (gdr_mh_t){ wrong[k] }, first(0), host, n) == EINVAL && is_idle();
		good &= copy(way, (gdr_mh_t){ key_of(EPOCH - 1, 0) }, first(0), host, 8) == EACCES && is_idle();
		tap_ok(&tap, good, "way %d: a key that no mapping of this process has", way);
	}
	check(!gdr_copy_to_mapping_v(NULL, 0) && gdr_copy_to_mapping_v(NULL, 1) == EINVAL &&
	      gdr_copy_from_mapping_v(NULL, 1) == EINVAL && is_idle(), "no pieces, and no array");
}

static gdr_piece_t piece_of(int i, long off, void *p, size_t n)
{
	return (gdr_piece_t){ .handle = mh(i), .map_d_ptr = first(i) + off, .h_ptr = p, .size = n };
}

/* Each copy that is refused has one line, which names the handle, and the bytes by number and place. */
static void test_lines(void)
{
	const gdr_piece_t pieces[] = { piece_of(0, 0, host, 8), piece_of(0, 0, NULL, 0), piece_of(0, SIZE - 4, host, 5) };
	const gdr_mh_t gone = { key_of(EPOCH, HANDLES) }, old = { key_of(EPOCH - 1, 0) };
	const gdr_piece_t unmapped[] = { pieces[0], { .handle = gone, .map_d_ptr = first(0), .h_ptr = host, .size = 8 } };
	char want[256];
	bool good[4] = { true, true, true, true };

	for (int to = 0; to < 2; to++) {
		lines = 0;
		copy(to, mh(0), first(0) + SIZE, host, 77);
		snprintf(want, sizeof(want), "gdr_copy: 77 bytes at %#lx do not lie in the mapping of handle %#lx (errno 22)",
			 (unsigned long)(first(0) + SIZE), mh(0).h);
		good[0] &= lines == 1 && !strcmp(said, want);
		copy(to, gone, first(0), host, 8);
		snprintf(want, sizeof(want), "gdr_copy: handle %#lx is not mapped (errno 22)", gone.h);
		good[1] &= lines == 2 && !strcmp(said, want);
		said[0] = '\0';
		(to ? gdr_copy_to_mapping_v : gdr_copy_from_mapping_v)(unmapped, 2);
		good[1] &= lines == 3 && !strcmp(said, want);
		copy(to, old, first(0), host, 8);
		good[1] &= lines == 4 && strstr(said, "before fork()") && strstr(said, "(errno 13)");
		(to ? gdr_copy_to_mapping_v : gdr_copy_from_mapping_v)(pieces, 3);
		snprintf(want, sizeof(want), "gdr_copy: piece 2, 5 bytes at %#lx, does not lie in the mapping of handle %#lx,"
			 " or has no host address (errno 22)", (unsigned long)(first(0) + SIZE - 4), mh(0).h);
		good[2] &= lines == 5 && !strcmp(said, want);
		(to ? gdr_copy_to_mapping_v : gdr_copy_from_mapping_v)(NULL, 19);
		good[3] &= lines == 6 && !strcmp(said, "gdr_copy: the array of 19 pieces is NULL (errno 22)");
	}
	check(good[0], "a copy beside its mapping is named in a line");
	check(good[1], "so is a handle without a mapping");
	check(good[2], "so is the piece that cannot be copied");
	check(good[3], "and an array that is not there");
}

/* What the record shows while a copy runs. */
static uint64_t seen[GDR_HAZARD_LEVELS];
static uint64_t seen_names[GDR_HAZARD_NAMES];

static void look(void)
{
	for (int i = 0; i < GDR_HAZARD_LEVELS; i++)
		seen[i] = atomic_load(&mine()->busy[i]);
	for (unsigned int i = 0; i < GDR_HAZARD_NAMES; i++)
		seen_names[i] = atomic_load(&mine()->names[i]);
}

static int rc_inside;

static void copy_inside(void)
{
	hook = look;
	rc_inside = gdr_copy_to_mapping(mh(1), first(1), host, 100);
}

static void copy_twice_inside(void)
{
	hook = copy_inside;
	gdr_copy_from_mapping(mh(2), host, first(2), 100);
}

static void copy_thrice_inside(void)
{
	hook = copy_twice_inside;
	gdr_copy_to_mapping(mh(3), first(3), host, 100);
}

static void test_levels(void)
{
	map_as(1, GDR_MAPPING_TYPE_WC);
	map_as(2, GDR_MAPPING_TYPE_WC);
	map_as(3, GDR_MAPPING_TYPE_WC);
	hook = look;
	check(!copy(0, mh(0), first(0), host, 100) && seen[0] == mh(0).h && !seen[1] && !seen[2] && is_idle(), "a write is announced");
	hook = look;
	check(!copy(1, mh(2), first(2), host, 100) && seen[0] == mh(2).h && is_idle(), "a read is");
	hook = copy_inside;
	check(!copy(1, mh(0), first(0), host, 100) && !rc_inside && seen[0] == mh(0).h && seen[1] == mh(1).h && !seen[2] && is_idle(),
	      "a copy inside a copy has the next level");
	hook = copy_twice_inside;
	check(!copy(0, mh(0), first(0), host, 100) && !rc_inside && seen[0] == mh(0).h && seen[1] == mh(2).h && seen[2] == mh(1).h &&
	      is_idle(), "and one inside that the last");
	hook = copy_thrice_inside;
	lines = 0;
	moves = 0;
	check(!copy(0, mh(0), first(0), host, 100) && rc_inside == EAGAIN && moves == 3 && is_idle() && lines == 1 &&
	      strstr(said, "interrupted 3 copies of this thread") && strstr(said, "(errno 11)"), "a fourth is EAGAIN");
}

static int count_of_names(uint64_t number)
{
	return (int)(number & GDR_MANY_NAMES);
}

static int many(int handles, int pieces, size_t n, bool to)
{
	gdr_piece_t p[64];

	for (int i = 0; i < pieces; i++)
		p[i] = (gdr_piece_t){ .handle = mh(i % handles), .map_d_ptr = first(i % handles) + 128 * i, .h_ptr = host + 128 * i, .size = n };
	return to ? gdr_copy_to_mapping_v(p, pieces) : gdr_copy_from_mapping_v(p, pieces);
}

static void copy_many_inside(void)
{
	hook = look;
	rc_inside = many(2, 2, 100, true);
}

static void test_names(void)
{
	uint64_t last = 0;

	map_as(4, GDR_MAPPING_TYPE_WC);
	for (int to = 0; to < 2; to++) {
		bool good = true;

		for (int handles = 1; handles <= HANDLES; handles++) {
			int names = handles <= (int)GDR_HAZARD_NAMES ? handles : 0;

			hook = look;
			good &= !many(handles, 10, 300, to) && gdr_is_many(seen[0]) && count_of_names(seen[0]) == names &&
				seen[0] >> GDR_MANY_SHIFT > last && !seen[1] && is_idle();
			last = seen[0] >> GDR_MANY_SHIFT;
			for (int i = 0; i < names; i++)
				good &= seen_names[i] == mh(i).h;
		}
		tap_ok(&tap, good, "a %s of many pieces says which handles it has", to ? "write" : "read");
	}
	hook = copy_many_inside;
	check(!copy(0, mh(0), first(0), host, 100) && !rc_inside && seen[0] == mh(0).h && gdr_is_many(seen[1]) &&
	      !count_of_names(seen[1]), "inside another copy it does not");
	for (int bad = 0; bad < 3; bad++) {
		gdr_piece_t p[3];
		bool good = true;

		for (int kind = 0; kind < 4; kind++) {
			for (int i = 0; i < 3; i++)
				p[i] = (gdr_piece_t){ .handle = mh(i), .map_d_ptr = first(i), .h_ptr = host, .size = 100 };
			if (kind == 0)
				p[bad].handle.h = key_of(EPOCH, HANDLES);
			else if (kind == 1)
				p[bad].map_d_ptr = first(bad) + SIZE - 99;
			else if (kind == 2)
				p[bad].h_ptr = NULL;
			else
				p[bad].map_d_ptr = first(bad) - 1;
			moves = 0;
			good &= gdr_copy_to_mapping_v(p, 3) == EINVAL && gdr_copy_from_mapping_v(p, 3) == EINVAL && !moves && is_idle();
		}
		tap_ok(&tap, good, "piece %d cannot be copied: none is", bad);
	}
}

/* A thread's first copy, of many pieces. Some have no bytes, and no routine gets them. */
static void *first_of_many(void *arg)
{
	const gdr_piece_t p[] = {
		piece_of(0, 0, host, 100), piece_of(1, 9, NULL, 0), piece_of(2, 200, host, 100), piece_of(3, SIZE + 1, host, 0),
	};

	moves = 0;
	hook = look;
	if (gdr_copy_to_mapping_v(p, 4) || !gdr_is_many(seen[0]) || moves != 2)
		return NULL;
	return gdr_copy_from_mapping_v(p, 4) || moves != 4 ? NULL : arg;
}

static void test_first_of_many(void)
{
	pthread_t thread;
	void *back = NULL;

	check(!pthread_create(&thread, NULL, first_of_many, host) && !pthread_join(thread, &back) && back,
	      "a thread's first copy of many pieces is announced, and pieces of no bytes are no copies");
}

/* Whole lines, as a routine that gathers has them. */
static int gathered, most_gathered;

static void gather(void *lines, const void *const *devs, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		gathered += (uintptr_t)devs[i] % COPY_LINE ? 1000000 : 1;
		memcpy((unsigned char *)lines + i * COPY_LINE, devs[i], COPY_LINE);
	}
	most_gathered = (int)n > most_gathered ? (int)n : most_gathered;
}

static void test_gather(void)
{
	unsigned char got[64][40];
	gdr_piece_t p[64];
	bool good = true;

	impl.gather = gather;
	for (size_t k = 0; k < SIZE; k++)
		first(0)[k] = (unsigned char)(k * 13 + (k >> 8));
	for (int pieces = 1; pieces <= 64; pieces++) {
		memset(got, 0, sizeof(got));
		gathered = most_gathered = 0;
		for (int i = 0; i < pieces; i++)
			p[i] = (gdr_piece_t){ .handle = mh(0), .map_d_ptr = first(0) + 101 * i, .h_ptr = got[i], .size = 1 + i % 40 };
		good &= !gdr_copy_from_mapping_v(p, pieces) && gathered < 1000000 && gathered >= pieces && most_gathered <= 16;
		for (int i = 0; i < pieces; i++)
			good &= !memcmp(got[i], first(0) + 101 * i, 1 + i % 40) && (i % 40 == 39 || !got[i][1 + i % 40]);
	}
	check(good && most_gathered == 16, "short pieces are read by whole lines, sixteen at once");
	gathered = moves = 0;
	check(!many(1, 2, 255, false) && gathered && !moves && !many(1, 2, 256, false) && moves == 2, "pieces of 256 bytes are read one by one");
	map_as(1, GDR_MAPPING_TYPE_CACHING);
	for (int i = 0; i < 2; i++) {
		p[0] = piece_of(i, 0, got[0], 8);
		p[1] = piece_of(!i, 0, got[1], 8);
		gathered = moves = 0;
		good &= !gdr_copy_from_mapping_v(p, 2) && !gathered && moves == 1 && !memcmp(got[0], first(i), 8) && !memcmp(got[1], first(!i), 8);
		moves = 0;
		good &= !gdr_copy_to_mapping_v(p, 2) && moves == 1;
	}
	check(good, "where one is of cached memory each is copied as its memory is");
	map_as(1, GDR_MAPPING_TYPE_WC);
	impl.gather = NULL;
}

/* A long piece and a short one. */
static int long_and_short(bool long_first, bool to)
{
	const gdr_piece_t p[] = { piece_of(0, 0, host, long_first ? 1000 : 999), piece_of(1, 0, host, long_first ? 999 : 1000) };

	return to ? gdr_copy_to_mapping_v(p, 2) : gdr_copy_from_mapping_v(p, 2);
}

static void long_inside(void)
{
	longs = 0;
	rc_inside = gdr_copy_to_mapping(mh(1), first(1), host, 4096);
	rc_inside |= many(1, 1, 4096, true);
}

/* Long copies go to others, but for those that come inside another. */
static void test_long(void)
{
	for (int to = 0; to < 2; to++) {
		atomic_store(&copy_least_long[to], 1000);
		longs = 0;
		check(!copy(!to, mh(0), first(0) + 5, host + 3, 999) && !longs && !copy(!to, mh(0), first(0) + 5, host + 3, 1000) &&
		      longs == 1 && last_long.front == &front && last_long.owner == mine()->busy && last_long.impl == &impl &&
		      last_long.key == mh(0).h && last_long.off == 5 && last_long.dev == first(0) + 5 && last_long.host == host + 3 &&
		      last_long.size == 1000 && last_long.to == to && is_idle(), "a long copy is left to others, with all that they need");
		longs = 0;
		check(!many(2, 2, 999, to) && !longs && !many(2, 2, 1000, to) && longs == 2 && last_long.to == to &&
		      last_long.key == mh(1).h && last_long.off == 128, "so is a long piece");
		for (int first_one = 0; first_one < 2; first_one++) {
			longs = 0;
			check(!long_and_short(first_one, to) && longs == 1 && last_long.key == mh(!first_one).h, "and of two pieces the long one alone");
		}
		map_as(0, GDR_MAPPING_TYPE_CACHING);
		longs = 0;
		check(!copy(!to, mh(0), first(0), host, 4096) && !many(1, 1, 4096, to) && !longs, "but none of cached memory");
		map_as(0, GDR_MAPPING_TYPE_WC);
	}
	hook = long_inside;
	check(!copy(0, mh(0), first(0), host, 100) && !rc_inside && !longs, "nor one inside another copy");
	atomic_store(&table.mixed, 1);
	longs = 0;
	check(!copy(0, mh(0), first(0), host, 4096) && !many(1, 1, 4096, true) && !longs, "nor a write while types are mixed");
	atomic_store(&table.mixed, 0);
	atomic_store(&copy_least_long[0], SIZE_MAX);
	atomic_store(&copy_least_long[1], SIZE_MAX);
}

static sigjmp_buf out;

static void leave(void)
{
	siglongjmp(out, 1);
}

static void leave_from_inside(void)
{
	hook = leave;
	gdr_copy_to_mapping(mh(1), first(1), host, 100);
}

static void leave_twice_inside(void)
{
	hook = leave_from_inside;
	gdr_copy_to_mapping(mh(2), first(2), host, 100);
}

static void leave_many(void)
{
	hook = leave;
	many(2, 2, 100, true);
}

/* Leaves a copy, or one inside another, from deeper on the stack. */
static __attribute__((noinline)) void leave_copy(void (*how)(void))
{
	char room[4096];

	__asm__ __volatile__("" : : "r"(room) : "memory");
	forgotten = 0;
	hook = how == leave_many ? NULL : how;
	if (!sigsetjmp(out, 1)) {
		if (how == leave_many)
			leave_many();
		else
			gdr_copy_to_mapping(mh(0), first(0), host, 100);
	}
}

/* From one place on the stack, again and again: each finds the last one's level free. */
static bool leaves_again(void)
{
	volatile int left = 0;

	while (left < 6) {
		if (sigsetjmp(out, 1)) {
			left++;
			continue;
		}
		hook = leave;
		if (gdr_copy_to_mapping(mh(0), first(0), host, 100))
			return false;
	}
	gdr_data_forget(0);
	return is_idle();
}

static uint64_t busy(int level)
{
	return atomic_load(&mine()->busy[level]);
}

static void test_left(void)
{
	leave_copy(leave);
	check(busy(0) == mh(0).h && !forgotten, "a copy that was left stays announced");
	hook = look;
	check(!copy(0, mh(2), first(2), host, 100) && seen[0] == mh(2).h && forgotten == 1 && forgotten_owner == mine()->busy && is_idle(),
	      "until the next copy, which takes its level");
	leave_copy(leave_from_inside);
	check(busy(0) == mh(0).h && busy(1) == mh(1).h, "two that were left");
	gdr_data_forget(mh(2).h);
	check(busy(0) && busy(1) && !forgotten, "one forgets the copies of its handle");
	gdr_data_forget(mh(1).h);
	check(busy(0) == mh(0).h && !busy(1) && !forgotten, "and no other");
	gdr_data_forget(0);
	check(is_idle() && forgotten == 1, "or all; threads at work are called back for the first level alone");
	leave_copy(leave_many);
	gdr_data_forget(mh(2).h);
	check(gdr_is_many(busy(0)), "of many pieces: not of other handles");
	gdr_data_forget(mh(1).h);
	check(is_idle(), "but of one of its own");
	leave_copy(leave_twice_inside);
	gdr_data_forget(mh(0).h);
	gdr_data_forget(mh(2).h);
	check(!busy(0) && !busy(1) && busy(2) == mh(1).h && !many(3, 3, 100, false) && is_idle(), "a copy of many pieces drops one of the last level");
	check(leaves_again(), "a copy may be left at one place often");
	leave_copy(leave_from_inside);
	check(!many(3, 3, 100, false) && is_idle(), "a copy of many pieces drops both, too");
}

/* A handler on a stack that lies higher than the thread's own copies inside a copy. */
static uint64_t level_0_then;

static void on_signal(int sig)
{
	(void)sig;
	rc_inside = gdr_copy_from_mapping(mh(1), host, first(1), 100);
	level_0_then = busy(0);
}

static void raise_one(void)
{
	raise(SIGUSR1);
}

static void *copy_with_handler(void *arg)
{
	const struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };

	if (sigaltstack(arg, NULL) || sigaction(SIGUSR1, &act, NULL))
		return NULL;
	for (int i = 0; i < 2; i++) {
		level_0_then = 0;
		hook = raise_one;
		if (gdr_copy_to_mapping(mh(0), first(0), host, 100) || rc_inside || level_0_then != mh(0).h || !is_idle())
			return NULL;
	}
	return arg;
}

static void test_other_stack(void)
{
	char room[65536] __attribute__((aligned(16)));

	for (int disarms = 0; disarms < 2; disarms++) {
		stack_t stack = { .ss_sp = room, .ss_size = sizeof(room), .ss_flags = disarms ? (int)(1u << 31) : 0 };
		pthread_t thread;
		void *back = NULL;
		bool good = !pthread_create(&thread, NULL, copy_with_handler, &stack) && !pthread_join(thread, &back) && back;

		tap_ok(&tap, good, "a copy on an alternate stack%s drops none below it", disarms ? " that the kernel forgets" : "");
	}
}

/* Where a handler's stack lies is remembered as long as the kernel forgets it, and no longer. */
static void test_stacks(void)
{
	char *here = __builtin_frame_address(0);
	stack_t around = { .ss_sp = here - 65536, .ss_size = 131072 }, none = { .ss_flags = SS_DISABLE };
	bool good = true;

	leave_copy(leave);
	stack_error = EPERM;
	hook = look;
	check(!copy(0, mh(2), first(2), host, 100) && seen[0] == mh(0).h && seen[1] == mh(2).h, "where the kernel does not say, no copy is dropped");
	stack_error = 0;
	for (int disarms = 1; disarms >= 0; disarms--) {
		around.ss_flags = disarms ? (int)(1u << 31) : 0;
		for (int i = 0; i < 2; i++) {
			stack_now = i ? &none : &around;
			hook = look;
			good &= !copy(0, mh(2), first(2), host, 100) && busy(1) == 0 && (disarms ? seen[1] == mh(2).h : seen[0] == mh(2).h);
		}
	}
	stack_now = NULL;
	check(good && is_idle(), "one that was on a stack that the kernel forgets may be under way; on another it is not");
}

static uint64_t mask_now(void)
{
	uint64_t mask = 0;

	syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &mask, 8);
	return mask;
}

/* A thread's first copy. It leaves errno and the mask as they were. */
static void *copy_first(void *arg)
{
	uint64_t mask = mask_now();
	int *rc = arg;

	errno = EXDEV;
	*rc = gdr_copy_to_mapping(mh(0), first(0), host, 8);
	return errno == EXDEV && mask_now() == mask && (*rc || is_idle()) ? arg : NULL;
}

static int rc_of_a_thread(bool *good)
{
	pthread_t thread;
	void *back = NULL;
	int rc = -1;

	*good &= !pthread_create(&thread, NULL, copy_first, &rc) && !pthread_join(thread, &back) && back;
	return rc;
}

static struct gdr_hazard *made_up(uint32_t owner, uint64_t self, uint64_t key)
{
	uint32_t at = atomic_load(&table.hazards_used);
	struct gdr_hazard *r = &hazards[GDR_HAZARD_COUNT - 1 - at];

	atomic_store(&r->owner, owner);
	atomic_store(&r->self, self);
	atomic_store(&r->busy[0], key);
	atomic_store(&r->busy[2], key);
	atomic_store(&table.hazards_used, at + 1);
	return r;
}

static bool is_free(const struct gdr_hazard *r)
{
	return !atomic_load(&r->owner) && !atomic_load(&r->self) && !atomic_load(&r->busy[0]) && !atomic_load(&r->busy[2]);
}

/* Whether this kernel, and a sandbox, let a process look where a thread's own data lie. */
static bool can_tell_threads(void)
{
	int *id = NULL, copy = 0;
	const struct iovec to = { &copy, sizeof(copy) };
	struct iovec from;

	if (prctl(PR_GET_TID_ADDRESS, &id))
		return false;
	from = (struct iovec){ id, sizeof(*id) };
	return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == sizeof(copy);
}

static void test_records(void)
{
	uint32_t me = (uint32_t)syscall(SYS_gettid), ended = 0x3ffffffe, used;
	struct gdr_hazard *over, *lives, *elsewhere, *other, *goes, *own = mine();
	bool good = true;

	for (int i = 0; i < 300; i++)
		good &= !rc_of_a_thread(&good);
	used = atomic_load(&table.hazards_used);
	tap_ok(&tap, good && used >= 2 && used <= 64, "300 threads that come and go have %u records", used);
	over = made_up(ended, 0, mh(0).h);
	lives = made_up(me, 0, mh(1).h);
	elsewhere = made_up(me, 64, mh(1).h);	/* where no memory is */
	other = made_up(me, atomic_load(&mine()->self), mh(1).h);
	goes = made_up(UINT32_MAX, 64, mh(1).h);	/* another thread frees it just now */
	errno = EXDEV;
	for (unsigned int i = 0; i < 63; i++)
		gdr_data_wait(i);
	check(!is_free(over), "an unmap that waits does not look for ended threads at once");
	read_error = EPERM;
	gdr_data_wait(63);
	read_error = 0;
	check(is_free(over) && !is_free(elsewhere) && !is_free(other), "where memory may not be looked at, only IDs count");
	over = made_up(ended, 0, mh(0).h);
	forgotten = 0;
	gdr_data_wait(63);
	check(is_free(over) && forgotten >= 1 && errno == EXDEV, "but after some time it does: the record of one is free");
	check(atomic_load(&lives->owner) == me && atomic_load(&lives->busy[0]) == mh(1).h, "that of a living thread stays");
	if (can_tell_threads())
		check(is_free(elsewhere) && is_free(other) && mine() && atomic_load(&mine()->self),
		      "of a thread with the same ID it is free, and this thread's own stays");
	else
		tap_skip(&tap, "process_vm_readv is not allowed", "of a thread with the same ID");
	check(atomic_load(&goes->owner) == UINT32_MAX && atomic_load(&goes->busy[2]) == mh(1).h, "one that another thread frees is left to it");
	memset((void *)goes, 0, sizeof(*goes));
	memset((void *)lives, 0, sizeof(*lives));
	memset((void *)elsewhere, 0, sizeof(*lives));
	memset((void *)other, 0, sizeof(*lives));
	for (uint32_t i = 0; i < GDR_HAZARD_COUNT; i++)
		if (!atomic_load(&hazards[i].owner))
			atomic_store(&hazards[i].owner, me);
	used = atomic_load(&table.hazards_used);
	atomic_store(&table.hazards_used, GDR_HAZARD_COUNT);
	good = true;
	atomic_store(&hazards[0].owner, 0);
	check(!rc_of_a_thread(&good) && good && atomic_load(&hazards[0].self), "of 65536 records the last one can be taken");
	atomic_store(&hazards[0].owner, me);
	atomic_store(&hazards[0].self, 0);
	lines = 0;
	for (int i = 0; i < 2; i++)
		good &= rc_of_a_thread(&good) == EAGAIN && lines == i + 1 && strstr(said, "65536 threads are copying");
	check(good, "all records are taken: EAGAIN, each time");
	for (uint32_t i = 0; i < GDR_HAZARD_COUNT; i++)
		if (&hazards[i] != own && atomic_load(&hazards[i].owner) == me)
			atomic_store(&hazards[i].owner, 0);
	atomic_store(&table.hazards_used, used);
	check(!rc_of_a_thread(&good) && good, "and then they are not");
}

static void test_wait(void)
{
	uint64_t mask = mask_now();
	bool good = true;

	for (long slack = 1; slack <= 100000000; slack *= 100) {
		prctl(PR_SET_TIMERSLACK, slack);
		gdr_data_wait(30);
		good &= prctl(PR_GET_TIMERSLACK) == slack && mask_now() == mask;
	}
	check(good, "a wait leaves the slack of timers and the mask as they were");
	yields = 0;
	for (unsigned int i = 0; i < 20; i++) {
		gdr_data_wait(i);
		good &= yields == (int)i + 1;
	}
	gdr_data_wait(20);
	check(good && yields == 20, "twenty times it yields, then it sleeps");
}

/* After a fork there is another table, with another epoch. */
static void test_epochs(void)
{
	struct gdr_hazard *before = mine();

	front.epoch = EPOCH + 1;
	check(copy(0, mh(0), first(0), host, 8) == EACCES && copy(3, mh(0), first(0), host, 8) == EACCES, "a key of before the fork");
	slots[100].key = key_of(EPOCH + 1, 0);
	atomic_store(&before->owner, 0);
	table.hazards_used = 0;
	hook = look;
	check(!copy(0, (gdr_mh_t){ slots[100].key }, first(0), host, 100) && seen[0] == slots[100].key && is_idle(),
	      "a copy of after it takes a record anew");
}

/* Where there is no barrier yet, and where it comes later. */
static void test_fenced(void)
{
	bool good = true;

	atomic_store(&table.fenced, 1);
	for (int i = 0; i < 2; i++) {
		for (int way = 0; way < 4; way++)
			good &= answers(way, 0, 3, 100, 0) && answers(way, 0, SIZE - 99, 100, EINVAL);
		good &= !rc_of_a_thread(&good);
		atomic_store(&table.fenced, 0);
	}
	check(good, "copies are the same with and without membarrier");
}

int main(void)
{
	slots = mmap(NULL, sizeof(*slots) * GDR_SLOT_COUNT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	hazards = mmap(NULL, 2 * sizeof(*hazards) * GDR_HAZARD_COUNT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	/* Nothing lies before the records. */
	if (slots == MAP_FAILED || hazards == MAP_FAILED || mprotect(hazards, sizeof(*hazards) * GDR_HAZARD_COUNT, PROT_NONE))
		return 2;
	hazards += GDR_HAZARD_COUNT;
	impl = copy_portable;
	impl.to = impl.from = move;
	front.impl = &impl;
	front_is_up(&table, EPOCH, slots, hazards);
	map_as(0, GDR_MAPPING_TYPE_WC);
	check(copy(0, mh(0), first(0), host, 8) == 0 && is_idle() && mine()->owner == (uint32_t)syscall(SYS_gettid) &&
	      mine() == &hazards[GDR_HAZARD_COUNT - 1], "the first copy takes the last record");
	test_bounds();
	test_keys();
	test_lines();
	test_levels();
	test_names();
	test_first_of_many();
	test_gather();
	test_long();
	test_left();
	test_other_stack();
	test_stacks();
	test_fenced();
	test_records();
	test_wait();
	test_epochs();
	return tap_done(&tap);
}
