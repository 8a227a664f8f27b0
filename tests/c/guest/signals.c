// SPDX-License-Identifier: MIT
/*
 * guest/signals.c - the host's signals stay the host's; signals that cannot wait; floating-point environments of a host's own.
 */
#include "cuda.h"

#include <fenv.h>
#include <setjmp.h>
#include <sys/time.h>
#include <ucontext.h>

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

/* With SA_SIGINFO in flags the handler takes three arguments. */
static void install(int sig, void *handler, int flags)
{
	struct sigaction sa = { .sa_handler = (void (*)(int))handler, .sa_flags = flags };

	expect_is(sigaction(sig, &sa, NULL), 0);
}

static _Atomic long counted;

static void count_signal(int sig)
{
	atomic_fetch_add(&counted, 1);
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
	struct thread_state s;
	int v;

	have(f->has, SIGUSR2, SIGPROF, SIGPROF);
	look(&s);
	expect_is(gdr_get_attribute(f->g, GDR_ATTR_USE_PERSISTENT_MAPPING, &v), 0);
	expect_same(&s);
	whole_life(f->g, 1);
	expect_same(&s);
	return NULL;
}

static void states_around_open(void)
{
	struct raw_action before[65], after[65];
	struct first_call f;
	struct thread_state s;

	install(SIGUSR1, count_signal, SA_RESTART | SA_NODEFER);
	install(SIGSEGV, count_signal, SA_ONSTACK);
	install(SIGPIPE, SIG_IGN, 0);
	have(MASK | ALTSTACK, SIGUSR1, SIGCHLD, SIGRTMIN);
	look(&s);
	read_actions(before);
	f.g = open_or_fail();
	expect_same(&s);
	whole_life(f.g, 1);
	expect_same(&s);
	for (f.has = 0; f.has <= (MASK | ALTSTACK); f.has++)
		run_thread(0, first_call, &f);
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

static void sigwait_works(void)
{
	gdr_t g = open_or_fail();
	sigset_t all;

	whole_life(g, 1);
	sigfillset(&all);
	expect_is(pthread_sigmask(SIG_SETMASK, &all, NULL), 0);
	waits_for(g);
	whole_life(g, 1);
	waits_for(g);
	expect_is(gdr_close(g), 0);
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
	check_copies(b, 1);
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

static void small_stack(void)
{
	struct buffer b;
	gdr_t g;

	run_thread(control_stack(), open_all_blocked, NULL);
	g = open_or_fail();
	make_buffer(g, &b, 64 * KIB);
	run_thread(64 * KIB, copies, &b);
	run_thread(control_stack(), lives, g);
	drop_buffer(g, &b);
	expect_is(gdr_close(g), 0);
}

/* A thread that the host cancels is not ended inside the library. */

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

	run_thread(0, open_cancelled, &g);
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
 * By signal 33 the C library has every thread change its user. That signal needs a stack,
 * wherever it finds a thread: its own, or the alternate one. Go code runs on neither, and has
 * less room than a signal takes. Here it is sent to the threads all the time, with a handler
 * that looks where it is.
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
		start_thread(&l[i].t, 0, live_and_look, &l[i]);
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

/* Copies in the handler of a timer, inside copies, of which the handler leaves each second one. */

static struct buffer of_handler;
static sigjmp_buf out_of_copy;
static volatile sig_atomic_t copying, handled;

static void copy_pieces(const struct buffer *b, uint64_t seed)
{
	unsigned char out[256], in[256];
	const gdr_piece_t to[] = { { b->mh, b->va, out, 100 }, { b->mh, b->va + 100, out + 100, 156 } };
	const gdr_piece_t from[] = { { b->mh, b->va, in, 100 }, { b->mh, b->va + 100, in + 100, 156 } };

	fill_random(out, sizeof(out), seed);
	expect_is(gdr_copy_to_mapping_v(to, 2), 0);
	expect_is(gdr_copy_from_mapping_v(from, 2), 0);
	expect(!memcmp(in, out, sizeof(in)));
}

static void copy_in_handler(int sig)
{
	handled++;
	copy_pieces(&of_handler, handled);
	check_copies(&of_handler, handled);
	if (copying && handled % 2)
		siglongjmp(out_of_copy, 1);
}

static void copies_inside_copies(void)
{
	const struct itimerval every = { { 0, 200 }, { 0, 200 } }, none = { 0 };
	const double until = seconds_now() + scaled(guest_long ? 30 : 2);
	const gdr_t g = open_or_fail();
	struct buffer b;

	make_buffer(g, &b, 64 * KIB);
	make_buffer(g, &of_handler, 64 * KIB);
	install(SIGALRM, copy_in_handler, 0);
	expect_is(setitimer(ITIMER_REAL, &every, NULL), 0);
	while (seconds_now() < until) {
		if (sigsetjmp(out_of_copy, 1))
			continue;
		copying = 1;
		copy_pieces(&b, 1);
		check_copies(&b, 2);
		copying = 0;
	}
	expect_is(setitimer(ITIMER_REAL, &none, NULL), 0);
	expect(handled > 0);
	drop_buffer(g, &b);
	drop_buffer(g, &of_handler);
	expect_is(gdr_close(g), 0);
}

/*
 * Signals that cannot wait. A filter of system calls (seccomp's SECCOMP_RET_TRAP) sends SIGSYS in
 * the middle of any code. The host's handler makes the call and the code goes on. The handler wants stack, wherever it runs:
 * these write to 48 KiB.
 */
#define DEEP (48 * KIB)
#define PASSES 0x50415353u	/* in the upper half of a call's fifth argument: it is not trapped */

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

static void live_filtered(void)
{
	pthread_t t[4];
	gdr_t g;

#if !defined(__x86_64__) && !defined(__aarch64__)
	skip_case("this test does not know how this machine passes a system call's result");
#endif
	hold_context();
	install(SIGSYS, make_call, SA_SIGINFO | SA_NODEFER);
	filter_calls();
	g = open_or_fail();
	lives(g);
	start_threads(t, 4, lives, g);
	join_threads(t, 4);
	expect_is(gdr_close(g), 0);
	note("%ld calls were trapped", atomic_load(&taken));
	expect(atomic_load(&taken) > 100);
}

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

	/* By which Go's runtime would interrupt a thread of its own, and of the host. */
	install(SIGURG, count_signal, 0);
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
	expect_is(atomic_load(&counted), 0);
	drop_buffer(asked_g, &asked);
	expect_is(gdr_close(asked_g), 0);
}

/* Floating-point numbers. */

/* Counted before the exceptions are unmasked: scaled may be inexact. */
static long float_rounds;

static void *live_with_floats(void *g)
{
	for (long i = 0; i < float_rounds; i++)
		whole_life(g, i);
	return NULL;
}

/* Every inexact result traps, if the machine can; rounding is towards zero; also in threads made from here. */
static void own_floats(void)
{
	fenv_t before, after;
	gdr_t g;

	float_rounds = scaled(3000);
	feenableexcept(FE_INEXACT);
	expect_is(fesetround(FE_TOWARDZERO), 0);
	expect_is(fegetenv(&before), 0);
	g = open_or_fail();
	live_with_floats(g);
	run_thread(0, live_with_floats, g);
	expect_is(gdr_close(g), 0);
	expect_is(fegetenv(&after), 0);
	expect(!memcmp(&before, &after, sizeof(after)));
}

const struct guest_case cases[] = {
	{ "dispositions, masks and stacks stay as they were", states_around_open, 60, 0 },
	{ "a host can wait for any signal", sigwait_works, 60, 0 },
	{ "a cancelled thread opens", cancelled_opener, 60, 0 },
	{ "the first gdr_open is left by siglongjmp", left_open, 120, 0 },
	{ "the C library's signals find a stack", stack_for_signals, 60, 0 },
	{ "threads with 64 KiB of stack, all signals blocked", small_stack, 60, 0 },
	{ "copies in a timer's handler, inside copies that it leaves", copies_inside_copies, 60, 120 },
	{ "system calls that a filter traps", live_filtered, 60, 0 },
	{ "the signals of faults, sent by another thread", NULL, 60, 0, sent, 0 },
	{ "the same, on alternate stacks", NULL, 60, 0, sent, (void *)SA_ONSTACK },
	{ "unmasked floating-point exceptions, another rounding", own_floats, 60, 0 },
	{ 0 }
};
