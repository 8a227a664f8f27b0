// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: strict mode. Test code.
 *
 * Real libcuda faults in a question about memory that another thread frees meanwhile. So the library may ask about
 * bytes that are certainly the caller's, and about its own memory, and nothing else. Here a question about other
 * bytes ends the process, whether they are freed meanwhile or not.
 *
 * Whoever asks is known by the file that the return address lies in.
 */
#include "cuda_sim.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_bool is_strict;

/* What may be asked about: memory that the library has made, or that a test has named. It goes with the memory. */
static struct own {
	struct own *next;
	uint64_t addr, size;
} *owned;

/* A question is each SIM_QUESTION, and the device's side of copies and sets. */
SIM_API void cuda_sim_strict(int on)
{
	atomic_store(&is_strict, on);
}

static void add(uint64_t addr, uint64_t size)
{
	struct own *o = malloc(sizeof(*o));

	if (!o)
		abort();
	pthread_mutex_lock(&notes_lock);
	*o = (struct own){ .next = owned, .addr = addr, .size = size };
	owned = o;
	pthread_mutex_unlock(&notes_lock);
}

void strict_gone(uint64_t addr)
{
	struct own **link = &owned;

	pthread_mutex_lock(&notes_lock);
	while (*link) {
		struct own *o = *link;

		if (o->addr != addr) {
			link = &o->next;
			continue;
		}
		*link = o->next;
		free(o);
	}
	pthread_mutex_unlock(&notes_lock);
}

/* These bytes are the caller's: they may be asked about. size 0: those that begin at addr are so no longer. */
SIM_API void cuda_sim_own(uint64_t addr, uint64_t size)
{
	if (size)
		add(addr, size);
	else
		strict_gone(addr);
}

static bool is_own(uint64_t addr, uint64_t size)
{
	bool found = false;

	pthread_mutex_lock(&notes_lock);
	for (const struct own *o = owned; o && !found; o = o->next)
		found = addr >= o->addr && addr - o->addr < o->size && size <= o->size - (addr - o->addr);
	pthread_mutex_unlock(&notes_lock);
	return found;
}

static bool is_checked(const void *caller)
{
	const char *name;
	Dl_info info;

	if (!dladdr(caller, &info) || !info.dli_fname)
		return false;
	name = strrchr(info.dli_fname, '/');
	return strstr(name ? name : info.dli_fname, "libgdrapi");
}

/* A question about the first size bytes at addr. */
void strict_ask(const char *name, uint64_t addr, uint64_t size, const void *caller)
{
	if (!atomic_load(&is_strict) || !size || !is_checked(caller) || is_own(addr, size))
		return;
	fprintf(stderr, "simulated libcuda: strict: %s asks about %#" PRIx64 "\n", name, addr);
	abort();
}

/* One side of a copy: the host's are not asked about. */
void strict_copy(const char *name, uint64_t addr, uint64_t size, const void *caller)
{
	if (va_is_device(addr, size))
		strict_ask(name, addr, size, caller);
}

/* Memory was made; it is the library's own if the library has called. */
void strict_made(uint64_t addr, uint64_t size, const void *caller)
{
	if (atomic_load(&is_strict) && is_checked(caller))
		add(addr, size);
}
