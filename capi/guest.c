// SPDX-License-Identifier: MIT
#include "guest.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51	/* glibc 2.34 */
#endif

#define SIGNALS 64
#define KERNEL_SIGSET_BYTES 8

/* The C library's own. */
#define SIGCANCEL 32
#define SIGSETXID 33

/* What a handler may use beside what the kernel puts there: as much as Go gives. */
#define STACK_BYTES 32768

/* The alternate stack that this thread is lent; NULL: not made yet. */
static __thread void *own_stack __attribute__((tls_model("initial-exec")));

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t exit_key;
static bool have_exit_key;
static size_t stack_size;

/* A call in a later destructor of the thread makes another one. */
static void free_stack(void *stack)
{
	own_stack = NULL;
	munmap(stack, stack_size);
}

static void prepare_stacks(void)
{
	size_t page = sysconf(_SC_PAGESIZE);

	stack_size = (getauxval(AT_MINSIGSTKSZ) + STACK_BYTES + page - 1) & ~(page - 1);
	have_exit_key = pthread_key_create(&exit_key, free_stack) == 0;
}

static void make_stack(void)
{
	void *stack;

	pthread_once(&once, prepare_stacks);
	/* Without a key it would outlive its thread. */
	if (!have_exit_key)
		return;
	stack = mmap(NULL, stack_size, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	if (stack == MAP_FAILED)
		return;
	if (pthread_setspecific(exit_key, stack))
		munmap(stack, stack_size);
	else
		own_stack = stack;
}

/*
 * Sets ours if the host has no alternate stack. The runtime takes what is set as
 * its own; where ours could not be made, it sets one at the thread's first entry,
 * and later ones go without.
 */
static void lend_stack(struct gdr_guest *g)
{
	stack_t own = { .ss_sp = own_stack, .ss_size = stack_size };

	g->lent = false;
	/* Refused while we run on the host's: a call from one of its handlers. */
	if (sigaltstack(own_stack ? &own : NULL, &g->altstack))
		return;
	g->lent = g->altstack.ss_flags & SS_DISABLE;
	if (!g->lent && own_stack)
		sigaltstack(&g->altstack, NULL);
}

/* Of the kernel, as each call does it: to fill a sigset_t takes far longer. */
static void change_mask(int how, uint64_t set, uint64_t *old)
{
	syscall(SYS_rt_sigprocmask, how, &set, old, KERNEL_SIGSET_BYTES);
}

void gdr_guest_enter(struct gdr_guest *g)
{
	uint64_t stay = gdr_guest_faults() | gdr_signal_bit(SIGCANCEL) | gdr_signal_bit(SIGSETXID);

	change_mask(SIG_BLOCK, ~stay, &g->mask);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &g->cancel);
	if (!own_stack)
		make_stack();
	lend_stack(g);
}

void gdr_guest_leave(const struct gdr_guest *g)
{
	if (g->lent)
		sigaltstack(&g->altstack, NULL);
	pthread_setcancelstate(g->cancel, NULL);
	change_mask(SIG_SETMASK, g->mask, NULL);
}

/*
 * The kernel's struct sigaction, not the C library's: Go asks the kernel
 * directly. Its content is opaque here; 64 bytes hold it on every architecture.
 *
 * Those of the C library's own signals stay as the start leaves them: the library
 * installs a handler with the process's first thread, which may be one of Go's, and
 * Go has it run on the alternate stack.
 */
struct kernel_sigaction {
	unsigned char bytes[64];
};

struct gdr_host_state {
	struct kernel_sigaction act[SIGNALS + 1];
	struct rlimit files;
};

static long kernel_sigaction(int sig, const struct kernel_sigaction *set,
			     struct kernel_sigaction *get)
{
	return syscall(SYS_rt_sigaction, sig, set, get, KERNEL_SIGSET_BYTES);
}

struct gdr_host_state *gdr_host_state_save(void)
{
	struct gdr_host_state *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	for (int sig = 1; sig <= SIGNALS; sig++)
		kernel_sigaction(sig, NULL, &s->act[sig]);
	getrlimit(RLIMIT_NOFILE, &s->files);
	return s;
}

static void restore_dispositions(const struct gdr_host_state *s)
{
	for (int sig = 1; sig <= SIGNALS; sig++) {
		struct kernel_sigaction now;

		if (sig == SIGCANCEL || sig == SIGSETXID)
			continue;
		memset(&now, 0, sizeof(now));
		kernel_sigaction(sig, NULL, &now);
		if (memcmp(&now, &s->act[sig], sizeof(now)))
			kernel_sigaction(sig, &s->act[sig], NULL);
	}
}

/* Go's package os raises the soft limit; a host that uses select(2) needs its own. */
static void restore_file_limit(const struct gdr_host_state *s)
{
	struct rlimit now;

	if (!getrlimit(RLIMIT_NOFILE, &now) && now.rlim_cur != s->files.rlim_cur)
		setrlimit(RLIMIT_NOFILE, &s->files);
}

void gdr_host_state_restore(struct gdr_host_state *s)
{
	restore_dispositions(s);
	restore_file_limit(s);
	free(s);
}
