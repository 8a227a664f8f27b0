// SPDX-License-Identifier: MIT
/*
 * front.c - a libgdrapi.so.2 in front of the library, which counts what a consumer asks for
 * and gets. A consumer takes it by link, by dlopen of either name, or by LD_PRELOAD. What it
 * does not define is the library's. With GDR_COUNT=FOLDER each process that makes one of these
 * calls keeps its counts in FOLDER/PID, as a struct counts. They are there however it ends.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <gdrapi.h>

/* What succeeded; in the file, eight bytes each in this order. */
struct counts {
	uint64_t opens, pins, maps;
	uint64_t to, from;	/* bytes that were copied and that the mapping has, too */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct counts *counts;
static pid_t owner;	/* of counts; a forked child makes its own */

static void fail(const char *what)
{
	fprintf(stderr, "front: %s\n", what);
	abort();
}

static struct counts *make_counts(pid_t pid)
{
	static struct counts nowhere;
	const char *folder = getenv("GDR_COUNT");
	char path[4096];
	void *p;
	int fd;

	if (!folder)
		return &nowhere;
	snprintf(path, sizeof(path), "%s/%d", folder, pid);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0 || ftruncate(fd, sizeof(*counts)))
		fail("GDR_COUNT is no folder for files");
	p = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		fail("no memory for counts");
	close(fd);
	return p;
}

/* Before the call: what UCX's hooks of mmap see is then the library's alone. */
static struct counts *mine(void)
{
	pid_t pid = getpid();

	if (__atomic_load_n(&owner, __ATOMIC_ACQUIRE) == pid)
		return counts;
	pthread_mutex_lock(&lock);
	if (owner != pid) {
		counts = make_counts(pid);
		__atomic_store_n(&owner, pid, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
	return counts;
}

static void add(uint64_t *to, uint64_t n)
{
	__atomic_add_fetch(to, n, __ATOMIC_RELAXED);
}

/* By its path: a dlopen of "$ORIGIN" that UCX intercepts is one from UCX's folder. */
static void *library(const char *name)
{
	char path[4096];
	Dl_info me;
	void *lib, *f;

	if (!dladdr((void *)library, &me))
		fail("dladdr");
	snprintf(path, sizeof(path), "%.*s/../libgdrapi.so.2",
		 (int)(strrchr(me.dli_fname, '/') - me.dli_fname), me.dli_fname);
	lib = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	f = lib ? dlsym(lib, name) : NULL;
	if (!f)
		fail(name);
	return f;
}

#define LIBRARY(name)								\
	static __typeof__(&name) real;						\
										\
	if (!real)								\
		real = (__typeof__(real))library(#name)

/* A function that is counted where what it gives, got, is good. */
#define COUNTED(function, what, good, type, parameters, arguments)		\
type function parameters							\
{										\
	struct counts *c = mine();						\
	type got;								\
										\
	LIBRARY(function);							\
	got = real arguments;							\
	add(&c->what, good);							\
	return got;								\
}

COUNTED(gdr_open, opens, got != NULL, gdr_t, (void), ())
COUNTED(gdr_pin_buffer, pins, !got, int,
	(gdr_t g, unsigned long addr, size_t size, uint64_t token, uint32_t space, gdr_mh_t *mh),
	(g, addr, size, token, space, mh))
COUNTED(gdr_pin_buffer_v2, pins, !got, int,
	(gdr_t g, unsigned long addr, size_t size, uint32_t flags, gdr_mh_t *mh), (g, addr, size, flags, mh))
COUNTED(gdr_map, maps, !got, int, (gdr_t g, gdr_mh_t mh, void **va, size_t size), (g, mh, va, size))
COUNTED(gdr_map_v2, maps, !got, int, (gdr_t g, gdr_mh_t mh, void **va, size_t size, int flags),
	(g, mh, va, size, flags))
COUNTED(gdr_copy_to_mapping, to, !got && !memcmp(map, host, size) ? size : 0, int,
	(gdr_mh_t mh, void *map, const void *host, size_t size), (mh, map, host, size))

/* One byte differs before the copy: the host may have had the right ones. */
int gdr_copy_from_mapping(gdr_mh_t mh, void *host, const void *map, size_t size)
{
	unsigned char none = 0, *byte = size ? (unsigned char *)host + size / 2 : &none;
	struct counts *c = mine();
	int rc;

	LIBRARY(gdr_copy_from_mapping);
	*byte ^= 0xff;
	rc = real(mh, host, map, size);
	if (rc)
		*byte ^= 0xff;
	add(&c->from, !rc && !memcmp(map, host, size) ? size : 0);
	return rc;
}
