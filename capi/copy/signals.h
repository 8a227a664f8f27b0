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

#define KERNEL_SIGSET_BYTES 8

/*
 * Holds off all signals but those of open. It calls the kernel itself, as the C library
 * never holds off its own two signals. mask is in the kernel's form.
 */
static inline void gdr_hold_signals(uint64_t open, uint64_t *mask)
{
	uint64_t set = ~open;

	syscall(SYS_rt_sigprocmask, SIG_BLOCK, &set, mask, KERNEL_SIGSET_BYTES);
}

/* Lets signals come that this thread holds off. */
static inline void gdr_open_signals(uint64_t open)
{
	syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &open, NULL, KERNEL_SIGSET_BYTES);
}

static inline void gdr_release_signals(uint64_t mask)
{
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, KERNEL_SIGSET_BYTES);
}

#endif
