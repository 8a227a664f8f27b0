// SPDX-License-Identifier: MIT
/*
 * fork_advice.c - whether this machine keeps memory from a child of fork(). It ends with
 * 0 where MADV_WIPEONFORK and MADV_DONTFORK both work, else with 1. An emulator of user
 * programs may refuse the first and do nothing for the second.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static char *page(int advice)
{
	char *p = mmap(NULL, getpagesize(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	*p = 1;
	return madvise(p, getpagesize(), advice) ? NULL : p;
}

int main(void)
{
	char *wiped = page(MADV_WIPEONFORK), *gone = page(MADV_DONTFORK);
	int status = -1;
	pid_t pid;

	if (!wiped || !gone) {
		puts("madvise is refused");
		return 1;
	}
	pid = fork();
	if (!pid) {
		if (*wiped)
			_exit(1);
		*(volatile char *)gone = 2;	/* ends the child, as it must */
		_exit(1);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFSIGNALED(status)) {
		puts("a child has the memory");
		return 1;
	}
	return 0;
}
