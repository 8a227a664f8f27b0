// SPDX-License-Identifier: MIT
#include "guest.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
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
 * directly, and touches signals 32 and 33, which the C library hides. Its
 * content is opaque here; 64 bytes hold it on every architecture.
 */
struct kernel_sigaction {
	unsigned char bytes[64];
};

#define SIGNALS 64
#define KERNEL_SIGSET_BYTES 8

struct gdr_dispositions {
	struct kernel_sigaction act[SIGNALS + 1];
};

static long kernel_sigaction(int sig, const struct kernel_sigaction *set,
			     struct kernel_sigaction *get)
{
	return syscall(SYS_rt_sigaction, sig, set, get, KERNEL_SIGSET_BYTES);
}

struct gdr_dispositions *gdr_dispositions_save(void)
{
	struct gdr_dispositions *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	for (int sig = 1; sig <= SIGNALS; sig++)
		kernel_sigaction(sig, NULL, &d->act[sig]);
	return d;
}

void gdr_dispositions_restore(struct gdr_dispositions *d)
{
	for (int sig = 1; sig <= SIGNALS; sig++) {
		struct kernel_sigaction now;

		memset(&now, 0, sizeof(now));
		kernel_sigaction(sig, NULL, &now);
		if (memcmp(&now, &d->act[sig], sizeof(now)))
			kernel_sigaction(sig, &d->act[sig], NULL);
	}
	free(d);
}
