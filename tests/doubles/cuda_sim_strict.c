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

enum { OFF, OF_LIBRARY, OF_ALL };

static atomic_int mode;

/* What may be asked about. This lock is taken without the other one, or after it. */
pthread_mutex_t strict_lock = PTHREAD_MUTEX_INITIALIZER;
static struct own {
	struct own *next;
	uint64_t addr, size;
	bool made;	/* by the library: it goes with its memory; else a test has named it */
} *owned;

__attribute__((constructor)) static void at_load(void)
{
	atomic_store(&mode, (int)env_number("CUDA_SIM_STRICT", OFF, OF_ALL));
}

/* 0: off. 1: for calls of the library. 2: for all calls, of a test that has the library in itself. */
SIM_API void cuda_sim_strict(int on)
{
	atomic_store(&mode, on);
}

static void add(uint64_t addr, uint64_t size, bool made)
{
	struct own *o = malloc(sizeof(*o));

	if (!o)
		abort();
	pthread_mutex_lock(&strict_lock);
	*o = (struct own){ .next = owned, .addr = addr, .size = size, .made = made };
	owned = o;
	pthread_mutex_unlock(&strict_lock);
}

static void drop(uint64_t addr, bool made)
{
	struct own **link = &owned;

	pthread_mutex_lock(&strict_lock);
	while (*link) {
		struct own *o = *link;

		if (o->addr != addr || o->made != made) {
			link = &o->next;
			continue;
		}
		*link = o->next;
		free(o);
	}
	pthread_mutex_unlock(&strict_lock);
}

/* These bytes are the caller's: they may be asked about. size 0: those that begin at addr are so no longer. */
SIM_API void cuda_sim_own(uint64_t addr, uint64_t size)
{
	if (size)
		add(addr, size, false);
	else
		drop(addr, false);
}

static bool is_own(uint64_t addr, uint64_t size)
{
	bool found = false;

	pthread_mutex_lock(&strict_lock);
	for (const struct own *o = owned; o && !found; o = o->next)
		found = addr >= o->addr && addr - o->addr < o->size && size <= o->size - (addr - o->addr);
	pthread_mutex_unlock(&strict_lock);
	return found;
}

static bool is_checked(const void *caller)
{
	int m = atomic_load(&mode);
	const char *name;
	Dl_info info;

	if (m != OF_LIBRARY)
		return m == OF_ALL;
	if (!dladdr(caller, &info) || !info.dli_fname)
		return false;
	name = strrchr(info.dli_fname, '/');
	return strstr(name ? name : info.dli_fname, "libgdrapi");
}

/* A question about the first size bytes at addr. */
void strict_ask(const char *name, uint64_t addr, uint64_t size, const void *caller)
{
	if (!atomic_load(&mode) || !size || !is_checked(caller) || is_own(addr, size))
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
	if (atomic_load(&mode) && is_checked(caller))
		add(addr, size, true);
}

void strict_gone(uint64_t addr)
{
	drop(addr, true);
}
