/* SPDX-License-Identifier: MIT */
/*
 * enter.h - the door: Go code and our locks on the host's threads; see INSIDE in front.h.
 */
#ifndef GDR_GUEST_H
#define GDR_GUEST_H

#include <stdint.h>

#include "float.h"
#include "signals.h"

#pragma GCC visibility push(hidden)

/*
 * The state of a host thread before it entered.
 *
 * 1. All signals are held off inside but SIGSETXID and those of faults: no handler of the
 *    host runs in the middle of our work, or leaves it by siglongjmp.
 * 2. SIGSETXID stays open because setuid(2) in another thread waits for it.
 * 3. The faults stay open because a driver's code, or a filter of system calls (seccomp's
 *    SECCOMP_RET_TRAP, Syscall User Dispatch), may raise one. A forced signal that is
 *    held off kills the process. The handler runs on Go's stack, which is 128 KiB here, or
 *    with SA_ONSTACK on the host's alternate stack. Where the host has none, Go gives the
 *    thread one of 128 KiB.
 * 4. The thread cannot be cancelled inside.
 * 5. Floating-point numbers are as a program finds them at its start, and as they were
 *    afterwards.
 * 6. errno is the same afterwards.
 */
struct gdr_guest {
	uint64_t held;
	int cancel;
	int error;
	struct gdr_float floats;
};

void gdr_guest_enter(struct gdr_guest *g);
void gdr_guest_leave(const struct gdr_guest *g);

#pragma GCC visibility pop

#endif
