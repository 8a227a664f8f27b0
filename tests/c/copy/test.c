// SPDX-License-Identifier: MIT
/*
 * copy/test.c - the copy routines against a byte-exact model, on plain memory.
 *
 * Every routine this CPU can run copies between two regions that have a guard
 * page right before and right after: a touch outside faults. The source is
 * read-only, so that a store to the wrong side faults too. The destination
 * holds a byte that the source never holds; after each copy it must differ
 * from that in exactly the bytes asked for.
 *
 * The program is built from this file and the files of capi/copy/, with no library. It
 * prints TAP and, last, `N passed, N failed, N skipped`.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE	/* REG_EFL */
#endif
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define UNDER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNDER_ASAN 1
#endif
#endif
/* AddressSanitizer's own accesses are misaligned, so its builds cannot check. */
#if defined(__x86_64__) && !defined(UNDER_ASAN)
#define CHECK_ALIGNMENT 1
#endif

#include "copy/copy.h"
#include "copy/direct.h"
#include "tap.h"

#if defined(__x86_64__)
#define EFLAGS_TF (1 << 8)	/* trap after the next instruction */
#define EFLAGS_AC (1 << 18)	/* alignment check */
#endif

#define CANARY 0xc3
#define OFFSETS 64u
#define SMALL_MAX 300u		/* up to here every pair of offsets, always */
#define MEDIUM_MAX 4096u
#define BIG_MAX ((16u << 20) + 3)
#define MARGIN 128u

typedef void copy_fn(void *dst, const void *src, size_t n);

/* len bytes at base; the pages next to them on both sides are not accessible. */
struct region {
	uint8_t *base;
	size_t len;
};

/* The copy under way, for the report of one that fails or faults. */
struct copy_case {
	size_t n;
	size_t dst_off, src_off;
	bool high;	/* offsets count down from the end of the regions */
};

static struct region small_src, small_dst, big_src, big_dst;
static volatile struct copy_case now;
static char reason[256];	/* why the last group failed */
static sigjmp_buf on_fault;
static volatile sig_atomic_t armed;
static struct tap tap;

static __attribute__((format(printf, 1, 2))) void because(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(reason, sizeof(reason), fmt, ap);
	va_end(ap);
}

static void die(const char *what)
{
	fprintf(stderr, "copy_test: %s: %s\n", what, strerror(errno));
	exit(2);
}

static void report(bool ok, const char *impl, const char *what)
{
	if (!tap_ok(&tap, ok, "%s: %s", impl, what))
		printf("# %s\n", reason);
}

/* Regions. */

static struct region make_region(size_t len)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct region r;
	uint8_t *p;

	r.len = (len + page - 1) / page * page;
	p = mmap(NULL, r.len + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		die("mmap");
	r.base = p + page;
	if (mprotect(r.base, r.len, PROT_READ | PROT_WRITE))
		die("mprotect");
	return r;
}

static struct region make_source(size_t len)
{
	struct region r = make_region(len);
	uint64_t x = 0x9e3779b97f4a7c15u;

	for (size_t i = 0; i < r.len; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		r.base[i] = (uint8_t)x == CANARY ? 0 : (uint8_t)x;
	}
	if (mprotect(r.base, r.len, PROT_READ))
		die("mprotect");
	return r;
}

static struct region make_destination(size_t len)
{
	struct region r = make_region(len);

	memset(r.base, CANARY, r.len);
	return r;
}

static bool all_canary(const uint8_t *p, size_t n)
{
	return n == 0 || (p[0] == CANARY && memcmp(p, p + 1, n - 1) == 0);
}

/* Faults. */

static void handle_fault(int sig, siginfo_t *info, void *context)
{
	(void)context;
#if defined(__x86_64__)
	__writeeflags(__readeflags() & ~(unsigned long long)EFLAGS_AC);
#endif
	if (!armed) {
		signal(sig, SIG_DFL);
		return;
	}
	because("%s at %p", sig == SIGBUS ? "SIGBUS" : sig == SIGILL ? "SIGILL" : "SIGSEGV",
		info->si_addr);
	siglongjmp(on_fault, 1);
}

static void catch_signal(int sig, void (*handler)(int, siginfo_t *, void *))
{
	struct sigaction sa;

	memset(&sa, 0, sizeof(sa));
	sa.sa_sigaction = handler;
	sa.sa_flags = SA_SIGINFO | SA_NODEFER;
	if (sigaction(sig, &sa, NULL))
		die("sigaction");
}

/* Groups of copies. Each returns false, with reason set, at the first wrong one. */

static size_t place(const struct region *r, size_t n, size_t off)
{
	return now.high ? r->len - n - off : off;
}

static bool check(const uint8_t *dst, const uint8_t *src, const struct region *region)
{
	size_t n = now.n;
	size_t before = (size_t)(dst - region->base);
	size_t after = region->len - before - n;

	if (before > MARGIN)
		before = MARGIN;
	if (after > MARGIN)
		after = MARGIN;
	if (memcmp(dst, src, n) != 0)
		because("wrong bytes");
	else if (!all_canary(dst - before, before))
		because("a byte before the destination changed");
	else if (!all_canary(dst + n, after))
		because("a byte after the destination changed");
	else
		return true;
	return false;
}

static bool copy_once(copy_fn *copy, const struct region *to, const struct region *from, size_t n,
		      size_t dst_off, size_t src_off)
{
	const uint8_t *src;
	uint8_t *dst;
	bool ok;

	now.n = n;
	now.dst_off = dst_off;
	now.src_off = src_off;
	dst = to->base + place(to, n, dst_off);
	src = from->base + place(from, n, src_off);
	copy(dst, src, n);
	ok = check(dst, src, to);
	memset(dst, CANARY, n);
	return ok;
}

static bool whole_canary(const struct region *r)
{
	if (all_canary(r->base, r->len))
		return true;
	because("a byte far from the destination changed");
	memset(r->base, CANARY, r->len);
	return false;
}

/* One size, every pair of offsets. */
static bool every_pair(copy_fn *copy, size_t n)
{
	for (size_t d = 0; d < OFFSETS; d++) {
		for (size_t s = 0; s < OFFSETS; s++)
			if (!copy_once(copy, &small_dst, &small_src, n, d, s))
				return false;
	}
	return whole_canary(&small_dst);
}

/*
 * One size, each offset of either side once. Sizes that follow one another
 * pair them differently: 64 sizes in a row have every pair.
 */
static bool some_pairs(copy_fn *copy, size_t n)
{
	for (size_t d = 0; d < OFFSETS; d++)
		if (!copy_once(copy, &small_dst, &small_src, n, d, (5 * d + n) % OFFSETS))
			return false;
	return whole_canary(&small_dst);
}

static bool small_sizes(copy_fn *copy)
{
	for (size_t n = 1; n <= SMALL_MAX; n++)
		if (!every_pair(copy, n))
			return false;
	return true;
}

static bool medium_sizes(copy_fn *copy)
{
	for (size_t n = SMALL_MAX + 1; n <= MEDIUM_MAX; n++)
		if (!some_pairs(copy, n))
			return false;
	return true;
}

static bool big_sizes(copy_fn *copy)
{
	static const size_t sizes[] = {
		(64u << 10) - 1, 64u << 10, (64u << 10) + 1, (64u << 10) + 63,
		(1u << 20) - 7, 1u << 20, (1u << 20) + 7, BIG_MAX,
	};
	static const uint8_t offsets[][2] = {
		{ 0, 0 }, { 0, 1 }, { 1, 0 }, { 63, 17 }, { 32, 40 }, { 7, 7 },
	};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		for (size_t k = 0; k < sizeof(offsets) / sizeof(offsets[0]); k++)
			if (!copy_once(copy, &big_dst, &big_src, sizes[i], offsets[k][0],
				       offsets[k][1]))
				return false;
		if (!whole_canary(&big_dst))
			return false;
	}
	return true;
}

#if defined(CHECK_ALIGNMENT)
/*
 * With EFLAGS.AC set the CPU answers a misaligned scalar access with SIGBUS.
 * (The vector instructions used on the device side fault by themselves.) The
 * host side and the stack may be misaligned, so the handler finds out which it
 * was: it takes the device's pages away and has the one instruction run again,
 * with no check. If it was the device's access it now faults at an address there.
 */
static const struct region *dev_side;
static int dev_prot;

static void protect_dev(int prot)
{
	if (mprotect(dev_side->base, dev_side->len, prot))
		die("mprotect");
}

static void on_misaligned(int sig, siginfo_t *info, void *context)
{
	greg_t *flags = &((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL];

	if (!(*flags & EFLAGS_AC)) {
		handle_fault(sig, info, context);
		return;
	}
	__writeeflags(__readeflags() & ~(unsigned long long)EFLAGS_AC);
	*flags = (*flags & ~EFLAGS_AC) | EFLAGS_TF;
	protect_dev(PROT_NONE);
}

static void on_no_access(int sig, siginfo_t *info, void *context)
{
	greg_t flags = ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL];
	uintptr_t at = (uintptr_t)info->si_addr - (uintptr_t)dev_side->base;

	protect_dev(dev_prot);
	if (!(flags & EFLAGS_TF) || at >= dev_side->len) {
		handle_fault(sig, info, context);
		return;
	}
	because("a misaligned access to the device side");
	siglongjmp(on_fault, 1);
}

static void on_step(int sig, siginfo_t *info, void *context)
{
	greg_t *flags = &((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL];

	(void)sig;
	(void)info;
	*flags = (*flags & ~EFLAGS_TF) | EFLAGS_AC;
	protect_dev(dev_prot);
}

/*
 * Both sides get the same offset, so most host accesses are aligned as well. The others take
 * two signals each: of more than two lines, every seventh size.
 */
static bool aligned_accesses(copy_fn *copy)
{
	for (size_t n = 1; n <= SMALL_MAX; n += n < 130 ? 1 : 7) {
		for (size_t off = 0; off < OFFSETS; off++) {
			size_t at = place(&small_dst, n, off);

			now.n = n;
			now.dst_off = off;
			now.src_off = off;
			__writeeflags(__readeflags() | EFLAGS_AC);
			copy(small_dst.base + at, small_src.base + at, n);
			__writeeflags(__readeflags() & ~(unsigned long long)EFLAGS_AC);
			memset(small_dst.base + at, CANARY, n);
		}
	}
	return true;
}
#endif

static bool both_placements(bool (*group)(copy_fn *), copy_fn *copy)
{
	now.high = false;
	if (!group(copy))
		return false;
	now.high = true;
	return group(copy);
}

/* Runs a group with its faults caught, offsets counted from each end in turn. */
static bool run_group(bool (*group)(copy_fn *), copy_fn *copy)
{
	size_t used;

	because("no reason was given");
	if (sigsetjmp(on_fault, 0) == 0) {
		armed = 1;
		if (both_placements(group, copy)) {
			armed = 0;
			return true;
		}
	}
	armed = 0;
	used = strlen(reason);
	snprintf(reason + used, sizeof(reason) - used,
		 " (size %zu, offset in the destination %zu, in the source %zu, from the %s)",
		 now.n, now.dst_off, now.src_off, now.high ? "end" : "start");
	memset(small_dst.base, CANARY, small_dst.len);
	memset(big_dst.base, CANARY, big_dst.len);
	return false;
}

#if defined(CHECK_ALIGNMENT)
static bool run_aligned(copy_fn *copy, bool write)
{
	bool ok;

	dev_side = write ? &small_dst : &small_src;
	dev_prot = write ? PROT_READ | PROT_WRITE : PROT_READ;
	catch_signal(SIGBUS, on_misaligned);
	catch_signal(SIGSEGV, on_no_access);
	catch_signal(SIGTRAP, on_step);
	ok = run_group(aligned_accesses, copy);
	catch_signal(SIGBUS, handle_fault);
	catch_signal(SIGSEGV, handle_fault);
	catch_signal(SIGTRAP, handle_fault);
	return ok;
}
#endif

/* Writes as gdr_copy_to_mapping makes them: up to a line by what ends the copy as well. */
static const struct copy_impl *ending;

static void last_to(void *dst, const void *src, size_t n)
{
	if (n > COPY_LINE)
		ending->to(dst, src, n);
	else if (ending->write[n](dst, src))
		__builtin_trap();
}

/* Reads as gdr_copy_from_mapping makes them. */
static void read_from(void *dst, const void *src, size_t n)
{
	if (n > COPY_LINE)
		ending->from(dst, src, n);
	else if (ending->read(dst, src, n))
		__builtin_trap();
}

/* Reads line by line, each together with those next to it, the last one first. */
#define LINES_MAX (MEDIUM_MAX / COPY_LINE + 2)
static void gather_from(void *dst, const void *src, size_t n)
{
	static _Alignas(COPY_LINE) uint8_t lines[LINES_MAX][COPY_LINE];
	const void *devs[LINES_MAX] = { NULL };
	size_t off = (uintptr_t)src % COPY_LINE, count = (off + n + COPY_LINE - 1) / COPY_LINE;

	for (size_t i = 0; i < count; i++)
		devs[i] = (const uint8_t *)src - off + (count - 1 - i) * COPY_LINE;
	memset(lines, CANARY, sizeof(lines));
	ending->gather(lines, devs, count);
	for (size_t i = 0; i < count; i++) {
		size_t from = i ? 0 : off, to = i + 1 < count ? COPY_LINE : (off + n - 1) % COPY_LINE + 1;

		memcpy((uint8_t *)dst + i * COPY_LINE + from - off, lines[count - 1 - i] + from, to - from);
	}
	for (size_t i = 0; count < LINES_MAX && i < COPY_LINE; i++)
		if (lines[count][i] != CANARY)
			__builtin_trap();
}

/* Writes as one piece of many is written, as far as this CPU can. */
static bool has_direct;
static void piece_to(void *dst, const void *src, size_t n)
{
	if (!(has_direct && copy_put_direct(dst, src, n)))
		ending->to(dst, src, n);
}

static void test_copies(const struct copy_impl *impl)
{
	static const struct {
		const char *to, *from;
		bool (*group)(copy_fn *);
	} groups[] = {
		{ "writes of 1 to 300 bytes", "reads of 1 to 300 bytes", small_sizes },
		{ "writes of 301 to 4096 bytes", "reads of 301 to 4096 bytes", medium_sizes },
		{ "writes of 64 KiB to 16 MiB", "reads of 64 KiB to 16 MiB", big_sizes },
	};

	for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
		report(run_group(groups[i].group, impl->to), impl->name, groups[i].to);
		report(run_group(groups[i].group, impl->from), impl->name, groups[i].from);
	}
	ending = impl;
	report(run_group(small_sizes, last_to), impl->name, "writes that end by themselves");
	report(run_group(small_sizes, read_from), impl->name, "reads that end by themselves");
	has_direct = copy_has_direct();
	if (has_direct)
		report(run_group(small_sizes, piece_to), impl->name, "pieces of many by direct stores");
	if (impl->gather)
		report(run_group(small_sizes, gather_from), impl->name, "lines that are read together");
#if defined(CHECK_ALIGNMENT)
	report(run_aligned(impl->to, true), impl->name, "aligned accesses of writes");
	report(run_aligned(last_to, true), impl->name, "and of those that end by themselves");
	if (has_direct)
		report(run_aligned(piece_to, true), impl->name, "and of pieces of many");
	report(run_aligned(impl->from, false), impl->name, "aligned accesses of reads");
	report(run_aligned(read_from, false), impl->name, "and of those that end by themselves");
#else
	tap_skip(&tap, "only x86-64 can make the CPU check alignment, and not under AddressSanitizer",
		 "%s: aligned accesses", impl->name);
#endif
}

static void test_impl(const struct copy_impl *impl)
{
	if (impl->usable())
		test_copies(impl);
	else
		tap_skip(&tap, "this CPU cannot run it", "%s: copies", impl->name);
}

static void test_table(void)
{
	const struct copy_impl *first = NULL, *last = NULL;
	bool ok = true;

	for (size_t i = 0; copy_impls[i]; i++) {
		const struct copy_impl *impl = copy_impls[i];
		const struct copy_impl *got = copy_select(impl->name);

		if (got != (impl->usable() ? impl : NULL)) {
			because("by the name %s: %s", impl->name, got ? got->name : "none");
			ok = false;
		}
		if (!first && impl->usable())
			first = impl;
		last = impl;
	}
	report(ok, "table", "each name selects its own routine, if usable");
	ok = last == &copy_portable && last->usable();
	because("the last entry is %s", last ? last->name : "none");
	report(ok, "table", "portable comes last and is usable");
	ok = first && copy_select(NULL) == first;
	because("no name does not select the first usable routine");
	report(ok, "table", "no name selects the first usable routine");
	ok = !copy_select("") && !copy_select("sse") && !copy_select("portable ");
	because("a name that is no routine's selects one");
	report(ok, "table", "other names select nothing");
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	small_src = make_source(MEDIUM_MAX + 2 * OFFSETS + 8 * MARGIN);
	small_dst = make_destination(MEDIUM_MAX + 2 * OFFSETS + 8 * MARGIN);
	big_src = make_source(BIG_MAX + 2 * OFFSETS);
	big_dst = make_destination(BIG_MAX + 2 * OFFSETS);
	catch_signal(SIGSEGV, handle_fault);
	catch_signal(SIGBUS, handle_fault);
	catch_signal(SIGILL, handle_fault);

	test_table();
	for (size_t i = 0; copy_impls[i]; i++)
		test_impl(copy_impls[i]);
	return tap_done(&tap);
}
