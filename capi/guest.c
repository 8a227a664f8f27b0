// SPDX-License-Identifier: MIT
#include "guest.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The Go core that this thread was inside last. */
static __thread const void *entered __attribute__((tls_model("initial-exec")));

void gdr_guest_faults(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGSEGV);
	sigaddset(set, SIGBUS);
	sigaddset(set, SIGFPE);
	sigaddset(set, SIGILL);
	sigaddset(set, SIGTRAP);
	sigaddset(set, SIGABRT);
	sigaddset(set, SIGSYS);
}

void gdr_guest_enter(struct gdr_guest *g, const void *core)
{
	sigset_t block, faults;

	sigfillset(&block);
	gdr_guest_faults(&faults);
	for (int sig = 1; sig < NSIG; sig++)
		if (sigismember(&faults, sig) == 1)
			sigdelset(&block, sig);
	pthread_sigmask(SIG_BLOCK, &block, &g->mask);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &g->cancel);
	g->first = entered != core;
	if (g->first) {
		entered = core;
		sigaltstack(NULL, &g->altstack);
	}
}

void gdr_guest_leave(const struct gdr_guest *g)
{
	/* Refused only while we run on that very stack, which Go then kept. */
	if (g->first)
		sigaltstack(&g->altstack, NULL);
	pthread_setcancelstate(g->cancel, NULL);
	pthread_sigmask(SIG_SETMASK, &g->mask, NULL);
}

/*
 * The kernel's struct sigaction, not the C library's: Go asks the kernel
 * directly. Its content is opaque here; 64 bytes hold it on every architecture.
 *
 * Signals 32 and 33 are the C library's own. They stay as the start leaves them:
 * the library installs a handler with the process's first thread, which may be
 * one of Go's, and Go has it run on the alternate stack.
 */
struct kernel_sigaction {
	unsigned char bytes[64];
};

#define SIGNALS 64
#define SIGCANCEL 32
#define SIGSETXID 33
#define KERNEL_SIGSET_BYTES 8

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
