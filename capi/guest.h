/* SPDX-License-Identifier: MIT */
/*
 * guest.h - Go code as a guest on the host's threads.
 */
#ifndef GDR_GUEST_H
#define GDR_GUEST_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#pragma GCC visibility push(hidden)

/* The C library's own: setuid(2) and its like reach every thread by it, and wait. */
#define SIGSETXID 33

static inline uint64_t gdr_signal_bit(int sig)
{
	return 1ull << (sig - 1);
}

/* The signals of a fault in the code that runs: held off, one kills the process unheard. */
static inline uint64_t gdr_faults(void)
{
	return gdr_signal_bit(SIGSEGV) | gdr_signal_bit(SIGBUS) | gdr_signal_bit(SIGFPE) |
	       gdr_signal_bit(SIGILL) | gdr_signal_bit(SIGTRAP) | gdr_signal_bit(SIGABRT) |
	       gdr_signal_bit(SIGSYS);
}

#define KERNEL_SIGSET_BYTES 8

/*
 * Holds off all signals but those of open. The kernel is asked, for the C library
 * would leave its own two signals as they are; mask is as the kernel has it.
 */
static inline void gdr_hold_signals(uint64_t open, uint64_t *mask)
{
	uint64_t set = ~open;

	syscall(SYS_rt_sigprocmask, SIG_BLOCK, &set, mask, KERNEL_SIGSET_BYTES);
}

static inline void gdr_release_signals(uint64_t mask)
{
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, KERNEL_SIGSET_BYTES);
}

/*
 * What a host thread had before it entered Go.
 *
 * Go code runs on small stacks that grow by being copied. A handler of the host's
 * would overflow one, so no signal is delivered while a thread is inside, but for
 * three. SIGSETXID cannot wait, and SIGSEGV and SIGBUS are those of a fault in a
 * driver, which a host may want to hear of; Go gives the thread an alternate
 * stack for them where the host has set none.
 *
 * Nor does a thread end inside, and errno is not changed.
 */
struct gdr_guest {
	uint64_t mask;
	int cancel;
	int error;
};

void gdr_guest_enter(struct gdr_guest *g);
void gdr_guest_leave(const struct gdr_guest *g);

/*
 * Memory of the library's own, as mmap gives it, anonymous. It is not locked, as
 * what is reserved would be filled where the host has all future memory locked
 * (mlockall), and no child inherits it.
 */
void *gdr_map_memory(void *addr, size_t len, int prot, int flags);

#pragma GCC visibility pop

#endif
