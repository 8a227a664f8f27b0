// SPDX-License-Identifier: MIT
/*
 * guest.c - capi/host/guest.c, built in here: what a host's thread has inside and afterwards, and
 * memory that is neither locked nor inherited. Each case is a process.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "expect.h"
#include "tap.h"

static bool may_not_write;
static int unmapped;		/* pages that were given back */

static int mprotect_of(void *addr, size_t len, int prot)
{
	if (!may_not_write)
		return mprotect(addr, len, prot);
	errno = EACCES;
	return -1;
}

/* It has an errno of its own. */
static int munmap_of(void *addr, size_t len)
{
	int rc = munmap(addr, len);

	unmapped += len / sysconf(_SC_PAGESIZE);
	errno = EIO;
	return rc;
}

#define mprotect mprotect_of
#define munmap munmap_of
#include "host/guest.c"
#undef mprotect
#undef munmap

#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)

/* With the signals that the C library hides. */
static uint64_t mask(void)
{
	uint64_t now = 0;

	expect(!syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &now, 8));
	return now;
}

static void set_mask(uint64_t to)
{
	expect(!syscall(SYS_rt_sigprocmask, SIG_SETMASK, &to, NULL, 8));
}

static uint64_t bits(const int *signals)
{
	uint64_t all = 0;

	for (; *signals; signals++)
		all |= 1ull << (*signals - 1);
	return all;
}

/* What nobody can hold off, and what stays open inside. */
static const int never[] = { SIGKILL, SIGSTOP, 0 };
static const int open_inside[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, 33, 0 };

static void signals(void)
{
	const uint64_t masks[] = {
		0, 1ull << (SIGUSR1 - 1), 1ull << (SIGSEGV - 1), ~0ull & ~bits(never),
		~0ull & ~bits(never) & ~(1ull << (SIGRTMAX - 1)),
	};

	for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++) {
		struct gdr_guest outer, inner;

		set_mask(masks[i]);
		gdr_guest_enter(&outer);
		expect(mask() == (masks[i] | (~bits(open_inside) & ~bits(never))));
		/* A handler of a fault may call the library. */
		gdr_guest_enter(&inner);
		gdr_guest_leave(&inner);
		expect(mask() == (masks[i] | (~bits(open_inside) & ~bits(never))));
		gdr_guest_leave(&outer);
		expect(mask() == masks[i]);
	}
}

static void cancelling(void)
{
	const int states[] = { PTHREAD_CANCEL_ENABLE, PTHREAD_CANCEL_DISABLE };

	for (int i = 0; i < 2; i++) {
		struct gdr_guest g;
		int state = -1;

		pthread_setcancelstate(states[i], NULL);
		gdr_guest_enter(&g);
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
		expect(state == PTHREAD_CANCEL_DISABLE);
		gdr_guest_leave(&g);
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
		expect(state == states[i]);
	}
}

static void error_stays(void)
{
	struct gdr_guest g;

	errno = EXDEV;
	gdr_guest_enter(&g);
	errno = EIO;
	gdr_guest_leave(&g);
	expect(errno == EXDEV);
}

/* What a host has comes back, also if it is what a process begins with. */
static void floats(void)
{
	const int rounding[] = { FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO };

	for (int i = 0; i < 8; i++) {
		int round = rounding[i / 2], raised = i % 2 ? FE_INVALID : 0;
		volatile double big = 1e308;
		volatile long double long_one = 1;
		struct gdr_guest g;

		expect(!fesetround(round) && !feclearexcept(FE_ALL_EXCEPT) && !feraiseexcept(raised));
		gdr_guest_enter(&g);
		expect(fegetround() == FE_TONEAREST);
		big *= 10;
		gdr_guest_leave(&g);
		expect(fegetround() == round && fetestexcept(FE_ALL_EXCEPT) == raised);
		expect(big > 1e308);
		long_one /= 3;
		expect((3 * long_one > 1) == (round == FE_UPWARD));
	}
	expect(!fesetround(FE_TONEAREST));
}

static size_t page;

static long status_kib(const char *name)
{
	FILE *f = fopen("/proc/self/status", "re");
	char line[256];
	long n = -1;

	expect(f != NULL);
	while (fgets(line, sizeof(line), f))
		if (!strncmp(line, name, strlen(name)))
			n = strtol(line + strlen(name), NULL, 10);
	fclose(f);
	return n;
}

static bool is_mapped(void *at)
{
	unsigned char in;

	return !mincore(at, page, &in) || errno != ENOMEM;
}

static void memory(void)
{
	void *addr = gdr_map_memory(NULL, 3 * page, PROT_NONE, ANONYMOUS), *at;
	char *mem = gdr_map_memory(NULL, 3 * page, PROT_READ | PROT_WRITE, ANONYMOUS);
	int status = -1;
	pid_t pid;

	expect(addr != MAP_FAILED && mem != MAP_FAILED);
	memset(mem, 1, 3 * page);
	expect(!munmap(addr, 3 * page));
	/* Where it is asked for. */
	at = gdr_map_memory(addr, 3 * page, PROT_READ | PROT_WRITE, ANONYMOUS | MAP_FIXED);
	expect(at == addr && !*(char *)at);
	pid = fork();
	if (!pid)
		_exit(is_mapped(at) || is_mapped(mem) || is_mapped(mem + 2 * page));
	expect(waitpid(pid, &status, 0) == pid && !status);
}

/* A host that locks all that comes: VmLck stays, and pages are there when they are touched. */
static void not_locked(void)
{
	long had;
	char *mem;

	if (mlockall(MCL_FUTURE)) {
		printf("# mlockall: %s\n", strerror(errno));
		return;
	}
	had = status_kib("VmLck:");
	for (int prot = PROT_NONE; prot <= (PROT_READ | PROT_WRITE); prot += PROT_READ | PROT_WRITE) {
		unsigned char in[4];

		mem = gdr_map_memory(NULL, 4 * page, prot, ANONYMOUS);
		expect(mem != MAP_FAILED && status_kib("VmLck:") == had);
		expect(!mincore(mem, 4 * page, in) && !(in[0] & 1) && !(in[3] & 1));
	}
}

/* It fails as mmap does, and nothing is left. */
static void refused(void)
{
	struct rlimit l = { 0, 0 };
	long had;

	errno = 0;
	expect(gdr_map_memory(NULL, 0, PROT_READ, ANONYMOUS) == MAP_FAILED && errno == EINVAL);
	expect(gdr_map_memory(NULL, 1ul << 60, PROT_READ | PROT_WRITE, ANONYMOUS) == MAP_FAILED && errno == ENOMEM);
	expect(!unmapped);
	had = status_kib("VmSize:");
	may_not_write = true;
	expect(gdr_map_memory(NULL, 5 * page, PROT_READ | PROT_WRITE, ANONYMOUS) == MAP_FAILED && errno == EACCES);
	expect(unmapped == 5 && status_kib("VmSize:") == had);
	expect(gdr_map_memory(NULL, page, PROT_NONE, ANONYMOUS) != MAP_FAILED && unmapped == 5);
	had = status_kib("VmSize:");
	may_not_write = false;
	/* As a limit of memory to write to refuses it. */
	expect(!setrlimit(RLIMIT_DATA, &l));
	expect(gdr_map_memory(NULL, 1024 * page, PROT_READ | PROT_WRITE, ANONYMOUS) == MAP_FAILED && errno == ENOMEM);
	expect(status_kib("VmSize:") == had);
	expect(gdr_map_memory(NULL, 1024 * page, PROT_NONE, ANONYMOUS) != MAP_FAILED);
}

int main(void)
{
	static const struct {
		void (*run)(void);
		const char *what;
	} cases[] = {
		{ signals, "signals inside, and afterwards" },
		{ cancelling, "no thread is cancelled inside" },
		{ error_stays, "errno is the host's" },
		{ floats, "numbers are a program's at its start" },
		{ memory, "memory that no child has" },
		{ not_locked, "memory that is not locked" },
		{ refused, "what cannot be had leaves nothing" },
	};
	struct tap t = { 0, 0, 0 };

	setvbuf(stdout, NULL, _IOLBF, 0);
	page = sysconf(_SC_PAGESIZE);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int status = -1;
		pid_t pid = fork();

		if (!pid) {
			cases[i].run();
			_exit(0);
		}
		tap_ok(&t, pid > 0 && waitpid(pid, &status, 0) == pid && !status, "%s", cases[i].what);
	}
	return tap_done(&t);
}
