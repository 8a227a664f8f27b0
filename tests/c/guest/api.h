/* SPDX-License-Identifier: MIT */
/*
 * guest/api.h - the library as a program has it that loads it by itself.
 */
#ifndef GUEST_API_H
#define GUEST_API_H

#include "common.h"

#include <link.h>
#include <sys/stat.h>

#define LIBRARY "libgdrapi.so.2"

/* What a program finds by dlsym: each function of the headers, by its name. */
struct api {
	void *lib;
#define HANDLES(name, takes) __typeof__(name) *name;
#define OTHER(name) HANDLES(name, 0)
#define NOTHING(name) HANDLES(name, 0)
#include "functions.h"
#undef HANDLES
};

static inline void *find(void *lib, const char *name)
{
	void *sym = dlsym(lib, name);

	if (!sym)
		note("the library has no %s", name);
	expect(sym != NULL);
	return sym;
}

static inline void load(struct api *a, const char *path, int flags)
{
	a->lib = dlopen(path, flags);
	if (!a->lib)
		note("%s", dlerror());
	expect(a->lib != NULL);
#define HANDLES(name, takes) a->name = find(a->lib, #name);
#include "functions.h"
#undef HANDLES
#undef OTHER
#undef NOTHING
}

static inline void library_path(void *lib, char path[PATH_MAX])
{
	struct link_map *map = NULL;

	expect_is(dlinfo(lib, RTLD_DI_LINKMAP, &map), 0);
	expect(realpath(map->l_name, path) != NULL);
}

/* The library's whole work, and what it leaves behind. */
static inline void full_work(const struct api *a)
{
	unsigned char out[256], in[256];
	unsigned long dptr = 0;
	void *va = NULL;
	gdr_mem_t mem;
	gdr_mh_t mh;
	gdr_t g = a->gdr_open();

	expect(g != NULL);
	expect_is(a->gdr_mem_alloc(g, 0, 64 * KIB, 0, &mem), 0);
	expect_is(a->gdr_mem_get_device_ptr(g, mem, &dptr, NULL), 0);
	expect_is(a->gdr_pin_buffer(g, dptr, 64 * KIB, 0, 0, &mh), 0);
	expect_is(a->gdr_map(g, mh, &va, 64 * KIB), 0);
	fill_random(out, sizeof(out), (uintptr_t)a);
	expect_is(a->gdr_copy_to_mapping(mh, va, out, sizeof(out)), 0);
	expect_is(a->gdr_copy_from_mapping(mh, in, va, sizeof(in)), 0);
	expect(!memcmp(in, out, sizeof(in)));
	expect_is(a->gdr_unmap(g, mh, va, 64 * KIB), 0);
	expect_is(a->gdr_unpin_buffer(g, mh), 0);
	expect_is(a->gdr_mem_free(g, mem), 0);
	expect_is(a->gdr_close(g), 0);
}

/* Copies the library's file; returns the name of the copy in path. */
static inline void copy_library(const char *from, char path[PATH_MAX])
{
	char buf[1 << 14];
	const char *tmp = getenv("TMPDIR");
	int in = open(from, O_RDONLY | O_CLOEXEC), out;
	ssize_t n;

	snprintf(path, PATH_MAX, "%s/libgdrapi-XXXXXX", tmp ? tmp : "/tmp");
	out = mkostemp(path, O_CLOEXEC);
	expect(in >= 0 && out >= 0);
	while ((n = read(in, buf, sizeof(buf))) > 0)
		expect_is(write(out, buf, n), n);
	expect_is(n, 0);
	expect_is(fchmod(out, 0755), 0);
	close(in);
	close(out);
}

/* Runs a case anew with a copy of the library preloaded, and removes the copy. It has GUEST_PATH. */
static inline void run_with_preloaded(const char *copy, const char *name, const char *path)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		setenv("LD_PRELOAD", copy, 1);
		setenv("GUEST_PATH", path, 1);
		run_anew(name);
	}
	status = wait_child(pid, 30);
	unlink(copy);
	expect(child_ok("the program with LD_PRELOAD", status));
}

#endif
