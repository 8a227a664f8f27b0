// SPDX-License-Identifier: MIT
/*
 * reserve.c - capi/host/reserve.c by itself: this program asks as Go's allocator does, and
 * sets the limits. Each case is a process.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/log.h"
#include "host/reserve.h"
#include "tap.h"

#define KIB 1024ul
#define MIB (1024 * KIB)
#define PIECE (4 * MIB)
#define ARENA (64 * MIB)
#define RESERVED (MAP_PRIVATE | MAP_ANONYMOUS)

static struct tap tap;
static int lines_logged;

void gdr_log(int level, const char *fmt, ...)
{
	lines_logged += level == GDR_LOG_ERROR && strstr(fmt, "raise the limit");
}

static void expect_at(int line, bool ok)
{
	if (ok)
		return;
	printf("# line %d\n", line);
	fflush(stdout);
	_exit(1);
}

#define expect(ok) expect_at(__LINE__, ok)

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
static bool grow(char *at)
{
	char *mem = gdr_reserve_mmap(at, PIECE, PROT_READ | PROT_WRITE, RESERVED | MAP_FIXED);

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
	expect(reserve(arena) == arena && grow(heap));
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
	expect(grow(heap + PIECE));
	expect(grow(heap + 2 * PIECE));
	expect(!grow(heap + 3 * PIECE));
}

/* For each that is inside at once 320 KiB are kept. */
static void callers(void)
{
	int n = 0;

	start();
	for (int i = 0; i < 29; i++)
		expect(!gdr_reserve_enter(false));
	limit_data();
	while (grow(heap + (n + 1) * PIECE))
		n++;
	expect(n == 4);	/* 30 * 320 KiB, and one */
}

/* Who left is not counted. */
static void left(void)
{
	int n = 0;

	start();
	for (int i = 0; i < 100; i++) {
		gdr_reserve_leave();
		expect(!gdr_reserve_enter(false));
	}
	limit_data();
	while (grow(heap + (n + 1) * PIECE))
		n++;
	expect(n == 2);
}

/* What was taken is missing until it can be had again: each time that somebody asks. */
static void refused(void)
{
	start();
	gdr_reserve_leave();
	limit_data();
	expect(!gdr_reserve_enter(false));
	expect(grow(heap + PIECE));
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
	expect(grow(heap + 2 * PIECE) && grow(heap + 3 * PIECE) && !grow(heap + 4 * PIECE));
}

/* Go's own tables: anywhere, and in the place of what it has reserved. */
static void tables(void)
{
	char *place, *mem;

	start();
	place = gdr_reserve_mmap(NULL, MIB, PROT_NONE, RESERVED);
	expect(place != MAP_FAILED);
	limit_data();
	mem = gdr_reserve_mmap(NULL, 100, PROT_READ | PROT_WRITE, RESERVED);
	expect(mem != MAP_FAILED && !mem[0]);
	mem[99] = 1;
	mem = gdr_reserve_mmap(place + 64 * KIB, 64 * KIB, PROT_READ | PROT_WRITE, RESERVED | MAP_FIXED);
	expect(mem == place + 64 * KIB && !mem[0]);
	mem[0] = mem[64 * KIB - 1] = 1;
	/* Of 2 MiB 1 is there for whoever is inside. */
	gdr_reserve_leave();
	expect(!gdr_reserve_enter(false));
	expect(gdr_reserve_mmap(NULL, 960 * KIB, PROT_READ | PROT_WRITE, RESERVED) != MAP_FAILED);
	gdr_reserve_leave();
	expect(gdr_reserve_enter(false) == ENOMEM);
	expect(gdr_reserve_mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, RESERVED) == MAP_FAILED);
	raise_limits();
	expect(!gdr_reserve_enter(false));
	limit_data();
	expect(gdr_reserve_mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, RESERVED) != MAP_FAILED);
}

/* The next arena is where Go asks for it, and the heap grows into it. */
static void arenas(void)
{
	start();
	for (char *p = heap + PIECE; p < arena + ARENA - PIECE; p += PIECE)
		expect(grow(p));
	gdr_reserve_leave();
	expect(!gdr_reserve_enter(false));
	limit_space();
	limit_data();
	expect(grow(arena + ARENA - PIECE));
	expect(reserve(arena + ARENA) == arena + ARENA);
	expect(grow(arena + ARENA));
	gdr_reserve_leave();
	expect(gdr_reserve_enter(false) == ENOMEM);
	expect(reserve(arena + 2 * ARENA) == MAP_FAILED);
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
	expect(grow(heap + PIECE));
	gdr_reserve_leave();
	expect(!gdr_reserve_enter(false) && kib_of("VmSize:") == before);
	expect(reserve(next) == next && grow(next));
	gdr_reserve_leave();
	expect(!gdr_reserve_enter(false));
	limit_data();
	expect(grow(next + PIECE) && grow(next + 2 * PIECE) && !grow(next + 3 * PIECE));
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

int main(void)
{
	static const struct {
		void (*run)(void);
		const char *what;
	} cases[] = {
		{ pieces, "two pieces for a caller, the last one too" },
		{ callers, "more for more callers" },
		{ left, "those who left are not counted" },
		{ refused, "ENOMEM each time, but not for who gives back" },
		{ tables, "the tables of Go's allocator" },
		{ arenas, "the next arena" },
		{ elsewhere, "an arena that is elsewhere" },
		{ unused, "an arena that is kept for nothing goes" },
	};

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int status = -1;
		pid_t pid = fork();

		if (!pid) {
			cases[i].run();
			_exit(0);
		}
		tap_ok(&tap, pid > 0 && waitpid(pid, &status, 0) == pid && !status, "%s", cases[i].what);
	}
	return tap_done(&tap);
}
