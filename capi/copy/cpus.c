// SPDX-License-Identifier: MIT
/*
 * cpus.c - on which CPUs threads that share copies run.
 *
 * A read is limited by what one core can have in flight. So each thread gets a core of
 * its own while there are enough cores. The CPUs are of the caller's NUMA node: a host
 * that cares has bound the caller next to its GPU.
 */
#define _GNU_SOURCE
#include "cpus.h"

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CPUS_MAX 8192u	/* as many as Linux can have */

/* A set of CPUs in the form that the system calls take. */
struct set {
	unsigned long bits[CPUS_MAX / (8 * sizeof(unsigned long))];
};

struct cpu {
	unsigned int core;	/* the lowest CPU of its core */
	unsigned int number;
};

struct copy_cpus {
	unsigned int threads;
	unsigned int n, cores;
	struct cpu cpu[CPUS_MAX];	/* n of them, those of one core together */
};

#define LONG_BITS (8 * sizeof(unsigned long))

static bool has(const struct set *set, unsigned int cpu)
{
	return set->bits[cpu / LONG_BITS] >> cpu % LONG_BITS & 1;
}

static void add(struct set *set, unsigned int cpu)
{
	set->bits[cpu / LONG_BITS] |= 1ul << cpu % LONG_BITS;
}

static void allowed(struct set *set)
{
	*set = (struct set){ { 0 } };
	syscall(SYS_sched_getaffinity, 0, sizeof(*set), set);
}

unsigned int copy_cpus_allowed(void)
{
	struct set set;
	unsigned int n = 0;

	allowed(&set);
	for (size_t i = 0; i < CPUS_MAX / LONG_BITS; i++)
		n += (unsigned int)__builtin_popcountl(set.bits[i]);
	return n ? n : 1;
}

/* Reads a list of CPUs in the form of sysfs ("0-3,8"). false: there is no list. */
static bool read_list(const char *path, struct set *set)
{
	char text[4096], *at = text;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;

	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return false;
	text[n] = '\0';
	*set = (struct set){ { 0 } };
	while (*at >= '0' && *at <= '9') {
		unsigned long from = strtoul(at, &at, 10);
		unsigned long to = *at == '-' ? strtoul(at + 1, &at, 10) : from;

		for (; from <= to && from < CPUS_MAX; from++)
			add(set, (unsigned int)from);
		at += *at == ',';
	}
	return true;
}

static unsigned int core_of(unsigned int cpu)
{
	char path[96];
	struct set set;

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
	if (!read_list(path, &set))
		return cpu;
	for (unsigned int i = 0; i < cpu; i++)
		if (has(&set, i))
			return i;
	return cpu;
}

static int by_core(const void *a, const void *b)
{
	const struct cpu *x = a, *y = b;

	if (x->core != y->core)
		return x->core < y->core ? -1 : 1;
	return x->number < y->number ? -1 : x->number > y->number;
}

/* Keeps in cpus the CPUs that are in both sets, without one CPU. */
static void keep_common(struct copy_cpus *cpus, const struct set *a, const struct set *b,
			unsigned int but)
{
	cpus->n = 0;
	for (unsigned int i = 0; i < CPUS_MAX; i++)
		if (i != but && has(a, i) && has(b, i))
			cpus->cpu[cpus->n++].number = i;
}

static bool begins_core(const struct copy_cpus *cpus, unsigned int i)
{
	return !i || cpus->cpu[i].core != cpus->cpu[i - 1].core;
}

struct copy_cpus *copy_cpus_new(unsigned int threads)
{
	struct copy_cpus *cpus = malloc(sizeof(*cpus));
	unsigned int here = CPUS_MAX, node = 0;
	struct set may, near;
	char path[64];

	if (!cpus)
		return NULL;
	cpus->threads = threads;
	cpus->n = 0;
	allowed(&may);
	syscall(SYS_getcpu, &here, &node, NULL);
	snprintf(path, sizeof(path), "/sys/devices/system/node/node%u/cpulist", node);
	if (read_list(path, &near))
		keep_common(cpus, &may, &near, here);
	if (cpus->n < threads)
		keep_common(cpus, &may, &may, here);
	if (cpus->n < threads) {
		free(cpus);
		return NULL;
	}
	for (unsigned int i = 0; i < cpus->n; i++)
		cpus->cpu[i].core = core_of(cpus->cpu[i].number);
	qsort(cpus->cpu, cpus->n, sizeof(cpus->cpu[0]), by_core);
	cpus->cores = 0;
	for (unsigned int i = 0; i < cpus->n; i++)
		cpus->cores += begins_core(cpus, i);
	return cpus;
}

void copy_cpus_free(struct copy_cpus *cpus)
{
	free(cpus);
}

void copy_cpus_place(const struct copy_cpus *cpus, pthread_t thread, unsigned int i)
{
	bool whole = cpus->cores >= cpus->threads;
	unsigned int n = whole ? cpus->cores : cpus->n, at = 0;
	unsigned int from = n * i / cpus->threads, to = n * (i + 1) / cpus->threads;
	struct set set = { { 0 } };

	for (unsigned int k = 0; k < cpus->n; k++) {
		at += k && (!whole || begins_core(cpus, k));
		if (at >= from && at < to)
			add(&set, cpus->cpu[k].number);
	}
	/* If the kernel refuses this, it chooses the CPU itself. */
	pthread_setaffinity_np(thread, sizeof(set), (const cpu_set_t *)&set);
}
