/* SPDX-License-Identifier: MIT */
/*
 * reserve.h - memory for Go's allocator, which ends the process where it gets none.
 *
 * A limit may be reached after the start: RLIMIT_AS, RLIMIT_DATA, the mappings of a process,
 * a filter that refuses mmap. So what callers may need is mapped before they enter, and
 * what has been used is mapped again. Where that fails, the call answers ENOMEM instead.
 */
#ifndef GDR_RESERVE_H
#define GDR_RESERVE_H

#include <stdbool.h>
#include <stddef.h>

#pragma GCC visibility push(hidden)

/* The runtime starts. What an ancestor's had is not here. */
void gdr_reserve_start(void);

/*
 * A host's thread enters, where the runtime runs. Returns 0, or ENOMEM if it is not needed and the reserve cannot
 * be filled; a call that gives back what is pinned is needed. After 0 gdr_reserve_leave
 * follows.
 */
int gdr_reserve_enter(bool needed);
void gdr_reserve_leave(void);

/* mmap, for Go's runtime. */
void *gdr_reserve_mmap(void *addr, size_t len, int prot, int flags);

#pragma GCC visibility pop

#endif
