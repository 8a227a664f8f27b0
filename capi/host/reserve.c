// SPDX-License-Identifier: MIT
/*
 * reserve.c - what Go's allocator asks for, and what is kept for it:
 *
 * 1. A piece of an arena, 4 MiB, to write to. It makes the arena's pages writable. Where the
 *    kernel refuses, a piece of ours is moved to their place.
 * 2. Memory for its own tables, some KiB: of a small pool.
 * 3. An arena, 64 MiB of address space, where the last one ends: the next one is reserved
 *    ahead, at that address.
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
#define PIECES_MAX 64
#define POOL (2ul << 20)
#define POOL_LEAST (1ul << 20)
#define ARENA (64ul << 20)

/* What one caller may take: two stacks of 128 KiB if its M is a new one, and some heap. */
#define CALLER (320ul << 10)

/* Under lock. No mapping is made under it: the C library's mmap may be a host's. */
static struct {
	pthread_mutex_t lock;
	char *pieces[PIECES_MAX];
	unsigned int count;
	char *pool;
	size_t pool_left;	/* taken from its end */
	char *arena;		/* the next one, or NULL */
	char *arena_at;		/* where it must be; NULL before the first */
} kept = { .lock = PTHREAD_MUTEX_INITIALIZER };

static _Atomic bool runs;
static _Atomic bool whole;	/* nothing has been taken since it was filled */
static _Atomic int inside;
static _Atomic int room;	/* for so many callers it was filled */

void gdr_reserve_start(void)
{
	kept = (typeof(kept)){ .lock = PTHREAD_MUTEX_INITIALIZER };
	atomic_store(&whole, false);
	atomic_store(&inside, 0);
	atomic_store(&room, 0);
	atomic_store(&runs, true);
}

/* The first piece stays when a caller leaves. */
static unsigned int pieces_for(int callers)
{
	unsigned long n = 1 + (callers * CALLER + PIECE - 1) / PIECE;

	return n < PIECES_MAX ? n : PIECES_MAX;
}

static char *map_writable(size_t len)
{
	char *mem = gdr_map_memory(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);

	return mem == MAP_FAILED ? NULL : mem;
}

static int fill_pieces(unsigned int want)
{
	for (;;) {
		bool full;
		char *mem;

		pthread_mutex_lock(&kept.lock);
		full = kept.count >= want;
		pthread_mutex_unlock(&kept.lock);
		if (full)
			return 0;
		mem = map_writable(PIECE);
		if (!mem)
			return ENOMEM;
		pthread_mutex_lock(&kept.lock);
		full = kept.count >= want;
		if (!full)
			kept.pieces[kept.count++] = mem;
		pthread_mutex_unlock(&kept.lock);
		if (full)
			munmap(mem, PIECE);
	}
}

static int fill_pool(void)
{
	char *mem, *old;
	size_t left;
	bool low;

	pthread_mutex_lock(&kept.lock);
	low = kept.pool_left < POOL_LEAST;
	pthread_mutex_unlock(&kept.lock);
	if (!low)
		return 0;
	mem = map_writable(POOL);
	if (!mem)
		return ENOMEM;
	pthread_mutex_lock(&kept.lock);
	old = kept.pool;
	left = kept.pool_left;
	kept.pool = mem;
	kept.pool_left = POOL;
	pthread_mutex_unlock(&kept.lock);
	if (left)
		munmap(old, left);
	return 0;
}

/* Where something of the host's lies, Go takes an arena elsewhere, and none is kept. */
static int fill_arena(void)
{
	char *at, *mem;

	pthread_mutex_lock(&kept.lock);
	at = kept.arena ? NULL : kept.arena_at;
	pthread_mutex_unlock(&kept.lock);
	if (!at)
		return 0;
	mem = gdr_map_memory(at, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
	if (mem == MAP_FAILED)
		return ENOMEM;
	if (mem == at) {
		pthread_mutex_lock(&kept.lock);
		if (!kept.arena && kept.arena_at == at) {
			kept.arena = mem;
			mem = NULL;
		}
		pthread_mutex_unlock(&kept.lock);
	}
	if (mem)
		munmap(mem, ARENA);
	return 0;
}

static int fill(int callers)
{
	int rc;

	atomic_store(&whole, true);
	rc = fill_pieces(pieces_for(callers));
	if (!rc)
		rc = fill_pool();
	if (!rc)
		rc = fill_arena();
	if (rc)
		atomic_store(&whole, false);
	else
		atomic_store(&room, callers);
	return rc;
}

int gdr_reserve_enter(bool needed)
{
	int callers, rc = 0;

	if (!atomic_load_explicit(&runs, memory_order_relaxed))
		return 0;
	callers = atomic_fetch_add(&inside, 1) + 1;
	if (callers < 1)
		callers = 1;
	if (!atomic_load(&whole) || callers > atomic_load(&room))
		rc = fill(callers);
	if (!rc || needed)
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

/* Moves memory to write to into the place of [addr, addr + len), which is Go's. */
static bool move_under(char *addr, size_t len)
{
	bool done = true;

	pthread_mutex_lock(&kept.lock);
	atomic_store(&whole, false);
	while (done && len) {
		size_t n = len < PIECE ? len : PIECE;
		char *from = NULL;

		if (n < PIECE && n <= kept.pool_left)
			from = kept.pool + (kept.pool_left -= n);
		else if (n == PIECE && kept.count)
			from = kept.pieces[--kept.count];
		done = from && syscall(SYS_mremap, from, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, addr) >= 0;
		addr += n;
		len -= n;
	}
	pthread_mutex_unlock(&kept.lock);
	return done;
}

/*
 * Go has reserved what it asks for at a fixed address, and has not written there. Making it
 * writable is the same as mapping it anew.
 */
static void *make_writable(char *addr, size_t len, int prot)
{
	int error;

	if (!mprotect(addr, len, prot))
		return addr;
	error = errno;
	if (move_under(addr, len))
		return addr;
	errno = error;
	return MAP_FAILED;
}

static void *take_arena(char *addr, size_t len)
{
	char *mem = NULL;

	pthread_mutex_lock(&kept.lock);
	if (len == ARENA && addr == kept.arena) {
		mem = kept.arena;
		kept.arena = NULL;
		kept.arena_at = mem + ARENA;
		atomic_store(&whole, false);
	}
	pthread_mutex_unlock(&kept.lock);
	return mem;
}

static void note_arena(char *addr, size_t len)
{
	char *unused = NULL;

	pthread_mutex_lock(&kept.lock);
	if (len == ARENA) {
		unused = kept.arena;
		kept.arena = NULL;
		kept.arena_at = addr + ARENA;
		atomic_store(&whole, false);
	}
	pthread_mutex_unlock(&kept.lock);
	if (unused)
		munmap(unused, ARENA);
}

static void *take_from_pool(size_t len)
{
	size_t page = sysconf(_SC_PAGESIZE);
	char *mem = MAP_FAILED;

	len = (len + page - 1) & -page;
	pthread_mutex_lock(&kept.lock);
	if (len <= kept.pool_left) {
		mem = kept.pool + (kept.pool_left -= len);
		atomic_store(&whole, false);
	}
	pthread_mutex_unlock(&kept.lock);
	return mem;
}

void *gdr_reserve_mmap(void *addr, size_t len, int prot, int flags)
{
	void *mem;

	if (flags & MAP_FIXED && prot != PROT_NONE)
		return make_writable(addr, len, prot);
	if (addr && prot == PROT_NONE) {
		mem = take_arena(addr, len);
		if (mem)
			return mem;
	}
	mem = gdr_map_memory(addr, len, prot, flags);
	if (mem != MAP_FAILED && mem == addr && prot == PROT_NONE)
		note_arena(mem, len);
	if (mem == MAP_FAILED && prot != PROT_NONE)
		mem = take_from_pool(len);
	return mem;
}
