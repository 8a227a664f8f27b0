// SPDX-License-Identifier: MIT
/*
 * steps.c - copies that a signal interrupts, at every one of their instructions.
 *
 * A copy runs step by step (EFLAGS.TF: each instruction ends in a SIGTRAP). At
 * the steps that a plan names, the handler copies by itself or takes the mapping
 * away, as another thread's gdr_unmap does. The mapping's page is not accessible
 * until the copy touches it, and then its record must name the handle; and once
 * the mapping was taken away with no record that named it, the copy must not
 * touch it at all. Each plan is run with every choice of steps; --full runs all
 * plans, which takes half an hour.
 *
 * Built from capi/data.c and the copy routines themselves; see tests/c/copy/tsan.c for
 * the same protocol between threads.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>

#include "tap.h"

#if defined(__x86_64__)
#include <alloca.h>
#include <errno.h>
#include <setjmp.h>
#include <string.h>
#include <unistd.h>

#include "table.h"

#define DEEP (8 * PAGE)

/* The copy that is stepped through goes to outer's page, the handler's to inner's. */
enum { OUTER = 1, INNER = 2 };
static unsigned char *page[3];
static unsigned char *no_page;
static unsigned char host[PAGE];

/* A copy of many pieces stands for all handles; only the outer one is of many. */
static bool named(int i)
{
	const struct gdr_hazard *mine = &hazards[GDR_HAZARD_COUNT - 1];

	for (int l = 0; l < GDR_HAZARD_LEVELS; l++)
		if (mine->busy[l] == handle_of(i).h || gdr_is_many(mine->busy[l]))
			return true;
	return false;
}

/* What the handler does at a step. */
enum what {
	NOTHING,
	COPY,		/* copies, a little below the interrupted frame */
	COPY_DEEPER,	/* from a frame far below */
	COPY_ALT,	/* on an alternate stack, which lies above the first one */
	LEAVE_COPY,	/* copies, from far below, and leaves that by siglongjmp */
	UNMAP,		/* takes the outer copy's mapping away */
};

#define ACTS 3
struct plan {
	const char *name;
	enum what act[ACTS];
};

static const struct plan plans[] = {
	{ "a copy", { COPY } },
	{ "a copy on an alternate stack", { COPY_ALT } },
	{ "a copy that is left", { LEAVE_COPY } },
	{ "an unmap", { UNMAP } },
	{ "a deeper copy, then one", { COPY_DEEPER, COPY } },
	{ "a copy on an alternate stack, then one", { COPY_ALT, COPY } },
	{ "a copy that is left, then one", { LEAVE_COPY, COPY } },
	{ "a copy, then an unmap", { COPY, UNMAP } },
	{ "a copy that is left, then an unmap", { LEAVE_COPY, UNMAP } },
	{ "a deeper copy, one, then an unmap", { COPY_DEEPER, COPY, UNMAP } },
};

/* The copy under way. */
static struct {
	const struct plan *plan;
	long at[ACTS];
	struct paged copy;
	bool armed;
} now;

static volatile struct {
	long step, touched_at;
	bool unmapped, fenced, ended_unfenced;
	const char *wrong;
} seen;

static sigjmp_buf out_of_copy;
static bool full;

static void wrong(const char *why)
{
	if (!seen.wrong)
		seen.wrong = why;
}

static void inner_copy(void)
{
	unsigned char in[8];

	if (gdr_copy_to_mapping(handle_of(INNER), page[INNER], host + 64, 8) ||
	    gdr_copy_from_mapping(handle_of(INNER), in, page[INNER], 8) ||
	    memcmp(in, host + 64, 8))
		wrong("the handler's copy failed");
}

static __attribute__((noinline)) void below(void (*call)(void))
{
	volatile unsigned char *room = alloca(DEEP);

	room[0] = 0;
	call();
	room[0] = 1;
}

static void left_copy(void)
{
	if (sigsetjmp(out_of_copy, 0) == 0)
		gdr_copy_to_mapping(handle_of(INNER), page[INNER], no_page, 8);
}

static void on_alt(int sig, siginfo_t *info, void *context)
{
	inner_copy();
}

static void unmap(void)
{
	atomic_store(&slots[OUTER].key, 0);
	seen.unmapped = !named(OUTER);
}

static void act(enum what what)
{
	switch (what) {
	case NOTHING: break;
	case COPY: inner_copy(); break;
	case COPY_DEEPER: below(inner_copy); break;
	case COPY_ALT: raise(SIGUSR1); break;
	case LEAVE_COPY: below(left_copy); break;
	case UNMAP: unmap(); break;
	}
}

/* Of a copy that has touched the mapping: it fences before its record is clear. */
static void watch_end(const unsigned char *next)
{
	static const unsigned char sfence[] = { 0x0f, 0xae, 0xf8 }, lfence[] = { 0x0f, 0xae, 0xe8 };

	if (!seen.fenced && !named(OUTER))
		seen.ended_unfenced = true;
	if (!memcmp(next, now.copy.to ? sfence : lfence, sizeof(sfence)))
		seen.fenced = true;
}

static void on_step(int sig, siginfo_t *info, void *context)
{
	const ucontext_t *at = context;

	if (seen.touched_at)
		watch_end((const unsigned char *)at->uc_mcontext.gregs[REG_RIP]);
	for (int i = 0; i < ACTS; i++)
		if (now.at[i] == seen.step)
			act(now.plan->act[i]);
	seen.step++;
}

static void on_touch(int sig, siginfo_t *info, void *context)
{
	const unsigned char *p = info->si_addr;

	if (p == no_page)
		siglongjmp(out_of_copy, 1);
	if (!now.armed || p < page[OUTER] || p >= page[OUTER] + PAGE) {
		signal(sig, SIG_DFL);
		return;
	}
	if (seen.unmapped)
		wrong("it touched a mapping that was gone");
	if (!named(OUTER))
		wrong("it touched the mapping with no record of it");
	seen.touched_at = seen.step;
	mprotect(page[OUTER], PAGE, PROT_READ | PROT_WRITE);
}

static void call_outer_plainly(void)
{
	call_paged(&now.copy, false);
}

static void arm(void)
{
	memset(page[OUTER], now.copy.to ? 0xee : 0x5a, PAGE);
	memset(host + PAGE / 2, 0xdd, PAGE / 2);
	memset((void *)(uintptr_t)&seen, 0, sizeof(seen));
	now.armed = true;
	mprotect(page[OUTER], PAGE, PROT_NONE);
}

/* Runs the plan with the steps of now.at. Its result: whether all was right. */
static bool run_once(bool same_frame)
{
	int rc;

	atomic_store(&slots[OUTER].key, handle_of(OUTER).h);
	now.armed = false;
	gdr_data_forget(0);
	/* From here the frame of the last copy is the next one's. */
	if (same_frame)
		call_paged(&now.copy, false);
	else
		below(call_outer_plainly);
	arm();
	rc = call_paged(&now.copy, true);
	mprotect(page[OUTER], PAGE, PROT_READ | PROT_WRITE);
	if (named(OUTER))
		wrong("its record is still set");
	if (seen.ended_unfenced)
		wrong("it ended before its fence");
	if (rc && (rc != EINVAL || atomic_load(&slots[OUTER].key)))
		wrong("it failed");
	if (!rc && (!seen.touched_at || !is_copied(&now.copy)))
		wrong("the bytes are not there");
	return !seen.wrong;
}

/*
 * Every choice of steps in their order, from the first up to the one at which the
 * mapping is touched and a few more. An act moves that, so the end is looked for
 * anew each time.
 */
static bool run_from(int i, long first, bool same_frame, long *runs)
{
	long last = first + 1;

	for (long s = first; s <= last; s++) {
		now.at[i] = s;
		for (int k = i + 1; k < ACTS; k++)
			now.at[k] = -1;
		if (!run_once(same_frame))
			return false;
		++*runs;
		last = (seen.touched_at ? seen.touched_at : seen.step) + 3;
		if (i + 1 < ACTS && now.plan->act[i + 1] &&
		    !run_from(i + 1, s, same_frame, runs))
			return false;
	}
	return true;
}

static void run_plan(struct tap *t, const struct plan *plan, bool to, size_t n, bool many)
{
	long runs = 0;
	bool ok;

	now.plan = plan;
	now.copy = (struct paged){ OUTER, page[OUTER], to ? host : host + PAGE / 2, n, to, many };
	ok = run_from(0, 0, false, &runs);
	if (!plan->act[full ? 2 : 1])
		ok = ok && run_from(0, 0, true, &runs);
	tap_ok(t, ok && runs > 50, "%s of %s%zu bytes: %s", to ? "write" : "read",
	       many ? "twice " : "", n, plan->name);
	printf("# %ld runs\n", runs);
	if (!ok)
		printf("# %s; steps %ld, %ld, %ld, touched at %ld\n", seen.wrong, now.at[0], now.at[1],
		       now.at[2], seen.touched_at);
}

static void set_up(void)
{
	front_up(copy_select(NULL));
	for (int i = OUTER; i <= INNER; i++)
		page[i] = new_mapping(i, GDR_MAPPING_TYPE_WC);
	no_page = new_page(PROT_NONE);
	for (size_t i = 0; i < sizeof(host); i++)
		host[i] = (unsigned char)(i * 7 + 1);
}

/* The alternate stack lies above the thread's, as no thread's own does. */
#define STACK (64 * PAGE)
static _Alignas(PAGE) unsigned char stacks[2 * STACK];

/*
 * The first of the plans with two acts, on a write, shows most of what the others do.
 * One with three takes as long for each copy as all the others together.
 */
static bool is_wanted(const struct plan *plan, bool to, size_t n)
{
	if (plan->act[2])
		return full && n == 8 && to;
	if (full)
		return true;
	if (!plan->act[1])
		return n == 8 || n == 64;
	return n == 8 && to && plan->act[0] == COPY_DEEPER;
}

static void *run_all(void *tap)
{
	static const size_t sizes[] = { 1, 8, 64, 65 };
	stack_t alt = { .ss_sp = stacks + STACK, .ss_size = STACK };
	size_t many = sizeof(plans) / sizeof(plans[0]);

	sigaltstack(&alt, NULL);
	for (size_t p = 0; p < many; p++)
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
			for (int to = 0; to < 2; to++)
				if (is_wanted(&plans[p], to, sizes[i]))
					run_plan(tap, &plans[p], to, sizes[i], false);
	for (size_t p = 0; p < many; p++)
		for (int to = 0; to < 2; to++)
			if (!plans[p].act[1] || (full && !plans[p].act[2]))
				run_plan(tap, &plans[p], to, 8, true);
	return NULL;
}

int main(int argc, char **argv)
{
	struct tap t = { 0, 0, 0 };
	pthread_attr_t attr;
	pthread_t thread;

	full = argc > 1 && !strcmp(argv[1], "--full");
	set_up();
	catch_signal(SIGTRAP, on_step, 0);
	catch_signal(SIGSEGV, on_touch, SA_NODEFER);
	catch_signal(SIGUSR1, on_alt, SA_ONSTACK);
	pthread_attr_init(&attr);
	pthread_attr_setstack(&attr, stacks, STACK);
	if (pthread_create(&thread, &attr, run_all, &t))
		abort();
	pthread_join(thread, NULL);
	return tap_done(&t);
}
#else
int main(void)
{
	printf("ok 1 - steps # SKIP only x86-64 can run a program step by step from within\n"
	       "1..1\n0 passed, 0 failed, 1 skipped\n");
	return 0;
}
#endif
