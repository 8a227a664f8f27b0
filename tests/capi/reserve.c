// SPDX-License-Identifier: MIT
/*
 * reserve.c - capi/host/reserve.c, built in here: this program asks as Go's allocator does, sets
 * the limits, and has another thread's turn while memory is mapped. Each case is a process.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/guest.h"
#include "host/log.h"
#include "expect.h"
#include "tap.h"

/* What reserve.c did, and whether its lock is held. */
static long locks, maps, protects;
static bool locked;

static void lock_of(pthread_mutex_t *lock)
{
	expect(!locked && !pthread_mutex_trylock(lock));
	locked = true;
	locks++;
}

static void unlock_of(pthread_mutex_t *lock)
{
	expect(locked && !pthread_mutex_unlock(lock));
	locked = false;
}

static void (*meanwhile)(void);	/* another thread's turn, while memory is mapped */
static bool no_memory;

static void *map_of(void *addr, size_t len, int prot, int flags)
{
	void (*now)(void) = meanwhile;

	expect(!locked);
	/* Address space that is kept counts nowhere as memory. */
	expect(prot == (PROT_READ | PROT_WRITE) || (prot == PROT_NONE && flags & MAP_NORESERVE));
	maps++;
	meanwhile = NULL;
	if (now)
		now();
	errno = ENOMEM;
	return no_memory ? MAP_FAILED : gdr_map_memory(addr, len, prot, flags);
}

static int munmap_of(void *addr, size_t len)
{
	expect(!locked);
	return munmap(addr, len);
}

static long call_of(long number, ...)
{
	long a[5];
	va_list args;

	va_start(args, number);
	for (int i = 0; i < 5; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	protects += number == SYS_mprotect;
	return syscall(number, a[0], a[1], a[2], a[3], a[4]);
}

#define pthread_mutex_lock lock_of
#define pthread_mutex_unlock unlock_of
#define gdr_map_memory map_of
#define munmap munmap_of
#define syscall call_of
#include "host/reserve.c"
#undef pthread_mutex_lock
#undef pthread_mutex_unlock
#undef munmap
#undef PIECE
#undef ARENA

#define KIB 1024ul
#define MIB (1024 * KIB)
#define PIECE (4 * MIB)
#define ARENA (64 * MIB)
#define RESERVED (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)
#define WRITABLE (PROT_READ | PROT_WRITE)

static struct tap tap;
static int lines_logged;

void gdr_log(int level, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	lines_logged += level == GDR_LOG_ERROR && strstr(fmt, "raise the limit") && va_arg(args, int) == ENOMEM;
	va_end(args);
}

static rlim_t kib_of(const char *name)
{
	char line[256];
	unsigned long n = 0;
	FILE *f = fopen("/proc/self/status", "re");

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, name, strlen(name)))
			n = strtoul(line + strlen(name), NULL, 10);
	expect(f && !fclose(f) && n);
	return n;
}

/* No more than there is now. The hard limit stays. */
static void set_limit(int what, const char *name)
{
	struct rlimit l = { kib_of(name) * KIB, RLIM_INFINITY };

	expect(!setrlimit(what, &l));
}

static void limit_data(void)
{
	set_limit(RLIMIT_DATA, "VmData:");
}

static void limit_space(void)
{
	set_limit(RLIMIT_AS, "VmSize:");
}

static void raise_limits(void)
{
	struct rlimit l = { RLIM_INFINITY, RLIM_INFINITY };

	expect(!setrlimit(RLIMIT_DATA, &l) && !setrlimit(RLIMIT_AS, &l));
}

/* Where Go asks for an arena first, and where its heap begins there. */
static char *const arena = (char *)0xc000000000, *const heap = (char *)0xc000000000 + 5 * PIECE;

static char *reserve(char *at)
{
	char *mem = gdr_reserve_mmap(at, ARENA, PROT_NONE, RESERVED);

	expect(mem == at || mem == MAP_FAILED);
	return mem;
}

/* What Go's heap takes next. It is zero, and can be written to. */
static bool grows(char *at)
{
	char *mem = gdr_reserve_mmap(at, PIECE, WRITABLE, RESERVED | MAP_FIXED);

	if (mem == MAP_FAILED)
		return false;
	expect(mem == at && !mem[0] && !mem[PIECE - 1]);
	mem[0] = mem[PIECE - 1] = 1;
	return true;
}

/* A runtime that has started, and a caller inside. */
static void start(void)
{
	gdr_reserve_start();
	expect(reserve(arena) == arena && grows(heap));
	expect(!gdr_reserve_enter(false));
}

/* Of the heap a caller's piece is kept, and one more. */
static void pieces(void)
{
	rlim_t before = kib_of("VmData:");

	start();
	/* Three pieces and the pool: what lies before the heap is not writable. */
	expect(kib_of("VmData:") < before + 15 * KIB);
	limit_data();
	expect(grows(heap + PIECE));
	expect(grows(heap + 2 * PIECE));
	expect(!grows(heap + 3 * PIECE));
}

/* How many pieces the heap takes from that one on. */
static int pieces_from(char *at)
{
	int n = 0;

	while (grows(at + n * PIECE))
		n++;
	return n;
}

static void at_once(int inside_at_once, int want)
{
	start();
	for (int i = 1; i < inside_at_once; i++)
		expect(!gdr_reserve_enter(false));
	limit_data();
	expect(pieces_from(heap + PIECE) == want);
	_exit(0);
}

static bool in_child(void (*run)(void))
{
	int status = -1;
	pid_t pid = fork();

	if (!pid) {
		run();
		_exit(0);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && !status;
}

/* For each that is inside at once 320 KiB are kept, in whole pieces, and one piece more. */
static void callers(void)
{
	static const struct {
		int inside, want;
	} rows[] = { { 1, 2 }, { 12, 2 }, { 13, 3 }, { 30, 4 }, { 64, 6 }, { 65, 7 } };

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int status = -1;
		pid_t pid = fork();

		if (!pid)
			at_once(rows[i].inside, rows[i].want);
		expect(pid > 0 && waitpid(pid, &status, 0) == pid && !status);
	}
}

/* Who left is not counted. */
static void left(void)
{
	start();
	for (int i = 0; i < 100; i++) {
		gdr_reserve_leave();
		expect(!gdr_reserve_enter(false));
	}
	/* In a child more may leave than have entered. */
	for (int i = 0; i < 3; i++)
		gdr_reserve_leave();
	for (int i = 0; i < 13; i++)
		expect(!gdr_reserve_enter(false));
	limit_data();
	expect(pieces_from(heap + PIECE) == 3);
}

/* What was taken is missing until it can be had again: each time that somebody asks. */
static void refused(void)
{
	start();
	gdr_reserve_leave();
	limit_data();
	expect(!gdr_reserve_enter(false));
	expect(grows(heap + PIECE));
	gdr_reserve_leave();
	for (int i = 1; i <= 20; i++) {
		expect(gdr_reserve_enter(false) == ENOMEM);
		expect(lines_logged == i);
		/* Who gives something back goes on. */
		expect(!gdr_reserve_enter(true));
		gdr_reserve_leave();
		expect(lines_logged == i);
	}
	/* Who was refused is not counted. */
	raise_limits();
	expect(!gdr_reserve_enter(false));
	limit_data();
	expect(grows(heap + 2 * PIECE) && grows(heap + 3 * PIECE) && !grows(heap + 4 * PIECE));
}

/* Whoever finds room takes no lock and maps nothing; what is taken is looked at once. */
static void room_is_known(void)
{
	long before;

	start();
	for (int i = 0; i < 3; i++) {
		before = locks;
		gdr_reserve_leave();
		expect(!gdr_reserve_enter(false) && locks == before);
		expect(!gdr_reserve_enter(false) && locks > before);	/* a second one at once */
		gdr_reserve_leave();
		before = locks;
		gdr_reserve_leave();
		expect(!gdr_reserve_enter(false) && locks == before);
		before = protects;
		expect(grows(heap + (i + 1) * PIECE) && protects == before + 1);
		gdr_reserve_leave();
		/* A piece is made writable ahead again. */
		expect(!gdr_reserve_enter(false) && protects == before + 2);
	}
	/* What is there already is not made anew. */
	before = protects;
	no_memory = true;
	expect(gdr_reserve_mmap(NULL, 100, WRITABLE, RESERVED) != MAP_FAILED);
	no_memory = false;
	gdr_reserve_leave();
	expect(!gdr_reserve_enter(false) && protects == before);
}

/* A piece that Go could not have is none of its heap. */
static void failed_piece(void)
{
	start();
	limit_data();
	expect(grows(heap + PIECE) && grows(heap + 2 * PIECE) && !grows(heap + 3 * PIECE));
	raise_limits();
	gdr_reserve_leave();
	expect(!gdr_reserve_enter(false));
	limit_data();
	expect(pieces_from(heap + 3 * PIECE) == 2);
}

/* Go's own tables: anywhere, and in the place of what it has reserved. */
static void tables(void)
{
	char *place, *mem;

	start();
	place = gdr_reserve_mmap(NULL, MIB, PROT_NONE, RESERVED);
	expect(place != MAP_FAILED);
	limit_data();
	mem = gdr_reserve_mmap(NULL, 100, WRITABLE, RESERVED);
	expect(mem != MAP_FAILED && !mem[0]);
	mem[99] = 1;
	mem = gdr_reserve_mmap(place + 64 * KIB, 64 * KIB, WRITABLE, RESERVED | MAP_FIXED);
	expect(mem == place + 64 * KIB && !mem[0]);
	mem[0] = mem[64 * KIB - 1] = 1;
	/* Of 2 MiB 1 is there for whoever is inside. */
	gdr_reserve_leave();
	expect(!gdr_reserve_enter(false));
	expect(gdr_reserve_mmap(NULL, 960 * KIB, WRITABLE, RESERVED) != MAP_FAILED);
	gdr_reserve_leave();
	expect(gdr_reserve_enter(false) == ENOMEM);
	expect(gdr_reserve_mmap(NULL, 2 * MIB, WRITABLE, RESERVED) == MAP_FAILED);
	raise_limits();
	expect(!gdr_reserve_enter(false));
	limit_data();
	expect(gdr_reserve_mmap(NULL, 2 * MIB, WRITABLE, RESERVED) != MAP_FAILED);
}

/* Memory of no reserve is the kernel's: the pool is for those who get none there. */
static void others(void)
{
	char *mem, *low, *high;
	long before;

	start();
	before = maps;
	for (int i = 0; i < 100; i++) {
		mem = gdr_reserve_mmap(NULL, 64 * KIB, WRITABLE, MAP_PRIVATE | MAP_ANONYMOUS);
		expect(mem && mem != MAP_FAILED && maps == before + i + 1);
		mem[0] = mem[64 * KIB - 1] = 1;
	}
	limit_data();
	/* Whole pages: nobody has a part of another's. */
	low = gdr_reserve_mmap(NULL, 4097, WRITABLE, MAP_PRIVATE | MAP_ANONYMOUS);
	high = gdr_reserve_mmap(NULL, 1, WRITABLE, MAP_PRIVATE | MAP_ANONYMOUS);
	expect(low != MAP_FAILED && high != MAP_FAILED && (high + 4096 <= low || low + 8192 <= high));
	/* Where an arena would be, but writable: that is no arena. */
	raise_limits();
	mem = gdr_reserve_mmap(arena + ARENA, ARENA, WRITABLE, MAP_PRIVATE | MAP_ANONYMOUS);
	expect(mem != MAP_FAILED);
	mem[0] = mem[ARENA - 1] = 1;
	/* What Go gives back, it cannot read, and it counts no more. */
	before = kib_of("VmData:");
	mem = gdr_reserve_mmap(heap, PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE);
	expect(mem == heap && kib_of("VmData:") == before - PIECE / KIB);
}

/* Memory of exactly half the pool is enough; of less a new one is made, and the rest of the old one goes. */
static void pools(void)
{
	rlim_t space = 0;
	char *mem;
	long before;

	start();
	for (int i = 0; i < 5; i++) {
		limit_data();
		mem = gdr_reserve_mmap(NULL, MIB, WRITABLE, MAP_PRIVATE | MAP_ANONYMOUS);
		expect(mem != MAP_FAILED && !munmap(mem, MIB));
		raise_limits();
		before = maps;
		gdr_reserve_leave();
		expect(!gdr_reserve_enter(false) && maps == before);
		limit_data();
		mem = gdr_reserve_mmap(NULL, 4096, WRITABLE, MAP_PRIVATE | MAP_ANONYMOUS);
		expect(mem != MAP_FAILED && !munmap(mem, 4096));
		raise_limits();
		before = maps;
		gdr_reserve_leave();
		expect(!gdr_reserve_enter(false) && maps == before + 1);
		expect(!space || kib_of("VmSize:") == space);
		space = kib_of("VmSize:");
	}
}

/* The next arena is where Go asks for it, and the heap grows into it. */
static void arenas(void)
{
	start();
	for (char *p = heap + PIECE; p < arena + ARENA - PIECE; p += PIECE)
		expect(grows(p));
	gdr_reserve_leave();
	expect(!gdr_reserve_enter(false));
	limit_space();
	limit_data();
	expect(grows(arena + ARENA - PIECE));
	expect(reserve(arena + ARENA) == arena + ARENA);
	expect(grows(arena + ARENA));
	gdr_reserve_leave();
	expect(gdr_reserve_enter(false) == ENOMEM);
	expect(reserve(arena + 2 * ARENA) == MAP_FAILED);
}

/* As soon as Go has the arena that was kept, the next one is. */
static void next_arena(void)
{
	rlim_t before;

	start();
	for (char *p = heap + PIECE; p < arena + ARENA; p += PIECE)
		expect(grows(p));
	before = kib_of("VmSize:");
	for (int i = 1; i <= 3; i++) {
		long had = maps;

		expect(reserve(arena + i * ARENA) == arena + i * ARENA && maps == had);
		gdr_reserve_leave();
		expect(!gdr_reserve_enter(false) && maps == had + 1);
		expect(kib_of("VmSize:") == before + i * ARENA / KIB);
	}
	/* What the heap takes next lies where its last piece ended. */
	limit_data();
	expect(pieces_from(arena + ARENA) == 2);
}

/* Something of the host's lies behind the heap: it goes on elsewhere. */
static void elsewhere(void)
{
	char *next = arena - 16 * ARENA;
	rlim_t before;

	expect(mmap(arena + ARENA, PIECE, PROT_NONE, RESERVED, -1, 0) == arena + ARENA);
	start();
	/* An arena that cannot be where Go asks for it is not kept. */
	before = kib_of("VmSize:");
	expect(grows(heap + PIECE));
	gdr_reserve_leave();
	expect(!gdr_reserve_enter(false) && kib_of("VmSize:") == before);
	expect(reserve(next) == next && grows(next));
	gdr_reserve_leave();
	expect(!gdr_reserve_enter(false));
	limit_data();
	expect(grows(next + PIECE) && grows(next + 2 * PIECE) && !grows(next + 3 * PIECE));
	limit_space();
	expect(reserve(next + ARENA) == next + ARENA);
}

/* An arena that is kept for nothing goes. */
static void unused(void)
{
	char *next = arena + 16 * ARENA;
	rlim_t before;

	start();
	before = kib_of("VmSize:");
	expect(reserve(next) == next);
	expect(kib_of("VmSize:") == before);
}

/* Only an arena, and only where Go asked for it, is the heap's. */
static void no_arenas(void)
{
	char *behind = arena + ARENA, *mem;

	expect(mmap(behind, MIB, PROT_NONE, RESERVED, -1, 0) == behind);
	start();
	/* Somewhere else than asked: Go does not take it. */
	mem = gdr_reserve_mmap(behind, ARENA, PROT_NONE, RESERVED);
	expect(mem != MAP_FAILED && mem != behind && !munmap(mem, ARENA));
	/* Tables. */
	expect(!munmap(behind, MIB));
	mem = gdr_reserve_mmap(behind, MIB, PROT_NONE, RESERVED);
	expect(mem == behind);
	mem = gdr_reserve_mmap(arena - 4 * ARENA, 2 * ARENA, PROT_NONE, RESERVED);
	expect(mem == arena - 4 * ARENA);
	/* Some of them are made writable: the heap did not grow. */
	mem = gdr_reserve_mmap(behind, 64 * KIB, WRITABLE, RESERVED | MAP_FIXED);
	expect(mem == behind);
	gdr_reserve_leave();
	expect(!gdr_reserve_enter(false));
	limit_data();
	expect(pieces_from(heap + PIECE) == 2);
}

static void take_tables(void)
{
	no_memory = true;
	expect(gdr_reserve_mmap(NULL, 4096, WRITABLE, MAP_PRIVATE | MAP_ANONYMOUS) != MAP_FAILED);
	no_memory = false;
}

static void take_arena_now(void)
{
	expect(reserve(arena + ARENA) == arena + ARENA);
}

static void fill_now(void)
{
	expect(!gdr_reserve_enter(false));
	gdr_reserve_leave();
}

/* Another thread takes something, or fills the reserve, while this one does. */
static void meanwhile_taken(void)
{
	start();
	take_arena_now();
	meanwhile = take_tables;
	gdr_reserve_leave();
	expect(!gdr_reserve_enter(false) && !meanwhile);
	gdr_reserve_leave();
	locks = 0;
	expect(!gdr_reserve_enter(false) && locks);	/* it looks again */
}

static void meanwhile_arena(void)
{
	rlim_t before;

	gdr_reserve_start();
	expect(reserve(arena) == arena && grows(heap));
	before = kib_of("VmSize:");
	/* Go has that arena by itself: the one that was mapped for it elsewhere goes. */
	meanwhile = take_arena_now;
	expect(!gdr_reserve_enter(false));
	expect(kib_of("VmSize:") == before + (ARENA + POOL) / KIB);
	gdr_reserve_leave();
	expect(!gdr_reserve_enter(false));
	expect(kib_of("VmSize:") == before + (2 * ARENA + POOL) / KIB);
	limit_space();
	expect(reserve(arena + 2 * ARENA) == arena + 2 * ARENA);
}

static void take_elsewhere(void)
{
	expect(reserve(arena - 16 * ARENA) == arena - 16 * ARENA);
}

static void meanwhile_elsewhere(void)
{
	rlim_t before;

	gdr_reserve_start();
	expect(reserve(arena) == arena && grows(heap));
	before = kib_of("VmSize:");
	/* What was mapped behind the old one is kept for nobody. */
	meanwhile = take_elsewhere;
	expect(!gdr_reserve_enter(false));
	expect(kib_of("VmSize:") == before + (ARENA + POOL) / KIB);
	expect(grows(arena - 16 * ARENA));
	limit_space();
	expect(reserve(arena - 15 * ARENA) == MAP_FAILED);
}

static void meanwhile_filled(void)
{
	rlim_t before;

	gdr_reserve_start();
	expect(reserve(arena) == arena && grows(heap));
	before = kib_of("VmSize:");
	meanwhile = fill_now;
	expect(!gdr_reserve_enter(false));
	expect(kib_of("VmSize:") == before + (ARENA + POOL) / KIB);
	limit_data();
	expect(pieces_from(heap + PIECE) == 2);
}

/* Where another thread's pool comes meanwhile, one of the two is left. */
static void pool_now(void)
{
	meanwhile = fill_now;
}

static void meanwhile_pool(void)
{
	rlim_t before;

	gdr_reserve_start();
	expect(reserve(arena) == arena && grows(heap));
	before = kib_of("VmSize:");
	meanwhile = pool_now;
	expect(!gdr_reserve_enter(false));
	expect(kib_of("VmSize:") == before + (ARENA + POOL) / KIB);
}

/* A child has nothing of its parent's, whose lock another thread may have held. */
static void start_in_child(void)
{
	locked = false;
	meanwhile = NULL;
	gdr_reserve_start();
	/* Before the first arena there is a pool. */
	expect(!gdr_reserve_enter(false));
	take_tables();
	gdr_reserve_leave();
	expect(reserve(arena) == arena && grows(heap));
	expect(!gdr_reserve_enter(false));
	limit_data();
	expect(pieces_from(heap + PIECE) == 2);
	expect(gdr_reserve_mmap(NULL, MIB, WRITABLE, MAP_PRIVATE | MAP_ANONYMOUS) != MAP_FAILED);
	gdr_reserve_leave();
	expect(gdr_reserve_enter(false) == ENOMEM);
}

static void children(void)
{
	start();
	for (int i = 0; i < 40; i++)
		expect(!gdr_reserve_enter(false));
	lock_of(&kept.lock);
	expect(in_child(start_in_child));
}

int main(void)
{
	static const struct {
		void (*run)(void);
		const char *what;
	} cases[] = {
		{ pieces, "two pieces for a caller, the last one too" },
		{ callers, "more for more callers" },
		{ left, "those who left are not counted" },
		{ room_is_known, "whoever finds room takes no lock" },
		{ failed_piece, "a piece that Go could not have" },
		{ refused, "ENOMEM each time, but not for who gives back" },
		{ tables, "the tables of Go's allocator" },
		{ others, "memory of no reserve" },
		{ pools, "the rest of an old pool goes" },
		{ arenas, "the next arena" },
		{ next_arena, "and the one behind it" },
		{ no_arenas, "what is no arena" },
		{ elsewhere, "an arena that is elsewhere" },
		{ unused, "an arena that is kept for nothing goes" },
		{ meanwhile_taken, "something is taken while the reserve is filled" },
		{ meanwhile_arena, "an arena is" },
		{ meanwhile_elsewhere, "an arena elsewhere is" },
		{ meanwhile_filled, "two threads fill it" },
		{ meanwhile_pool, "of two pools one goes" },
		{ children, "a child begins anew" },
	};

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		tap_ok(&tap, in_child(cases[i].run), "%s", cases[i].what);
	return tap_done(&tap);
}
