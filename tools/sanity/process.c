/* SPDX-License-Identifier: MIT */
/*
 * sanity/process.c - what the process of a case has: faults, descriptors, children.
 */
#include "sanity.h"
#include "run.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static sigjmp_buf on_fault;

static void jump(int sig)
{
	(void)sig;
	siglongjmp(on_fault, 1);
}

/* The handlers are ours only while the byte is touched. */
static bool faults(volatile unsigned char *p, bool store, unsigned char byte)
{
	struct sigaction sa = { .sa_handler = jump }, segv, bus;
	volatile bool hit = false;

	sigaction(SIGSEGV, &sa, &segv);
	sigaction(SIGBUS, &sa, &bus);
	if (sigsetjmp(on_fault, 1))
		hit = true;
	else if (store)
		*p = byte;
	else
		(void)*p;
	sigaction(SIGSEGV, &segv, NULL);
	sigaction(SIGBUS, &bus, NULL);
	return hit;
}

bool read_faults(const volatile void *p)
{
	return faults((volatile unsigned char *)(uintptr_t)p, false, 0);
}

bool write_faults(volatile void *p)
{
	return faults((volatile unsigned char *)(uintptr_t)p, true, WRITTEN);
}

bool is_gone(volatile void *p)
{
	volatile unsigned char *byte = p;

	if (read_faults(p))
		return true;
	if (*byte == WRITTEN)
		return false;
	/* The GPU's memory must not get this byte. */
	*byte = (unsigned char)~WRITTEN;
	return true;
}

/* Counts the open descriptors that want(fd) holds for. */
static int count_fds_if(bool (*want)(int fd))
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *d;
	int n = 0;

	check(dir != NULL);
	while ((d = readdir(dir))) {
		int fd = atoi(d->d_name);

		if (d->d_name[0] != '.' && fd != dirfd(dir) && want(fd))
			n++;
	}
	closedir(dir);
	return n;
}

static bool is_fd(int fd)
{
	return fd >= 0;
}

static bool survives_exec(int fd)
{
	return !(fcntl(fd, F_GETFD) & FD_CLOEXEC);
}

int count_fds(void)
{
	return count_fds_if(is_fd);
}

int count_inheritable_fds(void)
{
	return count_fds_if(survives_exec);
}

pid_t fork_child(void)
{
	pid_t parent = getpid(), pid;

	fflush(stdout);
	pid = fork();
	check(pid >= 0);
	if (pid == 0) {
		alarm(CASE_SECONDS);	/* a fork does not inherit it */
		prctl(PR_SET_PDEATHSIG, SIGKILL);	/* a case that fails leaves nobody */
		if (getppid() != parent)
			_exit(CASE_FAILED);
	}
	return pid;
}

void join_child(pid_t pid)
{
	int status = -1;

	while (waitpid(pid, &status, 0) < 0)
		check_eq(errno, EINTR);
	if (WIFSIGNALED(status))
		note("the child died of signal %d", WTERMSIG(status));
	check(WIFEXITED(status));
	check_eq(WEXITSTATUS(status), CASE_PASSED);
}

void child_done(void)
{
	fflush(stdout);
	_exit(CASE_PASSED);
}
