// SPDX-License-Identifier: MIT
/*
 * guest/signals.c - the host's signals stay the host's; signals that cannot wait; floating-point environments of a host's own.
 */
#include "cuda.h"

#include <setjmp.h>
#include <sys/time.h>
#include <ucontext.h>

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

/*
 * Signals that a thread can wait for: not the C library's, and not SIGSYS, which all threads take. Those of faults are open
 * in the threads that a real libcuda starts.
 */
static bool waitable(int sig)
{
	switch (sig) {
	case SIGKILL: case SIGSTOP: case 32: case 33: case SIGSYS:
		return false;
	case SIGSEGV: case SIGBUS: case SIGFPE: case SIGILL: case SIGTRAP: case SIGABRT:
		return on_doubles();
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

/* With SA_SIGINFO in flags the handler takes three arguments. */
static void install(int sig, void *handler, int flags)
{
	struct sigaction sa = { .sa_handler = (void (*)(int))handler, .sa_flags = flags };

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

static void catch_faults(int flags)
{
	install(SIGSEGV, leave_fault, SA_SIGINFO | flags);
	install(SIGBUS, leave_fault, SA_SIGINFO | flags);
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
	catch_faults((uintptr_t)flags);
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

	catch_faults(0);
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

/*
 * Signals that cannot wait. A filter of system calls (seccomp's SECCOMP_RET_TRAP, Syscall User Dispatch) sends SIGSYS in
 * the middle of any code. The host's handler makes the call and the code goes on. The handler wants stack, wherever it runs:
 * these write to 48 KiB.
 */
#define DEEP (48 * KIB)
#define PASSES 0x50415353u	/* in the upper half of a call's fifth argument: it is not trapped */

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

static _Atomic long taken;

static __attribute__((noinline)) void write_deeply(void)
{
	char deep[DEEP];

	memset(deep, 0x5a, sizeof(deep));
	__asm__ volatile("" : : "r"(deep) : "memory");
}

/* What a filter traps. Not madvise: by it the C library ends a thread, with all signals held. */
static const int trapped[] = {
	SYS_openat, SYS_ioctl, SYS_mmap, SYS_munmap, SYS_mprotect, SYS_munlock,
	SYS_sched_getaffinity, SYS_tgkill, SYS_sigaltstack, SYS_eventfd2, SYS_membarrier,
};

#define TRAPPED (sizeof(trapped) / sizeof(trapped[0]))

static long call_passing(int nr, const unsigned long long *a)
{
	uint64_t fifth = (a[4] & 0xffffffff) | (uint64_t)PASSES << 32;
	int error = errno;
	long rc = syscall(nr, a[0], a[1], a[2], a[3], fifth, a[5]);

	if (rc < 0)
		rc = -errno;
	errno = error;
	return rc;
}

/* Makes the trapped call in the place of the code that wanted it. */
static void make_call(int sig, siginfo_t *info, void *context)
{
	mcontext_t *m = &((ucontext_t *)context)->uc_mcontext;

	write_deeply();
	atomic_fetch_add(&taken, 1);
#if defined(__x86_64__)
	unsigned long long a[6] = {
		m->gregs[REG_RDI], m->gregs[REG_RSI], m->gregs[REG_RDX],
		m->gregs[REG_R10], m->gregs[REG_R8], m->gregs[REG_R9],
	};

	m->gregs[REG_RAX] = call_passing(info->si_syscall, a);
#elif defined(__aarch64__)
	m->regs[0] = call_passing(info->si_syscall, m->regs);
#else
	(void)m;
	abort();
#endif
}

/* In all threads of the process, and in those to come. */
static void filter_calls(void)
{
	struct sock_filter f[TRAPPED + 6];
	struct sock_fprog prog = { .filter = f };
	unsigned short n = 0;

	f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < TRAPPED; i++)
		f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, trapped[i], TRAPPED - i, 0);
	f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[4]) + 4);
	f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PASSES, 1, 0);
	f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
	f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	prog.len = n;
	expect_is(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &prog))
		skip_case("seccomp: %s", strerror(errno));
}

struct filtered {
	bool opens_first;
	int flags;
};

static void live_filtered(void *filtered)
{
	const struct filtered *f = filtered;
	pthread_t t[4];
	gdr_t g = NULL;

#if !defined(__x86_64__) && !defined(__aarch64__)
	skip_case("this test does not know how this machine passes a system call's result");
#endif
	hold_context();
	if (f->opens_first)
		g = open_or_fail();
	install(SIGSYS, make_call, SA_SIGINFO | SA_NODEFER | f->flags);
	filter_calls();
	if (!g)
		g = open_or_fail();
	lives(g);
	start_threads(t, 4, lives, g);
	join_threads(t, 4);
	expect_is(gdr_close(g), 0);
	note("%ld calls were trapped", atomic_load(&taken));
	expect(atomic_load(&taken) > 100);
}

/* Syscall User Dispatch: the calls of one thread, while its switch is on. */

#if defined(__x86_64__)
static volatile char trap_all;
extern char pass_start[], pass_end[];
long pass(long nr, const unsigned long long *a);

/* Where calls are not trapped. */
__asm__(".pushsection .text\n.balign 16\npass_start:\n.globl pass\npass:\n"
	"	mov %rdi, %rax\n	mov %rsi, %r11\n	mov 0(%r11), %rdi\n	mov 8(%r11), %rsi\n"
	"	mov 16(%r11), %rdx\n	mov 32(%r11), %r8\n	mov 40(%r11), %r9\n	mov 24(%r11), %r10\n"
	"	syscall\n	ret\npass_return:\n	mov $15, %eax\n	syscall\n	ud2\npass_end:\n.popsection");
extern char pass_return[];

static void make_dispatched_call(int sig, siginfo_t *info, void *context)
{
	mcontext_t *m = &((ucontext_t *)context)->uc_mcontext;
	unsigned long long a[6] = {
		m->gregs[REG_RDI], m->gregs[REG_RSI], m->gregs[REG_RDX],
		m->gregs[REG_R10], m->gregs[REG_R8], m->gregs[REG_R9],
	};

	write_deeply();
	atomic_fetch_add(&taken, 1);
	/*
	 * A new thread begins behind the call with a stack of its own, so it cannot begin in
	 * pass(): the call is made again where it stood, untrapped. A real libcuda makes one.
	 */
	if (info->si_syscall == SYS_clone || info->si_syscall == SYS_clone3) {
		trap_all = 0;
		m->gregs[REG_RIP] -= 2;
		m->gregs[REG_RAX] = info->si_syscall;
		return;
	}
	m->gregs[REG_RAX] = pass(info->si_syscall, a);
}

static void dispatched(void)
{
	struct {
		void (*handler)(int, siginfo_t *, void *);
		unsigned long flags;
		void *restorer;
		uint64_t mask;
	} sa = { make_dispatched_call, SA_SIGINFO | SA_NODEFER | 0x04000000 /* SA_RESTORER */, pass_return, 0 };
	gdr_t g = open_with_context();
	struct buffer b;
	gdr_mh_t mh = { 0 };
	int rc = 0, life;

	alloc_buffer(g, &b, 64 * KIB);
	expect_is(syscall(SYS_rt_sigaction, SIGSYS, &sa, NULL, 8), 0);
	if (prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, pass_start, pass_end - pass_start, &trap_all))
		skip_case("prctl: %s", strerror(errno));
	for (life = 0; life < 100 && !rc; life++) {
		void *va = NULL;

		trap_all = 1;
		rc = gdr_pin_buffer(g, b.dptr, b.size, 0, 0, &mh);
		if (!rc)
			rc = gdr_map(g, mh, &va, b.size);
		if (!rc)
			rc = gdr_copy_to_mapping(mh, va, "sud", 4);
		if (!rc)
			rc = gdr_unmap(g, mh, va, b.size);
		if (!rc)
			rc = gdr_unpin_buffer(g, mh);
		trap_all = 0;
	}
	expect_is(rc, 0);
	note("%ld calls were dispatched", atomic_load(&taken));
	expect(atomic_load(&taken) > 100);
	expect_is(gdr_mem_free(g, b.mem), 0);
	expect_is(gdr_close(g), 0);
}
#else
static void dispatched(void)
{
	skip_case("Syscall User Dispatch is x86-64's");
}
#endif

/* The signals of faults, sent by another thread at any moment. */

static void take(int sig, siginfo_t *info, void *context)
{
	write_deeply();
	atomic_fetch_add(&taken, 1);
}

static _Atomic bool over;
static gdr_t asked_g;
static struct buffer asked;

/*
 * rm's simulated driver is a server: a signal ends the wait for its answer. So there the
 * kernel makes the call again, and no memory is allocated.
 */
static bool driver_is_server(void)
{
	return backend_is("rm") && on_doubles();
}

static void *ask(void *unused)
{
	while (!atomic_load(&over)) {
		unsigned char info[64];
		gdr_mh_t mh;
		int v;

		expect_is(gdr_get_attribute(asked_g, GDR_ATTR_USE_PERSISTENT_MAPPING, &v), 0);
		expect_is(gdr_pin_buffer(asked_g, asked.dptr, 4096, 0, 0, &mh), 0);
		expect_is(gdr_unpin_buffer(asked_g, mh), 0);
		expect_is(gdr_get_info(asked_g, asked.mh, info), 0);
		if (!driver_is_server())
			whole_life(asked_g, 3);
	}
	return NULL;
}

static void sent(void *flags)
{
	static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGTRAP, SIGSYS, SIGILL, SIGABRT };
	const int many = sizeof(faults) / sizeof(faults[0]);
	struct sigaction sa = { .sa_sigaction = take,
				.sa_flags = SA_SIGINFO | (uintptr_t)flags | (driver_is_server() ? SA_RESTART : 0) };
	long times = scaled(4000);
	pthread_t t[2];

	asked_g = open_or_fail();
	make_buffer(asked_g, &asked, 64 * KIB);
	sigfillset(&sa.sa_mask);	/* three at a time need more than the stack has, see enter.h */
	for (int i = 0; i < many; i++)
		expect_is(sigaction(faults[i], &sa, NULL), 0);
	start_threads(t, 2, ask, NULL);
	for (long i = 0; i < times; i++) {
		expect_is(pthread_kill(t[i & 1], faults[i % many]), 0);
		sleep_us(20);
	}
	atomic_store(&over, true);
	join_threads(t, 2);
	note("%ld signals were taken", atomic_load(&taken));
	expect(atomic_load(&taken) > 0);
	drop_buffer(asked_g, &asked);
	expect_is(gdr_close(asked_g), 0);
}

/* Floating-point numbers. */

struct floats {
	uint64_t words[4];
};

static struct floats read_floats(void)
{
	struct floats f = { { 0 } };

#if defined(__x86_64__)
	uint32_t mxcsr;
	uint16_t x87;

	__asm__ volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(mxcsr), "=m"(x87));
	f.words[0] = mxcsr;
	f.words[1] = x87;
#elif defined(__aarch64__)
	__asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(f.words[0]), "=r"(f.words[1]));
#endif
	return f;
}

/* Every inexact result traps, and rounding is towards zero; also in threads made from here. */
static void change_floats(void)
{
#if defined(__x86_64__)
	const uint32_t mxcsr = 0x1f80 ^ 0x1000 ^ 0x6000 ^ 0x8000;
	const uint16_t x87 = 0x37f ^ 0x20 ^ 0x0c00;

	__asm__ volatile("ldmxcsr %0\n\tfldcw %1" : : "m"(mxcsr), "m"(x87));
#elif defined(__aarch64__)
	__asm__ volatile("msr fpcr, %0" : : "r"(1ul << 12 | 3ul << 22 | 1ul << 24));
#else
	skip_case("this test does not know this machine's floating-point unit");
#endif
}

/* Counted before the exceptions are unmasked: scaled may be inexact. */
static long float_rounds;

static void *live_with_floats(void *g)
{
	struct floats before = read_floats(), now;
	unsigned char in[64 * KIB];
	struct buffer b;
	int v;

	for (long i = 0; i < float_rounds; i++) {
		make_buffer(g, &b, 64 * KIB);
		expect_is(gdr_copy_from_mapping(b.mh, in, b.va, sizeof(in)), 0);
		expect_is(gdr_copy_to_mapping(b.mh, b.va, in, sizeof(in)), 0);
		drop_buffer(g, &b);
		expect_is(gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &v), 0);
	}
	now = read_floats();
	expect(!memcmp(&before, &now, sizeof(now)));
	return NULL;
}

static void own_floats(void)
{
	struct floats before, now;
	pthread_t t;
	gdr_t g;

	float_rounds = scaled(3000);
	change_floats();
	before = read_floats();
	g = open_or_fail();
	now = read_floats();
	expect(!memcmp(&before, &now, sizeof(now)));
	live_with_floats(g);
	start_thread(&t, 0, live_with_floats, g);
	expect_is(pthread_join(t, NULL), 0);
	expect_is(gdr_close(g), 0);
	now = read_floats();
	expect(!memcmp(&before, &now, sizeof(now)));
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
	{ "system calls that a filter traps", NULL, 60, 0, live_filtered, &(struct filtered){ false, 0 } },
	{ "trapped after the open, in all threads", NULL, 60, 0, live_filtered, &(struct filtered){ true, 0 } },
	{ "trapped, on alternate stacks", NULL, 60, 0, live_filtered, &(struct filtered){ true, SA_ONSTACK } },
	{ "Syscall User Dispatch", dispatched, 60, 0 },
	{ "the signals of faults, sent by another thread", NULL, 60, 0, sent, NULL },
	{ "faults sent, on alternate stacks", NULL, 60, 0, sent, (void *)SA_ONSTACK },
	{ "unmasked floating-point exceptions, another rounding", own_floats, 60, 0 },
	{ 0 }
};
