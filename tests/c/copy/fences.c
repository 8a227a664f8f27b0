// SPDX-License-Identifier: MIT
/*
 * fences.c - the fences of every kind of copy, as the CPU meets them.
 *
 * A copy runs step by step. Its mapping is not accessible, but for the one instruction
 * that touches it. So each touch and each fence is seen, in their order, whatever the
 * compiler made of the code. All three types of mapping are ordinary memory here: what
 * is watched is what the library does for them, with one type live and with more.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>

#include "tap.h"

#if defined(__x86_64__)
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <x86intrin.h>

#include "copies.h"
#include "copy/copy.h"
#include "front_double.h"
#include "gdrapi_ext.h"

/* Not each handler needs all that it is told. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define PAGE 4096
#define EFLAGS_TF (1ull << 8)

enum { MAPPING = 1, WATCHED = 4096 };

static struct gdr_slot slots[MAPPING + 1];
static unsigned char *page;
static unsigned char host[PAGE];

static const gdr_mh_t mh = { 1ul << GDR_HANDLE_EPOCH_SHIFT | 1ul << GDR_HANDLE_INDEX_BITS | MAPPING };

static void catch_signal(int sig, void (*handler)(int, siginfo_t *, void *))
{
	struct sigaction sa = { .sa_sigaction = handler, .sa_flags = SA_NODEFER | SA_SIGINFO };

	if (sigaction(sig, &sa, NULL))
		abort();
}

/* A copy of n bytes of the page, or of two pieces. The second one is elsewhere. */
struct paged {
	size_t n;
	bool to, many;
};

#define SECOND_PAGE (PAGE / 2)
#define SECOND_HOST (PAGE / 4)

static int copy_paged(const struct paged *c)
{
	const gdr_piece_t pieces[] = { { mh, page, host, c->n }, { mh, page + SECOND_PAGE, host + SECOND_HOST, c->n } };

	if (c->many)
		return c->to ? gdr_copy_to_mapping_v(pieces, 2) : gdr_copy_from_mapping_v(pieces, 2);
	return c->to ? gdr_copy_to_mapping(mh, page, host, c->n) : gdr_copy_from_mapping(mh, host, page, c->n);
}

/* The same, each instruction of which ends in a SIGTRAP. */
static __attribute__((noinline)) int call_stepped(const struct paged *c)
{
	int rc;

	__writeeflags(__readeflags() | EFLAGS_TF);
	rc = copy_paged(c);
	__writeeflags(__readeflags() & ~EFLAGS_TF);
	return rc;
}

/* Whether both sides have the same bytes. */
static bool is_copied(const struct paged *c)
{
	return !memcmp(page, host, c->n) && (!c->many || !memcmp(page + SECOND_PAGE, host + SECOND_HOST, c->n));
}

/* s, l, m: the fences. f: an instruction with a lock, a full fence too. T: a touch. N: one by a streaming load. */
static char events[WATCHED];
static volatile unsigned int count;
static volatile sig_atomic_t watching, open_for_one;

static void note(char event)
{
	if (count < WATCHED - 1)
		events[count++] = event;
}

/* MOVNTDQA: 66 0F 38 2A, with prefixes of registers in between; VEX and EVEX forms. */
static bool is_streaming(const unsigned char *at)
{
	if (at[0] == 0x66) {
		at += at[1] >> 4 == 4 ? 2 : 1;
		return at[0] == 0x0f && at[1] == 0x38 && at[2] == 0x2a;
	}
	if (at[0] == 0xc4)
		return (at[1] & 0x1f) == 2 && at[3] == 0x2a;
	return at[0] == 0x62 && (at[1] & 7) == 2 && at[4] == 0x2a;
}

static void on_step(int sig, siginfo_t *info, void *context)
{
	const ucontext_t *now = context;
	const unsigned char *next = (const unsigned char *)now->uc_mcontext.gregs[REG_RIP];

	if (open_for_one)
		mprotect(page, PAGE, PROT_NONE);
	open_for_one = 0;
	if (next[0] == 0xf0)
		note('f');
	if (next[0] != 0x0f || next[1] != 0xae)
		return;
	if (next[2] == 0xf8)
		note('s');
	else if (next[2] == 0xf0)
		note('m');
	else if (next[2] == 0xe8)
		note('l');
}

static void on_touch(int sig, siginfo_t *info, void *context)
{
	const ucontext_t *now = context;
	const unsigned char *p = info->si_addr;

	if (!watching || p < page || p >= page + PAGE) {
		signal(sig, SIG_DFL);
		return;
	}
	note(is_streaming((const unsigned char *)now->uc_mcontext.gregs[REG_RIP]) ? 'N' : 'T');
	mprotect(page, PAGE, PROT_READ | PROT_WRITE);
	open_for_one = 1;
}

/* One kind of copy. */
struct kind {
	uint32_t type;
	bool mixed;
	struct paged copy;
};

/* Whether one of fences is among the events from a on and before b. */
static bool is_fenced(const char *a, const char *b, const char *fences)
{
	while (a < b)
		if (strchr(fences, *a++))
			return true;
	return false;
}

/*
 * A write ends with SFENCE, or with MFENCE while types are mixed. A read begins with
 * MFENCE if its loads stream, else with LFENCE, and ends with LFENCE. MFENCE does for
 * both. Device memory is touched by 8 bytes at most.
 */
static const char *judge(const struct kind *k)
{
	const char *end = events + count, *first = strpbrk(events, "TN"), *last = end;
	size_t touches = 0;

	if (!first)
		return "the mapping was not touched";
	while (last[-1] != 'T' && last[-1] != 'N')
		last--;
	for (const char *e = first; e < last; e++)
		touches += *e == 'T' || *e == 'N';
	if (count == WATCHED - 1)
		return "too much happened to be watched";
	if (k->type == GDR_MAPPING_TYPE_DEVICE && touches < (k->copy.n + 7) / 8)
		return "it was touched by more than 8 bytes at a time";
	if (k->copy.to)
		return is_fenced(last, end, k->mixed ? "m" : "sm") ? NULL : "no fence after the last write";
	if (!is_fenced(events, first, strchr(first, 'N') ? "m" : "lm"))
		return "no fence before the first read";
	return is_fenced(last, end, "lm") ? NULL : "no fence after the last read";
}

/* NULL if all is right. */
static const char *try_copy(const struct kind *k)
{
	int rc;

	slot_set(&slots[MAPPING], mh.h, page, PAGE, k->type);
	atomic_store(&gdr_front.table.mixed, k->mixed);
	for (size_t i = 0; i < PAGE; i++) {
		page[i] = (unsigned char)(i * 3 + k->copy.to);
		host[i] = (unsigned char)(i * 5 + 7);
	}
	memset(events, 0, sizeof(events));
	count = 0;
	watching = 1;
	mprotect(page, PAGE, PROT_NONE);
	rc = call_stepped(&k->copy);
	mprotect(page, PAGE, PROT_READ | PROT_WRITE);
	watching = open_for_one = 0;
	if (rc)
		return "it failed";
	if (!is_copied(&k->copy))
		return "the bytes are not there";
	return judge(k);
}

static void try_sizes(struct tap *t, const char *routine, struct kind k)
{
	static const char *const types[] = { "", "WC", "caching", "device" };
	static const size_t sizes[] = { 1, 4, 8, 16, 63, 64, 65, 128, 300 };
	const char *wrong = NULL;
	size_t i;

	for (i = 0; !wrong && i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		k.copy.n = sizes[i];
		wrong = try_copy(&k);
	}
	tap_ok(t, !wrong, "%s: %s%s of a %s mapping%s", routine, k.copy.many ? "a pieced " : "a ",
	       k.copy.to ? "write" : "read", types[k.type], k.mixed ? ", others live" : "");
	if (wrong)
		printf("# %zu bytes: %s: %.300s\n", k.copy.n, wrong, events);
}

static void run_all(struct tap *t, const struct copy_impl *impl)
{
	struct paged c = { .n = 1 };

	for (uint32_t type = GDR_MAPPING_TYPE_WC; type <= GDR_MAPPING_TYPE_DEVICE; type++)
		for (int kinds = 0; kinds < 8; kinds++) {
			c.to = kinds & 2;
			c.many = kinds & 4;
			try_sizes(t, impl->name, (struct kind){ type, kinds & 1, c });
		}
}

int main(void)
{
	struct tap t = { 0, 0, 0 };

	catch_signal(SIGTRAP, on_step);
	catch_signal(SIGSEGV, on_touch);
	page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return 1;
	for (size_t i = 0; copy_impls[i]; i++)
		if (copy_impls[i]->usable()) {
			gdr_front_use(copy_impls[i]);
			front_is_up(1, slots);
			run_all(&t, copy_impls[i]);
		}
	return tap_done(&t);
}
#else
int main(void)
{
	printf("ok 1 - fences # SKIP only x86-64 can run a program step by step from within\n"
	       "1..1\n0 passed, 0 failed, 1 skipped\n");
	return 0;
}
#endif
