/* SPDX-License-Identifier: MIT */
/*
 * guest.h - the door: Go code and our locks on the host's threads.
 */
#ifndef GDR_GUEST_H
#define GDR_GUEST_H

#include <stddef.h>
#include <stdint.h>

#include "copy/signals.h"

#pragma GCC visibility push(hidden)

/*
 * The state of a host thread before it entered.
 *
 * 1. All signals are held off inside but SIGSETXID, SIGSEGV and SIGBUS. Go's stacks are
 *    small and grow by being copied, so a handler of the host would overflow one.
 * 2. SIGSETXID stays open because setuid(2) in another thread waits for it.
 * 3. SIGSEGV and SIGBUS stay open because a driver's code may fault, and the host may
 *    handle that. Go gives the thread an alternate stack for them if the host has set
 *    none.
 * 4. The thread cannot be cancelled inside.
 * 5. errno is the same afterwards.
 */
struct gdr_guest {
	uint64_t mask;
	int cancel;
	int error;
};

void gdr_guest_enter(struct gdr_guest *g);
void gdr_guest_leave(const struct gdr_guest *g);

/*
 * A call of the core, or of what starts it: the only way in. Whoever takes a lock of ours
 * is inside. So nobody ends, or leaves by siglongjmp, with a lock held.
 */
#define INSIDE(call) ({				\
	struct gdr_guest guest_;			\
	int rc_;					\
							\
	gdr_guest_enter(&guest_);			\
	rc_ = (call);					\
	gdr_guest_leave(&guest_);			\
	rc_;						\
})

/*
 * Anonymous memory of the library's own, as mmap gives it. It is not locked: if the host
 * locks all future memory (mlockall), the kernel would fill all that is reserved. No
 * child inherits it.
 */
void *gdr_map_memory(void *addr, size_t len, int prot, int flags);

#pragma GCC visibility pop

#endif
