// SPDX-License-Identifier: MIT
/*
 * guest/unmap.c - calls that end a mapping under a copy: for which copies they wait, and
 * what can happen to a thread that waits.
 *
 * A copy stands still at a host page that it may not read. The handler of that fault lets
 * it go on, or ends its thread.
 */
#include "common.h"

#include <setjmp.h>

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1u << 31)
#endif

#define PIECES 5

static gdr_t g;
static struct buffer buffers[PIECES];
static unsigned char *page;
static _Atomic bool stands, may_go, thread_ends;
static stack_t altstack;	/* of the copier, if it has one: its handler copies, too */

static void stand_still(int sig)
{
	if (altstack.ss_sp)
		check_copies(&buffers[1], 1);
	atomic_store(&stands, true);
	if (atomic_load(&thread_ends))
		pthread_exit(NULL);
	while (!atomic_load(&may_go))
		sleep_us(500);
	expect_is(mprotect(page, 4 * KIB, PROT_READ), 0);
}

static void set_up(void)
{
	struct sigaction act = { .sa_handler = stand_still, .sa_flags = SA_ONSTACK };

	g = open_or_fail();
	for (int i = 0; i < PIECES; i++)
		make_buffer(g, &buffers[i], 64 * KIB);
	page = mmap(NULL, 4 * KIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	expect(page != MAP_FAILED);
	expect_is(sigaction(SIGSEGV, &act, NULL), 0);
}

static int unmap(struct buffer *b)
{
	return gdr_unmap(g, b->mh, b->va, b->size);
}

/* Copies to the first buffers, so many; as one piece, or as many. */
static void *copy_to_some(void *count)
{
	gdr_piece_t pieces[PIECES];
	uintptr_t n = (uintptr_t)count;

	for (uintptr_t i = 0; i < n; i++)
		pieces[i] = (gdr_piece_t){ buffers[i].mh, buffers[i].va, page, 64 };
	expect_is(gdr_copy_to_mapping_v(pieces, n), 0);
	return NULL;
}

static void *copy_to_first(void *unused)
{
	expect_is(gdr_copy_to_mapping(buffers[0].mh, buffers[0].va, page, 64), 0);
	return NULL;
}

static pthread_t start_copy(void *(*copy)(void *), uintptr_t count)
{
	pthread_t t;

	atomic_store(&stands, false);
	atomic_store(&may_go, false);
	expect_is(mprotect(page, 4 * KIB, PROT_NONE), 0);
	start_thread(&t, 0, copy, (void *)count);
	while (!atomic_load(&stands))
		sleep_us(500);
	return t;
}

static void let_go(pthread_t copier)
{
	atomic_store(&may_go, true);
	expect_is(pthread_join(copier, NULL), 0);
}

static void other_buffers(void)
{
	pthread_t copier;

	set_up();
	copier = start_copy(copy_to_first, 1);
	expect_is(unmap(&buffers[1]), 0);
	let_go(copier);
	expect_is(unmap(&buffers[0]), 0);
	for (uintptr_t n = 1; n <= 3; n++) {
		map_buffer(g, &buffers[0]);
		map_buffer(g, &buffers[1]);
		copier = start_copy(copy_to_some, n);
		for (uintptr_t i = n; i < PIECES; i++)
			expect_is(unmap(&buffers[i]), 0);
		for (uintptr_t i = n; i < PIECES; i++)
			map_buffer(g, &buffers[i]);
		let_go(copier);
		expect_is(unmap(&buffers[0]), 0);
		expect_is(unmap(&buffers[1]), 0);
	}
}

/* A thread that ends a mapping. */
static struct {
	pthread_t t;
	_Atomic pid_t tid;
	_Atomic bool left, returned;
	_Atomic int signals;
	int rc;
	bool leaves;
	int slack;	/* ns, of its timers; 0: as it is */
	int (*call)(struct buffer *);
	sigjmp_buf out;
} waiter;

static void count_signal(int sig)
{
	atomic_fetch_add(&waiter.signals, 1);
	if (waiter.leaves && !atomic_exchange(&waiter.left, true))
		siglongjmp(waiter.out, 1);
}

static void *wait_for_copy(void *b)
{
	atomic_store(&waiter.tid, (pid_t)syscall(SYS_gettid));
	if (waiter.slack)
		expect_is(prctl(PR_SET_TIMERSLACK, (unsigned long)waiter.slack), 0);
	/* After siglongjmp it is called again. */
	(void)sigsetjmp(waiter.out, 1);
	waiter.rc = waiter.call(b);
	if (waiter.slack)
		expect_is(prctl(PR_GET_TIMERSLACK), waiter.slack);
	atomic_store(&waiter.returned, true);
	return NULL;
}

static void start_waiter(struct buffer *b, int (*call)(struct buffer *))
{
	struct sigaction act = { .sa_handler = count_signal };

	expect_is(sigaction(SIGUSR1, &act, NULL), 0);
	waiter.call = call;
	start_thread(&waiter.t, 0, wait_for_copy, b);
	sleep_us(50000);
	expect(!atomic_load(&waiter.returned));
}

static void expect_waiter(pthread_t copier)
{
	let_go(copier);
	expect_is(pthread_join(waiter.t, NULL), 0);
	expect_is(waiter.rc, 0);
}

static void *copy_on_two_stacks(void *unused)
{
	expect_is(sigaltstack(&altstack, NULL), 0);
	return copy_to_first(unused);
}

/*
 * The handler copies on a stack of its own, which with SS_AUTODISARM the kernel forgets
 * meanwhile. It lies above the copier's, as the process's first stack does.
 */
static void beneath_handler(void *flags)
{
	unsigned char room[64 * KIB];
	pthread_t copier;

	altstack = (stack_t){ .ss_sp = room, .ss_size = sizeof(room), .ss_flags = (uintptr_t)flags };
	set_up();
	copier = start_copy(copy_on_two_stacks, 1);
	start_waiter(&buffers[0], unmap);
	expect_waiter(copier);
}

/* A record has three names: this copy may have any handle. */
static void more_than_fit(void)
{
	pthread_t copier;

	set_up();
	copier = start_copy(copy_to_some, 4);
	start_waiter(&buffers[4], unmap);
	expect_waiter(copier);
}

static int unpin(struct buffer *b)
{
	return gdr_unpin_buffer(g, b->mh);
}

static int close_all(struct buffer *b)
{
	return gdr_close(g);
}

static int (*const calls[])(struct buffer *) = { unmap, unpin, close_all };

/* A collector that stops threads by signals waits for each. */
static void signals_come(void *call)
{
	pthread_t copier;

	set_up();
	copier = start_copy(copy_to_first, 1);
	start_waiter(&buffers[0], calls[(uintptr_t)call]);
	expect_is(pthread_kill(waiter.t, SIGUSR1), 0);
	while (!atomic_load(&waiter.signals))
		sleep_us(500);
	expect(!atomic_load(&waiter.returned));
	/* No lock of ours is held meanwhile. */
	expect_is(gdr_close(open_or_fail()), 0);
	expect_waiter(copier);
}

/* The call is left in the middle, and made again. */
static void left_by_handler(void *call)
{
	waiter.leaves = true;
	signals_come(call);
	expect(atomic_load(&waiter.left));
}

static void each_call(void *child)
{
	for (uintptr_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		expect(in_child("that waits", child, (void *)i, 20));
}

static void *cancelled_unmap(void *rc)
{
	*(int *)rc = unmap(&buffers[0]);
	pthread_testcancel();
	return NULL;
}

static void cancelled(void)
{
	int rc = -1;
	pthread_t copier, t;
	void *end;

	set_up();
	copier = start_copy(copy_to_first, 1);
	start_thread(&t, 0, cancelled_unmap, &rc);
	sleep_us(20000);
	expect_is(pthread_cancel(t), 0);
	sleep_us(20000);
	let_go(copier);
	expect_is(pthread_join(t, &end), 0);
	expect(end == PTHREAD_CANCELED);
	expect_is(rc, 0);
}

static _Atomic int succeeded;

static void *count_unmap(void *unused)
{
	int rc = unmap(&buffers[0]);

	expect(rc == 0 || rc == EINVAL);
	atomic_fetch_add(&succeeded, !rc);
	return NULL;
}

static void several(void)
{
	pthread_t copier, t[4];

	set_up();
	copier = start_copy(copy_to_first, 1);
	start_threads(t, 4, count_unmap, NULL);
	sleep_us(20000);
	let_go(copier);
	join_threads(t, 4);
	expect_is(succeeded, 1);
}

/* With this slack a thread that sleeps for a moment sleeps for 2 s. */
static void timer_slack(void)
{
	waiter.slack = 2000000000;
	set_up();
	for (int i = 0; i < 40; i++) {
		pthread_t copier = start_copy(copy_to_first, 1);

		start_waiter(&buffers[0], unmap);
		expect_waiter(copier);
		waiter.returned = false;
		map_buffer(g, &buffers[0]);
	}
}

/* Threads that ended in a copy. */

static void *stay(void *tid)
{
	atomic_store((_Atomic pid_t *)tid, (pid_t)syscall(SYS_gettid));
	while (!atomic_load(&may_go))
		sleep_us(500);
	return NULL;
}

static void *end_in_copy(void *tid)
{
	*(pid_t *)tid = (pid_t)syscall(SYS_gettid);
	return copy_to_first(NULL);
}

/* The next thread or process of this namespace gets that ID. */
static void make_next(pid_t id)
{
	char text[16];
	int fd = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
	int n = snprintf(text, sizeof(text), "%d", id - 1);

	if (fd < 0 || write(fd, text, n) != n)
		skip_case("a thread's ID cannot be chosen here: %s", strerror(errno));
	close(fd);
}

static bool has_its_id(pid_t id, size_t stack)
{
	_Atomic pid_t got = 0;
	pthread_t t;

	make_next(id);
	start_thread(&t, stack, stay, &got);
	while (!atomic_load(&got))
		sleep_us(100);
	if (atomic_load(&got) == id)
		return true;
	atomic_store(&may_go, true);
	expect_is(pthread_join(t, NULL), 0);
	atomic_store(&may_go, false);
	return false;
}

static void id_taken_again(void *stack)
{
	pid_t id = 0;
	pthread_t t;
	int tries = 0;

	set_up();
	atomic_store(&thread_ends, true);
	start_thread(&t, 0, end_in_copy, &id);
	expect_is(pthread_join(t, NULL), 0);
	while (!has_its_id(id, (uintptr_t)stack))
		if (++tries == 100)
			skip_case("the thread's ID did not come back");
	expect_is(unmap(&buffers[0]), 0);
}

static void ended_thread(void)
{
	pid_t id;
	pthread_t t;

	set_up();
	atomic_store(&thread_ends, true);
	start_thread(&t, 0, end_in_copy, &id);
	expect_is(pthread_join(t, NULL), 0);
	expect_is(unmap(&buffers[0]), 0);
}

const struct guest_case cases[] = {
	{ "not for copies of other buffers", other_buffers, 60, 0 },
	{ "for a copy under a handler", NULL, 60, 0, beneath_handler, NULL },
	{ "the same with SS_AUTODISARM", NULL, 60, 0, beneath_handler, (void *)(uintptr_t)SS_AUTODISARM },
	{ "for a copy of more handles than it can name", more_than_fit, 60, 0 },
	{ "signals come meanwhile", NULL, 60, 0, each_call, signals_come },
	{ "a handler leaves it, and it is called again", NULL, 60, 0, each_call, left_by_handler },
	{ "a thread that is cancelled goes on to its end", cancelled, 60, 0 },
	{ "of several that unmap, one does", several, 60, 0 },
	{ "timer slack", timer_slack, 40, 0 },
	{ "a thread that ended in a copy", ended_thread, 60, 0 },
	{ "whose ID another thread has, on the same stack", NULL, 60, 0, id_taken_again, NULL },
	{ "whose ID another thread has, on another stack", NULL, 60, 0, id_taken_again, (void *)(1 * MIB) },
	{ 0 }
};
