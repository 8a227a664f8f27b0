// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "reserve.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"

#define ARENA (64l << 20)	/* of address space; Go's heap grows upwards through them */
#define AHEAD (8l << 20)
#define POOL (1ul << 20)	/* for Go's tables, which lie elsewhere and take some KiB each */

/* Changed under lock. heap <= ready <= end, and given <= end. NULL before the first arena. */
static pthread_mutex_t lock;
static _Atomic(char *) heap;	/* Go's heap ends here */
static _Atomic(char *) ready;	/* from heap to here one can write */
static char *first, *given, *end;	/* Go's arenas are first to given; one more may be reserved, to end */
static char *pool;
static _Atomic size_t pool_left;	/* taken from its end */

void *gdr_map_memory(void *addr, size_t len, int prot, int flags)
{
	void *mem = (void *)syscall(SYS_mmap, addr, len, PROT_NONE, flags, -1, 0l);
	int rc;

	if (mem == MAP_FAILED)
		return mem;
	syscall(SYS_munlock, mem, len);
	syscall(SYS_madvise, mem, len, MADV_DONTFORK);
	if (prot == PROT_NONE || !syscall(SYS_mprotect, mem, len, prot))
		return mem;
	rc = errno;
	syscall(SYS_munmap, mem, len);
	errno = rc;
	return MAP_FAILED;
}

/* What Go has taken from the old pool stays where it is. */
static bool fill_pool(void)
{
	char *mem;

	if (pool_left >= POOL / 2)
		return true;
	mem = gdr_map_memory(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
	if (mem == MAP_FAILED)
		return false;
	if (pool_left)
		syscall(SYS_munmap, pool, pool_left);
	pool = mem;
	pool_left = POOL;
	return true;
}

static bool in_arenas(const void *at)
{
	return (const char *)at >= first && (const char *)at < end;
}

/*
 * An ancestor's arenas, unless this thread may stand on a stack there: a handler of the host's forked
 * in the middle of Go code.
 */
static void drop_arenas(void)
{
	stack_t other = { .ss_flags = SS_DISABLE };

	sigaltstack(NULL, &other);
	if (syscall(SYS_gettid) == syscall(SYS_getpid) && !in_arenas(&other) &&
	    (other.ss_flags & SS_DISABLE || !in_arenas(other.ss_sp)))
		syscall(SYS_munmap, first, end - first);
}

int gdr_reserve_start(void)
{
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	if (first)
		drop_arenas();
	heap = ready = first = given = end = NULL;
	pool_left = 0;
	return fill_pool() ? 0 : ENOMEM;
}

/* Children inherit arenas: there are the stacks on which a handler of the host's may fork. */
static char *map_arena(char *at, int flags)
{
	char *mem = gdr_map_memory(at, ARENA, PROT_NONE, flags);

	if (mem != MAP_FAILED)
		syscall(SYS_madvise, mem, ARENA, MADV_DOFORK);
	return mem;
}

/* Where something of the host's lies behind the heap, Go takes its next arena elsewhere. */
static bool reserve_arena(void)
{
	char *mem = map_arena(end, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);

	if (mem == end)
		end += ARENA;
	else if (mem != MAP_FAILED)
		syscall(SYS_munmap, mem, ARENA);
	return mem != MAP_FAILED;
}

static bool fill(void)
{
	char *to;

	if (end == given && end - heap < AHEAD && !reserve_arena())
		return false;
	to = end - heap < AHEAD ? end : heap + AHEAD;
	if (to > ready && syscall(SYS_mprotect, ready, to - ready, PROT_READ | PROT_WRITE))
		return false;
	ready = to > ready ? to : ready;
	return fill_pool();
}

int gdr_reserve_check(void)
{
	bool full = !heap || (ready - heap >= AHEAD && pool_left >= POOL / 2);

	if (!full) {
		pthread_mutex_lock(&lock);
		full = fill();
		pthread_mutex_unlock(&lock);
	}
	if (!full)
		gdr_log(GDR_LOG_ERROR, "no more memory for the library's own use: raise the limit that is reached (ulimit -v, -d, vm.max_map_count), or release buffers (errno %d)",
			ENOMEM);
	return full ? 0 : ENOMEM;
}

static char *take_from_pool(size_t len)
{
	size_t page = sysconf(_SC_PAGESIZE);

	len = (len + page - 1) & -page;
	if (len > pool_left)
		return MAP_FAILED;
	pool_left -= len;
	return pool + pool_left;
}

/* Go has reserved this, and has not written there. */
static void *make_writable(char *addr, size_t len, int prot)
{
	bool is_heap = addr >= heap && addr + len <= given;
	char *from;

	if ((!is_heap || addr + len > ready) && syscall(SYS_mprotect, addr, len, prot)) {
		from = take_from_pool(len);
		if (from == MAP_FAILED || syscall(SYS_mremap, from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, addr) < 0)
			return MAP_FAILED;
	}
	if (is_heap)
		heap = addr + len;
	if (is_heap && ready < heap)
		ready = heap;
	return addr;
}

static void *give(char *addr, size_t len, int prot, int flags)
{
	bool is_arena = prot == PROT_NONE && len == ARENA && addr;
	void *mem;

	if (flags & MAP_FIXED && prot != PROT_NONE)
		return make_writable(addr, len, prot);
	if (is_arena)
		mem = addr == given && given < end ? addr : map_arena(addr, flags);
	else
		mem = gdr_map_memory(addr, len, prot, flags);
	if (is_arena && mem == addr) {
		if (addr != given) {
			first = addr;
			heap = ready = addr;
		}
		given = end = addr + len;
	}
	return mem == MAP_FAILED && prot != PROT_NONE ? take_from_pool(len) : mem;
}

void *gdr_reserve_mmap(void *addr, size_t len, int prot, int flags)
{
	void *mem;

	pthread_mutex_lock(&lock);
	mem = give(addr, len, prot, flags);
	pthread_mutex_unlock(&lock);
	return mem;
}
