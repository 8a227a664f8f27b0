/* SPDX-License-Identifier: MIT */
/*
 * reserve.h - memory for Go's allocator, which ends the process where it gets none.
 *
 * A limit may be reached after the start: RLIMIT_AS, RLIMIT_DATA, the mappings of a process,
 * a filter that refuses mmap. So 8 MiB behind Go's heap are writable before they are asked
 * for, and a pool of 1 MiB serves its tables where the kernel refuses. Nothing of it is
 * written to before Go uses it.
 */
#ifndef GDR_RESERVE_H
#define GDR_RESERVE_H

#include <stdbool.h>
#include <stddef.h>

#pragma GCC visibility push(hidden)

/* The runtime starts. Returns 0 or ENOMEM. What an ancestor had goes, unless this thread stands on it. */
int gdr_reserve_start(void);

/*
 * Before a call that takes something, where the runtime runs. Returns 0, or ENOMEM where the
 * 8 MiB or the pool cannot be had again. Calls that give something back need not ask.
 */
int gdr_reserve_check(void);

/* mmap, for Go's runtime. */
void *gdr_reserve_mmap(void *addr, size_t len, int prot, int flags);

/*
 * Anonymous memory of the library's own, as mmap gives it. It is not locked: if the host
 * locks all future memory (mlockall), the kernel would fill all that is reserved. No
 * child inherits it. It is made by system calls: no hook of the host's runs.
 */
void *gdr_map_memory(void *addr, size_t len, int prot, int flags);

#pragma GCC visibility pop

#endif
