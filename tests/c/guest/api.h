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

/* What a program finds by dlsym. */
struct api {
	void *lib;
	gdr_t (*open)(void);
	int (*close)(gdr_t);
	int (*pin)(gdr_t, unsigned long, size_t, uint64_t, uint32_t, gdr_mh_t *);
	int (*pin_v2)(gdr_t, unsigned long, size_t, uint32_t, gdr_mh_t *);
	int (*unpin)(gdr_t, gdr_mh_t);
	int (*flag)(gdr_t, gdr_mh_t, int *);
	int (*info)(gdr_t, gdr_mh_t, void *);
	int (*info_v2)(gdr_t, gdr_mh_t, gdr_info_v2_t *);
	int (*map)(gdr_t, gdr_mh_t, void **, size_t);
	int (*map_v2)(gdr_t, gdr_mh_t, void **, size_t, int);
	int (*unmap)(gdr_t, gdr_mh_t, void *, size_t);
	int (*to)(gdr_mh_t, void *, const void *, size_t);
	int (*from)(gdr_mh_t, void *, const void *, size_t);
	void (*version)(int *, int *);
	int (*driver)(gdr_t, int *, int *);
	int (*attribute)(gdr_t, gdr_attr_t, int *);
	int (*type_string)(gdr_mapping_type_t, const char **);
	int (*mem_alloc)(gdr_t, int, size_t, unsigned int, gdr_mem_t *);
	int (*mem_free)(gdr_t, gdr_mem_t);
	int (*mem_ptr)(gdr_t, gdr_mem_t, unsigned long *, size_t *);
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
	a->open = find(a->lib, "gdr_open");
	a->close = find(a->lib, "gdr_close");
	a->pin = find(a->lib, "gdr_pin_buffer");
	a->pin_v2 = find(a->lib, "gdr_pin_buffer_v2");
	a->unpin = find(a->lib, "gdr_unpin_buffer");
	a->flag = find(a->lib, "gdr_get_callback_flag");
	a->info = find(a->lib, "gdr_get_info");
	a->info_v2 = find(a->lib, "gdr_get_info_v2");
	a->map = find(a->lib, "gdr_map");
	a->map_v2 = find(a->lib, "gdr_map_v2");
	a->unmap = find(a->lib, "gdr_unmap");
	a->to = find(a->lib, "gdr_copy_to_mapping");
	a->from = find(a->lib, "gdr_copy_from_mapping");
	a->version = find(a->lib, "gdr_runtime_get_version");
	a->driver = find(a->lib, "gdr_driver_get_version");
	a->attribute = find(a->lib, "gdr_get_attribute");
	a->type_string = find(a->lib, "gdr_get_mapping_type_string");
	a->mem_alloc = find(a->lib, "gdr_mem_alloc");
	a->mem_free = find(a->lib, "gdr_mem_free");
	a->mem_ptr = find(a->lib, "gdr_mem_get_device_ptr");
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
	gdr_t g = a->open();

	expect(g != NULL);
	expect_is(a->mem_alloc(g, 0, 64 * KIB, 0, &mem), 0);
	expect_is(a->mem_ptr(g, mem, &dptr, NULL), 0);
	expect_is(a->pin(g, dptr, 64 * KIB, 0, 0, &mh), 0);
	expect_is(a->map(g, mh, &va, 64 * KIB), 0);
	fill_random(out, sizeof(out), (uintptr_t)a);
	expect_is(a->to(mh, va, out, sizeof(out)), 0);
	expect_is(a->from(mh, in, va, sizeof(in)), 0);
	expect(!memcmp(in, out, sizeof(in)));
	expect_is(a->unmap(g, mh, va, 64 * KIB), 0);
	expect_is(a->unpin(g, mh), 0);
	expect_is(a->mem_free(g, mem), 0);
	expect_is(a->close(g), 0);
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
