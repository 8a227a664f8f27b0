/* SPDX-License-Identifier: MIT */
/*
 * signals.h - a thread's signals, held off for a while.
 */
#ifndef GDR_SIGNALS_H
#define GDR_SIGNALS_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * The C library's own signal. By it setuid(2) and the like reach every thread, and they
 * wait.
 */
#define SIGSETXID 33

static inline uint64_t gdr_signal_bit(int sig)
{
	return 1ull << (sig - 1);
}

/*
 * The signals of a fault in the running code. If one is held off, it kills the process
 * without a handler.
 */
static inline uint64_t gdr_faults(void)
{
	return gdr_signal_bit(SIGSEGV) | gdr_signal_bit(SIGBUS) | gdr_signal_bit(SIGFPE) |
	       gdr_signal_bit(SIGILL) | gdr_signal_bit(SIGTRAP) | gdr_signal_bit(SIGABRT) |
	       gdr_signal_bit(SIGSYS);
}

/*
 * What stays open on a host's thread while it runs our code, and Go's. Stacks there are
 * large enough for a handler.
 */
static inline uint64_t gdr_open_inside(void)
{
	return gdr_faults() | gdr_signal_bit(SIGSETXID);
}

/*
 * What is open on a thread of ours. A seccomp filter of the host's, which all threads
 * share, may send SIGSYS for a system call. All else would be another thread's.
 */
static inline uint64_t gdr_open_on_ours(void)
{
	return gdr_signal_bit(SIGSYS) | gdr_signal_bit(SIGSETXID);
}

#define KERNEL_SIGSET_BYTES 8

/*
 * Holds off all signals but those of open. It calls the kernel itself, as the C library
 * never holds off its own two signals. held is what was not held off before, in the
 * kernel's form.
 */
static inline void gdr_hold_signals(uint64_t open, uint64_t *held)
{
	uint64_t set = ~open, was;

	*held = syscall(SYS_rt_sigprocmask, SIG_BLOCK, &set, &was, KERNEL_SIGSET_BYTES) ? 0 : set & ~was;
}

/*
 * It does not put the old mask back: where a handler of SIGSYS made the call of
 * gdr_hold_signals, that mask is the handler's.
 */
static inline void gdr_release_signals(uint64_t held)
{
	if (held)
		syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &held, NULL, KERNEL_SIGSET_BYTES);
}

#endif
