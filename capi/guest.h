/* SPDX-License-Identifier: MIT */
/*
 * guest.h - Go code as a guest on the host's threads.
 */
#ifndef GDR_GUEST_H
#define GDR_GUEST_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/*
 * What a host thread had before it entered Go.
 *
 * Go code runs on small stacks that grow by being copied. A signal handler of
 * the host that is not on an alternate stack would overflow one, so no signal
 * that can wait is delivered while a thread is inside (start.c's threads: the
 * Go runtime's own, inherit the same mask). The C library's signal 33, by which
 * setuid(2) and its like reach every thread, cannot wait, and neither can a fault:
 * for these the thread has an alternate stack inside, its host's or one of ours.
 */
struct gdr_guest {
	uint64_t mask;	/* as the kernel has it */
	stack_t altstack;
	bool lent;	/* altstack is none, and to be put back */
	int cancel;
};

static inline uint64_t gdr_signal_bit(int sig)
{
	return 1ull << (sig - 1);
}

/* The signals that cannot wait: blocked, a fault kills the process unheard. */
static inline uint64_t gdr_guest_faults(void)
{
	return gdr_signal_bit(SIGSEGV) | gdr_signal_bit(SIGBUS) | gdr_signal_bit(SIGFPE) |
	       gdr_signal_bit(SIGILL) | gdr_signal_bit(SIGTRAP) | gdr_signal_bit(SIGABRT) |
	       gdr_signal_bit(SIGSYS);
}

void gdr_guest_enter(struct gdr_guest *g);
void gdr_guest_leave(const struct gdr_guest *g);

/*
 * What starting the runtime changes in the process, to be put back: every
 * signal's disposition, and the limit of open files. NULL: no memory.
 */
struct gdr_host_state;
struct gdr_host_state *gdr_host_state_save(void);
void gdr_host_state_restore(struct gdr_host_state *s);

#pragma GCC visibility pop

#endif
