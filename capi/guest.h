/* SPDX-License-Identifier: MIT */
/*
 * guest.h - Go code as a guest on the host's threads.
 */
#ifndef GDR_GUEST_H
#define GDR_GUEST_H

#include <stddef.h>
#include <stdint.h>

#include "copy/signals.h"

#pragma GCC visibility push(hidden)

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

/* A call into the core, on a thread prepared for it. */
#define IN_CORE(call) ({				\
	struct gdr_guest guest_;			\
	int rc_;					\
							\
	gdr_guest_enter(&guest_);			\
	rc_ = (call);					\
	gdr_guest_leave(&guest_);			\
	rc_;						\
})

/*
 * Memory of the library's own, as mmap gives it, anonymous. It is not locked, as
 * what is reserved would be filled where the host has all future memory locked
 * (mlockall), and no child inherits it.
 */
void *gdr_map_memory(void *addr, size_t len, int prot, int flags);

#pragma GCC visibility pop

#endif
