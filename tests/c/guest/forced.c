// SPDX-License-Identifier: MIT
/*
 * guest/forced.c - signals that cannot wait, and floating-point environments of a host's own.
 *
 * A filter of system calls (seccomp's SECCOMP_RET_TRAP, Syscall User Dispatch) sends SIGSYS
 * in the middle of any code. The host's handler makes the call and the code goes on. It
 * wants stack for that, wherever it runs. The handlers here write to 48 KiB.
 */
#include "cuda.h"

#include <ucontext.h>

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

static void handle(int sig, void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction sa;

	memset(&sa, 0, sizeof(sa));
	sa.sa_sigaction = handler;
	sa.sa_flags = SA_SIGINFO | flags;
	/* Each writes DEEP bytes. Three at a time need more than the stack has, see enter.h. */
	if (!(flags & SA_NODEFER))
		sigfillset(&sa.sa_mask);
	expect_is(sigaction(sig, &sa, NULL), 0);
}

/* System calls that a filter traps. */

/* Not madvise: by it the C library ends a thread, with all signals held. */
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

static void *lives(void *g)
{
	for (int i = 0; i < 20; i++)
		whole_life(g, i);
	return NULL;
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
	handle(SIGSYS, make_call, SA_NODEFER | f->flags);
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
	long times = scaled(4000);
	pthread_t t[2];

	asked_g = open_or_fail();
	make_buffer(asked_g, &asked, 64 * KIB);
	for (int i = 0; i < many; i++)
		handle(faults[i], take, (uintptr_t)flags | (driver_is_server() ? SA_RESTART : 0));
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
	{ "system calls that a filter traps", NULL, 60, 0, live_filtered, &(struct filtered){ false, 0 } },
	{ "trapped after the open, in all threads", NULL, 60, 0, live_filtered, &(struct filtered){ true, 0 } },
	{ "the same, on alternate stacks", NULL, 60, 0, live_filtered, &(struct filtered){ true, SA_ONSTACK } },
	{ "Syscall User Dispatch", dispatched, 60, 0 },
	{ "the signals of faults, sent by another thread", NULL, 60, 0, sent, NULL },
	{ "the same, on alternate stacks", NULL, 60, 0, sent, (void *)SA_ONSTACK },
	{ "unmasked floating-point exceptions, another rounding", own_floats, 60, 0 },
	{ 0 }
};
