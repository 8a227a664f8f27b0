// SPDX-License-Identifier: MIT
/*
 * reserve.c - what Go's allocator asks for, and what is kept for it:
 *
 * 1. Its heap grows upwards by pieces of 4 MiB, through arenas of 64 MiB of address space.
 *    What the heap takes next is writable ahead of it, and the next arena is reserved.
 * 2. Its own tables take some KiB each, elsewhere: of a small pool.
 *
 * Nothing of it is written to before Go uses it.
 */
#define _GNU_SOURCE
#include "reserve.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest.h"
#include "log.h"

#define PIECE (4ul << 20)
#define ARENA (64ul << 20)
#define POOL (2ul << 20)
#define POOL_LEAST (1ul << 20)

/* What one caller may take: two stacks of 128 KiB if its M is a new one, and some heap. */
#define CALLER (320ul << 10)

/*
 * Under lock. heap <= ready <= end, and given <= end. All four are NULL before the first
 * arena. No mapping is made under the lock: the C library's mmap may be a host's.
 */
static struct {
	pthread_mutex_t lock;
	char *heap;		/* Go's heap ends here */
	char *ready;		/* from heap to here one can write */
	char *given;		/* Go's arenas end here */
	char *end;		/* given, or an arena behind it that is reserved */
	char *pool;
	size_t pool_left;	/* taken from its end */
	unsigned int taken;	/* how often something was */
} kept = { .lock = PTHREAD_MUTEX_INITIALIZER };

static _Atomic int inside;
static _Atomic int room;	/* for so many callers it is full; 0: something was taken */

void gdr_reserve_start(void)
{
	kept = (typeof(kept)){ .lock = PTHREAD_MUTEX_INITIALIZER };
	atomic_store(&inside, 0);
	atomic_store(&room, 0);
}

/* Under lock. */
static void note_taken(void)
{
	kept.taken++;
	atomic_store(&room, 0);
}

/* Where something of the host's lies, Go takes an arena elsewhere, and none is kept. */
static bool fill_arena(void)
{
	char *at, *mem;

	pthread_mutex_lock(&kept.lock);
	at = kept.end == kept.given ? kept.end : NULL;
	pthread_mutex_unlock(&kept.lock);
	if (!at)
		return true;
	mem = gdr_map_memory(at, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
	if (mem == MAP_FAILED)
		return false;
	pthread_mutex_lock(&kept.lock);
	if (mem == at && at == kept.end) {
		kept.end += ARENA;
		mem = NULL;
	}
	pthread_mutex_unlock(&kept.lock);
	if (mem)
		munmap(mem, ARENA);
	return true;
}

/* One piece stays when the callers have taken theirs. */
static bool fill_heap(int callers)
{
	size_t want = PIECE + (callers * CALLER + PIECE - 1) / PIECE * PIECE;
	bool done = true;
	char *to;

	pthread_mutex_lock(&kept.lock);
	to = want < (size_t)(kept.end - kept.heap) ? kept.heap + want : kept.end;
	if (to > kept.ready) {
		done = !syscall(SYS_mprotect, kept.ready, to - kept.ready, PROT_READ | PROT_WRITE);
		if (done)
			kept.ready = to;
	}
	pthread_mutex_unlock(&kept.lock);
	return done;
}

static bool fill_pool(void)
{
	char *mem, *old;
	size_t left;

	pthread_mutex_lock(&kept.lock);
	left = kept.pool_left;
	pthread_mutex_unlock(&kept.lock);
	if (left >= POOL_LEAST)
		return true;
	mem = gdr_map_memory(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
	if (mem == MAP_FAILED)
		return false;
	pthread_mutex_lock(&kept.lock);
	old = kept.pool;
	left = kept.pool_left;
	kept.pool = mem;
	kept.pool_left = POOL;
	pthread_mutex_unlock(&kept.lock);
	if (left)
		munmap(old, left);
	return true;
}

static bool fill(int callers)
{
	unsigned int taken;
	bool done;

	pthread_mutex_lock(&kept.lock);
	taken = kept.taken;
	pthread_mutex_unlock(&kept.lock);
	done = fill_arena() && fill_heap(callers) && fill_pool();
	pthread_mutex_lock(&kept.lock);
	if (done && taken == kept.taken)
		atomic_store(&room, callers);
	pthread_mutex_unlock(&kept.lock);
	return done;
}

int gdr_reserve_enter(bool needed)
{
	int callers = atomic_fetch_add(&inside, 1) + 1;

	if (callers <= atomic_load(&room) || fill(callers) || needed)
		return 0;
	gdr_reserve_leave();
	gdr_log(GDR_LOG_ERROR, "no more memory for the library's own use: raise the limit that is reached (ulimit -v, -d, vm.max_map_count), or release buffers (errno %d)",
		ENOMEM);
	return ENOMEM;
}

/* In a child of fork() a thread may leave that has not entered since the start. */
void gdr_reserve_leave(void)
{
	int n = atomic_load(&inside);

	while (n > 0 && !atomic_compare_exchange_weak(&inside, &n, n - 1))
		;
}

/* Under lock. NULL: too little is left. */
static char *take_from_pool(size_t len)
{
	size_t page = sysconf(_SC_PAGESIZE);

	len = (len + page - 1) & -page;
	if (len > kept.pool_left)
		return NULL;
	note_taken();
	return kept.pool + (kept.pool_left -= len);
}

/*
 * Go has reserved what it asks for, and has not written there. So it can be made writable
 * instead of being mapped anew, which what is kept of the heap is already, or be replaced by
 * memory of the pool. Under lock.
 */
static bool make_writable(char *addr, size_t len, int prot)
{
	char *from;

	if (!syscall(SYS_mprotect, addr, len, prot))
		return true;
	from = take_from_pool(len);
	return from && syscall(SYS_mremap, from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, addr) >= 0;
}

/* The heap may begin in the middle of its first arena. */
static bool grow(char *addr, size_t len, int prot)
{
	bool is_heap, done;

	pthread_mutex_lock(&kept.lock);
	is_heap = addr >= kept.heap && addr + len <= kept.given;
	done = make_writable(addr, len, prot);
	if (done && is_heap) {
		note_taken();
		kept.heap = addr + len;
		if (kept.ready < kept.heap)
			kept.ready = kept.heap;
	}
	pthread_mutex_unlock(&kept.lock);
	return done;
}

/* Whether the arena that Go asks for is the one that is kept. */
static bool take_arena(char *addr, size_t len)
{
	bool done;

	pthread_mutex_lock(&kept.lock);
	done = addr == kept.given && len == (size_t)(kept.end - addr);
	if (done) {
		note_taken();
		kept.given = kept.end;
	}
	pthread_mutex_unlock(&kept.lock);
	return done;
}

/* The kernel gave Go an arena, which may be elsewhere than the one before. */
static void note_arena(char *addr, size_t len)
{
	char *unused;
	size_t left;

	pthread_mutex_lock(&kept.lock);
	unused = kept.given;
	left = kept.end - kept.given;
	if (addr != kept.given)
		kept.heap = kept.ready = addr;
	kept.given = kept.end = addr + len;
	note_taken();
	pthread_mutex_unlock(&kept.lock);
	if (left)
		munmap(unused, left);
}

void *gdr_reserve_mmap(void *addr, size_t len, int prot, int flags)
{
	void *mem;

	if (flags & MAP_FIXED && prot != PROT_NONE)
		return grow(addr, len, prot) ? addr : MAP_FAILED;
	if (prot == PROT_NONE && take_arena(addr, len))
		return addr;
	mem = gdr_map_memory(addr, len, prot, flags);
	if (mem == addr && prot == PROT_NONE && len == ARENA)
		note_arena(mem, len);
	if (mem == MAP_FAILED && prot != PROT_NONE) {
		pthread_mutex_lock(&kept.lock);
		mem = take_from_pool(len);
		pthread_mutex_unlock(&kept.lock);
		mem = mem ? mem : MAP_FAILED;
	}
	return mem;
}
