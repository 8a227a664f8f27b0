// SPDX-License-Identifier: MIT
/*
 * copy/cpus.c - on which CPUs threads are put, on a machine that is made up: two nodes of
 * two cores, each core two CPUs. capi/copy/cpus.c is built in here. Its system calls and
 * its opens are answered by this file.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tap.h"

enum { CPUS = 8, THREADS = 8 };

/* CPUs i and i + 4 are one core; cores 0 and 1 are node 0's. */
static struct {
	unsigned int here;
	unsigned long may;
	bool has_sysfs;
	unsigned long placed[THREADS];	/* by thread: 100, 101, ... */
} machine;

static int made_up_open(const char *path, int flags)
{
	unsigned int n;
	char text[64];
	int fd;

	(void)flags;
	if (!machine.has_sysfs)
		return -1;
	if (sscanf(path, "/sys/devices/system/node/node%u/cpulist", &n) == 1)
		snprintf(text, sizeof(text), "%u-%u,%u-%u\n", 2 * n, 2 * n + 1, 2 * n + 4, 2 * n + 5);
	else if (sscanf(path, "/sys/devices/system/cpu/cpu%u/", &n) == 1)
		snprintf(text, sizeof(text), "%u,%u\n", n % 4, n % 4 + 4);
	else
		return -1;
	fd = memfd_create("sysfs", MFD_CLOEXEC);
	if (fd < 0 || write(fd, text, strlen(text)) < 0 || lseek(fd, 0, SEEK_SET))
		abort();
	return fd;
}

static long made_up_syscall(long number, ...)
{
	va_list ap;

	va_start(ap, number);
	if (number == SYS_getcpu) {
		*va_arg(ap, unsigned int *) = machine.here;
		*va_arg(ap, unsigned int *) = machine.here % 4 / 2;
	} else {
		(void)va_arg(ap, int);
		size_t size = va_arg(ap, size_t);
		unsigned long *set = va_arg(ap, unsigned long *);

		if (number == SYS_sched_getaffinity && size >= sizeof(*set))
			*set = machine.may;
	}
	va_end(ap);
	return 0;
}

static int made_up_setaffinity(pthread_t thread, size_t size, const cpu_set_t *set)
{
	if (size >= sizeof(machine.placed[0]) && thread >= 100)
		memcpy(&machine.placed[thread - 100], set, sizeof(machine.placed[0]));
	return 0;
}

#define pthread_setaffinity_np made_up_setaffinity
#define open made_up_open
#define syscall made_up_syscall
#include "copy/cpus.c"
#undef open
#undef pthread_setaffinity_np
#undef syscall

/* Threads get the sets of want, from the first to the one that is 0. */
static bool are_placed(unsigned int here, unsigned long may, bool sysfs, const unsigned long *want)
{
	struct copy_cpus *cpus;
	unsigned int n = 0;
	bool ok = true;

	while (want[n])
		n++;
	memset(&machine, 0, sizeof(machine));
	machine.here = here;
	machine.may = may;
	machine.has_sysfs = sysfs;
	cpus = copy_cpus_new(n);
	for (unsigned int i = 0; cpus && i < n; i++) {
		copy_cpus_place(cpus, (pthread_t)(100 + i), i);
		if (machine.placed[i] != want[i]) {
			printf("# thread %u has %#lx, not %#lx\n", i, machine.placed[i], want[i]);
			ok = false;
		}
	}
	ok = ok && cpus;
	copy_cpus_free(cpus);
	return ok;
}

static bool are_refused(unsigned int threads, unsigned long may)
{
	struct copy_cpus *cpus;

	memset(&machine, 0, sizeof(machine));
	machine.may = may;
	machine.has_sysfs = true;
	cpus = copy_cpus_new(threads);
	copy_cpus_free(cpus);
	return !cpus;
}

int main(void)
{
	static const struct {
		const char *what;
		unsigned int here;
		unsigned long may;
		bool sysfs;
		unsigned long want[THREADS];
	} cases[] = {
		{ "one gets all of the node but this CPU", 0, 0xff, true, { 0x32 } },
		{ "two get a core each", 0, 0xff, true, { 0x10, 0x22 } },
		{ "two on the other node", 7, 0xff, true, { 0x44, 0x08 } },
		{ "three get a CPU each of the node", 0, 0xff, true, { 0x10, 0x02, 0x20 } },
		{ "four need the other node, and get a core each", 0, 0xff, true,
		  { 0x10, 0x22, 0x44, 0x88 } },
		{ "seven get a CPU each", 1, 0xff, true,
		  { 0x01, 0x10, 0x20, 0x04, 0x40, 0x08, 0x80 } },
		{ "none gets what is not allowed", 0, 0x0f, true, { 0x02, 0x04, 0x08 } },
		{ "without sysfs any CPU will do", 0, 0x0f, false, { 0x02, 0x04, 0x08 } },
	};
	struct tap t = { 0, 0, 0 };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		tap_ok(&t, are_placed(cases[i].here, cases[i].may, cases[i].sysfs, cases[i].want), "%s",
		       cases[i].what);
	tap_ok(&t, are_refused(8, 0xff), "eight are too many beside this one");
	tap_ok(&t, are_refused(1, 0x01), "one is, where this one has the only CPU");
	machine.may = 0xf3;
	tap_is(&t, copy_cpus_allowed(), 6, "CPUs that are allowed");
	return tap_done(&t);
}
