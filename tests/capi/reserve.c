// SPDX-License-Identifier: MIT
/*
 * reserve.c - what capi/guest/reserve.c keeps ready for Go where the kernel gives nothing, by itself.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest/log.h"
#include "guest/reserve.h"
#include "tap.h"

#define ARENA (64ul << 20)
#define POOL (1ul << 20)
#define PIECE (64ul << 10)
#define PIECES 9	/* more than half of the pool */

void gdr_log(int level, const char *fmt, ...)
{
	(void)level;
	(void)fmt;
}

static void limit_space(bool to_none)
{
	struct rlimit l;

	getrlimit(RLIMIT_AS, &l);
	l.rlim_cur = to_none ? 1 : l.rlim_max;
	setrlimit(RLIMIT_AS, &l);
}

static void *take(void *at, size_t len, int prot)
{
	return gdr_reserve_mmap(at, len, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
}

static bool is_mapped(const char *at, size_t len)
{
	unsigned char there[POOL / 4096];

	return !mincore((void *)at, len, there);
}

static bool is_mapped_in_child(const char *at, size_t len)
{
	pid_t pid = fork();
	int status = -1;

	if (!pid)
		_exit(is_mapped(at, len));
	waitpid(pid, &status, 0);
	return status;
}

/* Go's first arena; the reserve looks at nothing before that. */
static bool start(void)
{
	bool good = !gdr_reserve_start();
	char *at = mmap(NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	munmap(at, ARENA);
	return good && take(at, ARENA, PROT_NONE) == at && !gdr_reserve_check();
}

int main(void)
{
	struct tap t = { 0, 0, 0 };
	char *piece[PIECES], *pool;
	size_t had = 0;

	tap_ok(&t, start(), "the start");
	limit_space(true);
	for (int i = 0; i < PIECES; i++) {
		piece[i] = take(NULL, PIECE, PROT_READ | PROT_WRITE);
		had += piece[i] != MAP_FAILED && (!i || piece[i] == piece[i - 1] - PIECE);
	}
	tap_is(&t, had, PIECES, "pieces from the pool where the kernel gives none");
	tap_is(&t, gdr_reserve_check(), ENOMEM, "the check, at the limit,");
	limit_space(false);
	pool = piece[0] + PIECE - POOL;
	tap_ok(&t, is_mapped(pool, PIECE), "the rest of the pool is there");
	tap_ok(&t, !is_mapped_in_child(pool, PIECE), "a child does not inherit it");
	tap_is(&t, gdr_reserve_check(), 0, "the check behind the limit");
	tap_ok(&t, !is_mapped(pool, PIECE), "it has a new pool, and the old one's rest is unmapped");
	for (int i = 0; i < PIECES; i++)
		memset(piece[i], i, PIECE);
	tap_ok(&t, is_mapped(piece[PIECES - 1], PIECES * PIECE), "what was taken stays");
	return tap_done(&t);
}
