// SPDX-License-Identifier: MIT
/*
 * emulator.c - what an emulator of user programs does not do, one word a line. On a kernel
 * it prints nothing. tests/arch/needs.txt says which cases of the tests need what.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 65536	/* at least a page, on any machine */
#define GENERATIONS 16
#define HANG_S 15

static long status_of_self(const char *key, int base)
{
	FILE *f = fopen("/proc/self/status", "re");
	char line[256];
	long value = -1;

	while (f && value < 0 && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)))
			value = strtoul(line + strlen(key), NULL, base);
	if (f)
		fclose(f);
	return value;
}

/* Whether fn(arg) is true in a child, and the child ends in time. */
static bool in_child(bool (*fn)(void *), void *arg)
{
	int status = -1;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		bool ok;

		alarm(HANG_S);
		ok = fn(arg);
		_exit(ok ? 0 : 1);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static char *page(int advice)
{
	char *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		exit(2);
	*p = 1;
	return madvise(p, PAGE, advice) ? NULL : p;
}

static bool is_zero(void *p)
{
	return *(volatile char *)p == 0;
}

static bool is_unmapped(void *p)
{
	unsigned char in;

	return mincore(p, PAGE, &in) != 0;
}

static bool wipes_on_fork(void)
{
	char *p = page(MADV_WIPEONFORK);

	return p && in_child(is_zero, p);
}

static bool keeps_from_fork(void)
{
	char *p = page(MADV_DONTFORK);

	return p && in_child(is_unmapped, p);
}

/* The program itself, once more. */
static bool execs(void *self)
{
	char *argv[] = { self, "--exec", NULL };

	execv("/proc/self/exe", argv);
	return false;
}

static bool filters(void *unused)
{
	struct sock_filter code[] = { BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
	struct sock_fprog filter = { .len = 1, .filter = code };

	(void)unused;
	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
	       !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

static bool disarms(void *unused)
{
	stack_t s = { .ss_sp = malloc(PAGE), .ss_size = PAGE, .ss_flags = 1u << 31 /* SS_AUTODISARM */ };

	(void)unused;
	return !sigaltstack(&s, NULL);
}

/* All signals but the C library's 32 and 33 can be sent, and the kernel knows each by its number. */
static bool has_signals(void *unused)
{
	uint64_t all = ~0ull, rest = 1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1) | 3ull << 31;
	int sig;

	(void)unused;
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof(all));
	for (sig = 1; sig <= 64; sig++)
		if (!(rest & 1ull << (sig - 1)) && kill(getpid(), sig))
			return false;
	return ((uint64_t)status_of_self("SigBlk:", 16) | rest) == all;
}

static void *busy(void *unused)
{
	int i;

	for (i = 0; i < 200; i++)
		munmap(page(MADV_NORMAL), PAGE);
	return unused;
}

static void *idle(void *unused)
{
	pause();
	return unused;
}

/* Each generation has threads, some of which have ended, and forks the next. */
static bool generation(void *left)
{
	int more = *(int *)left - 1, i;
	pthread_t t[4], unused;

	for (i = 0; i < 10; i++)
		if (pthread_create(&unused, NULL, idle, NULL))
			return false;
	for (i = 0; i < 4; i++)
		if (pthread_create(&t[i], NULL, busy, NULL))
			return false;
	for (i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	return !more || in_child(generation, &more);
}

static void needs(const char *word, bool has)
{
	if (!has)
		puts(word);
}

int main(int argc, char **argv)
{
	int left = GENERATIONS;

	if (argc > 1)
		return 0;
	needs("one-thread", status_of_self("Threads:", 10) == 1);
	/* An emulator's memory is in the process that it emulates. */
	needs("own-memory", status_of_self("VmRSS:", 10) < 4096);
	needs("wipeonfork", wipes_on_fork());
	needs("dontfork", keeps_from_fork());
	needs("exec", in_child(execs, argv[0]));
	needs("seccomp", in_child(filters, NULL));
	needs("autodisarm", in_child(disarms, NULL));
	needs("signals", in_child(has_signals, NULL));
	needs("fork-of-threads", in_child(generation, &left));
	return 0;
}
