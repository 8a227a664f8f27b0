// SPDX-License-Identifier: MIT
/*
 * guest/signals.c - the host's signals stay the host's.
 */
#include "cuda.h"

#include <setjmp.h>
#include <sys/time.h>

/* A copy between the buffer's first bytes and the host: by one call, or as two pieces. */
static int copy_as(bool pieces, bool to, const struct buffer *b, void *host, size_t n)
{
	const gdr_piece_t both[2] = {
		{ b->mh, b->va, host, n / 2 },
		{ b->mh, b->va + n / 2, (unsigned char *)host + n / 2, n - n / 2 },
	};

	if (pieces)
		return to ? gdr_copy_to_mapping_v(both, 2) : gdr_copy_from_mapping_v(both, 2);
	return to ? gdr_copy_to_mapping(b->mh, b->va, host, n) : gdr_copy_from_mapping(b->mh, host, b->va, n);
}

#define PAGE 4096

/* Set in every thread that this program made; the library's have it 0. */
static __thread volatile int host_thread;

struct host_start {
	void *(*fn)(void *);
	void *arg;
	sigset_t mask;
};

static void *host_main(void *arg)
{
	struct host_start start = *(struct host_start *)arg;

	free(arg);
	host_thread = 1;
	expect_is(pthread_sigmask(SIG_SETMASK, &start.mask, NULL), 0);
	return start.fn(start.arg);
}

/* Starts a thread that takes no signal before host_thread is set. */
static void start_host_thread(pthread_t *t, size_t stack, void *(*fn)(void *), void *arg)
{
	struct host_start *start = malloc(sizeof(*start));
	sigset_t all, mask;

	expect(start != NULL);
	sigfillset(&all);
	expect_is(pthread_sigmask(SIG_SETMASK, &all, &mask), 0);
	*start = (struct host_start){ fn, arg, mask };
	start_thread(t, stack, host_main, start);
	expect_is(pthread_sigmask(SIG_SETMASK, &mask, NULL), 0);
}

static void run_host_thread(size_t stack, void *(*fn)(void *), void *arg)
{
	pthread_t t;

	start_host_thread(&t, stack, fn, arg);
	expect_is(pthread_join(t, NULL), 0);
}

/* Signals that a thread can wait for: neither faults nor the C library's. */
static bool waitable(int sig)
{
	switch (sig) {
	case SIGKILL: case SIGSTOP: case 32: case 33:
	case SIGSEGV: case SIGBUS: case SIGFPE: case SIGILL: case SIGTRAP:
	case SIGABRT: case SIGSYS:
		return false;
	}
	return true;
}

/* What a thread must find as it was. */
struct thread_state {
	uint64_t mask;
	stack_t altstack;
};

static void look(struct thread_state *s)
{
	s->mask = read_mask();
	expect_is(sigaltstack(NULL, &s->altstack), 0);
}

static void expect_same(const struct thread_state *before)
{
	struct thread_state now;

	look(&now);
	if (now.mask != before->mask)
		note("mask %#llx, was %#llx", (unsigned long long)now.mask,
		     (unsigned long long)before->mask);
	expect(now.mask == before->mask);
	expect_is(now.altstack.ss_flags, before->altstack.ss_flags);
	expect(now.altstack.ss_sp == before->altstack.ss_sp);
	expect_is(now.altstack.ss_size, before->altstack.ss_size);
}

static void own_altstack(size_t size)
{
	stack_t s = { .ss_sp = malloc(size), .ss_size = size };

	expect(s.ss_sp != NULL);
	expect_is(sigaltstack(&s, NULL), 0);
}

static void count_signal(int sig);

static void install(int sig, void (*handler)(int), int flags)
{
	struct sigaction sa;

	memset(&sa, 0, sizeof(sa));
	sa.sa_handler = handler;
	sa.sa_flags = flags;
	expect_is(sigaction(sig, &sa, NULL), 0);
}

/* Dispositions, masks, alternate stacks. */

enum { MASK = 1, ALTSTACK = 2 };

struct first_call {
	gdr_t g;
	int has;
};

/* What a thread has before the library is in it. */
static void have(int has, int a, int b, int c)
{
	sigset_t some;

	sigemptyset(&some);
	sigaddset(&some, a);
	sigaddset(&some, b);
	sigaddset(&some, c);
	if (has & MASK)
		expect_is(pthread_sigmask(SIG_BLOCK, &some, NULL), 0);
	if (has & ALTSTACK)
		own_altstack(SIGSTKSZ);
}

/* A thread's first call into a library that another thread has opened. */
static void *first_call(void *arg)
{
	const struct first_call *f = arg;
	struct raw_action before[65], after[65];
	struct thread_state s;
	int v;

	have(f->has, SIGUSR2, SIGPROF, SIGPROF);
	look(&s);
	read_actions(before);
	expect_is(gdr_get_attribute(f->g, GDR_ATTR_USE_PERSISTENT_MAPPING, &v), 0);
	expect_same(&s);
	whole_life(f->g, 1);
	expect_same(&s);
	read_actions(after);
	expect_same_actions(before, after);
	return NULL;
}

static void states_around_open(void *has)
{
	struct raw_action before[65], after[65];
	struct first_call f;
	struct thread_state s;

	install(SIGUSR1, count_signal, SA_RESTART | SA_NODEFER);
	install(SIGSEGV, count_signal, SA_ONSTACK);
	install(SIGPIPE, SIG_IGN, 0);
	have((uintptr_t)has, SIGUSR1, SIGCHLD, SIGRTMIN);
	look(&s);
	read_actions(before);
	f.g = open_or_fail();
	expect_same(&s);
	read_actions(after);
	expect_same_actions(before, after);
	whole_life(f.g, 1);
	expect_same(&s);
	for (f.has = 0; f.has <= (MASK | ALTSTACK); f.has++)
		run_host_thread(0, first_call, &f);
	expect_is(gdr_close(f.g), 0);
	expect_same(&s);
	read_actions(after);
	expect_same_actions(before, after);
}

/*
 * A program may block a signal in all its threads and wait for it. None of
 * the library's threads may take the signal instead.
 */
static void waits_for(gdr_t g)
{
	sigset_t one;
	int v;

	for (int sig = 1; sig <= 64; sig++) {
		struct timespec limit = { 5, 0 };
		int got;

		if (!waitable(sig))
			continue;
		sigemptyset(&one);
		sigaddset(&one, sig);
		for (int i = 0; i < 3; i++) {
			expect_is(gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &v), 0);
			expect_is(kill(getpid(), sig), 0);
			/* Time for a thread of the library to take it. */
			sleep_us(200);
			got = sigtimedwait(&one, NULL, &limit);
			if (got != sig)
				note("signal %d was sent, and sigtimedwait gives %d", sig, got);
			expect_is(got, sig);
		}
	}
}

/* later: a program that blocks them only once the library runs. */
static void sigwait_works(void *later)
{
	gdr_t g = later ? open_or_fail() : NULL;
	sigset_t all;

	if (later)
		whole_life(g, 1);
	sigfillset(&all);
	expect_is(pthread_sigmask(SIG_SETMASK, &all, NULL), 0);
	if (!later)
		g = open_or_fail();
	waits_for(g);
	whole_life(g, 1);
	waits_for(g);
	expect_is(gdr_close(g), 0);
}

/* The host's handlers. */

static _Atomic long counted[65];
static _Atomic long on_foreign_threads;

static void count_signal(int sig)
{
	atomic_fetch_add(&counted[sig], 1);
	if (!host_thread)
		atomic_fetch_add(&on_foreign_threads, 1);
}

/* As deep as many handlers are; the stack it needs must be there. */
__attribute__((noinline))
static void count_deeply(int sig)
{
	volatile unsigned char room[4 * KIB];

	for (size_t i = 0; i < sizeof(room); i += 64)
		room[i] = sig;
	count_signal(sig + (room[64] - sig));
}

static const int usual[] = { SIGPROF, SIGURG, SIGPIPE, SIGCHLD, SIGALRM, SIGUSR1 };
#define USUAL (int)(sizeof(usual) / sizeof(usual[0]))

static void raise_usual(int times)
{
	for (int i = 0; i < USUAL; i++) {
		long before = atomic_load(&counted[usual[i]]);

		for (int n = 0; n < times; n++)
			expect_is(raise(usual[i]), 0);
		expect_is(atomic_load(&counted[usual[i]]) - before, times);
	}
}

static void *raise_in_thread(void *g)
{
	raise_usual(5);
	whole_life(g, 2);
	raise_usual(5);
	return NULL;
}

static void install_usual(void)
{
	for (int i = 0; i < USUAL; i++)
		install(usual[i], count_signal, 0);
}

/* later: a handler that the host installs after the start works, too. */
static void handlers_work(void *later)
{
	int end[2], status;
	long before;
	pid_t pid;
	gdr_t g;

	host_thread = 1;
	if (!later)
		install_usual();
	g = open_or_fail();
	if (later)
		install_usual();
	raise_usual(5);
	whole_life(g, 1);
	raise_usual(5);
	run_host_thread(0, raise_in_thread, g);

	/* From where they come in life, too. */
	before = atomic_load(&counted[SIGCHLD]);
	pid = fork();
	if (!pid)
		_exit(3);
	while (waitpid(pid, &status, 0) < 0)
		expect_is(errno, EINTR);
	expect_is(WEXITSTATUS(status), 3);
	while (atomic_load(&counted[SIGCHLD]) == before)
		sleep_us(1000);
	before = atomic_load(&counted[SIGPIPE]);
	expect_is(pipe(end), 0);
	close(end[0]);
	expect(write(end[1], "x", 1) < 0 && errno == EPIPE);
	expect_is(atomic_load(&counted[SIGPIPE]), before + 1);
	expect_is(atomic_load(&on_foreign_threads), 0);
	expect_is(gdr_close(g), 0);
}

/* Timers. */

static void start_timer(int which, long us)
{
	struct itimerval every = { { 0, us }, { 0, us } };

	expect_is(setitimer(which, &every, NULL), 0);
}

static void *life_after_life(void *until)
{
	uint64_t seed = 1;

	while (seconds_now() < *(double *)until) {
		gdr_t g = open_or_fail();

		for (int i = 0; i < 20; i++)
			whole_life(g, seed++);
		expect_is(gdr_close(g), 0);
	}
	return NULL;
}

/* Each thread makes its first call, under the timer. */
static void *first_life(void *g)
{
	whole_life(g, 9);
	return NULL;
}

struct timer {
	int which, sig, threads;
};

static void under_timer(void *timer)
{
	const struct timer *of = timer;
	pthread_t t[4];
	double until;
	gdr_t g;

	hold_context();
	until = seconds_now() + scaled(guest_long ? 30 : 3);
	host_thread = 1;
	install(of->sig, count_deeply, 0);
	/* By which Go's runtime would interrupt a thread of its own, and of the host. */
	install(SIGURG, count_deeply, 0);
	start_timer(of->which, 1000);
	for (int i = 0; i < of->threads; i++)
		start_host_thread(&t[i], 0, life_after_life, &until);
	g = open_or_fail();
	while (seconds_now() < until)
		run_host_thread(0, first_life, g);
	join_threads(t, of->threads);
	expect_is(gdr_close(g), 0);
	start_timer(of->which, 0);
	note("%ld signals came", atomic_load(&counted[of->sig]));
	expect(atomic_load(&counted[of->sig]) > 0);
	expect_is(atomic_load(&counted[SIGURG]), 0);
	expect_is(atomic_load(&on_foreign_threads), 0);
}

/* Faults. */

static sigjmp_buf out_of_fault;
static void *volatile fault_at;
static volatile int fault_signal;

static void leave_fault(int sig, siginfo_t *info, void *context)
{
	fault_at = info->si_addr;
	fault_signal = sig;
	siglongjmp(out_of_fault, 1);
}

static void catch_faults(void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction sa;

	memset(&sa, 0, sizeof(sa));
	sa.sa_sigaction = handler;
	sa.sa_flags = SA_SIGINFO | flags;
	expect_is(sigaction(SIGSEGV, &sa, NULL), 0);
	expect_is(sigaction(SIGBUS, &sa, NULL), 0);
}

/* One page without access. */
static unsigned char *bad_page(void)
{
	void *p = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	expect(p != MAP_FAILED);
	return p;
}

/* The host's own fault reaches its handler. */
static void expect_fault_caught(void)
{
	unsigned char *volatile bad = bad_page();

	fault_at = NULL;
	if (!sigsetjmp(out_of_fault, 1)) {
		bad[123] = 1;
		expect(!"reached");
	}
	expect_is(fault_signal, SIGSEGV);
	expect(fault_at == bad + 123);
	munmap(bad, PAGE);
}

static void *faults_in_thread(void *g)
{
	own_altstack(4 * SIGSTKSZ);
	expect_fault_caught();
	whole_life(g, 1);
	expect_fault_caught();
	return NULL;
}

static void faults_caught(void *flags)
{
	gdr_t g;

	if (flags)
		own_altstack(4 * SIGSTKSZ);
	catch_faults(leave_fault, (uintptr_t)flags);
	expect_fault_caught();
	g = open_or_fail();
	expect_fault_caught();
	whole_life(g, 1);
	expect_fault_caught();
	run_host_thread(0, faults_in_thread, g);
	expect_is(gdr_close(g), 0);
	expect_fault_caught();
}

static void crash(void *how)
{
	struct rlimit none = { 0, 0 };
	gdr_t g = open_or_fail();

	setrlimit(RLIMIT_CORE, &none);
	whole_life(g, 1);
	if (how)
		abort();
	*(volatile unsigned char *)bad_page() = 1;
}

static void default_crash(void)
{
	for (int how = 0; how < 2; how++) {
		int status;
		pid_t pid;

		fflush(stdout);
		pid = fork();
		if (!pid) {
			crash(how ? &how : NULL);
			_exit(0);
		}
		status = wait_child(pid, 20);
		expect(status != -1 && WIFSIGNALED(status));
		expect_is(WTERMSIG(status), how ? SIGABRT : SIGSEGV);
	}
}

/* Threads that are not like others. */

static void *open_all_blocked(void *unused)
{
	struct thread_state s;
	sigset_t all;
	gdr_t g;

	sigfillset(&all);
	expect_is(pthread_sigmask(SIG_SETMASK, &all, NULL), 0);
	look(&s);
	g = open_or_fail();
	whole_life(g, 1);
	expect_is(gdr_close(g), 0);
	expect_same(&s);
	return NULL;
}

static void *lives(void *g)
{
	for (int i = 0; i < 10; i++)
		whole_life(g, i);
	return NULL;
}

static void *copies(void *b)
{
	for (int i = 0; i < 10; i++)
		check_copies(b, i);
	return NULL;
}

/*
 * The library needs no more than 64 KiB for any call. NVIDIA's driver, which a
 * control call may enter on the same stack, does: driver 580.159.04 overflowed
 * it. So with that one the threads that make control calls have more; a copy
 * enters no driver.
 */
static size_t control_stack(void)
{
	return (on_doubles() ? 64 : 256) * KIB;
}

static void blocked_opener(void *small_stack)
{
	run_host_thread(small_stack ? control_stack() : 0, open_all_blocked, NULL);
}

static void small_stack(void)
{
	gdr_t g = open_or_fail();
	struct buffer b;

	make_buffer(g, &b, 64 * KIB);
	for (int i = 0; i < 8; i++) {
		run_host_thread(64 * KIB, copies, &b);
		run_host_thread(control_stack(), lives, g);
	}
	drop_buffer(g, &b);
	expect_is(gdr_close(g), 0);
}

/* A thread that the host cancels is not ended inside the library. */

static void *lives_until_cancelled(void *g)
{
	for (;;) {
		whole_life(g, 3);
		pthread_testcancel();
	}
	return NULL;
}

static void cancel(void)
{
	gdr_t g = open_with_context();
	uint64_t seed = 1;

	for (int i = 0; i < scaled(guest_long ? 500 : 50); i++) {
		pthread_t t;
		void *end;

		start_host_thread(&t, 0, lives_until_cancelled, g);
		sleep_us(200 + next_random(&seed) % 3000);
		expect_is(pthread_cancel(t), 0);
		expect_is(pthread_join(t, &end), 0);
		expect(end == PTHREAD_CANCELED);
		whole_life(g, i);
	}
	expect_is(gdr_close(g), 0);
}

/* It was cancelled before the call, which goes to its end all the same. */
static void *open_cancelled(void *g)
{
	expect_is(pthread_cancel(pthread_self()), 0);
	*(gdr_t *)g = open_or_fail();
	whole_life(*(gdr_t *)g, 1);
	pthread_testcancel();
	return NULL;
}

static void open_while_cancelled(void *unused)
{
	gdr_t g = NULL;

	run_host_thread(0, open_cancelled, &g);
	expect(g != NULL);
	whole_life(g, 1);
	expect_is(gdr_close(g), 0);
	g = open_or_fail();
	expect_is(gdr_close(g), 0);
}

/* The start holds a lock, and the loader reads files. */
static void cancelled_opener(void)
{
	gdr_t g;

	expect(in_child("in a first start", open_while_cancelled, NULL, 20));
	g = open_or_fail();
	expect(in_child("in a child of one that is open", open_while_cancelled, NULL, 20));
	expect_is(gdr_close(g), 0);
}

/* A timeout around the first gdr_open, whose handler leaves by siglongjmp. */
static sigjmp_buf out_of_open;

static void leave_open(int sig)
{
	siglongjmp(out_of_open, 1);
}

static void open_with_timeout(void *after_us)
{
	struct itimerval timer = { { 0, 0 }, { 0, (uintptr_t)after_us } }, none = { 0 };

	install(SIGALRM, leave_open, 0);
	if (!sigsetjmp(out_of_open, 1)) {
		expect_is(setitimer(ITIMER_REAL, &timer, NULL), 0);
		open_or_fail();
	}
	expect_is(setitimer(ITIMER_REAL, &none, NULL), 0);
	open_while_cancelled(NULL);
}

static void left_open(void)
{
	for (uintptr_t i = 0; i < (uintptr_t)scaled(50); i++)
		expect(in_child("whose first gdr_open is left", open_with_timeout,
				(void *)(50 + i * 100), 20));
}

/*
 * The C library has two signals of its own, which no one can block through it.
 * With the second one it has every thread change its user, those in the
 * library and the library's own as well, and waits for all of them.
 */
static void change_users(void)
{
	gdr_t g = open_with_context();
	double until = seconds_now() + scaled(guest_long ? 30 : 3);
	pthread_t t[4];
	long times = 0;

	for (int i = 0; i < 4; i++)
		start_host_thread(&t[i], 0, life_after_life, &until);
	for (; seconds_now() < until; times++)
		expect_is(setresuid(-1, geteuid(), -1), 0);
	join_threads(t, 4);
	note("%ld changes of the user", times);
	whole_life(g, 1);
	expect_is(gdr_close(g), 0);
}

/*
 * That signal needs a stack, wherever it finds a thread: its own, or the alternate
 * one. Go code runs on neither, and has less room than a signal takes. Here it is
 * sent to the threads all the time, with a handler that looks where it is.
 */
static __thread struct {
	char *lo, *hi;		/* the thread's stack */
} own_stack;
static _Atomic long looked, astray;

static void look_where(int sig, siginfo_t *info, void *context)
{
	const stack_t *alt = &((const ucontext_t *)context)->uc_stack;
	char *here = __builtin_frame_address(0);

	if (!own_stack.hi)
		return;
	atomic_fetch_add(&looked, 1);
	if (here >= own_stack.lo && here < own_stack.hi)
		return;
	if (alt->ss_flags & SS_DISABLE || here < (char *)alt->ss_sp ||
	    here >= (char *)alt->ss_sp + alt->ss_size)
		atomic_fetch_add(&astray, 1);
}

struct looker {
	pthread_t t;
	_Atomic pid_t tid;
	bool altstack;
};

static void *live_and_look(void *arg)
{
	double until = seconds_now() + scaled(2);
	struct looker *l = arg;
	pthread_attr_t attr;
	size_t size;
	void *lo;

	if (l->altstack)
		own_altstack(SIGSTKSZ);
	expect_is(pthread_getattr_np(pthread_self(), &attr), 0);
	expect_is(pthread_attr_getstack(&attr, &lo, &size), 0);
	pthread_attr_destroy(&attr);
	own_stack.hi = (char *)lo + size;
	own_stack.lo = lo;
	atomic_store(&l->tid, (pid_t)syscall(SYS_gettid));
	life_after_life(&until);
	atomic_store(&l->tid, 0);
	return NULL;
}

static void stack_for_signals(void)
{
	void (*handler)(int, siginfo_t *, void *) = look_where;
	struct raw_action theirs, ours;
	struct looker l[4] = { { .altstack = true } };
	gdr_t g = open_with_context();
	int left;

	/* With the flags and the mask that the C library and the runtime gave it. */
	expect_is(syscall(SYS_rt_sigaction, 33, NULL, &theirs, 8), 0);
	ours = theirs;
	memcpy(ours.bytes, &handler, sizeof(handler));
	expect_is(syscall(SYS_rt_sigaction, 33, &ours, NULL, 8), 0);
	for (int i = 0; i < 4; i++) {
		start_host_thread(&l[i].t, 0, live_and_look, &l[i]);
		while (!atomic_load(&l[i].tid))
			;
	}
	do {
		left = 0;
		for (int i = 0; i < 4; i++) {
			pid_t tid = atomic_load(&l[i].tid);

			if (tid && !syscall(SYS_tgkill, getpid(), tid, 33))
				left++;
		}
	} while (left);
	for (int i = 0; i < 4; i++)
		expect_is(pthread_join(l[i].t, NULL), 0);
	expect_is(syscall(SYS_rt_sigaction, 33, &theirs, NULL, 8), 0);
	note("%ld signals, %ld of them on no stack of theirs", atomic_load(&looked),
	     atomic_load(&astray));
	expect(atomic_load(&looked) > 0);
	expect_is(atomic_load(&astray), 0);
	expect_is(gdr_close(g), 0);
}

/* Copies that signals interrupt. */

/* Copies left by a fault of the host's memory, one of each kind, keep nothing of the buffer. */
static void left_copies(void)
{
	unsigned char *bad = bad_page();
	gdr_t g = open_or_fail();
	struct buffer b;

	catch_faults(leave_fault, 0);
	make_buffer(g, &b, 64 * KIB);
	for (int kind = 0; kind < 4; kind++) {
		fault_at = NULL;
		if (!sigsetjmp(out_of_fault, 1)) {
			copy_as(kind & 2, kind & 1, &b, bad, PAGE);
			expect(!"reached");
		}
		expect_is(fault_signal, SIGSEGV);
		expect((unsigned char *)fault_at >= bad && (unsigned char *)fault_at < bad + PAGE);
		check_copies(&b, kind);
	}
	munmap(bad, PAGE);
	drop_buffer(g, &b);
	expect_is(gdr_close(g), 0);
}

/* Copies in the handler of a timer, inside copies and other calls of the interrupted code. */

static struct buffer *timer_buffer;
static volatile long timer_copies, timer_bad;

static void copy_in_handler(int sig)
{
	unsigned char out[512], in[512];

	memset(in, 0, sizeof(in));
	fill_random(out, sizeof(out), ++timer_copies);
	if (copy_as(timer_copies & 1, true, timer_buffer, out, sizeof(out)) ||
	    copy_as(timer_copies & 2, false, timer_buffer, in, sizeof(in)) || memcmp(in, out, sizeof(in)))
		timer_bad++;
}

#define BIG (256 * KIB)

static void copies_inside_copies(void)
{
	static unsigned char out[BIG], in[BIG];
	double until = seconds_now() + scaled(guest_long ? 30 : 2);
	struct buffer a, b;
	gdr_t g = open_or_fail();
	uint64_t seed = 1;

	make_buffer(g, &a, BIG);
	make_buffer(g, &b, 64 * KIB);
	timer_buffer = &b;
	install(SIGALRM, copy_in_handler, 0);
	start_timer(ITIMER_REAL, 200);
	while (seconds_now() < until) {
		fill_random(out, sizeof(out), seed++);
		expect_is(copy_as(seed & 1, true, &a, out, BIG), 0);
		expect_is(copy_as(seed & 1, false, &a, in, BIG), 0);
		expect(!memcmp(in, out, BIG));
		whole_life(g, seed);
	}
	start_timer(ITIMER_REAL, 0);
	note("%ld copies in a handler", timer_copies);
	expect(timer_copies > 0);
	expect_is(timer_bad, 0);
	drop_buffer(g, &a);
	drop_buffer(g, &b);
	expect_is(gdr_close(g), 0);
}

const struct guest_case cases[] = {
	{ "dispositions, masks and stacks stay as they were", NULL, 60, 0, states_around_open, NULL },
	{ "with some signals blocked", NULL, 60, 0, states_around_open, (void *)MASK },
	{ "with an alternate stack", NULL, 60, 0, states_around_open, (void *)(MASK | ALTSTACK) },
	{ "a host can wait for any signal", NULL, 60, 0, sigwait_works, NULL },
	{ "also one that blocks them after the open", NULL, 60, 0, sigwait_works, (void *)true },
	{ "the host's handlers go on working", NULL, 60, 0, handlers_work, NULL },
	{ "and those installed after the open", NULL, 60, 0, handlers_work, (void *)true },
	{ "SIGALRM at 1 kHz", NULL, 60, 120, under_timer, &(struct timer){ ITIMER_REAL, SIGALRM, 0 } },
	{ "SIGALRM at 1 kHz and 4 threads", NULL, 60, 120, under_timer, &(struct timer){ ITIMER_REAL, SIGALRM, 3 } },
	{ "SIGPROF at 1 kHz and 4 threads", NULL, 60, 120, under_timer, &(struct timer){ ITIMER_PROF, SIGPROF, 3 } },
	{ "SIGVTALRM at 1 kHz and 4 threads", NULL, 60, 120, under_timer, &(struct timer){ ITIMER_VIRTUAL, SIGVTALRM, 3 } },
	{ "the host's SIGSEGV handler gets its faults", NULL, 60, 0, faults_caught, NULL },
	{ "on an alternate stack, too", NULL, 60, 0, faults_caught, (void *)SA_ONSTACK },
	{ "without a handler a crash is a crash", default_crash, 60, 0 },
	{ "a thread with all signals blocked opens", NULL, 60, 0, blocked_opener, NULL },
	{ "a cancelled thread leaves no lock and no copy behind", cancel, 60, 120 },
	{ "a cancelled thread opens", cancelled_opener, 60, 0 },
	{ "the first gdr_open is left by siglongjmp", left_open, 120, 0 },
	{ "setresuid in a process with threads inside", change_users, 60, 120 },
	{ "the C library's signals find a stack", stack_for_signals, 60, 0 },
	{ "threads with 64 KiB of stack", small_stack, 60, 0 },
	{ "such a thread opens", NULL, 60, 0, blocked_opener, (void *)true },
	{ "copies left by siglongjmp do not block gdr_unmap", left_copies, 60, 0 },
	{ "copies in a timer's handler inside copies and pins", copies_inside_copies, 60, 120 },
	{ 0 }
};
